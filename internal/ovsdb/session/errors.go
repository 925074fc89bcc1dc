package session

import (
	"errors"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"weft.dev/weft/internal/reconcile"
)

var (
	// ErrNotConnected reports that no connection could be made within the caller's time limit.
	ErrNotConnected = fmt.Errorf("%w: no connection to ovsdb-server: is it running?", reconcile.ErrUnavailable)
	// ErrClosed reports that the keeper has been closed.
	ErrClosed = errors.New("engine is closed")
	// ErrLost reports that the connection broke during an operation. The outcome of the operation is unknown.
	ErrLost = errors.New("connection to ovsdb-server was lost")
	// ErrInvalid reports a configuration that cannot work.
	ErrInvalid = errors.New("invalid OVSDB session")
)

// errNotLeader reports a server of a cluster that must not be used with LeaderOnly.
var errNotLeader = errors.New("the server is not the leader of its cluster")

// OperationError reports that the server refused a transaction; nothing of it is in effect.
type OperationError struct {
	// Index is the position of the refused operation; the number of operations if the commit itself was refused, for
	// example because of a dangling reference.
	Index int
	// Operation is the refused operation, empty if the commit itself was refused.
	Operation ovsdb.Operation
	// Reason is the error of RFC 7047, for example "constraint violation" or "timed out" (a wait that does not hold).
	Reason string
	// Details is the explanation of the server.
	Details string
}

// Error implements error.
func (e *OperationError) Error() string {
	text := "OVSDB transaction refused"
	if e.Operation.Op != "" {
		text = fmt.Sprintf("OVSDB %s in table %s refused", e.Operation.Op, e.Operation.Table)
	}
	if e.Details == "" {
		return text + ": " + e.Reason
	}
	return text + ": " + e.Reason + ": " + e.Details
}

// Check returns a *[OperationError] for the first refused operation of a transaction, and nil if all are in effect.
func Check(ops []ovsdb.Operation, results []ovsdb.OperationResult) error {
	for i, result := range results {
		if result.Error == "" {
			continue
		}
		refused := &OperationError{Index: i, Reason: result.Error, Details: result.Details}
		if i < len(ops) {
			refused.Operation = ops[i]
		}
		return refused
	}
	if len(results) < len(ops) {
		return fmt.Errorf("OVSDB transaction of %d operations: %d results", len(ops), len(results))
	}
	return nil
}
