// Package projects keeps the VNIDs of namespaces as the flows of this node's pods have them, and moves namespaces between VNIDs. It keeps
// its own state under its own lock, which it holds across no I/O.
//
// A namespace moves from one VNID to another in steps, because nodes do not observe the change at the same time, and its pods must reach
// each other throughout. First its pods admit the new VNID as well, then they send with it, and last they stop admitting the old one. Each
// step is one change of the flows of all its pods.
package projects

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/steps"
)

const (
	// DefaultStep bounds how far apart in time nodes may observe a change of VNIDs. Watches deliver it within milliseconds. A node that
	// observes it later than this loses packets of the project, but lets through none that it should not.
	DefaultStep = 2 * time.Second
	// patience is how long an ADD waits for its namespace's VNID: a pod is often created together with its namespace, and the VNID is
	// allocated within milliseconds. After that the runtime repeats the ADD.
	patience = 5 * time.Second
)

// Delays between retries.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Change is a change of namespaces' VNIDs.
type Change struct {
	// VNIDs are the VNIDs of namespaces that are new or have another one.
	VNIDs map[string]uint32
	// Gone are namespaces without a VNID from now on: their pods are closed.
	Gone []string
	// Version is the result of Realised once the change is in effect; 0 leaves it unchanged.
	Version uint64
}

// Options of Projects.
type Options struct {
	// Running is closed when the network is programmed. Required.
	Running <-chan struct{}
	// Moved returns the flows, besides the pods' own, that depend on the VNIDs of these attachments. Required.
	Moved func(v feature.View, pods []attach.Record) feature.Flows
	// Realised is called when the result of Projects.Realised may have changed. It must not block. Nil: not called.
	Realised func()
	// Step returns how long each step of a move takes. Required.
	Step func() time.Duration
	// Now returns the time. Default time.Now.
	Now func() time.Time
	// Log gets failures that are retried. Required.
	Log *slog.Logger
}

// Projects are the VNIDs of namespaces, as the flows of this node's pods have them. Its methods may be called concurrently.
type Projects struct {
	network feature.Network
	opts    Options
	wake    chan struct{}
	runs    steps.Runs

	mu    sync.RWMutex
	known map[string]*project
	// moving are the namespaces that have steps left.
	moving map[string]*project
	// assigned is closed when a namespace gets a VNID.
	assigned chan struct{}
	// latest is the version that is realised once nothing moves any more; realised is the last one that was.
	latest, realised uint64
	// pending are namespaces whose pods' flows may not be in effect, with the number of the last change that concerned them; changes counts
	// these.
	pending map[string]uint64
	changes uint64
	// purge is the number of the last change of flows whose packets the datapath may have cached; 0: it needs no purge. Changes before the
	// start of a mode with VNIDs need none: they are in its first flows.
	purge uint64
	// unsettled are the owners of flows that were handed over and may not be in effect. Only the run in progress uses it.
	unsettled map[reconcile.Owner]struct{}
}

// project is the state of one namespace.
type project struct {
	// vnid is the namespace's VNID in the cluster; sends is the VNID in its pods' packets.
	vnid, sends uint32
	// admits are further VNIDs whose packets its pods admit, while it moves.
	admits []uint32
	// due is the time of the next step; zero: the namespace does not move.
	due time.Time
}

// New returns Projects of a network, without any namespace.
func New(network feature.Network, opts Options) *Projects {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &Projects{
		network: network, opts: opts, wake: make(chan struct{}, 1), known: map[string]*project{}, moving: map[string]*project{},
		assigned: make(chan struct{}), pending: map[string]uint64{}, unsettled: map[reconcile.Owner]struct{}{},
	}
}

// carried reports whether packets carry their sender's VNID. Then pods of a namespace without one are closed.
func carried(c *pipeline.Config) bool {
	return c.Mode == pipeline.ModeMultitenant || c.Mode == pipeline.ModeNetworkPolicy
}

// InUse reports whether packets carry VNIDs now.
func (t *Projects) InUse() bool {
	v, on := t.network.View()
	return on && carried(v.Config)
}

// Update programs a change of VNIDs. Before the first View in a mode with VNIDs it only stores the change: all VNIDs must be stored before
// that View, because pods without one are closed. After an error it retries what could not be programmed.
func (t *Projects) Update(ctx context.Context, change Change) error {
	if !t.store(&change) {
		return nil
	}
	return t.runs.Do(ctx, t.program)
}

// store stores a change, and reports whether packets carry VNIDs. No View is handed over meanwhile: one that brings a mode with VNIDs has the
// change, if it is only stored.
func (t *Projects) store(change *Change) (inUse bool) {
	defer t.network.Begin()()
	inUse = t.InUse()
	t.take(change, inUse)
	return inUse
}

// program programs the pods of all pending namespaces in one change. They are in effect once the datapath is purged as well.
func (t *Projects) program(ctx context.Context) error {
	names, change, purge := t.handOver()
	due := feature.Never
	if purge {
		due = feature.Now
	}
	err := t.network.Settled(ctx, maps.Keys(t.unsettled))
	if err == nil {
		err = t.network.Purge(ctx, due)
	}
	if err != nil {
		t.wakeUp()
		return fmt.Errorf("projects: %w", err)
	}
	clear(t.unsettled)
	t.settle(names, change)
	return nil
}

// handOver hands over the flows of the pods of all pending namespaces, without waiting. It returns the namespaces, the number of the last
// change, and whether the datapath needs a purge.
func (t *Projects) handOver() (names map[string]uint64, change uint64, purge bool) {
	defer t.network.Begin()()
	names, change, purge = t.due()
	for _, owner := range t.network.Change(func(v feature.View) (feature.Flows, []attach.Record) {
		var pods []attach.Record
		for _, rec := range v.Live {
			if _, affected := names[rec.PodNamespace]; affected {
				pods = append(pods, rec)
			}
		}
		return t.opts.Moved(v, pods), pods
	}) {
		t.unsettled[owner] = struct{}{}
	}
	return names, change, purge
}

// take stores a change. A namespace that has a VNID already begins a move, if packets carry VNIDs.
func (t *Projects) take(change *Change, inUse bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range change.Gone {
		if t.known[name] != nil {
			delete(t.known, name)
			delete(t.moving, name)
			t.note(name)
		}
	}
	for name, vnid := range change.VNIDs {
		have := t.known[name]
		switch {
		case have == nil || !inUse:
			t.known[name] = &project{vnid: vnid, sends: vnid}
			delete(t.moving, name)
			close(t.assigned)
			t.assigned = make(chan struct{})
		case have.vnid == vnid:
			continue
		default:
			have.move(vnid, t.opts.Now().Add(t.opts.Step()))
			t.moving[name] = have
		}
		t.note(name)
	}
	if inUse && len(t.pending) > 0 {
		t.purge = t.changes
	}
	t.latest = max(t.latest, change.Version)
	t.wakeUp()
}

// note notes that the flows of a namespace's pods may not be in effect. The caller holds mu.
func (t *Projects) note(name string) {
	t.changes++
	t.pending[name] = t.changes
}

// move begins a move, also during another one: VNIDs that are admitted stay admitted until the end.
func (p *project) move(to uint32, due time.Time) {
	p.admits = append(p.admits, p.vnid, to)
	p.vnid, p.due = to, due
}

// advance takes the next step.
func (p *project) advance(due time.Time) {
	if p.sends != p.vnid {
		p.admits = append(p.admits, p.sends)
		p.sends, p.due = p.vnid, due
		return
	}
	p.admits, p.due = nil, time.Time{}
}

// advance takes the steps that are due, and reports whether anything is pending. next is when the next step is due, zero if there is none.
func (t *Projects) advance() (something bool, next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.opts.Now()
	for name, p := range t.moving {
		if !p.due.After(now) {
			p.advance(now.Add(t.opts.Step()))
			t.note(name)
			t.purge = t.changes
		}
		if p.due.IsZero() {
			delete(t.moving, name)
		}
	}
	return len(t.pending) > 0, t.next()
}

// next returns when the next step is due, zero if nothing moves. The caller holds mu.
func (t *Projects) next() (next time.Time) {
	for _, p := range t.moving {
		if next.IsZero() || p.due.Before(next) {
			next = p.due
		}
	}
	return next
}

// due returns the namespaces whose pods' flows may not be in effect, the number of the last change, and whether the datapath needs a purge.
func (t *Projects) due() (names map[string]uint64, change uint64, purge bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return maps.Clone(t.pending), t.changes, t.purge > 0
}

// settle notes that namespaces' flows, and purges for changes up to this one, are in effect. Later changes stay pending.
func (t *Projects) settle(names map[string]uint64, change uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, last := range names {
		if t.pending[name] == last {
			delete(t.pending, name)
		}
	}
	if t.purge <= change {
		t.purge = 0
	}
	t.realise()
}

// realise reports the latest version if nothing is pending or moving. The caller holds mu.
func (t *Projects) realise() {
	if t.realised == t.latest || len(t.pending)+len(t.moving) > 0 {
		return
	}
	t.realised = t.latest
	if t.opts.Realised != nil {
		t.opts.Realised()
	}
}

// Realised returns the version of the last change of VNIDs that is completely in effect; 0 in a mode without VNIDs.
func (t *Projects) Realised() uint64 {
	if !t.InUse() {
		return 0
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.realised
}

// Pending reports whether changes are not completely in effect: pods' flows may be outdated, or a namespace moves.
func (t *Projects) Pending() bool {
	programming, next := t.Progress()
	return programming || !next.IsZero()
}

// Progress reports whether pods' flows may be outdated, and when the next step of a move is due; zero if nothing moves.
func (t *Projects) Progress() (programming bool, next time.Time) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.pending) > 0, t.next()
}

func (t *Projects) wakeUp() {
	select {
	case t.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// Run takes the steps of moves until ctx ends. It begins when the network is programmed.
func (t *Projects) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-t.opts.Running:
	}
	delay := firstRetry
	for {
		next, err := t.tend(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end of ctx is why, and is no failure
		case err != nil:
			t.opts.Log.Warn("programming the VNIDs of projects, trying again", "error", err)
			next, delay = t.opts.Now().Add(delay), min(2*delay, lastRetry)
		default:
			delay = firstRetry
		}
		var due <-chan time.Time
		var timer *time.Timer
		if !next.IsZero() {
			timer = time.NewTimer(next.Sub(t.opts.Now()))
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
func (t *Projects) tend(ctx context.Context) (next time.Time, err error) {
	something, next := t.step()
	if !something {
		return next, nil
	}
	return next, t.runs.Do(ctx, t.program)
}

// step takes the steps that are due, and reports whether anything is to be programmed. next is as of advance.
func (t *Projects) step() (something bool, next time.Time) {
	defer t.network.Begin()()
	something, next = t.advance()
	if !t.InUse() { // the View that brings a mode with VNIDs has all of them
		names, change, _ := t.due()
		t.settle(names, change)
		return false, next
	}
	return something, next
}

// Reached returns the VNIDs with which a namespace's pods are reached, and the one with which they send.
func (t *Projects) Reached(namespace string) (reached []uint32, sends uint32, has bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	p := t.known[namespace]
	if p == nil {
		return nil, 0, false
	}
	return append([]uint32{p.sends, p.vnid}, p.admits...), p.sends, true
}

// VNIDs returns the VNID with which a namespace's pods send, and the others whose packets they admit; false: the namespace has none.
func (t *Projects) VNIDs(namespace string) (sends uint32, admits []uint32, has bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	p := t.known[namespace]
	if p == nil {
		return 0, nil, false
	}
	return p.sends, slices.Clone(p.admits), true
}

// Await waits until a pod's namespace has a VNID. Without one its port would stay closed.
func (t *Projects) Await(ctx context.Context, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		t.mu.RLock()
		_, has := t.known[namespace]
		assigned := t.assigned
		t.mu.RUnlock()
		if has {
			return nil
		}
		select {
		case <-assigned:
		case <-ctx.Done():
			return cni.Errorf(cni.CodeTryAgainLater,
				"namespace %q has no VNID yet: the controller allocates one, in the NetNamespace of that name: try again later", namespace)
		}
	}
}
