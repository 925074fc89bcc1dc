package pipeline

import (
	"net"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/service"
)

// hairpinSource stands for a pod that reaches itself by a Service: a packet from its own address, come from outside, it
// would drop. Nobody else uses the address: link-local addresses are not routed, and none goes beyond table 21.
func hairpinSource() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 1}) }

// RejectMAC is the source address, no pod's, of packets that the host is to reject at once: with a TCP reset, or as an
// unreachable port. The host has to do so before it routes them: forwarded to where they came from, they would first bring
// about a redirect, and the kernel's limit of ICMP errors for each receiver would swallow what matters. Where nobody looks
// at the address, kube-proxy rejects them when it forwards, within that limit.
func RejectMAC() net.HardwareAddr { return net.HardwareAddr{0x0a, 0x58, 0, 0, 0, 1} }

// services adds what Services in the switch need whatever they are.
func (p *program) services() {
	const answer, fresh, back = 110, 10, 500
	ipv4, loop := openflow.EthType(openflow.EthTypeIPv4), TableState
	src, dst := openflow.Whole(openflow.FieldIPv4Src), openflow.Whole(openflow.FieldIPv4Dst)
	p.add(TableState, answer, "a pod answers itself: find the connection by the pod's own address",
		match(openflow.IPDst(host(hairpinSource())), openflow.CTState(0, openflow.CTTrk)),
		openflow.Move(src, dst), openflow.SetField(openflow.RegMasked(RegFlags, FlagHairpin, FlagHairpin)),
		openflow.CT(openflow.CTAction{Zone: p.config.zone(), Table: &loop, NAT: &openflow.NAT{}}))
	p.add(TableState, fresh, "from pods, a new connection, not translated yet",
		match(ipv4, openflow.CTState(openflow.CTTrk|openflow.CTNew, openflow.CTRel|openflow.CTDNAT)), openflow.GotoTable(TableNode))
	p.add(TableState, priorityDefault, "from pods, a connection that is known", nil, openflow.GotoTable(TableEgressPolicy))
	p.add(TableNode, priorityDefault, "no node's address", nil, openflow.GotoTable(TableService))
	hairpin := openflow.RegMasked(RegFlags, FlagHairpin, FlagHairpin)
	p.add(TableRoute, back, "a pod's answer to itself goes back to it",
		match(ipv4, hairpin, openflow.CTState(openflow.CTTrk|openflow.CTRpl, 0)),
		openflow.Move(openflow.Whole(openflow.FieldEthSrc), openflow.Whole(openflow.FieldEthDst)),
		openflow.SetField(openflow.EthSrc(p.config.gatewayMAC())), openflow.InPortAction())
	p.drop(TableRoute, back-1, "an answer to nothing", match(ipv4, hairpin))
}

// hairpin sends back to a pod what a Service has translated to the pod itself.
func (p *program) hairpin(ofport uint32, addr netip.Addr, mac net.HardwareAddr) {
	const priority = 200
	p.add(TableLocal, priority, "by a Service to the pod that it comes from",
		match(openflow.InPort(ofport), openflow.IPSrc(host(addr)), openflow.IPDst(host(addr)), openflow.CTState(openflow.CTTrk|openflow.CTDNAT, 0)),
		openflow.SetField(openflow.IPSrc(host(hairpinSource()))), openflow.SetField(openflow.EthSrc(p.config.gatewayMAC())),
		openflow.SetField(openflow.EthDst(mac)), openflow.InPortAction())
}

// NodeAddresses are where node ports are reached. All are IPv4; others are left out.
type NodeAddresses struct {
	// Local are this node's, Others all other nodes'. An address in both is this node's.
	Local, Others []netip.Addr
}

// Nodes returns the flows that tell nodes' addresses, for node ports. Their owner is OwnerNodes. There are none without
// connection tracking.
func (c *Config) Nodes(a NodeAddresses) map[openflow.Key]openflow.Entry {
	return Fragment(c.NodesRules(a))
}

// NodesRules is Nodes with what each flow is for. An address that is a pod's, a gateway's or a Service's is left out: what
// is sent there is theirs.
func (c *Config) NodesRules(a NodeAddresses) []Rule {
	const priority = 100
	if !c.Conntrack {
		return nil
	}
	p := c.program(OwnerNodes)
	add := func(list []netip.Addr, purpose string, flags uint32) {
		list = slices.SortedFunc(slices.Values(list), netip.Addr.Compare)
		for _, addr := range slices.Compact(list) {
			if !addr.Is4() || c.inCluster(host(addr)) || c.ServiceNetwork.Contains(addr) {
				continue
			}
			p.add(TableNode, priority, purpose, match(openflow.IPDst(host(addr))),
				openflow.SetField(openflow.RegMasked(RegFlags, flags, FlagNode|FlagThisNode)), openflow.GotoTable(TableService))
		}
	}
	add(a.Local, "an address of this node", FlagNode|FlagThisNode)
	add(slices.DeleteFunc(slices.Clone(a.Others), func(addr netip.Addr) bool { return slices.Contains(a.Local, addr) }),
		"an address of another node", FlagNode)
	return p.rules
}

// Flush says which connections a switch is to forget for what service.Outdated found. It comes after the change of the
// flows, and after the datapath has taken note of it (`revalidator/wait` of ovs-appctl): a packet on the old way would make
// the connection known anew, as it was.
func (c *Config) Flush(s service.Stale) openflow.CTFlush {
	zone := c.zone()
	f := openflow.CTFlush{
		Zone: &zone, Proto: uint8(s.Protocol),
		Orig:  openflow.CTTuple{Dst: s.IP, DstPort: s.Port},
		Reply: openflow.CTTuple{Src: s.Endpoint.Addr(), SrcPort: s.Endpoint.Port()},
	}
	if !s.Endpoint.IsValid() { // what was not translated answers from where it was sent to
		f.Reply = openflow.CTTuple{Src: s.IP, SrcPort: s.Port}
	}
	return f
}
