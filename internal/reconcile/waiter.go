package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// waiter is a caller that waits until some owners' fragments are programmed.
type waiter struct {
	owners []Owner
	// verify: wait for a verification of everything, not only for the owners.
	verify bool
	// patient: wait until an unreachable engine can be reached.
	patient bool
	// drift is the number of items that the verification found different.
	drift int
	// receipt describes the commit, if there was one. It is set before the send on done.
	receipt Receipt
	done    chan error
}

// await waits for the result. name is the engine's.
func (w *waiter) await(ctx context.Context, name string) error {
	select {
	case err := <-w.done:
		deliver(ctx, w.receipt)
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: waiting for the commit: %w", name, ctx.Err())
	}
}

// staysFor reports whether the waiter goes on waiting after an error.
func (w *waiter) staysFor(err error) bool { return w.patient && errors.Is(err, ErrUnavailable) }

// waiters are the callers that wait for a commit. Their user holds Loop.mu.
type waiters []*waiter

// take returns the callers that the next change serves. A verification is served only by one that follows a read, which verified reports.
func (all *waiters) take(verified bool) []*waiter {
	var served []*waiter
	*all = slices.DeleteFunc(*all, func(w *waiter) bool {
		if w.verify && !verified {
			return false
		}
		served = append(served, w)
		return true
	})
	return served
}

// fail ends the wait with an error, except for those that stay for it.
func (all *waiters) fail(err error) {
	*all = slices.DeleteFunc(*all, func(w *waiter) bool {
		if w.staysFor(err) {
			return false
		}
		w.done <- err
		return true
	})
}
