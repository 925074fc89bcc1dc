package fib

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/rtnetlink"
)

// Gateways returns the IPv4 addresses of all next hops of this network namespace's routes.
func Gateways() (map[netip.Addr]struct{}, error) {
	list, err := rtnetlink.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	gateways := map[netip.Addr]struct{}{}
	add := func(ip net.IP) {
		if gateway, ok := netip.AddrFromSlice(ip); ok {
			gateways[gateway.Unmap()] = struct{}{}
		}
	}
	for i := range list {
		add(list[i].Gw)
		for _, hop := range list[i].MultiPath {
			add(hop.Gw)
		}
	}
	return gateways, nil
}
