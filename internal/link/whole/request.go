package whole

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func family(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func kindOf(flags, set, remove int) int {
	if flags == 0 {
		return remove
	}
	return set
}

func neighbourRequest(n *Neighbour, index, flags int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(kindOf(flags, unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH), flags)
	request.AddData(&netlink.Ndmsg{Family: uint8(family(n.Address)), Index: uint32(index), State: netlink.NUD_PERMANENT})
	request.AddData(nl.NewRtAttr(unix.NDA_DST, n.Address.AsSlice()))
	request.AddData(nl.NewRtAttr(unix.NDA_LLADDR, n.MAC[:]))
	return request
}

func fdbRequest(f *FDB, index, flags int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(kindOf(flags, unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH), flags)
	request.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(index), State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF})
	request.AddData(nl.NewRtAttr(unix.NDA_DST, f.Remote.AsSlice()))
	request.AddData(nl.NewRtAttr(unix.NDA_LLADDR, f.MAC[:]))
	return request
}

// nexthopMessage is the header of messages about nexthop objects (struct nhmsg).
type nexthopMessage struct{ unix.Nhmsg }

// Len implements nl.NetlinkRequestData.
func (*nexthopMessage) Len() int { return unix.SizeofNhmsg }

// Serialize implements nl.NetlinkRequestData.
func (m *nexthopMessage) Serialize() []byte {
	out := []byte{m.Family, m.Scope, m.Protocol, m.Resvd}
	return binary.NativeEndian.AppendUint32(out, m.Flags)
}

// rtaNexthop is RTA_NH_ID of linux/rtnetlink.h.
const rtaNexthop = 30

func nexthopRequest(n *Nexthop, index, flags int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(kindOf(flags, unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP), flags)
	id := nl.NewRtAttr(unix.NHA_ID, nl.Uint32Attr(n.ID()))
	if flags == 0 {
		request.AddData(&nexthopMessage{})
		request.AddData(id)
		return request
	}
	request.AddData(&nexthopMessage{unix.Nhmsg{Family: unix.AF_INET, Protocol: Protocol, Flags: unix.RTNH_F_ONLINK}})
	request.AddData(id)
	request.AddData(nl.NewRtAttr(unix.NHA_GATEWAY, n.Gateway.AsSlice()))
	request.AddData(nl.NewRtAttr(unix.NHA_OIF, nl.Uint32Attr(uint32(index))))
	return request
}

func routeRequest(r *Route, index, flags int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(kindOf(flags, unix.RTM_NEWROUTE, unix.RTM_DELROUTE), flags)
	message := nl.NewRtMsg()
	message.Family = uint8(family(r.Dst.Addr()))
	message.Dst_len = uint8(r.Dst.Bits())
	message.Protocol = Protocol
	if flags == 0 {
		message.Protocol = unix.RTPROT_UNSPEC // whichever program added it
		message.Scope = unix.RT_SCOPE_NOWHERE
	}
	if r.Blackhole {
		message.Type = unix.RTN_BLACKHOLE
	}
	if flags != 0 && !r.Gateway.IsValid() && !r.Blackhole {
		message.Scope = unix.RT_SCOPE_LINK
	}
	if r.OnLink && !r.Nexthop {
		message.Flags |= unix.RTNH_F_ONLINK
	}
	request.AddData(message)
	request.AddData(nl.NewRtAttr(unix.RTA_DST, r.Dst.Addr().AsSlice()))
	switch {
	case r.Blackhole:
		return request
	case r.Nexthop:
		request.AddData(nl.NewRtAttr(rtaNexthop, nl.Uint32Attr((&Nexthop{Gateway: r.Gateway}).ID())))
		return request
	}
	if r.Gateway.IsValid() {
		request.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, r.Gateway.AsSlice()))
	}
	request.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	return request
}

// newVXLANRequest creates a device. Over IPv4 outer checksums are off (RFC 7348, section 4.1); without the attribute the kernel turns them
// on.
func newVXLANRequest(v *VXLAN, underlay int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(v.Name)))
	request.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(v.MTU))))
	request.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, v.MAC[:]))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(v.VNI))
	data.AddRtAttr(nl.IFLA_VXLAN_LINK, nl.Uint32Attr(uint32(underlay)))
	if v.Local.Is4() {
		data.AddRtAttr(nl.IFLA_VXLAN_LOCAL, v.Local.AsSlice())
		data.AddRtAttr(nl.IFLA_VXLAN_UDP_CSUM, nl.Uint8Attr(0))
	} else {
		data.AddRtAttr(nl.IFLA_VXLAN_LOCAL6, v.Local.AsSlice())
	}
	learning := uint8(0)
	if v.Learning {
		learning = 1
	}
	data.AddRtAttr(nl.IFLA_VXLAN_LEARNING, nl.Uint8Attr(learning))
	data.AddRtAttr(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, v.port()))
	if v.GBP {
		data.AddRtAttr(nl.IFLA_VXLAN_GBP, []byte{})
	}
	request.AddData(info)
	return request
}
