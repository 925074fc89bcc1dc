package host

import (
	"fmt"

	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/nft"
)

// Published are the host ports of a pod.
type Published hostport.Published

// Rules returns the host ports' part of the node's rules: one element for each port.
func (p Published) Rules() map[nft.Key]nft.Item {
	f := fragment{}
	f.add((*hostport.Published)(&p).Elements(table)...)
	return f
}

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
