// weft-lab brings a whole Kubernetes cluster up on one machine, with its pods on Weft's networks.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"weft.dev/weft/lab/loopback"
	"weft.dev/weft/lab/vm/guest"
)

func main() {
	if filepath.Base(os.Args[0]) == loopback.Name { // called by a container runtime
		loopback.Main()
		return
	}
	if os.Getpid() == 1 && os.Args[0] == guest.Init { // started by the kernel of a virtual machine
		guest.Main()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if exit, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err); ok {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "weft-lab:", err)
		if _, wrong := errors.AsType[usageError](err); wrong {
			os.Exit(exitUsage)
		}
		os.Exit(1)
	}
}
