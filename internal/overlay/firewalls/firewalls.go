// Package firewalls keeps the egress firewalls of namespaces, and programs those of namespaces that have pods on this node. It keeps its own
// state under its own lock.
//
// The flows of a namespace's pods always carry the number of its firewall. The rules of the number are handed over before the first pod's
// flows and withdrawn before the last pod's, and a number without rules lets nothing out.
package firewalls

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/groupid"
	"weft.dev/weft/internal/reconcile"
)

// Change is a change of namespaces' egress firewalls.
type Change struct {
	// Reset replaces all egress firewalls of former changes.
	Reset bool
	// Firewalls are the egress firewalls that changed; nil: the namespace has none any more.
	Firewalls map[string]*egressfirewall.Firewall
}

// Firewalls are the namespaces' egress firewalls. Its methods may be called concurrently.
type Firewalls struct {
	network feature.Network

	mu    sync.RWMutex
	known map[string]*egressfirewall.Firewall
	ids   groupid.IDs
	// numbers are the firewalls' numbers, for the namespaces in known.
	numbers map[string]uint32
	// here counts the pods of each namespace on this node. programmed are the namespaces whose rules were handed over.
	here       map[string]int
	programmed map[string]struct{}
	// pending are owners whose flows were handed over and may not be in effect, each with the number of the change that handed them over.
	// narrowed is the last change after which a pending firewall no longer lets something out; 0: there is none.
	pending           map[reconcile.Owner]uint64
	narrowed, changes uint64
}

// New returns Firewalls of a network, without any firewall.
func New(network feature.Network) *Firewalls {
	return &Firewalls{
		network: network, known: map[string]*egressfirewall.Firewall{}, numbers: map[string]uint32{}, here: map[string]int{},
		programmed: map[string]struct{}{}, pending: map[reconcile.Owner]uint64{},
	}
}

// guards reports whether namespaces may have egress firewalls. In a flat network they may not, as in OpenShift SDN.
func guards(c *pipeline.Config) bool {
	return c.Mode == pipeline.ModeMultitenant || c.Mode == pipeline.ModeNetworkPolicy
}

// Number returns the number of a namespace's firewall, 0 for none.
func (f *Firewalls) Number(c *pipeline.Config, namespace string) uint32 {
	if f == nil || !guards(c) {
		return 0
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.numbers[namespace]
}

// Update programs a change of egress firewalls. Until the network is in a mode with egress firewalls, it only stores the change: all of
// them must be stored before the View that brings the mode. After an error, the next call and the engine itself retry what could not be
// programmed.
func (f *Firewalls) Update(ctx context.Context, change Change) error {
	handed, on := f.handOver(&change)
	if !on {
		return nil
	}
	return f.settle(ctx, handed)
}

// handed are flows that may not be in effect: their owners, the change that handed them over last, and whether any firewall no longer lets
// something out.
type handed struct {
	pending  map[reconcile.Owner]uint64
	change   uint64
	narrowed bool
}

// handOver stores a change and hands over its flows, without waiting. on is false in a mode without egress firewalls.
func (f *Firewalls) handOver(change *Change) (h handed, on bool) {
	defer f.network.Begin()()
	numbered, narrowed := f.take(change)
	owners := f.network.Change(func(v feature.View) (feature.Flows, []attach.Record) {
		if on = guards(v.Config); !on {
			return nil, nil
		}
		var pods []attach.Record
		for _, rec := range v.Live {
			if _, is := numbered[rec.PodNamespace]; is {
				pods = append(pods, rec)
			}
		}
		return f.compile(v.Config, maps.Keys(change.Firewalls)), pods
	})
	if !on {
		return handed{}, false
	}
	return f.note(owners, narrowed), true
}

// note notes that flows of owners were handed over, and returns all that may not be in effect.
func (f *Firewalls) note(owners []reconcile.Owner, narrowed bool) handed {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changes++
	for _, o := range owners {
		f.pending[o] = f.changes
	}
	if narrowed && len(owners) > 0 {
		f.narrowed = f.changes
	}
	return handed{pending: maps.Clone(f.pending), change: f.changes, narrowed: f.narrowed > 0}
}

// settle waits until flows that were handed over are in effect. The datapath is purged at once if a firewall no longer lets something out,
// otherwise soon: a DNS name with many addresses may resolve to others every few seconds. Other features, and the network, may be updated
// meanwhile.
func (f *Firewalls) settle(ctx context.Context, h handed) error {
	due := feature.Never
	if len(h.pending) > 0 {
		if err := f.network.Settled(ctx, maps.Keys(h.pending)); err != nil {
			return fmt.Errorf("egress firewalls: %w", err)
		}
		if due = feature.Soon; h.narrowed {
			due = feature.Now
		}
		f.inEffect(h)
	}
	return f.network.Purge(ctx, due)
}

// inEffect notes that flows are in effect, unless newer ones were handed over meanwhile.
func (f *Firewalls) inEffect(h handed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for o, change := range h.pending {
		if f.pending[o] == change {
			delete(f.pending, o)
		}
	}
	if f.narrowed <= h.change {
		f.narrowed = 0
	}
}

// take stores a change. It returns the namespaces whose pods' flows get another number, and whether any firewall no longer lets something
// out. It makes a change with Reset name all namespaces.
func (f *Firewalls) take(change *Change) (numbered map[string]struct{}, narrowed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if change.Reset {
		all := maps.Clone(change.Firewalls)
		if all == nil {
			all = map[string]*egressfirewall.Firewall{}
		}
		for namespace := range f.known {
			if _, named := all[namespace]; !named {
				all[namespace] = nil
			}
		}
		change.Firewalls = all
	}
	numbered = map[string]struct{}{}
	for _, namespace := range slices.Sorted(maps.Keys(change.Firewalls)) { // sorted, so that they get the same numbers after a restart
		was, now := f.known[namespace], change.Firewalls[namespace]
		narrowed = narrowed || egressfirewall.Narrowed(was, now)
		if now != nil {
			f.known[namespace] = now
			f.numbers[namespace] = f.ids.ID(namespace)
		} else {
			delete(f.known, namespace)
			delete(f.numbers, namespace)
			f.ids.Release(namespace)
		}
		if (now != nil) != (was != nil) {
			numbered[namespace] = struct{}{}
		}
	}
	return numbered, narrowed
}

// compile returns the rules of namespaces' firewalls that have to be handed over.
func (f *Firewalls) compile(c *pipeline.Config, namespaces iter.Seq[string]) feature.Flows {
	f.mu.Lock()
	defer f.mu.Unlock()
	flows := feature.Flows{}
	for namespace := range namespaces {
		f.program(c, namespace, flows)
	}
	return flows
}

// program adds the rules of a namespace's firewall, if they have to be handed over. The caller holds mu.
func (f *Firewalls) program(c *pipeline.Config, namespace string, flows feature.Flows) {
	firewall := f.known[namespace]
	_, programmed := f.programmed[namespace]
	switch {
	case guards(c) && firewall != nil && f.here[namespace] > 0:
		f.programmed[namespace] = struct{}{}
		flows[pipeline.FirewallOwner(namespace)] = pipeline.Firewalls{Config: c}.Flows(namespace, f.numbers[namespace], firewall)
	case programmed:
		delete(f.programmed, namespace)
		flows[pipeline.FirewallOwner(namespace)] = nil
	}
}

// Adapt starts again with these attachments and another configuration, and returns the flows of all current and former firewalls.
func (f *Firewalls) Adapt(v feature.View) feature.Flows {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.here)
	for _, rec := range v.Live {
		f.here[rec.PodNamespace]++
	}
	namespaces := maps.Clone(f.programmed)
	for namespace := range f.here {
		namespaces[namespace] = struct{}{}
	}
	flows := feature.Flows{}
	for namespace := range namespaces {
		f.program(v.Config, namespace, flows)
	}
	return flows
}

// Inhabit adds to the number of a namespace's pods on this node; pods may be negative. It returns the flows that change, and whether the
// namespace has its first pod or has lost its last. c is nil before the network is programmed.
func (f *Firewalls) Inhabit(c *pipeline.Config, namespace string, pods int) (flows feature.Flows, changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.here[namespace]
	if f.here[namespace] += pods; f.here[namespace] == 0 {
		delete(f.here, namespace)
	}
	if (was > 0) == (f.here[namespace] > 0) {
		return nil, false
	}
	flows = feature.Flows{}
	if c != nil {
		f.program(c, namespace, flows)
	}
	return flows, true
}
