// Package conjunction compiles NetworkPolicies, as the verdict rules of package policy, to conjunctive flows of the overlay's pipeline, for
// pipeline.ModeNetworkPolicy. Unlike the pipeline it keeps what it has compiled, and it returns only what a change has changed.
package conjunction

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/overlay/pipeline/groupid"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/transport"
)

// StageRoom is the greatest number of rules of one direction in a stage. A flow has one action for each rule of its stage that names its
// address or port, and must fit one OpenFlow message of 64 KiB, which holds 4,090 actions.
const StageRoom = 4000

// Objects returns the meaning of policies; package policy's Index implements it.
type Objects interface {
	Rules(key policy.Key) []policy.Rule
	Addresses(name policy.SetName) []netip.Addr
}

// Compiler compiles verdict rules to flows. It keeps what it has compiled, so that the cost of a change depends on the size of the
// change.
//
// A rule is a conjunctive match: one flow for each address and port that it names, and one for its verdict, so the sum of its dimensions
// and not their product. All rules that name an address or port share its flow, which has an owner of its own; so has the verdict. Rules
// that allow the same are one conjunction, also if they belong to different policies. A conjunction without a subject on this node has no
// flows.
//
// The identity of a conjunction is what it allows: a policy that changes gets other conjunctions. So no packet matches a mixture of the old
// policy and the new one, even if the change takes several bundles.
//
// If there are more rules than the actions of one flow can name, they are divided into stages. Each stage has its own flows, one priority
// below the previous stage: the switch tries the conjunctions of one priority after the other. A new rule goes into the first stage with
// room and stays there, so adding or removing a rule moves no other rule. The possible number of stages exceeds what fits into a machine's
// memory.
//
// It is not for concurrent use. New creates one.
type Compiler struct {
	// Room is the greatest number of rules of one direction in a stage, StageRoom unless it is set before the first Apply.
	Room int

	subnet netip.Prefix
	ids    groupid.IDs
	// policies are the conjunctions of each policy's rules, in the order of the rules.
	policies map[policy.Key][]*conjunction
	byName   map[string]*conjunction
	members  map[policy.SetName]*members
	terms    map[term]map[*conjunction]*use
	// stages count the conjunctions in each stage, by direction.
	stages [2][]int

	dirtyTerms    map[term]struct{}
	dirtyVerdicts map[*conjunction]struct{}
	// narrowed says that something that was programmed is no longer allowed.
	narrowed bool
}

// conjunction is one or more verdict rules that allow the same.
type conjunction struct {
	name string
	// active says that it is programmed, because it has a subject on this node. Then id is its number, and stage the stage of its flows.
	active bool
	id     uint32
	stage  int
	rule   policy.Rule
	// users counts the rules.
	users int
	// pods counts the addresses of subjects in this node's subnet.
	pods int
}

// members are the addresses of a set that conjunctions name.
type members struct {
	// local are the addresses in this node's subnet, for conjunctions whose subjects are this set.
	local    map[netip.Addr]struct{}
	subjects map[*conjunction]struct{}
	// all are all addresses, for active conjunctions with peers in this set.
	all   map[netip.Addr]struct{}
	peers map[*conjunction]struct{}
}

// end is the field of a packet that a term matches.
type end uint8

const (
	endSource end = iota
	endDestination
	endService
)

// term is one value of one dimension of conjunctions.
type term struct {
	direction policy.Direction
	end       end
	prefix    netip.Prefix
	service   policy.Service
	// open says that a match is allowed without a match in another dimension.
	open bool
	// stage is the stage of the conjunctions that use it.
	stage int
}

// use says how a conjunction uses a term.
type use struct {
	clause uint8
	// count is the number of reasons for the use: an address may be in several sets.
	count int
}

// New returns a Compiler for a node with this pod subnet.
func New(subnet netip.Prefix) *Compiler {
	return &Compiler{
		Room: StageRoom, subnet: subnet, policies: map[policy.Key][]*conjunction{}, byName: map[string]*conjunction{},
		members: map[policy.SetName]*members{}, terms: map[term]map[*conjunction]*use{},
		dirtyTerms: map[term]struct{}{}, dirtyVerdicts: map[*conjunction]struct{}{},
	}
}

// Subnet returns the node's pod subnet.
func (x *Compiler) Subnet() netip.Prefix { return x.subnet }

// Apply processes the effect of one change. objects must be in the state right after that change.
func (x *Compiler) Apply(effect policy.Effect, objects Objects) {
	for i := range effect.Sets {
		x.applyDelta(&effect.Sets[i], objects)
	}
	for _, key := range effect.Policies {
		x.setRules(key, objects)
	}
}

func (x *Compiler) applyDelta(d *policy.Delta, objects Objects) {
	m := x.members[d.Set]
	if m == nil {
		return
	}
	for _, addr := range d.Added {
		if addr.Is4() {
			x.join(m, addr, objects)
		}
	}
	for _, addr := range d.Removed {
		x.leave(m, addr)
	}
}

func (x *Compiler) join(m *members, addr netip.Addr, objects Objects) {
	if _, is := m.all[addr]; !is && m.all != nil {
		m.all[addr] = struct{}{}
		for c := range m.peers {
			x.use(c, c.peer(host(addr)), 1)
		}
	}
	if _, is := m.local[addr]; is || !x.subnet.Contains(addr) || len(m.subjects) == 0 {
		return
	}
	m.local[addr] = struct{}{}
	for _, c := range sortedConjunctions(m.subjects) {
		if c.pods++; c.active {
			x.use(c, c.subject(host(addr)), 1)
		} else {
			x.activate(c, objects)
		}
	}
}

func (x *Compiler) leave(m *members, addr netip.Addr) {
	if _, is := m.all[addr]; is {
		delete(m.all, addr)
		for c := range m.peers {
			x.use(c, c.peer(host(addr)), -1)
		}
	}
	if _, is := m.local[addr]; !is {
		return
	}
	delete(m.local, addr)
	for c := range m.subjects {
		x.use(c, c.subject(host(addr)), -1)
		if c.pods--; c.pods == 0 {
			x.deactivate(c)
		}
	}
}

// setRules sets a policy's rules. It adds the new ones before it removes the old ones, so that rules in both stay programmed.
func (x *Compiler) setRules(key policy.Key, objects Objects) {
	var next []*conjunction
	for _, rule := range objects.Rules(key) {
		next = append(next, x.hold(rule, objects))
	}
	for _, c := range x.policies[key] {
		x.release(c)
	}
	if len(next) == 0 {
		delete(x.policies, key)
		return
	}
	x.policies[key] = next
}

func (x *Compiler) hold(rule policy.Rule, objects Objects) *conjunction {
	name := conjunctionName(&rule)
	if c, ok := x.byName[name]; ok {
		c.users++
		return c
	}
	c := &conjunction{name: name, rule: rule, users: 1}
	x.byName[name] = c
	m := x.set(rule.Subjects)
	if len(m.subjects) == 0 {
		m.local = map[netip.Addr]struct{}{}
		for _, addr := range objects.Addresses(rule.Subjects) {
			if x.subnet.Contains(addr) {
				m.local[addr] = struct{}{}
			}
		}
	}
	m.subjects[c] = struct{}{}
	if c.pods = len(m.local); c.pods > 0 {
		x.activate(c, objects)
	}
	return c
}

func (x *Compiler) release(c *conjunction) {
	if c.users--; c.users > 0 {
		return
	}
	delete(x.byName, c.name)
	if c.active {
		x.deactivate(c)
	}
	delete(x.members[c.rule.Subjects].subjects, c)
	x.tidy(c.rule.Subjects)
}

func (x *Compiler) set(name policy.SetName) *members {
	m, ok := x.members[name]
	if !ok {
		m = &members{subjects: map[*conjunction]struct{}{}, peers: map[*conjunction]struct{}{}}
		x.members[name] = m
	}
	return m
}

func (x *Compiler) tidy(name policy.SetName) {
	m := x.members[name]
	if m == nil {
		return
	}
	if len(m.subjects) == 0 {
		m.local = nil
	}
	if len(m.peers) == 0 {
		m.all = nil
	}
	if len(m.subjects)+len(m.peers) == 0 {
		delete(x.members, name)
	}
}

// activate programs a conjunction that has a subject on this node.
func (x *Compiler) activate(c *conjunction, objects Objects) {
	d := c.rule.Direction
	c.active = true
	if c.dimensions() > 1 {
		c.id, c.stage = x.ids.ID(c.name), x.enter(d)
	}
	x.dirtyVerdicts[c] = struct{}{}
	for addr := range x.members[c.rule.Subjects].local {
		x.use(c, c.subject(host(addr)), 1)
	}
	for _, service := range c.rule.Services {
		x.use(c, term{direction: d, end: endService, service: service}, 1)
	}
	for _, block := range c.rule.PeerBlocks {
		if block.Addr().Is4() {
			x.use(c, c.peer(block), 1)
		}
	}
	for _, name := range c.rule.PeerSets {
		m := x.set(name)
		if len(m.peers) == 0 {
			m.all = map[netip.Addr]struct{}{}
			for _, addr := range objects.Addresses(name) {
				if addr.Is4() {
					m.all[addr] = struct{}{}
				}
			}
		}
		m.peers[c] = struct{}{}
		for addr := range m.all {
			x.use(c, c.peer(host(addr)), 1)
		}
	}
}

// enter adds one conjunction to the first stage of a direction with room, and returns the stage.
func (x *Compiler) enter(d policy.Direction) int {
	for stage, count := range x.stages[d] {
		if count < x.Room {
			x.stages[d][stage]++
			return stage
		}
	}
	x.stages[d] = append(x.stages[d], 1)
	return len(x.stages[d]) - 1
}

func (x *Compiler) deactivate(c *conjunction) {
	d := c.rule.Direction
	for addr := range x.members[c.rule.Subjects].local {
		x.use(c, c.subject(host(addr)), -1)
	}
	for _, service := range c.rule.Services {
		x.use(c, term{direction: d, end: endService, service: service}, -1)
	}
	for _, block := range c.rule.PeerBlocks {
		if block.Addr().Is4() {
			x.use(c, c.peer(block), -1)
		}
	}
	for _, name := range c.rule.PeerSets {
		m := x.members[name]
		for addr := range m.all {
			x.use(c, c.peer(host(addr)), -1)
		}
		delete(m.peers, c)
		x.tidy(name)
	}
	x.dirtyVerdicts[c] = struct{}{}
	if c.dimensions() > 1 {
		x.ids.Release(c.name)
		x.stages[d][c.stage]--
	}
	c.active, c.id, c.stage = false, 0, 0
}

// use adds by to the count of an active conjunction's use of a term.
func (x *Compiler) use(c *conjunction, t term, by int) {
	t.stage = c.stage
	uses := x.terms[t]
	if uses == nil {
		uses = map[*conjunction]*use{}
		x.terms[t] = uses
	}
	u := uses[c]
	if u == nil {
		u = &use{clause: c.clause(t)}
		uses[c] = u
		x.dirtyTerms[t] = struct{}{}
	}
	if u.count += by; u.count > 0 {
		return
	}
	x.dirtyTerms[t] = struct{}{}
	x.narrowed = true
	delete(uses, c)
	if len(uses) == 0 {
		delete(x.terms, t)
	}
}

// subject returns the term for the address of one of a conjunction's subjects.
func (c *conjunction) subject(addr netip.Prefix) term {
	t := term{direction: c.rule.Direction, end: endDestination, prefix: addr, open: c.dimensions() == 1}
	if c.rule.Direction == policy.Egress {
		t.end = endSource
	}
	return t
}

// peer returns the term for one of its peers.
func (c *conjunction) peer(prefix netip.Prefix) term {
	t := term{direction: c.rule.Direction, end: endSource, prefix: prefix}
	if c.rule.Direction == policy.Egress {
		t.end = endDestination
	}
	return t
}

// dimensions returns the number of dimensions that the rule restricts.
func (c *conjunction) dimensions() uint8 {
	n := uint8(1)
	if !c.rule.AnyPeer {
		n++
	}
	if !c.rule.AnyService {
		n++
	}
	return n
}

// clause returns the number of a term's dimension, from 1: subjects, peers, services.
func (c *conjunction) clause(t term) uint8 {
	own := endDestination
	if c.rule.Direction == policy.Egress {
		own = endSource
	}
	switch t.end {
	case own:
		return 1
	case endService:
		return c.dimensions()
	default:
		return 2 //nolint:mnd // the second
	}
}

// conjunctionName returns the same name for rules that allow the same.
func conjunctionName(r *policy.Rule) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n%v\n", r.Direction, r.Subjects, r.AnyPeer)
	for _, name := range r.PeerSets {
		fmt.Fprintf(&b, "%s\n", name)
	}
	fmt.Fprintf(&b, "%v\n%v %v\n", r.PeerBlocks, r.AnyService, r.Services)
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:16])
}

func sortedConjunctions(set map[*conjunction]struct{}) []*conjunction {
	return slices.SortedFunc(maps.Keys(set), func(a, b *conjunction) int { return cmp.Compare(a.name, b.name) })
}

// Changed returns the fragments of owners that changed since the previous call, empty for owners that are gone.
func (x *Compiler) Changed() map[reconcile.Owner]map[openflow.Key]openflow.Entry {
	changed := x.ChangedRules()
	fragments := make(map[reconcile.Owner]map[openflow.Key]openflow.Entry, len(changed))
	for owner, rules := range changed {
		fragments[owner] = openflow.Fragment(rules)
	}
	return fragments
}

// ChangedRules is Changed with the purpose of each flow.
func (x *Compiler) ChangedRules() map[reconcile.Owner][]openflow.Rule {
	changed := make(map[reconcile.Owner][]openflow.Rule, len(x.dirtyTerms)+len(x.dirtyVerdicts))
	for t := range x.dirtyTerms {
		changed[t.owner()] = x.termRules(t)
	}
	for conj := range x.dirtyVerdicts {
		if now, is := x.byName[conj.name]; !is || now == conj { // if it was removed and added again, there is another value
			changed[conj.owner()] = conj.rules()
		}
	}
	x.dirtyTerms, x.dirtyVerdicts = map[term]struct{}{}, map[*conjunction]struct{}{}
	return changed
}

// Narrowed reports whether anything is no longer allowed since the previous call. A rule that is replaced counts, even if the new one
// allows more.
func (x *Compiler) Narrowed() bool {
	narrowed := x.narrowed
	x.narrowed = false
	return narrowed
}

// Clear removes all rules.
func (x *Compiler) Clear() {
	for key, list := range x.policies {
		for _, c := range list {
			x.release(c)
		}
		delete(x.policies, key)
	}
}

// Refresh makes the next call of Changed return all fragments.
func (x *Compiler) Refresh() {
	for t := range x.terms {
		x.dirtyTerms[t] = struct{}{}
	}
	for _, c := range x.byName {
		x.dirtyVerdicts[c] = struct{}{}
	}
}

// owner returns the owner of a term's flow: "policyterm/ingress/from/10.128.0.5/32".
func (t term) owner() reconcile.Owner {
	text := t.prefix.String()
	if t.end == endService {
		text = fmt.Sprintf("%s/%d/%#04x", t.service.Protocol, t.service.Port, t.service.Mask)
	}
	what := [...]string{endSource: "from", endDestination: "to", endService: "port"}[t.end]
	if t.open {
		what += "/any"
	}
	if t.stage > 0 {
		what = fmt.Sprintf("%s/stage%d", what, t.stage)
	}
	return reconcile.Owner(fmt.Sprintf("policyterm/%s/%s/%s", t.direction, what, text))
}

func (c *conjunction) owner() reconcile.Owner { return reconcile.Owner("policyrule/" + c.name) }

// tablesOf returns the table that decides about a direction, and the next one.
func tablesOf(d policy.Direction) (table, next uint8) {
	if d == policy.Egress {
		return layout.TableEgressPolicy, layout.TableRoute
	}
	return layout.TableIngress, layout.TableDeliver
}

// allow returns the actions for a packet that a rule allows.
func allow(next uint8) []action.Action {
	return []action.Action{action.SetField(oxm.RegMasked(layout.RegFlags, layout.FlagAllowed, layout.FlagAllowed)), action.GotoTable(next)}
}

// rules returns the verdict of a conjunction; none if it is not active or has only one dimension.
func (c *conjunction) rules() []openflow.Rule {
	if !c.active || c.dimensions() == 1 {
		return nil
	}
	table, next := tablesOf(c.rule.Direction)
	return []openflow.Rule{{Purpose: "allowed by " + string(c.rule.Name), Flow: &openflow.Flow{
		Table: table, Priority: pipeline.PriorityRule, Cookie: cookies.Of(c.owner()),
		Match: oxm.NewMatch(oxm.EthType(oxm.EthTypeIPv4), oxm.ConjID(c.id)), Actions: allow(next),
	}}}
}

// termRules returns a term's flow; none if no active conjunction uses it.
func (x *Compiler) termRules(t term) []openflow.Rule {
	if len(x.terms[t]) == 0 {
		return nil
	}
	used := slices.SortedFunc(maps.Keys(x.terms[t]), func(a, b *conjunction) int { return cmp.Compare(a.id, b.id) })
	table, next := tablesOf(t.direction)
	if t.open {
		return []openflow.Rule{{Purpose: "allowed whatever it is", Flow: &openflow.Flow{
			Table: table, Priority: pipeline.PriorityOpen, Cookie: cookies.Of(t.owner()), Match: oxm.NewMatch(t.field()), Actions: allow(next),
		}}}
	}
	actions := make([]action.Action, 0, len(used))
	for _, c := range used {
		actions = append(actions, action.Conjunction(c.id, x.terms[t][c].clause, c.dimensions()))
	}
	return []openflow.Rule{{Purpose: "named by rules", Flow: &openflow.Flow{
		Table: table, Priority: pipeline.PriorityRule - uint16(t.stage), Cookie: cookies.Of(t.owner()),
		Match: oxm.NewMatch(oxm.EthType(oxm.EthTypeIPv4), t.field()), Actions: actions,
	}}}
}

func (t term) field() oxm.MatchField {
	switch t.end {
	case endSource:
		return oxm.IPSrc(t.prefix)
	case endDestination:
		return oxm.IPDst(t.prefix)
	}
	port, mask := t.service.Port, t.service.Mask
	switch {
	case mask == 0:
		return oxm.IPProto(uint8(t.service.Protocol))
	case t.service.Protocol == transport.TCP:
		return oxm.TCPDstMasked(port, mask)
	case t.service.Protocol == transport.UDP:
		return oxm.UDPDstMasked(port, mask)
	default:
		return oxm.SCTPDstMasked(port, mask)
	}
}

func host(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }
