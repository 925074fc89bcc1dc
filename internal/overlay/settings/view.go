package settings

import (
	"net/netip"
	"reflect"

	"weft.dev/weft/internal/clusternetwork"
)

// View is the overlay's input about the cluster and the node, as plain values.
type View struct {
	// Cluster is the ClusterNetwork named default.
	Cluster clusternetwork.Config
	// ClosedPorts are UDP ports, besides the port of the cluster's tunnels, that are closed to pods: ports of other networks' tunnels. In
	// ascending order.
	ClosedPorts []uint16
	// Local is this node's HostSubnet.
	Local clusternetwork.HostSubnet
	// Node describes the machine.
	Node Node
	// Closed is what pods cannot reach outside their network.
	Closed Closed
	// Remotes are all other hosts' HostSubnets. Two may briefly share an address or a name.
	Remotes []clusternetwork.HostSubnet
}

// Closed is what the pods of a node cannot reach outside their network. The zero value closes nothing.
type Closed struct {
	// Metadata are addresses of clouds' metadata services. Pods reach only port 53 there.
	Metadata []netip.Addr
	// TCPPorts are TCP ports that pods reach neither on nodes nor anywhere else outside their network.
	TCPPorts []uint16
}

// Node describes the machine.
type Node struct {
	// Datapath is the bridge's datapath type, ovsdb.DatapathSystem or ovsdb.DatapathNetdev.
	Datapath string
	// Uplink is the interface with the address of the node's HostSubnet.
	Uplink string
	// MTU is the uplink's MTU in bytes.
	MTU int
	// Network is the subnet of the node's address on the uplink. Egress IPs are in it.
	Network netip.Prefix
}

// EqualButRemotes reports whether two Views differ at most in their remote hosts.
func (v View) EqualButRemotes(other View) bool {
	v.Remotes, other.Remotes = nil, nil
	return reflect.DeepEqual(v, other)
}

// ByPolicies reports whether the view's network isolates by NetworkPolicies. Then UpdatePolicies must have stored all objects first.
func (v *View) ByPolicies() bool { return v.Cluster.Mode == clusternetwork.ModeNetworkPolicy }

// Guarded reports whether namespaces may have egress firewalls in the view's network. Then Firewalls.Update must have stored all of them
// first.
func (v *View) Guarded() bool { return v.Cluster.Mode.HasVNIDs() }
