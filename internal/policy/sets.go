package policy

import "net/netip"

// sets has the sets that rules name, and the parts of them by the numbers of named ports. A set exists as long as a rule names it or a part
// of it, and its scope as long as it has sets.
type sets struct {
	cluster *cluster
	scopes  map[scopeKey]*scope
	// seeking are the scopes that select namespaces.
	seeking seekers[*scope]
	// any is the scope of all namespaces, if it has sets.
	any    *scope
	byName map[string]*set
	// views are the sets, and their parts, that rules name.
	views map[SetName]view
}

func newSets(c *cluster) *sets {
	return &sets{cluster: c, scopes: map[scopeKey]*scope{}, byName: map[string]*set{}, views: map[SetName]view{}}
}

// scope finds or makes a scope. selector selects its namespaces if the scope is that of a selector.
func (t *sets) scope(key scopeKey, selector Selector) *scope {
	if c, ok := t.scopes[key]; ok {
		return c
	}
	c := &scope{scopeKey: key, selector: selector, needsLabel: key.kind == someNamespaces && selector.needsLabel()}
	t.scopes[key] = c
	switch c.kind {
	case oneNamespace:
		t.cluster.space(c.name).own = c
	case someNamespaces:
		t.seeking.add(c, selector)
	default:
		t.any = c
	}
	return c
}

// set finds or makes a set.
func (t *sets) set(c *scope, pods Selector, within []netip.Prefix) *set {
	name := setName(c.scopeKey, pods, within)
	s, ok := t.byName[name]
	if !ok {
		s = &set{name: name, scope: c, pods: pods, within: within}
		t.byName[name] = s
		c.sets.add(s, pods)
	}
	return s
}

// name counts the rules that name a whole set.
func (t *sets) name(s *set, by int) {
	v := view{set: s}
	s.plain += by
	if s.plain > 0 {
		t.views[v.name()] = v
		return
	}
	delete(t.views, v.name())
	t.drop(s)
}

// drop deletes a set that no rule names.
func (t *sets) drop(s *set) {
	if s.plain > 0 || len(s.splits) > 0 {
		return
	}
	delete(t.byName, s.name)
	c := s.scope
	c.sets.remove(s)
	if len(c.sets.selectors) > 0 {
		return
	}
	delete(t.scopes, c.scopeKey)
	switch c.kind {
	case oneNamespace:
		space := t.cluster.spaces[c.name]
		space.own = nil
		t.cluster.tidy(space)
	case someNamespaces:
		t.seeking.remove(c)
	default:
		t.any = nil
	}
}

// split returns a set's parts by a named port, for a policy whose rules name them.
func (t *sets) split(s *set, port NamedPort, user Key) *split {
	p, ok := s.splits[port]
	if !ok {
		p = &split{set: s, port: port, numbers: map[uint16]int{}, users: map[Key]int{}}
		if s.splits == nil {
			s.splits = map[NamedPort]*split{}
		}
		s.splits[port] = p
		t.cluster.each(view{set: s}, func(pod *Pod) {
			for _, number := range port.numbers(pod) {
				t.countNumber(p, number, 1)
			}
		})
	}
	p.users[user]++
	return p
}

// unsplit removes one use of a set's parts by a policy, and the parts with their last use.
func (t *sets) unsplit(p *split, user Key) {
	if p.users[user]--; p.users[user] == 0 {
		delete(p.users, user)
	}
	if len(p.users) > 0 {
		return
	}
	for number := range p.numbers {
		delete(t.views, view{p.set, p.port, number}.name())
	}
	delete(p.set.splits, p.port)
	t.drop(p.set)
}

// countNumber counts a pod that has a number, and reports whether the number is new or no longer used.
func (t *sets) countNumber(s *split, number uint16, by int) bool {
	v := view{s.set, s.port, number}
	old := s.numbers[number]
	s.numbers[number] = old + by
	switch {
	case old == 0:
		t.views[v.name()] = v
		return true
	case old+by == 0:
		delete(s.numbers, number)
		delete(t.views, v.name())
		return true
	default:
		return false
	}
}

// eachSet calls yield for the sets that select these labels in a namespace.
func (t *sets) eachSet(s *space, labels map[string]string, yield func(*set)) {
	if s.own != nil {
		s.own.sets.match(labels, yield)
	}
	if s.known {
		t.seeking.match(s.labels, func(c *scope) { c.sets.match(labels, yield) })
	}
	if t.any != nil {
		t.any.sets.match(labels, yield)
	}
}
