package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/flannel/uplink"
	"weft.dev/weft/internal/link/rtnetlink"
	"weft.dev/weft/internal/link/whole"
	"weft.dev/weft/internal/nft/nfnetlink"
)

// uplinkRetry is how long the daemon waits before it searches for an interface again.
const uplinkRetry = time.Second

// view chooses the uplink, and waits until there is one.
func (d *Daemon) view(ctx context.Context, config netconf.Config) (*fabric.View, uplink.Options, error) {
	iface := d.options.Flags.Iface
	options := uplink.Options{
		Names: iface.Names, Patterns: iface.Patterns, CanReach: iface.CanReach, Public: iface.Public, Public6: iface.Public6,
		V4: config.EnableIPv4, V6: config.EnableIPv6,
	}
	public, err := d.options.Store.Public(ctx)
	if err != nil {
		return nil, options, err
	}
	for i, to := range []*netip.Addr{&options.Public, &options.Public6} {
		if public[i].IsValid() {
			*to = public[i]
		}
	}
	if d.inUse == nil { // this process has used none yet
		if d.inUse, err = tunnelAddresses(); err != nil {
			return nil, options, err
		}
	}
	options.InUse = d.inUse
	d.wait("waiting for an interface")
	last := ""
	for {
		view, err := look(config, options)
		if err == nil {
			d.inUse = []netip.Addr{view.Uplink.Addr, view.Uplink.Addr6}
			options.InUse = d.inUse
			return view, options, view.Check()
		}
		if !errors.Is(err, uplink.ErrNone) {
			return nil, options, err
		}
		if err.Error() != last {
			last = err.Error()
			d.options.Log.Warn("no interface yet", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, options, ctx.Err()
		case <-time.After(uplinkRetry):
		}
	}
}

// look reads the node's interfaces and chooses the uplink.
func look(config netconf.Config, options uplink.Options) (*fabric.View, error) {
	node, err := readNode(options)
	if err != nil {
		return nil, err
	}
	chosen, err := uplink.Choose(node, options)
	if err != nil {
		return nil, err
	}
	view := &fabric.View{
		Backend: config.Backend, Uplink: chosen, Network: config.Network, Network6: config.IPv6Network, V4: config.EnableIPv4, V6: config.EnableIPv6,
		Nexthops: whole.HasNexthops(),
	}
	view.Links, err = linkRanges(chosen.Index)
	return view, err
}

// hasTunnel reports whether there is a device to other nodes, of whichever network configuration.
func hasTunnel() (bool, error) {
	links, err := listLinks()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(links, func(link netlink.Link) bool { return fabric.Owns(link.Attrs().Name) }), nil
}

// tunnelAddresses returns the addresses from which existing devices send to other nodes: an earlier process, or flanneld, has made them.
func tunnelAddresses() ([]netip.Addr, error) {
	links, err := listLinks()
	if err != nil {
		return nil, err
	}
	out := []netip.Addr{}
	for _, link := range links {
		var local net.IP
		switch link := link.(type) {
		case *netlink.Vxlan:
			local = link.SrcAddr
		case *netlink.Iptun:
			local = link.Local
		}
		if addr, ok := netip.AddrFromSlice(local); ok && fabric.Owns(link.Attrs().Name) {
			out = append(out, addr.Unmap())
		}
	}
	return out, nil
}

// hasRules reports whether there are rules of an earlier process.
func hasRules() (bool, error) {
	tables, err := nfnetlink.Tables()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(tables, func(table nfnetlink.Table) bool { return host.Own(table.Name) }), nil
}

func readNode(options uplink.Options) (uplink.Node, error) {
	var node uplink.Node
	links, err := listLinks()
	if err != nil {
		return node, err
	}
	// All at once: the kernel has no list of one device's addresses, and a node has hundreds of devices.
	addresses, err := rtnetlink.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return node, fmt.Errorf("list addresses: %w", err)
	}
	on := map[int][]uplink.Address{}
	for i := range addresses {
		if addr, ok := addressOf(&addresses[i]); ok {
			on[addresses[i].LinkIndex] = append(on[addresses[i].LinkIndex], addr)
		}
	}
	for _, link := range links {
		attrs := link.Attrs()
		node.Interfaces = append(node.Interfaces, uplink.Interface{Name: attrs.Name, Index: attrs.Index, MTU: attrs.MTU, Addresses: on[attrs.Index]})
	}
	for family, to := range map[int]*[]int{netlink.FAMILY_V4: &node.Default4, netlink.FAMILY_V6: &node.Default6} {
		routes, err := rtnetlink.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return node, fmt.Errorf("list routes: %w", err)
		}
		for i := range routes {
			if ones, _ := maskSize(routes[i].Dst); ones == 0 {
				*to = append(*to, outDevices(&routes[i])...)
			}
		}
	}
	if options.CanReach.IsValid() {
		routes, err := netlink.RouteGet(options.CanReach.AsSlice())
		if err == nil && len(routes) > 0 {
			source, _ := netip.AddrFromSlice(routes[0].Src)
			node.Reach.Index, node.Reach.Source = routes[0].LinkIndex, source.Unmap()
		}
	}
	return node, nil
}

func addressOf(a *netlink.Addr) (uplink.Address, bool) {
	addr, ok := netip.AddrFromSlice(a.IP)
	addr = addr.Unmap()
	return uplink.Address{
		// IFA_F_TEMPORARY is IFA_F_SECONDARY in IPv4.
		Addr: addr, Dynamic: a.Flags&unix.IFA_F_PERMANENT == 0, Temporary: a.Flags&unix.IFA_F_TEMPORARY != 0 && addr.Is6(),
		Deprecated: a.Flags&unix.IFA_F_DEPRECATED != 0,
	}, ok
}

// listLinks lists the node's links, although pods' links change all the time: an interrupted list is requested again.
func listLinks() ([]netlink.Link, error) {
	links, err := rtnetlink.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return links, nil
}

func maskSize(n *net.IPNet) (int, int) {
	if n == nil {
		return 0, 0
	}
	return n.Mask.Size()
}

func outDevices(r *netlink.Route) []int {
	if r.LinkIndex != 0 {
		return []int{r.LinkIndex}
	}
	var out []int
	for _, hop := range r.MultiPath {
		out = append(out, hop.LinkIndex)
	}
	return out
}

// linkRanges returns, sorted, the ranges that an interface reaches without a gateway.
func linkRanges(index int) ([]netip.Prefix, error) {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("find interface %d: %w", index, err)
	}
	routes, err := rtnetlink.Dump(func() ([]netlink.Route, error) { return netlink.RouteList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list routes of %s: %w", link.Attrs().Name, err)
	}
	var out []netip.Prefix
	for i := range routes {
		if routes[i].Dst == nil || len(routes[i].Gw) > 0 {
			continue
		}
		addr, ok := netip.AddrFromSlice(routes[i].Dst.IP)
		bits, _ := routes[i].Dst.Mask.Size()
		if ok && bits > 0 {
			out = append(out, netip.PrefixFrom(addr.Unmap(), bits))
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out), nil
}

// chooseMACs sets the MAC addresses of the VXLAN devices: those of the former lease, which other nodes have, else the devices' current
// ones, else random ones.
func chooseMACs(view *fabric.View, former lease.Lease) error {
	b, ok := view.Backend.(netconf.VXLAN)
	if !ok {
		return nil
	}
	names := fabric.Devices(b)
	for i, f := range []struct {
		data lease.Data
		to   *lease.MAC
	}{{former.Data, &view.MAC}, {former.Data6, &view.MAC6}} {
		if data, ok := f.data.(lease.VXLAN); ok {
			*f.to = data.MAC
			continue
		}
		link, err := netlink.LinkByName(names[i])
		if err == nil && len(link.Attrs().HardwareAddr) == len(f.to) {
			*f.to = lease.MAC(link.Attrs().HardwareAddr)
			continue
		}
		if _, err := rand.Read(f.to[:]); err != nil {
			return fmt.Errorf("draw a MAC address: %w", err)
		}
		f.to[0] = f.to[0]&^1 | 2 // unicast, locally administered (IEEE 802)
	}
	return nil
}

// warnPublic warns if other nodes will drop this node's tunnel packets: their source is the node's own address, and other nodes accept
// packets only from the address in the lease. That works only if NAT changes the one into the other.
func (d *Daemon) warnPublic(config netconf.Config, view *fabric.View) {
	if len(tunnel(config).Matches()) == 0 {
		return
	}
	u := view.Uplink
	for _, f := range [][2]netip.Addr{{u.Addr, u.Public}, {u.Addr6, u.Public6}} {
		if f[0].IsValid() && f[1].IsValid() && f[0] != f[1] {
			d.options.Log.Warn("other nodes accept tunnel packets from this node's public address only, and they leave with another: use --iface, unless NAT translates it",
				"interface", u.Name, "address", f[0], "public", f[1])
		}
	}
}
