package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/command"
	"weft.dev/weft/internal/realised"
)

// realisedOptions are the flags of weft realised.
type realisedOptions struct {
	context string
	output  string
	wait    bool
	timeout time.Duration
}

func realisedCommand(common *commonFlags) *cobra.Command {
	var opts realisedOptions
	cmd := &cobra.Command{
		Use:   "realised networkpolicy|egressnetworkpolicy NAMESPACE/NAME | netnamespace NAME",
		Short: "Show on how many nodes an object is in effect, and why not on the others",
		Long: "Shows on how many nodes a NetworkPolicy, an EgressNetworkPolicy or a NetNamespace (its VNID, egress addresses and multicast),\n" +
			"as the object is now, is in effect: all that it requires of the node is programmed there. For each other node it shows why not,\n" +
			"and what to do. Agents report what is in effect in the status of their HostSubnets, within seconds, in large clusters\n" +
			"within a minute; while an agent is stopped, its node keeps what is programmed.\n\n" +
			"It needs to read the object, ClusterNetworks, HostSubnets, and, for the state of nodes that do not report, Nodes; with --wait, to\n" +
			"watch HostSubnets. It ends with 0 when the object is in effect on all nodes, 1 when it is not, 2 when that is not known.",
		Example: "  # Is the policy in effect everywhere?\n  weft realised networkpolicy shop/deny-all\n\n" +
			"  # Wait until an egress firewall is, two minutes at most\n  weft realised egressnetworkpolicy shop/default --wait\n\n" +
			"  # After a change of a namespace's egress addresses\n  weft realised netnamespace shop --wait --timeout 5m\n\n" +
			"  # For scripts: the nodes where it is not\n  weft realised networkpolicy shop/deny-all -o json | jq -r '.notRealised[]?.name'",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return &command.Exit{Code: command.Unknown, Err: errors.New("give a kind and an object: networkpolicy NAMESPACE/NAME, egressnetworkpolicy NAMESPACE/NAME or netnamespace NAME")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := runRealised(cmd, common, &opts, args)
			switch {
			case err != nil:
				return &command.Exit{Code: command.Unknown, Err: err}
			case !all:
				return &command.Exit{Code: command.Differs}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.context, "context", "", "context of the kubeconfig; empty: the current one")
	flags.StringVarP(&opts.output, "output", "o", outputText, "format: text, json or yaml")
	flags.BoolVar(&opts.wait, "wait", false, "wait until it is in effect on all nodes; progress is printed to standard error")
	flags.DurationVar(&opts.timeout, "timeout", 2*time.Minute, "time limit of --wait; without --wait, of the answers")
	return cmd
}

func runRealised(cmd *cobra.Command, common *commonFlags, opts *realisedOptions, args []string) (bool, error) {
	kind, err := realised.ParseKind(args[0])
	if err = errors.Join(err, checkFormat(opts.output)); err != nil {
		return false, err
	}
	config, err := common.operatorConfig(opts.context)
	if err != nil {
		return false, err
	}
	config.UserAgent = "weft-realised"
	if _, _, err := common.logger(cmd.ErrOrStderr()); err != nil {
		return false, err
	}
	nodes, err := realised.New(config)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), opts.timeout)
	defer cancel()
	report, err := nodes.Ask(ctx, kind, args[1], opts.wait, func(how string) {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), how) // an error of this write cannot be reported
	})
	if late := opts.wait && errors.Is(err, context.DeadlineExceeded) && report.Kind != ""; late {
		// an error of this write does not change the result, which is the report
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "weft: not realised on all nodes after %s\n", opts.timeout)
	} else if err != nil {
		return false, err
	}
	if opts.output == outputText {
		return report.All(), report.Text(cmd.OutOrStdout())
	}
	return report.All(), printValue(cmd.OutOrStdout(), opts.output, report)
}
