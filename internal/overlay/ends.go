package overlay

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
)

// HostEnds is pods' host veths. *link.Pods implements it for the kernel, *link.FakePods in memory.
type HostEnds interface {
	// HostEnds returns the existing host veths, by name.
	HostEnds(ctx context.Context) (map[string]link.HostEnd, error)
	// Restore gives a host veth the desired state, if it exists.
	Restore(ctx context.Context, name string, want link.HostEnd) error
}

// ends restores host veths that another program changed. They are not in a loop: an ADD configures them, and only another program changes
// them later. So the kernel is read only after an event.
type ends struct {
	network *Network
	wake    chan struct{}

	// seen is the last reported state of the host veths of attachments that are being created. The network's opening guards it.
	seen map[attach.Key]link.HostEnd

	mu sync.Mutex
	// unverified says that host veths have to be checked.
	unverified bool
}

func newEnds(n *Network) *ends {
	return &ends{network: n, wake: make(chan struct{}, 1), seen: map[attach.Key]link.HostEnd{}, unverified: true}
}

// wanted is a desired host veth. key is its attachment, empty for a pre-plugged port.
type wanted struct {
	key attach.Key
	end link.HostEnd
}

// CheckHostEnds starts a check of all host veths, which restores what another program changed. It does not wait.
func (n *Network) CheckHostEnds() {
	n.ends.mu.Lock()
	n.ends.unverified = true
	n.ends.mu.Unlock()
	select {
	case n.ends.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// HostEndChanged handles an event with the new state of a host veth. One that is being created is compared once it is complete. It does not
// wait.
func (n *Network) HostEndChanged(name string, now link.HostEnd) {
	s := n.settings.Load()
	if s == nil {
		return // all are checked once the engines run
	}
	if n.preplugged.changed(name, now) || n.podEndChanged(s, name, now) {
		n.CheckHostEnds()
	}
}

// podEndChanged notes the state of the host veth of a pod with a port of its own, and reports whether it has to be restored.
func (n *Network) podEndChanged(s *settings, name string, now link.HostEnd) bool {
	n.opening.Lock()
	defer n.opening.Unlock()
	for key, rec := range n.live {
		if rec.HostInterface != name || n.preplugged.has(rec.OFPort) {
			continue
		}
		if rec.State == attach.Attached {
			return now != podEnd(s, &rec)
		}
		n.ends.seen[key] = now
	}
	return false
}

// podEnd returns the desired host veth of a pod with a port of its own.
func podEnd(s *settings, rec *attach.Record) link.HostEnd {
	return link.HostEnd{MTU: rec.MTU, Group: s.attachments.HostGroup, Up: true}
}

// endMade compares the host veth of a completed attachment with its last reported state. The caller holds opening.
func (n *Network) endMade(rec *attach.Record) {
	seen, changed := n.ends.seen[rec.Key()]
	delete(n.ends.seen, rec.Key())
	if changed && seen != podEnd(n.settings.Load(), rec) {
		n.CheckHostEnds()
	}
}

// wantedEnds returns the desired host veths, by name, without those that are being created.
func (n *Network) wantedEnds(s *settings) map[string]wanted {
	all := map[string]wanted{}
	n.opening.Lock()
	defer n.opening.Unlock()
	for name, end := range n.preplugged.ends() {
		all[name] = wanted{end: end}
	}
	for key, rec := range n.live {
		if rec.State == attach.Attached && !n.preplugged.has(rec.OFPort) {
			all[rec.HostInterface] = wanted{key: key, end: podEnd(s, &rec)}
		}
	}
	return all
}

// run restores host veths until ctx ends. It begins with a check when the engines run.
func (e *ends) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-e.network.running:
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
func (e *ends) check(ctx context.Context) (left bool) {
	n := e.network
	e.mu.Lock()
	unverified := e.unverified
	e.unverified = false
	e.mu.Unlock()
	if !unverified {
		return false
	}
	have, err := n.engines.HostEnds.HostEnds(ctx)
	if err != nil {
		n.opts.Log.Warn("reading the pods' links failed, trying again", "error", err)
		left = true
	}
	if err == nil {
		n.preplugged.missing(have)
	}
	want := n.wantedEnds(n.settings.Load())
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
func (e *ends) restore(ctx context.Context, name string, want wanted, have link.HostEnd) (left bool) {
	n := e.network
	if want.key != (attach.Key{}) {
		unlock, free := n.opts.Records.TryLock(want.key)
		if !free {
			return true
		}
		defer unlock()
		if !n.isLive(want.key) {
			return false
		}
	}
	if err := n.engines.HostEnds.Restore(ctx, name, want.end); err != nil {
		if ctx.Err() == nil {
			n.opts.Log.Warn("restoring a pod's link failed, trying again", "link", name, "error", err)
		}
		return true
	}
	n.opts.Log.Warn("restored what another program changed", "link", name, "was", have.String(), "is", want.end.String())
	return false
}

// isLive reports whether an attachment's port is open or being opened.
func (n *Network) isLive(key attach.Key) bool {
	n.opening.Lock()
	defer n.opening.Unlock()
	_, ok := n.live[key]
	return ok
}
