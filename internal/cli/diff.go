package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/command"
)

// controllerAddress is the controller's health address in the chart.
const controllerAddress = "127.0.0.1:9479"

func diffCommand(uid int) *cobra.Command {
	var flags adminFlags
	var output, controller string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Compare what this node should have programmed with what it has",
		Long: "Lets the agent of this node read back flows, switch ports, links and rules, and prints what is missing, extra or\n" +
			"different, by the object that it comes from. Nothing is changed. The agent reverts foreign changes within\n" +
			"milliseconds, so a difference is what cannot be programmed, with the reason. For what a start of the agent would\n" +
			"change, before an upgrade or while no agent runs: weft agent --dry-run.\n\n" +
			"With --controller it asks the controller that leads to compare OVN's northbound database with the objects of VPCs.\n\n" +
			"It needs root on the node, or in the agent's pod; in the controller's pod it does not. It ends with 0 when nothing\n" +
			"differs, 1 when something does, 2 when that is not known.",
		Example: "  # On the node\n  weft diff\n\n" +
			"  # In the agent's pod\n  kubectl -n weft exec weft-agent-x7k2p -- /weft diff\n\n" +
			"  # OVN's northbound database, in the pod of the controller that leads\n" +
			"  kubectl -n weft exec weft-controller-5d9c7 -- /weft diff --controller\n\n" +
			"  # The objects that are not programmed, and why\n  weft diff -o json | jq -r '.engines[].differences[]? | .owner + \": \" + .why'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output); err != nil {
				return &command.Exit{Code: command.Unknown, Err: err}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			client := flags.client()
			client.Controller = controller
			diff, err := client.Diff(ctx)
			if err != nil {
				return &command.Exit{Code: command.Unknown, Err: err}
			}
			return printDiff(cmd.OutOrStdout(), output, &diff)
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", outputText, "format: text, json or yaml")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "time limit for the answer")
	cmd.Flags().StringVar(&controller, "controller", "",
		"compare OVN's northbound database, by the controller that has this health address, host:port")
	cmd.Flags().Lookup("controller").NoOptDefVal = controllerAddress
	command.AsRoot(uid, func() bool { return controller != "" }, cmd)
	return cmd
}

// checkFormat returns an error for an unknown --output.
func checkFormat(output string) error {
	if output != outputText && output != outputJSON && output != outputYAML {
		return fmt.Errorf("--output %q: it is one of text, json, yaml", output)
	}
	return nil
}

// printDiff prints a comparison. Its error carries the program's exit code.
func printDiff(w io.Writer, output string, diff *admin.Diff) error {
	var err error
	if output == outputText {
		_, err = io.WriteString(w, diffText(diff))
	} else {
		err = printValue(w, output, diff)
	}
	code := 0
	for _, e := range diff.Engines {
		if len(e.Differences) > 0 {
			code = max(code, command.Differs)
		}
		if e.Error != "" {
			code = command.Unknown
		}
	}
	if err != nil {
		return &command.Exit{Code: command.Unknown, Err: err}
	}
	if code != 0 {
		return &command.Exit{Code: code}
	}
	return nil
}

// diffText renders a comparison in the style of diff(1): - marks what is programmed but not desired, + what is desired but not programmed.
func diffText(diff *admin.Diff) string {
	out := &strings.Builder{}
	for _, e := range diff.Engines {
		switch {
		case e.Error != "":
			fmt.Fprintf(out, "%s: not known: %s\n", e.Name, e.Error)
		case len(e.Differences) == 0:
			fmt.Fprintf(out, "%s: in step, %d items\n", e.Name, e.Desired)
		default:
			fmt.Fprintf(out, "%s: %d differ (%d desired, %d programmed)\n", e.Name, len(e.Differences), e.Desired, e.Programmed)
			owners(out, e.Differences)
		}
	}
	return out.String()
}

// owners lists differences by the object that they come from.
func owners(out *strings.Builder, all []admin.Difference) {
	for i, d := range all {
		if i == 0 || d.Owner != all[i-1].Owner {
			owner := d.Owner
			if owner == "" {
				owner = "no owner"
			}
			if d.Pod != "" {
				owner = "pod " + d.Pod + ", " + owner
			}
			fmt.Fprintf(out, "  %s\n", owner)
		}
		if d.Why != "" && (i == 0 || d.Why != all[i-1].Why) {
			fmt.Fprintf(out, "    # not programmed: %s\n", d.Why)
		}
		if d.Have != "" {
			out.WriteString(prefixed("    - ", d.Have))
		}
		if d.Want != "" {
			out.WriteString(prefixed("    + ", d.Want))
		}
	}
}

// prefixed puts a prefix before each line.
func prefixed(prefix, text string) string {
	return prefix + strings.ReplaceAll(text, "\n", "\n"+prefix) + "\n"
}
