package overlay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Del detaches a pod's interface: it closes the port and answers; the reaper takes away the rest, in batches. It
// succeeds when there is nothing. It implements cni.Handler.
func (n *Network) Del(ctx context.Context, req *cni.Request) error {
	return n.detach(ctx, attach.Key{ContainerID: req.ContainerID, IfName: req.IfName})
}

func (n *Network) detach(ctx context.Context, key attach.Key) error {
	unlock, err := n.locks.Lock(ctx, key)
	if err != nil {
		return cni.Errorf(cni.CodeTryAgainLater, "attachment %s: another request for it is under way: %w", key, err)
	}
	defer unlock()
	rec, err := n.store.Get(key)
	if errors.Is(err, attach.ErrNotFound) {
		return nil
	}
	if err != nil {
		return cni.Errorf(cni.CodeIO, "%w", err)
	}
	if rec.State != attach.Closing {
		rec.State = attach.Closing
		if err := n.store.Put(ctx, rec); err != nil {
			return cni.Errorf(cni.CodeIO, "%w", err)
		}
	}
	// Before the engines run there is nothing to close that they would not leave out when they start.
	if n.settings.Load() != nil {
		o := owner(key)
		if err := n.engines.Flows.Apply(ctx, map[reconcile.Owner]map[openflow.Key]openflow.Entry{o: nil}); err != nil {
			// The fragment is withdrawn for good: the port closes as soon as the switch can be reached. Its address
			// stays taken until then.
			n.opts.Log.Warn("closing a port, going on in the background", "attachment", key.String(), "error", err)
		}
	}
	n.reaper.add(key)
	return nil
}

// GC detaches what the runtime does not know any more. It implements cni.Handler.
func (n *Network) GC(ctx context.Context, req *cni.Request) error {
	valid := map[attach.Key]bool{}
	for _, a := range req.NetConf.ValidAttachments {
		valid[attach.Key{ContainerID: a.ContainerID, IfName: a.IfName}] = true
	}
	var errs []error
	for _, rec := range n.store.List() {
		if rec.Network == NetworkName && !valid[rec.Key()] {
			errs = append(errs, n.detach(ctx, rec.Key()))
		}
	}
	return errors.Join(errs...)
}

// remove takes away everything of the attachments: flows first, then ports, then links, and last the records, which
// free the addresses. The caller holds their locks. It may be repeated; what is gone is no error.
func (n *Network) remove(ctx context.Context, keys []attach.Key) error {
	flows := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	var links []string
	for _, key := range keys {
		flows[owner(key)], rows[owner(key)] = nil, nil
		if rec, err := n.store.Get(key); err == nil && rec.HostInterface != "" && rec.BootID == n.opts.BootID {
			links = append(links, rec.HostInterface)
		}
	}
	if err := n.engines.Flows.Apply(ctx, flows); err != nil {
		return fmt.Errorf("closing ports: %w", err)
	}
	if err := n.engines.Rows.Apply(ctx, rows); err != nil {
		return fmt.Errorf("removing ports: %w", err)
	}
	if err := n.engines.Pods.Delete(ctx, links...); err != nil {
		return fmt.Errorf("removing links: %w", err)
	}
	for _, key := range keys {
		if err := n.store.Delete(ctx, key); err != nil && !errors.Is(err, attach.ErrNotFound) {
			return err
		}
	}
	return nil
}

// Delays between the reaper's tries.
const (
	firstReapRetry = 100 * time.Millisecond
	lastReapRetry  = 15 * time.Second
)

// reaper removes attachments in the background: all that wait together, since links and ports are cheaper by the
// dozen.
type reaper struct {
	network *Network
	wake    chan struct{}

	mu   sync.Mutex
	keys map[attach.Key]struct{}
}

func newReaper(n *Network) *reaper {
	return &reaper{network: n, wake: make(chan struct{}, 1), keys: map[attach.Key]struct{}{}}
}

// add hands an attachment over. It does not wait.
func (r *reaper) add(key attach.Key) {
	r.mu.Lock()
	r.keys[key] = struct{}{}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take returns all that wait.
func (r *reaper) take() []attach.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := make([]attach.Key, 0, len(r.keys))
	for key := range r.keys {
		keys = append(keys, key)
	}
	r.keys = map[attach.Key]struct{}{}
	return keys
}

func (r *reaper) run(ctx context.Context) error {
	delay := firstReapRetry
	for {
		var retry <-chan time.Time
		if failed := r.reap(ctx, r.take()); len(failed) > 0 {
			timer := time.NewTimer(delay)
			defer timer.Stop()
			retry, delay = timer.C, min(2*delay, lastReapRetry)
			r.putBack(failed)
		} else {
			delay = firstReapRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-retry:
		}
	}
}

func (r *reaper) putBack(keys []attach.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range keys {
		r.keys[key] = struct{}{}
	}
}

// reap removes the attachments and returns those that are left.
func (r *reaper) reap(ctx context.Context, keys []attach.Key) (left []attach.Key) {
	n := r.network
	var held []attach.Key
	for _, key := range keys {
		unlock, err := n.locks.Lock(ctx, key)
		if err != nil {
			return keys
		}
		defer unlock()
		// An ADD of the same attachment may have been faster, and may have made a new one.
		if rec, err := n.store.Get(key); err == nil && (rec.State == attach.Closing || rec.State == attach.Planned || rec.BootID != n.opts.BootID) {
			held = append(held, key)
		}
	}
	if len(held) == 0 {
		return nil
	}
	if err := n.remove(ctx, held); err == nil {
		return nil
	}
	// One that cannot be removed does not keep the others.
	for _, key := range held {
		if err := n.remove(ctx, []attach.Key{key}); err != nil {
			left = append(left, key)
			if ctx.Err() == nil {
				n.opts.Log.Warn("removing a detached interface, trying again", "attachment", key.String(), "error", err)
			}
		}
	}
	return left
}
