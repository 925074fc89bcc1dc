package overlay

import (
	"context"
	"iter"
	"maps"
	"slices"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/reconcile"
)

// changer is the network as its features change it.
type changer struct{ network *Network }

var _ feature.Network = changer{}

// Begin implements feature.Network.
func (c changer) Begin() (end func()) {
	c.network.updating.Lock()
	return c.network.updating.Unlock
}

// Change implements feature.Network.
func (c changer) Change(compile func(v feature.View) (feature.Flows, []attach.Record)) []reconcile.Owner {
	n := c.network
	n.opening.Lock()
	defer n.opening.Unlock()
	s := n.settings.Load()
	if s == nil {
		return nil
	}
	again := *s // a copy, so that ADDs under way compile again
	n.settings.Store(&again)
	flows, changed := compile(feature.View{Config: &again.pipeline, Live: n.live})
	for i := range changed {
		flows[owner(changed[i].Key())] = n.podFlows(&again, &changed[i])
	}
	if len(flows) > 0 {
		n.engines.Flows.Set(flows)
	}
	return slices.Collect(maps.Keys(flows))
}

// Settled implements feature.Network.
func (c changer) Settled(ctx context.Context, owners iter.Seq[reconcile.Owner]) error {
	return settled(ctx, c.network.engines.Flows, owners)
}

// Purge implements feature.Network.
func (c changer) Purge(ctx context.Context, due feature.Due) error {
	n := c.network
	if due != feature.Never {
		n.opening.Lock()
		n.purges.Later()
		n.opening.Unlock()
	}
	n.purges.Due(due == feature.Now)
	return n.purges.Flush(ctx)
}
