package policy

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// bound is a policy with the sets that its rules name.
type bound struct {
	policy Policy
	// subjects are the pods that the policy selects.
	subjects *set
	allows   [directions][]boundAllow
}

// boundAllow is one rule of a policy with the sets that it names.
type boundAllow struct {
	Allow
	peers []*set
	// whole says that the rule names the peers' whole sets, not only the parts of them that have a named port.
	whole bool
	// named are the splits of the rule's named ports, in their order: splits of the subjects for Ingress, of the peers for Egress.
	named [][]*split
}

// SetPolicy adds or replaces a policy.
func (x *Index) SetPolicy(policy Policy) Effect {
	old := x.policies[policy.Key]
	if old != nil && reflect.DeepEqual(old.policy, policy) {
		return Effect{}
	}
	return x.movePolicy(policy.Key, old, &policy)
}

// DeletePolicy deletes a policy.
func (x *Index) DeletePolicy(policy Key) Effect {
	old, ok := x.policies[policy]
	if !ok {
		return Effect{}
	}
	return x.movePolicy(policy, old, nil)
}

func (x *Index) movePolicy(key Key, old *bound, policy *Policy) Effect {
	space := x.space(key.Namespace)
	c := x.begin()
	c.policies[key] = struct{}{}
	before := map[Key]Isolation{}
	if old == nil || policy == nil || !isolatesAlike(&old.policy, policy) {
		if old != nil {
			x.observe(space, old.subjects, &old.policy, 1, before)
		}
		if policy != nil {
			x.observe(space, x.sets[setName(scopeKey{oneNamespace, key.Namespace}, policy.Pods, nil)], policy, 0, before)
		}
	}
	// Bind the new policy before releasing the old one, so that sets of both remain.
	if policy != nil {
		x.policies[key] = x.bind(policy)
	} else {
		delete(x.policies, key)
	}
	if old != nil {
		x.release(old)
	}
	for pod, was := range before {
		if x.groups[pod].isolation() != was {
			c.pods[pod] = struct{}{}
		}
	}
	x.tidy(space)
	return c.effect()
}

// isolatesAlike reports whether two policies of one namespace isolate the same pods in the same directions, and treat established
// connections in the same way.
func isolatesAlike(a, b *Policy) bool {
	for d := range a.Sides {
		if a.Sides[d].Isolates != b.Sides[d].Isolates {
			return false
		}
	}
	return a.Pods.text == b.Pods.text && a.Keeps == b.Keeps
}

// observe records the isolation of the pods that a policy selects, if the policy may change their isolation: that is the case if at most
// others policies isolate the same set, or if some policies keep connections.
func (x *Index) observe(space *space, subjects *set, p *Policy, others int, before map[Key]Isolation) {
	alone := false
	for d := range p.Sides {
		if p.Sides[d].Isolates && (subjects == nil || p.Keeps || subjects.keeps[d] > 0 || subjects.isolates[d] <= others) {
			alone = true
		}
	}
	if !alone {
		return
	}
	space.find.match(p.Pods, func(g *group) {
		now, known := Isolation{}, false
		for pod := range g.pods {
			if !x.concerns(pod) {
				continue
			}
			if !known {
				now, known = g.isolation(), true
			}
			before[pod.Key] = now
		}
	})
}

// bind finds or makes the sets that a policy names.
func (x *Index) bind(policy *Policy) *bound {
	own := x.scope(scopeKey{oneNamespace, policy.Key.Namespace}, Selector{})
	b := &bound{policy: *policy, subjects: x.set(own, policy.Pods, nil)}
	if b.subjects.policies == nil {
		b.subjects.policies = map[Key]struct{}{}
	}
	b.subjects.policies[policy.Key] = struct{}{}
	x.name(b.subjects, 1)
	for d := range policy.Sides {
		if policy.Sides[d].Isolates {
			b.subjects.isolates[d]++
			b.subjects.keeps[d] += count(policy.Keeps)
		}
		for _, allow := range policy.Sides[d].Allows {
			b.allows[d] = append(b.allows[d], x.bindAllow(b, Direction(d), allow))
		}
	}
	return b
}

func count(one bool) int {
	if one {
		return 1
	}
	return 0
}

func (x *Index) bindAllow(b *bound, d Direction, allow Allow) boundAllow {
	out := boundAllow{Allow: allow, whole: d == Ingress || allow.AnyService || len(allow.Services) > 0}
	for _, peer := range allow.Peers {
		scope := x.scope(scopeKey{oneNamespace, b.policy.Key.Namespace}, Selector{})
		if peer.Namespaces != nil {
			scope = x.scope(scopeKey{someNamespaces, peer.Namespaces.String()}, *peer.Namespaces)
		}
		s := x.set(scope, peer.Pods, nil)
		if slices.Contains(out.peers, s) {
			continue
		}
		out.peers = append(out.peers, s)
		if out.whole {
			x.name(s, 1)
		}
	}
	slices.SortFunc(out.peers, func(a, b *set) int { return strings.Compare(a.name, b.name) })
	if len(allow.Named) == 0 {
		return out
	}
	destinations := []*set{b.subjects}
	if d == Egress {
		destinations = slices.Clone(out.peers)
		everywhere := scopeKey{allNamespaces, "*"}
		if allow.AnyPeer {
			destinations = append(destinations, x.set(x.scope(everywhere, Selector{}), Selector{}, nil))
		}
		if len(allow.Blocks) > 0 {
			destinations = append(destinations, x.set(x.scope(everywhere, Selector{}), Selector{}, allow.Blocks))
		}
	}
	for _, port := range allow.Named {
		var splits []*split
		for _, s := range destinations {
			splits = append(splits, x.split(s, port, b.policy.Key))
		}
		out.named = append(out.named, splits)
	}
	return out
}

// release drops a policy's references to its sets.
func (x *Index) release(b *bound) {
	if now := x.policies[b.policy.Key]; now == nil || now.subjects != b.subjects {
		delete(b.subjects.policies, b.policy.Key)
	}
	for d := range b.policy.Sides {
		if b.policy.Sides[d].Isolates {
			b.subjects.isolates[d]--
			b.subjects.keeps[d] -= count(b.policy.Keeps)
		}
		for i := range b.allows[d] {
			x.releaseAllow(&b.allows[d][i], b.policy.Key)
		}
	}
	x.name(b.subjects, -1)
}

func (x *Index) releaseAllow(a *boundAllow, policy Key) {
	for _, splits := range a.named {
		for _, s := range splits {
			x.unsplit(s, policy)
		}
	}
	if !a.whole {
		return
	}
	for _, s := range a.peers {
		x.name(s, -1)
	}
}

// scope finds or makes a scope. selector selects its namespaces if the scope is that of a selector.
func (x *Index) scope(key scopeKey, selector Selector) *scope {
	if c, ok := x.scopes[key]; ok {
		return c
	}
	c := &scope{scopeKey: key, selector: selector, needsLabel: key.kind == someNamespaces && selector.needsLabel()}
	x.scopes[key] = c
	switch c.kind {
	case oneNamespace:
		x.space(c.name).own = c
	case someNamespaces:
		x.seeking.add(c, selector)
	default:
		x.any = c
	}
	return c
}

// set finds or makes a set.
func (x *Index) set(c *scope, pods Selector, within []netip.Prefix) *set {
	name := setName(c.scopeKey, pods, within)
	s, ok := x.sets[name]
	if !ok {
		s = &set{name: name, scope: c, pods: pods, within: within}
		x.sets[name] = s
		c.sets.add(s, pods)
	}
	return s
}

// name counts the rules that name a whole set.
func (x *Index) name(s *set, by int) {
	v := view{set: s}
	s.plain += by
	if s.plain > 0 {
		x.views[v.name()] = v
		return
	}
	delete(x.views, v.name())
	x.drop(s)
}

// drop deletes a set that no rule names.
func (x *Index) drop(s *set) {
	if s.plain > 0 || len(s.splits) > 0 {
		return
	}
	delete(x.sets, s.name)
	c := s.scope
	c.sets.remove(s)
	if len(c.sets.selectors) > 0 {
		return
	}
	delete(x.scopes, c.scopeKey)
	switch c.kind {
	case oneNamespace:
		space := x.spaces[c.name]
		space.own = nil
		x.tidy(space)
	case someNamespaces:
		x.seeking.remove(c)
	default:
		x.any = nil
	}
}

// split returns a set's parts by a named port, for a policy whose rules name them.
func (x *Index) split(s *set, port NamedPort, user Key) *split {
	p, ok := s.splits[port]
	if !ok {
		p = &split{set: s, port: port, numbers: map[uint16]int{}, users: map[Key]int{}}
		if s.splits == nil {
			s.splits = map[NamedPort]*split{}
		}
		s.splits[port] = p
		x.each(view{set: s}, func(pod *Pod) {
			for _, number := range port.numbers(pod) {
				x.countNumber(p, number, 1)
			}
		})
	}
	p.users[user]++
	return p
}

func (x *Index) unsplit(p *split, user Key) {
	if p.users[user]--; p.users[user] == 0 {
		delete(p.users, user)
	}
	if len(p.users) > 0 {
		return
	}
	for number := range p.numbers {
		delete(x.views, view{p.set, p.port, number}.name())
	}
	delete(p.set.splits, p.port)
	x.drop(p.set)
}

// Rules returns the rules of a policy in its order; none if there is no such policy. It leaves out rules that can match no packet.
func (x *Index) Rules(policy Key) []Rule {
	b, ok := x.policies[policy]
	if !ok {
		return nil
	}
	var list []Rule
	for d := range b.allows {
		for i := range b.allows[d] {
			list = append(list, b.allows[d][i].rules(b, Direction(d), i)...)
		}
	}
	return list
}

func (a *boundAllow) rules(b *bound, d Direction, i int) []Rule {
	subjects := view{set: b.subjects}.name()
	base := Rule{
		Name: RuleName(b.policy.Key.String() + " " + d.String() + "[" + strconv.Itoa(i) + "]"), Policy: b.policy.Key, Direction: d, Subjects: subjects,
		AnyPeer: a.AnyPeer, PeerBlocks: a.Blocks, AnyService: a.AnyService, Services: a.Services,
	}
	for _, s := range a.peers {
		base.PeerSets = append(base.PeerSets, view{set: s}.name())
	}
	var list []Rule
	if a.AnyService || len(a.Services) > 0 {
		list = append(list, base)
	}
	for n, port := range a.Named {
		for _, number := range numbers(a.named[n]) {
			r := base
			r.Name += RuleName(" " + port.String() + "=" + decimal(number))
			r.Services = []Service{{port.Protocol, number, ^uint16(0)}}
			if d == Ingress {
				r.Subjects = view{b.subjects, port, number}.name()
			} else {
				r.AnyPeer, r.PeerBlocks, r.PeerSets = false, nil, parts(a.named[n], number)
			}
			list = append(list, r)
		}
	}
	return slices.DeleteFunc(list, func(r Rule) bool { return !r.AnyPeer && len(r.PeerSets)+len(r.PeerBlocks) == 0 })
}

// numbers returns the numbers that a named port has in any of the sets, sorted.
func numbers(splits []*split) []uint16 {
	all := map[uint16]struct{}{}
	for _, s := range splits {
		for number := range s.numbers {
			all[number] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// parts returns the parts of the sets that have a number for the named port.
func parts(splits []*split, number uint16) []SetName {
	var list []SetName
	for _, s := range splits {
		if s.numbers[number] > 0 {
			list = append(list, view{s.set, s.port, number}.name())
		}
	}
	slices.Sort(list)
	return list
}
