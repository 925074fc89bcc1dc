package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/command"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/status"
)

// flowsOptions are the flags of weft flows.
type flowsOptions struct {
	admin     adminFlags
	runDir    string
	filter    flows.Filter
	explain   bool
	output    string
	timeout   time.Duration
	node      string
	namespace string
	context   string
	kubectl   string
}

func flowsCommand(common *commonFlags, uid int) *cobra.Command {
	var opts flowsOptions
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "List the flows of a node's switch, and the objects that they come from",
		Long: "Lists the flows of br0 of this node, or of the bridge in --bridge: table, priority, counters, match, actions, and the object that\n" +
			"each flow comes from, by its cookie. Nothing is changed. With --pod, --policy or --service it lists the flows of that object:\n" +
			"for a pod, also the policies' flows that name its address. With --explain it prints a line for each object: how many flows\n" +
			"it has, and where.\n\n" +
			"It reads the switch, and requests the flows' owners from the node's agent. Without the agent it reports that, and lists the flows with\n" +
			"the kinds of the owners. It needs root on the node, or in the agent's pod; with --node, kubectl and the right to execute\n" +
			"in the agent's pod.\n\n" +
			"It ends with 0 when every flow has an owner, 1 when one has none (another program added it), 2 when that is not known, or\n" +
			"when no flow matches the request.",
		Example: "  # All flows of this node\n  weft flows\n\n" +
			"  # The flows of a pod, and those of the policies that name it, on a node of the cluster\n  weft flows --node n1 --pod web/api-7d4b9\n\n" +
			"  # The flows of a NetworkPolicy on this node\n  weft flows --policy web/allow-api\n\n" +
			"  # How many flows each object has, and in which tables\n  weft flows --explain\n\n" +
			"  # The flows of OpenStack's networks\n  weft flows --bridge br-n\n\n" +
			"  # For scripts: the flows without an owner\n  weft flows -o json | jq '.flows[] | select(.owner == null)'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := errors.Join(checkFormat(opts.output), opts.filter.Validate())
			if err != nil {
				return &command.Exit{Code: command.Unknown, Err: err}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), opts.timeout)
			defer cancel()
			if opts.node != "" {
				return opts.onNode(ctx, cmd, common)
			}
			return opts.run(ctx, cmd)
		},
	}
	command.AsRoot(uid, func() bool { return opts.node != "" }, cmd)
	opts.admin.register(cmd)
	set := cmd.Flags()
	set.StringVar(&opts.runDir, "ovs-run-dir", agent.DefaultOVSRunDir, "directory with Open vSwitch's sockets")
	set.StringVar(&opts.filter.Pod, "pod", "", "flows of a pod, NAMESPACE/NAME")
	set.StringVar(&opts.filter.Policy, "policy", "", "flows of a NetworkPolicy, NAMESPACE/NAME")
	set.StringVar(&opts.filter.Service, "service", "", "flows of a Service, NAMESPACE/NAME")
	set.StringVar(&opts.filter.Bridge, "bridge", "", "the bridge: br0 of the overlay, or br-n of OpenStack's networks; empty: br0")
	set.BoolVar(&opts.explain, "explain", false, "print a line for each object: how many flows it has, in which tables")
	set.StringVarP(&opts.output, "output", "o", outputText, "format: text, json or yaml")
	set.DurationVar(&opts.timeout, "timeout", time.Minute, "time limit for the answers of switch and agent")
	set.StringVar(&opts.node, "node", "", "node whose flows are listed, by kubectl in its agent's pod; empty: this node")
	set.StringVarP(&opts.namespace, "namespace", "n", status.DefaultNamespace, "namespace that Weft is installed in, with --node")
	set.StringVar(&opts.context, "context", "", "context of the kubeconfig, with --node; empty: the current one")
	set.StringVar(&opts.kubectl, "kubectl", "kubectl", "the program kubectl, with --node")
	return cmd
}

// run lists the flows of this node.
func (o *flowsOptions) run(ctx context.Context, cmd *cobra.Command) error {
	report, err := flows.Attribute(ctx, o.runDir, o.admin.client(), o.filter)
	if err != nil {
		return &command.Exit{Code: command.Unknown, Err: fmt.Errorf("the flows cannot be read: %w", err)}
	}
	if report.OwnersUnknown != "" {
		// an error of this write cannot be reported
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "weft: owners of the flows not known: %s\n", report.OwnersUnknown)
	}
	if err := report.Apply(o.filter); err != nil {
		return &command.Exit{Code: command.Unknown, Err: err}
	}
	if err := o.print(cmd.OutOrStdout(), &report); err != nil {
		return &command.Exit{Code: command.Unknown, Err: err}
	}
	switch {
	case report.OwnersUnknown != "":
		return &command.Exit{Code: command.Unknown}
	case report.Unowned > 0:
		return &command.Exit{Code: command.Differs, Err: fmt.Errorf("%d of %d flows have no owner: another program added them", report.Unowned, report.Total)}
	}
	return nil
}

func (o *flowsOptions) print(w io.Writer, report *flows.Report) error {
	explanation := report.ByObject()
	switch {
	case o.explain && o.output == outputText:
		return explanation.Text(w)
	case o.explain:
		return printValue(w, o.output, explanation)
	case o.output == outputText:
		return report.Text(w)
	}
	return printValue(w, o.output, report)
}

// onNode runs the same command in the agent's pod of a node, with kubectl.
func (o *flowsOptions) onNode(ctx context.Context, cmd *cobra.Command, common *commonFlags) error {
	base := []string{"--namespace", o.namespace}
	if o.context != "" {
		base = append(base, "--context", o.context)
	}
	if common.kubeconfig != common.environment {
		base = append(base, "--kubeconfig", common.kubeconfig)
	}
	var errs strings.Builder
	find := exec.CommandContext(ctx, o.kubectl, append(base, "get", "pods", "--output", "jsonpath={.items[*].metadata.name}", //nolint:gosec // the operator's own program
		"--selector", "app.kubernetes.io/name=weft,app.kubernetes.io/component=agent", "--field-selector", "status.phase=Running,spec.nodeName="+o.node)...)
	find.Stderr = &errs
	found, err := find.Output()
	if err != nil {
		return &command.Exit{Code: command.Unknown, Err: fmt.Errorf("--node %s: looking for its agent: %w: %s", o.node, err, strings.TrimSpace(errs.String()))}
	}
	pods := strings.Fields(string(found))
	if len(pods) == 0 {
		return &command.Exit{Code: command.Unknown, Err: fmt.Errorf("--node %s: no agent runs there in namespace %s: kubectl get nodes has the nodes' names, weft status which agents run", o.node, o.namespace)}
	}
	there := exec.CommandContext(ctx, o.kubectl, append(append(base, "exec", pods[0], "--container", "agent", "--", "/weft"), o.args()...)...) //nolint:gosec // the same
	errs.Reset()
	there.Stdout, there.Stderr = cmd.OutOrStdout(), io.MultiWriter(cmd.ErrOrStderr(), &errs)
	err = there.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return &command.Exit{Code: command.Unknown, Err: fmt.Errorf("--node %s: no answer within %s", o.node, o.timeout)}
	case errors.As(err, &exit) && strings.Contains(errs.String(), fmt.Sprintf("command terminated with exit code %d", exit.ExitCode())):
		return &command.Exit{Code: exit.ExitCode()} // the reason is already on standard error
	}
	// kubectl's own failures also exit with 1
	return &command.Exit{Code: command.Unknown, Err: fmt.Errorf("--node %s: kubectl exec: %w", o.node, err)}
}

// args returns the arguments of the same request on another node.
func (o *flowsOptions) args() []string {
	args := []string{"flows", "--output", o.output, "--timeout", o.timeout.String(), "--socket", o.admin.socket, "--ovs-run-dir", o.runDir}
	for flag, value := range map[string]string{"--pod": o.filter.Pod, "--policy": o.filter.Policy, "--service": o.filter.Service, "--bridge": o.filter.Bridge} {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	if o.explain {
		args = append(args, "--explain")
	}
	return args
}
