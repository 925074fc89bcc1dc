package link

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Bridge is a kernel bridge that the engine creates. Its MAC, MTU, addresses and state are those of a [Device] item of the same name;
// without a MAC there, the kernel uses the MAC of a port. Deleting the item deletes the bridge.
type Bridge struct {
	Netns, Name string
	// Owner follows AliasPrefix in the alias.
	Owner string
	// Adopt takes over an existing bridge that the engine has not created. Without it, such a bridge is ErrForeign.
	Adopt bool
	// NFCallIPTables and NFCallIP6Tables On send bridged packets through the IPv4 and IPv6 hooks of netfilter, regardless of the sysctls
	// net.bridge.bridge-nf-call-*. They need the module br_netfilter, and have no effect without it.
	NFCallIPTables, NFCallIP6Tables Toggle
	// Promisc sets the bridge promiscuous.
	Promisc bool
}

// Key implements Item.
func (b *Bridge) Key() Key { return Key{Netns: b.Netns, Kind: KindBridge, Name: b.Name} }

// Equal implements Item. The owner is compared by the Device items, and Adopt matters only until the bridge is adopted.
func (b *Bridge) Equal(other Item) bool {
	o, ok := other.(*Bridge)
	return ok && b.Key() == o.Key() && b.Promisc == o.Promisc &&
		b.NFCallIPTables.matches(o.NFCallIPTables) && b.NFCallIP6Tables.matches(o.NFCallIP6Tables)
}

// String implements Item.
func (b *Bridge) String() string {
	return fmt.Sprintf("bridge %s nf_call_iptables %s nf_call_ip6tables %s promisc %t", b.Name, b.NFCallIPTables, b.NFCallIP6Tables, b.Promisc)
}

// BridgePort makes a device a port of a bridge. Deleting the item removes the device from the bridge.
type BridgePort struct {
	Netns, Bridge, Device string
	// Hairpin lets packets leave by the port on which they came in.
	Hairpin bool
	// Isolated blocks packets between this port and other isolated ports.
	Isolated bool
	// MAC, unless zero, is the only address behind the port: the bridge has a static entry for it, learns no other from the port's packets,
	// and sends packets to unknown addresses to other ports only. The port receives broadcast and multicast in any case.
	MAC [6]byte
}

// Key implements Item. A device is a port of one bridge at most.
func (p *BridgePort) Key() Key { return Key{Netns: p.Netns, Kind: KindBridgePort, Name: p.Device} }

// Equal implements Item.
func (p *BridgePort) Equal(other Item) bool {
	o, ok := other.(*BridgePort)
	return ok && *p == *o
}

// String implements Item.
func (p *BridgePort) String() string {
	text := "bridge port " + p.Device + " of " + p.Bridge + " hairpin " + strconv.FormatBool(p.Hairpin) + " isolated " + strconv.FormatBool(p.Isolated)
	if p.pinned() {
		text += " only " + net.HardwareAddr(p.MAC[:]).String()
	}
	return text
}

// Attributes of linux/if_link.h that the netlink library does not name.
const (
	bridgeKind        = "bridge"
	brNFCallIPTables  = 36 // IFLA_BR_NF_CALL_IPTABLES
	brNFCallIP6Tables = 37 // IFLA_BR_NF_CALL_IP6TABLES
	brPortMode        = 4  // IFLA_BRPORT_MODE
	brPortIsolated    = 33 // IFLA_BRPORT_ISOLATED
	brPortLearning    = 8  // IFLA_BRPORT_LEARNING
	brPortFlood       = 9  // IFLA_BRPORT_UNICAST_FLOOD
	brPortFlush       = 18 // IFLA_BRPORT_FLUSH
)

// toggleOf reads a flag of one byte. A flag that the kernel does not have stays Leave.
func toggleOf(value []byte) Toggle {
	switch {
	case len(value) == 0:
		return Leave
	case isOne(value):
		return On
	default:
		return Off
	}
}

func isOne(value []byte) bool { return len(value) > 0 && value[0] != 0 }

// linkInfo returns the attributes of one part of IFLA_LINKINFO, nil if the message has no such part.
func linkInfo(attrs []byte, part uint16) map[uint16][]byte {
	info := byType(byType(attrs)[unix.IFLA_LINKINFO])
	return byType(info[part])
}

func byType(data []byte) map[uint16][]byte {
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

func (s *session) commitBridge(bridge *Bridge, what *step) error {
	link, err := s.find(bridge.Name)
	if err != nil && !errors.Is(err, ErrNoDevice) {
		return err
	}
	if link != nil {
		ours := strings.HasPrefix(link.Attrs().Alias, AliasPrefix) || what.before != nil || bridge.Adopt
		if link.Type() != bridgeKind || !ours {
			return fmt.Errorf("%s (%s, alias %q): %w", bridge.Name, link.Type(), link.Attrs().Alias, ErrForeign)
		}
	}
	if what.remove {
		if link == nil {
			return nil
		}
		return s.one(deleteLink(link.Attrs().Index), unix.ENODEV)
	}
	if err := s.one(bridge.request(link)); err != nil {
		return bridge.unsupported(err)
	}
	if link, err = s.find(bridge.Name); err != nil {
		return err
	}
	var list plan
	list.add("setting its alias", setLink(link.Attrs().Index, aliasAttr(AliasPrefix+bridge.Owner)))
	list.add("setting it promiscuous", setPromisc(link.Attrs().Index, bridge.Promisc))
	return list.run(s.conn)
}

// request creates the bridge, or changes the existing one.
func (b *Bridge) request(link netlink.Link) *nl.NetlinkRequest {
	flags := 0
	if link == nil {
		flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, flags)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(b.Name)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(bridgeKind))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	for attr, toggle := range map[int]Toggle{brNFCallIPTables: b.NFCallIPTables, brNFCallIP6Tables: b.NFCallIP6Tables} {
		if toggle != Leave {
			data.AddRtAttr(attr, boolByte(toggle == On))
		}
	}
	request.AddData(info)
	return request
}

// unsupported adds what the kernel lacks to an error.
func (b *Bridge) unsupported(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w: the kernel has no bridges, load the module bridge", ErrUnsupported, err)
	}
	if errors.Is(err, unix.EINVAL) && (b.NFCallIPTables != Leave || b.NFCallIP6Tables != Leave) {
		return fmt.Errorf("%w: %w: nf_call_iptables needs a kernel with CONFIG_BRIDGE_NETFILTER", ErrUnsupported, err)
	}
	return err
}

func boolByte(on bool) []byte {
	if on {
		return []byte{1}
	}
	return []byte{0}
}

func setPromisc(index int, on bool) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	header.Change = unix.IFF_PROMISC
	if on {
		header.Flags = unix.IFF_PROMISC
	}
	request.AddData(header)
	return request
}

func (s *session) commitBridgePort(port *BridgePort, what *step) error {
	remove := what.remove
	found, err := s.conn.do(getLink(port.Device), getLink(port.Bridge))
	if err != nil {
		return err
	}
	device, err := found[0].device(port.Device)
	if remove && errors.Is(err, ErrNoDevice) {
		return nil // the port was removed with the device
	}
	if err != nil {
		return err
	}
	index, master := device.Attrs().Index, device.Attrs().MasterIndex
	bridge, err := found[1].device(port.Bridge)
	if remove {
		if err != nil || master != bridge.Attrs().Index {
			return nil //nolint:nilerr // without its bridge the device is no port of it
		}
		return s.one(setMaster(index, 0))
	}
	if err != nil {
		return err
	}
	if bridge.Type() != bridgeKind {
		return fmt.Errorf("%s is a %s and no bridge: %w", port.Bridge, bridge.Type(), ErrForeign)
	}
	var list plan
	if master != bridge.Attrs().Index {
		list.add("making it a port of "+port.Bridge, setMaster(index, bridge.Attrs().Index))
	}
	list.add("setting the flags of the port", setPortFlags(index, port))
	if err := s.pin(&list, index, port, what.before != nil); err != nil {
		return err
	}
	return list.run(s.conn)
}

func setMaster(index, master int) *nl.NetlinkRequest {
	return setLink(index, nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master))))
}

func setPortFlags(index int, port *BridgePort) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	header := nl.NewIfInfomsg(unix.AF_BRIDGE)
	header.Index = int32(index)
	request.AddData(header)
	info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	info.AddRtAttr(brPortMode, boolByte(port.Hairpin))
	info.AddRtAttr(brPortIsolated, boolByte(port.Isolated))
	info.AddRtAttr(brPortLearning, boolByte(!port.pinned()))
	info.AddRtAttr(brPortFlood, boolByte(!port.pinned()))
	if port.pinned() {
		info.AddRtAttr(brPortFlush, nil) // the addresses it has learned since it became a port
	}
	request.AddData(info)
	return request
}
