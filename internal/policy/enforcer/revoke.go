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
)

// RevocationOptions are options of Revocations.
type RevocationOptions struct {
	// Lock guards the Revocations: that of the Enforcer. Required.
	Lock sync.Locker
	// Settled waits until what was handed over for owners was tried, and returns what keeps it from being in effect. Required.
	Settled func(ctx context.Context, owners []reconcile.Owner) error
	// Revoke ends what was allowed before the state that is in effect: cached verdicts, conntrack entries. Required.
	Revoke func(ctx context.Context) error
	// Caches says that the engine caches verdicts: then every change is followed by a Revoke, soon.
	Caches bool
	// Rest returns how long a revocation that is not due at once may wait, so that several are made together. Required.
	Rest func() time.Duration
	// Log gets failures that are tried again. Default: discarded.
	Log *slog.Logger
}

// Revocations end what was allowed and is no longer allowed, once the change is in effect: at once, if a permission was revoked; within
// Rest, all that come until then together, if a pod is gone, or if an engine with caches allows something new.
type Revocations struct {
	opts RevocationOptions
	soon chan struct{}

	// due and later say that a revocation is to be made at once, or soon. handed are owners of what was handed over and may not be in
	// effect. Lock guards them.
	due, later bool
	handed     map[reconcile.Owner]struct{}
}

// NewRevocations returns Revocations. Run makes those that are not due at once.
func NewRevocations(opts RevocationOptions) *Revocations {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Revocations{opts: opts, soon: make(chan struct{}, 1), handed: map[reconcile.Owner]struct{}{}}
}

// note notes a revocation; gone says that it is because a pod is gone. The caller holds the lock.
func (r *Revocations) note(gone bool) {
	r.later = r.later || gone
	r.due = r.due || !gone
}

// changed notes that something was handed over. The caller holds the lock.
func (r *Revocations) changed() { r.later = r.later || r.opts.Caches }

// Due notes that a revocation is due at once, if it is. It takes the lock.
func (r *Revocations) Due(due bool) {
	r.opts.Lock.Lock()
	defer r.opts.Lock.Unlock()
	r.due = r.due || due
}

// Later notes that a revocation is due soon. The caller holds the lock.
func (r *Revocations) Later() { r.later = true }

// Soon is Later for a caller that does not hold the lock, and has Run make the revocation. It takes the lock.
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

// Wake has Run make a revocation, if one is due. The caller holds the lock.
func (r *Revocations) Wake() { r.wake() }

func (r *Revocations) wake() {
	if !r.later && !r.due {
		return
	}
	select {
	case r.soon <- struct{}{}:
	default: // Run is about to
	}
}

// inEffect waits until what was handed over for these owners was tried, and returns what keeps some of it from being in effect; some says
// that at least one owner's is.
func (r *Revocations) inEffect(ctx context.Context, handed []reconcile.Owner) (some bool, err error) {
	settled := handed
	if err = r.opts.Settled(ctx, handed); err != nil {
		settled = nil
		for _, o := range handed {
			if len(handed) > 1 && r.opts.Settled(ctx, []reconcile.Owner{o}) == nil {
				settled = append(settled, o)
			}
		}
	}
	r.opts.Lock.Lock()
	defer r.opts.Lock.Unlock()
	for _, o := range settled {
		delete(r.handed, o)
	}
	return len(settled) > 0, err
}

// effective waits until what was handed over for these owners was tried, and makes a revocation that is due at once, also where some of it
// is refused: the revocation is repeated when that is in effect. Where all of it is refused, nothing is to be revoked yet.
func (r *Revocations) effective(ctx context.Context, handed []reconcile.Owner) error {
	if len(handed) == 0 {
		return r.Flush(ctx)
	}
	some, err := r.inEffect(ctx, handed)
	if err != nil {
		err = fmt.Errorf("NetworkPolicies: %w", err)
	}
	if err != nil && !some {
		return err
	}
	return errors.Join(err, r.Flush(ctx))
}

// Flush makes a revocation if it is due at once, and has Run make it if it is due soon. What fails is due again. It takes the lock.
func (r *Revocations) Flush(ctx context.Context) error {
	r.opts.Lock.Lock()
	due := r.due
	if !due {
		r.wake()
	}
	r.opts.Lock.Unlock()
	if !due {
		return nil
	}
	return r.revoke(ctx)
}

// revoke makes a revocation if one is due, once what was handed over is in effect.
func (r *Revocations) revoke(ctx context.Context) error {
	r.opts.Lock.Lock()
	due, handed := r.due || r.later, slices.Collect(maps.Keys(r.handed))
	r.due, r.later = false, false
	r.opts.Lock.Unlock()
	if !due {
		return nil
	}
	if len(handed) > 0 {
		_, err := r.inEffect(ctx, handed)
		r.Due(err != nil) // the owner's failure is reported by its engine
	}
	err := r.opts.Revoke(ctx)
	if err != nil {
		r.Due(true)
	}
	return err
}

// Run makes the revocations that are not due at once, until ctx ends.
func (r *Revocations) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.soon:
		}
		timer := time.NewTimer(r.opts.Rest())
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		if err := r.revoke(ctx); err != nil && ctx.Err() == nil {
			r.opts.Log.Warn("revoked permissions may still be in use; trying again", "error", err)
		}
		r.opts.Lock.Lock()
		r.wake()
		r.opts.Lock.Unlock()
	}
}
