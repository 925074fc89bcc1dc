package rtnetlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
)

// DumpAttempts limits how often an interrupted dump is repeated. The last result is used as it is: what it missed was changing anyway, and
// is reported by an event.
const DumpAttempts = 10

// Dump makes a dump, and repeats it if something changed during it (NLM_F_DUMP_INTR).
func Dump[T any](make func() ([]T, error)) ([]T, error) {
	for attempt := 1; ; attempt++ {
		list, err := make()
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			if attempt < DumpAttempts {
				continue
			}
			err = nil
		}
		return list, err
	}
}

// Sockets are netlink sockets in one namespace, by protocol. Without one, a request opens a socket in the calling thread's namespace.
type Sockets map[int]*nl.SocketHandle

// DialLister opens a socket for ListLinks in the calling thread's namespace. The caller must close it.
func DialLister() (Sockets, error) {
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening a netlink socket: %w", err)
	}
	return Sockets{unix.NETLINK_ROUTE: {Socket: socket}}, nil
}

// Close closes the sockets.
func (s Sockets) Close() {
	for _, socket := range s {
		socket.Close()
	}
}

// ListLinks returns all links of the sockets' namespace, without statistics: for each device, the kernel adds up those of all processors.
func ListLinks(on Sockets) ([]netlink.Link, error) {
	links, err := Dump(func() ([]netlink.Link, error) {
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
			dev, err := netlink.LinkDeserialize(nil, message)
			if err != nil {
				return nil, err
			}
			list = append(list, dev)
		}
		return list, err
	})
	if err != nil {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	return links, nil
}

// ToPrefix converts an address of net to netip. An invalid address stays invalid.
func ToPrefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	address, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(address.Unmap(), ones)
}

// ToIPNet converts a prefix to the type of net, masked.
func ToIPNet(p netip.Prefix) *net.IPNet {
	p = p.Masked()
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// ToAddr converts an address of net to netip. An invalid address stays invalid.
func ToAddr(ip net.IP) netip.Addr {
	address, _ := netip.AddrFromSlice(ip)
	return address.Unmap()
}

// DeviceAddresses returns a device's addresses, without IPv6 link-local ones of the kernel and without Address items, and whether any of
// them has no prefix route.
func DeviceAddresses(handle *netlink.Handle, index int) (list []netip.Prefix, noPrefixRoute bool, err error) {
	addresses, err := Dump(func() ([]netlink.Addr, error) { return handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, false, fmt.Errorf("listing addresses: %w", err)
	}
	for _, address := range addresses {
		if address.LinkIndex != index || address.Label == link.AddressLabel {
			continue
		}
		prefix := ToPrefix(address.IPNet)
		if prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() && address.Flags&unix.IFA_F_NODAD == 0 {
			continue
		}
		list = append(list, prefix)
		noPrefixRoute = noPrefixRoute || address.Flags&unix.IFA_F_NOPREFIXROUTE != 0
	}
	return link.SortedPrefixes(list), noPrefixRoute, nil
}

// ReadRoutes returns the routes with Protocol. names maps indexes to devices' names; a route whose device is not in it has none.
func ReadRoutes(handle *netlink.Handle, names map[int]string) (map[link.Key]*link.Route, error) {
	filter := &netlink.Route{Protocol: link.Protocol, Table: unix.RT_TABLE_UNSPEC}
	routes, err := Dump(func() ([]netlink.Route, error) {
		return handle.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	list := map[link.Key]*link.Route{}
	for i := range routes {
		route := FromKernelRoute(&routes[i], names)
		if route != nil {
			list[route.Key()] = route
		}
	}
	return list, nil
}

// FromKernelRoute returns nil for a route that Route cannot express: of another family, or with several next hops.
func FromKernelRoute(r *netlink.Route, names map[int]string) *link.Route {
	dst := ToPrefix(r.Dst)
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
	route := &link.Route{
		Dst: dst, Gateway: ToAddr(r.Gw), Device: names[r.LinkIndex], Source: ToAddr(r.Src),
		MTU: r.MTU, Table: r.Table, Metric: r.Priority, OnLink: r.Flags&unix.RTNH_F_ONLINK != 0,
		Blackhole: r.Type == unix.RTN_BLACKHOLE,
	}
	switch int(r.Scope) {
	case unix.RT_SCOPE_UNIVERSE:
		route.Scope = link.ScopeGlobal
	case unix.RT_SCOPE_LINK:
		route.Scope = link.ScopeLink
	case unix.RT_SCOPE_HOST:
		route.Scope = link.ScopeHost
	}
	return route
}
