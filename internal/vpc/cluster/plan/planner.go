package plan

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/cluster/plan/gateways"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// Planner makes successive plans. Set and Remove report changes; a plan computes only the Subnets and VPCs that the changes name. Its plans
// are those that Compile would make from all objects (TestPlannerAgreesWithCompile).
//
// Objects that are passed to it must not be changed afterwards. It is not safe for concurrent use.
type Planner struct {
	objects  store
	network  *topology.Network // as of the last plan
	gateways *gateways.Gateways
	// waiting has the reasons why pods wait, by "<namespace>/<name>". wants has the pods without an address that are bound to a Subnet, by its
	// name.
	waiting map[string]string
	// closed has the directions in which pods are closed, by "<namespace>/<name>".
	closed map[string]northbound.Closed
	// refusals are why rows of an owner were refused.
	refusals map[string]string
	wants    map[string]map[string]*corev1.Pod
	wanted   map[string][]string // the Subnets in wants, by pod

	changes
}

// changes are what the next plan has to compute.
type changes struct {
	// everyPod: all pods have to be placed.
	everyPod bool
	// ranges are the UIDs of Subnets whose addresses changed, named the names of Subnets to compute, routers those of VPCs, podsChanged the
	// pods to place.
	ranges, named, routers map[string]struct{}
	podsChanged            map[types.UID]*corev1.Pod
	gone                   []string // owners of rows whose objects were deleted
}

// store has all objects, by name.
type store struct {
	namespaces map[string]*corev1.Namespace
	choosing   map[string]map[string]struct{} // names of namespaces, by a Subnet that their annotation names
	ips        map[string]*kubeovn.IP
	ipsOf      map[string]map[string]*kubeovn.IP // by the UID of the Subnet
	pods       map[types.UID]*corev1.Pod
	podOf      map[string]*corev1.Pod            // by PodKey
	ipsOfPod   map[string]map[string]*kubeovn.IP // by PodKey, and their names
	// open are pods that may need an address and have none, by namespace, without those that name a Subnet themselves: askingIn has these by
	// namespace, and asking by Subnet.
	open, askingIn, asking map[string]map[types.UID]*corev1.Pod
	// policies are NetworkPolicies, by namespace and name.
	policies map[string]map[string]isolation
	// verdicts has the policies that select the pods with the same labels, by namespace and labels, and verdictOf has the verdicts of pods.
	verdicts  map[string]map[string]*verdict
	verdictOf map[types.UID]*verdict
	// holdersOf has the UIDs of Subnets of which pods have IP objects, with their number, by the pods' namespace.
	holdersOf map[string]map[string]int
}

// NewPlanner returns a Planner without objects.
func NewPlanner() *Planner {
	network := topology.New()
	p := &Planner{network: network, gateways: gateways.New(network), waiting: map[string]string{}, wants: map[string]map[string]*corev1.Pod{}, wanted: map[string][]string{}, closed: map[string]northbound.Closed{}}
	p.objects = store{
		namespaces: map[string]*corev1.Namespace{},
		choosing:   map[string]map[string]struct{}{}, ips: map[string]*kubeovn.IP{},
		ipsOf: map[string]map[string]*kubeovn.IP{}, ipsOfPod: map[string]map[string]*kubeovn.IP{},
		pods: map[types.UID]*corev1.Pod{}, podOf: map[string]*corev1.Pod{},
		open: map[string]map[types.UID]*corev1.Pod{}, askingIn: map[string]map[types.UID]*corev1.Pod{}, asking: map[string]map[types.UID]*corev1.Pod{},
		policies: map[string]map[string]isolation{}, verdicts: map[string]map[string]*verdict{}, verdictOf: map[types.UID]*verdict{},
		holdersOf: map[string]map[string]int{},
	}
	p.Again()
	return p
}

// Again makes the next plan compute everything.
func (p *Planner) Again() {
	gone := append(p.gone, p.network.Again()...)
	p.done()
	p.gone, p.everyPod = gone, true
	p.gateways.Again()
	clear(p.waiting)
	clear(p.wants)
	clear(p.wanted)
	clear(p.closed)
	for uid := range p.objects.ipsOf {
		p.ranges[uid] = struct{}{}
	}
}

// done resets the changes for the next plan.
func (p *Planner) done() {
	p.changes = changes{ranges: fresh(p.ranges), named: fresh(p.named), routers: fresh(p.routers), podsChanged: fresh(p.podsChanged)}
}

// fresh returns an empty map: the same one if it is empty. To clear a map that was large once takes long each time.
func fresh[K comparable, V any](m map[K]V) map[K]V {
	if m != nil && len(m) == 0 {
		return m
	}
	return map[K]V{}
}

// Retry makes the next plan compute again what an object of the last plan depends on, because it was not written.
func (p *Planner) Retry(object Object) {
	switch o := object.(type) {
	case *kubeovn.IP:
		p.ranges[o.Spec.SubnetUID] = struct{}{}
		delete(p.closed, o.Spec.Namespace+"/"+o.Spec.PodName)
	case *kubeovn.Subnet:
		p.named[o.Name] = struct{}{}
	case *kubeovn.Vpc:
		p.routers[o.Name] = struct{}{}
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
	for name, v := range p.network.VPCs() {
		if changed[v.Value.Owner()] {
			p.routers[name] = struct{}{}
		}
	}
	for name, s := range p.network.Subnets() {
		if changed[s.Value.Owner()] {
			p.named[name] = struct{}{}
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
func (p *Planner) SetDefinition(name, config string) { p.gateways.SetDefinition(name, config) }

// RemoveDefinition removes a NetworkAttachmentDefinition that was deleted.
func (p *Planner) RemoveDefinition(name string) { p.gateways.RemoveDefinition(name) }

// Set sets an object that is new or has changed.
func (p *Planner) Set(object Object) {
	switch o := object.(type) {
	case *kubeovn.Vpc:
		p.network.SetVPC(o)
	case *kubeovn.Subnet:
		if s := p.network.SetSubnet(o); s != nil {
			p.named[o.Name] = struct{}{}
		}
	case *kubeovn.VpcNatGateway:
		p.setGateway(o, o)
	case *corev1.Namespace:
		p.setNamespace(o.Name, o)
	case *networkingv1.NetworkPolicy:
		p.setPolicy(o.Namespace, o.Name, o)
	case *kubeovn.IP:
		p.setIP(o.Name, o)
	case *corev1.Pod:
		before := p.objects.podOf[objects.PodKey(o.Namespace, o.Name)]
		if p.removePod(before); before != nil && before.UID != o.UID {
			p.forget(before.UID)
		}
		p.addPod(o)
	default:
		p.gateways.Set(object)
	}
}

// Remove removes an object that was deleted. It uses only the object's name, and the namespace of a pod.
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
		p.setNamespace(name, nil)
	case *networkingv1.NetworkPolicy:
		p.setPolicy(object.GetNamespace(), name, nil)
	case *kubeovn.IP:
		p.setIP(name, nil)
	case *corev1.Pod:
		if pod := p.objects.podOf[objects.PodKey(object.GetNamespace(), name)]; pod != nil {
			p.removePod(pod)
			p.forget(pod.UID)
		}
	default:
		p.gateways.Remove(object)
	}
}

// Knows reports whether the planner has the given version of a gateway.
func (p *Planner) Knows(g *kubeovn.VpcNatGateway) bool {
	have := p.gateways.Gateway(g.Name)
	return have != nil && have.UID == g.UID && have.ResourceVersion == g.ResourceVersion
}

// index adds an entry to an index, or removes it.
func index[A, B comparable, V any](of map[A]map[B]V, at A, key B, value V, add bool) {
	if add {
		if of[at] == nil {
			of[at] = map[B]V{}
		}
		of[at][key] = value
		return
	}
	if delete(of[at], key); len(of[at]) == 0 {
		delete(of, at)
	}
}

// setNamespace sets a namespace; nil: it was deleted.
func (p *Planner) setNamespace(name string, o *corev1.Namespace) {
	before := p.objects.namespaces[name]
	same := before != nil && o != nil && maps.Equal(before.Labels, o.Labels) &&
		before.Annotations[kubeovn.AnnotationLogicalSwitch] == o.Annotations[kubeovn.AnnotationLogicalSwitch]
	for _, namespace := range []*corev1.Namespace{before, o} {
		if namespace == nil {
			continue
		}
		for _, subnet := range binding.Listed(namespace.Annotations) {
			index(p.objects.choosing, subnet, name, struct{}{}, namespace == o)
		}
	}
	if p.objects.namespaces[name] = o; o == nil {
		delete(p.objects.namespaces, name)
	}
	if !same {
		maps.Copy(p.podsChanged, p.objects.open[name])
		maps.Copy(p.podsChanged, p.objects.askingIn[name])
	}
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
			p.named[g.Spec.Subnet] = struct{}{}
		}
	}
}

// setIP sets an IP object; nil: it was deleted.
func (p *Planner) setIP(name string, o *kubeovn.IP) {
	if before := p.objects.ips[name]; before != nil {
		uid := before.Spec.SubnetUID
		p.ranges[uid] = struct{}{}
		delete(p.closed, before.Spec.Namespace+"/"+before.Spec.PodName)
		delete(p.objects.ipsOf[uid], name)
		if len(p.objects.ipsOf[uid]) == 0 {
			delete(p.objects.ipsOf, uid)
		}
		delete(p.objects.ips, name)
		p.hold(before, -1)
		p.touchPod(objects.HolderOf(before), func(all map[string]*kubeovn.IP) { delete(all, name) })
	}
	if o != nil {
		uid := o.Spec.SubnetUID
		p.ranges[uid] = struct{}{}
		p.touchPod(objects.HolderOf(o), func(all map[string]*kubeovn.IP) { all[name] = o })
		if p.objects.ipsOf[uid] == nil {
			p.objects.ipsOf[uid] = map[string]*kubeovn.IP{}
		}
		p.objects.ipsOf[uid][name], p.objects.ips[name] = o, o
		p.hold(o, 1)
	}
}

// touchPod changes the IP objects of a pod, and makes the next plan place the pod and compute the Subnets of the others.
func (p *Planner) touchPod(holder string, change func(map[string]*kubeovn.IP)) {
	all := p.objects.ipsOfPod[holder]
	if all == nil {
		all = map[string]*kubeovn.IP{}
		p.objects.ipsOfPod[holder] = all
	}
	change(all)
	if len(all) == 0 {
		delete(p.objects.ipsOfPod, holder)
	}
	for _, ip := range all {
		p.ranges[ip.Spec.SubnetUID] = struct{}{}
	}
	if pod := p.objects.podOf[holder]; pod != nil {
		p.place(pod)
	}
}

// ipOf returns the IP object that assigns a pod its address; nil if there is none.
func (p *Planner) ipOf(pod *corev1.Pod) *kubeovn.IP {
	all := slices.Collect(maps.Values(p.objects.ipsOfPod[objects.PodKey(pod.Namespace, pod.Name)]))
	return objects.FirstIP(all, func(ip *kubeovn.IP) bool { return Needs(pod, ip) })
}

func (p *Planner) addPod(pod *corev1.Pod) {
	p.objects.pods[pod.UID] = pod
	p.objects.podOf[objects.PodKey(pod.Namespace, pod.Name)] = pod
	p.gateways.Set(pod)
	p.touchIP(pod)
	p.place(pod)
}

func (p *Planner) removePod(pod *corev1.Pod) {
	if pod == nil {
		return
	}
	p.touchIP(pod)
	p.close(pod)
	delete(p.closed, pod.Namespace+"/"+pod.Name)
	delete(p.objects.pods, pod.UID)
	delete(p.objects.podOf, objects.PodKey(pod.Namespace, pod.Name))
	delete(p.podsChanged, pod.UID)
	p.gateways.Remove(pod)
}

// touchIP makes the next plan compute the Subnets of a pod's IP objects.
func (p *Planner) touchIP(pod *corev1.Pod) {
	for _, ip := range p.objects.ipsOfPod[objects.PodKey(pod.Namespace, pod.Name)] {
		p.ranges[ip.Spec.SubnetUID] = struct{}{}
	}
}

// place makes the next plan place a pod, if it needs an address and has none.
func (p *Planner) place(pod *corev1.Pod) {
	p.close(pod)
	if pod.Spec.NodeName == "" || pod.Spec.HostNetwork || objects.Ended(pod) || pod.DeletionTimestamp != nil || p.ipOf(pod) != nil {
		return
	}
	p.index(pod, true)
	p.podsChanged[pod.UID] = pod
}

// index adds a pod to those without an address, or removes it from them.
func (p *Planner) index(pod *corev1.Pod, without bool) {
	if name := binding.Asked(pod.Annotations); name != "" {
		index(p.objects.asking, name, pod.UID, pod, without)
		index(p.objects.askingIn, pod.Namespace, pod.UID, pod, without)
		return
	}
	index(p.objects.open, pod.Namespace, pod.UID, pod, without)
}

// close removes a pod from those without an address. The address that it would have got is free for others.
func (p *Planner) close(pod *corev1.Pod) {
	p.index(pod, false)
	delete(p.podsChanged, pod.UID)
	key := pod.Namespace + "/" + pod.Name
	delete(p.waiting, key)
	for _, name := range p.unwant(key) {
		p.named[name] = struct{}{}
	}
}

// unwant removes a pod from those that want an address, and returns the Subnets that might have assigned it one.
func (p *Planner) unwant(key string) []string {
	names := p.wanted[key]
	delete(p.wanted, key)
	for _, name := range names {
		if delete(p.wants[name], key); len(p.wants[name]) == 0 {
			delete(p.wants, name)
		}
	}
	return names
}
