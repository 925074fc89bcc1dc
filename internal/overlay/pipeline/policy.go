package pipeline

import (
	"net/netip"
	"slices"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/transport"
)

// ModeNetworkPolicy isolates pods by NetworkPolicies. It needs connection tracking.
const ModeNetworkPolicy Mode = "networkpolicy"

// Priorities in tables 27 and 80 with policies. Those of rules are used by package conjunction.
const (
	priorityHost    = 20500 // from a node to its own pods
	priorityEnded   = 20410 // replies of connections that policies have ended
	priorityReply   = 20400 // replies of all others
	priorityItself  = 20300 // a pod to itself
	PriorityOpen    = 20210 // pods that everything may reach, or that may reach everything
	PriorityRule    = 20200 // conjunctions of the first stage; those of further stages are below
	priorityKeep    = 120   // a known connection that no rule allows, of a pod whose connections are kept
	priorityEnd     = 110   // a known or translated connection that no rule allows
	priorityRefused = 100
	priorityFree    = 10 // what is not isolated
)

func (c *Config) policies() bool { return c.Mode == ModeNetworkPolicy }

// flag matches packets with the bit of RegFlags set.
func flag(bit uint32) oxm.MatchField { return oxm.RegMasked(layout.RegFlags, bit, bit) }

// setFlags sets the bits of RegFlags in mask to on.
func setFlags(on, mask uint32) action.Action {
	return action.SetField(oxm.RegMasked(layout.RegFlags, on, mask))
}

// mark commits the packet's connection, if it is new, and sets or clears a bit of its mark.
func (c *Config) mark(value, bit uint32) action.Action {
	return action.CT(action.CTAction{
		Commit: true, Zone: c.zone(), Exec: action.Actions{action.SetField(oxm.CTMarkMasked(value, bit))},
	})
}

// OutsideSource is the source address to which the host masquerades packets to pods that are not its own. Like the address of a pod that
// reaches itself, it is used nowhere else, so that no pod of any node can have it.
func OutsideSource() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 2}) }

// policyTables compiles the flows of the mode with NetworkPolicies: TableEgressPolicy and TableIngress
// judge connections, and conntrack keeps the verdicts.
type policyTables struct{ to *program }

// policyStatic adds the flows for policies that depend on no policy, except those that deliver.
func (p policyTables) policyStatic() {
	p.judge(layout.TableEgressPolicy, layout.FlagEgress, layout.FlagKeepEgress, layout.TableRoute)
	p.refuseTranslated(layout.TableEgressPolicy, flag(layout.FlagEgress), oxm.CTState(oxm.CTTrk|oxm.CTNew|oxm.CTDNAT, 0))
	p.to.errorsStatic()
	p.to.output(layout.TableRoute, priorityHostward, "replies to connections that the host masqueraded, and translates back", match(oxm.IPDst(host(OutsideSource()))), p.to.config.toHost()...)
}

// trackPods tracks the connections of all pods of this node, isolated or not. So when a policy isolates a pod, the direction of its
// connections is known. If tracking began only then, it would end connections that the pod itself began, because their replies could not be
// distinguished from packets of others' connections.
func (p policyTables) trackPods() {
	local, track := p.to.config.LocalSubnet, p.to.config.track()
	serviceTables(p).hostsOwn(priorityHostOnly, priorityFromHost)
	p.to.Add(layout.TableState, priorityToPods, "to a pod of this node: look up the connection", untracked(oxm.IPDst(local)), track)
	p.to.Add(layout.TableState, priorityFromPods, "from a pod of this node: look up the connection", untracked(oxm.IPSrc(local)), track)
}

// judge adds the flows of a table that decides by policies, except the rules: replies pass, and packets of isolated pods are dropped unless
// a rule allows them.
func (p policyTables) judge(table uint8, isolated, keeps uint32, next uint8) {
	ipv4, ended, seen := oxm.EthType(oxm.EthTypeIPv4), oxm.CTMarkMasked(layout.MarkEnded, layout.MarkEnded), oxm.CTMarkMasked(0, layout.MarkUnseen)
	for _, kind := range []struct {
		state oxm.CTFlag
		what  string
	}{{oxm.CTRpl, "replies in"}, {oxm.CTRel, "ICMP errors about"}} {
		state := oxm.CTState(oxm.CTTrk|kind.state, oxm.CTInv)
		p.to.drop(table, priorityEnded, kind.what+" connections that policies have ended", match(ipv4, state, ended))
		p.to.Add(table, priorityReply, kind.what+" connections that were allowed", match(ipv4, state, seen), action.GotoTable(next))
	}
	p.to.Add(table, priorityKeep, "a connection that is no longer allowed; its entry is kept",
		match(ipv4, oxm.RegMasked(layout.RegFlags, isolated|keeps, isolated|keeps), oxm.CTState(oxm.CTTrk|oxm.CTEst, 0), oxm.CTMarkMasked(0, layout.MarkEnded|layout.MarkUnseen)),
		action.GotoTable(next))
	// Fragments may lack their ports: that no rule allows one says nothing about its connection.
	p.to.Add(table, priorityEnd, "a connection that is no longer allowed: its replies are rejected too",
		match(ipv4, flag(isolated), oxm.CTState(oxm.CTTrk|oxm.CTEst, 0), seen, oxm.IPFrag(oxm.FragNo)), p.to.config.mark(layout.MarkEnded, layout.MarkEnded))
	p.to.drop(table, priorityRefused, "no rule allows it", match(ipv4, flag(isolated)))
}

// refuseTranslated adds the flow for the first packets of connections to Services that no rule allows. The translation has committed the
// connection before any verdict: unless it is marked, packets of the other end are its replies, and pass by the policies of both ends.
func (p policyTables) refuseTranslated(table uint8, on ...oxm.MatchField) {
	p.to.Add(table, priorityEnd, "a new connection to a Service that no rule allows: it has no replies",
		append(match(oxm.EthType(oxm.EthTypeIPv4), oxm.IPFrag(oxm.FragNo)), on...), p.to.config.mark(layout.MarkEnded, layout.MarkEnded))
}

// deliverByPolicy decides which packets pods receive, and delivers them.
func (p policyTables) deliverByPolicy() {
	p.to.Add(layout.TableIngress, priorityHost, "a node always reaches its pods", match(oxm.IPSrc(host(p.to.config.Gateway))), action.GotoTable(layout.TableDeliver))
	p.judge(layout.TableIngress, layout.FlagIngress, layout.FlagKeepIngress, layout.TableDeliver)
	p.refuseTranslated(layout.TableIngress, flag(layout.FlagIngress), flag(layout.FlagTranslated))
	p.to.Add(layout.TableIngress, priorityFree, "the receiver is not isolated", nil, action.GotoTable(layout.TableDeliver))
	p.to.output(layout.TableDeliver, priorityFree, "deliver", nil, action.OutputReg(oxm.Whole(oxm.FieldReg(layout.RegPort))))
}

// outputJudged adds, to a flow that outputs, what policies need besides the commit of a new connection.
//
// If conntrack has missed the beginning of a TCP connection, because it is older than the mode or the switch, the connection is new to
// conntrack, and begun by the side that sends first. Such a connection is committed with MarkUnseen unless a rule allows it. Otherwise the
// packets of an isolated pod in a connection that policy ends would count as a connection that the pod began, and the other side's packets
// as replies.
func (p policyTables) outputJudged(table uint8, priority uint16, purpose string, on conditions, actions []action.Action) {
	const middle, again = 2, 3
	ipv4 := oxm.EthType(oxm.EthTypeIPv4)
	if !oxm.NewMatch(on...).Has(oxm.FieldUDPDst) {
		begun := append(match(ipv4, oxm.CTState(oxm.CTTrk|oxm.CTNew, oxm.CTRel|oxm.CTDNAT), oxm.RegMasked(layout.RegFlags, 0, layout.FlagAllowed),
			oxm.TCPFlags(0, tcpSyn)), on...)
		p.to.Add(table, priority+middle, purpose+"; midstream, in a connection that no rule names", begun, append([]action.Action{p.to.config.mark(layout.MarkUnseen, layout.MarkUnseen)}, actions...)...)
	}
	back := append(match(ipv4, oxm.CTState(oxm.CTTrk, oxm.CTRpl|oxm.CTRel|oxm.CTInv), oxm.CTMarkMasked(layout.MarkEnded, layout.MarkEnded)), on...)
	p.to.Add(table, priority+again, purpose+"; the connection is allowed again", back, append([]action.Action{p.to.config.mark(0, layout.MarkEnded)}, actions...)...)
}

// datagrams keeps with the host what it serves of UDP: a connection whose first datagram was fragmented. Later datagrams may show their ports,
// but conntrack translates no connection that it knows already. trusted and whose are those of Config.trusted.
func (p policyTables) datagrams(trusted conditions, whose string) {
	const begun, known, ahead = priorityTrusted + 4, 205, 140 // ahead of each Service's flows in TableService
	c := p.to.config
	udp, hosts := match(oxm.EthType(oxm.EthTypeIPv4), oxm.IPProto(uint8(transport.UDP))), oxm.CTMarkMasked(layout.MarkHost, layout.MarkHost)
	commit := action.CT(action.CTAction{Commit: true, Zone: c.zone(), NAT: c.ownSource(), Exec: action.Actions{action.SetField(hosts)}})
	p.to.Add(layout.TableHost, begun, "a connection that begins with fragments: the host serves it"+whose,
		slices.Concat(trusted, udp, match(oxm.IPFrag(oxm.FragYes), oxm.CTState(oxm.CTTrk|oxm.CTNew, oxm.CTRel|oxm.CTDNAT))),
		append([]action.Action{commit}, c.toHost()...)...)
	p.to.Add(layout.TableHost, known, "a connection that began with fragments"+whose, slices.Concat(trusted, udp, match(oxm.CTState(oxm.CTTrk, 0), hosts)), c.toHost()...)
	p.to.Add(layout.TableService, ahead, "a connection that began with fragments stays with the host",
		append(udp, oxm.CTState(oxm.CTTrk|oxm.CTNew, 0), hosts), action.GotoTable(layout.TableEgressPolicy))
}

// tcpSyn is the SYN flag of TCP, which begins a connection (RFC 9293, 3.1).
const tcpSyn = 0x002

// itself lets a pod reach itself by a Service, regardless of its isolation.
func (p policyTables) itself(pod Pod, addr netip.Addr) {
	p.to.Add(layout.TableEgressPolicy, priorityItself, "the pod to itself, by a Service",
		match(oxm.InPort(pod.OFPort), oxm.IPSrc(host(addr)), oxm.IPDst(host(addr)), oxm.CTState(oxm.CTTrk|oxm.CTDNAT, 0)),
		action.GotoTable(layout.TableRoute))
}
