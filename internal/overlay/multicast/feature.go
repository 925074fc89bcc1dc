package multicast

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
)

// Feature is multicast as a feature of the overlay.
type Feature struct {
	*Projects
	network feature.Network
	reached func(namespace string) (reached []uint32, sends uint32, has bool)
	remotes func() map[reconcile.Owner]pipeline.Remote
}

// NewFeature returns the multicast of a network, without any project. reached is as View.VNIDs, and remotes returns the remote hosts.
func NewFeature(network feature.Network, reached func(string) ([]uint32, uint32, bool), remotes func() map[reconcile.Owner]pipeline.Remote) *Feature {
	return &Feature{Projects: New(), network: network, reached: reached, remotes: remotes}
}

// View returns what pods' parts depend on.
func (f *Feature) View(c *pipeline.Config) *View {
	v := &View{Config: c}
	if c.Mode == pipeline.ModeMultitenant || c.Mode == pipeline.ModeNetworkPolicy {
		v.VNIDs = f.reached
	}
	return v
}

// Update programs a change of multicast. Until the network is in a mode with multicast, it only stores the change: all namespaces must be
// stored before the View that brings the mode. After an error, the next call and the engine itself retry what could not be programmed.
func (f *Feature) Update(ctx context.Context, change Change) error {
	pending, on := f.handOver(&change)
	if !on {
		return nil
	}
	due := feature.Never
	if len(pending) > 0 { // other features, and the network, may be updated meanwhile
		if err := f.network.Settled(ctx, maps.Keys(pending)); err != nil {
			return fmt.Errorf("multicast: %w", err)
		}
		f.InEffect(pending)
		due = feature.Now
	}
	return f.network.Purge(ctx, due)
}

// handOver stores a change and hands over its flows, without waiting. It returns all that may not be in effect; on is false in a mode without
// multicast.
func (f *Feature) handOver(change *Change) (pending map[reconcile.Owner]uint64, on bool) {
	defer f.network.Begin()()
	differs, nodes := f.Take(change)
	v, on := f.network.View()
	if !on || f.View(v.Config).VNIDs == nil {
		return nil, false
	}
	if !differs && len(f.Pending()) == 0 {
		return nil, true // a purge that failed may be due
	}
	handed := f.network.Change(func(v feature.View) (feature.Flows, []attach.Record) {
		view := f.View(v.Config)
		flows, changed := f.Place(view, slices.Collect(maps.Values(v.Live))...)
		if nodes {
			maps.Copy(flows, f.Nodes(view, f.remotes()))
		}
		return flows, changed
	})
	f.Await(handed)
	return f.Pending(), true
}
