package reconcile

import (
	"context"
	"fmt"
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

func (l *Loop[K, V]) await(ctx context.Context, w *waiter) error {
	select {
	case err := <-w.done:
		deliver(ctx, w.receipt)
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: waiting for the commit: %w", l.opts.Name, ctx.Err())
	}
}
