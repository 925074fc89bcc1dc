package clusternetwork

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// WantedEgressIPs returns the egress IPs that a NetNamespace wants, including those that no node can have, such as 127.0.0.1. The API
// server refuses text that is not an address. If an object has such text anyway, it is left out; if no address remains, the result is
// 0.0.0.0, because the traffic of a namespace with egress IPs must not leave by the nodes' addresses.
func WantedEgressIPs(nn *networkv1.NetNamespace) []netip.Addr {
	var addresses []netip.Addr
	for _, text := range nn.EgressIPs {
		if addr, err := netip.ParseAddr(text); err == nil && addr.Is4() {
			addresses = append(addresses, addr)
		}
	}
	if len(addresses) == 0 && len(nn.EgressIPs) > 0 {
		return []netip.Addr{netip.IPv4Unspecified()}
	}
	return addresses
}

// HostedEgressIPs returns the egress IPs that a HostSubnet lists, without invalid ones.
func HostedEgressIPs(hs *networkv1.HostSubnet) []netip.Addr { return egressAddresses(hs.EgressIPs) }

// RefusedEgressIPs returns the egress IPs that a HostSubnet's node reports it cannot hold, with the reason.
func RefusedEgressIPs(hs *networkv1.HostSubnet) map[netip.Addr]string {
	refused := map[netip.Addr]string{}
	for _, r := range hs.Status.RefusedEgressIPs {
		if addr, err := netip.ParseAddr(r.IP); err == nil {
			refused[addr] = cmp.Or(r.Reason, "its agent gives no reason")
		}
	}
	return refused
}

// RefusedAbove returns the address above which a node refuses every egress IP, given those that it cannot hold; the zero value if there is
// none. A HostSubnet's status has room for the lowest refused addresses only. Once the room is used up, there may be more above the highest.
func RefusedAbove(refused map[netip.Addr]string) netip.Addr {
	if len(refused) < networkv1.MaxRefusedEgressIPs {
		return netip.Addr{}
	}
	return slices.SortedFunc(maps.Keys(refused), netip.Addr.Compare)[networkv1.MaxRefusedEgressIPs-1]
}

// EgressCIDRs returns the ranges of egress IPs that a HostSubnet's node may host, without invalid ones.
func EgressCIDRs(hs *networkv1.HostSubnet) []netip.Prefix {
	var ranges []netip.Prefix
	for _, text := range hs.EgressCIDRs {
		if prefix, err := ParsePrefix(text); err == nil {
			ranges = append(ranges, prefix)
		}
	}
	return ranges
}

func egressAddresses(texts []string) []netip.Addr {
	var addresses []netip.Addr
	for _, text := range texts {
		if addr, err := netip.ParseAddr(text); err == nil && addr.Is4() && addr.IsGlobalUnicast() {
			addresses = append(addresses, addr)
		}
	}
	return addresses
}
