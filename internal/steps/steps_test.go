package steps

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// A step runs at once and on each wake-up. A failed one is repeated, with growing delays up to LastRetry.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		wake, begin := make(chan struct{}, 1), time.Now()
		var failure error
		var at []time.Duration
		ended := make(chan error, 1)
		go func() {
			ended <- Keep(ctx, slog.New(slog.DiscardHandler), wake, "objects", func() error {
				at = append(at, time.Since(begin))
				return failure
			})
		}()
		synctest.Wait()
		Wake(wake)
		synctest.Wait()
		if len(at) != 2 {
			t.Fatalf("%d steps at the start and after wake-ups, want 2", len(at))
		}
		time.Sleep(time.Hour)
		if synctest.Wait(); len(at) != 2 {
			t.Errorf("a step that succeeded is repeated: %v", at)
		}
		failure, at, begin = errors.New("no switch"), nil, time.Now()
		Wake(wake)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(at) < 9 || at[1] != FirstRetry || at[2] != 3*FirstRetry || at[len(at)-1]-at[len(at)-2] != LastRetry {
			t.Errorf("a failed step is repeated at %v", at)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A wake-up that is pending stands for all later ones.
func TestWake(t *testing.T) {
	wake := make(chan struct{}, 1)
	Wake(wake)
	Wake(wake)
	<-wake
	if len(wake) > 0 {
		t.Error("two wake-ups are pending")
	}
}

func TestUnlessEnded(t *testing.T) {
	failure := errors.New("gone")
	ctx, cancel := context.WithCancel(t.Context())
	if err := UnlessEnded(ctx, failure); !errors.Is(err, failure) {
		t.Errorf("before the end: %v", err)
	}
	cancel()
	if err := UnlessEnded(ctx, failure); err != nil {
		t.Errorf("after the end: %v", err)
	}
}
