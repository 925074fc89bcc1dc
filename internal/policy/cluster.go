package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// cluster has namespaces and their pods. It finds pods by their address, and by the selectors of sets.
type cluster struct {
	spaces map[string]*space
	known  holders[*space]
	pods   map[Key]*Pod
	groups map[Key]*group
	at     map[netip.Addr][]*Pod
}

func newCluster() *cluster {
	return &cluster{spaces: map[string]*space{}, pods: map[Key]*Pod{}, groups: map[Key]*group{}, at: map[netip.Addr][]*Pod{}}
}

// space is a namespace.
type space struct {
	name   string
	known  bool
	labels map[string]string
	// own is the scope of this namespace alone, if it has sets.
	own    *scope
	groups map[string]*group
	find   holders[*group]
}

// group is the pods of a namespace that have equal labels. Selectors are matched with groups, not with pods.
type group struct {
	space  *space
	name   string
	labels map[string]string
	pods   map[*Pod]struct{}
}

// space returns the namespace of a name, and makes it if it is missing.
func (c *cluster) space(name string) *space {
	s, ok := c.spaces[name]
	if !ok {
		s = &space{name: name, groups: map[string]*group{}}
		c.spaces[name] = s
	}
	return s
}

// tidy deletes a namespace that is empty.
func (c *cluster) tidy(s *space) {
	if !s.known && s.own == nil && len(s.groups) == 0 {
		delete(c.spaces, s.name)
	}
}

// describe sets whether a namespace exists, and its labels.
func (c *cluster) describe(s *space, known bool, labels map[string]string) {
	if s.known {
		c.known.remove(s)
	}
	if s.known, s.labels = known, labels; known {
		c.known.add(s, labels)
	}
}

// add adds a pod to its namespace.
func (c *cluster) add(s *space, pod *Pod) {
	name := labelsText(pod.Labels)
	g, ok := s.groups[name]
	if !ok {
		g = &group{space: s, name: name, labels: pod.Labels, pods: map[*Pod]struct{}{}}
		s.groups[name] = g
		s.find.add(g, g.labels)
	}
	g.pods[pod] = struct{}{}
	c.pods[pod.Key], c.groups[pod.Key] = pod, g
	for _, ip := range pod.Addresses {
		c.at[ip] = append(c.at[ip], pod)
	}
}

// remove removes a pod, but not its namespace: tidy does.
func (c *cluster) remove(pod *Pod) {
	g := c.groups[pod.Key]
	delete(g.pods, pod)
	if len(g.pods) == 0 {
		delete(g.space.groups, g.name)
		g.space.find.remove(g)
	}
	delete(c.pods, pod.Key)
	delete(c.groups, pod.Key)
	for _, ip := range pod.Addresses {
		rest := slices.DeleteFunc(c.at[ip], func(p *Pod) bool { return p == pod })
		if c.at[ip] = rest; len(rest) == 0 {
			delete(c.at, ip)
		}
	}
}

// labelsText is equal for equal labels. Labels have no line breaks.
func labelsText(labels map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		b.WriteString(key)
		b.WriteByte('=')
		b.WriteString(labels[key])
		b.WriteByte('\n')
	}
	return b.String()
}

// isolation computes the isolation from the policies of the pods' own namespace.
func (g *group) isolation() Isolation {
	var isolated, ends [directions]bool
	if g.space.own != nil {
		g.space.own.sets.match(g.labels, func(s *set) {
			for d := range s.isolates {
				isolated[d] = isolated[d] || s.isolates[d] > 0
				ends[d] = ends[d] || s.isolates[d] > s.keeps[d]
			}
		})
	}
	return Isolation{
		Ingress: isolated[Ingress], KeepsIngress: isolated[Ingress] && !ends[Ingress],
		Egress: isolated[Egress], KeepsEgress: isolated[Egress] && !ends[Egress],
	}
}

// each calls yield for every pod of a view.
func (c *cluster) each(v view, yield func(*Pod)) {
	c.eachSpace(v.set.scope, func(s *space) { s.each(v, yield) })
}

func (s *space) each(v view, yield func(*Pod)) {
	s.find.match(v.set.pods, func(g *group) {
		for p := range g.pods {
			if v.has(p) {
				yield(p)
			}
		}
	})
}

func (c *cluster) eachSpace(in *scope, yield func(*space)) {
	switch in.kind {
	case oneNamespace:
		if s, ok := c.spaces[in.name]; ok {
			yield(s)
		}
	case someNamespaces:
		c.known.match(in.selector, yield)
	default:
		for _, s := range c.spaces {
			yield(s)
		}
	}
}

// eachPodOf calls yield for the namespace's pods that sets of the scopes select, if the scopes have the namespace.
func (s *space) eachPodOf(scopes map[*scope]struct{}, yield func(*set, *Pod)) {
	for c := range scopes {
		for set := range c.sets.selectors {
			s.each(view{set: set}, func(p *Pod) { yield(set, p) })
		}
	}
}

// selects reports whether the set of a view selects the pods of a group.
func (v view) selects(g *group) bool {
	return v.set.scope.covers(g.space) && v.set.pods.Matches(g.labels)
}

func (c *cluster) hasPod(v view, pod Key) bool {
	g, ok := c.groups[pod]
	return ok && v.selects(g) && v.has(c.pods[pod])
}

func (c *cluster) hasAddress(v view, ip netip.Addr) bool {
	return v.set.has(ip) && slices.ContainsFunc(c.at[ip], func(p *Pod) bool { return c.hasPod(v, p.Key) })
}
