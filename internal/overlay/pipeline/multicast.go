package pipeline

import (
	"cmp"
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

// OwnerMulticastNodes owns the flows of Multicast.Nodes.
const OwnerMulticastNodes reconcile.Owner = "multicast/nodes"

// MulticastOwner returns the owner of Multicast.Project's flows for a VNID.
func MulticastOwner(vnid uint32) reconcile.Owner {
	return reconcile.Owner("multicast/" + strconv.FormatUint(uint64(vnid), 10))
}

// multicastPart is the number of receivers that one flow copies to: each takes 32 bytes, and a flow must fit a message of 64 KiB. The rest
// is in the next part, which RegPart counts.
const multicastPart = 1000

// Multicast compiles the flows of projects' multicast.
type Multicast struct{ *Config }

// on reports whether projects may have multicast. In a flat network they may not, as in OpenShift SDN.
func (c Multicast) on() bool { return c.isolates() || c.policies() }

// MulticastMember is a local pod that receives a project's multicast.
type MulticastMember struct {
	OFPort uint32
	// Addr is its IPv4 address, which determines its MAC address.
	Addr netip.Addr
}

// Project returns the flows that copy a project's multicast to its pods on this node and to the other nodes. Which pods may send it is in
// the pods' own flows (Pod.Multicast). NetworkPolicies do not apply to it.
func (c Multicast) Project(vnid uint32, members []MulticastMember) map[openflow.Key]openflow.Entry {
	return openflow.Fragment(c.ProjectRules(vnid, members))
}

// ProjectRules is Project with the purpose of each flow.
//
// Each pod gets its copy in a frame to its own MAC address, as from a wireless access point: a host accepts multicast to groups that it has
// joined from such a frame as well. In a frame to the group, fragments would be reassembled by the macvlans on pre-plugged ports, in one
// queue that the kernel has for the whole namespace of these ports: of several pods, only one would receive the datagram. A packet does not
// return to its input port, as with any output action.
func (c Multicast) ProjectRules(vnid uint32, members []MulticastMember) []openflow.Rule {
	const priority = 100
	if !c.on() || vnid > vnidMax || len(members) == 0 {
		return nil
	}
	p := c.program(MulticastOwner(vnid))
	of := match(oxm.Reg(layout.RegSource, vnid))
	p.Add(layout.TableMulticastOut, priority, "the project has multicast", of, action.GotoTable(layout.TableMulticastTunnel))
	ordered := slices.SortedFunc(slices.Values(members), func(a, b MulticastMember) int { return cmp.Compare(a.OFPort, b.OFPort) })
	p.copies(layout.TableMulticastLocal, "to the project's pods here", of, receivers{count: len(ordered), each: func(i int) []action.Action {
		return []action.Action{action.SetField(oxm.EthDst(PodMAC(ordered[i].Addr))), action.Output(ordered[i].OFPort)}
	}})
	return p.List
}

// Nodes returns the flows that send the multicast of all projects to other nodes and receive it from them. Hosts with a VNID of
// their own are left out.
func (c Multicast) Nodes(remotes []Remote) map[openflow.Key]openflow.Entry {
	return openflow.Fragment(c.NodesRules(remotes))
}

// NodesRules is Nodes with the purpose of each flow.
func (c Multicast) NodesRules(remotes []Remote) []openflow.Rule {
	const priority, last = 100, 31
	if !c.on() {
		return nil
	}
	p := c.program(OwnerMulticastNodes)
	var nodes []netip.Addr
	for _, r := range remotes {
		if c.CheckRemote(r) != nil || r.FixedVNID != 0 {
			continue
		}
		nodes = append(nodes, r.NodeIP)
		p.Add(layout.TableTunnel, priority, "multicast from the node's pods, for this node's",
			match(oxm.InPort(layout.PortVXLAN), oxm.TunSrc(r.NodeIP), oxm.TunDst(c.NodeIP), oxm.IPSrc(r.Subnet), oxm.IPDst(multicast4())),
			action.Move(oxm.Bits(oxm.FieldTunID, 0, last), oxm.RegBits(layout.RegSource, 0, last)), action.GotoTable(layout.TableMulticastLocal))
	}
	slices.SortFunc(nodes, netip.Addr.Compare)
	nodes = slices.Compact(nodes) // two objects may briefly name the same node
	p.copies(layout.TableMulticastTunnel, "a copy to every other node", nil, receivers{
		count: len(nodes), first: []action.Action{sourceToTunnel()},
		each: func(i int) []action.Action {
			return []action.Action{action.SetField(oxm.TunDst(nodes[i])), action.Output(layout.PortVXLAN)}
		},
		next: layout.TableMulticastLocal,
	})
	return p.List
}

// receivers are the receivers of copies of a packet.
type receivers struct {
	count int
	// first are the actions before the first copy, each returns those of the i-th copy, and next is the table after the last; 0: none.
	first []action.Action
	each  func(i int) []action.Action
	next  uint8
}

// copies adds the flows that copy to all receivers, one after the other: each part except the last resubmits to the next.
func (p *program) copies(table uint8, purpose string, of conditions, r receivers) {
	const priority = 100
	for part, from := uint32(0), 0; part == 0 || from < r.count; part, from = part+1, from+multicastPart {
		var actions []action.Action
		if part == 0 {
			actions = append(actions, r.first...)
		}
		to := min(from+multicastPart, r.count)
		for i := from; i < to; i++ {
			actions = append(actions, r.each(i)...)
		}
		switch {
		case to < r.count:
			actions = append(actions, action.SetField(oxm.Reg(layout.RegPart, part+1)), action.Resubmit(openflow.PortInPort, table))
		case r.next != 0 && part > 0:
			actions = append(actions, action.SetField(oxm.Reg(layout.RegPart, 0)), action.GotoTable(r.next))
		case r.next != 0:
			actions = append(actions, action.GotoTable(r.next))
		}
		p.Add(table, priority, purpose, append(slices.Clip(of), oxm.Reg(layout.RegPart, part)), actions...)
	}
}

// multicastFrom lets a pod send multicast if its project has it.
func (p *program) multicastFrom(pod Pod, addr netip.Addr, mac net.HardwareAddr) {
	const priority = 100
	if !pod.Multicast || !(Multicast{p.config}).on() {
		return
	}
	group, mask := net.HardwareAddr{0x01, 0x00, 0x5e, 0, 0, 0}, net.HardwareAddr{0xff, 0xff, 0xff, 0x80, 0, 0} // RFC 1112, 6.4
	p.Add(layout.TablePod, priority, "multicast from the pod's own address",
		match(oxm.InPort(pod.OFPort), oxm.EthSrc(mac), oxm.EthDstMasked(group, mask), oxm.IPSrc(host(addr)), oxm.IPDst(multicast4())),
		source(pod.VNID), action.GotoTable(layout.TableMulticastOut))
}
