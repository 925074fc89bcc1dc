package host

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weft.dev/weft/internal/nft"
)

// Priorities of the base chains (enum nf_ip_hook_priorities of the kernel's netfilter_ipv4.h).
const (
	priorityClose  = -450 // before everything, including defragmentation (-400) and connection tracking (-200)
	priorityRaw    = -300
	priorityFilter = 0
	priorityFirst  = 99  // before kube-proxy's translation, which is at 100
	prioritySNAT   = 101 // after kube-proxy's, which is at 100
)

// fragment collects items of nftables.
type fragment map[nft.Key]nft.Item

func (f fragment) add(items ...nft.Item) {
	for _, item := range items {
		f[item.Key()] = item
	}
}

// chain adds a chain with its rules; without a hook it is one to jump to.
func (f fragment) chain(chain nft.Chain, rules ...string) {
	chain.Table = table
	if chain.Hook != "" && chain.Type == "" {
		chain.Type = nft.TypeFilter
	}
	list := &nft.ChainRules{Family: chain.Family, Table: table, Chain: chain.Name}
	for _, text := range rules {
		list.Rules = append(list.Rules, nft.Rule{Text: text, Owner: owner})
	}
	f.add(&chain, list)
}

// Rules returns the node's rules. They must be in effect before the first port of a userspace datapath exists.
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

// closeAround keeps the kernel from processing frames that are for the switch.
func (f fragment) closeAround() {
	drop := fmt.Sprintf("iifgroup %d drop", PodGroup)
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "close", Hook: nft.HookPrerouting, Priority: priorityClose}, drop,
		// The flows drop it too. The kernel would not, because it routes replies to the loopback range (Links).
		fmt.Sprintf(`iifname "%s" ip daddr 127.0.0.0/8 drop`, Tun))
	f.chain(nft.Chain{Family: nft.FamilyARP, Name: "close", Hook: nft.HookInput, Priority: priorityFilter}, drop)
}

// tunnel opens the tunnel's port at this node's address to known nodes, and to no other host. Tracking its connections has only costs: both
// sides use random ports, and nothing is translated. Packets that the node forwards to other nodes' tunnel ports are dropped before
// translation, which would give them the node's address: they are sent by pods of other networks on the node, or come from Services that
// the host serves. This holds for the ports of all networks' tunnels, which may have another address of the node than the overlay's.
func (c *Config) tunnel(f fragment) {
	port := c.vxlanPort()
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "untracked-in", Hook: nft.HookPrerouting, Priority: priorityRaw},
		fmt.Sprintf(`iifname != "%s" ip saddr @%s udp dport %d notrack`, Tun, NodesSet, port))
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "untracked-out", Hook: nft.HookOutput, Priority: priorityRaw},
		fmt.Sprintf(`oifname != "%s" ip daddr @%s udp dport %d notrack`, Tun, NodesSet, port))
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "tunnel", Hook: nft.HookInput, Priority: priorityFilter},
		// A node port of this node gives packets of another node's pods that node's address.
		fmt.Sprintf(`udp dport %s ct status dnat drop`, anyOf(c.tunnelPorts())),
		fmt.Sprintf(`iifname != "%s" ip saddr @%s ip daddr %s udp dport %d accept`, Tun, NodesSet, c.NodeIP, port),
		fmt.Sprintf(`udp dport %d drop`, port))
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "tunnel-out", Hook: nft.HookPostrouting, Priority: priorityFirst},
		fmt.Sprintf(`ip daddr @%s ip saddr != %s udp dport %s fib saddr type != local drop`, NodesSet, c.NodeIP, anyOf(c.tunnelPorts())))
}

// anyOf returns ports as the right side of a match in nft's syntax.
func anyOf(ports []uint16) string {
	texts := make([]string, 0, len(ports))
	for _, port := range ports {
		texts = append(texts, strconv.Itoa(int(port)))
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "{ " + strings.Join(texts, ", ") + " }"
}

// reject rejects at once the switch's packets to a Service without endpoints: the switch cannot create packets. It comes before routing,
// which would find that the path returns to where the packet came from. kube-proxy's translations are earlier (-100), and it has none for
// such a Service.
func (c *Config) reject(f fragment) {
	if c.RejectMAC == nil {
		return
	}
	from := fmt.Sprintf(`iifname "%s" ether saddr %s`, Tun, c.RejectMAC)
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "refuse", Hook: nft.HookPrerouting, Priority: priorityFilter},
		from+" meta l4proto tcp reject with tcp reset",
		from+" reject")
}

// guard rejects packets of pods to metadata services, and to the ports of nodes that are closed to pods. The flows do so too, except if a
// host translates (a Service that it serves, a node port at an address that the switch has no flow for) or fragments hide the port.
//
// A pod's connection to a node port of another node arrives there from the address of the pod's own node. So what this node translates to
// a closed port or to a metadata service is rejected whatever its source, except on lo, which has the node's own connections. A connection
// that keeps its port is not rejected, because the flows on the pod's own node reject it. In this way, nodes of some clouds redirect the
// address of a load balancer to themselves, and serve ignition files to new nodes there.
//
// Packets of existing connections meet only the rules that jump: one for each metadata service, and one for all ports.
func (c *Config) guard(f fragment) {
	const metadata, ports = "guard-metadata", "guard-ports"
	var received, forwarded, closed []string
	for _, addr := range c.Metadata {
		received = append(received, fmt.Sprintf("ip daddr %s jump %s", addr, metadata))
	}
	forwarded = slices.Clone(received)
	if len(received) > 0 {
		f.chain(nft.Chain{Family: nft.FamilyInet, Name: metadata},
			"meta l4proto { tcp, udp } th dport 53 return",
			fmt.Sprintf(`iifname "%s" reject`, Tun),
			`iifname != "lo" ct direction original ct status dnat reject`)
	}
	for _, port := range c.ClosedTCP {
		closed = append(closed,
			fmt.Sprintf(`iifname "%s" tcp dport %d reject with tcp reset`, Tun, port),
			fmt.Sprintf(`iifname != "lo" tcp dport %d ct original proto-dst != %d reject with tcp reset`, port, port))
	}
	if len(closed) > 0 {
		const begins = "tcp flags & (syn | ack) == syn"
		f.chain(nft.Chain{Family: nft.FamilyInet, Name: ports}, closed...)
		received = append(received, fmt.Sprintf("%s jump %s", begins, ports))
		// A pod may listen on such a port.
		forwarded = append(forwarded, fmt.Sprintf("%s ip daddr != @%s jump %s", begins, podsSet, ports))
	}
	if len(received) == 0 {
		return
	}
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "guard-forward", Hook: nft.HookForward, Priority: priorityFilter}, forwarded...)
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "guard-input", Hook: nft.HookInput, Priority: priorityFilter}, received...)
}

// forward drops packets that must not leave although the host would forward them: packets of no connection, which nothing would translate,
// so that a pod's address would leave the cluster; and packets to the tunnel's port, which would reach a node from a known node's address.
// The flows drop those too, except if a Service that the host serves has a node's tunnel port as an endpoint, or fragments hide the port:
// here they are reassembled. With egress firewalls and egress IPs, what is translated from a gateway's address is rejected. All other packets
// that leave meet the administrator's own rules.
func (c *Config) forward(f fragment) {
	for _, admin := range Unmanaged() {
		f.add(&admin)
	}
	rules := []string{fmt.Sprintf(`iifname "%s" ct state invalid drop`, Tun)}
	for _, port := range c.tunnelPorts() {
		rules = append(rules, fmt.Sprintf(`iifname "%s" ip daddr != @%s udp dport %d drop`, Tun, podsSet, port))
	}
	if c.Egress {
		// A pod's packet to a gateway, an address of the pods' networks, has passed no egress firewall and is not sent to the node with the
		// project's egress IP. A node port there must not lead it out of the cluster. The switch serves node ports at nodes' own addresses.
		rules = append(rules, fmt.Sprintf(`iifname "%s" ct direction original ct original ip daddr @%s ip daddr != @%s reject`, Tun, podsSet, podsSet))
	}
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "forward", Hook: nft.HookForward, Priority: priorityFilter}, append(rules,
		// An address that no Service has translated by now does not exist. The host would send ARP for it, and a pod that sends to many such
		// addresses would fill the neighbour table, whose limits are the whole machine's.
		fmt.Sprintf(`iifname "%s" oifname "%s" ip daddr %s reject with icmp host-unreachable`, Tun, Tun, c.ServiceNetwork),
		fmt.Sprintf(`iifname "%s" oifname != "%s" jump %s`, Tun, Tun, AdminChain))...)
}

func (c *Config) masquerade(f fragment) {
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "translate", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: prioritySNAT},
		// Pods to outside, first those of projects with egress IPs.
		fmt.Sprintf(`oifname != "%s" ip saddr @%s ip daddr != @%s snat ip to meta mark map @%s`, Tun, podsSet, podsSet, egressSources),
		fmt.Sprintf(`oifname != "%s" ip saddr @%s ip daddr != @%s masquerade`, Tun, podsSet, podsSet),
		// The node to its own host ports, from any of its addresses: the node is the client.
		fmt.Sprintf(`oifname "%s" ip daddr %s ip saddr != %s ct status dnat fib saddr type local snat ip to %s`, Tun, c.LocalSubnet, c.Gateway, c.Gateway),
		// Pod to pod through the host: Services, host ports.
		fmt.Sprintf(`oifname "%s" ip saddr @%s ip saddr != %s masquerade`, Tun, podsSet, c.Gateway),
		// Through the host to another node's pods.
		fmt.Sprintf(`oifname "%s" ip daddr != %s ip saddr != %s masquerade`, Tun, c.LocalSubnet, c.Gateway))
}

// kubeProxyMark is the bit of a packet's mark by which kube-proxy requests masquerading (its --iptables-masquerade-bit, by default 14), in
// all its modes.
const kubeProxyMark = 1 << 14

// fromOutside keeps packets to this node's pods that do not come from the node from getting the gateway's address, which is taken for the
// node's. Those that have to be translated get an address of no host. Replies lose it before they are routed; a packet that still has it is not
// a reply, and is dropped. All others are translated to the address that they have, so that no other program's rules masquerade them, such as
// those of another network on the node for its pods.
func (c *Config) fromOutside(f fragment) {
	if !c.Outside.IsValid() {
		return
	}
	toPods := fmt.Sprintf(`oifname "%s" ip daddr %s`, Tun, c.LocalSubnet)
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "translate-outside", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: priorityFirst},
		fmt.Sprintf(`%s ip saddr @%s ip saddr != %s snat ip to %s`, toPods, podsSet, c.Gateway, c.Outside),
		fmt.Sprintf(`%s fib saddr type != local meta mark & %#08x == %#08x snat ip to %s`, toPods, kubeProxyMark, kubeProxyMark, c.Outside),
		fmt.Sprintf(`%s fib saddr type != local ip saddr != @%s snat ip to ip saddr`, toPods, podsSet))
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "forward-outside", Hook: nft.HookForward, Priority: priorityFilter},
		fmt.Sprintf(`iifname "%s" ip daddr %s drop`, Tun, c.Outside))
}

// RemoteRules returns another node's part of the rules: its address. Two HostSubnets that briefly share an address may both add it.
func (c *Config) RemoteRules(nodeIP netip.Addr) map[nft.Key]nft.Item {
	f := fragment{}
	if nodeIP.Is4() && nodeIP != c.NodeIP {
		f.add(&nft.Element{Family: nft.FamilyInet, Table: table, Set: NodesSet, Match: []string{nodeIP.String()}, Owner: nodeNote})
	}
	return f
}
