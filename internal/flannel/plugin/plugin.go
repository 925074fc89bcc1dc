// Package plugin is weft-flannel, the program for the CNI type flannel: it composes a delegate's configuration of its own and of
// subnet.env, executes the delegate, and stores what it passed on for DEL, CHECK and GC. On a node with Weft's records, the agent serves
// the request instead.
package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	cniplugin "weft.dev/weft/internal/cni/plugin"
	"weft.dev/weft/internal/flannel/delegate"
	"weft.dev/weft/internal/flannel/subnetenv"
)

// delegateTimeout limits an execution of the delegate: a kubelet gives the runtime 2 minutes.
const delegateTimeout = 90 * time.Second

// Main serves one execution and returns the exit code of the process. env returns variables of the environment.
func Main(stdout io.Writer, env func(name string) string, origin cni.Origin) int {
	direct := cniplugin.Direct{Env: env, Versions: version.All.SupportedVersions(), Origin: origin, Serves: func(records string) bool {
		has, err := has(records)
		return err == nil && has
	}}
	done, failure := direct.Add(stdout)
	if !done {
		failure = serve(stdout, origin)
	}
	if failure == nil {
		return 0
	}
	if err := json.NewEncoder(stdout).Encode(failure); err != nil {
		fmt.Fprintln(os.Stderr, "weft-flannel: printing an error:", err)
	}
	return 1
}

// serve serves one execution with the CNI library.
func serve(stdout io.Writer, origin cni.Origin) *types.Error {
	p := &plugin{stdout: stdout, agent: cniplugin.Funcs(stdout, origin)}
	return skel.PluginMainFuncsWithError(skel.CNIFuncs{Add: p.add, Del: p.del, Check: p.check, GC: p.gc, Status: p.status},
		version.All, "weft-flannel: the CNI plugin of type flannel; container runtimes execute it")
}

// plugin is one execution.
type plugin struct {
	stdout io.Writer
	agent  skel.CNIFuncs
}

// agentServes reports whether the agent serves attachments on this node: a delegate would bypass the agent's policies.
func agentServes(stdin []byte) (records string, serves bool, err error) {
	var conf struct {
		Records string `json:"records"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return "", false, types.NewError(types.ErrDecodingFailure, "the configuration of type flannel is not JSON", err.Error())
	}
	if conf.Records == "" {
		conf.Records = cni.DefaultRecords
	}
	serves, err = has(conf.Records)
	return conf.Records, serves, err
}

// has reports whether the node has Weft's records.
func has(records string) (bool, error) {
	_, err := os.Stat(records)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, types.NewError(types.ErrIOFailure, "Weft's records cannot be looked at", err.Error())
	}
	return err == nil, nil
}

func parse(args *skel.CmdArgs) (*delegate.Config, error) {
	conf, err := delegate.Parse(args.StdinData)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	return conf, nil
}

// compile returns the delegate's configuration with the current subnet.env.
func compile(conf *delegate.Config) ([]byte, error) {
	env, err := subnetenv.Read(conf.SubnetFile)
	if err != nil {
		return nil, types.NewError(types.ErrTryAgainLater, "the node has no flannel subnet", err.Error())
	}
	out, err := conf.Compile(&env)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	return out, nil
}

func (p *plugin) add(args *skel.CmdArgs) error {
	if _, serves, err := agentServes(args.StdinData); err != nil || serves {
		return orErr(err, p.agent.Add, args)
	}
	conf, err := parse(args)
	if err != nil {
		return err
	}
	config, err := compile(conf)
	if err != nil {
		return err
	}
	cached := cacheOf(conf, args)
	_, _, missing := cached.read()
	if err := cached.write(config); err != nil {
		return types.NewError(types.ErrIOFailure, "keeping the delegate's configuration for DEL", err.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), delegateTimeout)
	defer cancel()
	result, err := addBy(ctx, conf.Type(), args.Path, config)
	if err != nil {
		// The delegate may have left something; what cannot be removed now, the runtime's DEL removes. After an earlier ADD without a DEL it
		// removes everything: the attachment may be in use.
		if errors.Is(missing, os.ErrNotExist) && delegateTo(ctx, "DEL", conf.Type(), args.Path, config) == nil {
			cached.remove()
		}
		return wrap("ADD by delegate "+conf.Type(), err)
	}
	answer := conf.CNIVersion
	if answer == "" {
		answer = "0.1.0"
	}
	converted, err := result.GetAsVersion(answer)
	if err != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, "the delegate's result has no form in version "+answer, err.Error())
	}
	return converted.PrintTo(p.stdout)
}

// addBy has the delegate add the attachment.
func addBy(ctx context.Context, kind, path string, config []byte) (types.Result, error) {
	output, err := execute(ctx, kind, path, config, "CNI_COMMAND=ADD")
	if err != nil {
		return nil, err
	}
	return resultOf(config, output)
}

// delegateTo has the delegate execute a command that has no result.
func delegateTo(ctx context.Context, command, kind, path string, config []byte) error {
	_, err := execute(ctx, kind, path, config, "CNI_COMMAND="+command)
	return err
}

func orErr(err error, serve func(*skel.CmdArgs) error, args *skel.CmdArgs) error {
	if err != nil {
		return err
	}
	return serve(args)
}

// wrap adds what failed to an error, and keeps the delegate's code.
func wrap(what string, err error) error {
	if failure, is := errors.AsType[*types.Error](err); is {
		return types.NewError(failure.Code, what+": "+failure.Msg, failure.Details)
	}
	return types.NewError(types.ErrInternal, what+": "+err.Error(), "")
}

func (p *plugin) del(args *skel.CmdArgs) error {
	if has, err := recorded(args); err != nil || has {
		return orErr(err, p.agent.Del, args)
	}
	conf, err := delegate.Decode(args.StdinData) // what is for the delegate may be invalid by now: the file has what it was
	if err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	cached := cacheOf(conf, args)
	config, kind, err := cached.read()
	if errors.Is(err, os.ErrNotExist) {
		return nil // nothing was delegated, or it was removed already
	}
	if err != nil {
		return types.NewError(types.ErrIOFailure, "the delegate's configuration cannot be read; remove the file once nothing of the pod is left", err.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), delegateTimeout)
	defer cancel()
	if err := delegateTo(ctx, "DEL", kind, args.Path, config); err != nil {
		return wrap("DEL by delegate "+kind, err) // the file stays for the next DEL
	}
	cached.remove()
	// If the agent has taken the pod over meanwhile, its record would keep the address for ever.
	if has, err := recorded(args); err != nil || has {
		return orErr(err, p.agent.Del, args)
	}
	return nil
}

// recorded reports whether the agent has a record of the attachment.
func recorded(args *skel.CmdArgs) (bool, error) {
	records, serves, err := agentServes(args.StdinData)
	if err != nil || !serves {
		return false, err
	}
	has, err := attach.Recorded(records, attach.Key{ContainerID: args.ContainerID, IfName: args.IfName})
	if err != nil {
		return false, types.NewError(types.ErrIOFailure, "Weft's records cannot be read", err.Error())
	}
	return has, nil
}

func (p *plugin) check(args *skel.CmdArgs) error {
	if _, serves, err := agentServes(args.StdinData); err != nil || serves {
		return orErr(err, p.agent.Check, args)
	}
	conf, err := parse(args)
	if err != nil {
		return err
	}
	config, kind, err := cacheOf(conf, args).read()
	if errors.Is(err, os.ErrNotExist) {
		return types.NewError(types.ErrUnknownContainer, "no attachment "+args.IfName+" of container "+args.ContainerID+" was made", "")
	}
	if err != nil {
		return types.NewError(types.ErrIOFailure, "the delegate's configuration cannot be read", err.Error())
	}
	if config, err = withPrevResult(config, args.StdinData); err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	ctx, cancel := context.WithTimeout(context.Background(), delegateTimeout)
	defer cancel()
	if err := delegateTo(ctx, "CHECK", kind, args.Path, config); err != nil {
		return wrap("CHECK by delegate "+kind, err)
	}
	return nil
}

// withPrevResult adds the result of ADD to a delegate's configuration, for CHECK.
func withPrevResult(config, stdin []byte) ([]byte, error) {
	var given struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}
	fields := map[string]json.RawMessage{}
	if err := errors.Join(json.Unmarshal(stdin, &given), json.Unmarshal(config, &fields)); err != nil {
		return nil, err
	}
	if len(given.PrevResult) == 0 {
		return nil, errors.New("prevResult is missing: CHECK needs the result of ADD")
	}
	var err error
	if fields["prevResult"], err = withGateways(given.PrevResult); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// withGateways completes a result's routes: a route without a gateway uses that of the addresses, and the delegates' CHECK compares a route
// with its gateway.
func withGateways(result []byte) ([]byte, error) {
	fields := map[string]json.RawMessage{}
	var parts struct {
		IPs []struct {
			Gateway netip.Addr `json:"gateway"`
		} `json:"ips"`
		Routes []map[string]json.RawMessage `json:"routes"`
	}
	if err := errors.Join(json.Unmarshal(result, &fields), json.Unmarshal(result, &parts)); err != nil {
		return nil, fmt.Errorf("prevResult: %w", err)
	}
	if len(parts.Routes) == 0 {
		return result, nil
	}
	for _, route := range parts.Routes {
		var dst netip.Prefix
		if _, ok := route["gw"]; ok || json.Unmarshal(route["dst"], &dst) != nil {
			continue
		}
		for _, ip := range parts.IPs {
			if ip.Gateway.IsValid() && ip.Gateway.Is4() == dst.Addr().Is4() {
				route["gw"] = json.RawMessage(`"` + ip.Gateway.String() + `"`)
			}
		}
	}
	var err error
	if fields["routes"], err = json.Marshal(parts.Routes); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

func (p *plugin) status(args *skel.CmdArgs) error {
	if _, serves, err := agentServes(args.StdinData); err != nil || serves {
		return orErr(err, p.agent.Status, args)
	}
	conf, err := parse(args)
	if err != nil {
		return err
	}
	config, err := compile(conf)
	var failure *types.Error
	if errors.As(err, &failure) && failure.Code == types.ErrTryAgainLater {
		return types.NewError(types.ErrPluginNotAvailable, failure.Msg, failure.Details)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), delegateTimeout)
	defer cancel()
	known, err := speaks(ctx, conf.Type(), args.Path)
	if err != nil || !known {
		return err
	}
	if err := delegateTo(ctx, "STATUS", conf.Type(), args.Path, config); err != nil {
		return wrap("STATUS by delegate "+conf.Type(), err)
	}
	return nil
}
