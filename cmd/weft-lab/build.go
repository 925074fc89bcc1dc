package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/lab/kubebuild"
)

// build builds Kubernetes' programs before the first lab, which otherwise builds them itself.
func build() *cobra.Command {
	var module string
	cmd := &cobra.Command{
		Use: "build", Short: "Build Kubernetes' programs, which up does on first use", Args: cobra.NoArgs,
		Example: "  weft-lab build --kubernetes-module lab/kubernetes",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := kubebuild.Ensure(cmd.Context(), kubebuild.Config{
				Module: module, Kubelets: true, Run: runCommand,
				Step: func(name string, f func() error) error {
					begin := time.Now()
					_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "  ...  %s\n", name)
					err := f()
					_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%5.0fs  %s\n", time.Since(begin).Seconds(), name)
					return err
				},
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), dir)
			return err
		},
	}
	cmd.Flags().StringVar(&module, "kubernetes-module", "lab/kubernetes", "folder with the go.mod that Kubernetes is built from")
	return cmd
}

// runCommand runs a command to its end and returns its output. The error contains its standard error.
func runCommand(ctx context.Context, stdin string, argv ...string) (string, error) {
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var stderr strings.Builder
	command.Stdin, command.Stderr = strings.NewReader(stdin), &stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", argv[0], err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
