package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"weft.dev/weft/internal/command"
	"weft.dev/weft/internal/tenant"
)

// tenantOptions are the flags of weft tenant's commands.
type tenantOptions struct {
	context  string
	output   string
	selector string
	to       string
	wait     bool
	timeout  time.Duration
}

func tenantCommand(common *commonFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tenant",
		Short: "Join namespaces to one network, isolate them, or make them global",
		Long: "Decides which namespaces share a network, where the cluster isolates them (ClusterNetwork's pluginName is\n" +
			"redhat/openshift-ovs-multitenant). Running pods follow. Each command requests the change by the annotation\n" +
			"pod.network.openshift.io/multitenant.change-network of the namespaces' NetNamespaces, and waits until the controller\n" +
			"has made it and it is in effect on all nodes.\n\n" +
			"It needs to read ClusterNetworks, HostSubnets and NetNamespaces, to patch NetNamespaces, and, with a selector, to list\n" +
			"namespaces. It ends with 0 when the change is in effect, with 2 when the command is wrong, else with 1.",
		Example: "  # b and c become one network with a\n  weft tenant join --to a b c\n\n" +
			"  # Each is one of its own again\n  weft tenant isolate b c\n\n" +
			"  # All reach it, as the cluster's DNS has to be reached\n  weft tenant global kube-system",
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(
		tenantAction(common, "join --to NAMESPACE", "Make namespaces one network with another",
			"  # The pods of b and c reach those of a, and each other\n  weft tenant join --to a b c\n\n"+
				"  # All namespaces of a team\n  weft tenant join --to shop --selector team=shop",
			func(o *tenantOptions) tenant.Request { return tenant.Join(o.to) }),
		tenantAction(common, "isolate", "Make each namespace a network of its own",
			"  # b leaves the project that it was joined with, or is no longer global\n  weft tenant isolate b\n\n"+
				"  # For scripts: the VNID that it has then\n  weft tenant isolate b -o json | jq '.namespaces[0].netid'",
			func(*tenantOptions) tenant.Request { return tenant.Isolate() }),
		tenantAction(common, "global", "Let namespaces reach all others, and be reached by them",
			"  # What all use: the cluster's DNS, ingress, monitoring\n  weft tenant global kube-system\n\n"+
				"  # Ask for it, and do not wait for the nodes\n  weft tenant global --wait=false monitoring",
			func(*tenantOptions) tenant.Request { return tenant.Global() }),
	)
	return cmd
}

func tenantAction(common *commonFlags, use, short, example string, request func(*tenantOptions) tenant.Request) *cobra.Command {
	var opts tenantOptions
	cmd := &cobra.Command{
		Use:     use + " [NAMESPACE...]",
		Short:   short,
		Long:    short + ". Give their names, or --selector.\n\nIt ends with 0 when the change is in effect, with 2 when the command is wrong, else with 1.",
		Example: example,
		RunE: func(cmd *cobra.Command, names []string) error {
			if cmd.Name() == "join" && opts.to == "" {
				return command.Refuse(cmd, errors.New("--to: name the namespace whose network the others join"))
			}
			r := request(&opts)
			r.Namespaces = names
			if opts.selector != "" {
				var err error
				if r.Selector, err = labels.Parse(opts.selector); err != nil {
					return command.Refuse(cmd, fmt.Errorf("--selector: %w", err))
				}
			}
			return runTenant(cmd, common, &opts, r)
		},
	}
	flags := cmd.Flags()
	if cmd.Name() == "join" {
		flags.StringVar(&opts.to, "to", "", "namespace whose network the others join")
	}
	flags.StringVarP(&opts.selector, "selector", "l", "", "labels of the namespaces, as kubectl has them, in place of their names")
	flags.StringVar(&opts.context, "context", "", "context of the kubeconfig; empty: the current one")
	flags.StringVarP(&opts.output, "output", "o", outputText, "format: text, json or yaml")
	flags.BoolVar(&opts.wait, "wait", true, "wait until the change is in effect on all nodes; what is waited for goes to standard error")
	flags.DurationVar(&opts.timeout, "timeout", tenant.Patience, "how long to wait at most")
	return cmd
}

func runTenant(cmd *cobra.Command, common *commonFlags, opts *tenantOptions, request tenant.Request) error {
	if err := checkFormat(opts.output); err != nil {
		return command.Refuse(cmd, err)
	}
	config, err := common.operatorConfig(opts.context)
	if err != nil {
		return err
	}
	config.UserAgent = "weft-tenant"
	if _, _, err := common.logger(cmd.ErrOrStderr()); err != nil {
		return err
	}
	tenants, err := tenant.New(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), opts.timeout)
	defer cancel()
	report, err := tenants.Change(ctx, request, opts.wait, func(what string) {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), what) // an error of this write cannot be reported
	})
	if len(report.Namespaces) == 0 {
		return err // nothing was changed
	}
	if opts.output == outputText {
		return errors.Join(err, tenantText(cmd.OutOrStdout(), &report, opts.wait))
	}
	return errors.Join(err, printValue(cmd.OutOrStdout(), opts.output, report))
}

// tenantText writes a report as text.
func tenantText(w io.Writer, report *tenant.Report, waited bool) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NAMESPACE\tNETID\tWAS") // Flush returns the errors
	for _, n := range report.Namespaces {
		_, _ = fmt.Fprintf(table, "%s\t%d\t%d\n", n.Namespace, n.NetID, n.Was)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if !waited {
		return nil
	}
	_, err := fmt.Fprintf(w, "In effect on %d of %d nodes.\n", report.Realised, report.Nodes)
	return err
}
