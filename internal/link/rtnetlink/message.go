package rtnetlink

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
)

// vethInfoPeer is VETH_INFO_PEER of linux/veth.h.
const vethInfoPeer = 1

// skipStatistics is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h: without it, counters are half of a link message.
const skipStatistics = 1 << 3

// Loopback is the interface index of lo in every network namespace.
const Loopback = 1

// LinkEnd is one end of a veth pair to be created.
type LinkEnd struct {
	Name  string
	MTU   int
	MAC   net.HardwareAddr
	Group uint32
	Flags uint32 // IFF_*, of the near end only
	Netns int    // a file descriptor; -1 is the socket's namespace
}

// adder adds an attribute to a message or to another attribute.
type adder func(attr *nl.RtAttr)

// Attributes adds the end's attributes to a message.
func (e LinkEnd) Attributes(add adder) {
	add(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(e.Name)))
	if e.MTU != 0 {
		add(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(e.MTU))))
	}
	if len(e.MAC) != 0 {
		add(nl.NewRtAttr(unix.IFLA_ADDRESS, e.MAC))
	}
	if e.Group != 0 {
		add(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(e.Group)))
	}
	if e.Netns >= 0 {
		add(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(e.Netns))))
	}
}

// NewVeth creates a pair, each end in its final namespace. Each end has one queue, which the request states: otherwise the kernel allocates one for
// each processor and then, with the lock of all links held, turns off all but one, for which it waits for all processors (veth_init_queues).
func NewVeth(near, far LinkEnd) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Flags, header.Change = near.Flags, near.Flags
	request.AddData(header)
	near.Attributes(func(attr *nl.RtAttr) { request.AddData(attr) })
	oneQueue(func(attr *nl.RtAttr) { request.AddData(attr) })
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(vethInfoPeer, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	far.Attributes(func(attr *nl.RtAttr) { peer.AddChild(attr) })
	oneQueue(func(attr *nl.RtAttr) { peer.AddChild(attr) })
	request.AddData(info)
	return request
}

// oneQueue adds the attributes of a link with one queue in each direction.
func oneQueue(add adder) {
	add(nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1)))
	add(nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1)))
}

// GetLink requests a link by its name.
func GetLink(name string) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStatistics)))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return request
}

// SetLink changes a link by its index.
func SetLink(index int, attrs ...*nl.RtAttr) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	request.AddData(header)
	for _, attr := range attrs {
		request.AddData(attr)
	}
	return request
}

// SetUpByName sets a link up.
func SetUpByName(name string) *nl.NetlinkRequest {
	request := SetState(0, true)
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return request
}

// SetState sets a link up or down.
func SetState(index int, up bool) *nl.NetlinkRequest { return SetFlag(index, unix.IFF_UP, up) }

// SetFlag sets or clears one flag of a link (IFF_*).
func SetFlag(index int, flag uint32, on bool) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	header.Change = flag
	if on {
		header.Flags = flag
	}
	request.AddData(header)
	return request
}

// DeleteLink deletes a link by its index.
func DeleteLink(index int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_DELLINK, 0)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	request.AddData(header)
	return request
}

// DeleteGroup deletes all links of a group in one request.
func DeleteGroup(group uint32) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_DELLINK, 0)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(GroupAttr(group))
	return request
}

// GroupAttr is the device group.
func GroupAttr(group uint32) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)) }

// AliasAttr is the alias; the empty one removes it.
func AliasAttr(alias string) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)) }

// MTUAttr is the MTU in bytes.
func MTUAttr(mtu int) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu))) }

// MACAttr is the MAC address.
func MACAttr(mac net.HardwareAddr) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_ADDRESS, mac) }

// Family is the family of an address: AF_INET or AF_INET6.
func Family(address netip.Addr) int {
	if address.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// SetAddress adds an address; an existing one is left.
func SetAddress(index int, address netip.Prefix, noPrefixRoute bool) *nl.NetlinkRequest {
	request := AddressRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, index, address)
	var flags uint32
	if noPrefixRoute {
		flags |= unix.IFA_F_NOPREFIXROUTE
	}
	if address.Addr().Is6() {
		flags |= unix.IFA_F_NODAD // the network assigns each address once; duplicate address detection would only delay it by a second
	}
	if flags != 0 {
		request.AddData(nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(flags)))
	}
	return request
}

// DeleteAddress deletes an address.
func DeleteAddress(index int, address netip.Prefix) *nl.NetlinkRequest {
	return AddressRequest(unix.RTM_DELADDR, 0, index, address)
}

// AddressRequest builds a request about an address.
func AddressRequest(kind, flags, index int, address netip.Prefix) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(kind, flags)
	header := nl.NewIfAddrmsg(Family(address.Addr()))
	header.Index = uint32(index)
	header.Prefixlen = uint8(address.Bits())
	request.AddData(header)
	request.AddData(nl.NewRtAttr(unix.IFA_LOCAL, address.Addr().AsSlice()))
	request.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, address.Addr().AsSlice()))
	return request
}

// routeRequest builds a request about one of Weft's routes. index is its device's; 0 for a blackhole.
func routeRequest(kind, flags int, route link.Route, index int) *nl.NetlinkRequest {
	route = route.Normalised()
	request := nl.NewNetlinkRequest(kind, flags)
	header := nl.NewRtMsg()
	header.Family = uint8(Family(route.Dst.Addr()))
	header.Dst_len = uint8(route.Dst.Bits())
	header.Protocol = link.Protocol
	header.Table = unix.RT_TABLE_UNSPEC // the attribute is used instead
	header.Scope = map[link.Scope]uint8{link.ScopeGlobal: unix.RT_SCOPE_UNIVERSE, link.ScopeLink: unix.RT_SCOPE_LINK, link.ScopeHost: unix.RT_SCOPE_HOST}[route.Scope]
	header.Type = unix.RTN_UNICAST
	if route.Blackhole {
		header.Type = unix.RTN_BLACKHOLE
	}
	if route.OnLink {
		header.Flags |= unix.RTNH_F_ONLINK
	}
	request.AddData(header)
	request.AddData(nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(uint32(route.Table))))
	if route.Dst.Bits() > 0 {
		request.AddData(nl.NewRtAttr(unix.RTA_DST, route.Dst.Addr().AsSlice()))
	}
	if route.Gateway.IsValid() {
		request.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, route.Gateway.AsSlice()))
	}
	if route.Source.IsValid() {
		request.AddData(nl.NewRtAttr(unix.RTA_PREFSRC, route.Source.AsSlice()))
	}
	if index != 0 {
		request.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	}
	if route.Metric != 0 {
		request.AddData(nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(uint32(route.Metric))))
	}
	if route.MTU != 0 {
		metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
		metrics.AddRtAttr(unix.RTAX_MTU, nl.Uint32Attr(uint32(route.MTU)))
		request.AddData(metrics)
	}
	return request
}

// SetRoute adds a route, or replaces the one with the same destination, table and metric.
func SetRoute(route link.Route, index int) *nl.NetlinkRequest {
	return routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, route, index)
}

// AddRoute adds a route if there is none with the same destination, table and metric.
func AddRoute(route link.Route, index int) *nl.NetlinkRequest {
	return routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, route, index)
}

// DeleteRoute deletes one of Weft's routes.
func DeleteRoute(route link.Route, index int) *nl.NetlinkRequest {
	return routeRequest(unix.RTM_DELROUTE, 0, route, index)
}
