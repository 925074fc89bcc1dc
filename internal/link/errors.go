package link

import (
	"errors"
	"strconv"
	"strings"
)

var (
	// ErrNoNamespace reports that a network namespace does not exist, or no longer.
	ErrNoNamespace = errors.New("network namespace does not exist")
	// ErrNotNamespace reports that a path is not a network namespace.
	ErrNotNamespace = errors.New("not a network namespace")
	// ErrNoDevice reports that a device to be configured does not exist (yet).
	ErrNoDevice = errors.New("device does not exist")
	// ErrForeign reports that an object which is not Weft's has the name or key of one that Weft has to create.
	ErrForeign = errors.New("exists and is not Weft's")
	// ErrUnsupported reports that the running kernel lacks what an item needs.
	ErrUnsupported = errors.New("not supported by this kernel")
	// ErrName reports an invalid device name.
	ErrName = errors.New("invalid device name")
)

// RollbackError reports that a commit failed and that undoing it failed as well, so that the state is neither the old nor the new one until
// the next verification.
type RollbackError struct {
	// Cause is why the commit failed.
	Cause error
	// Failures are the steps that could not be undone.
	Failures []error
}

// Error implements error.
func (e *RollbackError) Error() string {
	words := make([]string, len(e.Failures))
	for i, failure := range e.Failures {
		words[i] = failure.Error()
	}
	return e.Cause.Error() + "; undoing it failed too: " + strings.Join(words, "; ")
}

// Unwrap returns the cause and the failures, for errors.Is and errors.As.
func (e *RollbackError) Unwrap() []error { return append([]error{e.Cause}, e.Failures...) }

// Difference is one difference between a pod's interface and its desired state. [Pods.Check] joins them.
type Difference struct {
	// Object is what differs: "host end veth1a2b3c", "pod end eth0", "route 0.0.0.0/0 ...".
	Object string
	// Problem is a short clause: "does not exist", "mtu is 1500, not 1450".
	Problem string
}

// Error implements error.
func (d *Difference) Error() string { return d.Object + ": " + d.Problem }

// nameMax is IFNAMSIZ-1 of linux/if.h, in bytes.
const nameMax = 15

// ValidateName reports whether name can be a device's name: 1 to 15 bytes, no slash, colon, white space or control character, and neither
// "." nor "..". It is stricter than the kernel, so that a name is safe in a path as well. The error wraps ErrName.
func ValidateName(name string) error {
	if name == "" || len(name) > nameMax {
		return nameError(name, "must have 1 to 15 bytes")
	}
	if name == "." || strings.Contains(name, "..") {
		return nameError(name, "must not contain two dots or be one")
	}
	for _, b := range []byte(name) {
		if b <= ' ' || b >= 0x7f || strings.IndexByte("/:%\"\\", b) >= 0 {
			return nameError(name, "has a character that is not allowed")
		}
	}
	if name == "all" || name == "default" {
		return nameError(name, "is a word of sysctl")
	}
	return nil
}

type invalidNameError struct{ name, problem string }

func nameError(name, problem string) error { return &invalidNameError{name, problem} }

func (e *invalidNameError) Error() string {
	return "invalid device name " + strconv.Quote(e.name) + ": it " + e.problem
}

func (e *invalidNameError) Unwrap() error { return ErrName }
