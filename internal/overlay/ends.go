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

// HostEnds is the part of the pods' links that stays on the host. *link.Pods has it in the kernel, *link.FakePods in memory.
type HostEnds interface {
	// HostEnds returns those that exist, by name.
	HostEnds(ctx context.Context) (map[string]link.HostEnd, error)
	// Restore makes one again what it is to be, if it is there.
	Restore(ctx context.Context, name string, want link.HostEnd) error
}

// ends puts back what others change of the pods' host ends. They are in no loop of their own: an ADD makes them right, and
// only somebody else makes them otherwise, so that nothing is asked of the kernel until that is told.
type ends struct {
	network *Network
	wake    chan struct{}

	// seen is what the host ends of attachments that are being made were like last. The network's opening guards it.
	seen map[attach.Key]link.HostEnd

	mu sync.Mutex
	// doubtful tells that they are to be looked at.
	doubtful bool
}

func newEnds(n *Network) *ends {
	return &ends{network: n, wake: make(chan struct{}, 1), seen: map[attach.Key]link.HostEnd{}, doubtful: true}
}

// wanted is a host end as it is to be; key is that of its attachment, empty where it stands without one.
type wanted struct {
	key attach.Key
	end link.HostEnd
}

// CheckHostEnds has the host ends of all pods looked at, and what others changed of them put back. It does not wait.
func (n *Network) CheckHostEnds() {
	n.ends.mu.Lock()
	n.ends.doubtful = true
	n.ends.mu.Unlock()
	select {
	case n.ends.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// HostEndChanged reports what a host end is like now. One that is being made is compared once it is made. It does not wait.
func (n *Network) HostEndChanged(name string, now link.HostEnd) {
	s := n.settings.Load()
	if s == nil {
		return // all are looked at once the engines run
	}
	if n.standing.changed(name, now) || n.podEndChanged(s, name, now) {
		n.CheckHostEnds()
	}
}

// podEndChanged notes what the host end of a pod with a port of its own is like now, and reports whether it has to be restored.
func (n *Network) podEndChanged(s *settings, name string, now link.HostEnd) bool {
	n.opening.Lock()
	defer n.opening.Unlock()
	for key, rec := range n.live {
		if rec.HostInterface != name || n.standing.has(rec.OFPort) {
			continue
		}
		if rec.State == attach.Attached {
			return now != podEnd(s, &rec)
		}
		n.ends.seen[key] = now
	}
	return false
}

// podEnd returns what the host end of a pod with a port of its own is to be.
func podEnd(s *settings, rec *attach.Record) link.HostEnd {
	return link.HostEnd{MTU: rec.MTU, Group: s.attachments.HostGroup, Up: true}
}

// endMade compares the host end of an attachment that is made now with what it was like last. The caller holds opening.
func (n *Network) endMade(rec *attach.Record) {
	seen, changed := n.ends.seen[rec.Key()]
	delete(n.ends.seen, rec.Key())
	if changed && seen != podEnd(n.settings.Load(), rec) {
		n.CheckHostEnds()
	}
}

// wantedEnds returns what the host ends are to be, by name. Those that are being made are not among them.
func (n *Network) wantedEnds(s *settings) map[string]wanted {
	all := map[string]wanted{}
	n.opening.Lock()
	defer n.opening.Unlock()
	for name, end := range n.standing.ends() {
		all[name] = wanted{end: end}
	}
	for key, rec := range n.live {
		if rec.State == attach.Attached && !n.standing.has(rec.OFPort) {
			all[rec.HostInterface] = wanted{key: key, end: podEnd(s, &rec)}
		}
	}
	return all
}

// run puts back until ctx ends. It begins when the engines run, with a look at what happened before.
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

// check looks at the host ends if they are doubtful, puts back what differs, and reports whether something is left.
func (e *ends) check(ctx context.Context) (left bool) {
	n := e.network
	e.mu.Lock()
	doubtful := e.doubtful
	e.doubtful = false
	e.mu.Unlock()
	if !doubtful {
		return false
	}
	have, err := n.engines.HostEnds.HostEnds(ctx)
	if err != nil {
		n.opts.Log.Warn("reading the pods' links failed, trying again", "error", err)
		left = true
	}
	if err == nil {
		n.standing.missing(have)
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
		e.doubtful = true
		e.mu.Unlock()
	}
	return left && ctx.Err() == nil
}

// restore puts one host end back, unless a request for its attachment is under way, and reports whether it is to be tried
// again.
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

// isLive reports whether an attachment's port is open, or being opened.
func (n *Network) isLive(key attach.Key) bool {
	n.opening.Lock()
	defer n.opening.Unlock()
	_, ok := n.live[key]
	return ok
}
