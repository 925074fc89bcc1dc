package overlay

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
)

// unlinker deletes the links of pods that go while their ports are being closed: the kernel takes some 20 ms for one link, and
// hardly more for fifty. It is only the first to try. What it cannot delete, the reaper tells of.
type unlinker struct {
	network *Network
	wake    chan struct{}

	mu      sync.Mutex
	waiting []string
	// plugged are those upon standing ports, which stay.
	plugged []attach.Record
}

func newUnlinker(n *Network) *unlinker { return &unlinker{network: n, wake: make(chan struct{}, 1)} }

// add has the attachment's link deleted. It does not wait.
func (u *unlinker) add(rec *attach.Record) {
	if rec.HostInterface == "" || rec.BootID != u.network.opts.BootID || u.network.settings.Load() == nil {
		return
	}
	u.mu.Lock()
	if u.network.standing.has(rec.OFPort) {
		u.plugged = append(u.plugged, *rec)
	} else {
		u.waiting = append(u.waiting, rec.HostInterface)
	}
	u.mu.Unlock()
	select {
	case u.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// forget takes links back that have been deleted, whose names may be used again.
func (u *unlinker) forget(names []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting = slices.DeleteFunc(u.waiting, func(name string) bool { return slices.Contains(names, name) })
}

// forgetPlugged is forget for interfaces upon standing ports.
func (u *unlinker) forgetPlugged(keys []attach.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.plugged = slices.DeleteFunc(u.plugged, func(rec attach.Record) bool { return slices.Contains(keys, rec.Key()) })
}

// run deletes, all that wait together, until ctx ends.
func (u *unlinker) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-u.wake:
		}
		u.mu.Lock()
		names, plugged := u.waiting, u.plugged
		u.waiting, u.plugged = nil, nil
		u.mu.Unlock()
		u.unplug(ctx, plugged)
		if err := u.network.engines.Pods.Delete(ctx, names...); err != nil {
			u.network.opts.Log.Debug("deleting links ahead of their ports, going on in the background", "links", names, "error", err)
		}
	}
}

// unplug removes interfaces from standing ports. The runtime may take a pod's namespace down as soon as it has its answer.
func (u *unlinker) unplug(ctx context.Context, recs []attach.Record) {
	n := u.network
	var group errgroup.Group
	group.SetLimit(unplugAtOnce)
	for i := range recs {
		group.Go(func() error {
			if err := n.unplug(ctx, &recs[i]); err != nil {
				n.opts.Log.Debug("removing an interface ahead of its flows, going on in the background", "attachment", recs[i].Key().String(), "error", err)
			}
			return nil
		})
	}
	_ = group.Wait() // none returns an error
}
