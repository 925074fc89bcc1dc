package host

import (
	"fmt"
	"net/netip"
	"strconv"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/nft"
)

// Names in the table inet weft of the maps for host ports: of those at all addresses of the node, and of those at one.
const (
	hostPorts   = "hostports"
	hostPortsAt = "hostports-at"
)

// maxNote bounds the note of an element (nft.Element).
const maxNote = 120

// Published are the host ports of a pod.
type Published struct {
	// Pod is the pod's namespace/name, for readers of the rules.
	Pod string
	// Address is the pod's address.
	Address netip.Addr
	// Ports are the node's ports with the pod's ports.
	Ports []cni.HostPort
}

// Rules returns the host ports' part of the node's rules: one element for each port.
func (p Published) Rules() map[nft.Key]nft.Item {
	f := fragment{}
	note := "pod " + p.Pod
	if len(note) > maxNote {
		note = note[:maxNote]
	}
	number := func(n uint16) string { return strconv.Itoa(int(n)) }
	for _, port := range p.Ports {
		e := &nft.Element{
			Family: nft.FamilyInet, Table: table, Set: hostPorts, Match: []string{port.Protocol, number(port.Port)},
			Value: []string{p.Address.String(), number(port.ContainerPort)}, Owner: note,
		}
		if port.Address.IsValid() {
			e.Set, e.Match = hostPortsAt, append([]string{port.Address.String()}, e.Match...)
		}
		f.add(e)
	}
	return f
}

// loopback is the only address of the loopback range that has host ports. The others are left to programs of the node.
const loopback = "127.0.0.1"

// hostPorts translates host ports to their pods. Only packets to an address of the node itself match: a port of another machine with the
// same number is not the node's (CVE-2025-67499). The source stays unchanged; see masquerade for the exceptions.
func (c *Config) hostPorts(f fragment) {
	f.add(
		&nft.Map{Family: nft.FamilyInet, Table: table, Name: hostPorts, Type: "inet_proto . inet_service", Value: "ipv4_addr . inet_service"},
		&nft.Map{Family: nft.FamilyInet, Table: table, Name: hostPortsAt, Type: "ipv4_addr . inet_proto . inet_service", Value: "ipv4_addr . inet_service"},
	)
	lead := notToTunnels(c.ClosedPorts)
	lead = append(lead,
		// kube-proxy may put the Services' addresses on the node and translate them only later (IPVS).
		fmt.Sprintf("ip daddr %s return", c.ServiceNetwork),
		// To the kernel, egress IPs are addresses of the node. New connections to one are rejected before; this rule is for the node's own
		// packets.
		fmt.Sprintf("ip daddr @%s return", egressAddresses),
		"meta nfproto ipv4 fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @"+hostPortsAt,
		"meta nfproto ipv4 fib daddr type local dnat ip to meta l4proto . th dport map @"+hostPorts,
	)
	// The node drops packets from outside to the loopback range. Translated before, they would not be dropped.
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "hostports-in", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: priorityDNAT},
		append([]string{"ip daddr 127.0.0.0/8 return"}, lead...)...)
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "hostports-out", Type: nft.TypeNAT, Hook: nft.HookOutput, Priority: priorityDNAT},
		append([]string{"ip daddr 127.0.0.0/8 ip daddr != " + loopback + " return"}, lead...)...)
}

// notToTunnels returns rules that keep packets of tunnels from being translated to a pod, whatever its host ports are.
func notToTunnels(ports []uint16) []string {
	var rules []string
	for _, port := range ports {
		rules = append(rules, fmt.Sprintf("udp dport %d return", port))
	}
	return rules
}
