package cni

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Code numbers an error as the CNI specification 1.1.0 does. Runtimes act on it: 11 is retried, 50 and 51 mark
// a node as not ready for pods.
type Code uint

// The codes of the specification, and from 100 on Weft's own.
const (
	// CodeIncompatibleVersion: the configuration's cniVersion is not one that the plugin speaks.
	CodeIncompatibleVersion Code = 1
	// CodeUnsupportedField: the configuration asks for something that is understood and not offered.
	CodeUnsupportedField Code = 2
	// CodeUnknownContainer: CHECK of an attachment that the node does not have.
	CodeUnknownContainer Code = 3
	// CodeInvalidEnvironment: a CNI_* variable is missing or wrong; the message names it.
	CodeInvalidEnvironment Code = 4
	// CodeIO: reading or writing failed, also of the network configuration.
	CodeIO Code = 5
	// CodeDecode: what was read is not the JSON it should be.
	CodeDecode Code = 6
	// CodeInvalidConfig: the network configuration is JSON, and a field of it is wrong; the message names it.
	CodeInvalidConfig Code = 7
	// CodeInvalidNetns: CNI_NETNS is no network namespace, or is the node's own. The number is the CNI
	// library's (types.ErrInvalidNetNS); the specification leaves it free.
	CodeInvalidNetns Code = 8
	// CodeTryAgainLater: nothing is wrong with the request, the node cannot serve it now.
	CodeTryAgainLater Code = 11
	// CodeNotAvailable: STATUS, the node cannot serve ADD.
	CodeNotAvailable Code = 50
	// CodeLimitedConnectivity: STATUS, the node can serve ADD, and existing pods may lack connectivity.
	CodeLimitedConnectivity Code = 51

	// CodeInternal: the agent failed in a way that has no number of its own. The message says how.
	CodeInternal Code = 100
	// CodeForbidden: the process that asked is not root.
	CodeForbidden Code = 101
	// CodeProtocol: plugin and agent do not understand each other, which is to say that they are of versions
	// too far apart, or that something else owns the socket.
	CodeProtocol Code = 102
	// CodePanic: the agent's handler of this request panicked. The agent goes on; its log has the stack.
	CodePanic Code = 103
	// CodeRefused: the pod is bound to a network, or to a part of one, that cannot be served. The message says what binds it, and what
	// is missing.
	CodeRefused Code = 104
)

// ErrAgentAway is in the chain of the errors that Client.Do returns when nobody listens on the socket: the
// request has not been seen by anyone.
var ErrAgentAway = errors.New("the weft agent is not running on this node")

// Error is an error as the CNI specification wants it told: what Weft's plugin prints, and what travels between
// agent and plugin. A Handler returns one to choose the code.
type Error struct {
	// Code is the number that runtimes act on.
	Code Code
	// Msg is one sentence for whoever reads the pod's events. It says what to do, where something can be done.
	Msg string
	// Details is more for whoever looks closer; may be empty.
	Details string

	cause error
}

// Errorf returns an Error with a formatted message. Operands of the verb %w are in its chain.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), cause: err}
}

// AsError returns err as an Error: the one in its chain, or one with CodeInternal and err's text.
// It returns nil for nil. Text that was wrapped around an Error stays in the message.
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

// Unwrap returns what caused the error, nil if that is not known. It does not travel.
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
