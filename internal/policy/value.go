package policy

import (
	"cmp"
	"net/netip"

	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/transport"
)

// Direction says which side of a connection a policy isolates.
type Direction uint8

// The directions.
const (
	// Ingress: connections to the selected pods.
	Ingress Direction = iota
	// Egress: connections from the selected pods.
	Egress
	directions
)

// String returns the direction's name as rules are numbered: "ingress" or "egress".
func (d Direction) String() string {
	if d == Egress {
		return "egress"
	}
	return "ingress"
}

// HostNetworkNamespace is the namespace whose labels stand for the nodes of the cluster, as in OpenShift.
const HostNetworkNamespace = "openshift-host-network"

// Key names a policy or a pod.
type Key struct{ Namespace, Name string }

// String returns "<namespace>/<name>".
func (k Key) String() string { return k.Namespace + "/" + k.Name }

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Policy is the value of a NetworkPolicy.
type Policy struct {
	Key Key
	// Pods selects the policy's pods in its namespace.
	Pods Selector
	// Sides are the policy's effects, by Direction.
	Sides [directions]Side
	// Keeps says that established connections of its pods continue when they are no longer allowed.
	Keeps bool
}

// Owner returns the policy as the owner of what is compiled from it.
func (p *Policy) Owner() reconcile.Owner { return reconcile.Owner("networkpolicy/" + p.Key.String()) }

// Side is a policy's effect in one direction.
type Side struct {
	// Isolates says that the pods are isolated: only traffic that some policy allows passes.
	Isolates bool
	// Allows are its rules, in the object's order; each allows more.
	Allows []Allow
}

// Allow is a rule as a policy has it: connections between its pods and the peers, for the services.
type Allow struct {
	// AnyPeer allows every address, pod or not. Otherwise the rule allows Peers and Blocks; if there are none, it allows nothing.
	AnyPeer bool
	Peers   []Peer
	// Blocks are the IP blocks without their exceptions, as the fewest prefixes, sorted.
	Blocks []netip.Prefix
	// AnyService allows every protocol and port. Otherwise the rule allows Services and Named.
	AnyService bool
	Services   []Service
	Named      []NamedPort
}

// Peer selects pods by their labels and their namespaces' labels.
type Peer struct {
	// Namespaces selects namespaces; nil: only the policy's own.
	Namespaces *Selector
	Pods       Selector
}

// NamedPort is a port by its name in containers.
type NamedPort struct {
	Protocol transport.Protocol
	Name     string
}

// String returns "<protocol>/<name>".
func (n NamedPort) String() string { return n.Protocol.String() + "/" + n.Name }

// Pod is the value of a pod.
type Pod struct {
	Key Key
	// Node is the name of the pod's node; "" if it is not scheduled.
	Node string
	// Labels must not be changed after the Pod is passed to an Index.
	Labels map[string]string
	// Addresses are the pod's own, sorted; none before it has any.
	Addresses []netip.Addr
	// Ports are the named ports of its containers, sorted.
	Ports []ContainerPort
	// HostNetwork says that the pod has no address of its own, only its node's.
	HostNetwork bool
	// Ended says that the pod has ended and no longer uses its addresses.
	Ended bool
	// IsNode says that the value is not a pod but represents a node. As a peer, it is selected by selectors that require a label of its
	// namespace. Selectors that require no label select pods only. No policy isolates it.
	IsNode bool
}

// ContainerPort is a named port of a container.
type ContainerPort struct {
	NamedPort
	Number uint16
}

// Namespace is the value of a namespace.
type Namespace struct {
	Name string
	// Labels must not be changed after the Namespace is passed to an Index.
	Labels map[string]string
}

// RuleName names a verdict rule: "<namespace>/<name> ingress[2]" for the third of that policy's ingress rules. If a named port has its
// own number, it is added: "shop/web ingress[2] TCP/http=8080". It is a comparable key, the same for the same objects on every node,
// whatever the history.
type RuleName string

// SetName names a set of pods by what it selects: "pods shop/{app=web}" for pods of one namespace, "pods {team=a}/{app=web}" for pods of
// all namespaces that a selector matches. Equal selections have equal names.
type SetName string

// Rule is a verdict rule: it allows new connections that match all three dimensions.
type Rule struct {
	Name      RuleName
	Policy    Key
	Direction Direction
	// Subjects are the policy's pods: the destination for Ingress, the source for Egress.
	Subjects SetName
	// AnyPeer: the other side may be any address. Otherwise it is in one of PeerSets or PeerBlocks; there is at least one.
	AnyPeer    bool
	PeerSets   []SetName
	PeerBlocks []netip.Prefix
	// AnyService: every protocol. Otherwise it is one of Services; there is at least one.
	AnyService bool
	Services   []Service
}

// Service is a protocol with destination ports: those equal to Port in the bits of Mask. Mask 0 is all ports.
type Service struct {
	Protocol   transport.Protocol
	Port, Mask uint16
}

// Contains reports whether a packet of this protocol to this port belongs to the service.
func (s Service) Contains(protocol transport.Protocol, port uint16) bool {
	return s.Protocol == protocol && port&s.Mask == s.Port
}

// Isolation says in which directions a pod is isolated.
type Isolation struct {
	Ingress, Egress bool
	// KeepsIngress and KeepsEgress say that established connections continue when they are no longer allowed: all policies that isolate the
	// pod in that direction keep them.
	KeepsIngress, KeepsEgress bool
}

// Narrower reports whether i allows less than another.
func (i Isolation) Narrower(than Isolation) bool {
	less := func(isolates, keeps, did, kept bool) bool { return isolates && (!did || kept && !keeps) }
	return less(i.Ingress, i.KeepsIngress, than.Ingress, than.KeepsIngress) || less(i.Egress, i.KeepsEgress, than.Egress, than.KeepsEgress)
}

// Delta is a change of a set.
type Delta struct {
	Set SetName
	// Added and Removed are addresses, sorted. An address of two pods is added with the first pod and removed with the last.
	Added, Removed []netip.Addr
	// Joined and Left are pods, with or without addresses, sorted; pods in a part with a number for a named port have one.
	Joined, Left []Key
}

// Effect is the effect of a change of the objects: the objects whose answers have changed. A set that rules name for the first time has
// no delta: read it whole. A set that no rule names any more has none either.
type Effect struct {
	// Policies are those whose Rules changed, and new and deleted ones. Sorted.
	Policies []Key
	// Sets are those whose Addresses or Pods changed, sorted by name.
	Sets []Delta
	// Pods are those whose Isolation changed, and new and deleted ones; only those of one node if the index is for one. Sorted.
	Pods []Key
}
