package pipeline

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline/layout"
)

// With policies, an ICMP error passes as part of the connection that it quotes (judge). Conntrack does not check its sender. So a pod's
// errors are checked at the pod's own node, by the port that they come in by: they must quote a connection of the pod, or are dropped. A
// connection is the pod's if its source or destination is the pod's address, or if a Service on this node translated it to the pod, whose
// address is then in the connection's label. Errors from outside, from the tunnel and from the host pass: routers send them.

// Priorities in table 21 of ICMP errors that have passed connection tracking.
const (
	priorityStrayIn    = 243 // of no connection, from the tunnel and from the host
	priorityStrayHost  = 242 // of no tracked connection, to the host, which tracks its own
	priorityStrayError = 241 // of no connection, to pods
	priorityOwnError   = 238 // of a connection of the pod
	priorityErrorIn    = 237 // from the tunnel and from the host
	priorityAnyError   = 236 // of connections of others
)

// icmpErrors returns the types of ICMP errors that a pod may send.
func icmpErrors() []uint8 { return []uint8{icmpUnreachable, icmpExceeded, icmpParameter} }

// quoting matches a tracked ICMP error that quotes a known connection.
func quoting(on ...oxm.MatchField) conditions {
	const icmp = 1
	return append(match(oxm.EthType(oxm.EthTypeIPv4), oxm.IPProto(icmp), oxm.CTState(oxm.CTTrk|oxm.CTRel, oxm.CTInv)), on...)
}

// errorsStatic drops pods' ICMP errors that no pod's own flows admit.
func (p *program) errorsStatic() {
	c := p.config
	for _, kind := range icmpErrors() {
		lost := match(oxm.ICMPType(kind), oxm.CTState(oxm.CTTrk|oxm.CTInv, 0))
		p.Add(layout.TableState, priorityStrayHost, "an ICMP error of a pod to the host, which has conntrack of its own",
			append(slices.Clip(lost), oxm.IPDst(host(c.Gateway))), action.GotoTable(layout.TableEgressPolicy))
		for _, network := range c.ClusterNetworks {
			p.drop(layout.TableState, priorityStrayError, "an ICMP error of a pod to a pod, about no connection", append(slices.Clip(lost), oxm.IPDst(network)))
		}
	}
	for _, port := range []uint32{layout.PortVXLAN, layout.PortTun} {
		p.Add(layout.TableState, priorityErrorIn, "an ICMP error from a router, from the host, or from a pod whose node checked it",
			quoting(oxm.InPort(port)), action.GotoTable(layout.TableRoute))
	}
	p.drop(layout.TableState, priorityAnyError, "an ICMP error of a pod about a connection that is not its own", quoting())
}

// errorsOf admits a pod's ICMP errors about its own connections.
func (p *program) errorsOf(pod *Pod, addr netip.Addr, deliver []action.Action) {
	const translated = 110
	port, at := oxm.InPort(pod.OFPort), host(addr)
	for _, end := range []oxm.MatchField{oxm.CTNwSrc(at), oxm.CTNwDst(at), endpointLabel(addr)} {
		p.Add(layout.TableState, priorityOwnError, "an ICMP error of the pod about its own connection", quoting(port, end), action.GotoTable(layout.TableEgressPolicy))
	}
	// If policy refuses the connection, the mark is set again (refuseTranslated).
	record := action.Actions{action.SetField(endpointLabel(addr)), action.SetField(oxm.CTMarkMasked(0, layout.MarkEnded))}
	label := action.CT(action.CTAction{Commit: true, Zone: p.config.zone(), Exec: record})
	p.Add(layout.TableLocal, translated, "a new connection to a Service: record the pod as its endpoint",
		match(oxm.IPDst(at), oxm.CTState(oxm.CTTrk|oxm.CTNew|oxm.CTDNAT, oxm.CTRel)),
		append([]action.Action{label, setFlags(layout.FlagTranslated, layout.FlagTranslated)}, deliver...)...)
}

// endpointLabel matches or sets the part of a connection's label with the address of the endpoint on this node that a Service translated
// to.
func endpointLabel(addr netip.Addr) oxm.MatchField {
	const bits = 0xffffffff
	return oxm.CTLabelMasked([2]uint64{0, uint64(binary.BigEndian.Uint32(addr.AsSlice()))}, [2]uint64{0, bits})
}
