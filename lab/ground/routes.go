package ground

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ownRoutes is the protocol number of the routes that SetRoutes manages, an unused one in rtnetlink(7)'s range for administrators.
const ownRoutes = 199

// SetRoutes adds and removes routes of the main table until its own routes are exactly want: the gateway of each network. It does not
// change other routes. It continues after an error, and returns all errors.
func (s Space) SetRoutes(want map[netip.Prefix]netip.Addr) error {
	h, err := s.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	filter := &netlink.Route{Protocol: ownRoutes, Table: unix.RT_TABLE_MAIN}
	have, err := h.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list the routes of %s: %w", s.Name, err)
	}
	var errs []error
	there := map[netip.Prefix]netip.Addr{}
	for _, route := range have {
		to, via := prefixOf(route), addrOf(route.Gw)
		if want[to] == via && via.IsValid() {
			there[to] = via
			continue
		}
		if err := h.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove the route to %s from %s: %w", to, s.Name, err))
		}
	}
	for to, via := range want {
		if there[to] == via {
			continue
		}
		route := &netlink.Route{Dst: ipNet(to), Gw: via.AsSlice(), Protocol: ownRoutes}
		if err := h.RouteReplace(route); err != nil {
			errs = append(errs, fmt.Errorf("route %s by %s in %s: %w", to, via, s.Name, err))
		}
	}
	return errors.Join(errs...)
}

func prefixOf(route netlink.Route) netip.Prefix {
	if route.Dst == nil {
		return netip.Prefix{}
	}
	bits, _ := route.Dst.Mask.Size()
	return netip.PrefixFrom(addrOf(route.Dst.IP), bits)
}

func addrOf(ip []byte) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}
