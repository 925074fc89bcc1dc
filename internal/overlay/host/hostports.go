package host

import (
	"fmt"
	"net/netip"
	"strconv"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/nft"
)

// Names in the table inet weft of what host ports add to: where each leads, at all addresses of the node and at one.
const (
	hostPorts   = "hostports"
	hostPortsAt = "hostports-at"
)

// maxNote bounds the note of an element (nft.Element).
const maxNote = 120

// Published are the ports of the node that lead to a pod.
type Published struct {
	// Pod is the pod's namespace/name, for who reads the rules.
	Pod string
	// Address is the pod's.
	Address netip.Addr
	// Ports are the node's ports, with the pod's.
	Ports []cni.HostPort
}

// Rules returns what they add to the node's rules: an element for each.
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

// loopback is the one address of the loopback range that host ports are at: the others are for what the node has there itself.
const loopback = "127.0.0.1"

// hostPorts leads host ports to their pods. Only what is for an address of the node itself is looked at: a port of another machine
// with that number is none of the node's (CVE-2025-67499). Sources stay as they are; see masquerade for those that cannot.
func (c *Config) hostPorts(f fragment) {
	f.add(
		&nft.Map{Family: nft.FamilyInet, Table: table, Name: hostPorts, Type: "inet_proto . inet_service", Value: "ipv4_addr . inet_service"},
		&nft.Map{Family: nft.FamilyInet, Table: table, Name: hostPortsAt, Type: "ipv4_addr . inet_proto . inet_service", Value: "ipv4_addr . inet_service"},
	)
	lead := []string{
		// kube-proxy may have the Services' addresses be the node's own, and lead them on only later (IPVS).
		fmt.Sprintf("ip daddr %s return", c.ServiceNetwork),
		// Egress addresses are the node's by the kernel's word only. What comes in for one is refused before; this is for the node.
		fmt.Sprintf("ip daddr @%s return", egressAddresses),
		"meta nfproto ipv4 fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @" + hostPortsAt,
		"meta nfproto ipv4 fib daddr type local dnat ip to meta l4proto . th dport map @" + hostPorts,
	}
	// What comes in for the loopback range is no packet of the node's, which it would drop only after it is led away.
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "hostports-in", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: priorityDNAT},
		append([]string{"ip daddr 127.0.0.0/8 return"}, lead...)...)
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "hostports-out", Type: nft.TypeNAT, Hook: nft.HookOutput, Priority: priorityDNAT},
		append([]string{"ip daddr 127.0.0.0/8 ip daddr != " + loopback + " return"}, lead...)...)
}
