package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"weft.dev/weft/internal/neutron/conf"
)

// Delays after a failed authentication, each twice as long as the one before. Keystone can lock a user after a few wrong passwords
// (lockout_failure_attempts of its [security_compliance], often for half an hour): refused credentials are tried again less and less often.
const (
	firstRefused, lastRefused = time.Minute, 30 * time.Minute
	firstFailed, lastFailed   = time.Second, time.Minute
)

// Attempts makes the callers with the same credentials share the outcome of an authentication that failed: until the next attempt is due,
// none of them sends a request to Keystone. Other credentials are tried at once. It is safe for concurrent use.
type Attempts struct {
	now func() time.Time
	// turn has a value while a caller uses the fields below.
	turn chan struct{}
	// failed is the outcome of the last authentication, with the credentials of; nil: it succeeded.
	failed *PausedError
	of     conf.Global
	delay  time.Duration
}

// NewAttempts returns Attempts without a failed authentication.
func NewAttempts() *Attempts { return &Attempts{now: time.Now, turn: make(chan struct{}, 1)} }

// PausedError is returned after a failed authentication until the next attempt.
type PausedError struct {
	err   error
	again time.Time
	now   func() time.Time
}

// Error returns why the authentication failed.
func (e *PausedError) Error() string { return e.err.Error() }

// Unwrap returns why the authentication failed.
func (e *PausedError) Unwrap() error { return e.err }

// Left returns the time until the next attempt; zero if it is due.
func (e *PausedError) Left() time.Duration { return max(e.again.Sub(e.now()), 0) }

// do authenticates with the credentials of a configuration, unless they have failed and the next attempt is not due.
func (a *Attempts) do(ctx context.Context, of conf.Global, authenticate func(context.Context) error) error {
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return fmt.Errorf("wait for another authentication at Keystone: %w", ctx.Err())
	}
	if a.of != of {
		a.of, a.failed, a.delay = of, nil, 0
	}
	if a.failed != nil && a.failed.Left() > 0 {
		return a.failed
	}
	err := authenticate(ctx)
	if err != nil && ctx.Err() != nil {
		return err // the caller's time is up, which says nothing about the credentials
	}
	if err == nil {
		a.failed, a.delay = nil, 0
		return nil
	}
	first, last := firstFailed, lastFailed
	if Unauthorized(err) || Is(err, http.StatusForbidden) {
		first, last = firstRefused, lastRefused
	}
	a.delay = min(max(2*a.delay, first), last)
	a.failed = &PausedError{err: err, again: a.now().Add(a.delay), now: a.now}
	return a.failed
}

// Paused returns the time until Keystone is asked again, if err says that it is not asked until then.
func Paused(err error) (left time.Duration, is bool) {
	paused, is := errors.AsType[*PausedError](err)
	if !is {
		return 0, false
	}
	return paused.Left(), true
}
