// Command weft contains all of Weft's commands: the agent of a node, the controller of a cluster, and the operator's commands.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"weft.dev/weft/internal/cli"
	"weft.dev/weft/internal/command"
)

// version is the release.
var version = "dev" //nolint:gochecknoglobals // set by the linker (-X main.version)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	environment := cli.Environment{
		Node: os.Getenv("NODE_NAME"), Kubeconfig: os.Getenv("KUBECONFIG"), Version: version, Program: filepath.Base(os.Args[0]),
		UID: os.Geteuid(), Getenv: os.Getenv,
	}
	if err := cli.Weft(environment).ExecuteContext(ctx); err != nil {
		if err.Error() != "" { // empty: everything is already printed
			fmt.Fprintln(os.Stderr, "weft:", err)
		}
		os.Exit(command.ExitCode(err))
	}
}
