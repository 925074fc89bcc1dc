package policy

import (
	"cmp"
	"net/netip"
	"strconv"

	"weft.dev/weft/internal/reconcile"
)

// Direction says which side of a connection a policy isolates.
type Direction uint8

// The directions.
const (
	// Ingress: connections to the pods that are selected.
	Ingress Direction = iota
	// Egress: connections from them.
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

// Protocol is a transport protocol, by its number in an IP header.
type Protocol uint8

// The protocols that NetworkPolicies know.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the protocol's name as Kubernetes writes it.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	default:
		return "protocol " + strconv.Itoa(int(p))
	}
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

// Policy is what counts of a NetworkPolicy.
type Policy struct {
	Key Key
	// Pods selects the pods of its namespace that it is for.
	Pods Selector
	// Sides say what it does to them, by Direction.
	Sides [directions]Side
	// Keeps says that established connections of its pods go on when they are allowed no more.
	Keeps bool
}

// Owner names the policy as the origin of what is compiled from it.
func (p *Policy) Owner() reconcile.Owner { return reconcile.Owner("networkpolicy/" + p.Key.String()) }

// Side is what a policy says of one direction.
type Side struct {
	// Isolates says that the pods are isolated: nothing passes but what some policy allows.
	Isolates bool
	// Allows are its rules, in the object's order; each adds to what passes.
	Allows []Allow
}

// Allow is a rule as a policy has it: connections between its pods and the peers, for the services.
type Allow struct {
	// AnyPeer: everybody, pod or not. Otherwise those of Peers and of Blocks, and if there are none: nobody.
	AnyPeer bool
	Peers   []Peer
	// Blocks are the IP blocks without their exceptions, as few prefixes as say the same, sorted.
	Blocks []netip.Prefix
	// AnyService: every protocol and port. Otherwise those of Services and of Named.
	AnyService bool
	Services   []Service
	Named      []NamedPort
}

// Peer selects pods by their labels and their namespaces' labels.
type Peer struct {
	// Namespaces selects namespaces; nil: the policy's own only.
	Namespaces *Selector
	Pods       Selector
}

// NamedPort is a port by the name that containers give it.
type NamedPort struct {
	Protocol Protocol
	Name     string
}

// String returns "<protocol>/<name>".
func (n NamedPort) String() string { return n.Protocol.String() + "/" + n.Name }

// Pod is what counts of a pod.
type Pod struct {
	Key Key
	// Node is where it runs; "" if that is not decided.
	Node string
	// Labels must not be changed after they were handed over.
	Labels map[string]string
	// Addresses are those of its own, sorted; none before it has any.
	Addresses []netip.Addr
	// Ports are the ports of its containers that have names, sorted.
	Ports []ContainerPort
	// HostNetwork says that it has no address of its own but its node's.
	HostNetwork bool
	// Ended says that it has run to its end, and uses its addresses no more.
	Ended bool
	// IsNode says that it is no pod, and stands for a node: what its namespace's labels are asked for finds it, as a peer. What asks for
	// no label finds pods only, and no policy isolates it.
	IsNode bool
}

// ContainerPort is a port that a container has a name for.
type ContainerPort struct {
	NamedPort
	Number uint16
}

// Namespace is what counts of a namespace.
type Namespace struct {
	Name string
	// Labels must not be changed after they were handed over.
	Labels map[string]string
}

// RuleName names a verdict rule: "<namespace>/<name> ingress[2]" for the third of that policy's ingress rules. Where a
// named port has a number of its own, it is added: "shop/web ingress[2] TCP/http=8080". It is a comparable key, the same
// for the same objects on every node, whatever came before.
type RuleName string

// SetName names a set of pods by what it selects: "pods shop/{app=web}" for those of one namespace, "pods
// {team=a}/{app=web}" for those of all namespaces that a selector finds. Equal selections have equal names.
type SetName string

// Rule is a verdict rule: it allows new connections that are in all three dimensions.
type Rule struct {
	Name      RuleName
	Policy    Key
	Direction Direction
	// Subjects are the policy's pods: the destination for Ingress, the source for Egress.
	Subjects SetName
	// AnyPeer: the other side may be anybody. Otherwise it is in one of PeerSets or PeerBlocks; there is at least one.
	AnyPeer    bool
	PeerSets   []SetName
	PeerBlocks []netip.Prefix
	// AnyService: every protocol. Otherwise it is one of Services; there is at least one.
	AnyService bool
	Services   []Service
}

// Service is a protocol with destination ports: those that are Port in the bits of Mask. Mask 0 is all ports.
type Service struct {
	Protocol   Protocol
	Port, Mask uint16
}

// Contains reports whether a packet of a protocol to a port is of the service.
func (s Service) Contains(protocol Protocol, port uint16) bool {
	return s.Protocol == protocol && port&s.Mask == s.Port
}

// Isolation says in which directions a pod is isolated.
type Isolation struct {
	Ingress, Egress bool
	// KeepsIngress and KeepsEgress say that established connections go on when they are allowed no more: all policies that isolate
	// the pod in that direction say so.
	KeepsIngress, KeepsEgress bool
}

// Narrower reports whether it lets less through than another.
func (i Isolation) Narrower(than Isolation) bool {
	less := func(isolates, keeps, did, kept bool) bool { return isolates && (!did || kept && !keeps) }
	return less(i.Ingress, i.KeepsIngress, than.Ingress, than.KeepsIngress) || less(i.Egress, i.KeepsEgress, than.Egress, than.KeepsEgress)
}

// Delta is how a set has changed.
type Delta struct {
	Set SetName
	// Added and Removed are addresses; one that two pods have comes with the first and goes with the last. Sorted.
	Added, Removed []netip.Addr
	// Joined and Left are pods, with addresses or not yet; those of a part that has a number for a named port have one. Sorted.
	Joined, Left []Key
}

// Effect is what a change of the objects did: whose answers are others than before. A set that rules name for the first
// time has no delta: read it whole. One that no rule names any more has none either.
type Effect struct {
	// Policies are those whose Rules are others, or that are new or gone. Sorted.
	Policies []Key
	// Sets are those whose Addresses or Pods are others, sorted by name.
	Sets []Delta
	// Pods are those whose Isolation is another, or that are new or gone; of one node, if the index is for one. Sorted.
	Pods []Key
}
