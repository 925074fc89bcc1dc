package policy

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// policies has the policies with the sets that they name.
type policies struct {
	sets  *sets
	bound map[Key]*bound
}

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

// bind finds or makes the sets that a policy names.
func (p *policies) bind(policy *Policy) *bound {
	own := p.sets.scope(scopeKey{oneNamespace, policy.Key.Namespace}, Selector{})
	b := &bound{policy: *policy, subjects: p.sets.set(own, policy.Pods, nil)}
	if b.subjects.policies == nil {
		b.subjects.policies = map[Key]struct{}{}
	}
	b.subjects.policies[policy.Key] = struct{}{}
	p.sets.name(b.subjects, 1)
	for d := range policy.Sides {
		if policy.Sides[d].Isolates {
			b.subjects.isolates[d]++
			b.subjects.keeps[d] += count(policy.Keeps)
		}
		for _, allow := range policy.Sides[d].Allows {
			b.allows[d] = append(b.allows[d], p.bindAllow(b, Direction(d), allow))
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

func (p *policies) bindAllow(b *bound, d Direction, allow Allow) boundAllow {
	out := boundAllow{Allow: allow, whole: d == Ingress || allow.AnyService || len(allow.Services) > 0}
	for _, peer := range allow.Peers {
		scope := p.sets.scope(scopeKey{oneNamespace, b.policy.Key.Namespace}, Selector{})
		if peer.Namespaces != nil {
			scope = p.sets.scope(scopeKey{someNamespaces, peer.Namespaces.String()}, *peer.Namespaces)
		}
		s := p.sets.set(scope, peer.Pods, nil)
		if slices.Contains(out.peers, s) {
			continue
		}
		out.peers = append(out.peers, s)
		if out.whole {
			p.sets.name(s, 1)
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
			destinations = append(destinations, p.sets.set(p.sets.scope(everywhere, Selector{}), Selector{}, nil))
		}
		if len(allow.Blocks) > 0 {
			destinations = append(destinations, p.sets.set(p.sets.scope(everywhere, Selector{}), Selector{}, allow.Blocks))
		}
	}
	for _, port := range allow.Named {
		var splits []*split
		for _, s := range destinations {
			splits = append(splits, p.sets.split(s, port, b.policy.Key))
		}
		out.named = append(out.named, splits)
	}
	return out
}

// release drops a policy's references to its sets.
func (p *policies) release(b *bound) {
	if now := p.bound[b.policy.Key]; now == nil || now.subjects != b.subjects {
		delete(b.subjects.policies, b.policy.Key)
	}
	for d := range b.policy.Sides {
		if b.policy.Sides[d].Isolates {
			b.subjects.isolates[d]--
			b.subjects.keeps[d] -= count(b.policy.Keeps)
		}
		for i := range b.allows[d] {
			p.releaseAllow(&b.allows[d][i], b.policy.Key)
		}
	}
	p.sets.name(b.subjects, -1)
}

func (p *policies) releaseAllow(a *boundAllow, policy Key) {
	for _, splits := range a.named {
		for _, s := range splits {
			p.sets.unsplit(s, policy)
		}
	}
	if !a.whole {
		return
	}
	for _, s := range a.peers {
		p.sets.name(s, -1)
	}
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
