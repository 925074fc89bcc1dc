package fib

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/rtnetlink"
)

// Ranges returns, sorted, the IPv4 ranges that this network namespace's main table routes: connected ranges and static routes. Default
// routes and routes by the named device are omitted.
func Ranges(except string) ([]netip.Prefix, error) {
	list, err := rtnetlink.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	leftOut := 0
	if device, err := netlink.LinkByName(except); err == nil {
		leftOut = device.Attrs().Index
	}
	var ranges []netip.Prefix
	for i := range list {
		route := &list[i]
		if route.Dst == nil || leftOut != 0 && route.LinkIndex == leftOut {
			continue
		}
		addr, ok := netip.AddrFromSlice(route.Dst.IP)
		bits, _ := route.Dst.Mask.Size()
		if ok && bits > 0 {
			ranges = append(ranges, netip.PrefixFrom(addr.Unmap(), bits).Masked())
		}
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return slices.Compact(ranges), nil
}
