package reconcile

import (
	"context"
	"fmt"
)

// waiter is somebody who wants to know when some owners' fragments are programmed.
type waiter struct {
	owners []Owner
	// verify: wait for a verification of everything, not only for the owners.
	verify bool
	// patient: an engine that cannot be reached is waited for.
	patient bool
	// drift is how many items the verification found to differ.
	drift int
	// receipt is about the commit, if there was one. It is set before done is told.
	receipt Receipt
	done    chan error
}

func (l *Loop[K, V]) await(ctx context.Context, w *waiter) error {
	select {
	case err := <-w.done:
		tell(ctx, w.receipt)
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: waiting for the commit: %w", l.opts.Name, ctx.Err())
	}
}
