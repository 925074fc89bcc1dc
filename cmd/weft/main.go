// Command weft is Weft's one program: the agent of a node, the controller of a cluster, and the operator's commands.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"weft.dev/weft/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	environment := cli.Environment{Node: os.Getenv("NODE_NAME"), Kubeconfig: os.Getenv("KUBECONFIG")}
	if err := cli.Weft(environment).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "weft:", err)
		os.Exit(1)
	}
}
