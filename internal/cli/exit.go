package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

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

// unknown makes a wrong flag no answer: of commands whose answer is 0 or 1.
func unknown(_ *cobra.Command, err error) error { return &exitError{code: exitUnknown, err: err} }

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
