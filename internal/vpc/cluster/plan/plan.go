// Package plan decides, from all objects of VPCs, what their network is: rows of the northbound database, addresses of pods, and what to
// write to the objects. It is pure: the same objects result in the same plan, whatever their order.
//
// Assignments (addresses, tunnel keys) are stored in the objects themselves: IP objects, and the status of Vpc and Subnet. A plan keeps
// existing assignments before it makes new ones. Of objects that exclude each other, the older one is used.
//
// An object has rows as soon as it exists: rows whose owner was deleted are removed, by this controller or by the next one, which reads all
// rows first. A Subnet assigns addresses to pods only if it and its Vpc have their finalizers, or get them with the same plan: the writer writes
// finalizers before addresses. An object that is being deleted keeps its rows while other objects use it, and loses its finalizer in the plan
// that removes its rows; the writer commits rows before it writes objects.
//
// A Planner distributes objects to the parts of a plan. A plan has the steps of Planner.Plan: package topology decides which routers and
// switches exist; chooser completes what has to be computed; addresser and package gateways assign addresses; rows compiles rows, and
// reporter and package gateways plan what to write to the objects.
package plan

import (
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/cluster/plan/report"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

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
	// Confirm are those of Delete whose pods have to be looked up in the API server before the plan is executed: the cache may be behind, and
	// not have them yet. The planner has seen the pods of the others end.
	Confirm []*kubeovn.IP
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
	// vpcs are the names of the VPCs of Create, by the UIDs of their Subnets.
	vpcs map[string]string
}

// Reports reports whether the new status of an object assigns nothing: it may be written after everything else, and later
// (Planner.Postpone).
func (p *Plan) Reports(object Object) bool {
	_, assigns := p.assigning[object]
	return !assigns
}

// Withhold removes from the plan what must not be written if the finalizer of an object could not be written: of an object of NAT gateways its
// status, which assigns its address; of a Subnet or a Vpc the IP objects that assign addresses in it. It returns these, which have to be
// planned again (Planner.Retry).
func (p *Plan) Withhold(object Object) (withheld []*kubeovn.IP) {
	within := func(*kubeovn.IP) bool { return false }
	switch o := object.(type) {
	case *kubeovn.Subnet:
		within = func(ip *kubeovn.IP) bool { return ip.Spec.SubnetUID == string(o.UID) }
	case *kubeovn.Vpc:
		within = func(ip *kubeovn.IP) bool { return p.vpcs[ip.Spec.SubnetUID] == o.Name }
	}
	p.Create = slices.DeleteFunc(p.Create, func(ip *kubeovn.IP) bool {
		if !within(ip) {
			return false
		}
		withheld = append(withheld, ip)
		return true
	})
	p.Statuses = slices.DeleteFunc(p.Statuses, func(o Object) bool {
		return reflect.TypeOf(o) == reflect.TypeOf(object) && o.GetName() == object.GetName()
	})
	return withheld
}

// Awaiting divides the IP objects to be created: awaiting are those that must not be written before the finalizers of this plan, which their
// Subnet or its Vpc gets, free are the others.
func (p *Plan) Awaiting() (awaiting, free []*kubeovn.IP) {
	subnets, vpcs := map[string]bool{}, map[string]bool{}
	for _, s := range p.Subnets {
		subnets[string(s.UID)] = true
	}
	for _, v := range p.Vpcs {
		vpcs[v.Name] = true
	}
	for _, ip := range p.Create {
		if subnets[ip.Spec.SubnetUID] || vpcs[p.vpcs[ip.Spec.SubnetUID]] {
			awaiting = append(awaiting, ip)
		} else {
			free = append(free, ip)
		}
	}
	return awaiting, free
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
	network.Shape(topology.NewChosen())
	return network.Bindings()
}
