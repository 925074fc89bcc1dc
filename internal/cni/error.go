package cni

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Code is an error's number in the CNI specification 1.1.0. Runtimes act on it: they retry after 11, and 50 and 51 mark a node as not
// ready for pods.
type Code uint

// The codes of the specification, and from 100 on Weft's own codes.
const (
	// CodeIncompatibleVersion: the plugin does not support the configuration's cniVersion.
	CodeIncompatibleVersion Code = 1
	// CodeUnsupportedField: the configuration has a valid setting that is not supported.
	CodeUnsupportedField Code = 2
	// CodeUnknownContainer: CHECK of an attachment that the node does not have.
	CodeUnknownContainer Code = 3
	// CodeInvalidEnvironment: a CNI_* variable is missing or invalid; the message names it.
	CodeInvalidEnvironment Code = 4
	// CodeIO: reading or writing failed, also of the network configuration.
	CodeIO Code = 5
	// CodeDecode: the input is not the expected JSON.
	CodeDecode Code = 6
	// CodeInvalidConfig: the network configuration is JSON with an invalid field; the message names it.
	CodeInvalidConfig Code = 7
	// CodeInvalidNetns: CNI_NETNS is not a network namespace, or is the node's own. The number is the CNI library's (types.ErrInvalidNetNS);
	// the specification does not define it.
	CodeInvalidNetns Code = 8
	// CodeTryAgainLater: the request is valid, but the node cannot serve it now.
	CodeTryAgainLater Code = 11
	// CodeNotAvailable: STATUS, the node cannot serve ADD.
	CodeNotAvailable Code = 50
	// CodeLimitedConnectivity: STATUS, the node can serve ADD, and existing pods may lack connectivity.
	CodeLimitedConnectivity Code = 51

	// CodeInternal: an error of the agent without a code of its own. The message describes it.
	CodeInternal Code = 100
	// CodeForbidden: the requesting process is not root.
	CodeForbidden Code = 101
	// CodeProtocol: plugin and agent do not understand each other: their versions differ too much, or another program owns the socket.
	CodeProtocol Code = 102
	// CodePanic: the agent's handler of this request panicked. The agent continues; its log has the stack.
	CodePanic Code = 103
	// CodeRefused: the pod is bound to a network, or to a part of one, that cannot be served. The message names the binding and what is
	// missing.
	CodeRefused Code = 104
)

// ErrAgentAway is wrapped by the errors of Client.Do if no process listens on the socket: no agent has received the request.
var ErrAgentAway = errors.New("the weft agent is not running on this node")

// Error is an error in the CNI specification's form: the plugin prints it, and the agent sends it to the plugin. A Handler returns an
// Error to choose the code.
type Error struct {
	// Code is the number that runtimes act on.
	Code Code
	// Msg is one sentence for the pod's events. If possible it says what to do.
	Msg string
	// Details has further information; it may be empty.
	Details string

	cause error
}

// Errorf returns an Error with a formatted message. It wraps the operands of %w.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), cause: err}
}

// AsError returns err as an Error: the one that err wraps, or one with CodeInternal and err's text. For nil it returns nil. Text that was
// wrapped around an Error remains in the message.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var own *Error
	if !errors.As(err, &own) {
		return &Error{Code: CodeInternal, Msg: err.Error(), cause: err}
	}
	if own.Error() == err.Error() {
		return own
	}
	return &Error{Code: own.Code, Msg: err.Error(), cause: err}
}

// Error returns the message, followed by the details if there are any.
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Details
}

// Unwrap returns the cause of the error, nil if unknown. The cause is not sent.
func (e *Error) Unwrap() error { return e.cause }

// wireError is the JSON form of an Error.
type wireError struct {
	CNIVersion string `json:"cniVersion,omitempty"`
	Code       Code   `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details,omitempty"`
}

// MarshalJSON writes the error as the specification's object, without cniVersion.
func (e *Error) MarshalJSON() ([]byte, error) { return e.MarshalVersion("") }

// MarshalVersion writes the error as the specification's object with the given cniVersion.
func (e *Error) MarshalVersion(version string) ([]byte, error) {
	return json.Marshal(wireError{CNIVersion: version, Code: e.Code, Msg: e.Msg, Details: e.Details})
}

// UnmarshalJSON reads the specification's object.
func (e *Error) UnmarshalJSON(data []byte) error {
	var wire wireError
	if err := json.Unmarshal(data, &wire); err != nil {
		return fmt.Errorf("CNI error: %w", err)
	}
	*e = Error{Code: wire.Code, Msg: wire.Msg, Details: wire.Details}
	return nil
}
