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

// Family is a family of addresses at which a network serves host ports: IPv4 or IPv6.
type Family struct {
	// atAll and atOne are maps of the pod's port for each host port: for the ports at all addresses of the node, and for those at one.
	atAll, atOne string
	// l3 is the family in rules, proto in conditions, and address the type of addresses in sets.
	l3, proto, address string
	// kept are conditions for addresses of the node that have no host ports.
	kept []string
}

// IPv4 and IPv6 return the families. Of the loopback ranges only 127.0.0.1 has host ports: the others are left to programs of the node, and
// the kernel routes no packet from ::1 to a pod. Neither does it route one from a link-local address.
func IPv4() Family {
	return Family{atAll: "hostports", atOne: "hostports-at", l3: "ip", proto: "ipv4", address: "ipv4_addr"}
}

// IPv6 is described at IPv4.
func IPv6() Family {
	return Family{
		atAll: "hostports6", atOne: "hostports6-at", l3: "ip6", proto: "ipv6", address: "ipv6_addr", kept: []string{"ip6 daddr { ::1, fe80::/10 }"},
	}
}

// maxNote bounds the note of an element (nft.Element).
const maxNote = 120

// loopback is the only address of the loopback range that has host ports.
const loopback = "127.0.0.1"

// priority is after kube-proxy's translation, which is at -100: a Service with the same address is more specific.
const priority = -99

// Published are the host ports of a pod.
type Published struct {
	// Pod is the pod's namespace/name, for readers of the rules.
	Pod string
	// Addresses are the pod's addresses, one of each family at most.
	Addresses []netip.Addr
	// Ports are the node's ports with the pod's ports.
	Ports []cni.HostPort
}

// Note is the note of the pod's elements.
func (p *Published) Note() string {
	note := "pod " + p.Pod
	return note[:min(len(note), maxNote)]
}

// Elements returns an element of a table's maps for each port and each of the pod's addresses. A port at one address of the node, or at all
// of one family, is translated to the pod's address of that family only, as by the plugin portmap.
func (p *Published) Elements(table string) map[nft.Key]nft.Item {
	items := make(map[nft.Key]nft.Item, len(p.Ports)*len(p.Addresses))
	for _, port := range p.Ports {
		for _, address := range p.Addresses {
			if port.Address.IsValid() && port.Address.Is4() != address.Is4() {
				continue
			}
			family := IPv4()
			if !address.Is4() {
				family = IPv6()
			}
			e := &nft.Element{
				Family: nft.FamilyInet, Table: table, Set: family.atAll, Match: []string{port.Protocol, number(port.Port)},
				Value: []string{address.String(), number(port.ContainerPort)}, Owner: p.Note(),
			}
			if port.AtOne() {
				e.Set, e.Match = family.atOne, append([]string{port.Address.String()}, e.Match...)
			}
			items[e.Key()] = e
		}
	}
	return items
}

func number(port uint16) string { return strconv.Itoa(int(port)) }

// Maps returns the maps of a table.
func Maps(table string, families ...Family) []nft.Item {
	var items []nft.Item
	for _, f := range families {
		items = append(items,
			&nft.Map{Family: nft.FamilyInet, Table: table, Name: f.atAll, Type: "inet_proto . inet_service", Value: f.address + " . inet_service"},
			&nft.Map{Family: nft.FamilyInet, Table: table, Name: f.atOne, Type: f.address + " . inet_proto . inet_service", Value: f.address + " . inet_service"},
		)
	}
	return items
}

// Chain is a base chain, and the rules in it.
type Chain struct {
	nft.Chain

	Rules []string
}

// Chains returns the chains that translate host ports: of packets that the node receives, and of its own. Only packets to an address of the
// node itself match: a port of another machine with the same number is not the node's (CVE-2025-67499). Packets to the tunnels' UDP ports are
// not translated, and neither are those that a rule of except, for both chains, returns. Chains have no table.
func Chains(families []Family, tunnels []uint16, except ...string) (received, own Chain) {
	var rules []string // behind the two that begin a chain
	for _, port := range tunnels {
		rules = append(rules, fmt.Sprintf("udp dport %d return", port))
	}
	rules = append(rules, except...)
	for _, f := range families {
		for _, condition := range f.kept {
			rules = append(rules, condition+" return")
		}
		rules = append(rules,
			fmt.Sprintf("meta nfproto %s dnat %s to %s daddr . meta l4proto . th dport map @%s", f.proto, f.l3, f.l3, f.atOne),
			fmt.Sprintf("meta nfproto %s dnat %s to meta l4proto . th dport map @%s", f.proto, f.l3, f.atAll),
		)
	}
	chain := func(name string, hook nft.Hook, first string) Chain {
		return Chain{
			Chain: nft.Chain{Family: nft.FamilyInet, Name: name, Type: nft.TypeNAT, Hook: hook, Priority: priority},
			Rules: append([]string{"fib daddr type != local return", first}, rules...), // most packets cross the first rule only
		}
	}
	// The node drops packets from outside to the loopback range. Translated before, they would not be dropped.
	return chain("hostports-in", nft.HookPrerouting, "ip daddr 127.0.0.0/8 return"),
		chain("hostports-out", nft.HookOutput, "ip daddr 127.0.0.0/8 ip daddr != "+loopback+" return")
}
