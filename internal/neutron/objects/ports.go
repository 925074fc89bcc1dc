package objects

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/placement"
)

// NetworkKind is the name of OpenStack's networks in placement.
const NetworkKind = "neutron"

// AnnotationTenant is the annotation of Namespaces and Networks that were created for a Tenant: its UID.
const AnnotationTenant = "network.weft.dev/tenant-uid"

// Binder puts the pods of a namespace on the Network with its name, as stackube does. Pods of a Tenant's Namespace are only on networks of
// OpenStack: no annotation of a tenant's pod selects another network.
func Binder(networks []stackubev1.Network) placement.Binder {
	own := map[string]bool{}
	for i := range networks {
		if n := &networks[i]; n.Namespace == n.Name {
			own[n.Name] = true
		}
	}
	return func(_ placement.Pod, namespace placement.Namespace) []placement.Binding {
		_, tenant := namespace.Annotations[AnnotationTenant]
		b := placement.Binding{
			Level: placement.ByNamespace, Network: NetworkKind, Part: namespace.Name, Only: tenant,
			Reason: fmt.Sprintf("Network %s/%s has the namespace's name", namespace.Name, namespace.Name),
		}
		switch {
		case own[namespace.Name]:
		case tenant:
			b.Reason = fmt.Sprintf("namespace %s is that of a Tenant", namespace.Name)
			b.Refuse = fmt.Sprintf("Tenant %s has no Network %s/%s: create one, or name another with annotation %s: %s/NAME",
				namespace.Name, namespace.Name, namespace.Name, placement.AnnotationNetwork, NetworkKind)
		default:
			return nil
		}
		return []placement.Binding{b}
	}
}

const portOwner = "port/"

// PortOwner is the owner in the mark of a port in OpenStack: a Network and a node.
func PortOwner(at ahead.Place) string { return portOwner + at.Network + "/" + at.Node }

// PlaceOf parses a port's owner.
func PlaceOf(owner string) (ahead.Place, bool) {
	rest, is := strings.CutPrefix(owner, portOwner)
	network, node, both := strings.Cut(rest, "/")
	return ahead.Place{Network: network, Node: node}, is && both && network != "" && node != ""
}

// Errors of networks whose ports cannot be assigned to pods.
var (
	ErrNoSubnet  = errors.New("the network has no IPv4 subnet with an allocation pool")
	ErrNoAddress = errors.New("the port has no address of a known subnet")
)

// PodSubnet is the subnet in which pods' ports are created: the one with the Network's range. A project can add subnets to its network, but
// none that overlaps another. For a network that networkID names, it is the first IPv4 subnet by name. Its allocation pools are the
// addresses that Neutron assigns.
func PodSubnet(n *stackubev1.Network, held *cloud.HeldNetwork) (id string, pool []ahead.Range, err error) {
	sorted := slices.SortedFunc(slices.Values(held.Held), func(a, b subnets.Subnet) int {
		return strings.Compare(a.Name+a.ID, b.Name+b.ID)
	})
	for _, s := range sorted {
		if s.IPVersion != 4 || n.Spec.NetworkID == "" && s.CIDR != n.Spec.CIDR {
			continue
		}
		for _, p := range s.AllocationPools {
			first, errFirst := netip.ParseAddr(p.Start)
			last, errLast := netip.ParseAddr(p.End)
			if errFirst == nil && errLast == nil && first.Is4() && last.Is4() {
				pool = append(pool, ahead.Range{First: first, Last: last})
			}
		}
		if len(pool) > 0 {
			return s.ID, pool, nil
		}
	}
	return "", nil, fmt.Errorf("network %s: %w", held.ID, ErrNoSubnet)
}

// PodSubnet6 is the id of the subnet whose IPv6 addresses Neutron allocates to pods besides those of PodSubnet: the Network's own one, or with
// networkID the first by name. "" if there is none. In a subnet with an address mode, Neutron gives every port an address without a request.
func PodSubnet6(n *stackubev1.Network, held *cloud.HeldNetwork) string {
	sorted := slices.SortedFunc(slices.Values(held.Held), func(a, b subnets.Subnet) int {
		return strings.Compare(a.Name+a.ID, b.Name+b.ID)
	})
	for _, s := range sorted {
		own := n.Spec.NetworkID != "" || s.CIDR == n.Spec.IPv6CIDR
		if s.IPVersion == 6 && own && (s.IPv6AddressMode == "" || s.IPv6AddressMode == statefulMode) {
			return s.ID
		}
	}
	return ""
}

// statefulMode is the address mode of subnets whose addresses Neutron allocates on request.
const statefulMode = "dhcpv6-stateful"

// Port compiles the NeutronPort of a port: what a node needs.
func Port(n *stackubev1.Network, held *cloud.HeldNetwork, all []cloud.HeldPort, port *cloud.HeldPort, node string) (*weftv1.NeutronPort, error) {
	spec := weftv1.NeutronPortSpec{
		Network: weftv1.NeutronPortNetwork{Namespace: n.Namespace, Name: n.Name, UID: string(n.UID), ID: held.ID},
		Node:    node, MAC: strings.ToLower(port.MACAddress), MTU: int32(held.MTU), Active: port.Active(), //nolint:gosec // an MTU
	}
	families := map[int]bool{}
	for _, ip := range port.FixedIPs {
		at := slices.IndexFunc(held.Held, func(s subnets.Subnet) bool { return s.ID == ip.SubnetID })
		if at < 0 || families[held.Held[at].IPVersion] {
			continue
		}
		subnet := &held.Held[at]
		addr, errAddr := netip.ParseAddr(ip.IPAddress)
		cidr, errCIDR := netip.ParsePrefix(subnet.CIDR)
		if errAddr != nil || errCIDR != nil || !cidr.Contains(addr) {
			continue
		}
		families[subnet.IPVersion] = true
		spec.Addresses = append(spec.Addresses, weftv1.NeutronPortAddress{
			Address: netip.PrefixFrom(addr, cidr.Bits()).String(), Gateway: subnet.GatewayIP, GatewayMAC: routerMAC(all, subnet),
		})
		for _, r := range subnet.HostRoutes {
			spec.Routes = append(spec.Routes, weftv1.NeutronPortRoute{Destination: r.DestinationCIDR, NextHop: r.NextHop})
		}
		spec.DNS = append(spec.DNS, nameServers(all, subnet)...)
	}
	if len(spec.Addresses) == 0 {
		return nil, fmt.Errorf("port %s: %w", port.ID, ErrNoAddress)
	}
	// The first one is the pod's in its status, which kubelets probe: that of IPv4.
	slices.SortStableFunc(spec.Addresses, func(a, b weftv1.NeutronPortAddress) int {
		return cmp.Compare(strings.Count(a.Address, ":"), strings.Count(b.Address, ":"))
	})
	return &weftv1.NeutronPort{
		ObjectMeta: metav1.ObjectMeta{Name: port.ID, Finalizers: []string{weftv1.NeutronPortFinalizer}}, Spec: spec,
	}, nil
}

// Fits reports whether another pod can use the port of a NeutronPort: it exists, others have not changed its addresses, it is bound to the
// node's host ("": unknown), and it has an address of subnet6, the network's subnet for pods' IPv6 addresses ("": none), which the network may
// have got later. port is nil if it does not exist in OpenStack.
func Fits(p *weftv1.NeutronPort, port *cloud.HeldPort, host, subnet6 string) bool {
	if port == nil || host != "" && port.HostID != host || !strings.EqualFold(port.MACAddress, p.Spec.MAC) {
		return false
	}
	for _, a := range p.Spec.Addresses {
		if own, err := netip.ParsePrefix(a.Address); err != nil || !port.Has(own.Addr()) {
			return false
		}
	}
	return subnet6 == "" || slices.ContainsFunc(port.FixedIPs, func(ip ports.IP) bool { return ip.SubnetID == subnet6 })
}

// routerMAC is the MAC address of the router's port with the subnet's gateway address.
func routerMAC(all []cloud.HeldPort, subnet *subnets.Subnet) string {
	for i := range all {
		if !all[i].IsRouter() {
			continue
		}
		for _, ip := range all[i].FixedIPs {
			if ip.SubnetID == subnet.ID && ip.IPAddress == subnet.GatewayIP {
				return strings.ToLower(all[i].MACAddress)
			}
		}
	}
	return ""
}

// mostServers limits the name servers of a port.
const mostServers = 5

// nameServers are the subnet's; if it has none, the ports that serve DHCP in it.
func nameServers(all []cloud.HeldPort, subnet *subnets.Subnet) []string {
	found := slices.Clone(subnet.DNSNameservers)
	if len(found) == 0 {
		for i := range all {
			for _, ip := range all[i].FixedIPs {
				if all[i].IsDHCP() && ip.SubnetID == subnet.ID {
					found = append(found, ip.IPAddress)
				}
			}
		}
		slices.Sort(found)
	}
	return found[:min(len(found), mostServers)]
}
