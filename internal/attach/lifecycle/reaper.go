package lifecycle

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/network"
)

// Delays between the reaper's tries.
const (
	firstReapRetry = 100 * time.Millisecond
	lastReapRetry  = 5 * time.Second
)

// reaper removes attachments in the background: all of a network that wait together, since links and ports are cheaper by the dozen.
type reaper struct {
	handler *Handler
	wake    chan struct{}

	mu sync.Mutex
	// waiting are the attachments to be removed, with what is known of those that have no record.
	waiting map[attach.Key]attach.Record
}

func newReaper(h *Handler) *reaper {
	return &reaper{handler: h, wake: make(chan struct{}, 1), waiting: map[attach.Key]attach.Record{}}
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

// wakeUp makes the reaper look at what waits.
func (r *reaper) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// run reaps until ctx ends.
func (r *reaper) run(ctx context.Context) error {
	delay := firstReapRetry
	for ctx.Err() == nil {
		left := r.reap(ctx)
		if !left {
			delay = firstReapRetry
		}
		if r.sleep(ctx, left, delay) {
			delay = min(2*delay, lastReapRetry)
		}
	}
	return nil
}

// sleep waits for work, or, if a retry is due, at most for the delay; it reports whether that is over. The delay does not grow with the
// work that comes meanwhile.
func (r *reaper) sleep(ctx context.Context, retry bool, delay time.Duration) (over bool) {
	var timeout <-chan time.Time
	if retry {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-ctx.Done():
	case <-r.wake:
	case <-timeout:
		return true
	}
	return false
}

// batch is what waits of one network, with the attachments' locks held.
type batch struct {
	served *served
	recs   []attach.Record
}

// reap removes what waits, can be removed and is not in use by a request, and reports whether something is left to be tried again.
func (r *reaper) reap(ctx context.Context) (left bool) {
	h := r.handler
	now, cancel := context.WithCancel(ctx)
	cancel() // a lock that is taken is not waited for: other attachments' locks would be held as long
	batches := map[string]*batch{}
	for _, key := range r.keys() {
		unlock, err := h.locks.Lock(now, key)
		if err != nil {
			continue // its request wakes the reaper
		}
		defer unlock()
		if !r.waits(key) { // an ADD of the same attachment was faster
			continue
		}
		rec, s, err := r.target(key)
		switch {
		case errors.Is(err, errLater):
		case errors.Is(err, attach.ErrNotFound):
			h.forget(key)
		case err != nil:
			r.report(ctx, key, err)
			left = true
		default:
			if batches[s.name] == nil {
				batches[s.name] = &batch{served: s}
			}
			batches[s.name].recs = append(batches[s.name].recs, rec)
		}
	}
	for _, b := range batches {
		left = r.remove(ctx, b) || left
	}
	return left
}

// errLater says that an attachment waits for its network, which wakes the reaper.
var errLater = errors.New("the network's first state is not complete")

// target returns what is removed, and the network that does it.
func (r *reaper) target(key attach.Key) (attach.Record, *served, error) {
	rec, err := r.handler.store.Get(key)
	if errors.Is(err, attach.ErrNotFound) {
		if stray, waits := r.stray(key); waits {
			rec, err = stray, nil
		}
	}
	if err != nil {
		return rec, nil, err
	}
	s, err := r.handler.of(network.KindOf(rec.Network), cni.CodeTryAgainLater)
	if err != nil || !isClosed(s.handedOver) {
		return rec, nil, errLater
	}
	return rec, s, nil
}

// remove removes a batch. One attachment that cannot be removed does not keep the others.
func (r *reaper) remove(ctx context.Context, b *batch) (left bool) {
	h := r.handler
	failed := b.served.network.Remove(ctx, b.recs)
	for _, rec := range b.recs {
		key := rec.Key()
		err := failed[key]
		if err == nil {
			err = h.drop(ctx, b.served, rec)
		}
		if err != nil {
			r.report(ctx, key, err)
			left = true
		}
	}
	return left
}

func (r *reaper) report(ctx context.Context, key attach.Key, err error) {
	if ctx.Err() == nil {
		r.handler.opts.Log.Warn("removing a detached interface failed, trying again", "attachment", key.String(), "error", err)
	}
}
