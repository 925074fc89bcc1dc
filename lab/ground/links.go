package ground

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"weft.dev/weft/lab/plan"
)

// End is one end of a link.
type End struct {
	Space  *Space // nil: the machine's root namespace
	Name   string
	Addr   netip.Prefix     // may be the zero value
	MAC    net.HardwareAddr // may be nil: the kernel's choice
	Group  uint32           // link group, set before the link is up; 0 is the kernel's default
	Bridge string           // in the same namespace; may be ""
	// GRO merges the packets of a flow that arrive together, as physical network interfaces do by default, and veth devices do not. Not for a
	// port of a switch, which must forward what it received.
	GRO bool
}

// Connect makes a veth pair, directly in the namespaces of its ends, with transmit offloads off, and sets both ends up.
func Connect(mtu int, a, b End) error {
	ha, nsA, err := a.open()
	if err != nil {
		return err
	}
	defer ha.Close()
	defer func() { _ = nsA.Close() }()
	hb, nsB, err := b.open()
	if err != nil {
		return err
	}
	defer hb.Close()
	defer func() { _ = nsB.Close() }()

	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = a.Name, mtu
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: b.Name, PeerNamespace: netlink.NsFd(nsB)}
	if err := ha.LinkAdd(veth); err != nil {
		return fmt.Errorf("make link %s to %s: %w", a.Name, b.Name, err)
	}
	if err := b.configure(hb, nsB); err != nil {
		return err
	}
	return a.configure(ha, nsA)
}

func (e End) open() (*netlink.Handle, netns.NsHandle, error) {
	path := "/proc/thread-self/ns/net"
	if e.Space != nil {
		path = e.Space.NetPath()
	}
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, ns, fmt.Errorf("open the namespace of %s: %w", e.Name, err)
	}
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		_ = ns.Close()
		return nil, ns, fmt.Errorf("open netlink for %s: %w", e.Name, err)
	}
	return h, ns, nil
}

func (e End) configure(h *netlink.Handle, ns netns.NsHandle) error {
	link, err := h.LinkByName(e.Name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", e.Name, err)
	}
	if e.Group != 0 {
		if err := h.LinkSetGroup(link, int(e.Group)); err != nil {
			return fmt.Errorf("put %s in link group %d: %w", e.Name, e.Group, err)
		}
	}
	if e.MAC != nil {
		if err := h.LinkSetHardwareAddr(link, e.MAC); err != nil {
			return fmt.Errorf("give %s the address %s: %w", e.Name, e.MAC, err)
		}
	}
	path := fmt.Sprintf("/proc/self/fd/%d", int(ns))
	if err := Do(path, func() error { return setOffloads(e.Name, e.GRO) }); err != nil {
		return err
	}
	if e.Bridge != "" {
		bridge, err := h.LinkByName(e.Bridge)
		if err != nil {
			return fmt.Errorf("find bridge %s: %w", e.Bridge, err)
		}
		if err := h.LinkSetMaster(link, bridge); err != nil {
			return fmt.Errorf("plug %s into %s: %w", e.Name, e.Bridge, err)
		}
	}
	if e.Addr.IsValid() {
		if err := h.AddrReplace(link, &netlink.Addr{IPNet: ipNet(e.Addr)}); err != nil {
			return fmt.Errorf("give %s the address %s: %w", e.Name, e.Addr, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", e.Name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Bridge makes a bridge with an IPv4 address and sets it up. Its MAC follows from the address: by default the kernel uses the MAC of a port,
// and with another port the neighbours' ARP entries would be wrong for up to a minute.
func (s Space) Bridge(name string, addr netip.Prefix, mtu int) error {
	h, err := s.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	attrs.HardwareAddr = append(net.HardwareAddr{2, 0}, addr.Addr().AsSlice()...) // locally administered (IEEE 802)
	br := &netlink.Bridge{LinkAttrs: attrs}
	if err := h.LinkAdd(br); err != nil {
		return fmt.Errorf("make bridge %s: %w", name, err)
	}
	if err := h.AddrReplace(br, &netlink.Addr{IPNet: ipNet(addr)}); err != nil {
		return fmt.Errorf("give %s the address %s: %w", name, addr, err)
	}
	if err := h.LinkSetUp(br); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// Route adds a route; the zero prefix is the default route.
func (s Space) Route(to netip.Prefix, via netip.Addr) error {
	h, err := s.Handle()
	if err != nil {
		return err
	}
	defer h.Close()
	r := &netlink.Route{Gw: via.AsSlice()}
	if to.IsValid() {
		r.Dst = ipNet(to)
	}
	if err := h.RouteReplace(r); err != nil {
		return fmt.Errorf("route %s by %s in %s: %w", to, via, s.Name, err)
	}
	return nil
}

// HostNetworks lists the networks that the calling process's namespace has addresses of or routes to.
func HostNetworks() ([]netip.Prefix, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list the machine's routes: %w", err)
	}
	var nets []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		if addr, ok := netip.AddrFromSlice(r.Dst.IP.To4()); ok {
			bits, _ := r.Dst.Mask.Size()
			nets = append(nets, netip.PrefixFrom(addr, bits))
		}
	}
	return nets, nil
}

// RemoveHostLink removes a lab's link from the machine's root namespace, if it is there.
func RemoveHostLink(l plan.Lab) error {
	link, err := netlink.LinkByName(l.HostLink)
	if err != nil {
		if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
			return nil
		}
		return fmt.Errorf("find link %s: %w", l.HostLink, err)
	}
	if err := netlink.LinkDel(link); err != nil {
		return fmt.Errorf("remove link %s: %w", l.HostLink, err)
	}
	return nil
}
