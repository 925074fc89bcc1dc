// Package published compiles the host ports of pods on the flannel network to the table inet weft-flannel.
package published

import (
	"fmt"

	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/nft"
)

// Table is the name of the table, of family inet.
const Table = "weft-flannel"

// comment is the comment of all rules.
const comment = "flannel"

const (
	// setSelf4 and setSelf6 have each pod with host ports, as source and as destination: its own connections to them.
	setSelf4 = "self4"
	setSelf6 = "self6"
	// priorityFirst is before the masquerading of the lease's tables and of kube-proxy.
	priorityFirst = 99
)

// Items are rules of the node.
type Items = map[nft.Key]nft.Item

func families() []hostport.Family { return []hostport.Family{hostport.IPv4(), hostport.IPv6()} }

// chainSources is the chain for the sources of translated connections.
const chainSources = "hostports-sources"

// Static returns the table without pods. It has no base chain: [Compile] adds them. Clients keep their source address, with two
// exceptions, which become the bridge's: 127.0.0.1, which is valid on the node only, and the pod itself, which would take an answer to its
// own address for a stranger's.
func Static(bridge string) Items {
	out := Items{}
	put(out, &nft.Table{Family: nft.FamilyInet, Name: Table})
	put(out, hostport.Maps(Table, families()...)...)
	put(out, &nft.Set{Family: nft.FamilyInet, Table: Table, Name: setSelf4, Type: "ipv4_addr . ipv4_addr"},
		&nft.Set{Family: nft.FamilyInet, Table: Table, Name: setSelf6, Type: "ipv6_addr . ipv6_addr"})
	chains(out, hostport.Chain{Chain: nft.Chain{Family: nft.FamilyInet, Name: chainSources}, Rules: []string{
		fmt.Sprintf("oifname %q ip saddr 127.0.0.0/8 masquerade", bridge),
		"ip saddr . ip daddr @" + setSelf4 + " masquerade",
		"ip6 saddr . ip6 daddr @" + setSelf6 + " masquerade",
	}})
	return out
}

func put(to Items, items ...nft.Item) {
	for _, item := range items {
		to[item.Key()] = item
	}
}

// chains adds chains with their rules.
func chains(to Items, list ...hostport.Chain) {
	for _, c := range list {
		c.Table = Table
		rules := &nft.ChainRules{Family: nft.FamilyInet, Table: Table, Chain: c.Name}
		for _, text := range c.Rules {
			rules.Rules = append(rules.Rules, nft.Rule{Text: text, Owner: comment})
		}
		put(to, &c.Chain, rules)
	}
}

// Compile returns a function that compiles a pod's host ports: its elements, and the base chains that translate, which all pods with host
// ports share. Without host ports on the node, no connection crosses these chains. Packets to the tunnels' UDP ports are not translated.
func Compile(tunnels []uint16) func(of *hostport.Published) Items {
	received, own := hostport.Chains(families(), tunnels)
	from := hostport.Chain{
		Chain: nft.Chain{Family: nft.FamilyInet, Name: "hostports-from", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: priorityFirst},
		Rules: []string{"ct status dnat goto " + chainSources},
	}
	return func(of *hostport.Published) Items {
		out := elements(of)
		chains(out, received, own, from)
		return out
	}
}

// elements returns the elements of a pod's host ports.
func elements(of *hostport.Published) Items {
	out := of.Elements(Table)
	for _, address := range of.Addresses {
		self := &nft.Element{
			Family: nft.FamilyInet, Table: Table, Set: setSelf4, Match: []string{address.String(), address.String()}, Owner: of.Note(),
		}
		if !address.Is4() {
			self.Set = setSelf6
		}
		out[self.Key()] = self
	}
	return out
}
