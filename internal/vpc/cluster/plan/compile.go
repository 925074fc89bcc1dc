package plan

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan/report"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
	"weft.dev/weft/internal/vpc/northbound"
)

// compiler makes one plan, in steps that each read the results of those before.
type compiler struct {
	planner *Planner
	plan    *Plan
	now     metav1.Time
	// chosen are computed.
	chosen *topology.Chosen
}

// Plan makes the plan for the changes since the last plan, which it assumes to be executed. If it was not, Again has to be called.
//
// It computes only the Subnets and the VPCs that a change concerns.
func (p *Planner) Plan(now metav1.Time) *Plan {
	c := compiler{planner: p, now: now, chosen: topology.NewChosen(), plan: &Plan{
		Fragments: map[string]northbound.Rows{}, Waiting: p.pending.waiting, Closed: p.closed, assigning: map[Object]struct{}{},
	}}
	c.shape()
	ips := c.address(c.choose())
	c.retire()
	c.compile(ips)
	c.finalizers()
	if p.gateways.Changed() {
		c.reportGateways()
	}
	c.sort()
	p.dirty.done()
	p.pending.done()
	return c.plan
}

// shape decides which VPCs and Subnets exist, and what else the plan has to compute therefore.
func (c *compiler) shape() {
	change := c.planner.network.Shape(c.chosen)
	c.planner.dirty.gone = append(change.Gone, c.planner.dirty.gone...)
	for _, s := range change.Before.Subnets {
		if uid := string(s.Object.UID); c.planner.network.SubnetOf(uid) == nil {
			c.planner.dirty.ranges[uid] = struct{}{} // its pods have no ports any more
		}
	}
	for _, r := range change.Rebound {
		c.planner.pending.rebound(r)
	}
	c.planner.gateways.Shaped(&change)
}

// choose completes what this plan computes: the Subnets that changes name, those of pods to be bound, and with a Subnet the pods that want
// one of its addresses. It returns these pods.
func (c *compiler) choose() []bound {
	for uid := range c.planner.dirty.ranges {
		c.chosen.Subnet(c.planner.network.SubnetOf(uid))
	}
	for name := range c.planner.dirty.subnets {
		c.chosen.Subnet(c.planner.network.Subnet(name))
	}
	for name := range c.planner.dirty.vpcs {
		c.chosen.VPC(c.planner.network.VPC(name))
	}
	c.planner.gateways.Read(c.chosen)
	all := chooser{network: c.planner.network, pending: &c.planner.pending, chosen: c.chosen, seen: map[string]bound{}}
	return all.choose()
}

// address keeps the addresses that pods, gateways and EIPs have, and then assigns those that gateways, EIPs and pods need. It returns the IP
// objects of chosen Subnets, by name.
func (c *compiler) address(pods []bound) map[string]*kubeovn.IP {
	for s := range c.chosen.Subnets {
		c.planner.dirty.ranges[string(s.Object.UID)] = struct{}{}
	}
	a := addresser{
		network: c.planner.network, gateways: c.planner.gateways, assigned: &c.planner.assigned, chosen: c.chosen, vpcs: map[string]string{},
		ips: map[string]*kubeovn.IP{}, former: map[string]struct{}{},
	}
	for uid := range c.planner.dirty.ranges {
		for _, ip := range c.planner.assigned.ipsIn[uid] {
			delete(c.planner.closed, podName(ip))
		}
		a.keep(uid)
	}
	c.planner.gateways.Assign(c.chosen)
	for _, p := range pods {
		if why := a.assign(p); why != "" {
			c.planner.pending.waiting[nameOf(p.pod)] = why
		}
	}
	c.plan.Create, c.plan.Delete, c.plan.Confirm, c.plan.vpcs = a.created, a.removed, a.unconfirmed, a.vpcs
	return a.ips
}

// retire removes the rows of objects that are being deleted and that nothing uses any more, and their finalizers.
func (c *compiler) retire() {
	vpcs, subnets := c.planner.network.Retire(c.chosen)
	for _, s := range subnets {
		if report.Held(s.Object) {
			changed := s.Object.DeepCopy()
			report.Release(changed)
			c.plan.Subnets = append(c.plan.Subnets, changed)
		}
	}
	for _, v := range vpcs {
		if report.Held(v.Object) {
			changed := v.Object.DeepCopy()
			report.Release(changed)
			c.plan.Vpcs = append(c.plan.Vpcs, changed)
		}
	}
}

// compile compiles the rows of what is chosen, and plans its status.
func (c *compiler) compile(ips map[string]*kubeovn.IP) {
	rows := rows{network: c.planner.network, fragments: c.plan.Fragments}
	status := reporter{plan: c.plan, refusals: c.planner.refusals, now: c.now}
	for s := range c.chosen.Subnets {
		rows.addSwitch(s)
		if s.Exists || s.Holders > 0 || s.Object.DeletionTimestamp == nil {
			status.subnet(s)
		}
	}
	for v := range c.chosen.VPCs {
		switch result := rows.addRouter(v); {
		case v.Exists:
			status.router(v, &result)
		case v.Object.Name == kubeovn.DefaultVpc:
			status.defaultVPC(v)
		}
	}
	for _, ip := range ips {
		if s, addr := rows.place(ip); s != nil {
			rows.addPort(s, addr, ip, c.isolated(ip))
		}
	}
	rows.remove(c.planner.dirty.gone)
}

// isolated returns and records the directions in which NetworkPolicies isolate the pod of an IP object.
func (c *compiler) isolated(ip *kubeovn.IP) northbound.Closed {
	pod := c.planner.assigned.pods[types.UID(ip.Spec.PodUID)]
	if pod == nil {
		return northbound.Closed{}
	}
	closed := c.planner.isolations.of(pod, ip)
	if closed == (northbound.Closed{}) {
		delete(c.planner.closed, nameOf(pod))
	} else {
		c.planner.closed[nameOf(pod)] = closed
	}
	return closed
}

// reportGateways plans the workloads of NAT gateways, and what to report on their objects.
func (c *compiler) reportGateways() {
	r := c.planner.gateways.Report(c.now)
	c.plan.Updates, c.plan.Statuses = r.Updates, r.Statuses
	c.plan.CreateWorkloads, c.plan.UpdateWorkloads, c.plan.DeleteWorkloads = r.Workloads.Create, r.Workloads.Update, r.Workloads.Delete
	for _, object := range r.Assigning {
		c.plan.assigning[object] = struct{}{}
	}
}

// finalizers adds the finalizers of chosen objects.
func (c *compiler) finalizers() {
	for v := range c.chosen.VPCs {
		if v.Object.DeletionTimestamp == nil && v.Object.Name != kubeovn.DefaultVpc && !report.Held(v.Object) {
			changed := v.Object.DeepCopy()
			report.Hold(changed)
			c.plan.Vpcs = append(c.plan.Vpcs, changed)
		}
	}
	for s := range c.chosen.Subnets {
		if s.Object.DeletionTimestamp == nil && !report.Held(s.Object) {
			changed := s.Object.DeepCopy()
			report.Hold(changed)
			c.plan.Subnets = append(c.plan.Subnets, changed)
		}
	}
}

// sort sorts what was computed in any order.
func (c *compiler) sort() {
	slices.SortFunc(c.plan.Delete, report.CompareNames)
	slices.SortFunc(c.plan.Confirm, report.CompareNames)
	slices.SortFunc(c.plan.Vpcs, report.CompareNames)
	slices.SortFunc(c.plan.Subnets, report.CompareNames)
	slices.SortFunc(c.plan.VpcStatus, report.CompareNames)
	slices.SortFunc(c.plan.SubnetStatus, report.CompareNames)
}
