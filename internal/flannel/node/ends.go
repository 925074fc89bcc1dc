package node

import (
	"context"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link/notify"
	"weft.dev/weft/internal/link/podlink"
)

// ends restores the host veths of attached pods when other programs change them. They are not in a loop: ADD configures them.
type ends struct {
	wake chan struct{}

	// mu guards what follows.
	mu sync.Mutex
	// names are the host veths to compare; all stands for every one.
	names map[string]bool
	all   bool
	// mtu is that of new pods.
	mtu int
}

// endRetry is the delay before a host veth is compared again that could not be restored.
const endRetry = time.Second

func newEnds() *ends { return &ends{wake: make(chan struct{}, 1), names: map[string]bool{}} }

// changed handles an event of a device. It does not block.
func (e *ends) changed(drift notify.Drift) {
	if !drift.All && drift.End == nil {
		return
	}
	e.mu.Lock()
	due := drift.All
	if drift.All {
		e.all = true
	} else if *drift.End != hostEnd(e.mtu) { // most events are those of ADD
		e.names[drift.Device], due = true, true
	}
	e.mu.Unlock()
	if !due {
		return
	}
	select {
	case e.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// hostEnd is the desired host veth of a pod.
func hostEnd(mtu int) podlink.HostEnd { return podlink.HostEnd{MTU: mtu, Group: hostGroup, Up: true} }

// serve notes the MTU of new pods.
func (e *ends) serve(mtu int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mtu = mtu
}

// take returns which host veths have to be compared.
func (e *ends) take() (names map[string]bool, all bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	names, all = e.names, e.all
	e.names, e.all = map[string]bool{}, false
	return names, all
}

// watchEnds restores host veths until ctx ends.
func (n *Network) watchEnds(ctx context.Context) error {
	stop := n.opts.Node.WatchLinks(n.ends.changed)
	defer stop()
	n.ends.changed(notify.Drift{All: true})
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-n.ends.wake:
		case <-retry:
		}
		retry = nil
		names, all := n.ends.take()
		for _, rec := range n.opts.Records.Attached() {
			if (all || names[rec.HostInterface]) && !n.restoreEnd(ctx, &rec) {
				n.ends.again(rec.HostInterface)
				retry = time.After(endRetry)
			}
		}
	}
}

// again notes a host veth for the next comparison.
func (e *ends) again(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.names[name] = true
}

// restoreEnd restores a host veth, unless a request for its attachment is in progress, and reports whether it has been compared.
func (n *Network) restoreEnd(ctx context.Context, rec *attach.Record) bool {
	unlock, free := n.opts.Records.TryLock(rec.Key())
	if !free {
		return false
	}
	defer unlock()
	err := n.opts.Node.Pods.Restore(ctx, rec.HostInterface, hostEnd(rec.MTU))
	if err != nil && ctx.Err() == nil {
		n.opts.Log.Warn("restoring a pod's link failed, trying again", "link", rec.HostInterface, "error", err)
	}
	return err == nil
}
