package pipeline

import (
	"net"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
)

// hairpinSource replaces the source address of a pod that reaches itself by a Service: the pod would drop a packet from outside with its
// own address. The address is used nowhere else: link-local addresses are not routed, and this one does not get beyond table 21.
func hairpinSource() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 1}) }

// RejectMAC is the source MAC address, of no pod, of packets that the host must reject at once: with a TCP reset, or an ICMP error "port
// unreachable". The host must reject them before routing: forwarded back through the same interface, they would first cause a redirect, and
// the kernel's limit of ICMP errors per receiver would suppress the error that matters. If the host has no rule for this address,
// kube-proxy rejects the packets when they are forwarded, within that limit.
func RejectMAC() net.HardwareAddr { return net.HardwareAddr{0x0a, 0x58, 0, 0, 0, 1} }

// Priorities in table 21. Packets pass connection tracking only if they must: each pass costs about a tenth of the throughput. Tracked are
// packets to Services, and packets that may be replies of a connection translated here.
const (
	priorityStray    = 240 // tracked ICMP of no connection: about one that never passed connection tracking
	priorityInvalid  = 230 // tracked packets that conntrack finds invalid
	priorityHairpin  = 220
	priorityHosts    = 211 // to Services that the host serves
	priorityVirtual  = 210 // to the Services' network
	priorityGateway  = 205 // between pods and the host, which tracks its own connections
	priorityAnswers  = 200 // from endpoints, to local pods
	priorityErrors   = 190 // about connections, to local pods
	priorityPassOn   = 180 // everything else from the tunnel and the host
	priorityRequests = 170 // from pods directly to a target
	priorityPods     = 160 // everything else from pods to pods
	priorityParts    = 150 // fragments, which show no ports
	priorityFresh    = 10
	priorityElse     = 5
)

// Priorities in table 21 with policies, where all connections of pods are tracked.
const (
	priorityTargets  = 219 // of the gateway's address; all others are pods' or go to the tunnel unchanged
	priorityHostOnly = 218 // from other nodes' pods to the host
	priorityToPods   = 217
	priorityFromHost = 216
	priorityFromPods = 215
)

// Types of ICMP errors (RFC 792): unreachable, time exceeded, parameter problem. They quote the packet that they are about.
const (
	icmpUnreachable = 3
	icmpExceeded    = 11
	icmpParameter   = 12
)

// track looks up a packet's connection and applies the connection's translation. The packet then meets table 21 again.
func (c *Config) track() action.Action {
	again := layout.TableState
	return action.CT(action.CTAction{Zone: c.zone(), Table: &again, NAT: &action.NAT{}})
}

// untracked matches an IPv4 packet that has not passed connection tracking.
func untracked(on ...oxm.MatchField) conditions {
	return append(match(oxm.EthType(oxm.EthTypeIPv4), oxm.CTState(0, oxm.CTTrk)), on...)
}

// stray matches a tracked ICMP packet that fits no connection.
func stray(on ...oxm.MatchField) conditions {
	const icmp = 1
	return append(match(oxm.EthType(oxm.EthTypeIPv4), oxm.IPProto(icmp), oxm.CTState(oxm.CTTrk|oxm.CTInv, 0)), on...)
}

// serviceTables compiles the flows that tracked connections and Services need besides those of each Service.
type serviceTables struct{ to *program }

// services adds the flows for Services that depend on no Service.
func (p serviceTables) services() {
	c := p.to.config
	track, ipv4 := c.track(), oxm.EthType(oxm.EthTypeIPv4)
	for _, port := range []uint32{layout.PortVXLAN, layout.PortTun} {
		p.to.Add(layout.TableState, priorityStrayIn, "ICMP errors about connections that were not tracked", stray(oxm.InPort(port)), action.GotoTable(layout.TableRoute))
	}
	p.to.Add(layout.TableState, priorityStray, "ICMP errors about connections that were not tracked", stray(), action.GotoTable(layout.TableEgressPolicy))
	p.to.drop(layout.TableState, priorityInvalid, "packets that conntrack finds invalid", match(ipv4, oxm.CTState(oxm.CTTrk|oxm.CTInv, 0)))
	p.to.Add(layout.TableState, priorityHairpin, "a reply of a pod to itself: look up the connection by the pod's own address",
		untracked(oxm.IPDst(host(hairpinSource()))),
		action.Move(oxm.Whole(oxm.FieldIPv4Src), oxm.Whole(oxm.FieldIPv4Dst)),
		action.SetField(oxm.RegMasked(layout.RegFlags, layout.FlagHairpin, layout.FlagHairpin)), track)
	if c.policies() {
		policyTables(p).trackPods()
	} else {
		p.trackServices()
	}
	p.to.Add(layout.TableState, priorityFresh, "from pods, a new connection, not translated yet",
		match(ipv4, oxm.CTState(oxm.CTTrk|oxm.CTNew, oxm.CTRel|oxm.CTDNAT)), action.GotoTable(layout.TableNode))
	p.to.Add(layout.TableState, priorityDefault, "from pods, an established connection", nil, action.GotoTable(layout.TableEgressPolicy))
	p.to.Add(layout.TableNode, priorityDefault, "not a node's address", nil, action.GotoTable(layout.TableService))
	p.hairpinBack()
}

// trackServices tracks only connections that go to Services or may have been translated for one.
func (p serviceTables) trackServices() {
	c := p.to.config
	track, toLocal := c.track(), oxm.IPDst(c.LocalSubnet)
	p.to.Add(layout.TableState, priorityVirtual, "to Services: look up the connection", untracked(oxm.IPDst(c.ServiceNetwork)), track)
	p.hostsOwn(priorityGateway+1, priorityGateway)
	p.to.Add(layout.TableState, priorityGateway, "from pods to the host, which has conntrack of its own", untracked(oxm.IPDst(host(c.Gateway))), action.GotoTable(layout.TableEgressPolicy))
	for _, kind := range icmpErrors() {
		p.to.Add(layout.TableState, priorityErrors, "an ICMP error to a pod, possibly about a translated connection",
			match(oxm.ICMPType(kind), oxm.CTState(0, oxm.CTTrk), toLocal), track)
	}
	p.to.Add(layout.TableState, priorityErrors, "a fragment to a pod: conntrack reassembles it, for its ports", untracked(oxm.IPFrag(oxm.FragYes), toLocal), track)
	for _, network := range c.ClusterNetworks {
		p.to.Add(layout.TableState, priorityPods, "from pods to pods: nothing to translate", untracked(oxm.IPDst(network)), action.GotoTable(layout.TableEgressPolicy))
	}
	p.to.Add(layout.TableState, priorityParts, "a fragment, possibly to a Service", untracked(oxm.IPFrag(oxm.FragYes)), track)
	p.to.Add(layout.TableState, priorityElse, "from pods to other addresses, possibly a node port or an external IP", untracked(), action.GotoTable(layout.TableNode))
}

// hostsOwn lets the host's connections with other nodes' pods pass untracked: the host tracks them itself.
func (p serviceTables) hostsOwn(toHost, fromHost uint16) {
	gateway := host(p.to.config.Gateway)
	p.to.Add(layout.TableState, toHost, "from the tunnel to the host, which has conntrack of its own",
		untracked(oxm.InPort(layout.PortVXLAN), oxm.IPDst(gateway)), action.GotoTable(layout.TableRoute))
	p.to.Add(layout.TableState, fromHost, "from the host itself, which has conntrack of its own",
		untracked(oxm.InPort(layout.PortTun), oxm.IPSrc(gateway)), action.GotoTable(layout.TableRoute))
}

// hairpinBack returns a pod's reply to itself.
func (p serviceTables) hairpinBack() {
	const back = 500
	ipv4, hairpin := oxm.EthType(oxm.EthTypeIPv4), oxm.RegMasked(layout.RegFlags, layout.FlagHairpin, layout.FlagHairpin)
	p.to.Add(layout.TableRoute, back, "a reply of a pod to itself",
		match(ipv4, hairpin, oxm.CTState(oxm.CTTrk|oxm.CTRpl, 0)),
		action.Move(oxm.Whole(oxm.FieldEthSrc), oxm.Whole(oxm.FieldEthDst)),
		action.SetField(oxm.EthSrc(p.to.config.gatewayMAC())), action.InPortAction())
	p.to.drop(layout.TableRoute, back-1, "a reply without a connection", match(ipv4, hairpin))
}

// Target is a place of endpoints: a port, of the pods of a cluster network or of one address elsewhere.
type Target struct {
	At       netip.Prefix
	Protocol transport.Protocol
	Port     uint16
}

// Target returns the target that an endpoint belongs to.
func (c Services) Target(protocol transport.Protocol, endpoint netip.AddrPort) Target {
	at := host(endpoint.Addr())
	for _, network := range c.ClusterNetworks {
		if network.Contains(endpoint.Addr()) && endpoint.Addr() != c.Gateway { // of the host, only these ports are tracked
			at = network
		}
	}
	return Target{At: at, Protocol: protocol, Port: endpoint.Port()}
}

// Targets returns the flows that track connections of targets. Their owner is OwnerTargets. A reply of an endpoint looks like any packet
// from there. Packets from pods directly to a target are tracked as well, so that replies to them are not taken for packets of no
// connection. All other packets between pods are not tracked.
func (c Services) Targets(targets []Target) map[openflow.Key]openflow.Entry {
	return openflow.Fragment(c.TargetsRules(targets))
}

// TargetsRules is Targets with the purpose of each flow.
func (c Services) TargetsRules(targets []Target) []openflow.Rule {
	if !c.Conntrack {
		return nil
	}
	p := c.program(OwnerTargets)
	for _, t := range targets {
		if t.Protocol == transport.SCTP && !c.SCTP {
			continue
		}
		from, to := ports(t.Protocol, t.Port)
		var answers, requests uint16 = priorityAnswers, priorityRequests
		switch gateway := t.At == host(c.Gateway); {
		case c.policies() && !gateway:
			continue // all packets of pods are tracked in any case
		case c.policies():
			answers, requests = priorityTargets, priorityTargets
		case gateway:
			answers, requests = priorityGateway+2, priorityGateway+2
		}
		p.Add(layout.TableState, answers, "possibly an endpoint's reply to a pod", untracked(oxm.IPSrc(t.At), oxm.IPDst(c.LocalSubnet), from), c.track())
		p.Add(layout.TableState, requests, "from a pod to an address that is also an endpoint's", untracked(oxm.IPDst(t.At), to), c.track())
	}
	return p.List
}

// ports returns the matches for a port as the source and as the destination.
func ports(protocol transport.Protocol, port uint16) (from, to oxm.MatchField) {
	switch protocol {
	case transport.TCP:
		return oxm.TCPSrc(port), oxm.TCPDst(port)
	case transport.UDP:
		return oxm.UDPSrc(port), oxm.UDPDst(port)
	default:
		return oxm.SCTPSrc(port), oxm.SCTPDst(port)
	}
}

// hairpin returns to a pod what a Service has translated to the pod itself.
func (p serviceTables) hairpin(ofport uint32, addr netip.Addr, mac net.HardwareAddr) {
	const priority = 200
	p.to.Add(layout.TableLocal, priority, "by a Service back to the pod that sent it",
		match(oxm.InPort(ofport), oxm.IPSrc(host(addr)), oxm.IPDst(host(addr)), oxm.CTState(oxm.CTTrk|oxm.CTDNAT, 0)),
		action.SetField(oxm.IPSrc(host(hairpinSource()))), action.SetField(oxm.EthSrc(p.to.config.gatewayMAC())),
		action.SetField(oxm.EthDst(mac)), action.InPortAction())
}

// NodeAddresses are the addresses at which node ports are reached. Only IPv4 addresses are used.
type NodeAddresses struct {
	// Local are this node's addresses, Others all other nodes'. An address in both is this node's.
	Local, Others []netip.Addr
}

// Nodes returns the flows that mark nodes' addresses, for node ports. Their owner is OwnerNodes. Without connection tracking there are
// none.
func (c Services) Nodes(a NodeAddresses) map[openflow.Key]openflow.Entry {
	return openflow.Fragment(c.NodesRules(a))
}

// NodesRules is Nodes with the purpose of each flow. An address of a pod, a gateway or a Service is left out: packets to it are for them.
func (c Services) NodesRules(a NodeAddresses) []openflow.Rule {
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
			p.Add(layout.TableNode, priority, purpose, match(oxm.IPDst(host(addr))),
				action.SetField(oxm.RegMasked(layout.RegFlags, flags, layout.FlagNode|layout.FlagThisNode)), action.GotoTable(layout.TableService))
		}
	}
	add(a.Local, "an address of this node", layout.FlagNode|layout.FlagThisNode)
	add(slices.DeleteFunc(slices.Clone(a.Others), func(addr netip.Addr) bool { return slices.Contains(a.Local, addr) }),
		"an address of another node", layout.FlagNode)
	return p.List
}

// FlushPod returns the conntrack flushes for a pod's address: of connections that began there, and of those whose replies came from there.
func (c Services) FlushPod(addr netip.Addr) []openflow.CTFlush {
	zone := c.zone()
	return []openflow.CTFlush{{Zone: &zone, Orig: openflow.CTTuple{Src: addr}}, {Zone: &zone, Reply: openflow.CTTuple{Src: addr}}}
}

// FlushTarget returns the conntrack flush for the connections to a target. Call it as Flush, after the target's flows are removed.
func (c Services) FlushTarget(t Target) openflow.CTFlush {
	f := c.Flush(service.Stale{Protocol: t.Protocol, Endpoint: netip.AddrPortFrom(t.At.Addr(), t.Port)})
	if !t.At.IsSingleIP() {
		f.Reply.Src = netip.Addr{} // the zone has connections of pods only
	}
	return f
}

// Flush returns the conntrack flush for an outdated connection (service.Outdated). Call it after the change of the flows, and after the
// datapath has processed that change (`revalidator/wait` of ovs-appctl): a packet on the old path would commit the connection again, as it
// was.
func (c Services) Flush(s service.Stale) openflow.CTFlush {
	zone := c.zone()
	f := openflow.CTFlush{
		Zone: &zone, Proto: uint8(s.Protocol),
		Orig:  openflow.CTTuple{Dst: s.IP, DstPort: s.Port},
		Reply: openflow.CTTuple{Src: s.Endpoint.Addr(), SrcPort: s.Endpoint.Port()},
	}
	if !s.Endpoint.IsValid() { // replies to an untranslated packet come from its destination
		f.Reply = openflow.CTTuple{Src: s.IP, SrcPort: s.Port}
	}
	return f
}
