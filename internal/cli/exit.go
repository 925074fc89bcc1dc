package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// exitError ends the program with a given exit code.
type exitError struct {
	code int
	// err is printed; nil if the output is complete without it.
	err error
}

// Error implements error.
func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns the error to print.
func (e *exitError) Unwrap() error { return e.err }

// unknown gives a flag error the exit code exitUnknown, because for commands that compare, 0 and 1 are results.
func unknown(_ *cobra.Command, err error) error { return &exitError{code: exitUnknown, err: err} }

// ExitCode returns the program's exit code after a command returned err.
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
