package ports

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
)

// Unlinker deletes the links of closing pods while their ports are being closed: the kernel takes some 20 ms for one link, and hardly more
// for fifty. It is only the first attempt: the reaper repeats the removal, and reports failures.
type Unlinker struct {
	engines    *Engines
	opts       *Options
	preplugged *Preplugged
	wake       chan struct{}

	// mu guards what follows. It is not held across I/O.
	mu      sync.Mutex
	waiting []string
	// plugged are interfaces on pre-plugged ports; the ports stay.
	plugged []plugged
}

// plugged is an interface on a pre-plugged port. began is closed once its removal has begun.
type plugged struct {
	rec   attach.Record
	began chan struct{}
}

func newUnlinker(engines *Engines, opts *Options, preplugged *Preplugged) *Unlinker {
	return &Unlinker{engines: engines, opts: opts, preplugged: preplugged, wake: make(chan struct{}, 1)}
}

// Add queues the attachment's link for deletion. It does not wait. began is closed once the pod's namespace may be deleted.
func (u *Unlinker) Add(rec *attach.Record) (began <-chan struct{}) {
	p := plugged{rec: *rec, began: make(chan struct{})}
	if rec.HostInterface == "" || rec.BootID != u.opts.BootID || !u.opts.Ready() {
		close(p.began)
		return p.began
	}
	u.mu.Lock()
	if u.preplugged.Has(rec.OFPort) {
		u.plugged = append(u.plugged, p)
	} else {
		u.waiting = append(u.waiting, rec.HostInterface)
		close(p.began)
	}
	u.mu.Unlock()
	u.signal()
	return p.began
}

// Forget dequeues links that are deleted already: their names may be used again.
func (u *Unlinker) Forget(names []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting = slices.DeleteFunc(u.waiting, func(name string) bool { return slices.Contains(names, name) })
}

// run deletes links until ctx ends: all queued links in one batch, and each interface on a pre-plugged port at once.
func (u *Unlinker) run(ctx context.Context) error {
	var group errgroup.Group
	deleting := make(chan struct{}, 1) // one batch of links at a time; the next one is larger
	for {
		select {
		case <-ctx.Done():
			u.end()
			return group.Wait()
		case <-u.wake:
		}
		for _, p := range u.takePlugged() {
			group.Go(func() error {
				u.unplug(ctx, p)
				return nil
			})
		}
		select {
		case deleting <- struct{}{}:
			group.Go(func() error {
				u.deleteLinks(ctx)
				<-deleting
				u.again()
				return nil
			})
		default: // deleteLinks continues until the queue is empty
		}
	}
}

// again starts a new batch for links that were queued after deleteLinks had found the queue empty.
func (u *Unlinker) again() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.waiting) > 0 {
		u.signal()
	}
}

func (u *Unlinker) signal() {
	select {
	case u.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// end releases callers that wait for removals that will not begin.
func (u *Unlinker) end() {
	for _, p := range u.takePlugged() {
		close(p.began)
	}
}

func (u *Unlinker) takePlugged() []plugged {
	u.mu.Lock()
	defer u.mu.Unlock()
	taken := u.plugged
	u.plugged = nil
	return taken
}

func (u *Unlinker) unplug(ctx context.Context, p plugged) {
	if err := u.preplugged.unplug(ctx, &p.rec, sync.OnceFunc(func() { close(p.began) })); err != nil {
		u.opts.Log.Debug("removing an interface ahead of its flows, going on in the background", "attachment", p.rec.Key().String(), "error", err)
	}
}

// deleteLinks deletes links until the queue is empty.
func (u *Unlinker) deleteLinks(ctx context.Context) {
	for ctx.Err() == nil {
		u.mu.Lock()
		names := u.waiting
		u.waiting = nil
		u.mu.Unlock()
		if len(names) == 0 {
			return
		}
		if err := u.engines.Pods.Delete(ctx, names...); err != nil {
			u.opts.Log.Debug("deleting links ahead of their ports, going on in the background", "links", names, "error", err)
		}
	}
}
