package pipeline

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
)

// EgressWay says how the traffic of one project with egress IPs leaves the cluster, from the view of one node.
type EgressWay struct {
	// VNID is the project's VNID.
	VNID uint32
	// Here says that this node holds an egress IP of the project: the project's traffic from pods of this node, and from nodes that hand it to
	// this one, leaves here.
	Here bool
	// Nodes are the tunnel addresses of known nodes where it leaves otherwise. Each gets a share of the pairs of pod and destination; an
	// address may be listed several times. Empty, and not Here: the traffic is dropped.
	Nodes []netip.Addr
}

// Owner returns the owner of the project's flows.
func (w *EgressWay) Owner() reconcile.Owner { return EgressOwner(w.VNID) }

// EgressOwner returns the owner of EgressIPs' flows for a VNID.
func EgressOwner(vnid uint32) reconcile.Owner {
	return reconcile.Owner("egressip/" + strconv.FormatUint(uint64(vnid), 10))
}

// EgressMAC returns the source MAC address, of no device, of packets that the host sends on from a project's egress IP. By it the host
// identifies the project on every datapath: a packet's mark does not reach the host from the userspace datapath.
func EgressMAC(vnid uint32) net.HardwareAddr {
	return net.HardwareAddr{0x0a, 0x59, 0, byte(vnid >> 16), byte(vnid >> 8), byte(vnid)} //nolint:gosec // its 24 bits
}

// EgressIPs compiles the flows of projects' egress IPs.
type EgressIPs struct{ *Config }

// on reports whether namespaces may have egress IPs: these need VNIDs and connection tracking.
func (c EgressIPs) on() bool { return c.Conntrack && (c.isolates() || c.policies()) }

// Priorities in table 10 of traffic that is not between pods.
const (
	priorityThrough   = 90
	priorityUnthrough = 95
)

// Priorities in table 101.
const (
	priorityEgressAnswer = 150
	priorityEgressHold   = 120
	priorityEgressFind   = 110
	priorityEgressPod    = 100
	priorityEgressClosed = 10
)

// Check returns an error that says why Flows would return no flows.
func (c EgressIPs) Check(w *EgressWay) error {
	if w.VNID > vnidMax {
		return fmt.Errorf("%s: VNID %d is over %d", w.Owner(), w.VNID, vnidMax)
	}
	for _, node := range w.Nodes {
		if !node.Is4() {
			return fmt.Errorf("%s: node address %s is not IPv4", w.Owner(), node)
		}
	}
	return nil
}

// Flows returns the flows and the group for a project's egress IPs: the group to which its pods' flows hand traffic that leaves the
// cluster (Pod.Egress), and, if this node holds an address, the flow that lets other nodes' pods leave by it. If an address moves or a node
// fails, only the group changes.
func (c EgressIPs) Flows(w EgressWay, group uint32) map[openflow.Key]openflow.Entry {
	rules, g := c.Rules(w, group)
	fragment := openflow.Fragment(rules)
	if g != nil {
		fragment[g.Key()] = g
	}
	return fragment
}

// Rules is Flows with the purpose of each flow.
func (c EgressIPs) Rules(w EgressWay, group uint32) ([]openflow.Rule, *openflow.Group) {
	if !c.on() || c.Check(&w) != nil {
		return nil, nil
	}
	p := c.program(w.Owner())
	g := &openflow.Group{ID: group, Type: openflow.GroupAll}
	if w.Here {
		leave := append([]action.Action{action.SetField(oxm.EthSrc(EgressMAC(w.VNID)))}, c.toHost()...)
		p.Add(layout.TableEgressRoute, priorityEgressHold, "from another node, for an egress IP of this node",
			match(oxm.InPort(layout.PortVXLAN), oxm.TunID(uint64(w.VNID)), oxm.EthType(oxm.EthTypeIPv4)), leave...)
		g.Buckets = []openflow.Bucket{{Actions: leave}}
		return p.List, g
	}
	var weight uint16
	if len(w.Nodes) > 1 {
		// By addresses only: a datagram's later fragments have no ports, and must go to the same node as the first. (The switch's own hash,
		// dp_hash, includes ports, and its fields cannot be chosen.)
		weight, g.Type = 1, openflow.GroupSelect
		g.Selection = &openflow.Selection{Method: "hash", Fields: []oxm.Field{oxm.FieldIPv4Src, oxm.FieldIPv4Dst}}
	}
	for _, node := range w.Nodes {
		g.Buckets = append(g.Buckets, openflow.Bucket{Weight: weight, Actions: action.Actions{
			action.SetField(oxm.TunID(uint64(w.VNID))), action.SetField(oxm.TunDst(node)), action.Output(layout.PortVXLAN),
		}})
	}
	return p.List, g
}

// egressTables compiles the flows that egress IPs need besides those of each namespace.
type egressTables struct{ to *program }

// egressStatic adds the flows for egress IPs that do not depend on the addresses.
func (p egressTables) egressStatic() {
	c := p.to.config
	if !(EgressIPs{c}).on() {
		return
	}
	ipv4, tunnel := oxm.EthType(oxm.EthTypeIPv4), oxm.InPort(layout.PortVXLAN)
	for _, network := range c.ClusterNetworks {
		for _, to := range append(slices.Clip(c.ClusterNetworks), c.ServiceNetwork) {
			p.to.drop(layout.TableTunnel, priorityUnthrough, "from pods to pods and Services nothing else passes", match(tunnel, oxm.IPSrc(network), oxm.IPDst(to)))
		}
		p.to.Add(layout.TableClassify, priorityAnswerOut, "through the host from outside to other nodes' pods: answers to what left by this node's egress addresses; the rest the host masquerades",
			match(oxm.InPort(layout.PortTun), oxm.IPDst(network)), source(0), action.GotoTable(layout.TableRemote))
	}
	for _, to := range nonsense() {
		p.to.drop(layout.TableTunnel, priorityUnthrough, to.purpose, match(tunnel, oxm.IPDst(netip.MustParsePrefix(to.prefix))))
	}
	p.to.drop(layout.TableTunnel, priorityUnthrough, "multicast does not leave", match(tunnel, oxm.IPDst(multicast4())))
	answer := flag(layout.FlagAnswer)
	for _, state := range []oxm.CTFlag{oxm.CTRpl, oxm.CTRel} {
		p.to.Add(layout.TableState, priorityStray+20, "a reply from outside, by the node with the egress IP",
			match(ipv4, answer, oxm.CTState(oxm.CTTrk|state, oxm.CTInv)), action.GotoTable(layout.TableRoute))
	}
	p.to.drop(layout.TableState, priorityStray+15, "from outside by another node, and not a reply", match(ipv4, answer, oxm.CTState(oxm.CTTrk, 0)))
	p.to.Add(layout.TableEgressRoute, priorityEgressAnswer, "replies leave by the node that the request came from",
		match(ipv4, oxm.CTState(oxm.CTTrk|oxm.CTRpl, 0), oxm.CTMarkMasked(0, layout.MarkUnseen)), c.toHost()...)
	p.to.drop(layout.TableEgressRoute, priorityEgressClosed, "this node has no egress IP of the project", match(tunnel))
}

// priorityAnswerOut is a priority in table 0, below that of packets from the host to local pods.
const priorityAnswerOut = 290

// egressRemote adds the flows for packets of another node that are not from its pods to this node's: traffic that leaves by this node's
// egress IPs, and replies to traffic that left by the other node's.
func (p egressTables) egressRemote(r Remote, from conditions) {
	c := p.to.config
	if !(EgressIPs{c}).on() {
		return
	}
	p.to.Add(layout.TableTunnel, priorityThrough, "from the node's pods to outside, by an egress IP of this node",
		append(slices.Clip(from), oxm.IPSrc(r.Subnet)), action.GotoTable(layout.TableEgressRoute))
	p.to.Add(layout.TableTunnel, priorityThrough-1, "from outside to the node's egress IPs: look up the connection of the reply",
		append(slices.Clip(from), oxm.IPDst(c.LocalSubnet)), source(0), setFlags(layout.FlagAnswer, layout.FlagAnswer), c.track())
}

// egressPod adds the further flows of a pod whose project has egress IPs. Its connections are all tracked, because replies of a connection
// from outside must leave as if there were no egress IP. The host serves it no Services: traffic to endpoints outside the cluster would
// leave by the node's own address.
func (p egressTables) egressPod(pod Pod, addr netip.Addr, mac net.HardwareAddr) {
	c := p.to.config
	if pod.Egress == 0 || !(EgressIPs{c}).on() {
		return
	}
	const local, served = 110, 220
	again := layout.TableEgressRoute
	from := match(oxm.InPort(pod.OFPort), oxm.IPSrc(host(addr)))
	p.to.Add(layout.TableEgressRoute, priorityEgressFind, "possibly a reply to a connection from outside",
		append(slices.Clip(from), oxm.CTState(0, oxm.CTTrk)), action.CT(action.CTAction{Zone: c.zone(), Table: &again}))
	p.to.output(layout.TableEgressRoute, priorityEgressPod, "by the project's egress IPs, or not at all", from, action.GroupAction(pod.Egress))
	p.to.handOver(served, "to Services that the switch does not serve: the host would send it with the node's address", from, c.toReject()...)
	if c.policies() { // there all connections of pods are tracked
		return
	}
	commit := action.CT(action.CTAction{Commit: true, Zone: c.zone()})
	p.to.Add(layout.TableLocal, local, "from outside to the pod: tracked, so that its replies are recognised",
		match(oxm.InPort(layout.PortTun), oxm.IPDst(host(addr)), oxm.CTState(0, oxm.CTTrk)),
		append([]action.Action{commit}, podPackets{c, &pod}.toLocal(mac)...)...)
	// The userspace datapath's conntrack would take a reset for a new connection, in the direction of the reset.
	p.to.Add(layout.TableLocal, local+1, "a reset, such as the host's to a packet that it rejects, begins no connection",
		match(oxm.InPort(layout.PortTun), oxm.IPDst(host(addr)), oxm.TCPFlags(tcpRst, tcpRst), oxm.CTState(0, oxm.CTTrk)),
		append([]action.Action{action.CT(action.CTAction{Zone: c.zone()})}, podPackets{c, &pod}.toLocal(mac)...)...)
}

// tcpRst is the RST flag of TCP, which ends a connection (RFC 9293, 3.1).
const tcpRst = 0x004
