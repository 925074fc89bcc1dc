package macvlan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/devconf"
	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/rtnetlink"
)

// modeOf returns the kernel's number of a macvlan's mode.
func modeOf(m *podlink.Macvlan) netlink.MacvlanMode {
	switch m.Mode {
	case "bridge":
		return netlink.MACVLAN_MODE_BRIDGE
	case "vepa":
		return netlink.MACVLAN_MODE_VEPA
	case "passthru":
		return netlink.MACVLAN_MODE_PASSTHRU
	default:
		return netlink.MACVLAN_MODE_PRIVATE
	}
}

// Links programs pods' macvlans on the devices of one network namespace.
type Links struct{ home *netns.Namespace }

// New returns the macvlans of a network namespace, which stays open while they are used.
func New(home *netns.Namespace) *Links { return &Links{home} }

var _ podlink.Macvlans = (*Links)(nil)

// MacvlanParent implements Macvlans.
func (l *Links) MacvlanParent(_ context.Context, name string) (podlink.MacvlanParent, error) {
	var parent podlink.MacvlanParent
	err := netns.OnThread(l.home, func() error {
		device, err := macvlanDevice(name)
		if err != nil {
			return err
		}
		attrs := device.Attrs()
		parent.Name, parent.MTU, parent.Group, parent.Loopback = attrs.Name, attrs.MTU, attrs.Group, attrs.Flags&net.FlagLoopback != 0
		parent.Weft = slices.ContainsFunc([]string{link.AliasPrefix, link.PodAliasPrefix, podlink.MacvlanAliasPrefix}, func(p string) bool { return strings.HasPrefix(attrs.Alias, p) })
		addresses, err := rtnetlink.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(device, netlink.FAMILY_V4) })
		for _, address := range addresses {
			if address.Label != link.AddressLabel {
				parent.Addresses = append(parent.Addresses, rtnetlink.ToAddr(address.IP))
			}
		}
		return err
	})
	if err != nil {
		return parent, fmt.Errorf("a macvlan's device: %w", err)
	}
	return parent, nil
}

// macvlanDevice returns the device of that name; "" is that of the default route.
func macvlanDevice(name string) (netlink.Link, error) {
	if name != "" {
		return deviceNamed(name)
	}
	routes, err := rtnetlink.Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("listing routes: %w", err)
	}
	best := -1
	for i, route := range routes {
		isDefault := route.Dst == nil || route.Dst.IP.IsUnspecified() && isWhole(route.Dst)
		if isDefault && route.LinkIndex != 0 && (best < 0 || route.Priority < routes[best].Priority) {
			best = i
		}
	}
	if best < 0 {
		return nil, fmt.Errorf("the node has no IPv4 default route: name the interface: %w", link.ErrNoDevice)
	}
	return netlink.LinkByIndex(routes[best].LinkIndex)
}

func isWhole(n *net.IPNet) bool {
	bits, _ := n.Mask.Size()
	return bits == 0
}

// deviceNamed returns a device of the calling thread's namespace.
func deviceNamed(name string) (netlink.Link, error) {
	if err := link.ValidateName(name); err != nil {
		return nil, err
	}
	device, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, fmt.Errorf("%s: %w", name, link.ErrNoDevice)
	}
	return device, err
}

// inPod runs work on a thread that begins in the node's namespace, and passes it the pod's namespace.
func (l *Links) inPod(ctx context.Context, m *podlink.Macvlan, work func(pod *netns.Namespace) error) error {
	err := errors.Join(m.Validate(), ctx.Err())
	if err == nil {
		var pod *netns.Namespace
		if pod, err = netns.Open(m.Netns); err == nil {
			defer pod.Close()
			err = netns.OnThread(l.home, func() error { return work(pod) })
		}
	}
	if err != nil {
		return fmt.Errorf("macvlan %s on %s in %s: %w", m.Name, m.Parent, m.Netns, err)
	}
	return nil
}

// CreateMacvlan implements Macvlans.
func (l *Links) CreateMacvlan(ctx context.Context, m podlink.Macvlan) (net.HardwareAddr, error) {
	var mac net.HardwareAddr
	err := l.inPod(ctx, &m, func(pod *netns.Namespace) error {
		parent, err := deviceNamed(m.Parent)
		if err != nil {
			return err
		}
		mtu := cmp.Or(m.MTU, parent.Attrs().MTU)
		wanted := &netlink.Macvlan{Mode: modeOf(&m), LinkAttrs: netlink.LinkAttrs{
			Name: m.Name, MTU: mtu, ParentIndex: parent.Attrs().Index, Namespace: netlink.NsFd(pod.FD()), TxQLen: -1,
		}}
		if err := netlink.LinkAdd(wanted); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("making it: %w", err)
		}
		if err := pod.Enter(); err != nil {
			return err
		}
		have, err := netlink.LinkByName(m.Name)
		if err != nil {
			return fmt.Errorf("looking at it: %w", err)
		}
		if alias := have.Attrs().Alias; !isMacvlan(&m, have, parent) || alias != "" && alias != m.Alias() {
			return fmt.Errorf("%s (%s, alias %q) in the pod: %w", m.Name, have.Type(), alias, link.ErrForeign)
		}
		mac = have.Attrs().HardwareAddr
		if have.Attrs().MTU != mtu {
			if err := netlink.LinkSetMTU(have, mtu); err != nil {
				return fmt.Errorf("setting its MTU: %w", err)
			}
		}
		return configureMacvlan(&m, have)
	})
	return mac, err
}

// isMacvlan reports whether a link of the pod is the macvlan: one of the right mode on a device of the node.
func isMacvlan(m *podlink.Macvlan, dev, parent netlink.Link) bool {
	macvlan, ok := dev.(*netlink.Macvlan)
	return ok && macvlan.Mode == modeOf(m) && macvlan.ParentIndex == parent.Attrs().Index
}

// configureMacvlan works in the pod's namespace.
func configureMacvlan(m *podlink.Macvlan, have netlink.Link) error {
	if err := netlink.LinkSetAlias(have, m.Alias()); err != nil {
		return fmt.Errorf("setting its alias: %w", err)
	}
	if err := devconf.WriteSysctls(m.Name, macvlanSysctls()); err != nil {
		return err
	}
	if m.TxOffloadOff {
		if err := devconf.SetTxOffload(m.Name, link.Off); err != nil {
			return err
		}
	}
	if err := setMacvlanAddresses(m, have); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(have); err != nil {
		return fmt.Errorf("setting it up: %w", err)
	}
	return nil
}

// setMacvlanAddresses sets the exact list of addresses.
func setMacvlanAddresses(m *podlink.Macvlan, have netlink.Link) error {
	if m.Addresses == nil {
		return nil
	}
	for _, prefix := range m.Addresses { // before others are removed: with its last address, the kernel removes the routes of a device
		address := &netlink.Addr{
			IPNet: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}, Flags: unix.IFA_F_NOPREFIXROUTE,
		}
		if err := netlink.AddrReplace(have, address); err != nil {
			return fmt.Errorf("adding address %s: %w", prefix, err)
		}
	}
	wanted := map[netip.Prefix]bool{}
	for _, address := range m.Addresses {
		wanted[address] = true
	}
	return keepAddresses(have, func(address netip.Prefix) bool { return wanted[address] })
}

// keepAddresses removes the addresses for which keep is false.
func keepAddresses(have netlink.Link, keep func(netip.Prefix) bool) error {
	there, err := rtnetlink.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(have, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("listing its addresses: %w", err)
	}
	for _, address := range there {
		bits, _ := address.Mask.Size()
		prefix := netip.PrefixFrom(rtnetlink.ToAddr(address.IP), bits)
		if keep(prefix) {
			continue
		}
		if err := netlink.AddrDel(have, &address); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) { // a removed one may take others of its range
			return fmt.Errorf("removing address %s: %w", prefix, err)
		}
	}
	return nil
}

// macvlanSysctls keep the pod out of the IPv6 of the node's network, for which Weft has no rules.
func macvlanSysctls() link.Sysctls { return link.Sysctls{DisableIPv6: link.On, AcceptRA: link.Off} }

// CheckMacvlan implements Macvlans.
func (l *Links) CheckMacvlan(ctx context.Context, m podlink.Macvlan) error {
	return l.inPod(ctx, &m, func(pod *netns.Namespace) error {
		parent, err := deviceNamed(m.Parent)
		if err != nil {
			return err
		}
		if err := pod.Enter(); err != nil {
			return err
		}
		have, err := netlink.LinkByName(m.Name)
		object := "pod end " + m.Name
		switch {
		case errors.As(err, new(netlink.LinkNotFoundError)):
			return &podlink.Difference{Object: object, Problem: "does not exist"}
		case err != nil:
			return fmt.Errorf("looking at it: %w", err)
		case !isMacvlan(&m, have, parent):
			return &podlink.Difference{Object: object, Problem: "is not a macvlan of mode " + cmp.Or(m.Mode, "private") + " on " + m.Parent}
		case have.Attrs().Flags&net.FlagUp == 0:
			return &podlink.Difference{Object: object, Problem: "is down"}
		}
		return nil
	})
}

// DeleteMacvlan implements Macvlans.
func (l *Links) DeleteMacvlan(ctx context.Context, m podlink.Macvlan) error {
	return l.ifOwn(ctx, &m, func(have netlink.Link) error { return netlink.LinkDel(have) })
}

// KeepMacvlanAddresses implements Macvlans.
func (l *Links) KeepMacvlanAddresses(ctx context.Context, m podlink.Macvlan, keep func(netip.Prefix) bool) error {
	return l.ifOwn(ctx, &m, func(have netlink.Link) error { return keepAddresses(have, keep) })
}

// ifOwn runs work in the pod's namespace if the macvlan is there and has its owner.
func (l *Links) ifOwn(ctx context.Context, m *podlink.Macvlan, work func(have netlink.Link) error) error {
	err := l.inPod(ctx, m, func(pod *netns.Namespace) error {
		if err := pod.Enter(); err != nil {
			return err
		}
		have, err := netlink.LinkByName(m.Name)
		if errors.As(err, new(netlink.LinkNotFoundError)) || err == nil && have.Attrs().Alias != m.Alias() {
			return nil // deleted, or the path is another pod's namespace by now
		}
		if err == nil {
			err = work(have)
		}
		return err
	})
	if errors.Is(err, link.ErrNoNamespace) || errors.Is(err, link.ErrNotNamespace) {
		return nil
	}
	return err
}
