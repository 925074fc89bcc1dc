package service

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"weft.dev/weft/internal/reconcile"
)

// Protocol is a transport protocol, by its number in an IP header.
type Protocol uint8

// The protocols that Services know.
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
		return "unknown"
	}
}

// Service is what counts of a Service.
type Service struct {
	Namespace, Name string
	// ClusterIP is its own address; the zero Addr if it has none of the family.
	ClusterIP netip.Addr
	// ExternalIPs are addresses that somebody routes to the nodes.
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are addresses of a load balancer that hands packets on with their destination unchanged. Those of
	// a proxy (ipMode Proxy) are not in it: that traffic has to pass the proxy.
	LoadBalancerIPs []netip.Addr
	// SourceRanges limit who may use LoadBalancerIPs; empty: everybody.
	SourceRanges []netip.Prefix
	// InternalLocal and ExternalLocal are the traffic policies Local; false: Cluster.
	InternalLocal, ExternalLocal bool
	// Affinity keeps a client with its endpoint until it has made no new connection for so long; 0: no affinity.
	Affinity time.Duration
	Ports    []Port
	// Idled says that the Service's pods were scaled to none until a client comes (`oc idle`).
	Idled bool
	// Waking says that the pods of a Service that was idled were asked for, and are awaited.
	Waking bool
}

// Owner names the Service as the origin of what is compiled from it.
func (s *Service) Owner() reconcile.Owner { return Owner(s.Namespace, s.Name) }

// Owner names a Service as the origin of what is compiled from it.
func Owner(namespace, name string) reconcile.Owner {
	return reconcile.Owner("service/" + namespace + "/" + name)
}

// Port is one of a Service's ports.
type Port struct {
	// Name ties it to ports of slices; a Service's only port may have none.
	Name     string
	Protocol Protocol
	// Number is the port of the Service's addresses; NodePort the one of the nodes', 0: none.
	Number, NodePort uint16
}

// Slice is what counts of an EndpointSlice.
type Slice struct {
	// Namespace and Service name the Service that it belongs to; Name is its own.
	Namespace, Service, Name string
	Ports                    []SlicePort
	Endpoints                []SliceEndpoint
}

// SlicePort is a port that all endpoints of a slice have: a Service's target port, resolved.
type SlicePort struct {
	// Name is the name of the Service's port.
	Name     string
	Protocol Protocol
	Number   uint16
}

// SliceEndpoint is an endpoint as a slice has it.
type SliceEndpoint struct {
	IP                          netip.Addr
	Node                        string
	Ready, Serving, Terminating bool
	// Zones and Nodes are hints for whom the endpoint is.
	Zones, Nodes []string
}

// Place is where this node is.
type Place struct {
	// Node is its name, Zone its label topology.kubernetes.io/zone.
	Node, Zone string
}

// Kind is what sort of address a virtual address is.
type Kind uint8

// The kinds. Where one address is several of them, the first holds.
const (
	KindClusterIP Kind = iota
	KindExternalIP
	KindLoadBalancer
	// KindNodePort has no IP of its own: it is at every address of a node.
	KindNodePort
)

// Verdict is what becomes of a new connection to a virtual address.
type Verdict uint8

// The verdicts.
const (
	// Forward: it goes to one of the endpoints.
	Forward Verdict = iota
	// Reject: there is no endpoint anywhere; the client is told at once.
	Reject
	// Drop: there is none on this node, and the policy wants no other. It is no answer that the Service is down.
	Drop
	// Wake: the Service is idled and has no endpoint anywhere; the packet is reported, and the client sends it again.
	Wake
)

// VirtualAddress is where a Service is reached by pods of this node.
type VirtualAddress struct {
	// Owner is the Service, "service/<namespace>/<name>".
	Owner reconcile.Owner
	// PortName is the name of the Service's port.
	PortName string
	Kind     Kind
	// IP is the address; the zero Addr for KindNodePort.
	IP       netip.Addr
	Protocol Protocol
	Port     uint16
	// Affinity keeps a client with its endpoint until it has made no new connection for so long; 0: no affinity.
	Affinity time.Duration
	// SourceRanges are the clients that it is for; empty: all. Others' packets are dropped.
	SourceRanges []netip.Prefix
	// OnlyThisNode says that a node port is this only at this node's addresses: at another node's, the packet is
	// traffic from outside for that node (externalTrafficPolicy Local).
	OnlyThisNode bool
	Verdict      Verdict
	// Local says that Endpoints are those of this node only (internalTrafficPolicy Local). Addresses of one owner with
	// the same PortName, Protocol and Local have the same endpoints.
	Local bool
	// Endpoints are those to choose from, sorted; some if and only if the verdict is Forward.
	Endpoints []Endpoint
	// Serving are all endpoints that answer connections which they have, sorted: Endpoints and those that are not
	// chosen any more.
	Serving []netip.AddrPort
	// Known are all endpoints that the object has, in whatever state, sorted: those that may still have connections.
	Known []netip.AddrPort
}

// Endpoint is one that a connection can go to.
type Endpoint struct {
	Addr netip.AddrPort
	// Node is where it runs, "" if unknown; Local says that it is this node.
	Node                        string
	Local                       bool
	Ready, Serving, Terminating bool
}

// key is what a packet must show to be for the address.
type key struct {
	ip       netip.Addr
	protocol Protocol
	port     uint16
}

func (v *VirtualAddress) key() key { return key{v.IP, v.Protocol, v.Port} }

func compareAddresses(a, b VirtualAddress) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.IP.Compare(b.IP), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// contains reports whether a sorted list has an element.
func contains(sorted []netip.AddrPort, addr netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(sorted, addr, netip.AddrPort.Compare)
	return found
}
