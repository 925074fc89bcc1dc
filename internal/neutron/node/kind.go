// Package node is the part of the agent for Neutron networks. A pod is attached to a port that the controller created ahead (NeutronPort),
// and that this node has already plugged into br-int: ADD claims one and opens flows, and waits neither for OpenStack nor for the API
// server.
package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/neutron/objects"
	"weft.dev/weft/internal/neutron/pipeline"
	noderoom "weft.dev/weft/internal/node"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/reconcile"
)

// UDP ports of tunnels between nodes (IANA): OVN's, and those of Neutron's agent with Open vSwitch. A pod's packet to them would have a
// node's source address, and could choose its network.
const (
	genevePort = 6081
	vxlanPort  = 4789
)

// Name is the network's name.
const Name = objects.NetworkKind

// Kind returns the network for wiring, for the node with that name.
func Kind(node string) network.Kind {
	return network.Kind{
		Name:    Name,
		Present: present, Presence: []client.Object{&stackubev1.Network{}},
		Bind: bind, ClosedPorts: []uint16{vxlanPort, genevePort},
		Care: noderoom.Care{
			Tables: host.Tables(), Devices: host.Devices(), Bridges: []noderoom.Bridge{{Name: pipeline.Bridge, Tables: pipeline.TableNames, Object: objectOf}},
			// The host forwards the connections to the Services that it serves.
			Sysctls: []noderoom.Sysctl{{Path: "net/ipv4/ip_forward", Value: "1"}},
		},
		Scheme: func(scheme *runtime.Scheme) error {
			if err := stackubev1.AddToScheme(scheme); err != nil {
				return fmt.Errorf("stackube's kinds: %w", err)
			}
			return errors.Join(weftv1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), networkingv1.AddToScheme(scheme))
		},
		Objects: []network.Object{
			{Kind: &stackubev1.Network{}, Namespaced: true},
			{Kind: &weftv1.NeutronPort{}, By: ctrlcache.ByObject{Field: fields.OneTermEqualSelector(weftv1.NeutronPortNodeField, node)}},
			{Kind: &corev1.Service{}, Namespaced: true},
			{Kind: &discoveryv1.EndpointSlice{}, Namespaced: true},
			{Kind: &networkingv1.NetworkPolicy{}, Namespaced: true},
			{Kind: &corev1.Pod{}, Namespaced: true, Strip: stripPod},
			{Kind: &corev1.Namespace{}},
		},
		New: func(ctx context.Context, n *noderoom.Node, deps network.Deps) (network.Network, network.Runner, error) {
			made, err := New(ctx, n, deps)
			return made, made, err
		},
	}
}

// objectOf returns the object of an owner of flows, if the owner is not an attachment.
func objectOf(owner reconcile.Owner) (kind, namespace, name string) {
	switch of, is := strings.CutPrefix(string(owner), networkOwner); {
	case is:
		namespace, name, _ = strings.Cut(of, "/")
		return "Network", namespace, name
	case owner == hostOwner:
		return "Service", "", ""
	case owner == pipeline.Owner:
		return "Node", "", ""
	}
	return "", "", ""
}

// present reports the network as soon as there is a Network of stackube.
func present(ctx context.Context, objects client.Reader) (network.Presence, error) {
	var list stackubev1.NetworkList
	if err := objects.List(ctx, &list, client.UnsafeDisableDeepCopy, client.Limit(1)); err != nil {
		return network.Presence{}, fmt.Errorf("list Networks of %s: %w", stackubev1.GroupName, err)
	}
	if len(list.Items) == 0 {
		return network.Presence{Why: "there is no Network of " + stackubev1.GroupName}, nil
	}
	return network.Presence{Present: true, Why: "there are Networks of " + stackubev1.GroupName}, nil
}

// bind puts the pods of a namespace on the Network with its name, as stackube does.
func bind(ctx context.Context, reader client.Reader) (placement.Binder, error) {
	var list stackubev1.NetworkList
	if err := reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list Networks of %s: %w", stackubev1.GroupName, err)
	}
	return objects.Binder(list.Items), nil
}

func addrs(prefixes []netip.Prefix) []netip.Addr {
	list := make([]netip.Addr, 0, len(prefixes))
	for _, p := range prefixes {
		list = append(list, p.Addr())
	}
	return list
}
