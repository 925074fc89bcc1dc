// Package steps makes steps of I/O: Keep repeats a step on each wake-up, and after a delay if it failed. Runs makes one step at a time for
// several callers, without a lock during I/O.
package steps

import (
	"context"
	"log/slog"
	"time"
)

// Delays between attempts to bring the node in step with objects that cannot be realised. Objects and node change, and not every change of
// the node causes an event.
const (
	FirstRetry = 200 * time.Millisecond
	LastRetry  = 10 * time.Second
)

// Wake wakes the receiver of a channel with a buffer of one. If a wake-up is already pending, it does nothing.
func Wake(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// Keep calls step at once and on each wake-up until ctx ends, and retries a failed step after a delay. what is named in the log. It returns
// nil.
func Keep(ctx context.Context, log *slog.Logger, wake <-chan struct{}, what string, step func() error) error {
	delay := FirstRetry
	for {
		var retry <-chan time.Time
		if err := step(); err == nil {
			delay = FirstRetry
		} else if ctx.Err() == nil {
			log.Warn("the node is not in step", "with", what, "error", err)
			timer := time.NewTimer(delay)
			retry, delay = timer.C, min(2*delay, LastRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-retry:
		}
	}
}

// UnlessEnded returns err, or nil if ctx has ended: the end of ctx is then the reason, and no failure.
func UnlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the end of ctx is why, and is no failure
	}
	return err
}
