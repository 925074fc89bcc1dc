package command

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Strict makes all commands below root refuse the same mistakes with Unknown: unexpected arguments and flags, and durations of zero or
// less.
func Strict(root *cobra.Command) {
	root.SetFlagErrorFunc(Refuse)
	root.PersistentFlags().VisitAll(refuseNoTime)
	if root.HasSubCommands() && !root.Runnable() {
		root.Args = knownCommand
		root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	} else if check := root.Args; check != nil {
		root.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if exit := (*Exit)(nil); err == nil || errors.As(err, &exit) {
				return err
			}
			return &Exit{Code: Unknown, Err: fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())}
		}
	}
	root.Flags().VisitAll(refuseNoTime)
	for _, cmd := range root.Commands() {
		Strict(cmd)
	}
}

// knownCommand refuses an unknown subcommand, and suggests similar names.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q for %q: see %[2]s --help", args[0], cmd.CommandPath())
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2 // cobra's own default
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("unknown command %q for %q: did you mean %s?", args[0], cmd.CommandPath(), strings.Join(near, " or "))
	}
	return &Exit{Code: Unknown, Err: err}
}

// refuseNoTime makes a duration flag refuse zero and negative values.
func refuseNoTime(flag *pflag.Flag) {
	if _, wrapped := flag.Value.(*someTime); !wrapped && flag.Value.Type() == "duration" {
		flag.Value = &someTime{flag.Value}
	}
}

// someTime is a duration greater than 0.
type someTime struct{ pflag.Value }

// Set implements pflag.Value.
func (s *someTime) Set(text string) error {
	if d, err := time.ParseDuration(text); err == nil && d <= 0 {
		return errors.New("it has to be more than 0, such as 30s")
	}
	return s.Value.Set(text) //nolint:wrapcheck // pflag names flag and value
}

// AsRoot makes commands refuse every user but root, with a one-line error. unless, if not nil, reports when the command needs no root.
func AsRoot(uid int, unless func() bool, commands ...*cobra.Command) {
	for _, cmd := range commands {
		run := cmd.RunE
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if uid != 0 && (unless == nil || !unless()) {
				return &Exit{Code: Unknown, Err: fmt.Errorf("%s needs root: run it with sudo on the node, or in the agent's pod (kubectl exec)", cmd.CommandPath())}
			}
			return run(cmd, args)
		}
	}
}
