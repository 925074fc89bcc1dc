package ports

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/overlay/host"
)

// Delays between retries to restore host veths.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// HostEnds is pods' host veths. *podveth.Pods implements it for the kernel, *podlink.Fake in memory.
type HostEnds interface {
	// HostEnds returns the existing host veths, by name.
	HostEnds(ctx context.Context) (map[string]podlink.HostEnd, error)
	// Restore gives a host veth the desired state, if it exists.
	Restore(ctx context.Context, name string, want podlink.HostEnd) error
}

// Ends restores host veths, and traffic shaping, that another program changed. They are not in a loop: an ADD configures them, and only
// another program changes them later. So the kernel is read only after an event.
type Ends struct {
	engines *Engines
	opts    *Options
	pool    *pool
	wake    chan struct{}

	// mu guards what follows. It is not held across I/O.
	mu sync.Mutex
	// seen is the last reported state of the host veths of attachments that are being created.
	seen map[attach.Key]podlink.HostEnd
	// unverified says that host veths have to be checked.
	unverified bool
}

// wanted is a desired host veth. key is its attachment, empty for a pre-plugged port.
type wanted struct {
	key attach.Key
	end podlink.HostEnd
}

// Verify starts a check of all host veths. It does not wait.
func (e *Ends) Verify() {
	e.mu.Lock()
	e.unverified = true
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// Changed handles an event with the new state of a host veth. It does not wait.
func (e *Ends) Changed(name string, now podlink.HostEnd) {
	if e.pool.changed(name, now) || e.podEndChanged(name, now) {
		e.Verify()
	}
}

// podEndChanged notes the state of the host veth of a pod with a port of its own, and reports whether it has to be restored.
func (e *Ends) podEndChanged(name string, now podlink.HostEnd) (restore bool) {
	e.opts.Live.Each(func(rec *attach.Record) {
		switch {
		case rec.HostInterface != name || e.pool.Has(rec.OFPort):
		case rec.State == attach.Attached:
			restore = restore || now != podEnd(rec)
		default:
			e.mu.Lock()
			e.seen[rec.Key()] = now
			e.mu.Unlock()
		}
	})
	return restore
}

// podEnd returns the desired host veth of a pod with a port of its own.
func podEnd(rec *attach.Record) podlink.HostEnd {
	return podlink.HostEnd{MTU: rec.MTU, Group: host.PodGroup, Up: true}
}

// Made compares the host veth of a completed attachment with its last reported state. The caller holds the lock of Live, so that no
// event comes between.
func (e *Ends) Made(rec *attach.Record) {
	e.mu.Lock()
	seen, changed := e.seen[rec.Key()]
	delete(e.seen, rec.Key())
	e.mu.Unlock()
	if changed && seen != podEnd(rec) {
		e.Verify()
	}
}

// Closed forgets what was reported about an attachment that is not live any more. The caller holds the lock of Live.
func (e *Ends) Closed(key attach.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.seen, key)
}

// Pending reports whether host veths still have to be checked.
func (e *Ends) Pending() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.unverified
}

// wantedEnds returns the desired host veths, by name, without those that are being created.
func (e *Ends) wantedEnds() map[string]wanted {
	all := map[string]wanted{}
	for name, end := range e.pool.ends() {
		all[name] = wanted{end: end}
	}
	e.opts.Live.Each(func(rec *attach.Record) {
		if rec.State == attach.Attached && !e.pool.Has(rec.OFPort) {
			all[rec.HostInterface] = wanted{key: rec.Key(), end: podEnd(rec)}
		}
	})
	return all
}

// run restores host veths until ctx ends. It begins with a check when the engines run.
func (e *Ends) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-e.opts.Running:
	}
	delay := firstRetry
	for {
		var retry <-chan time.Time
		if e.check(ctx) {
			retry, delay = time.After(delay), min(2*delay, lastRetry)
		} else {
			delay = firstRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		case <-retry:
		}
	}
}

// check reads the host veths if they are unverified, restores those that differ, and reports whether to try again.
func (e *Ends) check(ctx context.Context) (left bool) {
	e.mu.Lock()
	unverified := e.unverified
	e.unverified = false
	e.mu.Unlock()
	if !unverified {
		return false
	}
	have, err := e.engines.HostEnds.HostEnds(ctx)
	if err != nil {
		e.opts.Log.Warn("reading the pods' links failed, trying again", "error", err)
		left = true
	}
	if err == nil {
		e.pool.missing(have)
	}
	want := e.wantedEnds()
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if w, ours := want[name]; ours && w.end != have[name] {
			left = e.restore(ctx, name, w, have[name]) || left
		}
	}
	left = e.reshape(ctx) || left
	if left {
		e.mu.Lock()
		e.unverified = true
		e.mu.Unlock()
	}
	return left && ctx.Err() == nil
}

// restore restores one host veth, unless a request for its attachment is under way, and reports whether to try again.
func (e *Ends) restore(ctx context.Context, name string, want wanted, have podlink.HostEnd) (left bool) {
	if want.key != (attach.Key{}) {
		unlock, free := e.opts.Records.TryLock(want.key)
		if !free {
			return true
		}
		defer unlock()
		if !e.opts.Live.IsLive(want.key) {
			return false
		}
	}
	if err := e.engines.HostEnds.Restore(ctx, name, want.end); err != nil {
		if ctx.Err() == nil {
			e.opts.Log.Warn("restoring a pod's link failed, trying again", "link", name, "error", err)
		}
		return true
	}
	e.opts.Log.Warn("restored what another program changed", "link", name, "was", have.String(), "is", want.end.String())
	return false
}
