package enforcer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/steps"
)

// RevocationOptions are options of Revocations.
type RevocationOptions struct {
	// Lock guards the Revocations: that of the Enforcer. Required.
	Lock sync.Locker
	// Settled waits until the engine has tried the fragments of owners, and returns why some are not in effect. Required.
	Settled func(ctx context.Context, owners []reconcile.Owner) error
	// Revoke ends what was allowed before the state in effect: cached verdicts, conntrack entries. Required.
	Revoke func(ctx context.Context) error
	// Made is called when all revocations that were due at once are made, and no fragment that was handed over before is refused. The caller
	// holds the lock. Nil: not called.
	Made func()
	// Apart says that changes do not wait for revocations: Run makes those that are due at once as soon as the change is in effect. The next
	// change then waits for none either.
	Apart bool
	// Caches says that the engine caches verdicts: then a Revoke follows every change soon.
	Caches bool
	// Rest returns how long a revocation that is not due at once may wait, so that several are made together. Required.
	Rest func() time.Duration
	// Log gets failures that are retried. Default: discarded.
	Log *slog.Logger
}

// Revocations end what is no longer allowed, once the change is in effect. If a permission was revoked, that happens at once. If a pod
// was deleted, or an engine with caches allows something new, it happens within Rest, for all changes until then together.
type Revocations struct {
	opts RevocationOptions
	// soon and now wake Run: to make a revocation after a rest, and at once.
	soon, now chan struct{}

	// due and later say that a revocation is due at once, or soon. handed are owners whose handed-over fragments may not be in effect, each with
	// the number of the change that handed them over last; changes counts these. Lock guards them.
	due, later bool
	handed     map[reconcile.Owner]uint64
	changes    uint64
	// underway is closed when the latest revocation that was due at once has ended; nil: none is being made. Lock guards it.
	underway chan struct{}
}

// NewRevocations returns Revocations. Run makes those that are not due at once, or apart.
func NewRevocations(opts RevocationOptions) *Revocations {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Revocations{opts: opts, soon: make(chan struct{}, 1), now: make(chan struct{}, 1), handed: map[reconcile.Owner]uint64{}}
}

// note notes a revocation; gone says that a deleted pod is the cause. The caller holds the lock.
func (r *Revocations) note(gone bool) {
	r.later = r.later || gone
	r.due = r.due || !gone
}

// hand notes that fragments of owners were handed over. The caller holds the lock.
func (r *Revocations) hand(owners []reconcile.Owner) {
	r.changes++
	for _, o := range owners {
		r.handed[o] = r.changes
	}
}

// unsettled returns the owners whose handed-over fragments may not be in effect, for effective. The caller holds the lock.
func (r *Revocations) unsettled() map[reconcile.Owner]uint64 { return maps.Clone(r.handed) }

// changed notes that fragments were handed over. The caller holds the lock.
func (r *Revocations) changed() { r.later = r.later || r.opts.Caches }

// Due notes that a revocation is due at once, if due is true. It takes the lock.
func (r *Revocations) Due(due bool) {
	r.opts.Lock.Lock()
	defer r.opts.Lock.Unlock()
	r.due = r.due || due
}

// Later notes that a revocation is due soon. The caller holds the lock.
func (r *Revocations) Later() { r.later = true }

// Soon is Later for a caller that does not hold the lock. It also wakes Run to make the revocation. It takes the lock.
func (r *Revocations) Soon() {
	r.opts.Lock.Lock()
	defer r.opts.Lock.Unlock()
	r.later = true
	r.wake()
}

// Pending reports whether a revocation is due, at once or soon. It takes the lock.
func (r *Revocations) Pending() bool {
	r.opts.Lock.Lock()
	defer r.opts.Lock.Unlock()
	return r.due || r.later
}

// Wake wakes Run to make a revocation, if one is due. The caller holds the lock.
func (r *Revocations) Wake() { r.wake() }

func (r *Revocations) wake() {
	if !r.later && !r.due {
		return
	}
	steps.Wake(r.soon)
}

// inEffect waits until the engine has tried the fragments of these owners, and returns why some of them are not in effect. some reports
// whether the fragment of at least one owner is in effect. Owners whose fragments were handed over again meanwhile stay in r.handed.
func (r *Revocations) inEffect(ctx context.Context, handed map[reconcile.Owner]uint64) (some bool, err error) {
	owners := slices.Collect(maps.Keys(handed))
	settled := owners
	if err = r.opts.Settled(ctx, owners); err != nil {
		settled = nil
		for _, o := range owners {
			if len(owners) > 1 && r.opts.Settled(ctx, []reconcile.Owner{o}) == nil {
				settled = append(settled, o)
			}
		}
	}
	r.opts.Lock.Lock()
	defer r.opts.Lock.Unlock()
	for _, o := range settled {
		if r.handed[o] == handed[o] {
			delete(r.handed, o)
		}
	}
	return len(settled) > 0, err
}

// effective waits until the engine has tried the fragments of these owners, and makes a revocation that is due at once, also if some of
// the fragments are refused: the revocation is repeated when these are in effect. If all are refused, nothing is to be revoked yet. With
// Apart, Run makes the revocation.
func (r *Revocations) effective(ctx context.Context, handed map[reconcile.Owner]uint64) error {
	flush := r.Flush
	if r.opts.Apart {
		flush = r.hurry
	}
	if len(handed) == 0 {
		return flush(ctx)
	}
	some, err := r.inEffect(ctx, handed)
	if err != nil {
		err = fmt.Errorf("NetworkPolicies: %w", err)
	}
	if err != nil && !some {
		return err
	}
	return errors.Join(err, flush(ctx))
}

// hurry wakes Run to make at once a revocation that is due at once. It takes the lock.
func (r *Revocations) hurry(context.Context) error {
	r.opts.Lock.Lock()
	defer r.opts.Lock.Unlock()
	if r.due {
		steps.Wake(r.now)
	} else {
		r.wake()
	}
	return nil
}

// Flush makes a revocation if it is due at once, and wakes Run if it is due soon. If another call is making one that was due at once, it
// may be the caller's: Flush waits for it. A failed revocation is due again, and Run tries it too. It takes the lock.
func (r *Revocations) Flush(ctx context.Context) error {
	for {
		r.opts.Lock.Lock()
		if r.due { // taken under the same lock: otherwise another call could take it now, and nothing would be waited for
			handed, end := r.begin()
			r.opts.Lock.Unlock()
			return r.revoke(ctx, handed, end)
		}
		r.wake()
		underway := r.underway
		r.opts.Lock.Unlock()
		if underway == nil {
			return nil
		}
		select {
		case <-underway:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// begin takes what is due. end must be called without the lock when the revocation has been made, or is due again. The caller holds the lock.
func (r *Revocations) begin() (handed map[reconcile.Owner]uint64, end func()) {
	handed, end = r.unsettled(), func() {}
	if r.due {
		done := make(chan struct{})
		r.underway = done
		end = func() {
			r.opts.Lock.Lock()
			defer r.opts.Lock.Unlock()
			if close(done); r.underway != done { // a later revocation covers what this one does
				return
			}
			r.underway = nil
			if !r.due && r.opts.Made != nil {
				r.opts.Made()
			}
		}
	}
	r.due, r.later = false, false
	return handed, end
}

// revoke makes a revocation that begin has taken, once the handed-over fragments are in effect.
func (r *Revocations) revoke(ctx context.Context, handed map[reconcile.Owner]uint64, end func()) error {
	defer end()
	if len(handed) > 0 {
		if _, err := r.inEffect(ctx, handed); err != nil { // the engine reports the owner's failure
			r.opts.Lock.Lock()
			r.due = true
			r.wake() // the caller may not call again
			r.opts.Lock.Unlock()
		}
	}
	err := r.opts.Revoke(ctx)
	if err != nil {
		r.opts.Lock.Lock()
		defer r.opts.Lock.Unlock()
		r.due = true
		r.wake() // the caller may not call again
	}
	return err
}

// revokeDue makes a revocation if one is due, at once or soon.
func (r *Revocations) revokeDue(ctx context.Context) error {
	r.opts.Lock.Lock()
	if !r.due && !r.later {
		r.opts.Lock.Unlock()
		return nil
	}
	handed, end := r.begin()
	r.opts.Lock.Unlock()
	return r.revoke(ctx, handed, end)
}

// Run makes the revocations that are not due at once, or apart, until ctx ends. What is due again afterwards, because it failed, rests first.
func (r *Revocations) Run(ctx context.Context) error {
	var rest <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.soon:
			if rest == nil {
				rest = time.After(r.opts.Rest())
			}
			continue
		case <-r.now:
		case <-rest:
		}
		rest = nil
		if err := r.revokeDue(ctx); err != nil && ctx.Err() == nil {
			r.opts.Log.Warn("revoked permissions may still be in use; trying again", "error", err)
		}
		r.opts.Lock.Lock()
		r.wake()
		r.opts.Lock.Unlock()
	}
}
