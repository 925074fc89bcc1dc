package clusternetwork

import (
	"cmp"
	"net/netip"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// WantedEgressIPs returns the egress addresses that a NetNamespace wants, also those that no node can have, such as 127.0.0.1. The API server
// refuses what is no address; should it have let some through, it is left out, and where nothing remains 0.0.0.0 replaces it: a
// namespace that wants egress addresses must not leave by its nodes'.
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

// HostedEgressIPs returns the egress addresses that a HostSubnet lists, without what is no address.
func HostedEgressIPs(hs *networkv1.HostSubnet) []netip.Addr { return egressAddresses(hs.EgressIPs) }

// RefusedEgressIPs returns the egress addresses that a HostSubnet's node says it cannot hold, and why.
func RefusedEgressIPs(hs *networkv1.HostSubnet) map[netip.Addr]string {
	refused := map[netip.Addr]string{}
	for _, r := range hs.Status.RefusedEgressIPs {
		if addr, err := netip.ParseAddr(r.IP); err == nil {
			refused[addr] = cmp.Or(r.Reason, "its agent gives no reason")
		}
	}
	return refused
}

// EgressCIDRs returns the ranges of egress addresses that a HostSubnet's node may host, without what is no range.
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
