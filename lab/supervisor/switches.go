package supervisor

import (
	"context"
	"log/slog"
	"net/netip"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/ovsnode"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

// switches connects the nodes with the underlay: it starts their switches, if they have one, and keeps their addresses.
type switches struct {
	lab      plan.Lab
	datapath plan.Datapath // of the switches; never DatapathAuto
	group    *process.Group
	spaces   *spaces
	journal  *journal
	log      *slog.Logger
	down     <-chan struct{} // closed when the lab must end
}

func (w switches) start(ctx context.Context) error {
	var parts []func(context.Context) error
	for _, n := range w.lab.AllNodes() {
		if w.lab.NoSwitch || w.lab.Network == plan.NetworkFlannel {
			parts = append(parts, func(ctx context.Context) error {
				return w.journal.step("address of "+n.Name, func() error { return w.setAddress(ctx, n) })
			})
			continue
		}
		parts = append(parts, func(ctx context.Context) error {
			return w.journal.step("switch of "+n.Name, func() error { return w.startSwitch(ctx, n) })
		})
	}
	return together(ctx, parts...)
}

// startSwitch starts a node's switch and sets the node's address: with the userspace datapath on a bridge with eth0 as a port, with the
// kernel's on eth0 itself.
func (w switches) startSwitch(ctx context.Context, n plan.Node) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	sp, ul := w.spaces.of(n.Name), w.spaces.of(partUnderlay)
	sw := ovsnode.Switch{Node: n, Space: sp, Group: w.group}
	// The tunnels of neutron-openvswitch-agent have a local_ip, and the userspace datapath sends only from a local_ip for which it has a
	// local route. Only the kernel's routes include such (Open vSwitch 3.1, ovs_router_lookup); ovs/route/add makes none.
	if w.datapath == plan.DatapathNetdev && w.lab.OpenStack != plan.OpenStackOpenVSwitch {
		sw.Routes = &ovsnode.Routes{Underlay: w.lab.Underlay, Router: w.lab.Router}
	}
	if err := sw.Start(ctx); err != nil {
		return err
	}
	port := ground.End{Space: &sp, Name: uplink}
	keep := ground.Keep{Link: uplink, Addr: netip.PrefixFrom(n.IP, w.lab.Underlay.Bits()), Gateway: w.lab.Router}
	if w.datapath == plan.DatapathNetdev {
		if err := sw.Guard(ctx); err != nil {
			return err
		}
		port.Group, keep.Link = plan.LinkGroup, ovsnode.Phy
	} else {
		port.MAC = n.MAC
	}
	if err := ground.Connect(w.lab.MTU, ground.End{Space: &ul, Name: n.Name, Bridge: underlayBridge}, port); err != nil {
		return err
	}
	if w.datapath == plan.DatapathNetdev {
		if err := sw.PhyBridge(ctx, uplink, w.lab.MTU); err != nil {
			return err
		}
	}
	if err := w.keepAddress(ctx, sp, keep); err != nil {
		return err
	}
	return sw.AwaitRoute(ctx)
}

// setAddress sets the address of a node without a switch, on eth0 itself. On a flannel network eth0 receives as network interfaces of users'
// nodes do: the packets in which a tunnel carries a connection's segments are merged before the node's rules see them. With NoSwitch, eth0 may
// be a port of a userspace datapath, which would read merged packets that are longer than the MTU.
func (w switches) setAddress(ctx context.Context, n plan.Node) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	sp, ul := w.spaces.of(n.Name), w.spaces.of(partUnderlay)
	err := ground.Connect(w.lab.MTU, ground.End{Space: &ul, Name: n.Name, Bridge: underlayBridge},
		ground.End{Space: &sp, Name: uplink, MAC: n.MAC, GRO: w.lab.Network == plan.NetworkFlannel})
	if err != nil {
		return err
	}
	return w.keepAddress(ctx, sp, ground.Keep{
		Link: uplink, Addr: netip.PrefixFrom(n.IP, w.lab.Underlay.Bits()), Addr6: w.lab.Address6(n), Gateway: w.lab.Router, Gateway6: w.lab.IPv6.Router,
	})
}

// keepAddress sets an address, and restores it whenever its link is made again.
func (w switches) keepAddress(ctx context.Context, sp ground.Space, keep ground.Keep) error {
	// The watch outlives the start, and ends with the group's programs.
	watch, stop := context.WithCancel(context.Background())
	go func() {
		<-w.down
		stop()
	}()
	if err := sp.KeepAddress(watch, keep, w.log); err != nil {
		return err
	}
	return sp.Await(ctx, keep)
}
