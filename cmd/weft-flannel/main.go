// Command weft-flannel is the CNI plugin of type flannel. It is installed under the name "flannel" in the runtime's plugin
// directory; see package internal/flannel/plugin.
package main

import (
	"os"
	"time"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/flannel/plugin"
)

func main() {
	origin := cni.Origin{TraceParent: os.Getenv("TRACEPARENT"), Started: time.Now()}
	os.Exit(plugin.Main(os.Stdout, os.Getenv, origin))
}
