// Package balancer programs Services in the switch: new connections of pods to a Service's addresses go to one of its endpoints. It keeps
// its own state under its own lock, which it holds across no I/O.
package balancer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/groupid"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/service"
)

// Service is a Service as this node serves it to its pods.
type Service struct {
	// Addresses are its virtual addresses, as package service compiles them.
	Addresses []service.VirtualAddress
	// Host are cluster IPs that another program on the host serves.
	Host []netip.Addr
	// Created is the object's creation time: if two Services name the same address, the older one keeps it.
	Created time.Time
}

// none reports whether a Service has no address.
func (s Service) none() bool { return len(s.Addresses)+len(s.Host) == 0 }

// Change is a change of Services or of nodes' addresses.
type Change struct {
	// Services are the Services that changed, by owner (service.Owner). One without any address is withdrawn.
	Services map[reconcile.Owner]Service
	// Nodes are the addresses of all nodes; nil: unchanged.
	Nodes *pipeline.NodeAddresses
}

// Connections are the connections that the switch tracks.
type Connections interface {
	// FlushOutdated flushes connections once every packet meets the flows that were committed before.
	FlushOutdated(ctx context.Context, what []openflow.CTFlush) error
	// Flush flushes connections at once.
	Flush(ctx context.Context, what []openflow.CTFlush) error
}

// Engines are what Services are programmed with.
type Engines struct {
	Flows       *reconcile.Loop[openflow.Key, openflow.Entry]
	Connections Connections
	// Groups are the numbers of the switch's groups.
	Groups *groupid.IDs
	// Warnings is called with the parts of a Service that the switch on this node does not serve, and with no warnings once all are served. It
	// must not block.
	Warnings func(owner reconcile.Owner, warnings []error)
}

// Balancer programs the Services that the switch serves to the pods of this node. Its methods may be called concurrently.
type Balancer struct {
	network feature.Network
	engines Engines

	mu sync.Mutex
	table
}

// New returns the Balancer of a network, without any Service.
func New(network feature.Network, engines Engines) *Balancer {
	return &Balancer{network: network, engines: engines, table: newTable(engines.Groups)}
}

// Update programs a change of Services, and flushes the connections that would otherwise go on to endpoints that are gone. Before the
// network is programmed it only stores the change: all Services must be stored before, because a missing one is not served. After an
// error, a call with an empty change retries.
func (x *Balancer) Update(ctx context.Context, change Change) error {
	due, err := x.program(ctx, change)
	return errors.Join(err, named("connections of Services", x.flushOutdated(ctx, due)))
}

// outdated are the connections to flush once flows are in effect.
type outdated struct {
	// connections are those of Services, by owner.
	connections map[reconcile.Owner][]service.Stale
	// targets are no longer tracked. If they are tracked again later, conntrack finds the connections that it still knows invalid, because they
	// have gone on.
	targets []pipeline.Target
}

// program programs the fragments of the Services that a change affects, and returns the connections to flush afterwards.
func (x *Balancer) program(ctx context.Context, change Change) (outdated, error) {
	pending := x.handOver(change)
	if pending == nil {
		return outdated{}, nil
	}
	for {
		err := x.await(ctx, append(slices.Sorted(maps.Keys(pending)), pipeline.OwnerTargets))
		if ctx.Err() != nil || errors.Is(err, reconcile.ErrUnavailable) {
			return outdated{}, named("Services", err)
		}
		due, newer := x.settled(pending)
		if err != nil || len(newer) == 0 {
			return due, named("Services", err)
		}
		x.restore(due) // flushed with the others: a View or a newer change was handed over for them meanwhile
		pending = newer
	}
}

// handOver stores a change and hands over the fragments that may not be in effect, without waiting. It returns the owners whose fragments may
// not be in effect, with the changes that affected them last; nil before the network is programmed.
func (x *Balancer) handOver(change Change) map[reconcile.Owner]uint64 {
	defer x.network.Begin()()
	v, on := x.network.View()
	x.mu.Lock()
	defer x.mu.Unlock()
	owners := x.update(change)
	if !on {
		return nil
	}
	x.changes++
	for owner := range owners {
		x.pending[owner] = x.changes
	}
	x.engines.Flows.Set(x.fragments(v, maps.Keys(x.pending)))
	return maps.Clone(x.pending)
}

// await waits until the switch has tried the flows of these owners, and returns why those of one of them are not in effect.
func (x *Balancer) await(ctx context.Context, owners []reconcile.Owner) error {
	if err := x.engines.Flows.Apply(ctx, nil); err != nil { // the next commit includes all that was handed over
		return err
	}
	for _, owner := range owners {
		if err := x.engines.Flows.Failure(owner); err != nil {
			return named(string(owner), err)
		}
	}
	return nil
}

// settled notes the Services whose flows are in effect, unless a newer change or a View has affected them, and returns the connections to
// flush for them. newer are those that have been affected, with the numbers of these changes.
func (x *Balancer) settled(pending map[reconcile.Owner]uint64) (due outdated, newer map[reconcile.Owner]uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	newer = map[reconcile.Owner]uint64{}
	var last uint64
	for owner, change := range pending { // one that fails does not block the others
		last = max(last, change)
		switch now, waits := x.pending[owner]; {
		case !waits || x.engines.Flows.Failure(owner) != nil:
		case now == change:
			x.settle(owner)
			delete(x.pending, owner)
		default:
			newer[owner] = now
		}
	}
	due.connections = map[reconcile.Owner][]service.Stale{}
	for owner, stale := range x.stale {
		if _, waits := x.pending[owner]; !waits {
			due.connections[owner] = stale
			delete(x.stale, owner)
		}
	}
	for target, change := range x.untracked {
		if change <= last && x.engines.Flows.Failure(pipeline.OwnerTargets) == nil {
			due.targets = append(due.targets, target)
			delete(x.untracked, target)
		}
	}
	return due, newer
}

// restore makes connections due again.
func (x *Balancer) restore(due outdated) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for owner, stale := range due.connections {
		x.outdate(owner, stale)
	}
	for _, target := range x.still(due.targets) {
		if _, again := x.untracked[target]; !again {
			x.untracked[target] = 0 // in effect since an earlier change
		}
	}
}

// Len returns how many Services it keeps.
func (x *Balancer) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.known)
}

// Adapt returns the flows of all Services for another View. For the first View nothing was served before, and no connection is flushed.
func (x *Balancer) Adapt(v feature.View, first bool) feature.Flows {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.changes++
	flows := x.fragments(v, maps.Keys(x.all()))
	if first {
		clear(x.stale)
	}
	if first || v.Config.Mode == pipeline.ModeNetworkPolicy {
		clear(x.untracked)
	}
	// These Services are settled only once these flows are in effect, by the update in progress or by the next one.
	for owner := range x.pending {
		x.pending[owner] = x.changes
	}
	for owner := range x.stale {
		if x.known[owner] != nil {
			x.pending[owner] = x.changes
		}
	}
	return flows
}

// flushOutdated flushes connections. It holds no lock meanwhile: the switch may take long. What could not be flushed stays due.
func (x *Balancer) flushOutdated(ctx context.Context, due outdated) error {
	x.mu.Lock()
	due.targets = x.still(due.targets)
	x.mu.Unlock()
	if len(due.connections)+len(due.targets) == 0 {
		return nil
	}
	v, _ := x.network.View()
	c := pipeline.Services{Config: v.Config}
	var flushes []openflow.CTFlush
	for _, owner := range slices.Sorted(maps.Keys(due.connections)) {
		for _, stale := range due.connections[owner] {
			flushes = append(flushes, c.Flush(stale))
		}
	}
	for _, target := range due.targets {
		flushes = append(flushes, c.FlushTarget(target))
	}
	err := x.engines.Connections.FlushOutdated(ctx, flushes)
	if err == nil {
		return nil
	}
	x.restore(due)
	return err
}

// fragments returns the fragments of the owners given. The caller holds mu.
func (x *Balancer) fragments(v feature.View, owners iter.Seq[reconcile.Owner]) feature.Flows {
	fragments := feature.Flows{}
	for _, owner := range slices.Sorted(owners) { // sorted, so that groups have the same numbers after a restart
		if owner == pipeline.OwnerNodes {
			fragments[owner] = pipeline.Services{Config: v.Config}.Nodes(x.nodes)
			continue
		}
		if owner == pipeline.OwnerTargets {
			continue // below, once all Services are compiled
		}
		compiled, warnings := x.compile(v.Config, owner)
		fragments[owner] = compiled
		x.warn(owner, warnings)
	}
	fragments[pipeline.OwnerTargets] = pipeline.Services{Config: v.Config}.Targets(slices.SortedFunc(maps.Keys(x.targets), compareTargets))
	return fragments
}

// warn reports once which parts of a Service the switch does not serve. The caller holds mu.
func (x *Balancer) warn(owner reconcile.Owner, warnings []error) {
	text := ""
	if len(warnings) > 0 {
		text = errors.Join(warnings...).Error()
	}
	if x.warned[owner] == text {
		return
	}
	delete(x.warned, owner)
	if text != "" {
		x.warned[owner] = text
	}
	x.engines.Warnings(owner, warnings)
}

func named(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
