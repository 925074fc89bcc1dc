// Command weft-cni is Weft's CNI plugin. It is installed under the name "weft" in the runtime's plugin directory,
// and does nothing but hand the runtime's requests to the agent of the node; see package
// internal/cni/plugin.
package main

import (
	"os"

	"weft.dev/weft/internal/cni/plugin"
)

func main() { os.Exit(plugin.Main(os.Stdout)) }
