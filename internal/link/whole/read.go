package whole

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/rtnetlink"
	"weft.dev/weft/internal/reconcile"
)

// dumpTries limits how often an interrupted dump is repeated.
const dumpTries = 5

// dump repeats a listing that was interrupted by a change.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	var out []T
	var err error
	for range dumpTries {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

func (e *Engine) links() ([]netlink.Link, error) {
	links, err := dump(e.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.names = make(map[int]string, len(links))
	for _, link := range links {
		e.names[link.Attrs().Index] = link.Attrs().Name
	}
	return links, nil
}

// Read implements reconcile.Engine.
func (e *Engine) Read(context.Context) (map[Key]Item, error) {
	out, err := e.read()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", reconcile.ErrUnavailable, err)
	}
	e.mu.Lock()
	e.known = maps.Clone(out)
	e.mu.Unlock()
	return out, nil
}

func (e *Engine) read() (map[Key]Item, error) {
	links, err := e.links()
	if err != nil {
		return nil, err
	}
	names := make(map[int]string, len(links))
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	out, mine := map[Key]Item{}, map[int]string{}
	for _, link := range links {
		name := link.Attrs().Name
		if !e.options.Owns(name) {
			continue
		}
		owned, err := e.readDevice(link, names, out)
		if err != nil {
			return nil, err
		}
		if owned {
			mine[link.Attrs().Index] = name
		}
	}
	e.shown = HasNexthops()
	if err := e.readNexthops(mine, out); err != nil {
		return nil, err
	}
	return out, e.readRoutes(names, mine, out)
}

// HasNexthops reports whether the kernel has nexthop objects (since 5.3) and shows the gateways of routes that refer to them, by which an
// engine recognizes its routes: the setting nexthop_compat_mode is on, as by default.
func HasNexthops() bool {
	text, err := os.ReadFile("/proc/sys/net/ipv4/nexthop_compat_mode")
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

// readNexthops reads the nexthop objects with Weft's protocol on managed devices.
func (e *Engine) readNexthops(mine map[int]string, out map[Key]Item) error {
	messages, err := dump(func() ([][]byte, error) {
		request := nl.NewNetlinkRequest(unix.RTM_GETNEXTHOP, unix.NLM_F_DUMP)
		request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: e.dumps}
		request.AddData(&nexthopMessage{})
		return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEXTHOP)
	})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil // a kernel without nexthop objects
	case err != nil:
		return fmt.Errorf("list nexthops: %w", err)
	}
	e.owned = map[uint32]bool{}
	for _, message := range messages {
		if len(message) < unix.SizeofNhmsg || message[2] != Protocol {
			continue
		}
		attrs := rtnetlink.ByType(message[unix.SizeofNhmsg:])
		id := number(attrs[unix.NHA_ID])
		e.owned[id] = true
		gateway, _ := netip.AddrFromSlice(attrs[unix.NHA_GATEWAY])
		item := &Nexthop{Device: mine[int(number(attrs[unix.NHA_OIF]))], Gateway: gateway}
		if item.Device != "" && gateway.Is4() && item.ID() == id {
			out[item.Key()] = item
		}
	}
	return nil
}

// number returns an attribute of four bytes, 0 for others.
func number(attr []byte) uint32 {
	if len(attr) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(attr)
}

// readDevice adds a device and what is on it to out, and reports whether its kind is managed.
func (e *Engine) readDevice(link netlink.Link, names map[int]string, out map[Key]Item) (bool, error) {
	switch link := link.(type) {
	case *netlink.Wireguard:
		return true, e.readWireGuard(link, out)
	case *netlink.Vxlan, *netlink.Iptun:
		device, err := e.device(link, names)
		if err != nil {
			return false, err
		}
		out[device.Key()] = device
		if vxlan, ok := link.(*netlink.Vxlan); ok {
			return true, e.readEntries(vxlan, out)
		}
		return true, nil
	}
	return false, nil
}

// device returns a device as an item, for WireGuard only its kind. A device that is down equals no desired one.
func (e *Engine) device(link netlink.Link, names map[int]string) (device, error) {
	switch link := link.(type) {
	case *netlink.Vxlan:
		local, _ := netip.AddrFromSlice(link.SrcAddr)
		d := &VXLAN{
			Name: link.Name, VNI: uint32(link.VxlanId), Port: uint16(link.Port), Underlay: names[link.VtepDevIndex], Local: local.Unmap(),
			MTU: mtuIfUp(link), GBP: link.GBP, Learning: link.Learning,
		}
		copy(d.MAC[:], link.HardwareAddr)
		var err error
		d.Address, err = e.address(link, d.Local.Is4())
		return d, err
	case *netlink.Iptun:
		local, _ := netip.AddrFromSlice(link.Local)
		if remote, ok := netip.AddrFromSlice(link.Remote); ok && !remote.IsUnspecified() {
			local = netip.Addr{} // for one peer only: equals no desired device
		}
		address, err := e.address(link, true)
		return &IPIP{link.Name, local, mtuIfUp(link), address}, err
	default:
		return &WireGuard{Name: link.Attrs().Name}, nil
	}
}

// mtuIfUp returns a device's MTU, and 0 for one that is down.
func mtuIfUp(link netlink.Link) int {
	if link.Attrs().Flags&net.FlagUp == 0 {
		return 0
	}
	return link.Attrs().MTU
}

// address returns a device's address of a family, ignoring link-local ones; an invalid one if there is none or several.
func (e *Engine) address(link netlink.Link, v4 bool) (netip.Prefix, error) {
	f := unix.AF_INET6
	if v4 {
		f = unix.AF_INET
	}
	addresses, err := dump(func() ([]netlink.Addr, error) { return e.handle.AddrList(link, f) })
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	var found netip.Prefix
	for i := range addresses {
		p := prefixOf(addresses[i].IPNet)
		if p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if found.IsValid() {
			return netip.Prefix{}, nil
		}
		found = p
	}
	return found, nil
}

func (e *Engine) readEntries(vxlan *netlink.Vxlan, out map[Key]Item) error {
	for _, f := range []int{unix.AF_INET, unix.AF_INET6} {
		neighbours, err := dump(func() ([]netlink.Neigh, error) { return e.handle.NeighList(vxlan.Index, f) })
		if err != nil {
			return fmt.Errorf("list neighbours of %s: %w", vxlan.Name, err)
		}
		for i := range neighbours {
			n := &neighbours[i]
			addr, ok := netip.AddrFromSlice(n.IP)
			if !ok || n.State&netlink.NUD_PERMANENT == 0 || n.LinkIndex != vxlan.Index || len(n.HardwareAddr) != len(MAC{}) {
				continue
			}
			item := &Neighbour{vxlan.Name, addr.Unmap(), MAC(n.HardwareAddr)}
			out[item.Key()] = item
		}
	}
	entries, err := dump(func() ([]netlink.Neigh, error) { return e.handle.NeighList(vxlan.Index, unix.AF_BRIDGE) })
	if err != nil {
		return fmt.Errorf("list forwarding entries of %s: %w", vxlan.Name, err)
	}
	for i := range entries {
		n := &entries[i]
		remote, ok := netip.AddrFromSlice(n.IP)
		if !ok || n.State&netlink.NUD_PERMANENT == 0 || n.LinkIndex != vxlan.Index || len(n.HardwareAddr) != len(MAC{}) {
			continue
		}
		item := &FDB{vxlan.Name, MAC(n.HardwareAddr), remote.Unmap()}
		out[item.Key()] = item
	}
	return nil
}

// ipv6Metric is the kernel's default metric of IPv6 routes (IP6_RT_PRIO_USER).
const ipv6Metric = 1024

func (e *Engine) readRoutes(names, mine map[int]string, out map[Key]Item) error {
	for _, f := range []int{unix.AF_INET, unix.AF_INET6} {
		filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
		routes, err := dump(func() ([]netlink.Route, error) { return e.handle.RouteListFiltered(f, filter, netlink.RT_FILTER_TABLE) })
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for i := range routes {
			if item, ok := e.route(&routes[i], names, mine); ok {
				// Probably: the library does not show to which object a route refers.
				_, item.Nexthop = out[(&Nexthop{Gateway: item.Gateway}).Key()]
				out[item.Key()] = item
			}
		}
	}
	return nil
}

// route returns a route as an item, and whether it is managed.
func (e *Engine) route(r *netlink.Route, names, mine map[int]string) (*Route, bool) {
	dst := prefixOf(r.Dst)
	own := r.Protocol == Protocol || r.Protocol == unix.RTPROT_BOOT
	if !dst.IsValid() || !own || (r.Priority != 0 && (dst.Addr().Is4() || r.Priority != ipv6Metric)) || len(r.MultiPath) > 0 {
		return nil, false
	}
	if _, isMine := mine[r.LinkIndex]; !isMine && (!e.inRanges(dst, int(r.Protocol)) || (len(r.Gw) == 0 && r.Type != unix.RTN_BLACKHOLE)) {
		return nil, false
	}
	if r.Type == unix.RTN_BLACKHOLE {
		return &Route{Dst: dst, Blackhole: true}, true
	}
	gateway, _ := netip.AddrFromSlice(r.Gw)
	return &Route{Dst: dst, Gateway: gateway.Unmap(), Device: names[r.LinkIndex], OnLink: r.Flags&int(netlink.FLAG_ONLINK) != 0}, true
}

// inRanges reports whether routes of a protocol to a destination are managed on all devices.
func (e *Engine) inRanges(dst netip.Prefix, protocol int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if protocol == Protocol || e.ownOnly {
		return protocol == Protocol
	}
	for _, r := range e.ranges {
		if r.Contains(dst.Addr()) && r.Bits() <= dst.Bits() {
			return true
		}
	}
	return false
}
