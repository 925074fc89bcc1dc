package lifecycle

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/network"
)

// Delays between the reaper's tries.
const (
	firstReapRetry = 100 * time.Millisecond
	lastReapRetry  = 5 * time.Second
)

// reaper removes attachments in the background: all waiting ones of a network together, since links and ports are cheaper in batches.
// Each network has its own loop: a network that waits for its engines delays no other.
type reaper struct {
	handler *Handler

	mu sync.Mutex
	// waiting are the attachments to remove, with the data of those without a record.
	waiting map[attach.Key]attach.Record
}

func newReaper(h *Handler) *reaper {
	return &reaper{handler: h, waiting: map[attach.Key]attach.Record{}}
}

// add queues an attachment: it is removed, whatever its record says, unless forget is called first. It does not block, and may be called
// with the attachment's lock held; then wakeUp must follow when the lock is free.
func (r *reaper) add(key attach.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, waits := r.waiting[key]; !waits {
		r.waiting[key] = attach.Record{}
	}
}

// takeOver queues an attachment that a request could not remove, and marks its record.
func (r *reaper) takeOver(ctx context.Context, key attach.Key) {
	r.add(key)
	rec, err := r.handler.store.Get(key)
	if err == nil && rec.State != attach.Closing {
		markClosing(ctx, r.handler, rec)
	}
}

// addStray is add for an attachment without a record.
func (r *reaper) addStray(rec attach.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[rec.Key()] = rec
}

func (r *reaper) forget(key attach.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, key)
}

func (r *reaper) waits(key attach.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.waiting[key]
	return ok
}

// stray returns the record that addStray got for an attachment.
func (r *reaper) stray(key attach.Key) (attach.Record, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.waiting[key]
	return rec, ok && rec.ContainerID != ""
}

func (r *reaper) keys() []attach.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.waiting))
}

// wakeUp makes every network's loop check the waiting attachments.
func (r *reaper) wakeUp() {
	for _, s := range r.handler.board.all() {
		select {
		case s.wake <- struct{}{}:
		default: // a wake-up is already waiting
		}
	}
}

// run removes the waiting attachments of one network, until ctx ends or the network is left. It begins when handedOver is closed.
func (r *reaper) run(ctx context.Context, s *served) {
	select {
	case <-ctx.Done():
		return
	case <-s.left:
		return
	case <-s.handedOver:
	}
	delay := firstReapRetry
	for ctx.Err() == nil && !isClosed(s.left) {
		retry := r.reap(ctx, s)
		if !retry {
			delay = firstReapRetry
		}
		if sleep(ctx, s, retry, delay) {
			delay = min(2*delay, lastReapRetry)
		}
	}
}

// sleep waits for work, and if a retry is due, at most for the delay. It reports whether the delay is over. Work that comes meanwhile
// does not extend the delay.
func sleep(ctx context.Context, s *served, retry bool, delay time.Duration) (over bool) {
	var timeout <-chan time.Time
	if retry {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-ctx.Done():
	case <-s.left:
	case <-s.wake:
	case <-timeout:
		return true
	}
	return false
}

// reap removes the waiting attachments of a network that no request uses, and reports whether any must be retried.
func (r *reaper) reap(ctx context.Context, s *served) (left bool) {
	h := r.handler
	now, cancel := context.WithCancel(ctx)
	cancel() // do not wait for locks: the locks of other attachments would be held meanwhile
	var recs []attach.Record
	for _, key := range r.keys() {
		if rec, err := r.target(key); err == nil && network.KindOf(rec.Network) != s.name {
			continue
		}
		unlock, err := h.locks.Lock(now, key)
		if err != nil {
			continue // its request wakes the reaper
		}
		rec, err := r.target(key)
		switch {
		case !r.waits(key): // an ADD of the same attachment was faster
		case errors.Is(err, attach.ErrNotFound):
			h.forget(key)
		case err != nil:
			r.report(ctx, []attach.Key{key}, err)
			left = true
		case network.KindOf(rec.Network) == s.name:
			recs = append(recs, rec)
			defer unlock()
			continue
		}
		unlock()
	}
	if len(recs) == 0 {
		return left
	}
	return r.remove(ctx, s, recs) || left
}

// target returns the record to remove.
func (r *reaper) target(key attach.Key) (attach.Record, error) {
	rec, err := r.handler.store.Get(key)
	if errors.Is(err, attach.ErrNotFound) {
		if stray, waits := r.stray(key); waits {
			return stray, nil
		}
	}
	return rec, err
}

// remove removes attachments of a network. An error of one does not keep others from being removed.
func (r *reaper) remove(ctx context.Context, s *served, recs []attach.Record) (left bool) {
	h := r.handler
	failed := s.network.Remove(ctx, recs)
	reasons := map[string][]attach.Key{}
	errs := map[string]error{}
	for _, rec := range recs {
		key := rec.Key()
		err := failed[key]
		if err == nil {
			err = h.drop(ctx, s, rec)
		}
		if err != nil {
			reasons[err.Error()], errs[err.Error()] = append(reasons[err.Error()], key), err
		}
	}
	for reason, keys := range reasons {
		r.report(ctx, keys, errs[reason])
	}
	return len(reasons) > 0
}

// report logs why attachments could not be removed: once for all with the same reason.
func (r *reaper) report(ctx context.Context, keys []attach.Key, err error) {
	if ctx.Err() == nil {
		r.handler.opts.Log.Warn("removing a detached interface failed, trying again", "attachment", keys[0].String(), "attachments", len(keys), "error", err)
	}
}
