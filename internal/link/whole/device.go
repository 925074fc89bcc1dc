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

// setVXLAN makes a device, or changes the one that exists as far as that is possible, or replaces it.
func (c *commit) setVXLAN(want *VXLAN) error {
	underlay, err := c.index(want.Underlay)
	if err != nil {
		return err
	}
	link, err := c.usable(want, underlay)
	if err != nil {
		return err
	}
	if link == nil {
		if err := c.engine.execute(newVXLANRequest(want, underlay)); err != nil {
			return fmt.Errorf("create: %w%s", err, hint(err))
		}
		if link, err = c.engine.handle.LinkByName(want.Name); err != nil {
			return err
		}
	}
	c.indexes[want.Name] = link.Attrs().Index
	c.engine.mu.Lock()
	c.engine.names[link.Attrs().Index] = want.Name
	c.engine.mu.Unlock()
	return c.engine.adjust(link, want)
}

// usable returns the device that exists and can become what is wanted; nil where there is none. One that cannot is deleted.
func (c *commit) usable(want *VXLAN, underlay int) (netlink.Link, error) {
	link, err := c.engine.handle.LinkByName(want.Name)
	if isGone(err) {
		return nil, nil //nolint:nilnil // no device is a value
	}
	if err != nil {
		return nil, err
	}
	have, ok := link.(*netlink.Vxlan)
	if !ok {
		return nil, fmt.Errorf("exists and is a %s device: remove or rename it (ip link del %s)", link.Type(), want.Name)
	}
	current, err := c.engine.device(have, map[int]string{underlay: want.Underlay})
	if err != nil || want.sameTunnel(current) {
		return link, err
	}
	c.engine.options.Log.Info("VXLAN device replaced", "device", want.Name, "old", current.String(), "new", want.String())
	if err := c.engine.handle.LinkDel(link); err != nil {
		return nil, fmt.Errorf("delete the former device: %w", err)
	}
	return nil, nil //nolint:nilnil // no device is a value
}

// hint says what to do about errors that the kernel has no words for.
func hint(err error) string {
	if errors.Is(err, unix.EEXIST) {
		return " (another VXLAN device has this VNI and port: ip -d link show type vxlan)"
	}
	return ""
}

func isGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}

// adjust brings a device into the state that is wanted, as far as that needs no new device.
func (e *Engine) adjust(link netlink.Link, want *VXLAN) error {
	attrs := link.Attrs()
	if string(attrs.HardwareAddr) != string(want.MAC[:]) {
		if err := e.handle.LinkSetHardwareAddr(link, net.HardwareAddr(want.MAC[:])); err != nil {
			return fmt.Errorf("set the MAC address: %w", err)
		}
	}
	if attrs.MTU != want.MTU {
		if err := e.handle.LinkSetMTU(link, want.MTU); err != nil {
			return fmt.Errorf("set the MTU: %w", err)
		}
	}
	// Router advertisements that a peer sends through the tunnel must not configure the node. Without IPv6 there is no file.
	acceptRA := "/proc/sys/net/ipv6/conf/" + want.Name + "/accept_ra"
	if err := os.WriteFile(acceptRA, []byte("0"), 0); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("ignore router advertisements: %w", err)
	}
	if err := e.setAddress(link, want.Address); err != nil {
		return err
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
	addresses, err := e.handle.AddrList(link, family(want.Addr()))
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	addr := &netlink.Addr{IPNet: netOf(want)}
	if want.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD // the other nodes have the tunnel's addresses from the leases
	}
	if !slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return prefixOf(a.IPNet) == want }) {
		if err := e.handle.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("add address %s: %w", want, err)
		}
	}
	for i := range addresses { // after the addition: with its last address a device loses its routes
		if p := prefixOf(addresses[i].IPNet); p != want && !p.Addr().IsLinkLocalUnicast() {
			if err := e.handle.AddrDel(link, &addresses[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return fmt.Errorf("remove address %s: %w", p, err)
			}
		}
	}
	return nil
}

func (c *commit) removeVXLAN(name string) error {
	link, err := c.engine.handle.LinkByName(name)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, ok := link.(*netlink.Vxlan); !ok {
		return nil
	}
	delete(c.indexes, name)
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
