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

// reaper removes attachments in the background: all of a network that wait together, since links and ports are cheaper by the dozen. Each
// network has a loop of its own: one that waits for its engines holds up no other.
type reaper struct {
	handler *Handler

	mu sync.Mutex
	// waiting are the attachments to be removed, with what is known of those that have no record.
	waiting map[attach.Key]attach.Record
}

func newReaper(h *Handler) *reaper {
	return &reaper{handler: h, waiting: map[attach.Key]attach.Record{}}
}

// add hands an attachment over: it is removed, whatever its record says, unless forget comes first. It does not wait, and may be called
// with the attachment's lock held; wakeUp then follows when the lock is free.
func (r *reaper) add(key attach.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, waits := r.waiting[key]; !waits {
		r.waiting[key] = attach.Record{}
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

// stray returns what addStray was told of an attachment.
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

// wakeUp makes every network's loop look at what waits.
func (r *reaper) wakeUp() {
	for _, s := range r.handler.all() {
		select {
		case s.wake <- struct{}{}:
		default: // a wake-up is already waiting
		}
	}
}

// run removes what waits of one network, until ctx ends or the network is left. It begins when the network has handed over.
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

// sleep waits for work, or, if a retry is due, at most for the delay; it reports whether that is over. The delay does not grow with the
// work that comes meanwhile.
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

// reap removes what waits of a network and is not in use by a request, and reports whether something is left to be tried again.
func (r *reaper) reap(ctx context.Context, s *served) (left bool) {
	h := r.handler
	now, cancel := context.WithCancel(ctx)
	cancel() // a lock that is taken is not waited for: other attachments' locks would be held as long
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

// target returns what is removed.
func (r *reaper) target(key attach.Key) (attach.Record, error) {
	rec, err := r.handler.store.Get(key)
	if errors.Is(err, attach.ErrNotFound) {
		if stray, waits := r.stray(key); waits {
			return stray, nil
		}
	}
	return rec, err
}

// remove removes attachments of a network. One that cannot be removed does not keep the others.
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

// report logs why attachments could not be removed: once for all that have the same reason.
func (r *reaper) report(ctx context.Context, keys []attach.Key, err error) {
	if ctx.Err() == nil {
		r.handler.opts.Log.Warn("removing a detached interface failed, trying again", "attachment", keys[0].String(), "attachments", len(keys), "error", err)
	}
}
