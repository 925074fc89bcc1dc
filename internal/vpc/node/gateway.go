package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/vpc/gateway"
	"weft.dev/weft/internal/vpc/nat"
)

// natGateway is the pod of a NAT gateway on this node. Its methods are called one at a time (serial).
type natGateway struct {
	name  string
	rec   attach.Record
	node  *node.Node
	loop  *reconcile.Loop[nft.Key, nft.Item]
	close func()

	// serial is a semaphore: changes of one gateway follow each other, and hold up nothing else.
	serial chan struct{}
	// outside is net1 as it was made last, and items the table; nil: before the first state.
	outside *link.Macvlan
	items   map[nft.Key]nft.Item
	// hash is that of the state in effect; empty: none is.
	hash string
	// stopped says that its traffic was stopped for good.
	stopped bool
}

// openGateway opens the engine of the gateway's namespace.
func openGateway(ctx context.Context, n *node.Node, rec *attach.Record) (*natGateway, error) {
	engine, err := nft.NewEngine(nft.Options{Netns: rec.Netns, Tables: []nft.Table{{Family: nft.FamilyIPv4, Name: gateway.Table}}})
	if err != nil {
		return nil, fmt.Errorf("NAT gateway %s: %w", gatewayOf(rec), err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g := &natGateway{
		name: gatewayOf(rec), rec: *rec, node: n, serial: make(chan struct{}, 1),
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

// program brings the gateway's state into effect: first the table, so that nothing passes untranslated, then net1 and the routes, and
// forwarding last.
func (g *natGateway) program(ctx context.Context, want *nat.Gateway) error {
	select {
	case g.serial <- struct{}{}:
		defer func() { <-g.serial }()
	case <-ctx.Done():
		return ctx.Err()
	}
	switch {
	case g.stopped:
		return errClosed
	case g.hash == want.Hash:
		return nil
	}
	g.hash = ""
	owner := reconcile.Owner(g.rec.Key().Owner())
	bring := g.loop.Apply
	if g.items == nil {
		bring = g.loop.Start
	}
	items := want.Result.State.Items
	if err := bring(ctx, map[reconcile.Owner]map[nft.Key]nft.Item{owner: items}); err != nil {
		return fmt.Errorf("NAT gateway %s: table: %w", g.name, err)
	}
	outside := g.net1(want)
	if g.outside != nil && (g.outside.Parent != outside.Parent || g.outside.Mode != outside.Mode) {
		if err := g.node.Pods.DeleteMacvlan(ctx, *g.outside); err != nil {
			return fmt.Errorf("NAT gateway %s: %w", g.name, err)
		}
	}
	if _, err := g.node.Pods.CreateMacvlan(ctx, outside); err != nil {
		return fmt.Errorf("NAT gateway %s: interface %s: %w", g.name, gateway.Outside, err)
	}
	if err := g.node.Links.Apply(ctx, map[reconcile.Owner]map[link.Key]link.Item{owner: g.routes(want)}); err != nil {
		return fmt.Errorf("NAT gateway %s: routes: %w", g.name, err)
	}
	if err := link.WriteSettings(g.rec.Netns, want.Result.State.Sysctls); err != nil {
		return fmt.Errorf("NAT gateway %s: %w", g.name, err)
	}
	if err := g.follow(items, &outside); err != nil {
		return err
	}
	g.items, g.outside, g.hash = items, &outside, want.Hash
	return nil
}

func (g *natGateway) net1(want *nat.Gateway) link.Macvlan {
	return link.Macvlan{
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

// follow does what a changed state asks for beside it: connections of changed rules are forgotten, and new addresses announced.
func (g *natGateway) follow(items map[nft.Key]nft.Item, outside *link.Macvlan) error {
	changed := changes(g.items, items)
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
	err := link.Inside(g.rec.Netns, func() error {
		var errs []error
		if len(changed) > 0 && g.items != nil {
			errs = append(errs, link.Forget(func(c link.Connection) bool {
				return slices.ContainsFunc(changed, func(e *nft.Element) bool { return concerns(e, &c) })
			}))
		}
		return errors.Join(append(errs, link.Announce(gateway.Outside, fresh...))...)
	})
	if err != nil {
		return fmt.Errorf("NAT gateway %s: %w", g.name, err)
	}
	return nil
}

// changes returns the elements that are in one of two tables only.
func changes(before, after map[nft.Key]nft.Item) []*nft.Element {
	var all []*nft.Element
	for _, pair := range [][2]map[nft.Key]nft.Item{{before, after}, {after, before}} {
		for key, item := range pair[0] {
			other, there := pair[1][key]
			if e, ok := item.(*nft.Element); ok && (!there || !item.Equal(other)) {
				all = append(all, e)
			}
		}
	}
	return all
}

// concerns reports whether an element of the gateway's maps decides, or decided, how the connection is translated.
func concerns(e *nft.Element, c *link.Connection) bool {
	addr := func(text string) netip.Addr {
		a, _ := netip.ParseAddr(text)
		return a
	}
	switch {
	case e.Set == gateway.FloatingIn && len(e.Match) == 1:
		return c.To == addr(e.Match[0])
	case e.Set == gateway.Ports && len(e.Match) == 3:
		port, err := strconv.ParseUint(e.Match[2], 10, 16)
		protocol := map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}[e.Match[1]]
		return err == nil && c.To == addr(e.Match[0]) && c.Protocol == protocol && c.Port == uint16(port)
	case (e.Set == gateway.FloatingOut || e.Set == gateway.Sources) && len(e.Match) == 1:
		text := e.Match[0]
		if !strings.Contains(text, "/") {
			text += "/32"
		}
		prefix, err := netip.ParsePrefix(text)
		return err == nil && prefix.Contains(c.From) && c.From != c.Back
	}
	return false
}

// stop ends the gateway's traffic: without net1 its addresses answer no more.
func (g *natGateway) stop(ctx context.Context) error {
	select {
	case g.serial <- struct{}{}:
		defer func() { <-g.serial }()
	case <-ctx.Done():
		return ctx.Err()
	}
	g.stopped = true
	g.close()
	m := link.Macvlan{Netns: g.rec.Netns, Name: gateway.Outside, Parent: gateway.Outside, Owner: g.rec.Key().Owner()}
	err := g.node.Pods.DeleteMacvlan(ctx, m)
	g.node.Links.Set(map[reconcile.Owner]map[link.Key]link.Item{reconcile.Owner(g.rec.Key().Owner()): nil})
	if err != nil {
		return fmt.Errorf("NAT gateway %s: %w", g.name, err)
	}
	return nil
}
