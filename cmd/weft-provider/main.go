// Command weft-provider serves KubeStack's gRPC interface; see package internal/neutron/provider/serve. Linked or copied to the name
// kubestack, it takes KubeStack's flags.
package main

import (
	"os"
	"path/filepath"

	"weft.dev/weft/internal/command"
	"weft.dev/weft/internal/neutron/provider/serve"
)

// version is the release.
var version = "dev" //nolint:gochecknoglobals // set by the linker (-X main.version)

func main() {
	os.Exit(command.Run(serve.Program, serve.Command(filepath.Base(os.Args[0]), version, os.Geteuid())))
}
