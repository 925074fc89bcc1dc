package cli

import "errors"

// exitError ends the program with a code of its own.
type exitError struct {
	code int
	// err is what is told; nil when the output has said it all.
	err error
}

// Error implements error.
func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns what is told.
func (e *exitError) Unwrap() error { return e.err }

// ExitCode returns what the program ends with after a command returned err.
func ExitCode(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	}
	return 1
}
