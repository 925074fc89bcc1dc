// Package placement decides which network a pod is on. It is pure: agent and controller call it with the pod and its namespace as the API
// server has them, never with the container runtime's arguments, and reach the same decision.
//
// A pod's own binding takes precedence over its namespace's, and both over the cluster's default. At each level, the annotation
// network.weft.dev/network takes precedence over the networks' own objects. A pod with a binding that cannot be served is refused with
// the reason; it never gets the default instead.
package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const (
	// AnnotationNetwork names the network of a pod, or of all pods of a namespace: "flannel", or with a part that the network defines,
	// "neutron/blue".
	AnnotationNetwork = "network.weft.dev/network"
	// AnnotationDefault on a network's main object, with the value "true", makes that network the default of the cluster.
	AnnotationDefault = "network.weft.dev/default"
)

// Pod has the fields of a Pod that placement reads.
type Pod struct {
	Namespace, Name string
	Annotations     map[string]string
}

// Namespace has the fields of a Namespace that placement reads.
type Namespace struct {
	Name                string
	Annotations, Labels map[string]string
}

// Level says which kind of object binds a pod.
type Level int

// The levels, the strongest first.
const (
	// ByPod is a binding of this pod alone.
	ByPod Level = iota
	// ByNamespace is a binding of the pods of its namespace.
	ByNamespace
)

// Binding is the binding of a pod by an object of a network.
type Binding struct {
	Level Level
	// Network is the network's name. Part is the part of it, empty if the network has no parts.
	Network, Part string
	// Reason says which object binds the pod: "Subnet blue names namespace shop".
	Reason string
	// Refuse is the reason why the binding cannot be served, empty if it can: "Subnet blue does not exist".
	Refuse string
	// Only refuses the pod on every other network, also if an annotation of the pod or of its namespace names one: the namespace belongs to a
	// tenant, whose users may write annotations.
	Only bool
}

// Binder returns the bindings made by a network's own objects. It depends on its arguments and these objects only.
type Binder func(pod Pod, namespace Namespace) []Binding

// Cluster has the configuration of the cluster that placement reads.
type Cluster struct {
	// Default is the network of pods without a binding. Empty: such pods are refused.
	Default string
	// DefaultReason says why this network is the default.
	DefaultReason string
	// Absent has the reason for each network that does not serve pods. Networks that serve are not in it. A network that is in neither Absent
	// nor Known does not exist.
	Absent map[string]string
	// Known are the names of all networks.
	Known []string
	// Binders are the networks' own binding rules.
	Binders []Binder
}

// Decision is the network of a pod.
type Decision struct {
	// Network is the network's name. Part is the part of it, empty if the network has no parts or chooses itself.
	Network, Part string
	// Reason explains the decision, for events and `weft status`.
	Reason string
	// Refuse is the reason why the pod cannot be attached, as a message for its user; empty if it can.
	Refuse string
	// Annotations are the pod's, for its network; nil if the API server's pod is not known.
	Annotations map[string]string
}

// Decide returns the network of a pod.
func Decide(pod Pod, namespace Namespace, cluster Cluster) Decision {
	var bound []Binding
	for _, binder := range cluster.Binders {
		bound = append(bound, binder(pod, namespace)...)
	}
	decision := decide(pod, namespace, cluster, bound)
	decision.Annotations = pod.Annotations
	for _, b := range bound {
		if b.Only && b.Network != decision.Network && decision.Refuse == "" {
			decision.Refuse = fmt.Sprintf("%s, and the pods of namespace %s are on networks of kind %s only (%s): remove the annotation %s that names another",
				decision.Reason, namespace.Name, b.Network, b.Reason, AnnotationNetwork)
		}
	}
	return decision
}

// decide returns the network of a pod by the strongest level that has a binding.
func decide(pod Pod, namespace Namespace, cluster Cluster, bound []Binding) Decision {
	for _, at := range []struct {
		level       Level
		annotations map[string]string
		object      string
	}{
		{ByPod, pod.Annotations, "pod " + pod.Namespace + "/" + pod.Name},
		{ByNamespace, namespace.Annotations, "namespace " + namespace.Name},
	} {
		here := slices.DeleteFunc(slices.Clone(bound), func(b Binding) bool { return b.Level != at.level })
		if value, has := at.annotations[AnnotationNetwork]; has {
			return cluster.serve(refine(named(value, at.object), here))
		}
		if len(here) > 0 {
			return cluster.serve(agree(here))
		}
	}
	if cluster.Default == "" {
		return Decision{
			Reason: "nothing binds the pod",
			Refuse: fmt.Sprintf("the cluster has no default network: set annotation %s on the pod or its namespace", AnnotationNetwork),
		}
	}
	return cluster.serve(Binding{Network: cluster.Default, Reason: cmp.Or(cluster.DefaultReason, "it is the cluster's default network")})
}

// named returns the binding of an annotation.
func named(value, object string) Binding {
	b := Binding{Reason: fmt.Sprintf("annotation %s of %s is %q", AnnotationNetwork, object, value)}
	var parts bool
	b.Network, b.Part, parts = strings.Cut(value, "/")
	if b.Network == "" || parts && b.Part == "" {
		b.Refuse = b.Reason + `: it has to be the name of a network, as in "overlay", or network/part, as in "neutron/blue"`
	}
	return b
}

// refine adds the part from the network's own objects to an annotation that names only the network, and what they refuse.
func refine(b Binding, bound []Binding) Binding {
	own := slices.DeleteFunc(slices.Clone(bound), func(o Binding) bool { return o.Network != b.Network })
	if b.Refuse != "" || len(own) == 0 {
		return b
	}
	first := agree(own)
	if b.Part != "" {
		b.Refuse = first.Refuse
		return b
	}
	first.Reason = b.Reason + "; " + first.Reason
	return first
}

// agree returns the common binding of a level, or a refused one if the bindings differ. Several bindings of one network are in the
// network's order.
func agree(bound []Binding) Binding {
	first := bound[0]
	for _, other := range bound[1:] {
		if other.Network != first.Network {
			first.Refuse = fmt.Sprintf("the pod is bound to two networks: to %s (%s) and to %s (%s)", first.Network, first.Reason, other.Network, other.Reason)
			break
		}
	}
	return first
}

// serve returns the decision for a binding.
func (c Cluster) serve(b Binding) Decision {
	d := Decision{Network: b.Network, Part: b.Part, Reason: b.Reason, Refuse: b.Refuse}
	if d.Refuse != "" {
		return d
	}
	if why, absent := c.Absent[b.Network]; absent {
		d.Refuse = fmt.Sprintf("network %s (%s) does not serve pods on this node: %s", b.Network, b.Reason, why)
	} else if !slices.Contains(c.Known, b.Network) {
		d.Refuse = fmt.Sprintf("network %q (%s) does not exist; the networks are %s", b.Network, b.Reason, strings.Join(c.Known, ", "))
	}
	return d
}
