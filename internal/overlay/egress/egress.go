// Package egress programs egress IPs on a node: which addresses the node holds, and how the traffic of projects with egress IPs leaves. It
// keeps its own state under its own lock, which it holds across no I/O.
package egress

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/groupid"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/steps"
)

// IPs says how the traffic of all namespaces with egress IPs leaves the cluster, from the view of this node.
type IPs struct {
	// Ways are the ways of projects, by VNID.
	Ways map[uint32]Way
	// Namespaces are the VNIDs of the ways of namespaces' pods. Traffic of all other namespaces leaves by its node's address.
	Namespaces map[string]uint32
}

// Way says how the traffic of one project leaves.
type Way struct {
	// Address is the project's egress IP that this node holds; invalid: none.
	Address netip.Addr
	// Nodes are, if this node holds none, the addresses of nodes that do; each gets a share of the connections. Empty: the traffic is dropped.
	Nodes []netip.Addr
}

// Uplink is the node's own interface and the host's conntrack, as egress IPs need them.
type Uplink interface {
	// Announce announces to the network that addresses are here now.
	Announce(device string, addresses ...netip.Addr) error
	// Flush flushes the host's connections that are translated to addresses that are no longer here.
	Flush(addresses ...netip.Addr) error
}

// Engines are the loops that egress IPs are programmed with.
type Engines struct {
	Links *reconcile.Loop[link.Key, link.Item]
	Rules *reconcile.Loop[nft.Key, nft.Item]
	// Groups are the numbers of the switch's groups.
	Groups *groupid.IDs
	// Uplink is nil if no egress IP is announced and no connection is flushed.
	Uplink Uplink
	Log    *slog.Logger
}

// Addresses are the egress IPs as this node programs them. Its methods may be called concurrently.
type Addresses struct {
	network feature.Network
	engines Engines
	// flusher flushes connections. come receives addresses to announce.
	flusher *flusher
	come    chan []netip.Addr

	// runs programs what is wanted.
	runs steps.Runs

	mu     sync.RWMutex
	wanted IPs
	// stored is the number of the last change of wanted after the network was programmed, settled that of the last one in effect.
	stored, settled uint64
	// programmed is what was handed over completely. underway is what the run in progress has partly handed over; nil: none is in progress.
	programmed IPs
	underway   *IPs
	// views counts the Views that everything was handed over for.
	views uint64
	// incomplete says that what was handed over may not be in effect: the next run compiles everything.
	incomplete bool
	// former are projects that have no egress IP any more, and whose flows may be in effect.
	former map[uint32]struct{}
	// broken are projects whose address is not on the interface: that failed, or a run has yet to do it. Nothing is translated to it, and the
	// next run tries again.
	broken map[uint32]struct{}
	// groups are the groups of namespaces with egress IPs, as in their pods' flows. They lead to the ways of led, whose groups were handed over.
	groups map[string]uint32
	led    IPs
}

// New returns Addresses of a network, without any egress IP.
func New(network feature.Network, engines Engines) *Addresses {
	return &Addresses{
		network: network, engines: engines, flusher: newFlusher(), come: make(chan []netip.Addr, 1),
		former: map[uint32]struct{}{}, broken: map[uint32]struct{}{}, groups: map[string]uint32{},
	}
}

// Run announces egress IPs, and flushes the connections of those that left, until ctx ends.
func (a *Addresses) Run(ctx context.Context) error {
	if a.engines.Uplink == nil {
		return nil
	}
	var group errgroup.Group
	group.Go(func() error { return a.announceAll(ctx) })
	group.Go(func() error { return a.flush(ctx) })
	return group.Wait()
}

// Group returns the number of the group by which the traffic of a namespace's pods leaves; 0: by the node's address.
func (a *Addresses) Group(namespace string) uint32 {
	if a == nil {
		return 0
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.groups[namespace]
}

// Namespaces returns the namespaces that share the egress IPs of a VNID, sorted.
func (a *Addresses) Namespaces(vnid uint32) []string {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var names []string
	for name, of := range a.wanted.Namespaces {
		if of == vnid {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Update programs a change of egress IPs. Before the network is programmed it only stores the change: all egress IPs must be stored before,
// because traffic without one leaves by the node's own address. After an error, the same change may be passed again. A later change supersedes
// those that have not begun to be programmed.
func (a *Addresses) Update(ctx context.Context, e IPs) error {
	if !a.store(e) {
		return nil
	}
	return named("egress addresses", a.runs.Do(ctx, a.program))
}

// store stores what is wanted, and reports whether it is to be programmed.
func (a *Addresses) store(e IPs) bool {
	defer a.network.Begin()()
	_, on := a.network.View()
	if len(e.Ways) == 0 {
		e = IPs{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stored == a.settled && !a.incomplete && len(a.broken) == 0 && reflect.DeepEqual(a.wanted, e) {
		return false
	}
	a.wanted = e
	if on {
		a.stored++
	}
	return on
}

// errSuperseded says that a View was handed over during a run, with everything that is wanted: the run is out of date.
var errSuperseded = errors.New("superseded by another View")

// program programs what is wanted. It begins again if a View is handed over meanwhile.
func (a *Addresses) program(ctx context.Context) error {
	for {
		if err := a.move(ctx, a.begin()); !errors.Is(err, errSuperseded) {
			return err
		}
	}
}

// begin returns the difference to what is wanted, for a run.
func (a *Addresses) begin() *change {
	defer a.network.Begin()()
	v, _ := a.network.View()
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.change(v, a.incomplete)
	a.underway, a.incomplete = &c.wanted, true
	return c
}

// move programs the difference. A new address is on the interface, and translated to, before any flow leads there. A removed one stays on
// the interface until no flow leads there. No lock is held during the I/O of a step.
func (a *Addresses) move(ctx context.Context, c *change) error {
	unheld, err := a.hold(ctx, c)
	if err != nil && ctx.Err() != nil || errors.Is(err, errSuperseded) {
		return err
	}
	rules := a.step(ctx, c, func() wait { return reconcile.Submit(a.engines.Rules, withSome(c.rules)) })
	if errors.Is(rules, errSuperseded) {
		return rules
	}
	a.Announce(c.come)
	flows := a.step(ctx, c, func() wait {
		handed := a.network.Change(func(v feature.View) (feature.Flows, []attach.Record) {
			pods := a.regroup(v, &c.wanted)
			c.leads = c.leads || len(pods) > 0
			return c.flows, pods
		})
		return func(ctx context.Context) error { return a.network.Settled(ctx, slices.Values(handed)) }
	})
	err = errors.Join(err, named("node rules", rules), named("flows", flows))
	if errors.Is(err, errSuperseded) {
		return err
	}
	due := feature.Never
	if c.leads { // the datapath must not use a closed way any more
		due = feature.Now
	}
	err = errors.Join(err, a.network.Purge(ctx, due),
		named("node rules", a.step(ctx, c, func() wait { return reconcile.Submit(a.engines.Rules, c.rules) })),
		named("node links", a.step(ctx, c, func() wait { return reconcile.Submit(a.engines.Links, c.links) })))
	if errors.Is(err, errSuperseded) || !a.settle(c, err == nil) {
		return errSuperseded
	}
	return errors.Join(unheld, err)
}

// wait waits until what was handed over is in effect, or returns why it is not.
type wait = func(ctx context.Context) error

// step hands over a step of a run, unless a View has superseded the run, and waits for it.
func (a *Addresses) step(ctx context.Context, c *change, hand func() wait) error {
	inEffect := func() wait {
		defer a.network.Begin()()
		a.mu.RLock()
		superseded := a.views != c.views
		a.mu.RUnlock()
		if superseded {
			return func(context.Context) error { return errSuperseded }
		}
		return hand()
	}()
	return inEffect(ctx)
}

// settle notes the end of a run, and that it is in effect. false: a View has superseded it.
func (a *Addresses) settle(c *change, inEffect bool) bool {
	defer a.network.Begin()()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.views != c.views {
		return false
	}
	a.programmed, a.underway = c.wanted, nil
	a.flusher.note(c.gone...)
	if inEffect {
		a.incomplete, a.settled = false, c.number
		a.release(slices.Values(c.ended))
		a.flusher.begin()
	}
	return true
}

// release frees the numbers of the groups of projects whose flows are out of effect. The caller holds mu.
func (a *Addresses) release(ended iter.Seq[uint32]) {
	for vnid := range ended {
		if _, again := a.wanted.Ways[vnid]; !again {
			a.engines.Groups.Release(string(pipeline.EgressOwner(vnid)))
			delete(a.former, vnid)
		}
	}
}

// regroup updates the groups of namespaces, and returns the attachments whose flows change.
func (a *Addresses) regroup(v feature.View, wanted *IPs) (pods []attach.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.engines.groupsOf(wanted)
	for _, rec := range v.Live {
		if a.groups[rec.PodNamespace] != now[rec.PodNamespace] {
			pods = append(pods, rec)
		}
	}
	a.groups, a.led = now, *wanted
	return pods
}

// Regroup updates the groups of namespaces for a View. The flows of all pods are compiled afterwards, and handed over together with those
// that it returns, which withdraw the groups of former projects: the switch deletes flows that lead to a group together with the group.
func (a *Addresses) Regroup() feature.Flows {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.groups = a.engines.groupsOf(&a.led)
	flows := feature.Flows{}
	for vnid := range a.former {
		if _, leads := a.led.Ways[vnid]; !leads {
			flows[pipeline.EgressOwner(vnid)] = nil
		}
	}
	return flows
}

// groupsOf returns the groups of the namespaces that are to have egress IPs.
func (e *Engines) groupsOf(wanted *IPs) map[string]uint32 {
	groups := make(map[string]uint32, len(wanted.Namespaces))
	for _, vnid := range slices.Sorted(maps.Keys(wanted.Ways)) { // sorted, so that groups have the same numbers after a restart
		e.group(vnid)
	}
	for _, namespace := range slices.Sorted(maps.Keys(wanted.Namespaces)) {
		groups[namespace] = e.group(wanted.Namespaces[namespace])
	}
	return groups
}

// group returns the number of a project's group.
func (e *Engines) group(vnid uint32) uint32 {
	return e.Groups.ID(string(pipeline.EgressOwner(vnid)))
}

// Adapt hands over the rules and links of all egress IPs for another View, without waiting, and returns their flows. The caller has called
// Begin, and hands over the flows before it ends. It supersedes a run in progress. Pods' flows lead to the former groups until Regroup.
func (a *Addresses) Adapt(v feature.View) feature.Flows {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stored != a.settled { // a run follows, which waits for links before it translates to an address, and announces it
		a.incomplete = true
		for vnid, way := range a.wanted.Ways {
			if way.Address.IsValid() && a.programmed.Ways[vnid].Address != way.Address {
				a.broken[vnid] = struct{}{}
			}
		}
	}
	c := a.change(v, true)
	for vnid := range a.broken {
		c.unhold(vnid, a.wanted.Ways[vnid].Address)
	}
	for vnid := range a.former {
		delete(c.flows, pipeline.EgressOwner(vnid))
	}
	a.views++
	a.programmed, a.underway, a.led = a.wanted, nil, a.wanted
	a.flusher.note(c.gone...)
	a.engines.Links.Set(c.links)
	a.engines.Rules.Set(c.rules)
	a.Announce(c.come)
	return c.flows
}

// InEffect notes that a View is in effect for which everything was handed over. It starts the flush of the connections of addresses that
// left with it, and does not wait.
func (a *Addresses) InEffect() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stored != a.settled { // the run in progress does it
		return
	}
	a.release(maps.Keys(maps.Clone(a.former)))
	a.flusher.begin()
}

// change is the difference between wanted egress IPs and those that were handed over.
type change struct {
	wanted IPs
	// number is that of the last change of what is wanted, views the number of Views so far.
	number, views uint64

	flows feature.Flows
	rules map[reconcile.Owner]map[nft.Key]nft.Item
	links map[reconcile.Owner]map[link.Key]link.Item
	// come are addresses that are new on this node. gone are those that are no longer here, or not for all namespaces that used them.
	come, gone []netip.Addr
	// ended are projects that no longer have an egress IP, and whose flows may be in effect.
	ended []uint32
	// leads says that some traffic leaves by another way than before.
	leads bool
}

// change compiles the ways that differ from those that were handed over, or all. The caller holds mu.
func (a *Addresses) change(v feature.View, all bool) *change {
	a.engines.groupsOf(&a.wanted) // so that the numbers are given in order
	c := &change{
		wanted: a.wanted, number: a.stored, views: a.views,
		flows: feature.Flows{},
		rules: map[reconcile.Owner]map[nft.Key]nft.Item{},
		links: map[reconcile.Owner]map[link.Key]link.Item{},
	}
	a.leave(c)
	for vnid, way := range a.wanted.Ways {
		was, known := a.programmed.Ways[vnid]
		same := known && !all && reflect.DeepEqual(was, way)
		if _, broken := a.broken[vnid]; same && !broken {
			continue
		}
		c.leads = c.leads || !same
		c.compile(v, vnid, way, a.engines.group(vnid))
	}
	for vnid := range a.broken { // it may succeed this time
		if way := a.wanted.Ways[vnid]; way.Address.IsValid() && !slices.Contains(c.come, way.Address) {
			c.come = append(c.come, way.Address)
		}
	}
	return c
}

// leave adds to a change the projects and addresses that come and leave. The caller holds mu.
func (a *Addresses) leave(c *change) {
	c.come, c.gone = moved(&a.programmed, &a.wanted)
	before := []*IPs{&a.programmed}
	if a.underway != nil {
		_, gone := moved(a.underway, &a.wanted)
		c.gone = append(c.gone, gone...)
		before = append(before, a.underway)
	}
	for _, was := range before {
		for vnid := range was.Ways {
			a.former[vnid] = struct{}{}
		}
	}
	for vnid := range a.wanted.Ways {
		delete(a.former, vnid)
	}
	for vnid := range a.former {
		o := pipeline.EgressOwner(vnid)
		c.flows[o], c.rules[o], c.links[o] = nil, nil, nil
		c.ended, c.leads = append(c.ended, vnid), true
	}
}

// compile adds the fragments of a project's way; all are empty for one that does not exist.
func (c *change) compile(v feature.View, vnid uint32, way Way, group uint32) {
	o := pipeline.EgressOwner(vnid)
	w := pipeline.EgressWay{VNID: vnid, Here: way.Address.IsValid(), Nodes: way.Nodes}
	c.flows[o], c.rules[o], c.links[o] = pipeline.EgressIPs{Config: v.Config}.Flows(w, group), nil, nil
	if len(c.flows[o]) > 0 && w.Here {
		held := host.EgressIP{VNID: vnid, Address: way.Address, MAC: pipeline.EgressMAC(vnid), Uplink: v.Uplink}
		c.rules[o], c.links[o] = held.Rules(), held.Links()
	}
}

// unhold has nothing translated to a project's address that is not on the interface, and stops its announcement.
func (c *change) unhold(vnid uint32, address netip.Addr) {
	c.rules[pipeline.EgressOwner(vnid)] = nil
	c.come = slices.DeleteFunc(c.come, func(come netip.Addr) bool { return come == address })
}

// hold puts addresses on the interface. Nothing is translated to an address for which that fails, which unheld reports: another machine may
// have it, and would be cut off.
func (a *Addresses) hold(ctx context.Context, c *change) (unheld, err error) {
	coming := withSome(c.links)
	err = a.step(ctx, c, func() wait { return reconcile.Submit(a.engines.Links, coming) })
	if errors.Is(err, errSuperseded) {
		return nil, err
	}
	err = named("node links", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.views != c.views:
		return nil, errSuperseded
	case err != nil && ctx.Err() != nil: // the caller gave up, and it is unknown which addresses are on the interface
		return nil, err
	}
	clear(a.broken)
	if err == nil {
		return nil, nil
	}
	var failures []error
	for vnid, way := range c.wanted.Ways {
		o := pipeline.EgressOwner(vnid)
		if _, comes := coming[o]; !comes {
			continue
		}
		if failure := a.engines.Links.Failure(o); failure != nil {
			a.broken[vnid] = struct{}{}
			c.unhold(vnid, way.Address)
			delete(c.links, o) // the link stays desired
			failures = append(failures, named("node links of "+string(o), failure))
		}
	}
	if len(failures) == 0 { // it is unknown which project failed
		return nil, err
	}
	return errors.Join(failures...), nil
}

// users returns the namespaces that use each address that this node holds.
func (e *IPs) users() map[netip.Addr]map[string]struct{} {
	users := map[netip.Addr]map[string]struct{}{}
	for _, way := range e.Ways {
		if way.Address.IsValid() {
			users[way.Address] = map[string]struct{}{}
		}
	}
	for namespace, vnid := range e.Namespaces {
		if way := e.Ways[vnid]; way.Address.IsValid() {
			users[way.Address][namespace] = struct{}{}
		}
	}
	return users
}

// moved returns the addresses that this node holds and did not hold before, and those that it no longer holds, or not for all namespaces
// that used them. The VNIDs of projects do not matter.
func moved(before, after *IPs) (come, gone []netip.Addr) {
	had, has := before.users(), after.users()
	for address := range has {
		if had[address] == nil {
			come = append(come, address)
		}
	}
	for address, users := range had {
		left := has[address] == nil
		for namespace := range users {
			_, still := has[address][namespace]
			left = left || !still
		}
		if left {
			gone = append(gone, address)
		}
	}
	return come, gone
}

// withSome returns the fragments that are not empty.
func withSome[K comparable, V any](fragments map[reconcile.Owner]map[K]V) map[reconcile.Owner]map[K]V {
	some := maps.Clone(fragments)
	maps.DeleteFunc(some, func(_ reconcile.Owner, fragment map[K]V) bool { return len(fragment) == 0 })
	return some
}

func named(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
