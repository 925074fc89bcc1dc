package notify

import (
	"encoding/binary"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// device returns the device that an event is about, with what the watcher reads of it: index, name, kind, MTU, group, alias, and whether it is
// up. data begins with a whole struct ifinfomsg. It returns false if the event does not say the name or if an attribute cannot be of its type.
//
// The netlink library's own parser reads every attribute, and panics if one is too short. Any privileged process can send to the group.
func device(data []byte) (netlink.Link, bool) {
	values := attributesOf(data[unix.SizeofIfInfomsg:])
	attrs := netlink.LinkAttrs{
		Index: int(int32(binary.NativeEndian.Uint32(data[4:]))),
		Name:  unix.ByteSliceToString(values[unix.IFLA_IFNAME]),
		Alias: unix.ByteSliceToString(values[unix.IFLA_IFALIAS]),
	}
	if binary.NativeEndian.Uint32(data[8:])&unix.IFF_UP != 0 {
		attrs.Flags |= net.FlagUp
	}
	mtu, validMTU := number(values[unix.IFLA_MTU])
	group, validGroup := number(values[unix.IFLA_GROUP])
	if attrs.Name == "" || !validMTU || !validGroup {
		return nil, false
	}
	attrs.MTU, attrs.Group = int(mtu), group
	kind := unix.ByteSliceToString(attributesOf(values[unix.IFLA_LINKINFO])[nl.IFLA_INFO_KIND])
	return &netlink.GenericLink{LinkAttrs: attrs, LinkType: kind}, true
}

// number returns a value of 32 bits, 0 if the event has none.
func number(value []byte) (uint32, bool) {
	if len(value) == 0 {
		return 0, true
	}
	if len(value) != 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(value), true
}
