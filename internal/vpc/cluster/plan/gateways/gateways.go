// Package gateways plans NAT gateways, EIPs and rules: their addresses, the gateways' StatefulSets, and what to report. It is pure.
//
// A plan has three steps. Read parses the specifications that have changed, and chooses the Subnets whose addresses have to be assigned
// again. Assign assigns the addresses: lanIps, which no pod may get, and those in external Subnets. Report compiles the state of each
// gateway, and compares it with what its pod reports.
package gateways

import (
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan/report"
	"weft.dev/weft/internal/vpc/cluster/plan/topology"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

// store has the objects, by name.
type store struct {
	gateways    map[string]*kubeovn.VpcNatGateway
	eips        map[string]*kubeovn.IptablesEIP
	snats       map[string]*kubeovn.IptablesSnatRule
	dnats       map[string]*kubeovn.IptablesDnatRule
	fips        map[string]*kubeovn.IptablesFIPRule
	workloads   map[string]*appsv1.StatefulSet
	definitions map[string]string
	config      objects.NATConfig
	pods        map[types.UID]*corev1.Pod
}

// specs are the specifications of gateways, EIPs and rules.
type specs struct {
	network    *nat.Network
	listed     *nat.Objects // from which the network was parsed
	gatesByAge []*nat.Gateway
	eipsByAge  []*nat.EIP
	// vpcs and subnets are the names of those on which gateways and EIPs depend.
	vpcs, subnets map[string]struct{}
}

// Gateways has all objects of NAT gateways. It is not safe for concurrent use.
type Gateways struct {
	topology  *topology.Network
	objects   store
	specs     specs
	addresses addresses
	compiles  nat.Compiler
	// refused are why the API server has refused StatefulSets, by their names.
	refused map[string]string
	// changed: objects of NAT gateways, their pods or workloads have changed. respecified: specifications of gateways and EIPs have changed,
	// or the addresses of external Subnets have to be assigned again.
	changed, respecified bool
}

// New returns gateways without objects, in the VPCs and Subnets of the network.
func New(network *topology.Network) *Gateways {
	g := &Gateways{topology: network, refused: map[string]string{}}
	g.objects = store{
		gateways: map[string]*kubeovn.VpcNatGateway{}, eips: map[string]*kubeovn.IptablesEIP{}, snats: map[string]*kubeovn.IptablesSnatRule{},
		dnats: map[string]*kubeovn.IptablesDnatRule{}, fips: map[string]*kubeovn.IptablesFIPRule{}, workloads: map[string]*appsv1.StatefulSet{},
		definitions: map[string]string{}, pods: map[types.UID]*corev1.Pod{},
	}
	g.Again()
	return g
}

// Again makes the next plan compute everything.
func (g *Gateways) Again() {
	g.changed, g.respecified = true, true
	g.addresses = addresses{lanRefused: map[string]nat.Problem{}, refused: map[string]nat.Problem{}, given: map[string]string{}}
}

// Reassign makes the next plan assign addresses again, because an object with an address was not written.
func (g *Gateways) Reassign() { g.respecified = true }

// Repeat makes the next plan report again.
func (g *Gateways) Repeat() { g.changed = true }

// Refuse records why the API server has refused a StatefulSet; empty: it has not.
func (g *Gateways) Refuse(workload, why string) {
	g.changed = g.changed || g.refused[workload] != why
	if g.refused[workload] = why; why == "" {
		delete(g.refused, workload)
	}
}

// Changed reports whether the plan has to report.
func (g *Gateways) Changed() bool { return g.changed }

// Gateway returns the VpcNatGateway of a name; nil: there is none.
func (g *Gateways) Gateway(name string) *kubeovn.VpcNatGateway { return g.objects.gateways[name] }

// Set sets an EIP, a rule or a StatefulSet that is new or has changed.
func (g *Gateways) Set(object report.Object) {
	switch o := object.(type) {
	case *kubeovn.VpcNatGateway:
		g.objects.gateways[o.Name], g.respecified = o, true
	case *kubeovn.IptablesEIP:
		g.objects.eips[o.Name], g.respecified = o, true
	case *kubeovn.IptablesSnatRule:
		g.objects.snats[o.Name], g.respecified = o, true
	case *kubeovn.IptablesDnatRule:
		g.objects.dnats[o.Name], g.respecified = o, true
	case *kubeovn.IptablesFIPRule:
		g.objects.fips[o.Name], g.respecified = o, true
	case *appsv1.StatefulSet:
		g.objects.workloads[o.Name], g.changed = o, true
	case *corev1.Pod:
		if isGate(o) {
			g.objects.pods[o.UID], g.changed = o, true
		}
	}
}

// Remove removes an object that was deleted. It uses only the object's name, and the UID of a pod.
func (g *Gateways) Remove(object report.Object) {
	name := object.GetName()
	switch o := object.(type) {
	case *kubeovn.VpcNatGateway:
		delete(g.objects.gateways, name)
		g.respecified = true
	case *kubeovn.IptablesEIP:
		delete(g.objects.eips, name)
		g.respecified = true
	case *kubeovn.IptablesSnatRule:
		delete(g.objects.snats, name)
		g.respecified = true
	case *kubeovn.IptablesDnatRule:
		delete(g.objects.dnats, name)
		g.respecified = true
	case *kubeovn.IptablesFIPRule:
		delete(g.objects.fips, name)
		g.respecified = true
	case *appsv1.StatefulSet:
		delete(g.objects.workloads, name)
		g.changed = true
	case *corev1.Pod:
		if isGate(o) {
			delete(g.objects.pods, o.UID)
			g.changed = true
		}
	}
}

// isGate reports whether a pod has the name of a NAT gateway's pod.
func isGate(pod *corev1.Pod) bool {
	return pod.Namespace == kubeovn.ConfigNamespace && strings.HasPrefix(pod.Name, nat.PodPrefix)
}

// SetConfig sets the content of the ConfigMaps.
func (g *Gateways) SetConfig(config objects.NATConfig) {
	g.changed = g.changed || g.objects.config != config
	g.objects.config = config
}

// SetDefinition sets the configuration of a NetworkAttachmentDefinition, "<name>.<namespace>".
func (g *Gateways) SetDefinition(name, config string) {
	before, there := g.objects.definitions[name]
	g.objects.definitions[name] = config
	g.defined(name, !there || before != config)
}

// RemoveDefinition removes a NetworkAttachmentDefinition that was deleted.
func (g *Gateways) RemoveDefinition(name string) {
	_, there := g.objects.definitions[name]
	delete(g.objects.definitions, name)
	g.defined(name, there)
}

// defined makes the next plan report if the NetworkAttachmentDefinition of a Subnet has changed. For a new Subnet this happens anyway.
func (g *Gateways) defined(name string, changed bool) {
	for _, s := range g.topology.External() {
		g.changed = g.changed || changed && s.Value.Definition == name
	}
}

// Shaped records that VPCs and Subnets were decided on again: gateways and EIPs may depend on them.
func (g *Gateways) Shaped(change *topology.Change) {
	g.respecified = g.respecified || g.specs.concern(&change.Before) || g.specs.concern(&change.Now)
}

// concern reports whether gateways or EIPs depend on something in the part.
func (s *specs) concern(p *topology.Part) bool {
	for name := range p.VPCs {
		if _, named := s.vpcs[name]; named {
			return true
		}
	}
	for name, subnet := range p.Subnets {
		_, named := s.subnets[name]
		_, beside := s.vpcs[subnet.Object.Spec.Vpc]
		if named || beside || subnet.Value.Definition != "" {
			return true
		}
	}
	return false
}

// Read parses the specifications if they have changed, and chooses the external Subnets, whose addresses only gateways and EIPs get, if these
// addresses have to be assigned again.
func (g *Gateways) Read(chosen *topology.Chosen) {
	if g.respecified {
		g.changed = true
		g.specs = read(g.list(), g.topology)
	}
	for s := range chosen.Subnets {
		g.respecified = g.respecified || s.Value.Definition != ""
	}
	if !g.respecified {
		return
	}
	g.changed = true
	for _, s := range g.topology.External() {
		chosen.Subnet(s)
	}
}

// list lists the objects from which gateways are compiled. Without gateways, EIPs and rules it lists no others.
func (g *Gateways) list() *nat.Objects {
	o := &g.objects
	listed := &nat.Objects{Gateways: list(o.gateways), EIPs: list(o.eips), SNATs: list(o.snats), DNATs: list(o.dnats), FIPs: list(o.fips)}
	if len(o.gateways)+len(o.eips)+len(o.snats)+len(o.dnats)+len(o.fips) > 0 {
		listed.Vpcs, listed.Subnets = g.topology.Objects()
		listed.Definitions = o.definitions
	}
	return listed
}

func list[T any](objects map[string]*T) []T {
	all := make([]T, 0, len(objects))
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		all = append(all, *objects[name])
	}
	return all
}

// read parses the objects, and records the VPCs and Subnets that gateways and EIPs name, and the VPCs of these Subnets.
func read(listed *nat.Objects, network *topology.Network) specs {
	s := specs{network: nat.Parse(listed), listed: listed, vpcs: map[string]struct{}{}, subnets: map[string]struct{}{}}
	s.gatesByAge = slices.SortedFunc(maps.Values(s.network.Gateways), func(a, b *nat.Gateway) int { return a.Age.Compare(b.Age) })
	s.eipsByAge = slices.SortedFunc(maps.Values(s.network.EIPs), func(a, b *nat.EIP) int { return a.Value.Compare(b.Value.Age) })
	for _, g := range s.gatesByAge {
		s.vpcs[g.Value.VPC] = struct{}{}
		s.subnets[g.Value.Subnet], s.subnets[g.Value.External] = struct{}{}, struct{}{}
	}
	for _, e := range s.eipsByAge {
		s.subnets[e.Value.External] = struct{}{}
	}
	for name := range s.subnets {
		if vpc, there := network.VPCNamedBy(name); there {
			s.vpcs[vpc] = struct{}{}
		}
	}
	return s
}

// Of returns the VpcNatGateway of a gateway's pod in the Subnet; empty for any other pod.
func (g *Gateways) Of(pod *corev1.Pod, subnet string) string {
	name := pod.Annotations[kubeovn.AnnotationNATGateway]
	if of := g.specs.network.Gateways[name]; of != nil && pod.Namespace == kubeovn.ConfigNamespace && pod.Name == nat.PodName(name) && of.Value.Subnet == subnet {
		return name
	}
	return ""
}

// Assign keeps the addresses that gateways and EIPs have, and then assigns those that they want, fixed ones first. Before it, the plan takes
// the addresses of existing IP objects from the pools of chosen Subnets; after it, it assigns addresses to other pods.
func (g *Gateways) Assign(chosen *topology.Chosen) {
	a := assigner{network: g.topology, specs: &g.specs, addresses: &g.addresses}
	if g.respecified {
		g.addresses.forgetDeleted(g.specs.gatesByAge)
	}
	if a.lanIPs(chosen) {
		g.changed = true
	}
	if g.respecified {
		a.external()
	}
}
