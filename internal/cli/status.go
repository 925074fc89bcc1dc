package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"weft.dev/weft/internal/command"
	"weft.dev/weft/internal/status"
)

const (
	outputText = "text"
	outputJSON = "json"
	outputYAML = "yaml"
)

// statusOptions are the flags of weft status.
type statusOptions struct {
	namespace string
	context   string
	output    string
	wait      bool
	timeout   time.Duration
}

func statusCommand(common *commonFlags) *cobra.Command {
	var opts statusOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the cluster's network, its problems, and what to do",
		Long: "Shows the state of the cluster's network on one screen: controller, nodes, addresses, releases, whether all that is\n" +
			"desired is programmed, what is wrong and what to do next. It reads objects of the API server and changes nothing.\n\n" +
			"It ends with 0 when all is well, 1 when something is wrong, 2 when the cluster does not answer.",
		Example: "  # The state of the network\n  weft status\n\n" +
			"  # After an installation or an upgrade: wait until all is well, five minutes at most\n  weft status --wait --timeout 5m\n\n" +
			"  # For scripts: the problems, one a line\n  weft status -o json | jq -r '.problems[] | .object + \": \" + .what'\n\n" +
			"  # As a plugin of kubectl: link the program into the path as kubectl-weft\n  kubectl weft status",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ok, err := runStatus(cmd, common, &opts)
			switch {
			case err != nil:
				return &command.Exit{Code: command.Unknown, Err: err}
			case !ok:
				return &command.Exit{Code: command.Differs}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&opts.namespace, "namespace", "n", status.DefaultNamespace, "namespace that Weft is installed in")
	flags.StringVar(&opts.context, "context", "", "context of the kubeconfig; empty: the current one")
	flags.StringVarP(&opts.output, "output", "o", outputText, "format: text, json or yaml")
	flags.BoolVar(&opts.wait, "wait", false, "wait until all is well; progress is printed to standard error")
	flags.DurationVar(&opts.timeout, "timeout", 5*time.Minute, "time limit of --wait; without --wait, of the answers")
	return cmd
}

func runStatus(cmd *cobra.Command, common *commonFlags, opts *statusOptions) (bool, error) {
	if err := checkFormat(opts.output); err != nil {
		return false, err
	}
	config, err := common.operatorConfig(opts.context)
	if err != nil {
		return false, err
	}
	if _, _, err := common.logger(cmd.ErrOrStderr()); err != nil {
		return false, err
	}
	cluster, err := status.New(config, opts.namespace, sections()...)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), opts.timeout)
	defer cancel()
	var report status.Report
	if opts.wait {
		report, err = cluster.Wait(ctx, func(r status.Report) { progress(cmd.ErrOrStderr(), &r) })
	} else {
		report, err = cluster.Report(ctx)
	}
	timedOut := opts.wait && errors.Is(err, context.DeadlineExceeded) && len(report.Problems) > 0
	if err != nil && !timedOut {
		return false, err
	}
	if timedOut {
		// an error of this write does not change the result, which is the report
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "weft: not well after %s\n", opts.timeout)
	}
	return report.OK, printReport(cmd.OutOrStdout(), opts.output, &report)
}

// progress prints in one line what the command waits for.
func progress(w io.Writer, r *status.Report) {
	if len(r.Problems) == 0 {
		return
	}
	more := ""
	if n := len(r.Problems) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	_, _ = fmt.Fprintf(w, "waiting: %s: %s%s\n", r.Problems[0].Object, r.Problems[0].What, more) // an error of this write cannot be reported
}

func printReport(w io.Writer, format string, r *status.Report) error {
	if format == outputText {
		return r.Text(w)
	}
	return printValue(w, format, r)
}

// printValue writes a value as JSON or YAML.
func printValue(w io.Writer, format string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err == nil && format == outputYAML {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		return fmt.Errorf("encode the response as %s: %w", format, err)
	}
	if format == outputJSON {
		text = append(text, '\n')
	}
	_, err = w.Write(text)
	return err
}

// operatorConfig returns the configuration of the API server's client as kubectl finds it: --kubeconfig, else KUBECONFIG (which may list
// several files), else the user's own file, else the pod's service account.
func (f *commonFlags) operatorConfig(contextName string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if f.kubeconfig != f.environment {
		rules.ExplicitPath = f.kubeconfig
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: contextName}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster configured: pass --kubeconfig, or set KUBECONFIG: %w", err)
	}
	config.UserAgent = "weft-status"
	return config, nil
}
