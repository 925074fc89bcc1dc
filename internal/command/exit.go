// Package command is what the commands of all programs have in common: exit codes, what they refuse, and the flags of the log.
package command

import (
	"errors"

	"github.com/spf13/cobra"
)

// Exit codes of commands that compare.
const (
	// Differs is the exit code of a command that found a difference.
	Differs = 1
	// Unknown is the exit code of a command that could not look, or does not know its arguments.
	Unknown = 2
)

// Exit ends the program with a given exit code.
type Exit struct {
	Code int
	// Err is printed; nil if the output is complete without it.
	Err error
}

// Error implements error.
func (e *Exit) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

// Unwrap returns the error to print.
func (e *Exit) Unwrap() error { return e.Err }

// Refuse gives a flag error the exit code Unknown, because for commands that compare, 0 and 1 are results.
func Refuse(_ *cobra.Command, err error) error { return &Exit{Code: Unknown, Err: err} }

// ExitCode returns the program's exit code after a command returned err.
func ExitCode(err error) int {
	var exit *Exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	}
	return 1
}
