// Package placement decides which network a pod is on. It is pure: agent and controller call it with the pod and its namespace as the
// API server has them, never with what the container runtime passes, and reach the same decision.
//
// A pod's own binding comes before its namespace's, and both before the cluster's default. At each level the annotation
// network.weft.dev/network comes before what the networks' own objects say. A pod that is bound to something that cannot be served is
// refused with the reason; it never gets the default instead.
package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const (
	// AnnotationNetwork names the network of a pod, or of all pods of a namespace: "flannel", or with a part of the network that the
	// network itself defines, "neutron/blue".
	AnnotationNetwork = "network.weft.dev/network"
	// AnnotationDefault on a network's main object, with the value "true", makes that network the default of the cluster.
	AnnotationDefault = "network.weft.dev/default"
)

// Pod is what placement reads of a Pod.
type Pod struct {
	Namespace, Name string
	Annotations     map[string]string
}

// Namespace is what placement reads of a Namespace.
type Namespace struct {
	Name                string
	Annotations, Labels map[string]string
}

// Level says which object binds a pod.
type Level int

// The levels, the strongest first.
const (
	// ByPod is a binding of this pod alone.
	ByPod Level = iota
	// ByNamespace is a binding of the pods of its namespace.
	ByNamespace
)

// Binding is what an object of a network says about a pod.
type Binding struct {
	Level Level
	// Network is the network's name, and Part what of it, empty where the network has no parts.
	Network, Part string
	// Reason says which object binds the pod: "Subnet blue names namespace shop".
	Reason string
	// Refuse is why the binding cannot be served, empty when it can: "Subnet blue does not exist".
	Refuse string
	// Only refuses the pod on every other network, also where an annotation of the pod or of its namespace names one: the namespace belongs to a
	// tenant, whose users may write annotations.
	Only bool
}

// Binder returns the bindings that a network's own objects make, as a function of them and of nothing else.
type Binder func(pod Pod, namespace Namespace) []Binding

// Cluster is what placement reads of the cluster.
type Cluster struct {
	// Default is the network of pods that nothing binds. Empty: such pods are refused.
	Default string
	// DefaultReason says why it is the default.
	DefaultReason string
	// Absent says of a network why it does not serve pods; networks that serve are not in it. A network that is in neither
	// Absent nor Known does not exist.
	Absent map[string]string
	// Known are the names of all networks.
	Known []string
	// Binders are the networks' own rules.
	Binders []Binder
}

// Decision is the network of a pod.
type Decision struct {
	// Network is the network's name, and Part what of it, empty where the network has no parts or where it chooses itself.
	Network, Part string
	// Reason says why, for events and `weft status`.
	Reason string
	// Refuse is why the pod cannot be attached, in words for its user; empty when it can.
	Refuse string
}

// Decide returns the network of a pod.
func Decide(pod Pod, namespace Namespace, cluster Cluster) Decision {
	var bound []Binding
	for _, binder := range cluster.Binders {
		bound = append(bound, binder(pod, namespace)...)
	}
	decision := decide(pod, namespace, cluster, bound)
	for _, b := range bound {
		if b.Only && b.Network != decision.Network && decision.Refuse == "" {
			decision.Refuse = fmt.Sprintf("%s, and the pods of namespace %s are on networks of kind %s only (%s): remove the annotation %s that names another",
				decision.Reason, namespace.Name, b.Network, b.Reason, AnnotationNetwork)
		}
	}
	return decision
}

// decide returns the network of a pod by the strongest level that binds it.
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

// refine adds the part that the network's own objects name to an annotation that names the network only.
func refine(b Binding, bound []Binding) Binding {
	own := slices.DeleteFunc(slices.Clone(bound), func(o Binding) bool { return o.Network != b.Network })
	if b.Refuse != "" || b.Part != "" || len(own) == 0 {
		return b
	}
	first := agree(own)
	first.Reason = b.Reason + "; " + first.Reason
	return first
}

// agree returns the binding that all of a level make, or one that is refused if they differ. Several of one network are in the order
// that the network gave them.
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

// serve returns the decision that a binding leads to.
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
