package pipeline

import (
	"net"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
)

// PodRules returns the rules that open a pod's port.
func PodRules(pod *Pod) []openflow.Rule {
	p := newProgram(pod.Owner)
	high, low := words(pod.Network)
	enter := func(out uint32, table uint8) []action.Action {
		actions := []action.Action{set(RegZone, uint32(pod.Zone)), set(RegOut, out)}
		if pod.Tracked {
			actions = append(actions, set(RegNetwork, high), set(RegNetwork+1, low))
		}
		return append(actions, action.GotoTable(table))
	}
	p.Add(TableClassify, priorityPod, "from the pod", match(oxm.InPort(pod.OFPort)), enter(pod.Patch, TableFromPod)...)
	p.Add(TableClassify, priorityPod, "from the pod's network", match(oxm.InPort(pod.Patch)), enter(pod.OFPort, TableToPod)...)
	// The kernel reassembles fragments in frames to groups before it knows whose they are, in one queue for the veth peers of all pre-plugged
	// pairs (macvlan_handle_frame): a pod would get another tenant's part of a datagram. In frames to its own MAC, the pod reassembles them.
	group := net.HardwareAddr{1, 0, 0, 0, 0, 0}
	p.Add(TableClassify, priorityGuard, "fragments to a group, from the pod's network",
		match(oxm.InPort(pod.Patch), oxm.EthType(oxm.EthTypeIPv4), oxm.IPFrag(oxm.FragYes), oxm.EthDstMasked(group, group)),
		append([]action.Action{action.SetField(oxm.EthDst(pod.MAC))}, enter(pod.OFPort, TableToPod)...)...)
	for _, addr := range pod.Addresses {
		if addr.Is4() {
			p.host(pod, addr)
		}
	}
	if pod.Tracked {
		p.judged(pod)
	}
	return p.List
}

// host adds the rules between a pod's address and the host.
func (p *program) host(pod *Pod, addr netip.Addr) {
	zone, own := zoneField(), single(addr)
	answer, service := TableAnswer, TableFromService
	p.Add(TableFromPod, prioritySpecial, "from the pod's own address to the host, if it is an answer",
		match(oxm.InPort(pod.OFPort), oxm.EthSrc(pod.MAC), oxm.EthDst(HostMAC()), oxm.IPSrc(own), oxm.IPDst(HostAddresses())),
		action.CT(action.CTAction{ZoneField: &zone, Table: &answer}))
	p.Add(TableFromHost, priorityPod, "from the host to the pod", match(oxm.IPSrc(single(HostAddress())), oxm.IPDst(own)),
		action.SetField(oxm.EthDst(pod.MAC)),
		action.CT(action.CTAction{Commit: true, Zone: pod.Zone}), action.Output(pod.OFPort))
	for _, port := range pod.Published {
		if pod.Ingress != nil && !pod.Ingress.admits(OutsideAddress(), port) {
			continue
		}
		p.Add(TableFromHost, priorityPod, "from elsewhere to a host port of the pod",
			append(match(oxm.IPSrc(single(OutsideAddress())), oxm.IPDst(own)), port.exact().match()...),
			action.SetField(oxm.EthDst(pod.MAC)),
			action.CT(action.CTAction{Commit: true, Zone: pod.Zone}), action.Output(pod.OFPort))
	}
	p.Add(TableFromHost, priorityClosed, "from the host for a Service, if it is an answer", match(oxm.IPDst(own)),
		action.SetField(oxm.EthDst(pod.MAC)), set(RegOut, pod.OFPort),
		action.CT(action.CTAction{Zone: pod.Zone, Table: &service}))
	from := match(oxm.InPort(pod.OFPort), oxm.EthSrc(pod.MAC), oxm.IPSrc(own))
	pass := []action.Action{
		action.SetField(oxm.EthDst(HostMAC())), action.CT(action.CTAction{Commit: true, ZoneField: &zone}), action.Output(HostPort),
	}
	if pod.Egress == nil {
		p.Add(TableHostService, priorityPod, "to a Service that the host serves", from, pass...)
		return
	}
	for on := range pod.Egress.matches(oxm.IPDst, oxm.EthType(oxm.EthTypeIPv4)) {
		p.Add(TableHostService, priorityPod, "to a Service that the host serves, as a policy allows", append(append([]oxm.MatchField{}, from...), on...), pass...)
	}
}

// judged adds the rules of a pod whose connections are tracked. Those of IPv6 are tracked only for an isolated pod: they have no Services.
func (p *program) judged(pod *Pod) {
	zone := zoneField()
	own := oxm.Reg(RegZone, uint32(pod.Zone))
	for _, side := range []struct {
		port          uint32
		enters, table uint8
		judges        uint8
		passes        uint8
		allowed       *Allowed
		peer          func(netip.Prefix) oxm.MatchField
	}{
		{pod.OFPort, TableFromPod, TableService, TableEgress, TableEndpoint, pod.Egress, oxm.IPDst},
		{pod.Patch, TableToPod, TableState, TableIngress, TableOut, pod.Ingress, oxm.IPSrc},
	} {
		p.Add(side.enters, priorityTracked, "the pod's connections are tracked", match(oxm.InPort(side.port), oxm.EthType(oxm.EthTypeIPv4)),
			action.CT(action.CTAction{ZoneField: &zone, NAT: &action.NAT{}, Table: &side.table}))
		if pod.Ingress != nil || pod.Egress != nil {
			p.Add(side.enters, priorityTracked, "and those of IPv6, because the pod is isolated", match(oxm.InPort(side.port), oxm.EthType(oxm.EthTypeIPv6)),
				action.CT(action.CTAction{ZoneField: &zone, Table: &side.table}))
		}
		if side.allowed == nil {
			continue
		}
		for _, ip := range families() {
			p.Add(side.judges, priorityClosed, "the pod is isolated", match(ip, own))
		}
		if side.judges == TableEgress {
			p.Add(side.judges, priorityClosed+1, "a new connection to a Service that no policy allows: it has no answers",
				match(oxm.EthType(oxm.EthTypeIPv4), own, oxm.CTState(oxm.CTTrk|oxm.CTNew|oxm.CTDNAT, 0)), markRefused(1))
		}
		for on := range side.allowed.matches(side.peer, families()...) {
			p.Add(side.judges, priorityPod, "a policy allows it", append(match(own), on...), action.GotoTable(side.passes))
		}
	}
}

// matches yields the match of each combination of a peer and a port that is allowed, each once, for these families.
func (a *Allowed) matches(peer func(netip.Prefix) oxm.MatchField, ip ...oxm.MatchField) func(yield func([]oxm.MatchField) bool) {
	return func(yield func([]oxm.MatchField) bool) {
		seen := map[string]bool{}
		for _, rule := range a.Rules {
			for _, on := range rule.matches(peer, ip) {
				text := oxm.NewMatch(on...).String()
				if seen[text] {
					continue
				}
				seen[text] = true
				if !yield(on) {
					return
				}
			}
		}
	}
}

func (a *Allow) matches(peer func(netip.Prefix) oxm.MatchField, ip []oxm.MatchField) [][]oxm.MatchField {
	var peers [][]oxm.MatchField
	if a.AnyPeer {
		for _, family := range ip {
			peers = append(peers, match(family))
		}
	} else {
		for _, prefix := range a.Peers {
			if prefix.Addr().Is4() || len(ip) > 1 {
				peers = append(peers, match(peer(prefix)))
			}
		}
	}
	if a.AnyPort {
		return peers
	}
	var all [][]oxm.MatchField
	for _, on := range peers {
		for _, port := range a.Ports {
			all = append(all, append(append([]oxm.MatchField{}, on...), port.match()...))
		}
	}
	return all
}

// admits reports whether connections from an address to a port are allowed.
func (a *Allowed) admits(peer netip.Addr, to Port) bool {
	return slices.ContainsFunc(a.Rules, func(r Allow) bool {
		from := r.AnyPeer || slices.ContainsFunc(r.Peers, func(p netip.Prefix) bool { return p.Contains(peer) })
		return from && (r.AnyPort || slices.ContainsFunc(r.Ports, func(p Port) bool {
			return p.Protocol == to.Protocol && to.Number&p.Mask == p.Number&p.Mask
		}))
	})
}
