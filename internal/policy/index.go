package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
)

// Index keeps pods, namespaces and policies, and computes what the policies mean. It must not be used concurrently. The zero value is not
// usable; New returns an Index. Objects may come in any order.
//
// It has three parts, of which each uses those before: cluster has namespaces and pods, sets has the sets of pods that rules name, and
// policies has the policies with their sets. A method that changes one of them returns the Effect on sets, policies and pods (change).
type Index struct {
	node     string
	cluster  *cluster
	sets     *sets
	policies policies
}

// New returns an empty index. If node is not "", effects name the pods of that node only, and cost less.
func New(node string) *Index {
	c := newCluster()
	s := newSets(c)
	return &Index{node: node, cluster: c, sets: s, policies: policies{s, map[Key]*bound{}}}
}

// Isolation returns in which directions a pod is isolated. ok is false if the index does not have the pod, or if the pod's traffic is not
// its own (it is on its node's network, or has ended). A network keeps such a pod closed.
func (x *Index) Isolation(pod Key) (isolation Isolation, ok bool) {
	g, ok := x.cluster.groups[pod]
	if !ok {
		return Isolation{}, false
	}
	return g.isolation(), true
}

// Policies returns the policies that isolate a pod in any direction, sorted: those whose rules may allow traffic to or from the pod.
func (x *Index) Policies(pod Key) []Key {
	var list []Key
	if g, ok := x.cluster.groups[pod]; ok && g.space.own != nil {
		g.space.own.sets.match(g.labels, func(s *set) { list = slices.AppendSeq(list, maps.Keys(s.policies)) })
	}
	slices.SortFunc(list, compareKeys)
	return list
}

// HasPolicy reports whether the index has a policy.
func (x *Index) HasPolicy(policy Key) bool {
	_, has := x.policies.bound[policy]
	return has
}

// Isolates reports whether a policy isolates a pod in any direction.
func (x *Index) Isolates(policy, pod Key) bool {
	if policy.Namespace != pod.Namespace {
		return false
	}
	b, bound := x.policies.bound[policy]
	g, known := x.cluster.groups[pod]
	return bound && known && b.policy.Pods.Matches(g.labels)
}

// Addresses returns the addresses of a set, sorted; none if no rule names it.
func (x *Index) Addresses(name SetName) []netip.Addr {
	var list []netip.Addr
	if v, ok := x.sets.views[name]; ok {
		x.cluster.each(v, func(p *Pod) {
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
	if v, ok := x.sets.views[name]; ok {
		x.cluster.each(v, func(p *Pod) { list = append(list, p.Key) })
	}
	slices.SortFunc(list, compareKeys)
	return list
}

// Has reports whether a pod is in a set.
func (x *Index) Has(name SetName, pod Key) bool {
	v, named := x.sets.views[name]
	g, known := x.cluster.groups[pod]
	return named && known && v.selects(g) && v.has(x.cluster.pods[pod])
}

// SetPod adds or replaces a pod.
func (x *Index) SetPod(pod Pod) Effect {
	if pod.HostNetwork || pod.Ended {
		return x.DeletePod(pod.Key)
	}
	old := x.cluster.pods[pod.Key]
	if old != nil && reflect.DeepEqual(*old, pod) {
		return Effect{}
	}
	return x.movePod(old, &pod)
}

// DeletePod deletes a pod.
func (x *Index) DeletePod(pod Key) Effect {
	old, ok := x.cluster.pods[pod]
	if !ok {
		return Effect{}
	}
	return x.movePod(old, nil)
}

// movePod replaces one value of a pod by another; nil is none.
func (x *Index) movePod(old, pod *Pod) Effect {
	key := cmp.Or(pod, old).Key
	s := x.cluster.space(key.Namespace)
	c := x.begin()
	touched := map[*set]struct{}{}
	for _, p := range []*Pod{old, pod} {
		if p != nil {
			x.sets.eachSet(s, p.Labels, func(set *set) { touched[set] = struct{}{} })
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
		x.cluster.remove(old)
	}
	if pod != nil {
		x.cluster.add(s, pod)
		c.count(touched, pod, 1)
	}
	after, is := x.Isolation(key)
	changed := before != after || was != is || x.concerns(old) != x.concerns(pod)
	if changed && (x.concerns(old) || x.concerns(pod)) {
		c.pods[key] = struct{}{}
	}
	x.cluster.tidy(s)
	return c.effect()
}

// concerns reports whether effects name the pod.
func (x *Index) concerns(p *Pod) bool { return p != nil && (x.node == "" || p.Node == x.node) }

// SetNamespace adds or replaces a namespace.
func (x *Index) SetNamespace(namespace Namespace) Effect {
	s := x.cluster.space(namespace.Name)
	if s.known && maps.Equal(s.labels, namespace.Labels) {
		return Effect{}
	}
	return x.moveNamespace(s, true, namespace.Labels)
}

// DeleteNamespace deletes a namespace. No namespace selector matches the pods that remain in it.
func (x *Index) DeleteNamespace(name string) Effect {
	s, ok := x.cluster.spaces[name]
	if !ok || !s.known {
		return Effect{}
	}
	return x.moveNamespace(s, false, nil)
}

func (x *Index) moveNamespace(s *space, known bool, labels map[string]string) Effect {
	// A scope that selects the namespace only before or only after the change loses or gains all its selected pods.
	lost, gained := map[*scope]struct{}{}, map[*scope]struct{}{}
	if s.known {
		x.sets.seeking.match(s.labels, func(c *scope) { lost[c] = struct{}{} })
	}
	if known {
		x.sets.seeking.match(labels, func(c *scope) { gained[c] = struct{}{} })
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
	x.cluster.describe(s, known, labels)
	s.eachPodOf(gained, func(set *set, p *Pod) { c.countSet(set, p, 1) })
	x.cluster.tidy(s)
	return c.effect()
}
