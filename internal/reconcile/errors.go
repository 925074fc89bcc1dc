package reconcile

import (
	"errors"
	"fmt"
)

// ErrUnavailable is wrapped by an engine's error when the engine cannot be reached at all (no connection, no daemon). The loop then waits
// for Resync or its next retry, and does not try the batch's owners one by one.
var ErrUnavailable = errors.New("engine not reachable")

// ErrStopped is returned to waiting callers when the loop ends.
var ErrStopped = errors.New("reconcile loop stopped")

// ConflictError reports that an item was not programmed as its owner desires, because another owner holds the same key with another value.
type ConflictError struct {
	// Owner's item was not programmed; Holder holds the key; Key is the engine's key as text.
	Owner, Holder Owner
	Key           string
}

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s: %s is already held, with another value, by %s", e.Owner, e.Key, e.Holder)
}

// PartialError is returned by an engine's Commit when some keys failed and everything else is in effect. A failed key has its former value
// or no value, never a part of the new one.
type PartialError[K comparable] struct {
	// Failed holds the error of each failed key.
	Failed map[K]error
}

// Error implements error.
func (e *PartialError[K]) Error() string { return errors.Join(e.Unwrap()...).Error() }

// Unwrap returns the errors of all keys.
func (e *PartialError[K]) Unwrap() []error {
	all := make([]error, 0, len(e.Failed))
	for _, err := range e.Failed {
		all = append(all, err)
	}
	return all
}
