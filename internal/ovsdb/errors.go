package ovsdb

import (
	"errors"
	"fmt"

	"weft.dev/weft/internal/ovsdb/confdb"
	"weft.dev/weft/internal/ovsdb/session"
	"weft.dev/weft/internal/reconcile"
)

var (
	// ErrNotFound says that a port or bridge is not in the database, or is not Weft's.
	ErrNotFound = errors.New("not found")
	// ErrNotApplied says that the database has a change, but ovs-vswitchd has not applied it within the caller's time limit: ovs-vswitchd is
	// not running, or busy. The rows stay; the next Read returns them with a Failure until they are in effect.
	ErrNotApplied = confdb.ErrNotApplied
	// ErrNotConnected says that there was no connection to ovsdb-server within the caller's time limit.
	ErrNotConnected = session.ErrNotConnected
	// ErrClosed says that the engine has been closed.
	ErrClosed = session.ErrClosed
	// ErrNotOwned says that a row of that name exists and is not Weft's, so it was not changed.
	ErrNotOwned = errors.New("exists and does not belong to Weft")
	// ErrInvalid says that a row was refused before it was written.
	ErrInvalid = errors.New("invalid")
)

// PortError says that one row of a change is not in effect. The other rows of the change are: Commit returns the errors of all failed
// rows in a reconcile.PartialError. A failed row that Commit made is removed again; a row that existed before stays as the switch has it.
type PortError struct {
	// Key is the row that failed.
	Key Key
	// Reason is the error of the switch, or of the database.
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

// FailedKeys returns the failed rows of err. whole reports whether err has another cause as well: then the other rows of the change may
// not be in effect either. FailedKeys(nil) returns nothing and false.
func FailedKeys(err error) (failed map[Key]*PortError, whole bool) {
	failed = map[Key]*PortError{}
	return failed, collectFailed(err, failed)
}

// partial converts an error that is about single rows only, so that a reconcile.Loop treats the others as in effect.
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
