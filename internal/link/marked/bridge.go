package marked

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/rtnetlink"
)

// toggleOf reads a flag of one byte. A flag that the kernel does not have stays Leave.
func toggleOf(value []byte) link.Toggle {
	switch {
	case len(value) == 0:
		return link.Leave
	case rtnetlink.IsOne(value):
		return link.On
	default:
		return link.Off
	}
}

func (s *session) commitBridge(bridge *link.Bridge, what *step) error {
	dev, err := s.find(bridge.Name)
	if err != nil && !errors.Is(err, link.ErrNoDevice) {
		return err
	}
	if dev != nil {
		ours := strings.HasPrefix(dev.Attrs().Alias, link.AliasPrefix) || what.before != nil || bridge.Adopt
		if dev.Type() != rtnetlink.BridgeKind || !ours {
			return fmt.Errorf("%s (%s, alias %q): %w", bridge.Name, dev.Type(), dev.Attrs().Alias, link.ErrForeign)
		}
	}
	if what.remove {
		if dev == nil {
			return nil
		}
		return s.one(rtnetlink.DeleteLink(dev.Attrs().Index), unix.ENODEV)
	}
	if err := s.one(bridgeRequest(bridge, dev)); err != nil {
		return unsupported(bridge, err)
	}
	if dev, err = s.find(bridge.Name); err != nil {
		return err
	}
	var list rtnetlink.Plan
	list.Add("setting its alias", rtnetlink.SetLink(dev.Attrs().Index, rtnetlink.AliasAttr(link.AliasPrefix+bridge.Owner)))
	list.Add("setting it promiscuous", rtnetlink.SetFlag(dev.Attrs().Index, unix.IFF_PROMISC, bridge.Promisc))
	return list.Run(s.conn)
}

// bridgeRequest creates a bridge, or changes the existing one.
func bridgeRequest(b *link.Bridge, dev netlink.Link) *nl.NetlinkRequest {
	flags := 0
	if dev == nil {
		flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, flags)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(b.Name)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(rtnetlink.BridgeKind))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	for attr, toggle := range map[int]link.Toggle{rtnetlink.BrNFCallIPTables: b.NFCallIPTables, rtnetlink.BrNFCallIP6Tables: b.NFCallIP6Tables} {
		if toggle != link.Leave {
			data.AddRtAttr(attr, rtnetlink.BoolByte(toggle == link.On))
		}
	}
	request.AddData(info)
	return request
}

// unsupported adds what the kernel lacks to the error of a bridge's request.
func unsupported(b *link.Bridge, err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w: the kernel has no bridges, load the module bridge", link.ErrUnsupported, err)
	}
	if errors.Is(err, unix.EINVAL) && (b.NFCallIPTables != link.Leave || b.NFCallIP6Tables != link.Leave) {
		return fmt.Errorf("%w: %w: nf_call_iptables needs a kernel with CONFIG_BRIDGE_NETFILTER", link.ErrUnsupported, err)
	}
	return err
}

func (s *session) commitBridgePort(port *link.BridgePort, what *step) error {
	remove := what.remove
	found, err := s.conn.Do(rtnetlink.GetLink(port.Device), rtnetlink.GetLink(port.Bridge))
	if err != nil {
		return err
	}
	device, err := found[0].Device(port.Device)
	if remove && errors.Is(err, link.ErrNoDevice) {
		return nil // the port was removed with the device
	}
	if err != nil {
		return err
	}
	index, master := device.Attrs().Index, device.Attrs().MasterIndex
	bridge, err := found[1].Device(port.Bridge)
	if remove {
		if err != nil || master != bridge.Attrs().Index {
			return nil //nolint:nilerr // without its bridge the device is no port of it
		}
		return s.one(setMaster(index, 0))
	}
	if err != nil {
		return err
	}
	if bridge.Type() != rtnetlink.BridgeKind {
		return fmt.Errorf("%s is a %s and no bridge: %w", port.Bridge, bridge.Type(), link.ErrForeign)
	}
	var list rtnetlink.Plan
	if master != bridge.Attrs().Index {
		list.Add("making it a port of "+port.Bridge, setMaster(index, bridge.Attrs().Index))
	}
	list.Add("setting the flags of the port", setPortFlags(index, port))
	if err := s.pin(&list, index, port, what.before != nil); err != nil {
		return err
	}
	return list.Run(s.conn)
}

func setMaster(index, master int) *nl.NetlinkRequest {
	return rtnetlink.SetLink(index, nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(master))))
}

func setPortFlags(index int, port *link.BridgePort) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, 0)
	header := nl.NewIfInfomsg(unix.AF_BRIDGE)
	header.Index = int32(index)
	request.AddData(header)
	info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	info.AddRtAttr(rtnetlink.BrPortMode, rtnetlink.BoolByte(port.Hairpin))
	info.AddRtAttr(rtnetlink.BrPortIsolated, rtnetlink.BoolByte(port.Isolated))
	info.AddRtAttr(rtnetlink.BrPortLearning, rtnetlink.BoolByte(!port.Pinned()))
	info.AddRtAttr(rtnetlink.BrPortFlood, rtnetlink.BoolByte(!port.Pinned()))
	if port.Pinned() {
		info.AddRtAttr(rtnetlink.BrPortFlush, nil) // the addresses it has learned since it became a port
	}
	request.AddData(info)
	return request
}
