package link

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
)

// MacvlanAliasPrefix starts the alias of every [Macvlan]; its owner follows.
const MacvlanAliasPrefix = "weft-macvlan/"

// Macvlan is an additional interface of a pod on a device of the node: it is in the network of that device.
type Macvlan struct {
	// Netns is the path of the pod's network namespace, and Name the interface's name in it.
	Netns, Name string
	// Parent is the device of the node.
	Parent string
	// Owner is the object that requests it; it follows MacvlanAliasPrefix in the alias. At most 200 bytes.
	Owner string
	// Mode is private (no macvlan of a device reaches another one, or the device itself), bridge, vepa or passthru. Empty: private.
	Mode string
	// MTU in bytes; 0 is the parent's MTU.
	MTU int
	// TxOffloadOff turns transmit offloads off, for a network that reads packets without offloading.
	TxOffloadOff bool
	// Addresses is the exact list of its IPv4 addresses, without routes to their prefixes; others are removed. Nil: another program configures
	// them, and they are left alone.
	Addresses []netip.Prefix
}

// modeOf returns the kernel's number of a macvlan's mode.
func modeOf(m *Macvlan) netlink.MacvlanMode {
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

// MacvlanParent is a device on which macvlans can be created.
type MacvlanParent struct {
	Name string
	MTU  int
	// Addresses are its IPv4 addresses without [Address] items.
	Addresses []netip.Addr
	// Group is its device group; Loopback reports the loopback device, and Weft that its alias is one of this package.
	Group          uint32
	Loopback, Weft bool
}

// Macvlans creates, checks and removes macvlans of pods. *[Pods] does it in the kernel, *[FakePods] in memory.
type Macvlans interface {
	// MacvlanParent returns the device of that name, or, if the name is empty, that of the node's IPv4 default route. Without such a device
	// the error is ErrNoDevice.
	MacvlanParent(ctx context.Context, name string) (MacvlanParent, error)
	// CreateMacvlan creates a macvlan with the MTU of its parent, sets it up, and returns its MAC address. An existing one is completed.
	// ErrForeign names a conflicting interface, ErrNoDevice and ErrNoNamespace what is missing.
	CreateMacvlan(ctx context.Context, m Macvlan) (net.HardwareAddr, error)
	// CheckMacvlan returns nil if the macvlan is as CreateMacvlan leaves it, else a *Difference.
	CheckMacvlan(ctx context.Context, m Macvlan) error
	// DeleteMacvlan removes a macvlan. It is no error if it or its namespace does not exist, or if the interface belongs to another owner.
	DeleteMacvlan(ctx context.Context, m Macvlan) error
}

// macvlanLinks programs pods' macvlans on the devices of one network namespace.
type macvlanLinks struct{ home *namespace }

var _ Macvlans = (*macvlanLinks)(nil)

// MacvlanParent implements Macvlans.
func (l *macvlanLinks) MacvlanParent(_ context.Context, name string) (MacvlanParent, error) {
	var parent MacvlanParent
	err := onThread(l.home, func() error {
		device, err := macvlanDevice(name)
		if err != nil {
			return err
		}
		attrs := device.Attrs()
		parent.Name, parent.MTU, parent.Group, parent.Loopback = attrs.Name, attrs.MTU, attrs.Group, attrs.Flags&net.FlagLoopback != 0
		parent.Weft = slices.ContainsFunc([]string{AliasPrefix, PodAliasPrefix, MacvlanAliasPrefix}, func(p string) bool { return strings.HasPrefix(attrs.Alias, p) })
		addresses, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(device, netlink.FAMILY_V4) })
		for _, address := range addresses {
			if address.Label != AddressLabel {
				parent.Addresses = append(parent.Addresses, toAddr(address.IP))
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
	routes, err := dump(func() ([]netlink.Route, error) {
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
		return nil, fmt.Errorf("the node has no IPv4 default route: name the interface: %w", ErrNoDevice)
	}
	return netlink.LinkByIndex(routes[best].LinkIndex)
}

func isWhole(n *net.IPNet) bool {
	bits, _ := n.Mask.Size()
	return bits == 0
}

// deviceNamed returns a device of the calling thread's namespace.
func deviceNamed(name string) (netlink.Link, error) {
	if err := ValidateName(name); err != nil {
		return nil, err
	}
	device, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, fmt.Errorf("%s: %w", name, ErrNoDevice)
	}
	return device, err
}

func (m *Macvlan) validate() error {
	return (&Pair{HostName: m.Parent, PodName: m.Name, Netns: m.Netns, Owner: m.Owner}).validate()
}

// inPod runs work on a thread that begins in the node's namespace, and passes it the pod's namespace.
func (l *macvlanLinks) inPod(ctx context.Context, m *Macvlan, work func(pod *namespace) error) error {
	err := errors.Join(m.validate(), ctx.Err())
	if err == nil {
		var pod *namespace
		if pod, err = openNamespace(m.Netns); err == nil {
			defer pod.close()
			err = onThread(l.home, func() error { return work(pod) })
		}
	}
	if err != nil {
		return fmt.Errorf("macvlan %s on %s in %s: %w", m.Name, m.Parent, m.Netns, err)
	}
	return nil
}

// CreateMacvlan implements Macvlans.
func (l *macvlanLinks) CreateMacvlan(ctx context.Context, m Macvlan) (net.HardwareAddr, error) {
	var mac net.HardwareAddr
	err := l.inPod(ctx, &m, func(pod *namespace) error {
		parent, err := deviceNamed(m.Parent)
		if err != nil {
			return err
		}
		wanted := &netlink.Macvlan{Mode: modeOf(&m), LinkAttrs: netlink.LinkAttrs{
			Name: m.Name, MTU: cmp.Or(m.MTU, parent.Attrs().MTU), ParentIndex: parent.Attrs().Index, Namespace: netlink.NsFd(pod.file.Fd()), TxQLen: -1,
		}}
		if err := netlink.LinkAdd(wanted); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("making it: %w", err)
		}
		if err := pod.enter(); err != nil {
			return err
		}
		have, err := netlink.LinkByName(m.Name)
		if err != nil {
			return fmt.Errorf("looking at it: %w", err)
		}
		if alias := have.Attrs().Alias; !isMacvlan(&m, have, parent) || alias != "" && alias != m.alias() {
			return fmt.Errorf("%s (%s, alias %q) in the pod: %w", m.Name, have.Type(), alias, ErrForeign)
		}
		mac = have.Attrs().HardwareAddr
		return configureMacvlan(&m, have)
	})
	return mac, err
}

func (m *Macvlan) alias() string { return MacvlanAliasPrefix + m.Owner }

// isMacvlan reports whether a link of the pod is the macvlan: one of the right mode on a device of the node.
func isMacvlan(m *Macvlan, link, parent netlink.Link) bool {
	macvlan, ok := link.(*netlink.Macvlan)
	return ok && macvlan.Mode == modeOf(m) && macvlan.ParentIndex == parent.Attrs().Index
}

// configureMacvlan works in the pod's namespace.
func configureMacvlan(m *Macvlan, have netlink.Link) error {
	if err := netlink.LinkSetAlias(have, m.alias()); err != nil {
		return fmt.Errorf("setting its alias: %w", err)
	}
	if err := writeSysctls(m.Name, macvlanSysctls()); err != nil {
		return err
	}
	if m.TxOffloadOff {
		if err := setTxOffload(m.Name, Off); err != nil {
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
func setMacvlanAddresses(m *Macvlan, have netlink.Link) error {
	if m.Addresses == nil {
		return nil
	}
	there, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(have, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("listing its addresses: %w", err)
	}
	missing := map[netip.Prefix]bool{}
	for _, address := range m.Addresses {
		missing[address] = true
	}
	for _, address := range there {
		bits, _ := address.Mask.Size()
		prefix := netip.PrefixFrom(toAddr(address.IP), bits)
		if missing[prefix] {
			delete(missing, prefix)
		} else if err := netlink.AddrDel(have, &address); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) { // a removed one may take others of its range
			return fmt.Errorf("removing address %s: %w", prefix, err)
		}
	}
	for prefix := range missing {
		address := &netlink.Addr{
			IPNet: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}, Flags: unix.IFA_F_NOPREFIXROUTE,
		}
		if err := netlink.AddrReplace(have, address); err != nil {
			return fmt.Errorf("adding address %s: %w", prefix, err)
		}
	}
	return nil
}

// macvlanSysctls keep the pod out of the IPv6 of the node's network, for which Weft has no rules.
func macvlanSysctls() Sysctls { return Sysctls{DisableIPv6: On, AcceptRA: Off} }

// CheckMacvlan implements Macvlans.
func (l *macvlanLinks) CheckMacvlan(ctx context.Context, m Macvlan) error {
	return l.inPod(ctx, &m, func(pod *namespace) error {
		parent, err := deviceNamed(m.Parent)
		if err != nil {
			return err
		}
		if err := pod.enter(); err != nil {
			return err
		}
		have, err := netlink.LinkByName(m.Name)
		object := "pod end " + m.Name
		switch {
		case errors.As(err, new(netlink.LinkNotFoundError)):
			return &Difference{object, "does not exist"}
		case err != nil:
			return fmt.Errorf("looking at it: %w", err)
		case !isMacvlan(&m, have, parent):
			return &Difference{object, "is not a macvlan of mode " + cmp.Or(m.Mode, "private") + " on " + m.Parent}
		case have.Attrs().Flags&net.FlagUp == 0:
			return &Difference{object, "is down"}
		}
		return nil
	})
}

// DeleteMacvlan implements Macvlans.
func (l *macvlanLinks) DeleteMacvlan(ctx context.Context, m Macvlan) error {
	err := l.inPod(ctx, &m, func(pod *namespace) error {
		if err := pod.enter(); err != nil {
			return err
		}
		have, err := netlink.LinkByName(m.Name)
		if errors.As(err, new(netlink.LinkNotFoundError)) || err == nil && have.Attrs().Alias != m.alias() {
			return nil // deleted, or the path is another pod's namespace by now
		}
		if err == nil {
			err = netlink.LinkDel(have)
		}
		return err
	})
	if errors.Is(err, ErrNoNamespace) || errors.Is(err, ErrNotNamespace) {
		return nil
	}
	return err
}
