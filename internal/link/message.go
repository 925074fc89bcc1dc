package link

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// vethInfoPeer is VETH_INFO_PEER of linux/veth.h.
const vethInfoPeer = 1

// skipStatistics is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h: without it, counters are half of a link message.
const skipStatistics = 1 << 3

// loopback is the interface index of lo in every network namespace.
const loopback = 1

// linkEnd is one end of a veth pair to be created.
type linkEnd struct {
	name  string
	mtu   int
	mac   net.HardwareAddr
	group uint32
	flags uint32 // IFF_*, of the near end only
	netns int    // a file descriptor; -1 is the socket's namespace
}

// adder adds an attribute to a message or to another attribute.
type adder func(attr *nl.RtAttr)

func (e linkEnd) attributes(add adder) {
	add(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(e.name)))
	if e.mtu != 0 {
		add(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(e.mtu))))
	}
	if len(e.mac) != 0 {
		add(nl.NewRtAttr(unix.IFLA_ADDRESS, e.mac))
	}
	if e.group != 0 {
		add(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(e.group)))
	}
	if e.netns >= 0 {
		add(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(e.netns))))
	}
}

// newVeth creates a pair, each end in its final namespace.
func newVeth(near, far linkEnd) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Flags, header.Change = near.flags, near.flags
	request.AddData(header)
	near.attributes(func(attr *nl.RtAttr) { request.AddData(attr) })
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(vethInfoPeer, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	far.attributes(func(attr *nl.RtAttr) { peer.AddChild(attr) })
	request.AddData(info)
	return request
}

// getLink requests a link by its name.
func getLink(name string) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStatistics)))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return request
}

// setLink changes a link by its index.
func setLink(index int, attrs ...*nl.RtAttr) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	request.AddData(header)
	for _, attr := range attrs {
		request.AddData(attr)
	}
	return request
}

// setUpByName sets a link up.
func setUpByName(name string) *nl.NetlinkRequest {
	request := setState(0, true)
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return request
}

// setState sets a link up or down.
func setState(index int, up bool) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	header.Change = unix.IFF_UP
	if up {
		header.Flags = unix.IFF_UP
	}
	request.AddData(header)
	return request
}

// deleteLink deletes a link by its index.
func deleteLink(index int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_DELLINK, 0)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	request.AddData(header)
	return request
}

// deleteGroup deletes all links of a group in one request.
func deleteGroup(group uint32) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_DELLINK, 0)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(groupAttr(group))
	return request
}

func groupAttr(group uint32) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)) }

func aliasAttr(alias string) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(alias)) }

func mtuAttr(mtu int) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu))) }

func macAttr(mac net.HardwareAddr) *nl.RtAttr { return nl.NewRtAttr(unix.IFLA_ADDRESS, mac) }

func family(address netip.Addr) int {
	if address.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// setAddress adds an address; an existing one is left.
func setAddress(index int, address netip.Prefix, noPrefixRoute bool) *nl.NetlinkRequest {
	request := addressRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, index, address)
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

func deleteAddress(index int, address netip.Prefix) *nl.NetlinkRequest {
	return addressRequest(unix.RTM_DELADDR, 0, index, address)
}

func addressRequest(kind, flags, index int, address netip.Prefix) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(kind, flags)
	header := nl.NewIfAddrmsg(family(address.Addr()))
	header.Index = uint32(index)
	header.Prefixlen = uint8(address.Bits())
	request.AddData(header)
	request.AddData(nl.NewRtAttr(unix.IFA_LOCAL, address.Addr().AsSlice()))
	request.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, address.Addr().AsSlice()))
	return request
}

// routeRequest builds a request about one of Weft's routes. index is its device's; 0 for a blackhole.
func routeRequest(kind, flags int, route Route, index int) *nl.NetlinkRequest {
	route = route.normalised()
	request := nl.NewNetlinkRequest(kind, flags)
	header := nl.NewRtMsg()
	header.Family = uint8(family(route.Dst.Addr()))
	header.Dst_len = uint8(route.Dst.Bits())
	header.Protocol = Protocol
	header.Table = unix.RT_TABLE_UNSPEC // the attribute is used instead
	header.Scope = map[Scope]uint8{ScopeGlobal: unix.RT_SCOPE_UNIVERSE, ScopeLink: unix.RT_SCOPE_LINK, ScopeHost: unix.RT_SCOPE_HOST}[route.Scope]
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

// setRoute adds a route, or replaces the one with the same destination, table and metric.
func setRoute(route Route, index int) *nl.NetlinkRequest {
	return routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, route, index)
}

// addRoute adds a route if there is none with the same destination, table and metric.
func addRoute(route Route, index int) *nl.NetlinkRequest {
	return routeRequest(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, route, index)
}

func deleteRoute(route Route, index int) *nl.NetlinkRequest {
	return routeRequest(unix.RTM_DELROUTE, 0, route, index)
}
