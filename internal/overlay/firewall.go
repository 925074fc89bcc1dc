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

// FirewallChange is a change of namespaces' egress firewalls.
type FirewallChange struct {
	// Reset replaces all egress firewalls of former changes.
	Reset bool
	// Firewalls are the egress firewalls that changed; nil: the namespace has none any more.
	Firewalls map[string]*egressfirewall.Firewall
}

// firewalls are the namespaces' egress firewalls.
//
// The rules of a firewall are programmed while its namespace has pods on this node. Its pods' flows always carry its number. The rules are
// handed over before the first pod's flows and withdrawn before the last pod's, and a number without rules lets nothing out.
type firewalls struct {
	mu    sync.RWMutex
	known map[string]*egressfirewall.Firewall
	ids   pipeline.GroupIDs
	// numbers are the firewalls' numbers, for the namespaces in known.
	numbers map[string]uint32

	// here counts the pods of each namespace on this node. programmed are the namespaces whose rules were handed over. Network.opening guards
	// both.
	here       map[string]int
	programmed map[string]struct{}
	// pending are owners whose flows were handed over and may not be in effect. Network.updating guards them.
	pending map[reconcile.Owner]struct{}
	// narrowed says that a pending firewall no longer lets something out. Network.updating guards it.
	narrowed bool
}

func newFirewalls() *firewalls {
	return &firewalls{
		known: map[string]*egressfirewall.Firewall{}, numbers: map[string]uint32{}, here: map[string]int{}, programmed: map[string]struct{}{},
		pending: map[reconcile.Owner]struct{}{},
	}
}

// guards reports whether namespaces may have egress firewalls. In a flat network they may not, as in OpenShift SDN.
func (s *settings) guards() bool { return s.isolates() || s.policies() }

// Guarded reports whether namespaces may have egress firewalls in the view's network. Then UpdateFirewalls must have stored all of them
// first.
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

// UpdateFirewalls programs a change of egress firewalls. Until the network is in a mode with egress firewalls, it only stores the change:
// all of them must be stored before the Update that brings the mode. After an error, the next call and the engine itself retry what could
// not be programmed.
func (n *Network) UpdateFirewalls(ctx context.Context, change FirewallChange) error {
	n.updating.Lock()
	defer n.updating.Unlock()
	f := n.firewalls
	numbered, narrowed := f.take(&change)
	s := n.settings.Load()
	if s == nil || !s.guards() {
		return nil
	}
	again := *s // a copy, so that ADDs under way compile again
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

// settleFirewalls waits until what was handed over is in effect. The datapath is purged at once if a firewall no longer lets something out,
// otherwise soon: a DNS name with many addresses may resolve to others every few seconds. The caller holds updating.
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

// take stores a change. It returns the namespaces whose pods' flows get another number, and whether any firewall no longer lets something
// out. It makes a change with Reset name all namespaces.
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

// adapt compiles firewalls for new settings, and returns the fragments of all current and former ones. The caller holds Network.opening.
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

// inhabit adds to the number of a namespace's pods on this node; pods may be negative. The caller holds opening.
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

// Inhabited returns the namespaces that have pods on this node. Only their egress firewalls are needed here.
func (n *Network) Inhabited() map[string]struct{} {
	names := map[string]struct{}{}
	for _, rec := range n.store.List() {
		if rec.Network == NetworkName && rec.BootID == n.opts.BootID && rec.State != attach.Closing {
			names[rec.PodNamespace] = struct{}{}
		}
	}
	return names
}
