package plan

import (
	"cmp"
	"maps"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan/gateways"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// Planner makes successive plans. Set and Remove report changes; a plan computes only the Subnets and VPCs that the changes name. Its plans
// are those that Compile would make from all objects (TestPlannerAgreesWithCompile).
//
// Each part has the objects that it needs: network has Vpcs and Subnets, gateways those of NAT gateways, assigned has pods and IP objects,
// pending has namespaces and the pods without an address, isolations has NetworkPolicies.
//
// Objects that are passed to it must not be changed afterwards. It is not safe for concurrent use.
type Planner struct {
	network    *topology.Network
	gateways   *gateways.Gateways
	assigned   assigned
	pending    pending
	isolations isolations
	// closed has the directions in which pods are closed, by "<namespace>/<name>".
	closed map[string]northbound.Closed
	// refusals are why rows of an owner were refused.
	refusals map[string]string
	dirty    dirty
}

// dirty is what the next plan has to compute, beside what network, gateways and pending have to.
type dirty struct {
	// ranges are the UIDs of Subnets whose addresses changed, subnets the names of Subnets to compute, vpcs those of VPCs.
	ranges, subnets, vpcs map[string]struct{}
	gone                  []string // owners of rows whose objects were deleted
}

func newDirty() dirty {
	return dirty{ranges: map[string]struct{}{}, subnets: map[string]struct{}{}, vpcs: map[string]struct{}{}}
}

// done resets the changes for the next plan.
func (d *dirty) done() {
	*d = dirty{ranges: fresh(d.ranges), subnets: fresh(d.subnets), vpcs: fresh(d.vpcs)}
}

// fresh returns an empty map: the same one if it is empty. To clear a map that was large once takes long each time.
func fresh[K comparable, V any](m map[K]V) map[K]V {
	if len(m) == 0 {
		return m
	}
	return map[K]V{}
}

func (d *dirty) addresses(of *kubeovn.IP) { d.ranges[of.Spec.SubnetUID] = struct{}{} }

func (d *dirty) subnet(name string) { d.subnets[name] = struct{}{} }

func (d *dirty) vpc(name string) { d.vpcs[name] = struct{}{} }

// NewPlanner returns a Planner without objects.
func NewPlanner() *Planner {
	network := topology.New()
	p := &Planner{
		network: network, gateways: gateways.New(network), assigned: newAssigned(), pending: newPending(), isolations: newIsolations(),
		closed: map[string]northbound.Closed{}, dirty: newDirty(),
	}
	p.Again()
	return p
}

// Again makes the next plan compute everything.
func (p *Planner) Again() {
	gone := append(p.dirty.gone, p.network.Again()...)
	p.dirty.done()
	p.dirty.gone = gone
	p.gateways.Again()
	p.pending.again()
	clear(p.closed)
	for uid := range p.assigned.ipsIn {
		p.dirty.ranges[uid] = struct{}{}
	}
}

// Retry makes the next plan compute again what an object of the last plan depends on, because it was not written.
func (p *Planner) Retry(object Object) {
	switch o := object.(type) {
	case *kubeovn.IP:
		p.dirty.addresses(o)
		delete(p.closed, podName(o))
	case *kubeovn.Subnet:
		p.dirty.subnet(o.Name)
	case *kubeovn.Vpc:
		p.dirty.vpc(o.Name)
	default:
		p.gateways.Reassign()
	}
}

// Postpone makes the next plan report again on an object whose status of the last plan was not written. Use it for a status that assigns
// nothing (Plan.Reports).
func (p *Planner) Postpone(object Object) {
	switch object.(type) {
	case *kubeovn.Subnet, *kubeovn.Vpc:
		p.Retry(object)
	default:
		p.gateways.Repeat()
	}
}

// RefuseWorkload records why the API server refuses the StatefulSet of a NAT gateway, which the next plan reports; empty: it does not any more.
func (p *Planner) RefuseWorkload(name, why string) { p.gateways.Refuse(name, why) }

// Refuse sets why rows of owners were refused: of each owner in the map, and of no other one. The next plan reports it in the conditions of
// Vpcs and Subnets; the first reason remains as long as the owner is in the map. Refuse returns the owners that are new in it, or not in it
// any more.
func (p *Planner) Refuse(reasons map[string]string) (changed map[string]bool) {
	changed = map[string]bool{}
	for owner := range p.refusals {
		changed[owner] = reasons[owner] == ""
	}
	refusals := make(map[string]string, len(reasons))
	for owner, why := range reasons {
		before, refused := p.refusals[owner]
		changed[owner], refusals[owner] = !refused, cmp.Or(before, why)
	}
	maps.DeleteFunc(changed, func(_ string, has bool) bool { return !has })
	p.refusals = refusals
	if len(changed) == 0 {
		return changed // without a look at all VPCs and Subnets
	}
	for name, v := range p.network.VPCs() {
		if changed[v.Value.Owner()] {
			p.dirty.vpc(name)
		}
	}
	for name, s := range p.network.Subnets() {
		if changed[s.Value.Owner()] {
			p.dirty.subnet(name)
		}
	}
	return changed
}

// Load sets all objects.
func (p *Planner) Load(o *Objects) {
	setAll(p, o.Vpcs)
	setAll(p, o.Subnets)
	setAll(p, o.Gateways)
	setAll(p, o.EIPs)
	setAll(p, o.SNATs)
	setAll(p, o.DNATs)
	setAll(p, o.FIPs)
	setAll(p, o.Workloads)
	setAll(p, o.Namespaces)
	setAll(p, o.Policies)
	setAll(p, o.Pods)
	setAll(p, o.IPs)
	for name, config := range o.Definitions {
		p.SetDefinition(name, config)
	}
	p.SetNAT(o.NAT)
}

// setAll sets all objects of a kind. The pointers to the elements of a list are separate objects.
func setAll[T any, P interface {
	*T
	Object
}](p *Planner, list []T) {
	for i := range list {
		p.Set(P(&list[i]))
	}
}

// SetNAT sets the content of the ConfigMaps.
func (p *Planner) SetNAT(config objects.NATConfig) { p.gateways.SetConfig(config) }

// SetDefinition sets the configuration of a NetworkAttachmentDefinition, "<name>.<namespace>".
func (p *Planner) SetDefinition(name, config string) {
	p.network.SetDefinition(name, config)
	p.gateways.SetDefinition(name, config)
}

// RemoveDefinition removes a NetworkAttachmentDefinition that was deleted.
func (p *Planner) RemoveDefinition(name string) {
	p.network.SetDefinition(name, "")
	p.gateways.RemoveDefinition(name)
}

// Set sets an object that is new or has changed.
func (p *Planner) Set(object Object) {
	switch o := object.(type) {
	case *kubeovn.Vpc:
		p.network.SetVPC(o)
	case *kubeovn.Subnet:
		if onlyStatus := p.network.SetSubnet(o); onlyStatus {
			p.dirty.subnet(o.Name)
		}
	case *kubeovn.VpcNatGateway:
		p.setGateway(o, o)
	case *corev1.Namespace:
		p.pending.setNamespace(o.Name, o)
	case *networkingv1.NetworkPolicy:
		p.setPolicy(o.Namespace, o.Name, o)
	case *kubeovn.IP:
		p.removeIP(o.Name)
		p.addIP(o)
	case *corev1.Pod:
		p.setPod(o)
	default:
		p.gateways.Set(object)
	}
}

// Remove removes an object that was deleted. It uses only the object's name, and the namespace and UID of a pod.
func (p *Planner) Remove(object Object) {
	name := object.GetName()
	switch object.(type) {
	case *kubeovn.Vpc:
		p.network.RemoveVPC(name)
	case *kubeovn.Subnet:
		p.network.RemoveSubnet(name)
	case *kubeovn.VpcNatGateway:
		p.setGateway(object, nil)
	case *corev1.Namespace:
		p.pending.setNamespace(name, nil)
	case *networkingv1.NetworkPolicy:
		p.setPolicy(object.GetNamespace(), name, nil)
	case *kubeovn.IP:
		p.removeIP(name)
		delete(p.assigned.gone, name)
	case *corev1.Pod:
		if pod := p.assigned.podNamed(object.GetNamespace(), name); pod != nil {
			if pod.UID == object.GetUID() {
				p.assigned.depart(pod)
			}
			p.removePod(pod)
			p.isolations.forget(pod.UID)
		}
	default:
		p.gateways.Remove(object)
	}
}

// Gone records that the API server has no pod that needs the address of an IP object (Plan.Confirm): later plans do not name it again.
func (p *Planner) Gone(ip *kubeovn.IP) { p.assigned.gone[ip.Name] = ip.Spec.PodUID }

// Knows reports whether the planner has the given version of a gateway.
func (p *Planner) Knows(g *kubeovn.VpcNatGateway) bool {
	have := p.gateways.Gateway(g.Name)
	return have != nil && have.UID == g.UID && have.ResourceVersion == g.ResourceVersion
}

// setGateway sets a gateway, named by the object; o is nil: it was deleted.
func (p *Planner) setGateway(named Object, o *kubeovn.VpcNatGateway) {
	before := p.gateways.Gateway(named.GetName())
	if o == nil {
		p.gateways.Remove(named)
	} else {
		p.gateways.Set(o)
	}
	p.network.SetGateway(before, o)
	for _, g := range []*kubeovn.VpcNatGateway{before, o} {
		if g != nil {
			p.dirty.subnet(g.Spec.Subnet)
		}
	}
}

// setPolicy sets a NetworkPolicy; nil: it was deleted.
func (p *Planner) setPolicy(namespace, name string, o *networkingv1.NetworkPolicy) {
	p.isolations.set(namespace, name, o)
	for uid := range p.isolations.holders[namespace] {
		p.dirty.ranges[uid] = struct{}{}
	}
}

func (p *Planner) addIP(ip *kubeovn.IP) {
	p.assigned.addIP(ip)
	p.isolations.hold(ip, 1)
	p.reassigned(ip)
}

// removeIP removes an IP object, if there is one of this name.
func (p *Planner) removeIP(name string) {
	if ip := p.assigned.ips[name]; ip != nil {
		p.assigned.removeIP(ip)
		p.isolations.hold(ip, -1)
		delete(p.closed, podName(ip))
		p.reassigned(ip)
	}
}

// reassigned makes the next plan compute the Subnet of an IP object that is new or was removed, or a later one of its name, and those of the
// other IP objects that name the same pod, and bind that pod if it has no address.
func (p *Planner) reassigned(ip *kubeovn.IP) {
	p.dirty.addresses(ip)
	p.dirty.subnet(ip.Spec.Subnet)
	for _, other := range p.assigned.ipsOfPod[objects.HolderOf(ip)] {
		p.dirty.addresses(other)
	}
	if pod := p.assigned.podNamed(ip.Spec.Namespace, ip.Spec.PodName); pod != nil {
		p.place(pod)
	}
}

// podName returns "<namespace>/<name>" of the pod that an IP object names.
func podName(ip *kubeovn.IP) string { return ip.Spec.Namespace + "/" + ip.Spec.PodName }

// setPod sets a pod. The verdict on a former pod of its name is not needed any more; that on the same pod is, while its labels are the same.
// A report of an earlier pod of the name, which may come late, is no evidence that the present one is gone.
func (p *Planner) setPod(pod *corev1.Pod) {
	if before := p.assigned.podNamed(pod.Namespace, pod.Name); before != nil {
		p.removePod(before)
		if before.UID != pod.UID {
			if newer, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, before.ResourceVersion); err == nil && newer > 0 {
				p.assigned.depart(before)
			}
			p.isolations.forget(before.UID)
		}
	}
	p.assigned.addPod(pod)
	p.gateways.Set(pod)
	p.readdress(pod)
	p.place(pod)
}

func (p *Planner) removePod(pod *corev1.Pod) {
	p.readdress(pod)
	p.settle(pod)
	delete(p.closed, nameOf(pod))
	p.assigned.removePod(pod)
	p.gateways.Remove(pod)
}

// readdress makes the next plan compute the Subnets of a pod's IP objects.
func (p *Planner) readdress(pod *corev1.Pod) {
	for _, ip := range p.assigned.named(pod) {
		p.dirty.addresses(ip)
	}
}

// place makes the next plan bind a pod, if it needs an address and has none.
func (p *Planner) place(pod *corev1.Pod) {
	p.settle(pod)
	if pod.Spec.NodeName != "" && !pod.Spec.HostNetwork && !objects.Ended(pod) && pod.DeletionTimestamp == nil && p.assigned.ipOf(pod) == nil {
		p.pending.add(pod)
	}
}

// settle removes a pod from those without an address. The address that it would have got is free for others.
func (p *Planner) settle(pod *corev1.Pod) {
	for _, name := range p.pending.remove(pod) {
		p.dirty.subnet(name)
	}
}
