package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/flannel/daemon"
	"weft.dev/weft/internal/flannel/handover"
	"weft.dev/weft/internal/flannel/judge"
	"weft.dev/weft/internal/flannel/published"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/reconcile"
)

// Run implements network.Runner.
func (n *Network) Run(ctx context.Context) error {
	defer n.engine.Close()
	defer n.tracked.Close()
	defer n.kernel.Close()
	defer n.forwarding.close()
	group, ctx := errgroup.WithContext(ctx)
	states := make(chan daemon.State, 1)
	n.say(nil, nil)
	group.Go(func() error { return n.ports.Run(ctx) })
	group.Go(func() error { return n.opts.Judge.Run(ctx) })
	group.Go(func() error { return n.watchPorts(ctx) })
	group.Go(func() error { return n.watchEnds(ctx) })
	group.Go(func() error { return n.keepForwarding(ctx) })
	group.Go(func() error {
		return n.opts.Leases.Run(ctx, func(state daemon.State) {
			select { // only the last one counts
			case <-states:
			default:
			}
			states <- state
		})
	})
	group.Go(func() error { return n.follow(ctx, states) })
	err := group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// say sets the result of Ready.
func (n *Network) say(b *bridge, why error) {
	n.mu.Lock()
	n.bridge, n.why = b, why
	n.mu.Unlock()
	if b != nil {
		n.ends.serve(b.MTU)
	}
	n.opts.Changed()
	n.report()
}

// watchPorts repairs the table of the bridge family when other programs change it.
func (n *Network) watchPorts(ctx context.Context) error {
	drifts, err := n.engine.Watch(ctx)
	if err != nil {
		return err
	}
	for drift := range drifts {
		if drift.Err != nil {
			return drift.Err
		}
		n.ports.Resync()
	}
	return ctx.Err()
}

// follow programs the node for each lease.
func (n *Network) follow(ctx context.Context, states <-chan daemon.State) error {
	started := false
	for {
		var state daemon.State
		select {
		case <-ctx.Done():
			return ctx.Err()
		case state = <-states:
		}
		b, err := n.read(ctx, &state)
		if err == nil {
			err = n.sameBridge(b)
		}
		if err != nil { // until the configuration changes
			n.say(nil, err)
			continue
		}
		if !started {
			select {
			case <-n.opts.Judge.HandedOver():
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := n.establish(ctx, b, started); err != nil {
			return err
		}
		if !started {
			started = true
			close(n.handed)
		}
		n.say(b, nil)
	}
}

// sameBridge returns an error if the configuration names another bridge than that of the pods: NetworkPolicies would not be enforced on the
// ports of one of the two.
func (n *Network) sameBridge(b *bridge) error {
	if n.opts.Bridge != "" && b.Name != n.opts.Bridge {
		return fmt.Errorf("cni-conf.json: delegate.bridge: it changed from %s to %s: drain the node, then restart its agent", n.opts.Bridge, b.Name)
	}
	for _, rec := range n.opts.Records.Attached() {
		if d, err := detailsOf(&rec); err == nil && d.Bridge != b.Name {
			return fmt.Errorf("cni-conf.json: delegate.bridge: it is %s, and pod %s/%s is on %s: set it to %[4]s, or drain the node",
				b.Name, rec.PodNamespace, rec.PodName, d.Bridge)
		}
	}
	return nil
}

func (n *Network) read(ctx context.Context, state *daemon.State) (*bridge, error) {
	text, err := n.opts.Conf(ctx)
	if err != nil {
		return nil, err
	}
	c, err := parseConf(text)
	if err != nil {
		return nil, err
	}
	return c.bridge(state)
}

// establish programs the bridge, the tables and, the first time, all attached pods.
func (n *Network) establish(ctx context.Context, b *bridge, again bool) error {
	var attached []attach.Record
	if !again {
		if err := n.adopt(ctx, b); err != nil {
			return fmt.Errorf("take over pods of flannel's plugin: %w", err)
		}
		if err := closePorts(n, b.Name); err != nil {
			return err
		}
		attached = n.opts.Records.Attached()
	}
	var pods []judge.Pod
	links, ports := map[reconcile.Owner]map[link.Key]link.Item{}, map[reconcile.Owner]map[nftnl.Key]nftnl.Item{}
	for i := range attached {
		rec := &attached[i]
		d, err := detailsOf(rec)
		if err != nil { // its port is not joined to the bridge, and CHECK reports it
			n.opts.Log.Error("attachment record unreadable, its pod's port stays closed", "attachment", rec.Key().String(), "error", err)
			continue
		}
		pods = append(pods, judge.PodOf(rec))
		links[linkOwner(rec)], ports[linkOwner(rec)] = d.port(rec), portItems(rec)
	}
	if err := n.opts.Judge.Admit(ctx, pods); err != nil {
		return fmt.Errorf("have NetworkPolicies judge the pods: %w", err)
	}
	n.mu.Lock()
	attached = slices.DeleteFunc(attached, func(rec attach.Record) bool { // without those whose DEL came meanwhile
		if n.shut[rec.Key()] {
			delete(links, linkOwner(&rec))
			delete(ports, linkOwner(&rec))
		}
		return n.shut[rec.Key()] || ports[linkOwner(&rec)] == nil
	})
	// Host ports that cannot be programmed concern only their pod, and CHECK reports them.
	n.hostPorts.Restore(attached...)
	n.mu.Unlock()
	n.hostPorts.Report(attached)
	ports[owner] = portRules()
	if err := n.ports.Start(ctx, ports); err != nil {
		return fmt.Errorf("program table bridge %s: %w", portsTable, err)
	}
	node := n.opts.Node
	if err := node.Pass(ctx, Name, b.Traffic); err != nil { // first, so that what an earlier process opened stays open
		return err
	}
	// The lease's rules are in effect. The table of earlier releases, which had one of them, has the same name.
	if err := node.Rules.Start(ctx, map[reconcile.Owner]published.Items{owner: published.Static(b.Name)}); err != nil {
		return fmt.Errorf("program table inet %s: %w", published.Table, err)
	}
	if err := node.Links.Start(ctx, map[reconcile.Owner]map[link.Key]link.Item{owner: n.bridgeItems(b)}); err != nil {
		return fmt.Errorf("program bridge %s: %w", b.Name, err)
	}
	if b.six() {
		if _, err := n.forwarding.turnOn(); err != nil {
			return err
		}
	}
	node.Links.Set(links) // a pod without its interface fails alone, and CHECK reports it
	if again {
		return nil
	}
	return n.alone(b.Name, attached)
}

// alone tells the judge whether the bridge has only ports of attached pods. Other ports are those of pods that could not be taken over, and of
// attachments whose record is unreadable or whose DEL is under way.
func (n *Network) alone(bridge string, attached []attach.Record) error {
	ports, err := handover.Ports(n.kernel, bridge)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for i := range attached {
		known[attached[i].HostInterface] = true
	}
	if !slices.ContainsFunc(ports, func(l netlink.Link) bool { return !known[l.Attrs().Name] }) {
		n.opts.Judge.Alone()
	}
	return nil
}

// bridgeItems returns the bridge. It keeps the addresses of former subnets while their pods run.
func (n *Network) bridgeItems(b *bridge) map[link.Key]link.Item {
	addresses := map[netip.Prefix]bool{}
	for _, gw := range b.gateways() {
		addresses[gw] = true
	}
	for _, rec := range n.opts.Records.Attached() {
		d, err := detailsOf(&rec)
		if err != nil || d.Bridge != b.Name {
			continue
		}
		for _, gw := range rec.Gateway {
			for _, address := range rec.Addresses {
				if address.Contains(gw) {
					addresses[netip.PrefixFrom(gw, address.Bits())] = true
				}
			}
		}
	}
	list := slices.SortedFunc(maps.Keys(addresses), func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })
	if n.mac == nil {
		n.mac = chooseMAC(b)
	}
	// With RouteLocalnet, 127.0.0.1 has host ports. The bridge's rules drop what pods send to the loopback range.
	// A pod that has sent to the gateway while another program had changed the bridge's MAC has that one in its neighbour table.
	sysctls := link.Sysctls{Forwarding4: link.On, RouteLocalnet: link.On, AcceptRA: link.Off, ARPNotify: link.On}
	if slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		// The bridge's link-local address follows from its MAC. Its detection would begin with the first pod, and for seconds no forwarded
		// IPv6 packet would reach a pod.
		sysctls.NDiscNotify, sysctls.AcceptDAD = link.On, link.Off
	}
	out := map[link.Key]link.Item{}
	for _, item := range []link.Item{
		&link.Bridge{Name: b.Name, Owner: Name, Adopt: true, NFCallIPTables: link.On, NFCallIP6Tables: link.On, Promisc: b.Promisc},
		&link.Device{
			Name: b.Name, Owner: Name, MTU: b.MTU, MAC: n.mac, Up: true, Addresses: list, Sysctls: sysctls,
		},
	} {
		out[item.Key()] = item
	}
	return out
}

// chooseMAC returns the MAC of the bridge: its present one, which pods have in their neighbour tables, or that of a new bridge.
func chooseMAC(b *bridge) net.HardwareAddr {
	if had, err := bridgeMAC(b.Name); err == nil && had != nil {
		return had
	}
	if gateways := b.gateways(); len(gateways) > 0 {
		return plan.MAC(gateways)
	}
	return plan.MAC(b.Ranges)
}
