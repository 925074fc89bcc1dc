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

// Command is a command of the CNI specification. VERSION is not one of them: the plugin answers it alone.
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
	// Endpoint is the path of requests. Its number changes when an agent of this version could misunderstand a request of the next version.
	Endpoint = "/v1/cni"
	// MaxBody is the maximum size of a request and of an answer, in bytes. GC's are the largest, with about 120 bytes per attachment.
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
	// Netns is CNI_NETNS: the path of the sandbox's network namespace. Empty for STATUS and GC, and for a DEL after the namespace was
	// removed.
	Netns string `json:"netns,omitempty"`
	// IfName is CNI_IFNAME: the interface's name in the sandbox. Empty for STATUS and GC.
	IfName string `json:"ifName,omitempty"`
	// Args are the values of CNI_ARGS.
	Args Args `json:"args,omitzero"`
	// Path is CNI_PATH: the directories of plugins. Empty if unknown.
	Path string `json:"path,omitempty"`
	// Config is the plugin's unchanged standard input.
	Config json.RawMessage `json:"config"`

	// NetConf is Config, parsed by Validate.
	NetConf *NetConf `json:"-"`
}

// Response is the answer to a Request: an error, or for ADD a result.
type Response struct {
	Error  *Error           `json:"error,omitempty"`
	Result *types100.Result `json:"result,omitempty"`
}

// Handler executes the commands in the agent. Calls are concurrent, also for one attachment: a runtime may abandon an ADD and send its
// DEL while the ADD still runs.
//
// The context ends when the runtime has abandoned the request (it kills the plugin then), after the server's RequestTimeout, or when the
// server is stopped and its grace is over. Add must then undo its work: no runtime reads its answer.
//
// An error that is or wraps an *Error keeps its code; any other gets CodeInternal.
type Handler interface {
	// Add attaches the interface, and returns its description. The server sets the result's version.
	Add(ctx context.Context, req *Request) (*types100.Result, error)
	// Del detaches the interface. It succeeds if there is none.
	Del(ctx context.Context, req *Request) error
	// Check compares the interface with the result of Add.
	Check(ctx context.Context, req *Request) error
	// Status reports whether Add can be served: nil, or an *Error with CodeNotAvailable or
	// CodeLimitedConnectivity.
	Status(ctx context.Context, req *Request) error
	// GC removes every attachment of sandboxes that have none in req.NetConf.ValidAttachments.
	GC(ctx context.Context, req *Request) error
}

// ParseRequest decodes and validates a Request. It refuses unknown fields, and anything after the object.
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

// Validate checks every field and sets NetConf. The error names the field: with CodeInvalidEnvironment it is a variable, with
// CodeInvalidConfig or CodeDecode a field of the configuration.
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

// Pod returns the namespace and the name of the pod, or CodeInvalidEnvironment if the runtime did not pass them.
func (r *Request) Pod() (namespace, name string, err error) {
	if r.Args.PodNamespace == "" {
		return "", "", Errorf(CodeInvalidEnvironment, "CNI_ARGS: K8S_POD_NAMESPACE is missing")
	}
	if r.Args.PodName == "" {
		return "", "", Errorf(CodeInvalidEnvironment, "CNI_ARGS: K8S_POD_NAME is missing")
	}
	return r.Args.PodNamespace, r.Args.PodName, nil
}

// String returns the command and the attachment, for logs.
func (r *Request) String() string {
	if r.ContainerID == "" {
		return string(r.Command)
	}
	return fmt.Sprintf("%s %s of %s", r.Command, r.IfName, r.ContainerID)
}

// isInterfaceName reports whether the kernel accepts s as the name of an interface (dev_valid_name of net/core/dev.c).
func isInterfaceName(s string) bool {
	return s != "" && len(s) <= maxInterfaceName && s != "." && s != ".." && isPrintable(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return r == '/' || r == ':' || unicode.IsSpace(r) })
}
