package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// Index keeps pods, namespaces and policies, and computes what the policies mean. It must not be used concurrently. The zero value is not
// usable; New returns an Index. Objects may come in any order.
type Index struct {
	node     string
	spaces   map[string]*space
	known    holders[*space]
	pods     map[Key]*Pod
	groups   map[Key]*group
	at       map[netip.Addr][]*Pod
	policies map[Key]*bound
	scopes   map[scopeKey]*scope
	// seeking are the scopes that select namespaces.
	seeking seekers[*scope]
	// any is the scope of all namespaces, if it has sets.
	any  *scope
	sets map[string]*set
	// views are the sets, and their parts, that rules name.
	views map[SetName]view
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

// New returns an empty index. If node is not "", effects name the pods of that node only, and cost less.
func New(node string) *Index {
	return &Index{
		node: node, spaces: map[string]*space{}, pods: map[Key]*Pod{}, groups: map[Key]*group{}, at: map[netip.Addr][]*Pod{},
		policies: map[Key]*bound{}, scopes: map[scopeKey]*scope{}, sets: map[string]*set{}, views: map[SetName]view{},
	}
}

// Isolation returns in which directions a pod is isolated. ok is false if the index does not have the pod, or if the pod's traffic is not
// its own (it is on its node's network, or has ended). A network keeps such a pod closed.
func (x *Index) Isolation(pod Key) (isolation Isolation, ok bool) {
	g, ok := x.groups[pod]
	if !ok {
		return Isolation{}, false
	}
	return g.isolation(), true
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

// Policies returns the policies that isolate a pod in any direction, sorted: those whose rules may allow traffic to or from the pod.
func (x *Index) Policies(pod Key) []Key {
	var list []Key
	if g, ok := x.groups[pod]; ok && g.space.own != nil {
		g.space.own.sets.match(g.labels, func(s *set) { list = slices.AppendSeq(list, maps.Keys(s.policies)) })
	}
	slices.SortFunc(list, compareKeys)
	return list
}

// Addresses returns the addresses of a set, sorted; none if no rule names it.
func (x *Index) Addresses(name SetName) []netip.Addr {
	var list []netip.Addr
	if v, ok := x.views[name]; ok {
		x.each(v, func(p *Pod) {
			for _, ip := range p.Addresses {
				if v.set.has(ip) {
					list = append(list, ip)
				}
			}
		})
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// Pods returns the pods of a set, including those without an address yet, sorted; none if no rule names the set.
func (x *Index) Pods(name SetName) []Key {
	var list []Key
	if v, ok := x.views[name]; ok {
		x.each(v, func(p *Pod) { list = append(list, p.Key) })
	}
	slices.SortFunc(list, compareKeys)
	return list
}

// Has reports whether a pod is in a set.
func (x *Index) Has(name SetName, pod Key) bool {
	v, named := x.views[name]
	g, known := x.groups[pod]
	return named && known && v.selects(g) && v.has(x.pods[pod])
}

func (v view) selects(g *group) bool {
	return v.set.scope.covers(g.space) && v.set.pods.Matches(g.labels)
}

// each calls yield for every pod of a view.
func (x *Index) each(v view, yield func(*Pod)) {
	x.eachSpace(v.set.scope, func(s *space) { s.each(v, yield) })
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

func (x *Index) eachSpace(c *scope, yield func(*space)) {
	switch c.kind {
	case oneNamespace:
		if s, ok := x.spaces[c.name]; ok {
			yield(s)
		}
	case someNamespaces:
		x.known.match(c.selector, yield)
	default:
		for _, s := range x.spaces {
			yield(s)
		}
	}
}

// eachSet calls yield for the sets that select these labels in a namespace.
func (x *Index) eachSet(s *space, labels map[string]string, yield func(*set)) {
	if s.own != nil {
		s.own.sets.match(labels, yield)
	}
	if s.known {
		x.seeking.match(s.labels, func(c *scope) { c.sets.match(labels, yield) })
	}
	if x.any != nil {
		x.any.sets.match(labels, yield)
	}
}

// SetPod adds or replaces a pod.
func (x *Index) SetPod(pod Pod) Effect {
	if pod.HostNetwork || pod.Ended {
		return x.DeletePod(pod.Key)
	}
	old := x.pods[pod.Key]
	if old != nil && reflect.DeepEqual(*old, pod) {
		return Effect{}
	}
	return x.movePod(old, &pod)
}

// DeletePod deletes a pod.
func (x *Index) DeletePod(pod Key) Effect {
	old, ok := x.pods[pod]
	if !ok {
		return Effect{}
	}
	return x.movePod(old, nil)
}

// movePod replaces one value of a pod by another; nil is none.
func (x *Index) movePod(old, pod *Pod) Effect {
	key := cmp.Or(pod, old).Key
	s := x.space(key.Namespace)
	c := x.begin()
	touched := map[*set]struct{}{}
	for _, p := range []*Pod{old, pod} {
		if p != nil {
			x.eachSet(s, p.Labels, func(set *set) { touched[set] = struct{}{} })
		}
	}
	for set := range touched {
		c.touch(set, old)
		c.touch(set, pod)
	}
	before, was := x.Isolation(key)
	c.before()
	if old != nil {
		c.count(touched, old, -1)
		x.removePod(old)
	}
	if pod != nil {
		x.addPod(s, pod)
		c.count(touched, pod, 1)
	}
	after, is := x.Isolation(key)
	changed := before != after || was != is || x.concerns(old) != x.concerns(pod)
	if changed && (x.concerns(old) || x.concerns(pod)) {
		c.pods[key] = struct{}{}
	}
	x.tidy(s)
	return c.effect()
}

// concerns reports whether effects name the pod.
func (x *Index) concerns(p *Pod) bool { return p != nil && (x.node == "" || p.Node == x.node) }

func (x *Index) addPod(s *space, pod *Pod) {
	name := labelsText(pod.Labels)
	g, ok := s.groups[name]
	if !ok {
		g = &group{space: s, name: name, labels: pod.Labels, pods: map[*Pod]struct{}{}}
		s.groups[name] = g
		s.find.add(g, g.labels)
	}
	g.pods[pod] = struct{}{}
	x.pods[pod.Key], x.groups[pod.Key] = pod, g
	for _, ip := range pod.Addresses {
		x.at[ip] = append(x.at[ip], pod)
	}
}

func (x *Index) removePod(pod *Pod) {
	g := x.groups[pod.Key]
	delete(g.pods, pod)
	if len(g.pods) == 0 {
		delete(g.space.groups, g.name)
		g.space.find.remove(g)
	}
	delete(x.pods, pod.Key)
	delete(x.groups, pod.Key)
	for _, ip := range pod.Addresses {
		rest := slices.DeleteFunc(x.at[ip], func(p *Pod) bool { return p == pod })
		if x.at[ip] = rest; len(rest) == 0 {
			delete(x.at, ip)
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

// SetNamespace adds or replaces a namespace.
func (x *Index) SetNamespace(namespace Namespace) Effect {
	s := x.space(namespace.Name)
	if s.known && maps.Equal(s.labels, namespace.Labels) {
		return Effect{}
	}
	return x.moveNamespace(s, true, namespace.Labels)
}

// DeleteNamespace deletes a namespace. No namespace selector matches the pods that remain in it.
func (x *Index) DeleteNamespace(name string) Effect {
	s, ok := x.spaces[name]
	if !ok || !s.known {
		return Effect{}
	}
	return x.moveNamespace(s, false, nil)
}

func (x *Index) moveNamespace(s *space, known bool, labels map[string]string) Effect {
	// A scope that selects the namespace only before or only after the change loses or gains all its selected pods.
	lost, gained := map[*scope]struct{}{}, map[*scope]struct{}{}
	if s.known {
		x.seeking.match(s.labels, func(c *scope) { lost[c] = struct{}{} })
	}
	if known {
		x.seeking.match(labels, func(c *scope) { gained[c] = struct{}{} })
	}
	for both := range lost {
		if _, ok := gained[both]; ok {
			delete(lost, both)
			delete(gained, both)
		}
	}
	c := x.begin()
	s.eachPodOf(lost, c.touch)
	s.eachPodOf(gained, c.touch)
	c.before()
	s.eachPodOf(lost, func(set *set, p *Pod) { c.countSet(set, p, -1) })
	if s.known {
		x.known.remove(s)
	}
	if s.known, s.labels = known, labels; known {
		x.known.add(s, labels)
	}
	s.eachPodOf(gained, func(set *set, p *Pod) { c.countSet(set, p, 1) })
	x.tidy(s)
	return c.effect()
}

// eachPodOf calls yield for the namespace's pods that sets of the scopes select, if the scopes have the namespace.
func (s *space) eachPodOf(scopes map[*scope]struct{}, yield func(*set, *Pod)) {
	for c := range scopes {
		for set := range c.sets.selectors {
			s.each(view{set: set}, func(p *Pod) { yield(set, p) })
		}
	}
}

// space returns the namespace of a name, and makes it if it is missing.
func (x *Index) space(name string) *space {
	s, ok := x.spaces[name]
	if !ok {
		s = &space{name: name, groups: map[string]*group{}}
		x.spaces[name] = s
	}
	return s
}

// tidy deletes a namespace that is empty.
func (x *Index) tidy(s *space) {
	if !s.known && s.own == nil && len(s.groups) == 0 {
		delete(x.spaces, s.name)
	}
}
