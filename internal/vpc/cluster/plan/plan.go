// Package plan decides, from all objects of VPCs, what their network is: rows of the northbound database, addresses of pods, and what to
// write to the objects. It is pure: the same objects result in the same plan, whatever their order.
//
// Assignments (addresses, tunnel keys) are stored in the objects themselves: IP objects, and the status of Vpc and Subnet. A plan keeps
// existing assignments before it makes new ones. Of objects that exclude each other, the older one is used.
//
// An object has rows as soon as it exists: rows whose owner was deleted are removed, by this controller or by the next one, which reads all
// rows first. A Subnet assigns addresses to pods once it and its Vpc have their finalizers. An object that is being deleted keeps its rows while other
// objects use it, and loses its finalizer in the plan that removes its rows; the writer commits rows before it writes objects.
package plan

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/cluster/plan/report"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// readyPorts is how many logical ports of each subnet are in the database before a pod needs them. A pod that uses one waits only for
// ovn-controller, not for a computation of northd.
const readyPorts = 8

// Objects are the input of a complete plan. They are not changed.
type Objects struct {
	Vpcs       []kubeovn.Vpc
	Subnets    []kubeovn.Subnet
	Gateways   []kubeovn.VpcNatGateway
	IPs        []kubeovn.IP
	EIPs       []kubeovn.IptablesEIP
	SNATs      []kubeovn.IptablesSnatRule
	DNATs      []kubeovn.IptablesDnatRule
	FIPs       []kubeovn.IptablesFIPRule
	Pods       []corev1.Pod
	Namespaces []corev1.Namespace
	Policies   []networkingv1.NetworkPolicy
	// Definitions are the configurations of NetworkAttachmentDefinitions, by "<name>.<namespace>".
	Definitions map[string]string
	// Workloads are the gateways' StatefulSets, and NAT the content of the ConfigMaps.
	Workloads []appsv1.StatefulSet
	NAT       objects.NATConfig
	// Now is the time for conditions that change.
	Now metav1.Time
}

// Object is any object of the API server.
type Object = report.Object

// Plan is what follows from the objects.
type Plan struct {
	// Fragments are rows of the northbound database by owner. For each owner in it, it has all rows, or none if the owner has none any more.
	// The first plan of a Planner has all owners.
	Fragments map[string]northbound.Rows
	// Create and Delete are IP objects. Create assigns an address.
	Create, Delete []*kubeovn.IP
	// Vpcs and Subnets are objects whose finalizers change; VpcStatus and SubnetStatus are objects whose status changes.
	Vpcs, VpcStatus       []*kubeovn.Vpc
	Subnets, SubnetStatus []*kubeovn.Subnet
	// Updates are objects of NAT gateways whose finalizers change, and Statuses those whose status changes: VpcNatGateways, EIPs and rules.
	Updates, Statuses []Object
	// CreateWorkloads, UpdateWorkloads and DeleteWorkloads are the gateways' StatefulSets.
	CreateWorkloads, UpdateWorkloads, DeleteWorkloads []*appsv1.StatefulSet
	// Closed are the directions in which pods with an address are closed, because NetworkPolicies isolate them, by "<namespace>/<name>".
	Closed map[string]northbound.Closed
	// Waiting has the reasons why pods that are bound to a Subnet have no address, by "<namespace>/<name>".
	Waiting map[string]string
	// assigning are the objects whose new status assigns an address or a tunnel key.
	assigning map[Object]struct{}
}

// Reports reports whether the new status of an object assigns nothing: it may be written after everything else, and later
// (Planner.Postpone).
func (p *Plan) Reports(object Object) bool {
	_, assigns := p.assigning[object]
	return !assigns
}

// Withhold removes from the plan what must not be written if the finalizer of an object of NAT gateways could not be written: its status,
// which assigns its address, and a gateway's new workload.
func (p *Plan) Withhold(object Object) {
	p.Statuses = slices.DeleteFunc(p.Statuses, func(o Object) bool {
		return reflect.TypeOf(o) == reflect.TypeOf(object) && o.GetName() == object.GetName()
	})
	if _, gateway := object.(*kubeovn.VpcNatGateway); gateway {
		p.CreateWorkloads = slices.DeleteFunc(p.CreateWorkloads, func(set *appsv1.StatefulSet) bool { return set.Name == nat.WorkloadName(object.GetName()) })
	}
}

// Assigns reports whether the plan assigns something that no two objects may have.
func (p *Plan) Assigns() bool {
	return len(p.Create)+len(p.VpcStatus)+len(p.SubnetStatus)+len(p.Statuses)+len(p.Updates) > 0
}

// Needs reports whether the pod needs the address that the IP object assigns to it.
func Needs(pod *corev1.Pod, ip *kubeovn.IP) bool {
	return string(pod.UID) == ip.Spec.PodUID && !objects.Ended(pod) && pod.Namespace == ip.Spec.Namespace && pod.Name == ip.Spec.PodName
}

// Compile makes the plan of all objects.
func Compile(o *Objects) *Plan {
	p := NewPlanner()
	p.Load(o)
	return p.Plan(o.Now)
}

// Bindings returns the Subnets for binding pods.
func Bindings(vpcs []kubeovn.Vpc, subnets []kubeovn.Subnet, gateways []kubeovn.VpcNatGateway) *binding.Subnets {
	network := topology.New()
	for i := range vpcs {
		network.SetVPC(&vpcs[i])
	}
	for i := range subnets {
		network.SetSubnet(&subnets[i])
	}
	for i := range gateways {
		network.SetGateway(nil, &gateways[i])
	}
	chosen := newChosen()
	network.Shape(&chosen)
	return network.Bindings()
}

// compiler makes one plan: it computes what is chosen, and can read everything.
type compiler struct {
	*Planner
	plan *Plan
	now  metav1.Time
	// chosen are computed, and ips are the IP objects of chosen subnets, kept and created, by name.
	chosen topology.Chosen
	ips    map[string]*kubeovn.IP
}

func newCompiler(p *Planner, now metav1.Time) *compiler {
	return &compiler{
		Planner: p, now: now, ips: map[string]*kubeovn.IP{}, chosen: newChosen(),
		plan: &Plan{Fragments: map[string]northbound.Rows{}, Waiting: p.waiting, Closed: p.closed, assigning: map[Object]struct{}{}},
	}
}

func newChosen() topology.Chosen {
	return topology.Chosen{VPCs: map[*topology.VPC]struct{}{}, Subnets: map[*topology.Subnet]struct{}{}}
}

// Plan makes the plan for the changes since the last plan, which it assumes to be executed. If it was not, Again has to be called.
//
// It computes only the Subnets and the VPCs that a change concerns.
func (p *Planner) Plan(now metav1.Time) *Plan {
	c := newCompiler(p, now)
	c.shape()
	pods := c.choose()
	c.pools()
	c.gateways.Assign(&c.chosen)
	c.pods(pods)
	c.retire()
	c.rows()
	c.statuses()
	c.finalizers()
	if p.gateways.Changed() {
		c.reportGateways()
	}
	c.sort()
	p.done()
	return c.plan
}

// reportGateways plans the workloads of NAT gateways, and what to report on their objects.
func (c *compiler) reportGateways() {
	r := c.gateways.Report(c.now)
	c.plan.Updates, c.plan.Statuses = r.Updates, r.Statuses
	c.plan.CreateWorkloads, c.plan.UpdateWorkloads, c.plan.DeleteWorkloads = r.Workloads.Create, r.Workloads.Update, r.Workloads.Delete
	for _, object := range r.Assigning {
		c.assigns(object, true)
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
	slices.SortFunc(c.plan.Vpcs, report.CompareNames)
	slices.SortFunc(c.plan.Subnets, report.CompareNames)
	slices.SortFunc(c.plan.VpcStatus, report.CompareNames)
	slices.SortFunc(c.plan.SubnetStatus, report.CompareNames)
}

// shape decides which VPCs and subnets exist, and what else the plan has to compute therefore.
func (c *compiler) shape() {
	change := c.network.Shape(&c.chosen)
	c.gone = append(c.gone, change.Gone...)
	for _, r := range change.Rebound {
		c.placeRebound(r)
	}
	c.gateways.Shaped(&change)
}

// retire removes the rows of objects that are being deleted and that nothing uses any more, and their finalizers.
func (c *compiler) retire() {
	vpcs, subnets := c.network.Retire(&c.chosen)
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

// rows compiles what is chosen and exists.
func (c *compiler) rows() {
	for s := range c.chosen.Subnets {
		c.plan.Fragments[s.Value.Owner()] = c.switchOf(s)
	}
	for v := range c.chosen.VPCs {
		c.plan.Fragments[v.Value.Owner()] = nil
		if v.Exists {
			c.router(v)
		}
	}
	c.ports()
	for _, owner := range c.gone {
		if _, there := c.plan.Fragments[owner]; !there {
			c.plan.Fragments[owner] = nil
		}
	}
}

// router compiles a VPC, and its status, which reports the result.
func (c *compiler) router(v *topology.VPC) {
	n := &northbound.Network{VPC: v.Value, Remotes: map[string]objects.VPC{}}
	for _, s := range v.Subnets {
		n.Subnets = append(n.Subnets, s.Value)
	}
	for _, peering := range v.Value.Peerings {
		if remote := c.network.VPC(peering.Remote); remote != nil && remote.Exists {
			n.Remotes[peering.Remote] = remote.Value
		}
	}
	result := northbound.Router(n)
	c.plan.Fragments[v.Value.Owner()] = result.Rows
	v.Report(result.Problems)
	c.vpcStatus(v, &result)
}

// ports compiles the ports of pods.
func (c *compiler) ports() {
	for _, ip := range c.ips {
		s := c.network.SubnetOf(ip.Spec.SubnetUID)
		addr, err := netip.ParseAddr(ip.Spec.V4IPAddress)
		if err != nil || s == nil || !s.Switched() {
			continue
		}
		port := northbound.Port{Addr: addr, Gateway: ip.Spec.NATGateway != ""}
		if ip.Spec.MacAddress != northbound.MAC(addr) { // not one of the ready ports
			port.MAC = ip.Spec.MacAddress
		}
		c.port(s, port)
		c.isolate(s, ip, addr)
	}
}

// isolate closes the address of a pod that NetworkPolicies isolate.
func (c *compiler) isolate(s *topology.Subnet, ip *kubeovn.IP, addr netip.Addr) {
	pod := c.objects.pods[types.UID(ip.Spec.PodUID)]
	if pod == nil {
		return
	}
	key, closed := pod.Namespace+"/"+pod.Name, c.isolated(pod, ip)
	delete(c.closed, key)
	if closed != (northbound.Closed{}) {
		c.closed[key] = closed
		maps.Copy(c.plan.Fragments[s.Value.Owner()], northbound.Isolation(&s.Value, addr, closed))
	}
}

// switchOf compiles a subnet without the ports of its pods.
func (c *compiler) switchOf(s *topology.Subnet) northbound.Rows {
	if !s.Switched() {
		return nil
	}
	rows := northbound.Switch(&s.Value, c.network.VPC(s.Value.VPC).Value.Meta)
	put := func(port northbound.Port) {
		key, row := northbound.SwitchPort(&s.Value, port)
		rows[key] = row
	}
	for _, addr := range s.Pool.Ahead(readyPorts) {
		put(northbound.Port{Addr: addr})
	}
	for _, addr := range s.LanIPs { // ready before the gateways' pods
		put(northbound.Port{Addr: addr, Gateway: true})
	}
	return rows
}

func (c *compiler) port(s *topology.Subnet, port northbound.Port) {
	key, row := northbound.SwitchPort(&s.Value, port)
	c.plan.Fragments[s.Value.Owner()][key] = row
}
