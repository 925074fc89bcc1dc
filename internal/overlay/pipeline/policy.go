package pipeline

import (
	"net/netip"

	"weft.dev/weft/internal/openflow"
)

// ModeNetworkPolicy isolates pods by NetworkPolicies. It needs connection tracking.
const ModeNetworkPolicy Mode = "networkpolicy"

// Bits of RegFlags that policies use.
const (
	// FlagEgress says that the sender is isolated for egress.
	FlagEgress uint32 = 1 << 10
	// FlagIngress says that the receiver is isolated for ingress.
	FlagIngress uint32 = 1 << 11
	// FlagAllowed says that a rule allows the packet by name, not only that nothing isolates.
	FlagAllowed uint32 = 1 << 12
	// FlagKeepEgress says that established connections of the sender go on though it is isolated for egress.
	FlagKeepEgress uint32 = 1 << 13
	// FlagKeepIngress says so of the receiver, isolated for ingress.
	FlagKeepIngress uint32 = 1 << 14
)

// MarkEnded is the bit of a connection's mark (ct_mark) that says that policy has refused it since it began: what answers
// it is refused as well. It goes when the connection is allowed again.
const MarkEnded uint32 = 1 << 0

// MarkUnseen is the bit of a connection's mark that says that nobody saw who began it: it is older than the mode, or than the switch. Its packets
// pass where nothing isolates and where rules name them; that they answer says nothing.
const MarkUnseen uint32 = 1 << 1

// Priorities in tables 27 and 80 where policies judge.
const (
	priorityHost    = 20500 // what a node sends to its own pods
	priorityEnded   = 20410 // answers of connections that have ended
	priorityReply   = 20400 // answers of all others
	priorityItself  = 20300 // a pod to itself
	priorityOpen    = 20210 // pods that everybody may reach, or that may reach everybody
	priorityRule    = 20200 // conjunctions of the first stage; those of others follow, one below the other
	priorityKeep    = 120   // a known connection that no rule allows, of a pod whose connections are kept
	priorityEnd     = 110   // a known connection that no rule allows
	priorityRefused = 100
	priorityFree    = 10 // what is not isolated
)

func (c *Config) policies() bool { return c.Mode == ModeNetworkPolicy }

// flag matches one bit of RegFlags that is set.
func flag(bit uint32) openflow.MatchField { return openflow.RegMasked(RegFlags, bit, bit) }

// setFlags sets those of the bits that are to be on, and clears the others of mask.
func setFlags(on, mask uint32) openflow.Action {
	return openflow.SetField(openflow.RegMasked(RegFlags, on, mask))
}

// mark makes the packet's connection known, if it is not, and sets or clears a bit of its mark.
func (c *Config) mark(value, bit uint32) openflow.Action {
	return openflow.CT(openflow.CTAction{
		Commit: true, Zone: c.zone(), Exec: openflow.Actions{openflow.SetField(openflow.CTMarkMasked(value, bit))},
	})
}

// OutsideSource is the address that the host gives to what it masquerades on its way to pods, but for what is its own. Like the one
// of a pod that reaches itself it is nobody's, so that no node's pods can have it.
func OutsideSource() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 2}) }

// policyStatic adds what policies need whatever they are, but for what delivers.
func (p *program) policyStatic() {
	p.judge(TableEgressPolicy, FlagEgress, FlagKeepEgress, TableRoute)
	p.errorsStatic()
	p.output(TableRoute, priorityHostward, "answers to what the host has masqueraded: it knows to whom", match(openflow.IPDst(host(OutsideSource()))), p.config.toHost()...)
}

// trackPods has the connections of all pods of this node looked for, isolated or not: when a policy comes to isolate one, it is known who
// began its connections. To find out by then would end those that it began itself, because what comes back of them cannot be told from what
// others begin.
func (p *program) trackPods() {
	local, track := p.config.LocalSubnet, p.config.track()
	p.hostsOwn(priorityHostOnly, priorityFromHost)
	p.add(TableState, priorityToPods, "to a pod of this node: find the connection", untracked(openflow.IPDst(local)), track)
	p.add(TableState, priorityFromPods, "from a pod of this node: find the connection", untracked(openflow.IPSrc(local)), track)
}

// judge adds what a table that judges has besides rules: answers pass, and what is isolated gets and sends nothing else.
func (p *program) judge(table uint8, isolated, keeps uint32, next uint8) {
	ipv4, ended, seen := openflow.EthType(openflow.EthTypeIPv4), openflow.CTMarkMasked(MarkEnded, MarkEnded), openflow.CTMarkMasked(0, MarkUnseen)
	for _, kind := range []struct {
		state openflow.CTFlag
		what  string
	}{{openflow.CTRpl, "answers in"}, {openflow.CTRel, "ICMP errors about"}} {
		state := openflow.CTState(openflow.CTTrk|kind.state, openflow.CTInv)
		p.drop(table, priorityEnded, kind.what+" connections that policy has ended", match(ipv4, state, ended))
		p.add(table, priorityReply, kind.what+" connections that were allowed", match(ipv4, state, seen), openflow.GotoTable(next))
	}
	p.add(table, priorityKeep, "a connection that is not allowed any more, and is kept",
		match(ipv4, openflow.RegMasked(RegFlags, isolated|keeps, isolated|keeps), openflow.CTState(openflow.CTTrk|openflow.CTEst, 0), openflow.CTMarkMasked(0, MarkEnded|MarkUnseen)),
		openflow.GotoTable(next))
	// Fragments may hide their ports: that a rule does not allow one says nothing of its connection.
	p.add(table, priorityEnd, "a connection that is not allowed any more ends: its answers are refused as well",
		match(ipv4, flag(isolated), openflow.CTState(openflow.CTTrk|openflow.CTEst, 0), seen, openflow.IPFrag(openflow.FragNo)), p.config.mark(MarkEnded, MarkEnded))
	p.drop(table, priorityRefused, "no rule allows it", match(ipv4, flag(isolated)))
}

// deliverByPolicy judges what pods receive, and delivers it.
func (p *program) deliverByPolicy() {
	p.add(TableIngress, priorityHost, "a node always reaches its pods", match(openflow.IPSrc(host(p.config.Gateway))), openflow.GotoTable(TableDeliver))
	p.judge(TableIngress, FlagIngress, FlagKeepIngress, TableDeliver)
	p.add(TableIngress, priorityFree, "nothing isolates the receiver", nil, openflow.GotoTable(TableDeliver))
	p.output(TableDeliver, priorityFree, "deliver", nil, openflow.OutputReg(openflow.Whole(openflow.FieldReg(RegPort))))
}

// outputJudged adds to a flow that outputs what policies ask for beside the commit of a new connection.
//
// A TCP connection of which the tracker missed the beginning, because it was there before the mode or is older than the switch, is new to
// it by whichever side sends first. It becomes known as such (MarkUnseen) unless a rule allows it by name: otherwise what an isolated pod answers
// in a connection that ends would count as a connection of its own, and the other side's packets as answers to that.
func (p *program) outputJudged(table uint8, priority uint16, purpose string, on conditions, actions []openflow.Action) {
	const middle, again = 2, 3
	ipv4 := openflow.EthType(openflow.EthTypeIPv4)
	if !openflow.NewMatch(on...).Has(openflow.FieldUDPDst) {
		begun := append(match(ipv4, openflow.CTState(openflow.CTTrk|openflow.CTNew, openflow.CTRel|openflow.CTDNAT), openflow.RegMasked(RegFlags, 0, FlagAllowed),
			openflow.TCPFlags(0, tcpSyn)), on...)
		p.add(table, priority+middle, purpose+"; out of the middle of a connection that no rule allows by name", begun, append([]openflow.Action{p.config.mark(MarkUnseen, MarkUnseen)}, actions...)...)
	}
	back := append(match(ipv4, openflow.CTState(openflow.CTTrk, openflow.CTRpl|openflow.CTRel|openflow.CTInv), openflow.CTMarkMasked(MarkEnded, MarkEnded)), on...)
	p.add(table, priority+again, purpose+"; the connection is allowed again", back, append([]openflow.Action{p.config.mark(0, MarkEnded)}, actions...)...)
}

// tcpSyn is the flag of a TCP packet that begins a connection (RFC 9293, 3.1).
const tcpSyn = 0x002

// itself lets a pod reach itself by a Service, however it is isolated.
func (p *program) itself(pod Pod, addr netip.Addr) {
	p.add(TableEgressPolicy, priorityItself, "the pod to itself, by a Service",
		match(openflow.InPort(pod.OFPort), openflow.IPSrc(host(addr)), openflow.IPDst(host(addr)), openflow.CTState(openflow.CTTrk|openflow.CTDNAT, 0)),
		openflow.GotoTable(TableRoute))
}

// sends are the actions that say of a packet's sender how it is isolated; receives those that say so of its receiver.
func (c *Config) sends(pod Pod) []openflow.Action {
	if !c.policies() || !pod.Isolation.Egress {
		return nil
	}
	flags := FlagEgress
	if pod.Isolation.KeepsEgress {
		flags |= FlagKeepEgress
	}
	return []openflow.Action{setFlags(flags, flags)}
}

func (c *Config) receives(pod Pod) []openflow.Action {
	if !c.policies() || !pod.Isolation.Ingress {
		return nil
	}
	flags := FlagIngress
	if pod.Isolation.KeepsIngress {
		flags |= FlagKeepIngress
	}
	return []openflow.Action{setFlags(flags, flags)}
}
