// Command weft-provider serves KubeStack's gRPC interface; see package internal/neutron/provider/serve. Linked or copied to the name
// kubestack, it takes KubeStack's flags.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"weft.dev/weft/internal/command"
	"weft.dev/weft/internal/neutron/provider/serve"
)

// version is the release.
var version = "dev" //nolint:gochecknoglobals // set by the linker (-X main.version)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve.Command(filepath.Base(os.Args[0]), version, os.Geteuid()).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "weft-provider:", err)
		os.Exit(command.ExitCode(err))
	}
}
