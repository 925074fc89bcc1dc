// Package host compiles flannel's rules of a node: masquerading of packets that leave the network, with the effect of flannel's iptables
// rules. In addition, tunnel packets are accepted only from nodes, and an agent's pods send only as ports of the bridge. The package is
// pure.
//
// There is no chain like FLANNEL-FWD, which accepts packets forwarded from and to the network. In iptables an accepting rule skips the rest
// of the table, drops and its policy included. In nftables it ends only its own base chain: other tables' chains still drop the packet. What
// FLANNEL-FWD is for is done in those chains (--iptables-forward-rules; nft.Survey finds them).
package host

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"weft.dev/weft/internal/nft"
)

// table is the name of Weft's tables, one for IPv4 and one for IPv6.
const table = "weft-flannel"

// Priorities of the base chains (enum nf_ip_hook_priorities of the kernel's netfilter_ipv4.h).
const (
	priorityRaw    = -300 // before conntrack
	priorityFilter = 0
	prioritySNAT   = 100
)

// owner is the comment of all rules.
const owner = "flannel"

// Tables returns the managed tables: Weft's, and those that flanneld leaves behind, which are never desired and so are removed.
func Tables() []nft.Table {
	return []nft.Table{
		{Family: nft.FamilyIPv4, Name: table},
		{Family: nft.FamilyIPv6, Name: table},
		{Family: nft.FamilyIPv4, Name: flanneldTable4},
		{Family: nft.FamilyIPv6, Name: flanneldTable6},
	}
}

// The names of flanneld's tables.
const (
	flanneldTable4 = "flannel-ipv4"
	flanneldTable6 = "flannel-ipv6"
)

// Flanneld reports whether a table of that name is flanneld's.
func Flanneld(table string) bool { return table == flanneldTable4 || table == flanneldTable6 }

// Own reports whether a table of that name is one of Weft's. The table of pods' host ports has the same name.
func Own(name string) bool { return name == table }

// Family is what the rules of one family depend on.
type Family struct {
	// Network is the range of all pods, Subnet that of this node's pods. Both are invalid if the network lacks the family.
	Network, Subnet netip.Prefix
	// Local is the source address of the node's own tunnel packets.
	Local netip.Addr
}

func (f Family) has() bool { return f.Network.IsValid() && f.Subnet.IsValid() }

// Config is what the rules depend on.
type Config struct {
	Families [2]Family // IPv4, IPv6
	// Masquerade translates the source of packets that leave the network to the node's address (--ip-masq), with a random port unless
	// SequentialPorts.
	Masquerade, SequentialPorts bool
	// Tunnel identifies the tunnel packets of nodes.
	Tunnel Tunnel
	// Pods are the pods of an agent on this node.
	Pods Pods
}

// PodGroup is the device group of the host veths of an agent's pods. A packet that comes in by such a device has passed no port of the
// bridge, since a port's packets come in by the bridge: it is dropped.
const PodGroup = 78

// Pods are the pods that an agent attaches. They must not send packets into tunnels. The zero value: there is no agent.
type Pods struct {
	// Bridge is the name of the pods' bridge.
	Bridge string
	// Closed are the UDP ports of other networks' tunnels.
	Closed []uint16
}

// Tunnel is the encapsulation of packets between nodes without authentication. The zero value: none.
type Tunnel struct {
	// Port is the UDP port of VXLAN; 0: none.
	Port uint16
	// IPIP reports that it is IP in IP.
	IPIP bool
}

// protocolIPIP is the number of the protocol that carries IPv4 packets (IANA).
const protocolIPIP = 4

// Matches returns conditions in nft's syntax; a packet of the tunnel matches one of them.
func (t Tunnel) Matches() []string {
	switch {
	case t.Port != 0:
		return []string{fmt.Sprintf("udp dport %d", t.Port)}
	case t.IPIP:
		return []string{fmt.Sprintf("meta l4proto %d", protocolIPIP)}
	default:
		return nil
	}
}

// nodes is the set of the addresses from which tunnel packets are accepted.
const nodes = "nodes"

// Node returns the elements of another node's public addresses, IPv4 first; an invalid address has none.
func (c *Config) Node(public [2]netip.Addr) map[nft.Key]nft.Item {
	out := map[nft.Key]nft.Item{}
	for i, family := range []nft.Family{nft.FamilyIPv4, nft.FamilyIPv6} {
		of := public[i].Is4() == (i == 0) && public[i].Zone() == "" // data of another node need not be valid
		if !public[i].IsValid() || !of || !c.Families[i].has() || len(c.Tunnel.Matches()) == 0 {
			continue
		}
		element := &nft.Element{Family: family, Table: table, Set: nodes, Match: []string{public[i].String()}}
		out[element.Key()] = element
	}
	return out
}

// Rules returns the tables with their chains and rules.
func (c *Config) Rules() map[nft.Key]nft.Item {
	out := map[nft.Key]nft.Item{}
	for i, f := range c.Families {
		if f.has() || c.Pods.Bridge != "" { // a pod may have addresses of a family that the network had before
			maps.Copy(out, c.rulesOf(i, f))
		}
	}
	return out
}

// words are nft's names for an address family.
type words struct {
	family             nft.Family
	l3, set, multicast string
}

// rulesOf returns the table of one family, 0 for IPv4 and 1 for IPv6.
func (c *Config) rulesOf(i int, f Family) map[nft.Key]nft.Item {
	w := [2]words{{nft.FamilyIPv4, "ip", "ipv4_addr", "224.0.0.0/4"}, {nft.FamilyIPv6, "ip6", "ipv6_addr", "ff00::/8"}}[i]
	t := &nft.Table{Family: w.family, Name: table}
	items := map[nft.Key]nft.Item{t.Key(): t}
	add := func(chain nft.Chain, texts []string) {
		chain.Family, chain.Table = w.family, table
		rules := &nft.ChainRules{Family: w.family, Table: table, Chain: chain.Name}
		for _, text := range texts {
			rules.Rules = append(rules.Rules, nft.Rule{Text: text, Owner: owner})
		}
		items[chain.Key()], items[rules.Key()] = &chain, rules
	}
	if c.toNodes(f) {
		set := &nft.Set{Family: w.family, Table: table, Name: nodes, Type: w.set}
		items[set.Key()] = set
	}
	c.beforeConntrack(f, w.l3, add)
	c.closeTunnels(f, w.l3, add)
	if c.Masquerade && f.has() {
		add(nft.Chain{Name: "postrouting", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: prioritySNAT}, c.masquerade(w.l3, f, w.multicast))
	}
	return items
}

// toNodes reports whether there is a tunnel to other nodes in an address family.
func (c *Config) toNodes(f Family) bool { return f.has() && len(c.Tunnel.Matches()) > 0 }

// Chains of tunnel packets. Other packets cross the base chains only.
const (
	chainRaw     = "raw"
	chainTunnels = "tunnels"
	chainOutput  = "tunnel-output"
	chainTunnel  = "tunnel"
	chainPods    = "tunnel-pods"
)

// redirected drops packets that DNAT sends to a tunnel of this node, whatever their source: a node port of this node gives those of another
// node's pods that node's address.
const redirected = "ct status dnat fib daddr type != unicast counter drop"

// closeTunnels adds the chains that drop tunnel packets of pods, and those of hosts that are not nodes.
//
// The base chain is in prerouting, after DNAT: one chain for packets to this node and for forwarded packets, also for those that a Service
// or a host port redirects to a tunnel, of which masquerading would make packets of this node.
func (c *Config) closeTunnels(f Family, l3 string, add func(chain nft.Chain, texts []string)) {
	first := chainPods
	var tunnel []string
	if c.toNodes(f) {
		first = chainTunnel
		tunnel = append(tunnel, redirected)
		if f.Local.IsValid() {
			tunnel = append(tunnel, fmt.Sprintf("%s daddr %s %s saddr @%s %saccept", l3, f.Local, l3, nodes, c.notOfPods()))
		}
		tunnel = append(tunnel,
			// To this node, including broadcast and multicast, which the tunnel's socket accepts too. The set is matched first, so that
			// packets of nodes need no route lookup.
			fmt.Sprintf("%s saddr != @%s fib daddr type != unicast counter drop", l3, nodes),
		)
		if f.Local.IsValid() {
			tunnel = append(tunnel, c.strangers(f, l3))
		}
	}
	closed := map[uint16]string{} // the chain of each UDP port
	if c.Pods.Bridge != "" {
		for _, port := range c.Pods.Closed {
			closed[port] = chainPods
		}
		tunnel = append(tunnel, "goto "+chainPods)
		add(nft.Chain{Name: chainPods}, []string{
			// Answers pass: a client's port may have a tunnel's number. A packet that conntrack does not track, such as one with a wrong
			// checksum, has no direction: only answers are accepted.
			fmt.Sprintf("iifname %q ct direction reply accept", c.Pods.Bridge),
			fmt.Sprintf("iifname %q counter drop", c.Pods.Bridge),
			redirected,
		})
	}
	if c.toNodes(f) {
		add(nft.Chain{Name: chainTunnel}, tunnel)
	}
	if c.Tunnel.Port != 0 {
		closed[c.Tunnel.Port] = first
	}
	base := byPort(closed)
	if c.Tunnel.IPIP {
		base = append(base, fmt.Sprintf("meta l4proto %d goto %s", protocolIPIP, first))
	}
	if len(base) > 0 && (c.toNodes(f) || c.Pods.Bridge != "") {
		add(nft.Chain{Name: chainTunnels, Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: priorityFilter}, base)
	}
}

// byPort returns the rule that sends packets to the chain of their UDP port, if there are ports. All packets of pods cross it: it is one rule
// for all ports, and packets of TCP leave it first.
func byPort(chains map[uint16]string) []string {
	var verdicts []string
	for _, port := range slices.Sorted(maps.Keys(chains)) {
		verdicts = append(verdicts, fmt.Sprintf("%d : goto %s", port, chains[port]))
	}
	switch len(verdicts) {
	case 0:
		return nil
	case 1:
		return []string{"udp dport " + strings.Replace(verdicts[0], " : ", " ", 1)}
	}
	return []string{"udp dport vmap { " + strings.Join(verdicts, ", ") + " }"}
}

// strangers drops packets to nodes with another source than this node's.
func (c *Config) strangers(f Family, l3 string) string {
	return fmt.Sprintf("%s daddr @%s %s saddr != %s counter drop", l3, nodes, l3, f.Local)
}

// notOfPods matches packets that no pod has sent. It ends with a space, unless all packets match.
func (c *Config) notOfPods() string {
	if c.Pods.Bridge == "" {
		return ""
	}
	return fmt.Sprintf("iifname != %q ", c.Pods.Bridge)
}

// beforeConntrack adds the chains before conntrack. The packets in a tunnel are tracked, and those that carry them need not be: without
// entries they cost less, and other hosts' packets do not fill the table. A packet of a pod that is not a port of the bridge changes no
// connection.
func (c *Config) beforeConntrack(f Family, l3 string, add func(chain nft.Chain, texts []string)) {
	var raw, output []string
	if c.Pods.Bridge != "" {
		raw = append(raw, fmt.Sprintf("iifgroup %d drop", PodGroup))
	}
	if c.toNodes(f) && f.Local.IsValid() {
		for _, match := range c.Tunnel.Matches() {
			// Of a pod's packets, conntrack distinguishes answers.
			raw = append(raw, fmt.Sprintf("%s %s daddr %s %snotrack", match, l3, f.Local, c.notOfPods()))
			output = append(output, fmt.Sprintf("%s %s saddr %s %s daddr @%s notrack accept", match, l3, f.Local, l3, nodes), match+" "+c.strangers(f, l3))
		}
	}
	if len(raw) > 0 {
		add(nft.Chain{Name: chainRaw, Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: priorityRaw}, raw)
	}
	if len(output) > 0 {
		add(nft.Chain{Name: chainOutput, Type: nft.TypeFilter, Hook: nft.HookOutput, Priority: priorityRaw}, output)
	}
}

// kubeProxyMark is the bit of a packet's mark with which kube-proxy requests masquerading; its own rule then masquerades.
const kubeProxyMark = 1 << 14

func (c *Config) masquerade(l3 string, f Family, multicast string) []string {
	verdict := "masquerade fully-random"
	if c.SequentialPorts {
		verdict = "masquerade"
	}
	return []string{
		fmt.Sprintf("meta mark & %#x == %#x return", kubeProxyMark, kubeProxyMark),
		fmt.Sprintf("%s saddr %s %s daddr %s return", l3, f.Subnet, l3, f.Network),
		fmt.Sprintf("%s saddr %s %s daddr %s return", l3, f.Network, l3, f.Subnet),
		// From outside to this node's own pods: they see the sender's address.
		fmt.Sprintf("%s saddr != %s %s daddr %s return", l3, f.Network, l3, f.Subnet),
		fmt.Sprintf("%s saddr %s %s daddr != %s %s", l3, f.Network, l3, multicast, verdict),
		// From outside through this node to another node's pod: the answer must return through this node.
		fmt.Sprintf("%s saddr != %s %s daddr %s %s", l3, f.Network, l3, f.Network, verdict),
	}
}
