package plan

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/nat"
)

// placed is a pod without an address, with its binding.
type placed struct {
	pod   *corev1.Pod
	bound binding.Bound
}

func (c *compiler) chooseSubnet(s *subnet) { c.chosen[s] = struct{}{} }

func (c *compiler) chooseVPC(v *vpc) { c.chosenVPCs[v] = struct{}{} }

// choose completes what this plan computes: the subnets that changes name, those of pods to be placed, and with a subnet the pods that want
// one of its addresses. It returns these pods in the order in which they get addresses.
func (c *compiler) choose() []placed {
	for uid := range c.ranges {
		if s := c.byUID[uid]; s != nil {
			c.chooseSubnet(s)
		}
	}
	for name := range c.named {
		if s := c.byName[name]; s != nil {
			c.chooseSubnet(s)
		}
	}
	for name := range c.routers {
		if v := c.vpcs[name]; v != nil {
			c.chooseVPC(v)
		}
	}
	c.readGateways()
	b := &placer{compiler: c, seen: map[string]placed{}}
	c.changedPods(b.place)
	b.more = slices.AppendSeq(b.more, maps.Keys(c.chosen))
	done := map[*subnet]bool{} // pods that want such a subnet since then are placed already
	for len(b.more) > 0 {
		s := b.more[len(b.more)-1]
		b.more = b.more[:len(b.more)-1]
		if done[s] {
			continue
		}
		done[s] = true
		c.chooseSubnet(s)
		for _, pod := range maps.Clone(c.wants[s.object.Name]) {
			b.place(pod)
		}
	}
	for s := range c.chosen {
		s.open()
		if v := c.vpcs[s.object.Spec.Vpc]; v != nil && s.object.DeletionTimestamp != nil {
			c.chooseVPC(v)
		}
	}
	return b.pods()
}

// placer collects the pods to place, and the subnets that may give them addresses.
type placer struct {
	*compiler
	seen map[string]placed // by "<namespace>/<name>"
	more []*subnet         // to choose
}

// place records a pod's binding. The address that the pod wanted before may now be assigned to another pod.
func (b *placer) place(pod *corev1.Pod) {
	key := pod.Namespace + "/" + pod.Name
	if _, done := b.seen[key]; done {
		return
	}
	bound, is := b.bindings.Of(placement.Pod{Namespace: pod.Namespace, Name: pod.Name, Annotations: pod.Annotations}, b.namespace(pod.Namespace))
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
	if s := b.byName[name]; s != nil {
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
		if _, bound := c.bindings.Of(placement.Pod{Namespace: name}, c.namespace(name)); !bound {
			continue
		}
		for _, pod := range pods {
			visit(pod)
		}
	}
}

// readGateways reads the specifications of gateways, EIPs and rules, and chooses the external subnets, whose addresses only these objects
// get.
func (c *compiler) readGateways() {
	if c.natChanged {
		c.gatewaysChanged = true
		c.listed = c.natObjects()
		c.nat = nat.Parse(c.listed)
		c.gatesByAge = slices.SortedFunc(maps.Values(c.nat.Gateways), func(a, b *nat.Gateway) int { return a.Age.Compare(b.Age) })
		c.eipsByAge = slices.SortedFunc(maps.Values(c.nat.EIPs), func(a, b *nat.EIP) int { return a.Value.Compare(b.Value.Age) })
		c.nameForNAT()
	}
	external := c.natChanged
	for s := range c.chosen {
		external = external || s.value.Definition != ""
	}
	if c.natChanged = external; !external {
		return
	}
	c.gatewaysChanged = true
	for _, s := range c.external {
		c.chooseSubnet(s)
	}
}

// nameForNAT records the VPCs and Subnets that gateways and EIPs name, and the VPCs of these Subnets.
func (c *compiler) nameForNAT() {
	c.natNames = newNames()
	for _, g := range c.gatesByAge {
		c.natNames.vpcs[g.Value.VPC] = struct{}{}
		c.natNames.subnets[g.Value.Subnet], c.natNames.subnets[g.Value.External] = struct{}{}, struct{}{}
	}
	for _, e := range c.eipsByAge {
		c.natNames.subnets[e.Value.External] = struct{}{}
	}
	for name := range c.natNames.subnets {
		if s := c.objects.subnets[name]; s != nil {
			c.natNames.vpcs[s.Spec.Vpc] = struct{}{}
		}
	}
}
