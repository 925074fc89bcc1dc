package overlay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
)

const (
	// DefaultMoveStep bounds how far apart in time nodes may observe a change of VNIDs. Watches deliver it within milliseconds. A node that
	// observes it later than this loses packets of the project, but lets through none that it should not.
	DefaultMoveStep = 2 * time.Second
	// vnidPatience is how long an ADD waits for its namespace's VNID: a pod is often created together with its namespace, and the VNID is
	// allocated within milliseconds. After that the runtime repeats the ADD.
	vnidPatience = 5 * time.Second
)

// TenantChange is a change of namespaces' VNIDs.
type TenantChange struct {
	// VNIDs are the VNIDs of namespaces that are new or have another one.
	VNIDs map[string]uint32
	// Gone are namespaces without a VNID from now on: their pods are closed.
	Gone []string
	// Version is the result of TenantsRealised once the change is in effect; 0 leaves it unchanged.
	Version uint64
}

// tenants are the VNIDs of namespaces, as the flows of this node's pods have them.
//
// A namespace moves from one VNID to another in steps, because nodes do not observe the change at the same time, and its pods must reach
// each other throughout. First its pods admit the new VNID as well, then they send with it, and last they stop admitting the old one. Each
// step is one change of the flows of all its pods.
type tenants struct {
	network *Network
	step    time.Duration
	wake    chan struct{}

	mu    sync.RWMutex
	known map[string]*tenant
	// moving are the namespaces that have steps left.
	moving map[string]*tenant
	// told is closed when a namespace gets a VNID.
	told chan struct{}
	// latest is the version that is realised once nothing moves any more; realised is the last one that was.
	latest, realised uint64
	// pending are namespaces whose pods' flows may not be in effect.
	pending map[string]struct{}
	// purge says that flows changed whose packets the datapath may have cached. Changes before the start of a mode with VNIDs need none: they
	// are in its first flows.
	purge bool
}

// tenant is the state of one namespace.
type tenant struct {
	// vnid is the namespace's VNID in the cluster; sends is the VNID in its pods' packets.
	vnid, sends uint32
	// admits are further VNIDs whose packets its pods admit, while it moves.
	admits []uint32
	// due is the time of the next step; zero: the namespace does not move.
	due time.Time
}

func newTenants(n *Network, step time.Duration) *tenants {
	return &tenants{
		network: n, step: step, wake: make(chan struct{}, 1), known: map[string]*tenant{}, moving: map[string]*tenant{},
		told: make(chan struct{}), pending: map[string]struct{}{},
	}
}

// UpdateTenants programs a change of VNIDs. Before the first Update in a mode with VNIDs it only stores the change: all VNIDs must be
// stored before that Update, because pods without one are closed. After an error it retries what could not be programmed.
func (n *Network) UpdateTenants(ctx context.Context, change TenantChange) error {
	n.updating.Lock()
	defer n.updating.Unlock()
	was := n.settings.Load()
	carried := n.started && was.hasVNIDs()
	n.tenants.take(&change, carried, time.Now())
	if !carried {
		return nil
	}
	return n.retenant(ctx, was)
}

// isolates reports whether VNIDs isolate pods.
func (s *settings) isolates() bool { return s.pipeline.Mode == pipeline.ModeMultitenant }

// hasVNIDs reports whether packets carry their sender's VNID. Then pods of a namespace without one are closed.
func (s *settings) hasVNIDs() bool { return s.isolates() || s.policies() }

// retenant programs the pods of all pending namespaces in one change. The caller holds updating.
func (n *Network) retenant(ctx context.Context, s *settings) error {
	again := *s // a copy, so that ADDs under way compile again
	n.settings.Store(&again)
	names := n.tenants.due()
	n.opening.Lock()
	flows, moved := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}, []attach.Record{}
	for key, rec := range n.live {
		if _, affected := names[rec.PodNamespace]; affected {
			flows[owner(key)] = n.podFlows(&again, &rec)
			moved = append(moved, rec)
		}
	}
	lists, _ := n.multicast.Place(again.multicastView(), moved...)
	maps.Copy(flows, lists)
	n.engines.Flows.Set(flows)
	n.opening.Unlock()
	if err := settled(ctx, n.engines.Flows, maps.Keys(flows)); err != nil {
		n.tenants.wakeUp()
		return fmt.Errorf("projects: %w", err)
	}
	n.purges.Due(n.tenants.settle(names))
	return n.purges.Flush(ctx)
}

// take stores a change. A namespace that has a VNID already begins a move, if packets carry VNIDs (carried).
func (t *tenants) take(change *TenantChange, carried bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range change.Gone {
		if t.known[name] != nil {
			delete(t.known, name)
			delete(t.moving, name)
			t.pending[name] = struct{}{}
		}
	}
	for name, vnid := range change.VNIDs {
		have := t.known[name]
		switch {
		case have == nil || !carried:
			t.known[name] = &tenant{vnid: vnid, sends: vnid}
			delete(t.moving, name)
			close(t.told)
			t.told = make(chan struct{})
		case have.vnid == vnid:
			continue
		default:
			have.move(vnid, now.Add(t.step))
			t.moving[name] = have
		}
		t.pending[name] = struct{}{}
	}
	t.purge = t.purge || carried && len(t.pending) > 0
	t.latest = max(t.latest, change.Version)
	t.wakeUp()
}

// move begins a move, also during another one: VNIDs that are admitted stay admitted until the end.
func (p *tenant) move(to uint32, due time.Time) {
	p.admits = append(p.admits, p.vnid, to)
	p.vnid, p.due = to, due
}

// advance takes the next step.
func (p *tenant) advance(due time.Time) {
	if p.sends != p.vnid {
		p.admits = append(p.admits, p.sends)
		p.sends, p.due = p.vnid, due
		return
	}
	p.admits, p.due = nil, time.Time{}
}

// advance takes the steps that are due, and reports whether anything is pending. next is when the next step is due, zero if there is none.
func (t *tenants) advance(now time.Time) (something bool, next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, p := range t.moving {
		if !p.due.After(now) {
			p.advance(now.Add(t.step))
			t.pending[name], t.purge = struct{}{}, true
		}
		if p.due.IsZero() {
			delete(t.moving, name)
		} else if next.IsZero() || p.due.Before(next) {
			next = p.due
		}
	}
	return len(t.pending) > 0, next
}

// due returns the namespaces whose pods' flows may not be in effect.
func (t *tenants) due() map[string]struct{} {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return maps.Clone(t.pending)
}

// settle notes what is programmed, and reports whether the datapath has to be purged for it.
func (t *tenants) settle(names map[string]struct{}) (purge bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range names {
		delete(t.pending, name)
	}
	t.realise()
	purge, t.purge = t.purge, false
	return purge
}

// realise reports the latest version if nothing is pending or moving. The caller holds mu.
func (t *tenants) realise() {
	if t.realised == t.latest || len(t.pending)+len(t.moving) > 0 {
		return
	}
	t.realised = t.latest
	if t.network.opts.TenantsRealised != nil {
		t.network.opts.TenantsRealised()
	}
}

// TenantsRealised returns the version of the last change of VNIDs that is completely in effect; 0 in a mode without VNIDs.
func (n *Network) TenantsRealised() uint64 {
	s := n.settings.Load()
	if s == nil || !s.hasVNIDs() {
		return 0
	}
	n.tenants.mu.RLock()
	defer n.tenants.mu.RUnlock()
	return n.tenants.realised
}

// TenantsPending reports whether changes given to UpdateTenants are not completely in effect: pods' flows may be outdated, or a namespace
// moves.
func (n *Network) TenantsPending() bool {
	n.tenants.mu.RLock()
	defer n.tenants.mu.RUnlock()
	return len(n.tenants.pending)+len(n.tenants.moving) > 0
}

func (t *tenants) wakeUp() {
	select {
	case t.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// run takes the steps of moves until ctx ends. It begins when the engines run.
func (t *tenants) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-t.network.running:
	}
	delay := firstRetry
	for {
		next, err := t.tend(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end of ctx is why, and is no failure
		case err != nil:
			t.network.opts.Log.Warn("programming the VNIDs of projects, trying again", "error", err)
			next, delay = time.Now().Add(delay), min(2*delay, lastRetry)
		default:
			delay = firstRetry
		}
		var due <-chan time.Time
		var timer *time.Timer
		if !next.IsZero() {
			timer = time.NewTimer(time.Until(next))
			due = timer.C
		}
		wake := t.wake
		if err != nil {
			wake = nil // the failure has just set it
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-due:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// tend programs what is due, and returns when more will be.
func (t *tenants) tend(ctx context.Context) (next time.Time, err error) {
	n := t.network
	n.updating.Lock()
	defer n.updating.Unlock()
	something, next := t.advance(time.Now())
	s := n.settings.Load()
	switch {
	case !s.hasVNIDs():
		t.settle(t.due())
		return next, nil
	case !something:
		return next, nil
	}
	return next, n.retenant(ctx, s)
}

// of returns the VNIDs with which a namespace's pods are reached, and the one with which they send.
func (t *tenants) of(namespace string) (reached []uint32, sends uint32, has bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	p := t.known[namespace]
	if p == nil {
		return nil, 0, false
	}
	return append([]uint32{p.sends, p.vnid}, p.admits...), p.sends, true
}

// pod returns an attachment as the pipeline needs it; false if its namespace has no VNID: its port stays closed.
func (s *settings) pod(rec *attach.Record) (pipeline.Pod, bool) {
	p := pod(rec)
	p.Firewall = s.firewalls.Number(&s.pipeline, rec.PodNamespace)
	p.Egress = s.egress.groups[rec.PodNamespace]
	if !s.hasVNIDs() {
		return p, true
	}
	p.Multicast = s.multicast != nil && s.multicast.Sends(s.multicastView(), rec)
	s.tenants.mu.RLock()
	defer s.tenants.mu.RUnlock()
	has := s.tenants.known[rec.PodNamespace]
	if has == nil {
		return p, false
	}
	p.VNID, p.Admits = has.sends, slices.Clone(has.admits)
	return p, true
}

// awaitVNID waits until a pod's namespace has a VNID. Without one its port would stay closed.
func (n *Network) awaitVNID(ctx context.Context, s *settings, namespace string) error {
	if !s.hasVNIDs() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, vnidPatience)
	defer cancel()
	for {
		n.tenants.mu.RLock()
		_, has := n.tenants.known[namespace]
		told := n.tenants.told
		n.tenants.mu.RUnlock()
		if has {
			return nil
		}
		select {
		case <-told:
		case <-ctx.Done():
			return cni.Errorf(cni.CodeTryAgainLater,
				"namespace %q has no VNID yet: the controller allocates one, in the NetNamespace of that name: try again later", namespace)
		}
	}
}

// WithoutVNID returns the namespaces of attached pods that have no VNID, sorted. In a mode with VNIDs their pods are closed.
func (n *Network) WithoutVNID() []string {
	n.tenants.mu.RLock()
	defer n.tenants.mu.RUnlock()
	var names []string
	for _, rec := range n.store.List() {
		if rec.Network == NetworkName && rec.State == attach.Attached && rec.BootID == n.opts.BootID && n.tenants.known[rec.PodNamespace] == nil {
			names = append(names, rec.PodNamespace)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// HasVNIDs reports whether packets carry VNIDs now.
func (n *Network) HasVNIDs() bool {
	s := n.settings.Load()
	return s != nil && s.hasVNIDs()
}
