package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/vpc/binding"
	"weft.dev/weft/internal/vpc/nat"
)

// Bridge is OVN's integration bridge. ovn-controller creates it.
const Bridge = "br-int"

// GenevePort is the UDP port of OVN's tunnels. It is closed to pods of other networks: a masqueraded packet has a chassis's source address.
const GenevePort = 6081

// Options are the options of the Kind.
type Options struct {
	// Node is the name of this node's Node object.
	Node string
	// Database is Open vSwitch's: unix:PATH.
	Database string
	// Addresses return what the controller assigned to pods. Nil: IP objects, which are watched.
	Addresses Addresses
	// Join makes the node a chassis of OVN and keeps it one until ctx ends. It reports the status for the NodeNetwork, and errors. It is
	// called once UDP 6081 is closed to pods. Nil: another program makes the node a chassis.
	Join func(ctx context.Context, datapath string, report func(weftv1.VPCNode, error)) error
}

// Kind returns the network for the agent's wiring.
func Kind(options Options) network.Kind {
	here := ctrlcache.ByObject{Field: fields.OneTermEqualSelector("spec.nodeName", options.Node)}
	b := &bindings{}
	return network.Kind{
		Name: binding.Network, Present: present, Presence: []client.Object{&kubeovn.Vpc{}, &kubeovn.Subnet{}, &kubeovn.VpcNatGateway{}},
		Bind: b.bind,
		Care: Care(), Scheme: kubeovn.AddToScheme, ClosedPorts: []uint16{GenevePort},
		Objects: []network.Object{
			{Kind: &kubeovn.Vpc{}},
			{Kind: &kubeovn.Subnet{}},
			{Kind: &kubeovn.VpcNatGateway{}, Resource: "vpc-nat-gateways"},
			{Kind: &kubeovn.IP{}, By: here},
			{Kind: &kubeovn.IptablesEIP{}, Resource: "iptables-eips"},
			{Kind: &kubeovn.IptablesSnatRule{}, Resource: "iptables-snat-rules"},
			{Kind: &kubeovn.IptablesDnatRule{}, Resource: "iptables-dnat-rules"},
			{Kind: &kubeovn.IptablesFIPRule{}, Resource: "iptables-fip-rules"},
			{Kind: nat.Definition(), Resource: "network-attachment-definitions", Namespaced: true, Strip: nat.TrimDefinition},
			{Kind: &corev1.Pod{}, Namespaced: true},
		},
		New: func(_ context.Context, n *node.Node, deps network.Deps) (network.Network, network.Runner, error) {
			made := New(n, deps, options)
			return made, made, nil
		},
	}
}
