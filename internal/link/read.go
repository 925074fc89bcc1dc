package link

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// dumpAttempts limits how often an interrupted dump is repeated. The last result is used as it is: what it missed was changing anyway, and
// is reported by an event.
const dumpAttempts = 10

// dump makes a dump, and repeats it if something changed during it (NLM_F_DUMP_INTR).
func dump[T any](make func() ([]T, error)) ([]T, error) {
	for attempt := 1; ; attempt++ {
		list, err := make()
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			if attempt < dumpAttempts {
				continue
			}
			err = nil
		}
		return list, err
	}
}

// sockets are netlink sockets in one namespace, by protocol. Without one, a request opens a socket in the calling thread's namespace.
type sockets map[int]*nl.SocketHandle

// dialLister opens a socket for listLinks in the calling thread's namespace. The caller must close it.
func dialLister() (sockets, error) {
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return sockets{unix.NETLINK_ROUTE: {Socket: socket}}, nil
}

func (s sockets) close() {
	for _, socket := range s {
		socket.Close()
	}
}

// listLinks returns all links of the sockets' namespace, without statistics: for each device, the kernel adds up those of all processors.
func listLinks(on sockets) ([]netlink.Link, error) {
	links, err := dump(func() ([]netlink.Link, error) {
		request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		request.Sockets = on
		request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		request.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStatistics)))
		messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, err
		}
		list := make([]netlink.Link, 0, len(messages))
		for _, message := range messages {
			link, err := netlink.LinkDeserialize(nil, message)
			if err != nil {
				return nil, err
			}
			list = append(list, link)
		}
		return list, err
	})
	if err != nil {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	return links, nil
}

// toPrefix converts an address of net to netip. An invalid address stays invalid.
func toPrefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	address, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(address.Unmap(), ones)
}

func toIPNet(p netip.Prefix) *net.IPNet {
	p = p.Masked()
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func toAddr(ip net.IP) netip.Addr {
	address, _ := netip.AddrFromSlice(ip)
	return address.Unmap()
}

// deviceAddresses returns a device's addresses, without IPv6 link-local ones of the kernel and without Address items, and whether any of
// them has no prefix route.
func deviceAddresses(handle *netlink.Handle, index int) (list []netip.Prefix, noPrefixRoute bool, err error) {
	addresses, err := dump(func() ([]netlink.Addr, error) { return handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, false, fmt.Errorf("listing addresses: %w", err)
	}
	for _, address := range addresses {
		if address.LinkIndex != index || address.Label == AddressLabel {
			continue
		}
		prefix := toPrefix(address.IPNet)
		if prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() && address.Flags&unix.IFA_F_NODAD == 0 {
			continue
		}
		list = append(list, prefix)
		noPrefixRoute = noPrefixRoute || address.Flags&unix.IFA_F_NOPREFIXROUTE != 0
	}
	return sortedPrefixes(list), noPrefixRoute, nil
}

// readDevice reads everything about a device of the calling thread's namespace; the handle must be of the same namespace.
func readDevice(handle *netlink.Handle, link netlink.Link) (*Device, error) {
	attrs := link.Attrs()
	device := &Device{
		Name: attrs.Name, MTU: attrs.MTU, MAC: attrs.HardwareAddr, Up: attrs.Flags&net.FlagUp != 0,
		Group: attrs.Group, TxQLen: max(attrs.TxQLen, 0),
	}
	var err error
	if device.Addresses, device.NoPrefixRoute, err = deviceAddresses(handle, attrs.Index); err != nil {
		return nil, err
	}
	if device.TxOffload, err = txOffload(attrs.Name); err != nil {
		return nil, err
	}
	var every Sysctls
	for _, entry := range sysctlTable {
		*entry.get(&every) = On
	}
	if device.Sysctls, err = readSysctls(attrs.Name, every); err != nil {
		return nil, err
	}
	return device, nil
}

// readRoutes returns the routes with Protocol. names maps indexes to devices' names; a route whose device is not in it has none.
func readRoutes(handle *netlink.Handle, names map[int]string) (map[Key]*Route, error) {
	filter := &netlink.Route{Protocol: Protocol, Table: unix.RT_TABLE_UNSPEC}
	routes, err := dump(func() ([]netlink.Route, error) {
		return handle.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	list := map[Key]*Route{}
	for i := range routes {
		route := fromKernelRoute(&routes[i], names)
		if route != nil {
			list[route.Key()] = route
		}
	}
	return list, nil
}

// fromKernelRoute returns nil for a route that Route cannot express: of another family, or with several next hops.
func fromKernelRoute(r *netlink.Route, names map[int]string) *Route {
	dst := toPrefix(r.Dst)
	if !dst.IsValid() {
		switch r.Family {
		case netlink.FAMILY_V4:
			dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		case netlink.FAMILY_V6:
			dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		default:
			return nil
		}
	}
	if len(r.MultiPath) > 0 || r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_BLACKHOLE {
		return nil
	}
	route := &Route{
		Dst: dst, Gateway: toAddr(r.Gw), Device: names[r.LinkIndex], Source: toAddr(r.Src),
		MTU: r.MTU, Table: r.Table, Metric: r.Priority, OnLink: r.Flags&unix.RTNH_F_ONLINK != 0,
		Blackhole: r.Type == unix.RTN_BLACKHOLE,
	}
	switch int(r.Scope) {
	case unix.RT_SCOPE_UNIVERSE:
		route.Scope = ScopeGlobal
	case unix.RT_SCOPE_LINK:
		route.Scope = ScopeLink
	case unix.RT_SCOPE_HOST:
		route.Scope = ScopeHost
	}
	return route
}
