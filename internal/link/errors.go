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

func (e *invalidNameError) Error() string {
	return "invalid device name " + strconv.Quote(e.name) + ": it " + e.problem
}

func (e *invalidNameError) Unwrap() error { return ErrName }
