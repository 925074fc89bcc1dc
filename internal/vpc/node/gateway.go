package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/arp"
	"weft.dev/weft/internal/link/conntrack"
	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/vpc/gateway"
	"weft.dev/weft/internal/vpc/nat"
)

// natGateway is the pod of a NAT gateway on this node. Its methods are serialized (serial).
type natGateway struct {
	name string
	rec  attach.Record
	node *node.Node
	// engine is used directly until the loop has a state.
	engine *tableEngine
	loop   *reconcile.Loop[nft.Key, nft.Item]
	close  func()

	// serial is a semaphore: changes of one gateway are serialized, and delay nothing else.
	serial chan struct{}
	// started reports that the loop has a state.
	started bool
	// outside is the last net1, and items the table; nil: not known yet.
	outside *podlink.Macvlan
	items   map[nft.Key]nft.Item
	// hash is that of the state in effect; empty if there is none.
	hash string
	// connecting reports that its ADD has not created eth0 yet.
	connecting bool
	// stopped reports that its traffic was stopped for good.
	stopped bool
}

// openGateway opens the engine of the gateway's namespace.
func openGateway(ctx context.Context, n *node.Node, rec *attach.Record) (*natGateway, error) {
	opened, err := ruleset.NewEngine(ruleset.Options{Netns: rec.Netns, Tables: []nft.Table{{Family: nft.FamilyIPv4, Name: gateway.Table}}})
	if err != nil {
		return nil, fmt.Errorf("NAT gateway %s: %w", gatewayOf(rec), err)
	}
	engine := &tableEngine{Engine: opened}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g := &natGateway{
		name: gatewayOf(rec), rec: *rec, node: n, engine: engine, serial: make(chan struct{}, 1),
		loop: reconcile.NewLoop[nft.Key, nft.Item](engine, reconcile.Options[nft.Key, nft.Item]{Name: "nft of NAT gateway " + gatewayOf(rec)}),
	}
	var group sync.WaitGroup
	group.Go(func() { _ = g.loop.Run(ctx) }) // it ends with ctx only
	g.close = sync.OnceFunc(func() {
		cancel()
		group.Wait()
		engine.Close()
	})
	return g, nil
}

// tableEngine is the engine of a gateway's table. It keeps what it read first: the table of a former agent.
type tableEngine struct {
	*ruleset.Engine

	mu    sync.Mutex
	first map[nft.Key]nft.Item
}

// Read implements reconcile.Engine.
func (e *tableEngine) Read(ctx context.Context) (map[nft.Key]nft.Item, error) {
	items, err := e.Engine.Read(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil && e.first == nil {
		e.first = maps.Clone(items)
	}
	return items, err //nolint:wrapcheck // as the engine's
}

// former returns what was read first.
func (e *tableEngine) former() map[nft.Key]nft.Item {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.first
}

// lock waits until no other change of the gateway runs.
func (g *natGateway) lock(ctx context.Context) error {
	select {
	case g.serial <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *natGateway) unlock() { <-g.serial }

// prepare brings the table into effect. It needs no interface.
func (g *natGateway) prepare(ctx context.Context, want *nat.Gateway) error {
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	switch {
	case g.stopped:
		return errClosed
	case g.hash == want.Hash:
		return nil
	}
	return g.load(ctx, want.Result.State.Items)
}

// connected reports that eth0 exists.
func (g *natGateway) connected(ctx context.Context) error {
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	g.connecting = false
	return nil
}

// program brings the gateway's state into effect: first the table, so that nothing passes untranslated, then net1 and the routes, and
// forwarding last.
func (g *natGateway) program(ctx context.Context, want *nat.Gateway) error {
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	switch {
	case g.stopped || g.connecting:
		return errClosed
	case g.hash == want.Hash:
		return nil
	}
	if err := g.load(ctx, want.Result.State.Items); err != nil {
		return err
	}
	outside := g.net1(want)
	if err := g.create(ctx, outside); err != nil {
		return fmt.Errorf("NAT gateway %s: interface %s: %w", g.name, gateway.Outside, err)
	}
	if len(outside.Addresses) == 0 {
		if err := g.withoutRoutes(ctx); err != nil {
			return err
		}
	}
	if err := g.node.Links.Apply(ctx, map[reconcile.Owner]map[link.Key]link.Item{g.owner(): g.routes(want)}); err != nil {
		return fmt.Errorf("NAT gateway %s: routes: %w", g.name, err)
	}
	if err := netns.WriteSettings(g.rec.Netns, want.Result.State.Sysctls); err != nil {
		return fmt.Errorf("NAT gateway %s: %w", g.name, err)
	}
	if err := g.announce(&outside); err != nil {
		return err
	}
	g.outside, g.hash = &outside, want.Hash
	return nil
}

// create creates net1, or completes it. One on another device, or of another mode, is replaced, also a former agent's. Its routes are withdrawn
// before, because the loop would not notice that the kernel removes them with it, and all addresses are announced again, because the new one
// has another MAC address.
func (g *natGateway) create(ctx context.Context, outside podlink.Macvlan) error {
	if _, err := g.node.Pods.MacvlanParent(ctx, outside.Parent); err != nil {
		return fmt.Errorf("spec.config.master of the NetworkAttachmentDefinition names %s, which node %s does not have; name a device of every node "+
			"that may run the gateway, or select other nodes: %w", outside.Parent, g.node.Name, err)
	}
	_, err := g.node.Pods.CreateMacvlan(ctx, outside)
	if !errors.Is(err, link.ErrForeign) {
		return err //nolint:wrapcheck // program names the gateway and the interface
	}
	g.outside = nil
	if err := g.withoutRoutes(ctx); err != nil {
		return err
	}
	if err := g.node.Pods.DeleteMacvlan(ctx, outside); err != nil {
		return err //nolint:wrapcheck // program names the gateway and the interface
	}
	_, err = g.node.Pods.CreateMacvlan(ctx, outside)
	return err //nolint:wrapcheck // program names the gateway and the interface
}

// withoutRoutes withdraws the routes of net1, which the kernel removes with the device and with its last address: the loop does not notice that,
// and would not set them again.
func (g *natGateway) withoutRoutes(ctx context.Context) error {
	if err := g.node.Links.Apply(ctx, map[reconcile.Owner]map[link.Key]link.Item{g.owner(): nil}); err != nil {
		return fmt.Errorf("NAT gateway %s: withdraw routes: %w", g.name, err)
	}
	return nil
}

// load brings the table into effect, and removes the connections of what has changed.
func (g *natGateway) load(ctx context.Context, items map[nft.Key]nft.Item) error {
	g.hash = ""
	bring := g.loop.Apply
	if !g.started {
		bring, g.started = g.loop.Start, true
	}
	if err := bring(ctx, g.fragment(items)); err != nil {
		return fmt.Errorf("NAT gateway %s: table: %w", g.name, err)
	}
	if g.items == nil {
		g.items = g.engine.former() // the loop has read it
	}
	if err := g.flush(items); err != nil {
		return fmt.Errorf("NAT gateway %s: %w", g.name, err)
	}
	return nil
}

func (g *natGateway) owner() reconcile.Owner { return reconcile.Owner(g.rec.Key().Owner()) }

func (g *natGateway) fragment(items map[nft.Key]nft.Item) map[reconcile.Owner]map[nft.Key]nft.Item {
	return map[reconcile.Owner]map[nft.Key]nft.Item{g.owner(): items}
}

// withdraw removes the translations and addresses that are not required, and changes nothing else, because the gateway cannot be compiled.
// An agent that has not programmed the gateway yet reads the table to find what is in effect.
func (g *natGateway) withdraw(ctx context.Context, required *gateway.Requirements) error {
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	if g.stopped || g.connecting {
		return errClosed
	}
	left, err := g.reduce(ctx, func(item nft.Item) bool {
		e, element := item.(*nft.Element)
		return !element || required.Element(e)
	})
	if err == nil {
		err = g.flush(left)
	}
	if err == nil {
		err = g.release(ctx, required)
	}
	if err != nil {
		return fmt.Errorf("NAT gateway %s: withdraw deleted rules and EIPs: %w", g.name, err)
	}
	return nil
}

// release removes from net1 the addresses that are not required.
func (g *natGateway) release(ctx context.Context, required *gateway.Requirements) error {
	kept, removed := 0, 0
	err := g.node.Pods.KeepMacvlanAddresses(ctx, g.anyNet1(), func(address netip.Prefix) bool {
		if !required.Address(address.Addr()) {
			removed++
			return false
		}
		kept++
		return true
	})
	if removed > 0 {
		g.hash = ""
	}
	if err == nil && removed > 0 && kept == 0 {
		err = g.withoutRoutes(ctx)
	}
	if g.outside != nil { // those that come back are announced
		g.outside.Addresses = slices.DeleteFunc(g.outside.Addresses, func(a netip.Prefix) bool { return !required.Address(a.Addr()) })
	}
	return err //nolint:wrapcheck // withdraw names the gateway
}

// anyNet1 is net1, whatever device and mode it has.
func (g *natGateway) anyNet1() podlink.Macvlan {
	return podlink.Macvlan{Netns: g.rec.Netns, Name: gateway.Outside, Parent: gateway.Outside, Owner: g.rec.Key().Owner()}
}

// reduce commits the table without the items for which stays is false, and returns the others.
func (g *natGateway) reduce(ctx context.Context, stays func(nft.Item) bool) (left map[nft.Key]nft.Item, err error) {
	have, _ := g.loop.Desired() // also of a state whose commit or flush failed
	if !g.started {
		if have, err = g.engine.Read(ctx); err != nil {
			return nil, err //nolint:wrapcheck // withdraw names the gateway
		}
		if g.items == nil {
			g.items = have
		}
	}
	left = maps.Clone(have)
	maps.DeleteFunc(left, func(_ nft.Key, item nft.Item) bool { return !stays(item) })
	if len(left) == len(have) {
		return left, nil
	}
	g.hash = ""
	if !g.started {
		return left, g.engine.Commit(ctx, reconcile.Diff(left, have)) //nolint:wrapcheck // withdraw names the gateway
	}
	return left, g.loop.Apply(ctx, g.fragment(left)) //nolint:wrapcheck // withdraw names the gateway
}

func (g *natGateway) net1(want *nat.Gateway) podlink.Macvlan {
	return podlink.Macvlan{
		Netns: g.rec.Netns, Name: gateway.Outside, Parent: want.Definition.Master, Mode: want.Definition.Mode, MTU: want.Definition.MTU,
		Owner: g.rec.Key().Owner(), Addresses: append([]netip.Prefix{}, want.Result.State.Addresses...), TxOffloadOff: true,
	}
}

// routes returns the routes of the state. The addresses are net1's.
func (g *natGateway) routes(want *nat.Gateway) map[link.Key]link.Item {
	items := want.Result.State.Links(g.rec.Netns, "")
	maps.DeleteFunc(items, func(_ link.Key, item link.Item) bool {
		_, route := item.(*link.Route)
		return !route
	})
	return items
}

// flush removes from conntrack the connections that a commit of the table translates otherwise.
func (g *natGateway) flush(items map[nft.Key]nft.Item) error {
	if concerned := concerns(g.items, items); concerned != nil {
		if err := netns.Inside(g.rec.Netns, func() error { return conntrack.FlushMatching(concerned) }); err != nil {
			return err //nolint:wrapcheck // the caller names the gateway
		}
	}
	g.items = items
	return nil
}

// announce announces the addresses that net1 did not have before.
func (g *natGateway) announce(outside *podlink.Macvlan) error {
	announced := map[netip.Prefix]bool{}
	if g.outside != nil {
		for _, address := range g.outside.Addresses {
			announced[address] = true
		}
	}
	var fresh []netip.Addr
	for _, address := range outside.Addresses {
		if !announced[address] {
			fresh = append(fresh, address.Addr())
		}
	}
	if err := netns.Inside(g.rec.Netns, func() error { return arp.Announce(gateway.Outside, fresh...) }); err != nil {
		return fmt.Errorf("NAT gateway %s: %w", g.name, err)
	}
	return nil
}

// stop ends the gateway's traffic: without net1 its addresses do not answer any more.
func (g *natGateway) stop(ctx context.Context) error {
	if err := g.lock(ctx); err != nil {
		return err
	}
	defer g.unlock()
	g.stopped = true
	g.close()
	err := g.node.Pods.DeleteMacvlan(ctx, g.anyNet1())
	g.node.Links.Set(map[reconcile.Owner]map[link.Key]link.Item{g.owner(): nil})
	if err != nil {
		return fmt.Errorf("NAT gateway %s: %w", g.name, err)
	}
	return nil
}
