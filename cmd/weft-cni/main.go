// Command weft-cni is Weft's CNI plugin. It is installed under the name "weft" in the runtime's plugin directory, and only forwards the
// runtime's requests to the agent of the node; see package internal/cni/plugin.
package main

import (
	"os"
	"time"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/cni/plugin"
)

func main() {
	origin := cni.Origin{TraceParent: os.Getenv("TRACEPARENT"), Started: time.Now()}
	os.Exit(plugin.Main(os.Stdout, os.Getenv, origin))
}
