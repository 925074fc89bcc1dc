package notify

import (
	"encoding/binary"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/rtnetlink"
)

// portEvent reports whether a message shows that another program has changed a port of a bridge: its flags, its bridge or its static entry.
func (w *watcher) portEvent(message *syscall.NetlinkMessage) (Drift, bool) {
	var index int
	var same func(*link.BridgePort) bool
	data := message.Data
	switch message.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) < unix.SizeofIfInfomsg {
			return Drift{}, false
		}
		index = int(int32(binary.NativeEndian.Uint32(data[4:])))
		flags := portFlags(data)
		if gone := message.Header.Type == unix.RTM_DELLINK && data[0] == unix.AF_BRIDGE; flags == nil && !gone {
			return Drift{}, false
		}
		same = func(port *link.BridgePort) bool { return flags != nil && hasFlags(port, flags) }
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		if len(data) < unix.SizeofNdMsg || data[0] != unix.AF_BRIDGE || !rtnetlink.WellFormed(data[unix.SizeofNdMsg:]) {
			return Drift{}, false
		}
		index = int(int32(binary.NativeEndian.Uint32(data[4:])))
		mac := rtnetlink.ByType(data[unix.SizeofNdMsg:])[netlink.NDA_LLADDR]
		if state := binary.NativeEndian.Uint16(data[8:]); state&netlink.NUD_NOARP == 0 || len(mac) != len([6]byte{}) {
			return Drift{}, false // learned, or the port's own address
		}
		own, added := [6]byte(mac), message.Header.Type == unix.RTM_NEWNEIGH
		same = func(port *link.BridgePort) bool { return !port.Pinned() || (port.MAC == own) == added }
	default:
		return Drift{}, false
	}
	name := w.names[index]
	return Drift{Device: name, Kind: link.KindBridgePort}, name != "" && w.care.portChanged(name, same)
}

// portFlags returns the attributes of a bridge's port in an event: those of the bridge, or in the device's own events those of its kind of
// port. It returns nil if the event has none.
func portFlags(data []byte) map[uint16][]byte {
	attributes := attributesOf(data[unix.SizeofIfInfomsg:])
	switch data[0] {
	case unix.AF_BRIDGE:
		return attributesOf(attributes[unix.IFLA_PROTINFO])
	case unix.AF_UNSPEC:
		info := attributesOf(attributes[unix.IFLA_LINKINFO])
		if unix.ByteSliceToString(info[nl.IFLA_INFO_SLAVE_KIND]) != rtnetlink.BridgeKind {
			return nil
		}
		return attributesOf(info[nl.IFLA_INFO_SLAVE_DATA])
	default:
		return nil
	}
}

// attributesOf returns attributes by their type, nil if there are none or one exceeds the message.
func attributesOf(data []byte) map[uint16][]byte {
	if len(data) == 0 || !rtnetlink.WellFormed(data) {
		return nil
	}
	return rtnetlink.ByType(data)
}

// hasFlags reports whether a port's attributes are those of p. The static entry is compared by its own events.
func hasFlags(p *link.BridgePort, flags map[uint16][]byte) bool {
	pinned := !rtnetlink.IsOne(flags[rtnetlink.BrPortLearning]) && !rtnetlink.IsOne(flags[rtnetlink.BrPortFlood])
	return rtnetlink.IsOne(flags[rtnetlink.BrPortMode]) == p.Hairpin && rtnetlink.IsOne(flags[rtnetlink.BrPortIsolated]) == p.Isolated && pinned == p.Pinned()
}
