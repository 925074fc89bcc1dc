package ovsdb

import (
	"errors"
	"fmt"

	"weft.dev/weft/internal/ovsdb/session"
	"weft.dev/weft/internal/reconcile"
)

var (
	// ErrNotFound says that a port or bridge is not in the database, or is not Weft's.
	ErrNotFound = errors.New("not found")
	// ErrNotApplied says that the database has a change and ovs-vswitchd has not applied it in the time that the
	// caller gave: it is not running, or busy. The rows stay; the next Read shows them with a Failure until they are
	// in effect.
	ErrNotApplied = fmt.Errorf("%w: not applied by ovs-vswitchd: is it running?", reconcile.ErrUnavailable)
	// ErrNotConnected says that there was no connection to ovsdb-server in the time that the caller gave.
	ErrNotConnected = session.ErrNotConnected
	// ErrClosed says that the engine has been closed.
	ErrClosed = session.ErrClosed
	// ErrNotOwned says that a row of that name exists and is not Weft's, so it is left as it is.
	ErrNotOwned = errors.New("exists and does not belong to Weft")
	// ErrInvalid says that a row was refused before anything was written.
	ErrInvalid = errors.New("invalid")
)

// PortError says that one row of a change is not in effect. The other rows of the change are: Commit returns the
// errors of all rows that failed, in a reconcile.PartialError. A row that Commit had newly made is gone again, one that was there before
// stays as the switch has it.
type PortError struct {
	// Key is the row that failed.
	Key Key
	// Reason is what the switch, or the database, says about it.
	Reason string
	// Err is the cause if it is one of this package's errors, else nil.
	Err error
}

// Error implements error.
func (e *PortError) Error() string {
	switch {
	case e.Err == nil:
		return fmt.Sprintf("%s: %s", e.Key, e.Reason)
	case e.Reason == "":
		return fmt.Sprintf("%s: %v", e.Key, e.Err)
	default:
		return fmt.Sprintf("%s: %v: %s", e.Key, e.Err, e.Reason)
	}
}

// Unwrap returns the cause.
func (e *PortError) Unwrap() error { return e.Err }

// FailedKeys returns the rows that err says have failed. whole reports whether err is more than that: then nothing is
// known of the other rows of the change either. FailedKeys(nil) returns nothing and false.
func FailedKeys(err error) (failed map[Key]*PortError, whole bool) {
	failed = map[Key]*PortError{}
	return failed, collectFailed(err, failed)
}

// partial returns an error that is about single rows only in the form by which a reconcile.Loop knows that the others
// are in effect.
func partial(err error) error {
	failed, whole := FailedKeys(err)
	if whole || len(failed) == 0 {
		return err
	}
	rows := make(map[Key]error, len(failed))
	for key, portError := range failed {
		rows[key] = portError
	}
	return &reconcile.PartialError[Key]{Failed: rows}
}

func collectFailed(err error, failed map[Key]*PortError) (whole bool) {
	if err == nil {
		return false
	}
	//nolint:errorlint // one level at a time: As would stop at the first of several joined errors.
	switch e := err.(type) {
	case *PortError:
		failed[e.Key] = e
		return false
	case interface{ Unwrap() []error }:
		for _, joined := range e.Unwrap() {
			whole = collectFailed(joined, failed) || whole
		}
		return whole
	case interface{ Unwrap() error }:
		inner := e.Unwrap()
		return inner == nil || collectFailed(inner, failed)
	default:
		return true
	}
}
