package enforcer_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/reconcile"
)

// A revocation that one call is making may be what another one asked for: that one returns only when it has been made.
func TestFlushWaitsForARevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := &sync.Mutex{}
		made := make(chan struct{})
		r := enforcer.NewRevocations(enforcer.RevocationOptions{
			Lock: lock, Rest: func() time.Duration { return time.Second },
			Settled: func(context.Context, []reconcile.Owner) error { return nil },
			Revoke:  func(context.Context) error { <-made; return nil },
		})
		flush := func() <-chan error {
			r.Due(false)
			flushed := make(chan error, 1)
			go func() { flushed <- r.Flush(t.Context()) }()
			synctest.Wait()
			return flushed
		}
		if err := r.Flush(t.Context()); err != nil { // nothing is due
			t.Fatal(err)
		}
		r.Due(true)
		first := flush()
		second := flush()
		if len(first)+len(second) > 0 {
			t.Fatal("a revocation that is being made is reported as made")
		}
		close(made)
		synctest.Wait()
		if len(first) != 1 || len(second) != 1 || <-first != nil || <-second != nil {
			t.Error("a revocation is not reported as made")
		}
	})
}
