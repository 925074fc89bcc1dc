// Package hostport compiles host ports to nftables: the node's ports that are translated to ports of pods. Each network that serves them adds
// the items to its own table of family inet. The source of the packets, and which of them pass, are the network's decision.
package hostport

import (
	"fmt"
	"net/netip"
	"strconv"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/nft"
)

// Maps of the pod's port for each host port: atAll for the ports at all addresses of the node, atOne for those at one.
const (
	atAll = "hostports"
	atOne = "hostports-at"
)

// maxNote bounds the note of an element (nft.Element).
const maxNote = 120

// loopback is the only address of the loopback range that has host ports. The others are left to programs of the node.
const loopback = "127.0.0.1"

// priority is after kube-proxy's translation, which is at -100: a Service with the same address is more specific.
const priority = -99

// Published are the host ports of a pod.
type Published struct {
	// Pod is the pod's namespace/name, for readers of the rules.
	Pod string
	// Address is the pod's address.
	Address netip.Addr
	// Ports are the node's ports with the pod's ports.
	Ports []cni.HostPort
}

// Note is the note of the pod's elements.
func (p *Published) Note() string {
	note := "pod " + p.Pod
	return note[:min(len(note), maxNote)]
}

// Elements returns an element of a table's maps for each port.
func (p *Published) Elements(table string) []nft.Item {
	items := make([]nft.Item, 0, len(p.Ports))
	for _, port := range p.Ports {
		e := &nft.Element{
			Family: nft.FamilyInet, Table: table, Set: atAll, Match: []string{port.Protocol, number(port.Port)},
			Value: []string{p.Address.String(), number(port.ContainerPort)}, Owner: p.Note(),
		}
		if port.Address.IsValid() {
			e.Set, e.Match = atOne, append([]string{port.Address.String()}, e.Match...)
		}
		items = append(items, e)
	}
	return items
}

func number(port uint16) string { return strconv.Itoa(int(port)) }

// Maps returns the maps of a table.
func Maps(table string) []nft.Item {
	return []nft.Item{
		&nft.Map{Family: nft.FamilyInet, Table: table, Name: atAll, Type: "inet_proto . inet_service", Value: "ipv4_addr . inet_service"},
		&nft.Map{Family: nft.FamilyInet, Table: table, Name: atOne, Type: "ipv4_addr . inet_proto . inet_service", Value: "ipv4_addr . inet_service"},
	}
}

// Chain is a base chain, and the rules in it.
type Chain struct {
	nft.Chain

	Rules []string
}

// Chains returns the chains that translate host ports: of packets that the node receives, and of its own. Only packets to an address of the
// node itself match: a port of another machine with the same number is not the node's (CVE-2025-67499). Packets to the tunnels' UDP ports are
// not translated, and neither are those that a rule of except, for both chains, returns. Chains have no table.
func Chains(tunnels []uint16, except ...string) (received, own Chain) {
	var rules []string
	for _, port := range tunnels {
		rules = append(rules, fmt.Sprintf("udp dport %d return", port))
	}
	rules = append(rules, except...)
	rules = append(rules,
		"meta nfproto ipv4 fib daddr type local dnat ip to ip daddr . meta l4proto . th dport map @"+atOne,
		"meta nfproto ipv4 fib daddr type local dnat ip to meta l4proto . th dport map @"+atAll,
	)
	chain := func(name string, hook nft.Hook, first string) Chain {
		return Chain{
			Chain: nft.Chain{Family: nft.FamilyInet, Name: name, Type: nft.TypeNAT, Hook: hook, Priority: priority},
			Rules: append([]string{first}, rules...),
		}
	}
	// The node drops packets from outside to the loopback range. Translated before, they would not be dropped.
	return chain("hostports-in", nft.HookPrerouting, "ip daddr 127.0.0.0/8 return"),
		chain("hostports-out", nft.HookOutput, "ip daddr 127.0.0.0/8 ip daddr != "+loopback+" return")
}
