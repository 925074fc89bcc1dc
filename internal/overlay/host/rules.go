package host

import (
	"fmt"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/nft"
)

// Priorities of the base chains (enum nf_ip_hook_priorities of the kernel's netfilter_ipv4.h).
const (
	priorityClose  = -450 // before everything, also defragmentation (-400) and connection tracking (-200)
	priorityRaw    = -300
	priorityFilter = 0
	priorityFirst  = 99  // before kube-proxy's translation, which is at 100
	priorityDNAT   = -99 // after kube-proxy's, which is at -100: what a Service says of an address is more particular
	prioritySNAT   = 101 // after kube-proxy's, which is at 100
)

// fragment collects items of nftables.
type fragment map[nft.Key]nft.Item

func (f fragment) add(items ...nft.Item) {
	for _, item := range items {
		f[item.Key()] = item
	}
}

// chain adds a base chain with its rules.
func (f fragment) chain(chain nft.Chain, rules ...string) {
	chain.Table = table
	if chain.Type == "" {
		chain.Type = nft.TypeFilter
	}
	list := &nft.ChainRules{Family: chain.Family, Table: table, Chain: chain.Name}
	for _, text := range rules {
		list.Rules = append(list.Rules, nft.Rule{Text: text, Owner: owner})
	}
	f.add(&chain, list)
}

// Rules returns the rules of the node. They must be in place before the first port of a userspace datapath.
func (c *Config) Rules() map[nft.Key]nft.Item {
	f := fragment{}
	for _, t := range Tables() {
		f.add(&t)
	}
	f.closeAround()
	f.add(
		&nft.Set{Family: nft.FamilyInet, Table: table, Name: podsSet, Type: "ipv4_addr", Flags: []nft.SetFlag{nft.FlagInterval}},
		&nft.Set{Family: nft.FamilyInet, Table: table, Name: NodesSet, Type: "ipv4_addr"},
	)
	for _, network := range c.ClusterNetworks {
		f.add(&nft.Element{Family: nft.FamilyInet, Table: table, Set: podsSet, Match: []string{network.String()}, Owner: owner})
	}
	c.tunnel(f)
	c.reject(f)
	c.guard(f)
	c.egress(f)
	c.forward(f)
	c.masquerade(f)
	c.fromOutside(f)
	c.hostPorts(f)
	return f
}

// closeAround keeps the kernel from taking frames that are for the switch.
func (f fragment) closeAround() {
	drop := fmt.Sprintf("iifgroup %d drop", PodGroup)
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "close", Hook: nft.HookPrerouting, Priority: priorityClose}, drop,
		// The flows drop it too. The kernel would not, because it is to route answers to the loopback range (Links).
		fmt.Sprintf(`iifname "%s" ip daddr 127.0.0.0/8 drop`, Tun))
	f.chain(nft.Chain{Family: nft.FamilyARP, Name: "close", Hook: nft.HookInput, Priority: priorityFilter}, drop)
}

// tunnel lets known nodes reach the tunnel's port at this node's address, and nobody else. Connection tracking of it
// would only cost: both ends use random ports, and nothing is translated. What the node forwards to other nodes' tunnel ports is
// dropped before translation, which would give it the node's address: pods of other networks on the node send it, and Services of the
// host's lead there.
func (c *Config) tunnel(f fragment) {
	port := c.vxlanPort()
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "untracked-in", Hook: nft.HookPrerouting, Priority: priorityRaw},
		fmt.Sprintf(`iifname != "%s" ip saddr @%s udp dport %d notrack`, Tun, NodesSet, port))
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "untracked-out", Hook: nft.HookOutput, Priority: priorityRaw},
		fmt.Sprintf(`oifname != "%s" ip daddr @%s udp dport %d notrack`, Tun, NodesSet, port))
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "tunnel", Hook: nft.HookInput, Priority: priorityFilter},
		fmt.Sprintf(`iifname != "%s" ip saddr @%s ip daddr %s udp dport %d accept`, Tun, NodesSet, c.NodeIP, port),
		fmt.Sprintf(`udp dport %d drop`, port))
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "tunnel-out", Hook: nft.HookPostrouting, Priority: priorityFirst},
		fmt.Sprintf(`ip daddr @%s ip saddr != %s udp dport %d drop`, NodesSet, c.NodeIP, port))
}

// reject answers at once what the switch hands over for a Service without endpoints: the switch makes no packets. It comes
// before routing, which would find that the way leads back to where the packet came from. kube-proxy's translations are
// earlier (-100), and it has none for such a Service.
func (c *Config) reject(f fragment) {
	if c.RejectMAC == nil {
		return
	}
	from := fmt.Sprintf(`iifname "%s" ether saddr %s`, Tun, c.RejectMAC)
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "refuse", Hook: nft.HookPrerouting, Priority: priorityFilter},
		from+" meta l4proto tcp reject with tcp reset",
		from+" reject")
}

// guard rejects what pods send to metadata services, and to the ports of nodes that are closed to them. The flows do so too, except where the
// host translates (a Service that it serves, a node port at an address that the switch does not know) and where fragments hide the port.
func (c *Config) guard(f fragment) {
	const begins = "tcp flags & (syn | ack) == syn"
	var all, forwarded, input []string
	for _, addr := range c.Metadata {
		to := fmt.Sprintf(`iifname "%s" ip daddr %s`, Tun, addr)
		all = append(all, to+" meta l4proto { tcp, udp } th dport != 53 reject", to+" meta l4proto != { tcp, udp } reject")
	}
	for _, port := range c.ClosedTCP {
		forwarded = append(forwarded, fmt.Sprintf(`iifname "%s" ip daddr != @%s tcp dport %d %s reject with tcp reset`, Tun, podsSet, port, begins))
		input = append(input, fmt.Sprintf(`iifname "%s" tcp dport %d %s reject with tcp reset`, Tun, port, begins))
	}
	if len(all)+len(input) == 0 {
		return
	}
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "guard-forward", Hook: nft.HookForward, Priority: priorityFilter}, append(slices.Clone(all), forwarded...)...)
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "guard-input", Hook: nft.HookInput, Priority: priorityFilter}, append(slices.Clone(all), input...)...)
}

// forward drops what must not leave although the host would forward it: packets of no connection, which nothing would
// translate, so that a pod's address would leave the cluster; and packets to the tunnel's port, which would come to a node
// from a known node's address. The flows drop those too, except where a Service of the host's has a node's tunnel port
// for an endpoint, and where fragments hide the port: here they are reassembled.
// What is left of what goes out meets the administrator's own rules.
func (c *Config) forward(f fragment) {
	for _, admin := range Unmanaged() {
		f.add(&admin)
	}
	rules := []string{fmt.Sprintf(`iifname "%s" ct state invalid drop`, Tun)}
	for _, port := range c.tunnelPorts() {
		rules = append(rules, fmt.Sprintf(`iifname "%s" ip daddr != @%s udp dport %d drop`, Tun, podsSet, port))
	}
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "forward", Hook: nft.HookForward, Priority: priorityFilter}, append(rules,
		// What no Service has translated by now is nobody's. The host would ask for it by ARP, and a pod that sends to
		// many such addresses would fill the neighbour table, whose limits are the whole machine's.
		fmt.Sprintf(`iifname "%s" oifname "%s" ip daddr %s reject with icmp host-unreachable`, Tun, Tun, c.ServiceNetwork),
		fmt.Sprintf(`iifname "%s" oifname != "%s" jump %s`, Tun, Tun, AdminChain))...)
}

func (c *Config) masquerade(f fragment) {
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "translate", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: prioritySNAT},
		// Pods to outside, of projects with egress addresses, and of others.
		fmt.Sprintf(`oifname != "%s" ip saddr @%s ip daddr != @%s snat ip to meta mark map @%s`, Tun, podsSet, podsSet, egressSources),
		fmt.Sprintf(`oifname != "%s" ip saddr @%s ip daddr != @%s masquerade`, Tun, podsSet, podsSet),
		// The node to host ports of its own, from whichever of its addresses: it is the node that asks.
		fmt.Sprintf(`oifname "%s" ip daddr %s ip saddr != %s ct status dnat fib saddr type local snat ip to %s`, Tun, c.LocalSubnet, c.Gateway, c.Gateway),
		// Pod to pod through the host: Services, host ports.
		fmt.Sprintf(`oifname "%s" ip saddr @%s ip saddr != %s masquerade`, Tun, podsSet, c.Gateway),
		// Through the host to another node's pods.
		fmt.Sprintf(`oifname "%s" ip daddr != %s ip saddr != %s masquerade`, Tun, c.LocalSubnet, c.Gateway))
}

// kubeProxyMark is the bit of a packet's mark by which kube-proxy asks for masquerading (its --iptables-masquerade-bit, 14 unless it
// is told otherwise), in all its modes.
const kubeProxyMark = 1 << 14

// fromOutside translates what does not come from the node, and would get the gateway's address on its way to a pod of this node, to
// an address by which it is not taken for the node's. Answers lose it before they are routed: what has it afterwards answers nothing.
func (c *Config) fromOutside(f fragment) {
	if !c.Outside.IsValid() {
		return
	}
	toPods := fmt.Sprintf(`oifname "%s" ip daddr %s`, Tun, c.LocalSubnet)
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "translate-outside", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: priorityFirst},
		fmt.Sprintf(`%s ip saddr @%s ip saddr != %s snat ip to %s`, toPods, podsSet, c.Gateway, c.Outside),
		fmt.Sprintf(`%s fib saddr type != local meta mark & %#08x == %#08x snat ip to %s`, toPods, kubeProxyMark, kubeProxyMark, c.Outside))
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "forward-outside", Hook: nft.HookForward, Priority: priorityFilter},
		fmt.Sprintf(`iifname "%s" ip daddr %s drop`, Tun, c.Outside))
}

// RemoteRules returns what another node adds: its address. Two HostSubnets that briefly share an address may both add it.
func (c *Config) RemoteRules(nodeIP netip.Addr) map[nft.Key]nft.Item {
	f := fragment{}
	if nodeIP.Is4() && nodeIP != c.NodeIP {
		f.add(&nft.Element{Family: nft.FamilyInet, Table: table, Set: NodesSet, Match: []string{nodeIP.String()}, Owner: nodeNote})
	}
	return f
}
