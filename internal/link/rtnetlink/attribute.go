package rtnetlink

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attributes of linux/if_link.h that the netlink library does not name.
const (
	BridgeKind        = "bridge"
	BrNFCallIPTables  = 36 // IFLA_BR_NF_CALL_IPTABLES
	BrNFCallIP6Tables = 37 // IFLA_BR_NF_CALL_IP6TABLES
	BrPortMode        = 4  // IFLA_BRPORT_MODE
	BrPortIsolated    = 33 // IFLA_BRPORT_ISOLATED
	BrPortLearning    = 8  // IFLA_BRPORT_LEARNING
	BrPortFlood       = 9  // IFLA_BRPORT_UNICAST_FLOOD
	BrPortFlush       = 18 // IFLA_BRPORT_FLUSH
)

// IsOne reports whether a flag of one byte is set.
func IsOne(value []byte) bool { return len(value) > 0 && value[0] != 0 }

// LinkInfo returns the attributes of one part of IFLA_LINKINFO, nil if the message has no such part.
func LinkInfo(attrs []byte, part uint16) map[uint16][]byte {
	info := ByType(ByType(attrs)[unix.IFLA_LINKINFO])
	return ByType(info[part])
}

// ByType returns attributes by their type, nil if they cannot be parsed.
func ByType(data []byte) map[uint16][]byte {
	list, err := nl.ParseRouteAttr(data)
	if err != nil {
		return nil
	}
	attrs := make(map[uint16][]byte, len(list))
	for _, attr := range list {
		attrs[attr.Attr.Type&^uint16(unix.NLA_F_NESTED)] = attr.Value
	}
	return attrs
}

// BoolByte returns a flag of one byte.
func BoolByte(on bool) []byte {
	if on {
		return []byte{1}
	}
	return []byte{0}
}

// WellFormed reports whether attributes stay within their message, each padded as the kernel does: the library's parser relies on it, and
// any privileged process can send to the group.
func WellFormed(attrs []byte) bool {
	for len(attrs) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(attrs))
		aligned := (length + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1)
		if length < unix.SizeofRtAttr || aligned > len(attrs) {
			return false
		}
		attrs = attrs[aligned:]
	}
	return len(attrs) == 0
}
