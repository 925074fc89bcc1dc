package ovn

import (
	"errors"
	"fmt"
)

var (
	// ErrDeposed is wrapped if another process leads with a later term. Nothing was written.
	ErrDeposed = errors.New("another controller leads")
	// ErrNotLeading is returned by a Commit before Lead.
	ErrNotLeading = errors.New("no term: lead before the first commit")
	// ErrNoParent is wrapped if a row's router or switch is not in the database.
	ErrNoParent = errors.New("the row's router or switch does not exist")
)

// RowError reports that a row was not written.
type RowError struct {
	// Key is the row's key.
	Key Key
	// Err is the reason.
	Err error
}

// Error implements error.
func (e *RowError) Error() string { return fmt.Sprintf("northbound row %s: %v", e.Key, e.Err) }

// Unwrap returns the reason.
func (e *RowError) Unwrap() error { return e.Err }
