package node

import (
	"slices"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/hostport/publish"
	"weft.dev/weft/internal/link/conntrack"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/reconcile"
)

// ruleItems are the node's rules of one owner, and rules those of several.
type (
	ruleItems = map[nft.Key]nft.Item
	rules     map[reconcile.Owner]ruleItems
)

// newPublisher returns what makes pods' host ports reach them, by IPv4.
func newPublisher(n *node.Node, deps *network.Deps, tracked *conntrack.Table) *publish.Publisher {
	return publish.New(publish.Options{
		Rules: n.Rules, Compile: host.Published, Reserved: n.Reserved, Tracked: tracked, BootID: n.BootID, Attached: deps.Records.Attached,
		Conflict: publish.Warnings(deps.Events), Log: deps.Log,
	})
}

// publishedPorts returns the pod's ports to which host ports are translated, each once.
func publishedPorts(rec *attach.Record) []pipeline.Port {
	protocols := map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}
	var ports []pipeline.Port
	for _, p := range rec.HostPorts {
		if port := (pipeline.Port{Protocol: protocols[p.Protocol], Number: p.ContainerPort}); !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports
}
