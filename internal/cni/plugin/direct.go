package plugin

import (
	"errors"
	"io"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cni"
)

// Direct serves ADDs in the form in which runtimes send them, in a third of the time: the agent prints the result, and neither the CNI
// library nor the packages json and net, whose first use takes milliseconds, are used. Everything else, and all that is not valid, is left
// to the CNI library.
type Direct struct {
	// Env returns a variable of the environment.
	Env func(name string) string
	// Versions are the versions of the specification that the program supports.
	Versions []string
	// Serves reports whether the agent serves the node, whose records are in a directory.
	Serves func(records string) bool
	// Origin is sent to the agent.
	Origin cni.Origin
	// Spoken is the configuration's cniVersion, once Add knows it.
	Spoken string
}

// Add serves an ADD. done is false, and nothing has happened, if the request is for the CNI library: then standard input is as it was.
func (d *Direct) Add(stdout io.Writer) (done bool, failure *types.Error) {
	req, plain := d.request()
	if !plain {
		return false, nil
	}
	done, err := d.serve(stdout, req)
	if err != nil && !errors.As(specError(err), &failure) {
		failure = types.NewError(types.ErrInternal, err.Error(), "")
	}
	return done, failure
}

func (d *Direct) serve(stdout io.Writer, req *cni.Request) (done bool, err error) {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return true, cni.Errorf(cni.CodeIO, "reading the network configuration: %w", err)
	}
	if conf, ok := cni.ParsePlain(stdin); ok && slices.Contains(d.Versions, conf.Version) && d.Serves(conf.Records) {
		d.Spoken = conf.Version
		done, err = d.ask(stdout, &conf, req)
	}
	if done {
		return true, err
	}
	if err := giveBack(stdin); err != nil {
		return true, cni.Errorf(cni.CodeIO, "keeping the network configuration: %w", err)
	}
	return false, nil
}

// request returns the request that the environment describes; plain is false if it is not a valid ADD to another namespace.
func (d *Direct) request() (req *cni.Request, plain bool) {
	if d.Env("CNI_COMMAND") != string(cni.CommandAdd) || d.Env("CNI_NETNS_OVERRIDE") != "" || d.Env("CNI_PATH") == "" {
		return nil, false
	}
	args, err := cni.ParseArgs(d.Env("CNI_ARGS"))
	req = &cni.Request{
		Command: cni.CommandAdd, ContainerID: d.Env("CNI_CONTAINERID"), Netns: d.Env("CNI_NETNS"), IfName: d.Env("CNI_IFNAME"), Args: args, Path: d.Env("CNI_PATH"),
	}
	return req, err == nil && isElsewhere(req.Netns)
}

// isElsewhere reports whether the namespace at a path is another one than the node's own.
func isElsewhere(netns string) bool {
	var own, other unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &own) != nil || unix.Stat(netns, &other) != nil {
		return false
	}
	return own.Dev != other.Dev || own.Ino != other.Ino
}

// ask has the agent serve a request. done is false if nothing was sent.
func (d *Direct) ask(stdout io.Writer, conf *cni.Plain, req *cni.Request) (done bool, err error) {
	body, ok := conf.Encode(req)
	if !ok {
		return false, nil
	}
	ensurePorts(conf.Ports)
	client := cni.Client{Socket: conf.Socket, Origin: d.Origin}
	answer, err := client.Send(body, conf.Version, requestTimeout)
	switch {
	case errors.Is(err, cni.ErrAgentAway):
		return false, nil
	case err != nil:
		return true, err
	}
	text, printed := answer.Printed()
	if !printed {
		result, err := answer.Result(req)
		if err != nil {
			return true, err
		}
		return true, printResult(stdout, result, conf.Version)
	}
	if _, err := stdout.Write(text); err != nil {
		return true, cni.Errorf(cni.CodeIO, "printing the result: %w", err)
	}
	return true, nil
}

// giveBack makes data the content of standard input again.
func giveBack(data []byte) error {
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "stdin") //nolint:gosec // File descriptors fit.
	defer file.Close()
	if _, err = file.Write(data); err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}
	return os.NewSyscallError("dup3", unix.Dup3(fd, 0, 0))
}
