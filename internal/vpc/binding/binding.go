// Package binding decides which Subnets a pod is bound to. It is pure; the agent and the controller share it, so that both decide in the
// same way, from the objects in the API server.
//
// In this order: the annotation ovn.kubernetes.io/logical_switch of the pod, or a Subnet in network.weft.dev/network (vpc/NAME); the same
// annotations of its namespace, of which logical_switch is a list: the first Subnet with room is used; the oldest Subnet whose namespaces or
// namespaceSelectors include the namespace. A pod whose binding cannot be served is refused with the reason, and never gets another network.
package binding

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/vpc/objects"
)

// Network is the name of the network of VPCs in placement.
const Network = "vpc"

// Subnet is a Subnet with what bindings depend on.
type Subnet struct {
	objects.Subnet
	Age objects.Age
	// Broken is why pods cannot be in the subnet, as text; empty if they can.
	Broken string
	// Permitted are the namespaces of the Vpc; empty: all.
	Permitted []string
	// Gateways are the names of the pods of NAT gateways in the subnet. These pods are in kube-system, and may use the subnet.
	Gateways []string
}

// permits reports whether the namespace may use the subnet. The Subnet's own lists decide, else the Vpc's; without lists every namespace
// may.
func (s *Subnet) permits(pod placement.Pod, namespace placement.Namespace) bool {
	if namespace.Name == kubeovn.ConfigNamespace && slices.Contains(s.Gateways, pod.Name) {
		return true
	}
	if len(s.Namespaces) > 0 || len(s.Selectors) > 0 {
		return s.names(namespace)
	}
	return len(s.Permitted) == 0 || slices.Contains(s.Permitted, namespace.Name)
}

// names reports whether the Subnet's own lists name the namespace.
func (s *Subnet) names(namespace placement.Namespace) bool {
	return slices.Contains(s.Namespaces, namespace.Name) || s.selects(namespace)
}

// selects reports whether the Subnet selects the namespace by its labels.
func (s *Subnet) selects(namespace placement.Namespace) bool {
	return slices.ContainsFunc(s.Selectors, func(l labels.Selector) bool { return l.Matches(labels.Set(namespace.Labels)) })
}

// Subnets are all Subnets.
type Subnets struct {
	byName map[string]*Subnet
	// naming are the Subnets whose list names a namespace, by its name, and selecting those that select namespaces by labels; by name.
	naming    map[string]map[string]*Subnet
	selecting map[string]*Subnet
}

// NewSubnets returns an empty Subnets.
func NewSubnets() *Subnets {
	return &Subnets{byName: map[string]*Subnet{}, naming: map[string]map[string]*Subnet{}, selecting: map[string]*Subnet{}}
}

// Get returns the Subnet with the name; nil if there is none.
func (s *Subnets) Get(name string) *Subnet { return s.byName[name] }

// Set adds a Subnet, or replaces the one with its name. Its namespaces must not be changed afterwards.
func (s *Subnets) Set(subnet *Subnet) {
	s.Remove(subnet.Name)
	s.byName[subnet.Name] = subnet
	if subnet.Definition != "" {
		return // an address pool binds no namespace
	}
	for _, namespace := range subnet.Namespaces {
		if s.naming[namespace] == nil {
			s.naming[namespace] = map[string]*Subnet{}
		}
		s.naming[namespace][subnet.Name] = subnet
	}
	if len(subnet.Selectors) > 0 {
		s.selecting[subnet.Name] = subnet
	}
}

// Remove removes a Subnet.
func (s *Subnets) Remove(name string) {
	before := s.byName[name]
	if before == nil {
		return
	}
	delete(s.byName, name)
	delete(s.selecting, name)
	for _, namespace := range before.Namespaces {
		if delete(s.naming[namespace], name); len(s.naming[namespace]) == 0 {
			delete(s.naming, namespace)
		}
	}
}

// oldest returns the oldest Subnet that names the namespace; nil if none does.
func (s *Subnets) oldest(namespace placement.Namespace) *Subnet {
	var oldest *Subnet
	consider := func(subnet *Subnet) {
		if oldest == nil || subnet.Age.Compare(oldest.Age) < 0 {
			oldest = subnet
		}
	}
	for _, subnet := range s.naming[namespace.Name] {
		consider(subnet)
	}
	for _, subnet := range s.selecting {
		if subnet.selects(namespace) {
			consider(subnet)
		}
	}
	return oldest
}

// Bound is a pod's binding.
type Bound struct {
	// Level, Reason and Refuse are those of package placement.
	Level          placement.Level
	Reason, Refuse string
	// Names are the Subnets in which the pod may be; the first with room is used. Empty if the pod is refused.
	Names []string
}

// named returns the annotation that names Subnets, and its list of them; "" if none does.
func named(annotations map[string]string) (annotation, list string) {
	if list = strings.TrimSpace(annotations[kubeovn.AnnotationLogicalSwitch]); list != "" {
		return kubeovn.AnnotationLogicalSwitch, list
	}
	return placement.AnnotationNetwork, partOf(annotations)
}

// partOf returns the Subnet in the annotation of networks; empty if there is none.
func partOf(annotations map[string]string) string {
	if network, part, _ := strings.Cut(annotations[placement.AnnotationNetwork], "/"); network == Network {
		return part
	}
	return ""
}

// Asked returns the Subnet that a pod's annotations name; empty if none.
func Asked(annotations map[string]string) string {
	_, name := named(annotations)
	return name
}

// Listed returns the Subnets that the annotations of a namespace name.
func Listed(annotations map[string]string) []string {
	annotation, list := named(annotations)
	if list == "" {
		return nil
	}
	if annotation == placement.AnnotationNetwork {
		return []string{list}
	}
	names := strings.Split(list, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return names
}

// elsewhere reports whether the annotations name another network, which then takes precedence over Subnets (package placement).
func elsewhere(annotations map[string]string) bool {
	value, named := annotations[placement.AnnotationNetwork]
	network, _, _ := strings.Cut(value, "/")
	return named && network != Network
}

// Of returns the pod's binding; ok is false if there is none.
func (s *Subnets) Of(pod placement.Pod, namespace placement.Namespace) (b Bound, ok bool) {
	if elsewhere(pod.Annotations) {
		return Bound{}, false
	}
	if annotation, name := named(pod.Annotations); name != "" {
		b = Bound{Level: placement.ByPod, Reason: fmt.Sprintf("annotation %s of the pod names Subnet %.64q", annotation, name)}
		if part := partOf(pod.Annotations); part != "" && part != name {
			b.Refuse = fmt.Sprintf("annotations %s and %s of the pod name two Subnets, %.64q and %.64q; remove one of them",
				annotation, placement.AnnotationNetwork, name, part)
			return b, true
		}
		s.choose(&b, pod, namespace, name)
		return b, true
	}
	if elsewhere(namespace.Annotations) {
		return Bound{}, false
	}
	if annotation, list := named(namespace.Annotations); list != "" {
		b = Bound{
			Level:  placement.ByNamespace,
			Reason: fmt.Sprintf("annotation %s of namespace %s names %.256q", annotation, namespace.Name, list),
		}
		for _, name := range Listed(namespace.Annotations) {
			s.choose(&b, pod, namespace, name)
		}
		if len(b.Names) > 0 {
			b.Refuse = ""
		}
		return b, true
	}
	oldest := s.oldest(namespace)
	if oldest == nil {
		return Bound{}, false
	}
	b = Bound{Level: placement.ByNamespace, Reason: fmt.Sprintf("Subnet %s names namespace %s", oldest.Name, namespace.Name)}
	s.choose(&b, pod, namespace, oldest.Name)
	return b, true
}

// choose adds a Subnet to those in which the pod may be, or sets the reason why it may not.
func (s *Subnets) choose(b *Bound, pod placement.Pod, namespace placement.Namespace, name string) {
	subnet, there := s.byName[name]
	switch {
	case !there:
		b.Refuse = fmt.Sprintf("Subnet %.64q does not exist", name)
	case subnet.Definition != "":
		b.Refuse = fmt.Sprintf("Subnet %s is the address pool of NetworkAttachmentDefinition %s and no network for pods", name, subnet.Definition)
	case subnet.Broken != "":
		b.Refuse = fmt.Sprintf("Subnet %s cannot be used: %s", name, subnet.Broken)
	case !subnet.permits(pod, namespace):
		b.Refuse = fmt.Sprintf("namespace %s may not use Subnet %s; add it to the namespaces of the Subnet, or of its Vpc", namespace.Name, name)
	case !slices.Contains(b.Names, name):
		b.Names = append(b.Names, name)
	}
}

// Bind is the placement.Binder of VPCs.
func (s *Subnets) Bind(pod placement.Pod, namespace placement.Namespace) []placement.Binding {
	b, ok := s.Of(pod, namespace)
	if !ok {
		return nil
	}
	binding := placement.Binding{Level: b.Level, Network: Network, Reason: b.Reason, Refuse: b.Refuse}
	if len(b.Names) == 1 {
		binding.Part = b.Names[0]
	}
	return []placement.Binding{binding}
}
