package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/command"
)

// dryRunFlags are the flags with which weft agent compares and does not start.
type dryRunFlags struct {
	run     bool
	output  string
	timeout time.Duration
}

func (f *dryRunFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.run, "dry-run", false,
		"print what a start would change in flows, switch ports, links and rules, change nothing, and end:\n"+
			"with 0 when nothing differs, 1 when something does, 2 when that is not known.\n"+
			"It can be used while the agent runs on the node")
	flags.StringVarP(&f.output, "output", "o", outputText, "format of --dry-run: text, json or yaml")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "time limit of --dry-run for switch and API server")
}

// check refuses flags of the dry run without --dry-run.
func (f *dryRunFlags) check(cmd *cobra.Command) error {
	for _, flag := range []string{"output", "timeout"} {
		if !f.run && cmd.Flags().Changed(flag) {
			return &command.Exit{Code: command.Unknown, Err: fmt.Errorf("--%s is for --dry-run: add --dry-run to compare, or leave --%[1]s out to start the agent", flag)}
		}
	}
	return nil
}

// print prints what a start with the options would change. Its error carries the program's exit code.
func (f *dryRunFlags) print(cmd *cobra.Command, opts agent.Options) error {
	if err := checkFormat(f.output); err != nil {
		return &command.Exit{Code: command.Unknown, Err: err}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	diff, err := agent.DryRun(ctx, opts)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not known after %s: check that Open vSwitch runs and that the API server answers: %w", f.timeout, err)
	}
	if err != nil {
		return &command.Exit{Code: command.Unknown, Err: err}
	}
	return printDiff(cmd.OutOrStdout(), f.output, &diff)
}
