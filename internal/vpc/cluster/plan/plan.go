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
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// readyPorts is how many logical ports of each subnet are in the database before a pod needs them. A pod that uses one waits only for
// ovn-controller, not for a computation of northd.
const readyPorts = 8

// maxTunnelKey is the highest key of a datapath in OVN (ovn-nb(5), requested-tnl-key).
const maxTunnelKey = 1<<24 - 1

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
	return string(pod.UID) == ip.Spec.PodUID && !ended(pod) && pod.Namespace == ip.Spec.Namespace && pod.Name == ip.Spec.PodName
}

// Compile makes the plan of all objects.
func Compile(o *Objects) *Plan {
	p := NewPlanner()
	p.Load(o)
	return p.Plan(o.Now)
}

// Bindings returns the Subnets for binding pods.
func Bindings(vpcs []kubeovn.Vpc, subnets []kubeovn.Subnet, gateways []kubeovn.VpcNatGateway) *binding.Subnets {
	p := NewPlanner()
	p.Load(&Objects{Vpcs: vpcs, Subnets: subnets, Gateways: gateways})
	newCompiler(p, metav1.Time{}).shape()
	return p.bindings
}

// compiler makes one plan: it computes what is chosen, and can read everything.
type compiler struct {
	*Planner
	plan *Plan
	now  metav1.Time
	// chosen and chosenVPCs are computed, and ips are the IP objects of chosen subnets, kept and created, by name.
	chosen     map[*subnet]struct{}
	chosenVPCs map[*vpc]struct{}
	ips        map[string]*kubeovn.IP
}

func newCompiler(p *Planner, now metav1.Time) *compiler {
	return &compiler{
		Planner: p, now: now, ips: map[string]*kubeovn.IP{}, chosen: map[*subnet]struct{}{}, chosenVPCs: map[*vpc]struct{}{},
		plan: &Plan{Fragments: map[string]northbound.Rows{}, Waiting: p.waiting, Closed: p.closed, assigning: map[Object]struct{}{}},
	}
}

// Plan makes the plan for the changes since the last plan, which it assumes to be executed. If it was not, Again has to be called.
//
// It computes only the Subnets and the VPCs that a change concerns.
func (p *Planner) Plan(now metav1.Time) *Plan {
	c := newCompiler(p, now)
	if len(p.reshaped.vpcs)+len(p.reshaped.subnets) > 0 {
		c.shape()
	}
	pods := c.choose()
	c.pools()
	c.gatewayAddresses()
	c.pods(pods)
	c.retire()
	c.rows()
	c.statuses()
	c.finalizers()
	if p.gatewaysChanged {
		c.gateways()
	}
	c.sort()
	p.done()
	return c.plan
}

// finalizers adds the finalizers of chosen objects.
func (c *compiler) finalizers() {
	for v := range c.chosenVPCs {
		if v.object.DeletionTimestamp == nil && v.object.Name != kubeovn.DefaultVpc && !report.Held(v.object) {
			changed := v.object.DeepCopy()
			report.Hold(changed)
			c.plan.Vpcs = append(c.plan.Vpcs, changed)
		}
	}
	for s := range c.chosen {
		if s.object.DeletionTimestamp == nil && !report.Held(s.object) {
			changed := s.object.DeepCopy()
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

// retire removes the rows of objects that are being deleted and that nothing uses any more, and their finalizers.
func (c *compiler) retire() {
	for s := range c.chosen {
		if s.object.DeletionTimestamp == nil || s.holders > 0 {
			continue
		}
		s.exists = false
		c.retired.subnets[s.object.Name] = struct{}{}
		if v := c.vpcs[s.value.VPC]; v != nil {
			v.subnets = slices.DeleteFunc(v.subnets, func(other *subnet) bool { return other == s })
			c.chooseVPC(v)
		}
		if report.Held(s.object) {
			changed := s.object.DeepCopy()
			report.Release(changed)
			c.plan.Subnets = append(c.plan.Subnets, changed)
		}
	}
	for v := range c.chosenVPCs {
		if v.object.DeletionTimestamp == nil || v.named > 0 {
			continue
		}
		v.exists = false
		c.retired.vpcs[v.object.Name] = struct{}{}
		for _, peer := range c.peersOf[v.object.Name] {
			c.chooseVPC(peer)
		}
		if report.Held(v.object) {
			changed := v.object.DeepCopy()
			report.Release(changed)
			c.plan.Vpcs = append(c.plan.Vpcs, changed)
		}
	}
}

// rows compiles what is chosen and exists.
func (c *compiler) rows() {
	for s := range c.chosen {
		c.plan.Fragments[s.value.Owner()] = c.switchOf(s)
	}
	for v := range c.chosenVPCs {
		c.plan.Fragments[v.value.Owner()] = nil
		if v.exists {
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
func (c *compiler) router(v *vpc) {
	n := &northbound.Network{VPC: v.value, Remotes: map[string]objects.VPC{}}
	for _, s := range v.subnets {
		n.Subnets = append(n.Subnets, s.value)
	}
	for _, peering := range v.value.Peerings {
		if remote := c.vpcs[peering.Remote]; remote != nil && remote.exists {
			n.Remotes[peering.Remote] = remote.value
		}
	}
	result := northbound.Router(n)
	c.plan.Fragments[v.value.Owner()] = result.Rows
	v.problems = append(slices.Clone(v.parsed), result.Problems...)
	c.vpcStatus(v, &result)
}

// ports compiles the ports of pods.
func (c *compiler) ports() {
	for _, ip := range c.ips {
		s := c.byUID[ip.Spec.SubnetUID]
		addr, err := netip.ParseAddr(ip.Spec.V4IPAddress)
		if err != nil || s == nil || !s.switched() {
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
func (c *compiler) isolate(s *subnet, ip *kubeovn.IP, addr netip.Addr) {
	pod := c.objects.pods[types.UID(ip.Spec.PodUID)]
	if pod == nil {
		return
	}
	key, closed := pod.Namespace+"/"+pod.Name, c.isolated(pod, ip)
	delete(c.closed, key)
	if closed != (northbound.Closed{}) {
		c.closed[key] = closed
		maps.Copy(c.plan.Fragments[s.value.Owner()], northbound.Isolation(&s.value, addr, closed))
	}
}

// switched reports whether the subnet has a switch.
func (s *subnet) switched() bool { return s.exists && s.value.Definition == "" }

// switchOf compiles a subnet without the ports of its pods.
func (c *compiler) switchOf(s *subnet) northbound.Rows {
	if !s.switched() {
		return nil
	}
	rows := northbound.Switch(&s.value, c.vpcs[s.value.VPC].value.Meta)
	put := func(port northbound.Port) {
		key, row := northbound.SwitchPort(&s.value, port)
		rows[key] = row
	}
	for _, addr := range s.pool.Ahead(readyPorts) {
		put(northbound.Port{Addr: addr})
	}
	for _, addr := range s.lanIPs { // ready before the gateways' pods
		put(northbound.Port{Addr: addr, Gateway: true})
	}
	return rows
}

func (c *compiler) port(s *subnet, port northbound.Port) {
	key, row := northbound.SwitchPort(&s.value, port)
	c.plan.Fragments[s.value.Owner()][key] = row
}
