package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageError is a wrong argument or flag. The program prints it and ends with 2; it ends with 1 if a command failed.
type usageError struct{ error }

// Unwrap returns the error to print.
func (e usageError) Unwrap() error { return e.error }

// exitUsage is the program's exit code after a usageError.
const exitUsage = 2

// strict makes all commands refuse unexpected arguments and flags with a usageError, and durations of zero or less.
func strict(cmd *cobra.Command) *cobra.Command {
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	check := cmd.Args
	if cmd.HasSubCommands() && !cmd.Runnable() {
		check = cobra.NoArgs
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())}
			}
			return nil
		}
	}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if _, wrapped := flag.Value.(*someTime); !wrapped && flag.Value.Type() == "duration" {
			flag.Value = &someTime{flag.Value}
		}
	})
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
	return cmd
}

// someTime is a duration greater than 0.
type someTime struct{ pflag.Value }

// Set implements pflag.Value.
func (s *someTime) Set(text string) error {
	if d, err := time.ParseDuration(text); err == nil && d <= 0 {
		return errors.New("it has to be more than 0, such as 30m")
	}
	return s.Value.Set(text) //nolint:wrapcheck // pflag names flag and value
}
