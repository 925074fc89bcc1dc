package nftables

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/transport"
)

// Config is the configuration of the chains.
type Config struct {
	// Bridge is the name of the pods' bridge.
	Bridge string
	// Group is the device group of the pods' ports, for [Guard].
	Group uint32
}

// priority is that of the base chains: after the translation of addresses (NF_IP_PRI_NAT_DST), before other programs' filter chains, and after
// the chains of earlier releases (-10 and -9), which the transaction that adds these chains removes: a packet that it finds between two chains
// is judged by the ones or by the others.
const priority = -8

// Judged is the bit of the mark of packets that both directions have allowed, and of forwarded packets of established connections. It
// is set while the packet is in the node. The guard of the bridge drops packets between ports without it. kube-proxy (bits 14, 15) and
// Weft's overlay use other bits.
const Judged = 1 << 27

// allowed is the bit of the mark with which the chain of a policy reports to the chains that led to it that egress is allowed. It is set
// only between these chains.
const allowed = 1 << 26

// Items is a fragment of the table.
type Items = map[nftnl.Key]nftnl.Item

// Names of the static chains, maps and sets. The number of the address family is appended to names of maps and sets.
const (
	chainForward   = "forward"
	chainForwarded = "forwarded"
	chainInput     = "input"
	chainReceived  = "received"
	chainOutput    = "output"
	chainEgress    = "egress"
	chainIngress   = "ingress"
	chainMid       = "midstream"
	chainFrom      = "midstream-from"
	chainTo        = "midstream-to"
	chainGuard     = "guard"
	mapEgress      = "from"
	mapIngress     = "to"
	setSelf        = "self"
)

// family is an address family with its fields.
type family struct {
	suffix              string
	source, destination nftnl.Field
}

func families() [2]family {
	return [2]family{
		{"4", nftnl.IPSource, nftnl.IPDestination},
		{"6", nftnl.IP6Source, nftnl.IP6Destination},
	}
}

func (f family) from() nftnl.Field { return f.source }

func (f family) to() nftnl.Field { return f.destination }

func familyOf(address netip.Addr) family {
	if address.Unmap().Is4() {
		return families()[0]
	}
	return families()[1]
}

// mostAddresses bounds the addresses of a family that the pods of a node have. A bridge has 1,023 ports (BR_MAX_PORTS of the kernel's
// br_private.h).
const mostAddresses = 8192

// Static compiles the items that do not depend on policies. No packet crosses them without [Gates].
//
// Their rules refer to conntrack also without Gates, so that the kernel tracks connections: those that exist when a pod is isolated are known
// then.
func Static(config Config) Items { return compileStatic(config, false) }

// Gates compiles the base chains, which lead packets to the chains of [Static]. They exist while a pod of the node is isolated or not known:
// without such a pod, they would drop nothing.
func Gates(config Config) Items {
	return nftnl.Items(
		&nftnl.Chain{Name: chainForward, Hook: nftnl.HookForward, Priority: priority},
		&nftnl.Rules{Chain: chainForward, Rules: []nftnl.Rule{{Verdict: nftnl.Goto(chainForwarded)}}},
		&nftnl.Chain{Name: chainInput, Hook: nftnl.HookInput, Priority: priority},
		&nftnl.Rules{Chain: chainInput, Rules: []nftnl.Rule{{Verdict: nftnl.Goto(chainReceived)}}},
	)
}

// compileStatic compiles the items that do not depend on policies. With judge, the packets of established connections are judged as well, in
// the direction in which the connection began; replies pass.
func compileStatic(config Config, judge bool) Items {
	in, out := nftnl.Is(nftnl.InDevice, nftnl.Name(config.Bridge)), nftnl.Is(nftnl.OutDevice, nftnl.Name(config.Bridge))
	items := []nftnl.Item{
		&nftnl.Chain{Name: chainForwarded},
		&nftnl.Chain{Name: chainReceived},
		&nftnl.Chain{Name: chainEgress},
		&nftnl.Chain{Name: chainIngress},
		&nftnl.Chain{Name: alwaysChain(policy.Egress)},
		&nftnl.Chain{Name: alwaysChain(policy.Ingress)},
		&nftnl.Chain{Name: chainMid},
		&nftnl.Chain{Name: chainFrom},
		&nftnl.Chain{Name: chainTo},
	}
	for _, f := range families() {
		items = append(items,
			&nftnl.Set{Name: mapEgress + f.suffix, Fields: []nftnl.Field{f.source}, Verdicts: true, Most: mostAddresses},
			&nftnl.Set{Name: mapIngress + f.suffix, Fields: []nftnl.Field{f.destination}, Verdicts: true, Most: mostAddresses},
			&nftnl.Set{Name: setSelf + f.suffix, Fields: []nftnl.Field{f.source, f.destination}},
		)
	}
	// Most packets belong to established connections: they leave the chain as early as possible. In forwarded, they all get the bit, also
	// those that no port of the bridge sends: to compare names of devices costs more, and the bit means nothing elsewhere.
	established := []nftnl.Rule{{
		Matches: []nftnl.Match{nftnl.AnyBit(nftnl.ConntrackState, nftnl.StateEstablished|nftnl.StateRelated)}, Verdict: nftnl.Accept(),
	}}
	if judge {
		reply := nftnl.Is(nftnl.ConntrackDirection, nftnl.Byte(nftnl.DirectionReply))
		established = []nftnl.Rule{
			{Matches: []nftnl.Match{nftnl.AnyBit(nftnl.ConntrackState, nftnl.StateEstablished), reply}, Verdict: nftnl.Accept()},
			{Matches: []nftnl.Match{nftnl.AnyBit(nftnl.ConntrackState, nftnl.StateRelated)}, Verdict: nftnl.Accept()},
		}
	}
	passed := slices.Clone(established)
	for i := range passed {
		passed[i].Mark, passed[i].MarkMask = Judged, Judged
	}
	// A packet that is dropped later has the bit in vain, so that setting it needs no rule of its own behind the others.
	mark := nftnl.Rule{Matches: []nftnl.Match{in, out}, Mark: Judged, MarkMask: Judged}
	mid := nftnl.Rule{Matches: midstream(), Verdict: nftnl.Jump(chainMid)}
	from := nftnl.Rule{Matches: []nftnl.Match{in}, Verdict: nftnl.Jump(chainFrom)}
	to := nftnl.Rule{Matches: []nftnl.Match{out}, Verdict: nftnl.Jump(chainTo)}
	others := nftnl.Rule{Matches: []nftnl.Match{nftnl.Not(in)}, Verdict: nftnl.Accept()} // among them tunnels' packets
	egress := nftnl.Rule{Matches: []nftnl.Match{in}, Verdict: nftnl.Jump(chainEgress)}
	ingress := nftnl.Rule{Matches: []nftnl.Match{out}, Verdict: nftnl.Goto(chainIngress)}
	for chain, rules := range map[string][]nftnl.Rule{
		chainForwarded: append(passed, mark, mid, egress, ingress),
		chainReceived:  slices.Concat([]nftnl.Rule{others}, established, []nftnl.Rule{{Verdict: nftnl.Jump(chainEgress)}}),
		chainEgress:    judged(policy.Egress),
		chainIngress:   judged(policy.Ingress),
		chainMid:       {from, to},
		chainFrom:      lookup(mapIngress, family.from),
		chainTo:        lookup(mapEgress, family.to),

		alwaysChain(policy.Egress):  always(policy.Egress),
		alwaysChain(policy.Ingress): always(policy.Ingress),
	} {
		items = append(items, &nftnl.Rules{Chain: chain, Rules: rules})
	}
	return nftnl.Items(items...)
}

// midstream matches TCP packets that do not open a connection, of connections that conntrack does not have. The packets that open one, and
// those of other protocols, fail the first matches.
func midstream() []nftnl.Match {
	return []nftnl.Match{
		nftnl.Is(nftnl.L4Proto, nftnl.Proto(uint8(transport.TCP))), nftnl.Not(nftnl.AnyBit(nftnl.TCPFlags, nftnl.SYN)),
		nftnl.AnyBit(nftnl.ConntrackState, nftnl.StateNew),
	}
}

// lookup returns the rules that look up an address of a packet in the verdict map of each family.
//
// The chains midstream-from and midstream-to treat packets of [midstream] as replies: they look up the sender in the map of destinations,
// and the receiver in that of sources. The chains of pods that are isolated for the direction in which the connection may have begun drop
// such packets, and all others return. Otherwise the replying side of a revoked connection would make a new connection of it.
func lookup(verdicts string, address func(family) nftnl.Field) []nftnl.Rule {
	var rules []nftnl.Rule
	for _, f := range families() {
		rules = append(rules, nftnl.Rule{Map: verdicts + f.suffix, MapFields: []nftnl.Field{address(f)}})
	}
	return rules
}

// guardPriority is the priority of the guard: after br_netfilter (0, enum nf_br_hook_priorities of the kernel's netfilter_bridge.h),
// which passes packets through the chains of family inet.
const guardPriority = 200

// Guard compiles a table of family bridge. It drops IP packets from pods to other ports of the bridge that no chain has judged, so it must exist
// only while [Gates] do. Such packets would pass while net.bridge's nf_call_iptables is off for the bridge, or br_netfilter is not loaded.
func Guard(config Config) Items {
	const ipv4, ipv6 = 0x0800, 0x86dd
	rules := []nftnl.Rule{ // the rule for most packets is the first
		{Matches: []nftnl.Match{nftnl.AnyBit(nftnl.Mark, Judged)}, Verdict: nftnl.Accept()},
		{Matches: []nftnl.Match{nftnl.Not(nftnl.Is(nftnl.InGroup, nftnl.Bits(config.Group)))}, Verdict: nftnl.Accept()},
	}
	for _, number := range []uint16{ipv4, ipv6} {
		rules = append(rules, nftnl.Rule{
			Matches: []nftnl.Match{nftnl.Is(nftnl.EtherType, nftnl.Port(number))}, Counter: true, Verdict: nftnl.Drop(), Owner: "not judged by policies",
		})
	}
	return nftnl.Items(
		&nftnl.Chain{Name: chainGuard, Hook: nftnl.HookForward, Priority: guardPriority},
		&nftnl.Rules{Chain: chainGuard, Rules: rules},
	)
}

// Types of ICMPv6 that resolve addresses (RFC 4861, 4.3 and 4.4), and the number of ICMPv6.
const (
	neighborSolicitation  = 135
	neighborAdvertisement = 136
	protocolICMPv6        = 58
	wholeHopLimit         = 255
)

// judged returns the rules of the chain of a direction. A packet that is allowed returns.
//
// The verdict maps come first: they end the chain for packets of pods that no policy isolates. The elements of isolated pods jump, so that a
// chain that ends without a verdict leads to the last rule, which drops. The kernel reads the generation of rules when a packet enters a base
// chain, and the generation of elements at each lookup: during a commit, a packet may find a new element, and its new chain still without
// rules.
func judged(direction policy.Direction) []nftnl.Rule {
	var rules []nftnl.Rule
	if direction == policy.Egress {
		rules = append(rules, nftnl.Rule{MarkMask: allowed})
		rules = append(rules, lookup(mapEgress, family.from)...)
		rules = append(rules, nftnl.Rule{
			Matches: []nftnl.Match{nftnl.AnyBit(nftnl.Mark, allowed)}, MarkMask: allowed, Verdict: nftnl.Return(),
		})
	} else {
		rules = append(rules, lookup(mapIngress, family.to)...)
	}
	for _, matches := range discovery() { // from link-local addresses, and to groups, which have no elements
		rules = append(rules, nftnl.Rule{Matches: matches, Verdict: nftnl.Return()})
	}
	return append(rules, nftnl.Rule{Counter: true, Verdict: nftnl.Drop(), Owner: "no pod with this address is attached"})
}

// discovery returns the matches of neighbour discovery. As with ARP, the owner of an address is not secret. RFC 4861, 7.1: it has a hop limit of
// 255. A forwarded packet has less, so a pod cannot send data beyond its bridge in the form of a neighbour solicitation.
func discovery() [][]nftnl.Match {
	var out [][]nftnl.Match
	for _, kind := range []uint8{neighborSolicitation, neighborAdvertisement} {
		out = append(out, []nftnl.Match{
			nftnl.Is(nftnl.IP6HopLimit, nftnl.Byte(wholeHopLimit)),
			nftnl.Is(nftnl.L4Proto, nftnl.Proto(protocolICMPv6)), nftnl.Is(nftnl.ICMPType, nftnl.Byte(kind)),
		})
	}
	return out
}

// alwaysChain returns the name of the chain of what isolated pods may always do, in a direction.
func alwaysChain(direction policy.Direction) string { return "always-" + direction.String() }

// always returns the rules of that chain. They allow as the rules of a policy do.
func always(direction policy.Direction) []nftnl.Rule {
	var rules []nftnl.Rule
	all := discovery()
	for _, f := range families() {
		all = append(all, []nftnl.Match{nftnl.In(setSelf+f.suffix, f.source, f.destination)})
	}
	for _, matches := range all {
		rules = append(rules, allow(direction, nftnl.Rule{Matches: matches}))
	}
	return rules
}

// allow returns the rule with the verdict that a packet is allowed in a direction.
func allow(direction policy.Direction, rule nftnl.Rule) nftnl.Rule {
	rule.Verdict = nftnl.Accept()
	if direction == policy.Egress { // ingress follows
		rule.Mark, rule.MarkMask, rule.Verdict = allowed, allowed, nftnl.Return()
	}
	return rule
}

// hashed returns a name that depends on the text only, so that it is the same on every node.
func hashed(prefix, text string) string {
	sum := sha256.Sum256([]byte(text))
	return prefix + "-" + hex.EncodeToString(sum[:10])
}

func policyChain(key policy.Key, direction policy.Direction) string {
	return hashed("policy-"+direction.String(), key.String())
}

func setName(name policy.SetName, f family) string { return hashed("set"+f.suffix, string(name)) }

// Pod compiles an attached pod of the node. A pod that is not in the index has no items, and so is closed.
func Pod(index *policy.Index, key policy.Key, addresses []netip.Addr) Items {
	isolation, known := index.Isolation(key)
	if !known {
		return Items{}
	}
	policies := index.Policies(key)
	var items []nftnl.Item
	for _, address := range addresses {
		f, value := familyOf(address), nftnl.Addr(address)
		items = append(items, &nftnl.Element{Set: setSelf + f.suffix, Match: []nftnl.Value{value, value}})
	}
	for _, side := range []struct {
		direction policy.Direction
		isolates  bool
		keeps     bool
		verdicts  string
	}{
		{policy.Egress, isolation.Egress, isolation.KeepsEgress, mapEgress}, {policy.Ingress, isolation.Ingress, isolation.KeepsIngress, mapIngress},
	} {
		verdict := nftnl.Return()
		if side.isolates {
			chain, made := combination(policies, side.direction, side.keeps)
			verdict = nftnl.Jump(chain)
			items = append(items, made...)
		}
		for _, address := range addresses {
			items = append(items, &nftnl.Element{
				Set: side.verdicts + familyOf(address).suffix, Match: []nftnl.Value{nftnl.Addr(address)}, Verdict: verdict,
			})
		}
	}
	return nftnl.Items(items...)
}

// combination compiles the chain for pods with these policies. keeps says that established connections continue when they are no longer
// allowed.
func combination(policies []policy.Key, direction policy.Direction, keeps bool) (string, []nftnl.Item) {
	names := make([]string, len(policies))
	rules := make([]nftnl.Rule, 0, len(policies)+5)
	rules = append(rules, nftnl.Rule{Matches: midstream(), Counter: true, Verdict: nftnl.Drop(), Owner: "connection unknown or revoked"},
		nftnl.Rule{Verdict: nftnl.Jump(alwaysChain(direction))})
	if keeps { // such a packet gets here only while a revocation is being made
		established := nftnl.AnyBit(nftnl.ConntrackState, nftnl.StateEstablished)
		rules = append(rules, allow(direction, nftnl.Rule{Matches: []nftnl.Match{established}}))
	}
	for i, key := range policies {
		names[i] = key.String()
		rules = append(rules, nftnl.Rule{Verdict: nftnl.Jump(policyChain(key, direction))})
	}
	var items []nftnl.Item
	if direction == policy.Egress {
		rules = append(rules, nftnl.Rule{
			Matches: []nftnl.Match{nftnl.AnyBit(nftnl.Mark, allowed)}, Verdict: nftnl.Return(),
		})
		items = output()
	}
	chain := hashed("pods-"+direction.String(), strings.Join(names, " "))
	rules = append(rules, nftnl.Rule{Counter: true, Verdict: nftnl.Drop()})
	return chain, append(items, &nftnl.Chain{Name: chain}, &nftnl.Rules{Chain: chain, Rules: rules})
}

// output returns the base chain for packets of the node. It is an item of each pod that is isolated for egress, in the transaction of that
// pod's verdict: without such a pod it would drop nothing, and each packet of the node, those that carry pods' packets to other nodes
// included, would cross it.
func output() []nftnl.Item {
	return []nftnl.Item{
		&nftnl.Chain{Name: chainOutput, Hook: nftnl.HookOutput, Priority: priority},
		&nftnl.Rules{Chain: chainOutput, Rules: []nftnl.Rule{{Matches: midstream(), Verdict: nftnl.Jump(chainTo)}}},
	}
}

// Set compiles a set of pods that a rule names. It has one nftables set for each address family, even without addresses.
func Set(name policy.SetName, addresses []netip.Addr) Items {
	var items []nftnl.Item
	for _, f := range families() {
		items = append(items, &nftnl.Set{Name: setName(name, f), Fields: []nftnl.Field{f.source}})
	}
	for _, address := range addresses {
		items = append(items, &nftnl.Element{Set: setName(name, familyOf(address)), Match: []nftnl.Value{nftnl.Addr(address)}})
	}
	return nftnl.Items(items...)
}

// Sets returns the names of the sets that the rules of a policy refer to. Each needs a [Set].
func Sets(rules []policy.Rule) []policy.SetName {
	var names []policy.SetName
	for i := range rules {
		names = append(names, rules[i].PeerSets...)
		if named(&rules[i]) {
			names = append(names, rules[i].Subjects)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// named reports whether the rule applies only to pods that have a certain number for a named port: its name ends with the number. All
// other rules apply to all pods whose chains jump to the policy's chain.
func named(rule *policy.Rule) bool {
	return rule.Direction == policy.Ingress && strings.Contains(string(rule.Name), "=")
}

// Policy compiles the rules of a policy. Both of its chains always exist, because pods' chains jump to them.
func Policy(key policy.Key, rules []policy.Rule) Items {
	items := nftnl.Items(
		&nftnl.Chain{Name: policyChain(key, policy.Egress)},
		&nftnl.Chain{Name: policyChain(key, policy.Ingress)},
	)
	compiled := map[policy.Direction][]nftnl.Rule{}
	for i := range rules {
		made, own := compileRule(&rules[i])
		compiled[rules[i].Direction] = append(compiled[rules[i].Direction], made...)
		for _, item := range own {
			items[item.Key()] = item
		}
	}
	for direction, list := range compiled {
		if len(list) > 0 {
			item := &nftnl.Rules{Chain: policyChain(key, direction), Rules: list}
			items[item.Key()] = item
		}
	}
	return items
}

// compileRule returns the nftables rules of a rule, and the rule's own sets: of its address blocks and services.
func compileRule(rule *policy.Rule) (rules []nftnl.Rule, items []nftnl.Item) {
	services, items := compileServices(rule)
	add := func(matches ...nftnl.Match) {
		owner := string(rule.Name)
		if len(owner) > ownerMax {
			owner = owner[:ownerMax]
		}
		rules = append(rules, allow(rule.Direction, nftnl.Rule{Matches: slices.Concat(matches, services), Owner: owner}))
	}
	for _, f := range families() {
		peer, subject := f.source, f.destination
		if rule.Direction == policy.Egress {
			peer, subject = subject, peer
		}
		var subjects []nftnl.Match
		if named(rule) {
			subjects = []nftnl.Match{nftnl.In(setName(rule.Subjects, f), subject)}
		}
		if rule.AnyPeer && (len(subjects) > 0 || f.suffix == "4") { // without addresses, one rule serves both families
			add(subjects...)
		}
		for _, name := range rule.PeerSets {
			add(append(subjects, nftnl.In(setName(name, f), peer))...)
		}
		if blocks := ofFamily(rule.PeerBlocks, f); len(blocks) > 0 {
			set := hashed("blocks"+f.suffix, string(rule.Name))
			items = append(items, &nftnl.Set{Name: set, Fields: []nftnl.Field{f.source}, Interval: true})
			for _, block := range blocks {
				items = append(items, &nftnl.Element{Set: set, Match: []nftnl.Value{nftnl.Prefix(block)}})
			}
			add(append(subjects, nftnl.In(set, peer))...)
		}
	}
	return rules, items
}

// ownerMax is the maximum number of bytes of a rule's comment.
const ownerMax = 120

// ofFamily returns the prefixes of a family, without those contained in others: intervals of a set must not overlap.
func ofFamily(prefixes []netip.Prefix, f family) []netip.Prefix {
	var own []netip.Prefix
	for _, prefix := range prefixes {
		if familyOf(prefix.Addr()) == f {
			own = append(own, prefix.Masked())
		}
	}
	slices.SortFunc(own, func(a, b netip.Prefix) int { return cmp.Or(a.Bits()-b.Bits(), a.Addr().Compare(b.Addr())) })
	var kept []netip.Prefix
	for _, prefix := range own {
		if !slices.ContainsFunc(kept, func(k netip.Prefix) bool { return k.Contains(prefix.Addr()) }) {
			kept = append(kept, prefix)
		}
	}
	return kept
}

// ports is an interval of ports of a protocol.
type ports struct {
	protocol    transport.Protocol
	first, last uint16
}

// merged returns the services as intervals that neither overlap nor touch.
func merged(services []policy.Service) []ports {
	list := make([]ports, len(services))
	for i, s := range services {
		list[i] = ports{s.Protocol, s.Port & s.Mask, s.Port&s.Mask | ^s.Mask}
	}
	slices.SortFunc(list, func(a, b ports) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last))
	})
	var out []ports
	for _, p := range list {
		if n := len(out) - 1; n >= 0 && out[n].protocol == p.protocol && int(p.first) <= int(out[n].last)+1 {
			out[n].last = max(out[n].last, p.last)
			continue
		}
		out = append(out, p)
	}
	return out
}

// compileServices returns the matches for a rule's services: one interval is matched in the rule, several by a set.
func compileServices(rule *policy.Rule) ([]nftnl.Match, []nftnl.Item) {
	if rule.AnyService {
		return nil, nil
	}
	list := merged(rule.Services)
	if len(list) == 1 {
		matches := []nftnl.Match{nftnl.Is(nftnl.L4Proto, nftnl.Proto(uint8(list[0].protocol)))}
		if list[0].first != 0 || list[0].last != ^uint16(0) {
			matches = append(matches, nftnl.Is(nftnl.DestinationPort, nftnl.PortRange(list[0].first, list[0].last)))
		}
		return matches, nil
	}
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = fmt.Sprint(p)
	}
	set := hashed("services", string(rule.Name)+strings.Join(texts, " "))
	fields := []nftnl.Field{nftnl.L4Proto, nftnl.DestinationPort}
	items := []nftnl.Item{&nftnl.Set{Name: set, Fields: fields, Interval: true}}
	for _, p := range list {
		items = append(items, &nftnl.Element{
			Set: set, Match: []nftnl.Value{nftnl.Proto(uint8(p.protocol)), nftnl.PortRange(p.first, p.last)},
		})
	}
	return []nftnl.Match{nftnl.In(set, fields...)}, items
}
