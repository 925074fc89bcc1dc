package service

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/transport"
)

// Service is the part of a Service that is compiled.
type Service struct {
	Namespace, Name string
	// ClusterIP is the cluster IP; the zero Addr if it has no IPv4 address.
	ClusterIP netip.Addr
	// ExternalIPs are addresses that are routed to the nodes from outside.
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are addresses of a load balancer that forwards packets with unchanged destination. Those of a proxy (ipMode Proxy) are
	// not included: their traffic has to pass the proxy.
	LoadBalancerIPs []netip.Addr
	// SourceRanges limit the clients of LoadBalancerIPs; empty: no limit.
	SourceRanges []netip.Prefix
	// InternalLocal and ExternalLocal say that the traffic policy is Local; false: Cluster.
	InternalLocal, ExternalLocal bool
	// Affinity is how long a client keeps its endpoint after its last new connection; 0: no affinity.
	Affinity time.Duration
	Ports    []Port
	// Idled says that the Service's pods are scaled to zero until a client connects (`oc idle`).
	Idled bool
	// Waking says that the pods of an idled Service were requested and have not started yet.
	Waking bool
}

// Owner returns the owner of what is compiled from the Service.
func (s *Service) Owner() reconcile.Owner { return Owner(s.Namespace, s.Name) }

// Owner returns the owner of what is compiled from a Service.
func Owner(namespace, name string) reconcile.Owner {
	return reconcile.Owner("service/" + namespace + "/" + name)
}

// Port is a port of a Service.
type Port struct {
	// Name matches it with ports of slices; a Service's only port may have no name.
	Name     string
	Protocol transport.Protocol
	// Number is the port at the Service's addresses. NodePort is the port at the nodes' addresses; 0: none.
	Number, NodePort uint16
}

// Slice is the part of an EndpointSlice that is compiled.
type Slice struct {
	// Namespace and Service name the Service; Name is the slice's own name.
	Namespace, Service, Name string
	Ports                    []SlicePort
	Endpoints                []SliceEndpoint
}

// SlicePort is a port of all endpoints in a slice: the resolved target port of a Service.
type SlicePort struct {
	// Name is the name of the Service's port.
	Name     string
	Protocol transport.Protocol
	Number   uint16
}

// SliceEndpoint is an endpoint in a slice.
type SliceEndpoint struct {
	IP                          netip.Addr
	Node                        string
	Ready, Serving, Terminating bool
	// Zones and Nodes are topology hints.
	Zones, Nodes []string
}

// Place is the location of this node.
type Place struct {
	// Node is the node's name, Zone its label topology.kubernetes.io/zone.
	Node, Zone string
}

// Kind is the kind of a virtual address.
type Kind uint8

// The kinds. If an address has several of them, the first one is used.
const (
	KindClusterIP Kind = iota
	KindExternalIP
	KindLoadBalancer
	// KindNodePort has no IP of its own: it is at every address of a node.
	KindNodePort
)

// Verdict decides on a new connection to a virtual address.
type Verdict uint8

// The verdicts.
const (
	// Forward: to one of the endpoints.
	Forward Verdict = iota
	// Reject: there is no endpoint anywhere; the client is notified at once.
	Reject
	// Drop: there is none on this node, and the policy allows no other. A reject would mean that the Service is down.
	Drop
	// Wake: the Service is idled and has no endpoint anywhere. The packet is reported, and the client sends it again.
	Wake
)

// VirtualAddress is an address by which pods of this node reach a Service.
type VirtualAddress struct {
	// Owner is the Service, "service/<namespace>/<name>".
	Owner reconcile.Owner
	// PortName is the name of the Service's port.
	PortName string
	Kind     Kind
	// IP is the address; the zero Addr for KindNodePort.
	IP       netip.Addr
	Protocol transport.Protocol
	Port     uint16
	// Affinity is how long a client keeps its endpoint after its last new connection; 0: no affinity.
	Affinity time.Duration
	// SourceRanges are the allowed clients; empty: all. Packets of other clients are dropped.
	SourceRanges []netip.Prefix
	// OnlyThisNode says that a node port is this virtual address only at the addresses of this node. At another node's address, the packet is
	// traffic from outside for that node (externalTrafficPolicy Local).
	OnlyThisNode bool
	Verdict      Verdict
	// Local says that Endpoints has only endpoints on this node (internalTrafficPolicy Local). Addresses of one owner with the same PortName,
	// Protocol and Local have the same endpoints.
	Local bool
	// Endpoints are the endpoints to choose from, sorted; not empty if and only if the verdict is Forward.
	Endpoints []Endpoint
	// Serving are all endpoints that serve existing connections, sorted: those in Endpoints, and those that get no new connections.
	Serving []netip.AddrPort
	// Known are all endpoints of the object in any state, sorted. Each may still have connections.
	Known []netip.AddrPort
}

// Endpoint is a possible destination of a connection.
type Endpoint struct {
	Addr netip.AddrPort
	// Node is its node, "" if unknown; Local says that it is this node.
	Node                        string
	Local                       bool
	Ready, Serving, Terminating bool
}

// key identifies the virtual address of a packet.
type key struct {
	ip       netip.Addr
	protocol transport.Protocol
	port     uint16
}

func (v *VirtualAddress) key() key { return key{v.IP, v.Protocol, v.Port} }

func compareAddresses(a, b VirtualAddress) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.IP.Compare(b.IP), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// contains reports whether a sorted list contains an element.
func contains(sorted []netip.AddrPort, addr netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(sorted, addr, netip.AddrPort.Compare)
	return found
}
