package overlay

import (
	"context"
	"maps"
	"slices"
	"sync"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
)

// FirewallChange is what changed of the namespaces' egress firewalls.
type FirewallChange struct {
	// Reset forgets everything that was told before.
	Reset bool
	// Firewalls are those that are others than before; nil: the namespace has none any more.
	Firewalls map[string]*egressfirewall.Firewall
}

// firewalls are the namespaces' egress firewalls.
//
// A firewall's rules are programmed while its namespace has pods here, and its pods carry its number whatever is programmed: the
// rules are handed over before the first pod's flows, and withdrawn before the last one's, and a number without rules lets
// nothing out.
type firewalls struct {
	mu    sync.RWMutex
	known map[string]*egressfirewall.Firewall
	ids   pipeline.GroupIDs
	// numbers are those of the namespaces in known.
	numbers map[string]uint32

	// here are the namespaces that have pods here, and programmed those whose rules were handed over. Network.opening guards them.
	here       map[string]int
	programmed map[string]struct{}
	// pending are owners whose flows were handed over, and may not be in effect. Network.updating guards them.
	pending map[reconcile.Owner]struct{}
	// narrowed says that among those are some that let something out no more. Network.updating guards it.
	narrowed bool
}

func newFirewalls() *firewalls {
	return &firewalls{
		known: map[string]*egressfirewall.Firewall{}, numbers: map[string]uint32{}, here: map[string]int{}, programmed: map[string]struct{}{},
		pending: map[reconcile.Owner]struct{}{},
	}
}

// guards reports whether namespaces may have egress firewalls: not in a flat network, as in OpenShift SDN.
func (s *settings) guards() bool { return s.isolates() || s.policies() }

// Guarded reports whether in the view's network namespaces may have egress firewalls: UpdateFirewalls is then to tell of all first.
func (v *View) Guarded() bool { return v.Cluster.Mode.HasVNIDs() }

// firewallOf returns the number of the firewall of an attachment's namespace, 0 for none.
func (s *settings) firewallOf(rec *attach.Record) uint32 {
	if !s.guards() || s.firewalls == nil {
		return 0
	}
	s.firewalls.mu.RLock()
	defer s.firewalls.mu.RUnlock()
	return s.firewalls.numbers[rec.PodNamespace]
}

// UpdateFirewalls brings egress firewalls in step with a change. Until the network is in a mode that has them it only takes note:
// all have to be told by the Update that brings the mode. After an error, what could not be programmed is tried again by the next
// call, and by the engine itself.
func (n *Network) UpdateFirewalls(ctx context.Context, change FirewallChange) error {
	n.updating.Lock()
	defer n.updating.Unlock()
	f := n.firewalls
	numbered, narrowed := f.take(&change)
	s := n.settings.Load()
	if s == nil || !s.guards() {
		return nil
	}
	again := *s // so that ADDs under way look again
	n.settings.Store(&again)
	n.opening.Lock()
	fragments := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
	for namespace := range change.Firewalls {
		f.program(s, namespace, fragments)
	}
	for key, rec := range n.live {
		if _, is := numbered[rec.PodNamespace]; is {
			fragments[owner(key)] = n.podFlows(&again, &rec)
		}
	}
	if len(fragments) > 0 {
		n.engines.Flows.Set(fragments)
	}
	n.opening.Unlock()
	for o := range fragments {
		f.pending[o] = struct{}{}
		f.narrowed = f.narrowed || narrowed
	}
	return n.settleFirewalls(ctx)
}

// settleFirewalls waits until what was handed over is in effect. The datapath goes by it at once if something may leave no more,
// otherwise soon: a name of many addresses may stand for others every few seconds. The caller holds updating.
func (n *Network) settleFirewalls(ctx context.Context) error {
	f := n.firewalls
	if len(f.pending) > 0 {
		if err := settled(ctx, n.engines.Flows, maps.Keys(f.pending)); err != nil {
			return named("egress firewalls", err)
		}
		clear(f.pending)
		n.opening.Lock()
		n.purges.Later()
		n.opening.Unlock()
		n.purges.Due(f.narrowed)
		f.narrowed = false
	}
	return n.purges.Flush(ctx)
}

// take takes a change over, and returns the namespaces whose pods carry another number, and whether any lets something out no more.
// A change that resets comes to one that names all.
func (f *firewalls) take(change *FirewallChange) (numbered map[string]struct{}, narrowed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if change.Reset {
		all := maps.Clone(change.Firewalls)
		if all == nil {
			all = map[string]*egressfirewall.Firewall{}
		}
		for namespace := range f.known {
			if _, told := all[namespace]; !told {
				all[namespace] = nil
			}
		}
		change.Firewalls = all
	}
	numbered = map[string]struct{}{}
	for _, namespace := range slices.Sorted(maps.Keys(change.Firewalls)) { // in order, so that they get the same numbers in each life
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

// program adds the fragment of a namespace's firewall, if it has to be handed over. The caller holds Network.opening.
func (f *firewalls) program(s *settings, namespace string, fragments map[reconcile.Owner]map[openflow.Key]openflow.Entry) {
	f.mu.RLock()
	firewall, number := f.known[namespace], f.numbers[namespace]
	f.mu.RUnlock()
	_, programmed := f.programmed[namespace]
	wanted := s.guards() && firewall != nil && f.here[namespace] > 0
	switch {
	case wanted:
		f.programmed[namespace] = struct{}{}
		fragments[pipeline.FirewallOwner(namespace)] = s.pipeline.Firewall(namespace, number, firewall)
	case programmed:
		delete(f.programmed, namespace)
		fragments[pipeline.FirewallOwner(namespace)] = nil
	}
}

// adapt makes firewalls fit new settings, and returns the fragments of all that there are, or were. The caller holds
// Network.opening.
func (f *firewalls) adapt(s *settings, live map[attach.Key]attach.Record) map[reconcile.Owner]map[openflow.Key]openflow.Entry {
	clear(f.here)
	for _, rec := range live {
		f.here[rec.PodNamespace]++
	}
	namespaces := maps.Clone(f.programmed)
	for namespace := range f.here {
		namespaces[namespace] = struct{}{}
	}
	fragments := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
	for namespace := range namespaces {
		f.program(s, namespace, fragments)
	}
	return fragments
}

// inhabit takes note that so many pods of a namespace have come. The caller holds opening.
func (n *Network) inhabit(namespace string, pods int) {
	f := n.firewalls
	was := f.here[namespace]
	if f.here[namespace] += pods; f.here[namespace] == 0 {
		delete(f.here, namespace)
	}
	if (was > 0) == (f.here[namespace] > 0) {
		return
	}
	if s := n.settings.Load(); s != nil {
		fragments := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
		if f.program(s, namespace, fragments); len(fragments) > 0 {
			n.engines.Flows.Set(fragments)
		}
	}
	if n.opts.Inhabited != nil {
		n.opts.Inhabited()
	}
}

// Inhabited returns the namespaces that have pods on this node: what they need is worth knowing.
func (n *Network) Inhabited() map[string]struct{} {
	names := map[string]struct{}{}
	for _, rec := range n.store.List() {
		if rec.Network == NetworkName && rec.BootID == n.opts.BootID && rec.State != attach.Closing {
			names[rec.PodNamespace] = struct{}{}
		}
	}
	return names
}
