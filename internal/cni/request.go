package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Command is a verb of the CNI specification. VERSION is not among them: the plugin answers it alone.
type Command string

// The commands that the agent serves.
const (
	CommandAdd    Command = "ADD"
	CommandDel    Command = "DEL"
	CommandCheck  Command = "CHECK"
	CommandStatus Command = "STATUS"
	CommandGC     Command = "GC"
)

const (
	// Endpoint is the path that requests are posted to. Its number changes when a request of the next version
	// can be misunderstood by an agent of this one.
	Endpoint = "/v1/cni"
	// MaxBody bounds a request and an answer, in bytes. The largest are GC's, about 120 bytes an attachment.
	MaxBody = 1 << 20
	// maxInterfaceName is the length of the longest interface name (IFNAMSIZ of linux/if.h is 16, with its NUL).
	maxInterfaceName = 15
)

// Request is one execution of the plugin.
type Request struct {
	// Command is CNI_COMMAND.
	Command Command `json:"command"`
	// ContainerID is CNI_CONTAINERID: the sandbox. Empty for STATUS and GC.
	ContainerID string `json:"containerID,omitempty"`
	// Netns is CNI_NETNS: the path of the sandbox's network namespace. Empty for STATUS and GC, and for a DEL
	// after which the namespace is gone already.
	Netns string `json:"netns,omitempty"`
	// IfName is CNI_IFNAME: the interface's name in the sandbox. Empty for STATUS and GC.
	IfName string `json:"ifName,omitempty"`
	// Args are what CNI_ARGS says.
	Args Args `json:"args,omitzero"`
	// Path is CNI_PATH: where plugins are. Empty when unknown.
	Path string `json:"path,omitempty"`
	// Config is the plugin's standard input as it came.
	Config json.RawMessage `json:"config"`

	// NetConf is Config, parsed by Validate.
	NetConf *NetConf `json:"-"`
}

// Response is the answer to a Request: an error, or none, and then for ADD a result.
type Response struct {
	Error  *Error           `json:"error,omitempty"`
	Result *types100.Result `json:"result,omitempty"`
}

// Handler is what the agent does for each command. Calls are concurrent, also for one attachment: a runtime may
// give up on an ADD and send its DEL while the ADD still runs.
//
// The context ends when the runtime has gone away (it kills the plugin when it gives up), when the server's
// RequestTimeout is over, or when the server is stopped and its grace is over. Add then undoes what it has
// done: nobody will read its answer.
//
// An error that is or wraps an *Error keeps its code, any other gets CodeInternal.
type Handler interface {
	// Add attaches the interface, and returns what it looks like. The server sets the result's version.
	Add(ctx context.Context, req *Request) (*types100.Result, error)
	// Del detaches the interface. It succeeds when there is nothing to detach.
	Del(ctx context.Context, req *Request) error
	// Check compares the interface with what Add made of it.
	Check(ctx context.Context, req *Request) error
	// Status reports whether Add can be served: nil, or an *Error with CodeNotAvailable or
	// CodeLimitedConnectivity.
	Status(ctx context.Context, req *Request) error
	// GC removes every attachment of the network that is not in req.NetConf.ValidAttachments.
	GC(ctx context.Context, req *Request) error
}

// ParseRequest reads a Request from the wire and validates it. Fields it does not know are refused, and so is
// anything after the object.
func ParseRequest(data []byte) (*Request, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	req := &Request{}
	if err := decoder.Decode(req); err != nil {
		return nil, Errorf(CodeDecode, "request of the plugin: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, Errorf(CodeDecode, "request of the plugin: data after the JSON object")
	}
	if err := req.Validate(); err != nil {
		return nil, err
	}
	return req, nil
}

// Validate checks every field and sets NetConf. The error names the field: with CodeInvalidEnvironment a
// variable, with CodeInvalidConfig or CodeDecode the configuration.
func (r *Request) Validate() error {
	switch r.Command {
	case CommandAdd, CommandCheck, CommandDel:
		if err := r.validateAttachment(); err != nil {
			return err
		}
	case CommandStatus, CommandGC:
	default:
		return Errorf(CodeInvalidEnvironment, "CNI_COMMAND: %q is not known", r.Command)
	}
	if len(r.Path) > MaxBody/2 || !isPrintable(r.Path) {
		return Errorf(CodeInvalidEnvironment, "CNI_PATH: not a list of paths")
	}
	if err := r.Args.validate(); err != nil {
		return err
	}
	conf, err := ParseNetConf(r.Config)
	if err != nil {
		return err
	}
	if r.Command == CommandGC && conf.ValidAttachments == nil {
		return Errorf(CodeInvalidConfig, "network configuration: GC without cni.dev/valid-attachments would remove everything")
	}
	r.NetConf = conf
	return nil
}

func (r *Request) validateAttachment() error {
	if !isContainerID(r.ContainerID) {
		return Errorf(CodeInvalidEnvironment, "CNI_CONTAINERID: %q is not a container id", r.ContainerID)
	}
	if !isInterfaceName(r.IfName) {
		return Errorf(CodeInvalidEnvironment, "CNI_IFNAME: %q is not an interface name", r.IfName)
	}
	if r.Netns == "" && r.Command == CommandDel {
		return nil
	}
	if !isCleanPath(r.Netns) {
		return Errorf(CodeInvalidEnvironment, "CNI_NETNS: %q is not an absolute path", r.Netns)
	}
	return nil
}

// Pod returns the namespace and the name of the pod, and CodeInvalidEnvironment when the runtime did not say.
func (r *Request) Pod() (namespace, name string, err error) {
	if r.Args.PodNamespace == "" {
		return "", "", Errorf(CodeInvalidEnvironment, "CNI_ARGS: K8S_POD_NAMESPACE is missing")
	}
	if r.Args.PodName == "" {
		return "", "", Errorf(CodeInvalidEnvironment, "CNI_ARGS: K8S_POD_NAME is missing")
	}
	return r.Args.PodNamespace, r.Args.PodName, nil
}

// String names the request for a log: the command and the attachment.
func (r *Request) String() string {
	if r.ContainerID == "" {
		return string(r.Command)
	}
	return fmt.Sprintf("%s %s of %s", r.Command, r.IfName, r.ContainerID)
}

// isInterfaceName reports whether the kernel takes s as the name of an interface (dev_valid_name of
// net/core/dev.c).
func isInterfaceName(s string) bool {
	return s != "" && len(s) <= maxInterfaceName && s != "." && s != ".." && isPrintable(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) })
}
