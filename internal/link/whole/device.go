package whole

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// setDevice creates a device, or changes the existing one if possible, or replaces it.
func (c *commit) setDevice(want device) error {
	shape, underlay := want.shape(), 0
	if shape.underlay != "" {
		var err error
		if underlay, err = c.index(shape.underlay); err != nil {
			return err
		}
	}
	link, err := c.usable(want, underlay)
	if err != nil {
		return err
	}
	if link == nil {
		if err := c.engine.create(want, underlay); err != nil {
			return fmt.Errorf("create: %w%s", err, hint(err, shape.kind))
		}
		if link, err = c.engine.handle.LinkByName(shape.name); err != nil {
			return err
		}
	}
	c.indexes[shape.name] = link.Attrs().Index
	c.engine.mu.Lock()
	c.engine.names[link.Attrs().Index] = shape.name
	c.engine.mu.Unlock()
	if w, ok := want.(*WireGuard); ok {
		if err := c.engine.wg.configure(w); err != nil {
			return err
		}
	}
	return c.engine.adjust(link, shape)
}

func (e *Engine) create(want device, underlay int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = want.shape().name
	switch want := want.(type) {
	case *VXLAN:
		return e.execute(newVXLANRequest(want, underlay))
	case *IPIP:
		return e.handle.LinkAdd(&netlink.Iptun{LinkAttrs: attrs, Local: want.Local.AsSlice()})
	case *WireGuard:
		return e.handle.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	}
	return fmt.Errorf("%T is not a device of this engine", want)
}

// usable returns the existing device if it can be changed into the desired one, nil if there is none. A device that cannot be changed is
// deleted.
func (c *commit) usable(want device, underlay int) (netlink.Link, error) {
	shape := want.shape()
	link, err := c.engine.handle.LinkByName(shape.name)
	if isGone(err) {
		return nil, nil //nolint:nilnil // no device is a value
	}
	if err != nil {
		return nil, err
	}
	if link.Type() != shape.kind {
		return nil, fmt.Errorf("exists and is a %s device: remove or rename it (ip link del %s)", link.Type(), shape.name)
	}
	current, err := c.engine.device(link, map[int]string{underlay: shape.underlay})
	if err != nil || want.sameLink(current) {
		return link, err
	}
	c.engine.options.Log.Info("device replaced", "device", shape.name, "old", current.String(), "new", want.String())
	if err := c.engine.handle.LinkDel(link); err != nil {
		return nil, fmt.Errorf("delete the former device: %w", err)
	}
	return nil, nil //nolint:nilnil // no device is a value
}

// hint returns what to do about errors whose kernel message does not help.
func hint(err error, kind string) string {
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Sprintf(" (another %s device has these parameters: ip -d link show type %s)", kind, kind)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Sprintf(" (the kernel has no %s devices: load the module, modprobe %s, or choose another backend)", kind, kind)
	}
	return ""
}

func isGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}

// adjust changes what can be changed on an existing device.
func (e *Engine) adjust(link netlink.Link, want shape) error {
	attrs := link.Attrs()
	if want.mac != (MAC{}) && string(attrs.HardwareAddr) != string(want.mac[:]) {
		if err := e.handle.LinkSetHardwareAddr(link, net.HardwareAddr(want.mac[:])); err != nil {
			return fmt.Errorf("set the MAC address: %w", err)
		}
	}
	if attrs.MTU != want.mtu {
		if err := e.handle.LinkSetMTU(link, want.mtu); err != nil {
			return fmt.Errorf("set the MTU: %w", err)
		}
	}
	// Router advertisements from a peer through the tunnel must not configure the node. Without IPv6 the file does not exist.
	acceptRA := "/proc/sys/net/ipv6/conf/" + want.name + "/accept_ra"
	if err := os.WriteFile(acceptRA, []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("ignore router advertisements: %w", err)
	}
	for _, address := range want.addresses {
		if err := e.setAddress(link, address); err != nil {
			return err
		}
	}
	if attrs.Flags&net.FlagUp == 0 {
		if err := e.handle.LinkSetUp(link); err != nil {
			return fmt.Errorf("set up: %w", err)
		}
	}
	return nil
}

// setAddress makes an address the device's only one of its family.
func (e *Engine) setAddress(link netlink.Link, want netip.Prefix) error {
	if !want.IsValid() {
		return nil
	}
	addresses, err := dump(func() ([]netlink.Addr, error) { return e.handle.AddrList(link, family(want.Addr())) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	addr := &netlink.Addr{IPNet: netOf(want)}
	if want.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD // tunnel addresses are unique: they come from the leases
	}
	if !slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return prefixOf(a.IPNet) == want }) {
		if err := e.handle.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("add address %s: %w", want, err)
		}
	}
	for i := range addresses { // after the addition: when its last address is removed, a device loses its routes
		if p := prefixOf(addresses[i].IPNet); p != want && !p.Addr().IsLinkLocalUnicast() {
			if err := e.handle.AddrDel(link, &addresses[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("remove address %s: %w", p, err)
			}
		}
	}
	return nil
}

func (c *commit) removeDevice(former shape) error {
	link, err := c.engine.handle.LinkByName(former.name)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if link.Type() != former.kind {
		return nil
	}
	delete(c.indexes, former.name)
	return c.engine.handle.LinkDel(link)
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}

func netOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
