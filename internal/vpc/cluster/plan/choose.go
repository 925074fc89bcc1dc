package plan

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
)

// placed is a pod without an address, with its binding.
type placed struct {
	pod   *corev1.Pod
	bound binding.Bound
}

// choose completes what this plan computes: the subnets that changes name, those of pods to be placed, and with a subnet the pods that want
// one of its addresses. It returns these pods in the order in which they get addresses.
func (c *compiler) choose() []placed {
	for uid := range c.ranges {
		c.chosen.Subnet(c.network.SubnetOf(uid))
	}
	for name := range c.named {
		c.chosen.Subnet(c.network.Subnet(name))
	}
	for name := range c.routers {
		c.chosen.VPC(c.network.VPC(name))
	}
	c.gateways.Read(&c.chosen)
	b := &placer{compiler: c, seen: map[string]placed{}}
	c.changedPods(b.place)
	b.more = slices.AppendSeq(b.more, maps.Keys(c.chosen.Subnets))
	done := map[*topology.Subnet]bool{} // pods that want such a subnet since then are placed already
	for len(b.more) > 0 {
		s := b.more[len(b.more)-1]
		b.more = b.more[:len(b.more)-1]
		if done[s] {
			continue
		}
		done[s] = true
		c.chosen.Subnet(s)
		for _, pod := range maps.Clone(c.wants[s.Object.Name]) {
			b.place(pod)
		}
	}
	for s := range c.chosen.Subnets {
		s.Open()
		if s.Object.DeletionTimestamp != nil {
			c.chosen.VPC(c.network.VPC(s.Object.Spec.Vpc))
		}
	}
	return b.pods()
}

// placer collects the pods to place, and the subnets that may give them addresses.
type placer struct {
	*compiler
	seen map[string]placed  // by "<namespace>/<name>"
	more []*topology.Subnet // to choose
}

// place records a pod's binding. The address that the pod wanted before may now be assigned to another pod.
func (b *placer) place(pod *corev1.Pod) {
	key := pod.Namespace + "/" + pod.Name
	if _, done := b.seen[key]; done {
		return
	}
	bound, is := b.network.Bindings().Of(placement.Pod{Namespace: pod.Namespace, Name: pod.Name, Annotations: pod.Annotations}, b.namespace(pod.Namespace))
	delete(b.waiting, key)
	for _, name := range b.unwant(key) {
		b.add(name)
	}
	if !is {
		b.seen[key] = placed{}
		return
	}
	b.seen[key] = placed{pod, bound}
	for _, name := range bound.Names {
		if b.wants[name] == nil {
			b.wants[name] = map[string]*corev1.Pod{}
		}
		b.wants[name][key] = pod
		b.wanted[key] = append(b.wanted[key], name)
		b.add(name)
	}
}

func (b *placer) add(name string) {
	if s := b.network.Subnet(name); s != nil {
		b.more = append(b.more, s)
	}
}

// pods returns the bound pods in the order in which they get addresses.
func (b *placer) pods() []placed {
	var pods []placed
	for _, p := range b.seen {
		if p.pod != nil {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(x, y placed) int {
		a, b := x.pod, y.pod
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods
}

func (c *compiler) namespace(name string) placement.Namespace {
	n := c.objects.namespaces[name]
	if n == nil {
		return placement.Namespace{}
	}
	return placement.Namespace{Name: n.Name, Annotations: n.Annotations, Labels: n.Labels}
}

// changedPods visits the pods to place. If these are all pods, a namespace without bindings is skipped as a whole.
func (c *compiler) changedPods(visit func(*corev1.Pod)) {
	for _, pod := range c.podsChanged {
		visit(pod)
	}
	if !c.everyPod {
		return
	}
	for _, pods := range c.objects.asking {
		for _, pod := range pods {
			visit(pod)
		}
	}
	for name, pods := range c.objects.open {
		if _, bound := c.network.Bindings().Of(placement.Pod{Namespace: name}, c.namespace(name)); !bound {
			continue
		}
		for _, pod := range pods {
			visit(pod)
		}
	}
}

// placeRebound makes the plan place the pods whose binding may have changed: those that name the Subnet, and those of namespaces that it
// names, or that name it.
func (c *compiler) placeRebound(r topology.Rebound) {
	maps.Copy(c.podsChanged, c.objects.asking[r.Name])
	for namespace := range c.objects.choosing[r.Name] {
		maps.Copy(c.podsChanged, c.objects.open[namespace])
	}
	for _, b := range []*binding.Subnet{r.Before, r.Now} {
		if b == nil {
			continue
		}
		for _, namespace := range b.Namespaces {
			maps.Copy(c.podsChanged, c.objects.open[namespace])
		}
		c.placeSelected(b.Selectors)
	}
}

// placeSelected makes the plan place the pods of the namespaces that one of the selectors selects.
func (c *compiler) placeSelected(selectors []labels.Selector) {
	for _, selector := range selectors {
		for namespace, pods := range c.objects.open {
			if n := c.objects.namespaces[namespace]; n != nil && selector.Matches(labels.Set(n.Labels)) {
				maps.Copy(c.podsChanged, pods)
			}
		}
	}
}
