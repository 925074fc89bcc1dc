// coredns is CoreDNS with the plugins that a cluster's DNS needs, for the pods of the lab. It is a separate module, so that Weft's module
// does not require CoreDNS.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() {
	// The order of the plugins for each query, as in CoreDNS's own plugin.cfg.
	dnsserver.Directives = []string{"reload", "health", "ready", "errors", "cache", "kubernetes"}
	coremain.Run()
}
