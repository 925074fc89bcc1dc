package cluster

import (
	"context"
	"errors"
	"sync/atomic"

	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/reconcile"
)

// ErrFollows reports that the replica does not write the northbound database.
var ErrFollows = errors.New("this replica does not lead: ask the one that holds the lease (kubectl -n weft get lease weft-controller)")

// Inspector compares the northbound database with what it should have. The zero value is ready, and can be used once a part has it in its
// Options.
type Inspector struct {
	loop atomic.Pointer[reconcile.Loop[ovn.Key, ovn.Row]] // nil: the replica does not lead
}

// Inspect reads back all of Weft's rows, and returns how they differ from what the objects require.
func (i *Inspector) Inspect(ctx context.Context) (reconcile.Inspection[ovn.Key, ovn.Row], error) {
	loop := i.loop.Load()
	if loop == nil {
		return reconcile.Inspection[ovn.Key, ovn.Row]{}, ErrFollows
	}
	return loop.Inspect(ctx) //nolint:wrapcheck // it names the loop
}
