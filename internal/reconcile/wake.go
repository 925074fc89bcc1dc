package reconcile

import (
	"context"
	"time"
)

// Delays between retries of a failed commit: doubled from firstRetry to lastRetry, then constant.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// wake wakes the loop: for new work, or to retry.
type wake struct {
	work chan struct{}
	// delay is the next delay before a retry. Only sleep uses it.
	delay time.Duration
}

func newWake() wake { return wake{work: make(chan struct{}, 1), delay: firstRetry} }

// signal wakes the loop, now or as soon as it sleeps.
func (w *wake) signal() {
	select {
	case w.work <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// sleep waits for work, and, if a retry is due, at most for the delay, which is then doubled.
func (w *wake) sleep(ctx context.Context, retry bool) {
	var timeout <-chan time.Time
	if retry {
		timer := time.NewTimer(w.delay)
		defer timer.Stop()
		timeout = timer.C
	} else {
		w.delay = firstRetry
	}
	select {
	case <-ctx.Done():
	case <-w.work:
	case <-timeout:
		w.delay = min(2*w.delay, lastRetry)
	}
}
