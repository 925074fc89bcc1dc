package controller

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/reconcile"
)

// northboundEngine is the name of the northbound database in weft diff.
const northboundEngine = "ovn northbound"

// errNoVPCs reports that the controller has no engine.
var errNoVPCs = errors.New("this controller writes no northbound database: VPCs are not served (vpc.enabled)")

// inspect compares the northbound database with what it should have.
type inspect func(context.Context) (reconcile.Inspection[ovn.Key, ovn.Row], error)

// withDiff adds to the handler of health how the northbound database differs from what it should have, for weft diff.
func withDiff(health http.Handler, options *Options) http.Handler {
	northbound := func(context.Context) (reconcile.Inspection[ovn.Key, ovn.Row], error) {
		return reconcile.Inspection[ovn.Key, ovn.Row]{}, errNoVPCs
	}
	if options.vpcs != nil {
		northbound = options.vpcs.Inspector.Inspect
	}
	mux := http.NewServeMux()
	mux.Handle("/", health)
	mux.Handle("GET "+admin.DiffPath, admin.DiffHandler(inspect(northbound).diff))
	return mux
}

// diff returns the comparison as weft diff prints it.
func (i inspect) diff(ctx context.Context) (admin.Diff, error) {
	found, err := i(ctx)
	if err != nil {
		return admin.Diff{}, err
	}
	engine := admin.EngineDiff{Name: northboundEngine, Desired: found.Desired, Programmed: found.Programmed}
	for n := range found.Differences {
		engine.Differences = append(engine.Differences, difference(&found.Differences[n]))
	}
	slices.SortFunc(engine.Differences, func(a, b admin.Difference) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Item, b.Item))
	})
	return admin.Diff{InStep: len(engine.Differences) == 0, Engines: []admin.EngineDiff{engine}}, nil
}

func difference(found *reconcile.Difference[ovn.Key, ovn.Row]) admin.Difference {
	d := admin.Difference{Item: found.Key.String(), Change: admin.Different, Owner: cmp.Or(found.Want.Owner, found.Have.Owner)}
	switch {
	case !found.Held:
		d.Change = admin.Missing
	case !found.Wanted:
		d.Change = admin.Extra
	}
	if found.Wanted {
		d.Want = found.Key.String() + " " + found.Want.String()
	}
	if found.Held {
		d.Have = found.Key.String() + " " + found.Have.String()
	}
	if found.Err != nil {
		d.Why = found.Err.Error()
	}
	return d
}
