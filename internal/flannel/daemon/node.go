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
	d.wait("waiting for an interface")
	last := ""
	for {
		view, err := look(config, options)
		if err == nil {
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
	}
	view.Links, err = linkRanges(chosen.Index)
	return view, err
}

// hasTunnel reports whether there is a device to other nodes, of whichever network configuration.
func hasTunnel() (bool, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return false, fmt.Errorf("list interfaces: %w", err)
	}
	return slices.ContainsFunc(links, func(link netlink.Link) bool { return fabric.Owns(link.Attrs().Name) }), nil
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
	links, err := netlink.LinkList()
	if err != nil {
		return node, fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		i, err := readInterface(link)
		if err != nil {
			return node, err
		}
		node.Interfaces = append(node.Interfaces, i)
	}
	for family, to := range map[int]*[]int{netlink.FAMILY_V4: &node.Default4, netlink.FAMILY_V6: &node.Default6} {
		routes, err := netlink.RouteList(nil, family)
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

func readInterface(link netlink.Link) (uplink.Interface, error) {
	attrs := link.Attrs()
	i := uplink.Interface{Name: attrs.Name, Index: attrs.Index, MTU: attrs.MTU}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return i, fmt.Errorf("list addresses of %s: %w", attrs.Name, err)
	}
	for _, a := range addresses {
		addr, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		i.Addresses = append(i.Addresses, uplink.Address{
			// IFA_F_TEMPORARY is IFA_F_SECONDARY in IPv4.
			Addr: addr, Dynamic: a.Flags&unix.IFA_F_PERMANENT == 0, Temporary: a.Flags&unix.IFA_F_TEMPORARY != 0 && addr.Is6(),
			Deprecated: a.Flags&unix.IFA_F_DEPRECATED != 0,
		})
	}
	return i, nil
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

// linkRanges returns the ranges that an interface reaches without a gateway.
func linkRanges(index int) ([]netip.Prefix, error) {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("find interface %d: %w", index, err)
	}
	routes, err := netlink.RouteList(link, netlink.FAMILY_ALL)
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
	return out, nil
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
