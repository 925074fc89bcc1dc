// Command weft contains all of Weft's commands: the agent of a node, the controller of a cluster, and the operator's commands.
package main

import (
	"os"
	"path/filepath"

	"weft.dev/weft/internal/cli"
	"weft.dev/weft/internal/command"
)

// version is the release.
var version = "dev" //nolint:gochecknoglobals // set by the linker (-X main.version)

func main() {
	os.Exit(command.Run("weft", cli.Weft(cli.Environment{
		Node: os.Getenv("NODE_NAME"), Kubeconfig: os.Getenv("KUBECONFIG"), Version: version, Program: filepath.Base(os.Args[0]),
		UID: os.Geteuid(), Getenv: os.Getenv,
	})))
}
