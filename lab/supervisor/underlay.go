package supervisor

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

// The lab's own namespaces, beside those of the nodes.
const (
	partUnderlay  = "ul"  // the bridge that connects all namespaces, and the router
	partControl   = "cp"  // the control plane
	partOutside   = "out" // beyond the router
	partExternal  = "ext" // with VPCs or OpenStack: a host in the outside network of their gateways
	partOpenStack = "os"  // with OpenStack: its programs
	uplink        = "eth0"

	underlayBridge = "ul0" // in the underlay's namespace
)

// externalLink is the nodes' link into the outside network of NAT gateways, with its name in the example manifests.
const externalLink = "ens37"

// externalBridge connects the outside network in the underlay's namespace, which routes for it.
const externalBridge = "ext0"

// cloudLink is the nodes' link into the outside network, a port of the bridge to which Neutron's external network is mapped.
const cloudLink = "ext"

// underlay makes the lab's namespaces and the links between them, except those of the nodes into the underlay, which switches makes.
type underlay struct {
	lab    plan.Lab
	entry  machine.Entry // with the addresses of the link to the machine
	self   string        // the running program, which holds the namespaces
	group  *process.Group
	spaces *spaces
}

// start makes the namespaces, and then the links.
func (u underlay) start(ctx context.Context) error {
	parts := []func(context.Context) error{
		func(ctx context.Context) error { return u.newSpace(ctx, partUnderlay, ground.Hold{Forward: true}) },
		func(ctx context.Context) error { return u.newSpace(ctx, partControl, ground.Hold{}) },
		func(ctx context.Context) error { return u.newSpace(ctx, partOutside, ground.Hold{}) },
	}
	if u.lab.HasExternal() {
		parts = append(parts, func(ctx context.Context) error { return u.newSpace(ctx, partExternal, ground.Hold{}) })
	}
	if u.lab.OpenStack != "" { // Octavia's sockets need a /run of their own
		parts = append(parts, func(ctx context.Context) error {
			return u.newSpace(ctx, partOpenStack, ground.Hold{RunDir: u.lab.RunPath("os-run")})
		})
	}
	for _, n := range u.lab.AllNodes() {
		parts = append(parts, func(ctx context.Context) error {
			return u.newSpace(ctx, n.Name, ground.Hold{RunDir: n.RunDir, Binds: n.Binds(), Forward: true, Forward6: u.lab.DualStack})
		})
	}
	if err := together(ctx, parts...); err != nil {
		return err
	}
	if err := u.connect(); err != nil {
		return err
	}
	if u.lab.OpenStack != "" {
		if err := u.connectCloud(ctx); err != nil {
			return err
		}
	}
	if u.lab.HasExternal() {
		return u.connectExternal()
	}
	return nil
}

func (u underlay) newSpace(ctx context.Context, part string, h ground.Hold) error {
	if h.RunDir != "" {
		if err := os.MkdirAll(h.RunDir, 0o755); err != nil {
			return fmt.Errorf("make the node's /run: %w", err)
		}
	}
	sp, err := ground.NewSpace(ctx, u.group, u.self, u.lab.Namespace(part), h)
	if err != nil {
		return err
	}
	u.spaces.add(part, sp)
	return nil
}

// connect makes the links that are not a node's: the bridge, the control plane with its link to the machine, and the outside.
func (u underlay) connect() error {
	l := u.lab
	ul, cp, out := u.spaces.of(partUnderlay), u.spaces.of(partControl), u.spaces.of(partOutside)
	bits := l.Underlay.Bits()
	if err := ul.Bridge(underlayBridge, netip.PrefixFrom(l.Router, bits), l.MTU); err != nil {
		return err
	}
	err := ground.Connect(l.MTU,
		ground.End{Space: &ul, Name: partControl, Bridge: underlayBridge},
		ground.End{Space: &cp, Name: uplink, Addr: netip.PrefixFrom(l.ControlIP, bits)})
	if err != nil {
		return err
	}
	if err := cp.Route(netip.Prefix{}, l.Router); err != nil {
		return err
	}
	hostBits := u.entry.HostNet.Bits()
	err = ground.Connect(l.MTU,
		ground.End{Name: l.HostLink, Addr: netip.PrefixFrom(u.entry.HostIP(), hostBits)},
		ground.End{Space: &cp, Name: "host0", Addr: netip.PrefixFrom(u.entry.APIHost(), hostBits)})
	if err != nil {
		return err
	}
	err = ground.Connect(l.MTU,
		ground.End{Space: &ul, Name: partOutside, Addr: netip.PrefixFrom(l.Outside.Gateway, l.Outside.Net.Bits())},
		ground.End{Space: &out, Name: uplink, Addr: netip.PrefixFrom(l.Outside.Host, l.Outside.Net.Bits())})
	if err != nil {
		return err
	}
	// Outside has a route back to nodes only, so pods can reach it only masqueraded.
	return out.Route(l.Underlay, l.Outside.Gateway)
}

// connectExternal makes the outside network. Its gateway is the lab's router; it has a host, and a link of every node without an address:
// the parent of VPCs' gateways, or a port of Neutron's external bridge. The lab's outside has a route back.
func (u underlay) connectExternal() error {
	l := u.lab
	ul, ext, out := u.spaces.of(partUnderlay), u.spaces.of(partExternal), u.spaces.of(partOutside)
	bits := l.External.Net.Bits()
	if err := ul.Bridge(externalBridge, netip.PrefixFrom(l.External.Gateway, bits), l.MTU); err != nil {
		return err
	}
	err := ground.Connect(l.MTU,
		ground.End{Space: &ul, Name: partExternal, Bridge: externalBridge},
		ground.End{Space: &ext, Name: uplink, Addr: netip.PrefixFrom(l.External.Host, bits)})
	if err != nil {
		return err
	}
	if err := ext.Route(netip.Prefix{}, l.External.Gateway); err != nil {
		return err
	}
	if err := out.Route(l.External.Net, l.Outside.Gateway); err != nil {
		return err
	}
	for _, n := range l.AllNodes() {
		sp := u.spaces.of(n.Name)
		link := ground.End{Space: &sp, Name: externalLink}
		if l.OpenStack != "" {
			link.Name, link.Group = cloudLink, plan.LinkGroup
		}
		if err := ground.Connect(l.MTU, ground.End{Space: &ul, Name: fmt.Sprintf("ext%d", n.Index), Bridge: externalBridge}, link); err != nil {
			return err
		}
	}
	return nil
}

// connectCloud connects OpenStack's namespace with nodes and control plane. Traffic from the outside network, which has Neutron's routers
// and floating IPs, is not routed to the nodes' network.
func (u underlay) connectCloud(ctx context.Context) error {
	l := u.lab
	ul, cloud := u.spaces.of(partUnderlay), u.spaces.of(partOpenStack)
	err := ground.Connect(l.MTU,
		ground.End{Space: &ul, Name: partOpenStack, Bridge: underlayBridge},
		ground.End{Space: &cloud, Name: uplink, Addr: netip.PrefixFrom(l.OpenStackIP, l.Underlay.Bits())})
	if err != nil {
		return err
	}
	if _, err := u.group.Run(ctx, "", ul.Enter("ip", "rule", "add", "iif", externalBridge, "to", l.Underlay.String(), "blackhole")...); err != nil {
		return err
	}
	return cloud.Route(netip.Prefix{}, l.Router)
}

// startReporters starts the servers on the hosts behind the router.
func (u underlay) startReporters(ctx context.Context) error {
	parts := []func(context.Context) error{
		func(ctx context.Context) error { return u.startReporter(ctx, "reporter", partOutside, u.lab.Outside) },
	}
	if u.lab.HasExternal() {
		parts = append(parts, func(ctx context.Context) error {
			return u.startReporter(ctx, "external/reporter", partExternal, u.lab.External)
		})
	}
	return together(ctx, parts...)
}

func (u underlay) startReporter(ctx context.Context, name, part string, at plan.Segment) error {
	return u.group.Start(ctx, process.Program{Name: name, Argv: u.spaces.of(part).Enter(u.self, "reporter", at.Reporter().String())})
}
