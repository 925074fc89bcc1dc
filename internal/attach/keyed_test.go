package attach

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestKeyedExcludes(t *testing.T) {
	var lock Keyed[int]
	var inside [4]atomic.Int32
	var wg sync.WaitGroup
	for n := range 64 {
		wg.Go(func() {
			key := n % len(inside)
			for range 50 {
				unlock, err := lock.Lock(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				if inside[key].Add(1) != 1 {
					t.Errorf("key %d is locked twice", key)
				}
				inside[key].Add(-1)
				unlock()
			}
		})
	}
	wg.Wait()
	if len(lock.slots) != 0 {
		t.Errorf("%d keys are kept, although none is locked", len(lock.slots))
	}
}

func TestKeyedRunsKeysSideBySide(t *testing.T) {
	var lock Keyed[string]
	unlockA, err := lock.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	unlockB, err := lock.Lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	unlockB()
	unlockA()
	unlockA() // A second call has no effect.
	again, err := lock.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestKeyedOrderAndContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lock Keyed[string]
		unlock, err := lock.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		order := make(chan int, 3)
		for n := range 3 {
			go func() {
				ctx := t.Context()
				if n == 1 {
					short, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					ctx = short
				}
				unlock, err := lock.Lock(ctx, "a")
				if n == 1 {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("waiting with an ended context: %v", err)
					}
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				order <- n
				unlock()
			}()
			synctest.Wait()
		}
		<-time.After(2 * time.Second) // The bubble's clock: the deadline passes at once.
		unlock()
		if first, second := <-order, <-order; first != 0 || second != 2 {
			t.Errorf("order %d, %d; want 0, 2", first, second)
		}
		synctest.Wait()
		if len(lock.slots) != 0 {
			t.Error("the key is kept, although it is not locked")
		}
	})
}
