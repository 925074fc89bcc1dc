package plan

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
)

// bound is a pod without an address, with its binding.
type bound struct {
	pod *corev1.Pod
	binding.Bound
}

// chooser completes what a plan computes: with a pod that needs an address the Subnets that may assign it one, and with a Subnet the pods
// that want one of its addresses.
type chooser struct {
	network *topology.Network
	pending *pending
	chosen  *topology.Chosen
	seen    map[string]bound   // by "<namespace>/<name>"
	more    []*topology.Subnet // to choose
}

// choose chooses from what is chosen already and the pods to bind, opens the chosen Subnets, and returns the bound pods in the order in which
// they get addresses.
func (c *chooser) choose() []bound {
	c.pending.each(c.network.Bindings(), c.bind)
	c.more = slices.AppendSeq(c.more, maps.Keys(c.chosen.Subnets))
	done := map[*topology.Subnet]bool{} // pods that want such a subnet since then are bound already
	for len(c.more) > 0 {
		s := c.more[len(c.more)-1]
		c.more = c.more[:len(c.more)-1]
		if done[s] {
			continue
		}
		done[s] = true
		c.chosen.Subnet(s)
		for _, pod := range maps.Clone(c.pending.wants.pods[s.Object.Name]) {
			c.bind(pod)
		}
	}
	for s := range c.chosen.Subnets {
		s.Open()
		if s.Object.DeletionTimestamp != nil {
			c.chosen.VPC(c.network.VPC(s.Object.Spec.Vpc))
		}
	}
	return c.inOrder()
}

// bind records a pod's binding. The address that the pod wanted before may now be assigned to another pod.
func (c *chooser) bind(pod *corev1.Pod) {
	key := nameOf(pod)
	if _, done := c.seen[key]; done {
		return
	}
	to, is := c.pending.bind(c.network.Bindings(), pod)
	delete(c.pending.waiting, key)
	c.add(c.pending.wants.remove(key))
	if !is {
		c.seen[key] = bound{}
		return
	}
	c.seen[key] = bound{pod, to}
	c.pending.wants.add(key, pod, to.Names)
	c.add(to.Names)
}

func (c *chooser) add(names []string) {
	for _, name := range names {
		if s := c.network.Subnet(name); s != nil {
			c.more = append(c.more, s)
		}
	}
}

// inOrder returns the bound pods in the order in which they get addresses: fixed ones first, so that none of these is assigned to another
// pod.
func (c *chooser) inOrder() []bound {
	var pods []bound
	for _, p := range c.seen {
		if p.pod != nil {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(x, y bound) int {
		a, b := x.pod, y.pod
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods
}

// rank is 0 for pods that request a specific address.
func rank(pod *corev1.Pod) int {
	if pod.Annotations[kubeovn.AnnotationIPAddress] != "" || pod.Annotations[kubeovn.AnnotationIPPool] != "" {
		return 0
	}
	return 1
}
