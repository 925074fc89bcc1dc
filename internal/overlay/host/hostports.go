package host

import (
	"fmt"

	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/nft"
)

// Published returns the part of a pod's host ports in the node's rules: one element for each port.
func Published(of *hostport.Published) map[nft.Key]nft.Item { return of.Elements(table) }

// hostPorts translates host ports to their pods. The source stays unchanged; see masquerade for the exceptions.
func (c *Config) hostPorts(f fragment) {
	f.add(hostport.Maps(table, hostport.IPv4())...)
	received, own := hostport.Chains([]hostport.Family{hostport.IPv4()}, c.ClosedPorts,
		// kube-proxy may put the Services' addresses on the node and translate them only later (IPVS).
		fmt.Sprintf("ip daddr %s return", c.ServiceNetwork),
		// To the kernel, egress IPs are addresses of the node. New connections to one are rejected before; this rule is for the node's own
		// packets.
		fmt.Sprintf("ip daddr @%s return", egressAddresses),
	)
	f.chain(received.Chain, received.Rules...)
	f.chain(own.Chain, own.Rules...)
}
