// weft-lab brings a whole Kubernetes cluster up on one machine, with its pods on Weft's networks.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"weft.dev/weft/lab/loopback"
)

func main() {
	if filepath.Base(os.Args[0]) == loopback.Name { // a container runtime calls
		loopback.Main()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "weft-lab:", err)
		os.Exit(1)
	}
}
