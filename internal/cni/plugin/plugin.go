// Package plugin is the program that container runtimes execute. It converts its environment and standard input to a request, has the
// agent of the node serve it, and prints the answer in the requested version of the CNI specification. It has no state, and changes
// nothing by itself except for one namespace that the agent needs (package portspace).
//
// If the agent does not run, ADD, CHECK, GC and DEL fail with code 11 (try again later) and STATUS with code 50. DEL succeeds without the
// agent if the node has no record of the attachment: there is nothing to remove then.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/cni/portspace"
)

const (
	// requestTimeout is the time limit for the agent's answer. It is longer than the agent's own limit (cniserver.DefaultRequestTimeout), so
	// that the agent's error is reported, and less than the 2 minutes that a kubelet gives the runtime.
	requestTimeout = 75 * time.Second
	// statusTimeout is the time limit of STATUS, which runtimes call often and which must answer quickly.
	statusTimeout = 5 * time.Second
)

// Main serves one execution. It returns the exit code of the process: 0, or 1 after it has printed an error to stdout, as the
// specification requires. env returns variables of the environment. It sends origin to the agent.
func Main(stdout io.Writer, env func(name string) string, origin cni.Origin) int {
	p := &plugin{stdout: stdout, origin: origin}
	info := version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")
	direct := Direct{Env: env, Versions: info.SupportedVersions(), Serves: func(string) bool { return true }, Origin: origin}
	if done, failure := direct.Add(stdout); done {
		p.version = direct.Spoken
		return p.exit(failure)
	}
	return p.exit(skel.PluginMainFuncsWithError(p.funcs(), info, "weft-cni: the CNI plugin of Weft; container runtimes execute it"))
}

// Funcs returns functions that have the agent serve each command, for a program that serves some requests itself. ADD prints its result
// to stdout.
func Funcs(stdout io.Writer, origin cni.Origin) skel.CNIFuncs {
	return (&plugin{stdout: stdout, origin: origin}).funcs()
}

func (p *plugin) funcs() skel.CNIFuncs {
	return skel.CNIFuncs{
		Add:    p.add,
		Del:    p.del,
		Check:  func(args *skel.CmdArgs) error { return p.forward(cni.CommandCheck, args) },
		GC:     func(args *skel.CmdArgs) error { return p.forward(cni.CommandGC, args) },
		Status: p.status,
	}
}

// plugin is one execution.
type plugin struct {
	stdout io.Writer
	origin cni.Origin
	// version is the configuration's cniVersion, once known.
	version string
}

func (p *plugin) add(args *skel.CmdArgs) error {
	if err := p.checkNetns(args); err != nil {
		return err
	}
	result, err := p.ask(cni.CommandAdd, args, requestTimeout)
	if err != nil {
		return specError(err)
	}
	return specError(printResult(p.stdout, result, p.version))
}

func printResult(stdout io.Writer, result types.Result, version string) error {
	answer, err := result.GetAsVersion(version)
	if err != nil {
		return cni.Errorf(cni.CodeProtocol, "the weft agent's result cannot be expressed in CNI version %s: %w", version, err)
	}
	if err := answer.PrintTo(stdout); err != nil {
		return cni.Errorf(cni.CodeIO, "printing the result: %w", err)
	}
	return nil
}

// ensurePorts makes the namespace of pre-plugged ports. If that fails, the pod gets a newly made port.
func ensurePorts(path string) {
	if path == "" {
		return
	}
	if err := portspace.Ensure(path); err != nil {
		fmt.Fprintln(os.Stderr, "weft-cni:", err)
	}
}

// checkNetns refuses an ADD into the node's own namespace. The CNI library does so as well, but only after the ADD, when the node already
// has the pod's addresses and the result is printed.
func (p *plugin) checkNetns(args *skel.CmdArgs) error {
	if override := args.NetnsOverride; override == "1" || strings.EqualFold(override, "true") {
		return nil
	}
	own, err := ns.CheckNetNS(args.Netns)
	if err != nil {
		return err
	}
	if own {
		return specError(cni.Errorf(cni.CodeInvalidNetns, "CNI_NETNS: %q is the node's own network namespace", args.Netns))
	}
	return nil
}

func (p *plugin) del(args *skel.CmdArgs) error {
	_, err := p.ask(cni.CommandDel, args, requestTimeout)
	if !errors.Is(err, cni.ErrAgentAway) {
		return specError(err)
	}
	conf, confErr := cni.ParseNetConf(args.StdinData)
	if confErr != nil {
		return specError(confErr)
	}
	recorded, probeErr := attach.Recorded(conf.Records, attach.Key{ContainerID: args.ContainerID, IfName: args.IfName})
	if probeErr != nil {
		return specError(fmt.Errorf("%w; %w", err, probeErr))
	}
	if recorded {
		return specError(err)
	}
	return nil
}

func (p *plugin) status(args *skel.CmdArgs) error {
	_, err := p.ask(cni.CommandStatus, args, statusTimeout)
	if failure := cni.AsError(err); failure != nil && failure.Code == cni.CodeTryAgainLater {
		return specError(&cni.Error{Code: cni.CodeNotAvailable, Msg: failure.Msg, Details: failure.Details})
	}
	return specError(err)
}

func (p *plugin) forward(command cni.Command, args *skel.CmdArgs) error {
	_, err := p.ask(command, args, requestTimeout)
	return specError(err)
}

// ask sends the request to the agent.
func (p *plugin) ask(command cni.Command, args *skel.CmdArgs, timeout time.Duration) (types.Result, error) {
	conf, err := cni.ParseNetConf(args.StdinData)
	if err != nil {
		return nil, err
	}
	p.version = conf.CNIVersion
	pod, err := cni.ParseArgs(args.Args)
	if err != nil {
		return nil, err
	}
	config, err := cni.WithoutAnnotations(command, args.StdinData)
	if err != nil {
		return nil, err
	}
	req := &cni.Request{
		Command: command,
		Args:    pod,
		Path:    args.Path,
		Config:  config,
	}
	if command != cni.CommandStatus && command != cni.CommandGC {
		req.ContainerID, req.Netns, req.IfName = args.ContainerID, args.Netns, args.IfName
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	if command == cni.CommandAdd {
		ensurePorts(req.NetConf.Ports)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	client := cni.Client{Socket: req.NetConf.Socket, Origin: p.origin}
	result, err := client.Do(ctx, req)
	if err != nil {
		return nil, err
	}
	return result, nil
}

// specError converts an error to the CNI library's, with the same code. It returns nil for nil.
func specError(err error) error {
	if err == nil {
		return nil
	}
	failure := cni.AsError(err)
	return types.NewError(uint(failure.Code), failure.Msg, failure.Details)
}

// exit returns the exit code. It prints an error with cniVersion, as the specification requires; the CNI library leaves that out.
func (p *plugin) exit(failure *types.Error) int {
	if failure == nil {
		return 0
	}
	own := &cni.Error{Code: cni.Code(failure.Code), Msg: failure.Msg, Details: failure.Details}
	speak := p.version
	if speak == "" {
		speak = version.Current()
	}
	data, err := own.MarshalVersion(speak)
	if err == nil {
		_, err = p.stdout.Write(append(data, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "weft-cni: printing an error:", err)
	}
	return 1
}
