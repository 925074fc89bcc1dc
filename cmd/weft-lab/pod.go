package main

import (
	"fmt"
	"os"
	"os/exec"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/lab"
)

// pod does the kubelet's work in labs without kubelets.
func pod(name *string) *cobra.Command {
	var spec lab.PodSpec
	cmd := &cobra.Command{Use: "pod", Short: "Start, list, enter and end pods of a lab of runtime cni"}
	cmd.PersistentFlags().StringVarP(&spec.Namespace, "namespace", "n", "default", "the pod's namespace")
	add := &cobra.Command{
		Use: "add NAME", Short: "Start a pod: a namespace, attached through libcni", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := lab.Open(cmd.Context(), *name)
			if err != nil {
				return err
			}
			spec.Name = args[0]
			p, err := c.AddPod(cmd.Context(), spec)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s/%s on %s: %v, ADD took %s\n", p.Namespace, p.Name, p.Node.Name, p.IPs, p.Took.Round(10*time.Microsecond))
			return nil
		},
	}
	add.Flags().StringVar(&spec.Node, "node", "n1", "the node")
	add.Flags().StringToStringVar(&spec.Labels, "labels", nil, "labels, k=v,...")
	add.Flags().StringToStringVar(&spec.Annotations, "annotations", nil, "annotations, k=v,...")
	cmd.AddCommand(add, podDel(name, &spec), podList(name), podExec(name, &spec))
	return cmd
}

func findPods(cmd *cobra.Command, name, namespace, pod string) (*lab.Cluster, []*lab.Pod, error) {
	c, err := lab.Open(cmd.Context(), name)
	if err != nil {
		return nil, nil, err
	}
	all, err := c.Pods(cmd.Context())
	if err != nil {
		return nil, nil, err
	}
	var found []*lab.Pod
	for _, p := range all {
		if p.Namespace == namespace && p.Name == pod {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return nil, nil, fmt.Errorf("lab %s has no pod %s/%s", name, namespace, pod)
	}
	return c, found, nil
}

func podDel(name *string, spec *lab.PodSpec) *cobra.Command {
	return &cobra.Command{
		Use: "del NAME", Short: "End a pod", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, found, err := findPods(cmd, *name, spec.Namespace, args[0])
			if err != nil {
				return err
			}
			for _, p := range found {
				if err := c.DelPod(cmd.Context(), p); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func podList(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the pods", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := lab.Open(cmd.Context(), *name)
			if err != nil {
				return err
			}
			all, err := c.Pods(cmd.Context())
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "NAMESPACE\tNAME\tNODE\tSANDBOX\tNETNS")
			for _, p := range all {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%.12s\t%s\n", p.Namespace, p.Name, p.Node.Name, p.Sandbox.ID, p.Netns)
			}
			return w.Flush()
		},
	}
}

func podExec(name *string, spec *lab.PodSpec) *cobra.Command {
	return &cobra.Command{
		Use: "exec NAME -- COMMAND...", Short: "Run a command in a pod's network namespace", Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, found, err := findPods(cmd, *name, spec.Namespace, args[0])
			if err != nil {
				return err
			}
			argv := found[0].Enter(args[1:]...)
			c := exec.CommandContext(cmd.Context(), argv[0], argv[1:]...) //nolint:gosec // the user's own command
			c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
			return c.Run()
		},
	}
}
