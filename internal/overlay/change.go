package overlay

import (
	"context"
	"errors"
	"iter"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/overlay/balancer"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/pipeline/groupid"
	"weft.dev/weft/internal/overlay/projects"
	"weft.dev/weft/internal/reconcile"
)

// changer is the network as its features change it.
type changer struct{ network *Network }

var _ feature.Network = changer{}

// Begin implements feature.Network.
func (c changer) Begin() (end func()) {
	c.network.updating.Lock()
	c.network.missed = true // counts only until the network is programmed
	return c.network.updating.Unlock
}

// Change implements feature.Network.
func (c changer) Change(compile func(v feature.View) (feature.Flows, []attach.Record)) []reconcile.Owner {
	return c.network.pods.change(compile)
}

// View implements feature.Network.
func (c changer) View() (v feature.View, on bool) {
	s := c.network.pods.settings.Load()
	if s == nil {
		return feature.View{}, false
	}
	return s.FeatureView(nil), true
}

// Settled implements feature.Network.
func (c changer) Settled(ctx context.Context, owners iter.Seq[reconcile.Owner]) error {
	flows := c.network.engines.Flows
	err := flows.Apply(ctx, nil) // the next commit includes all that was handed over
	for o := range owners {
		err = errors.Join(err, named(string(o), flows.Failure(o)))
	}
	return err
}

// Purge implements feature.Network.
func (c changer) Purge(ctx context.Context, due feature.Due) error {
	pods := c.network.pods
	if due != feature.Never {
		pods.mu.Lock()
		pods.policies.purges.Later()
		pods.mu.Unlock()
	}
	pods.policies.purges.Due(due == feature.Now)
	return pods.policies.purges.Flush(ctx)
}

// newProjects returns the projects of a network.
func newProjects(n *Network) *projects.Projects {
	return projects.New(changer{n}, projects.Options{
		Running: n.running, Realised: n.opts.TenantsRealised, Now: n.opts.Now, Log: n.opts.Log,
		Step: func() time.Duration { return n.opts.MoveStep },
		Moved: func(v feature.View, pods []attach.Record) feature.Flows {
			flows, _ := n.Multicast.Place(n.Multicast.View(v.Config), pods...)
			return flows
		},
	})
}

// newBalancer returns the Services of a network.
func newBalancer(n *Network, groups *groupid.IDs) *balancer.Balancer {
	return balancer.New(changer{n}, balancer.Engines{
		Flows: n.engines.Flows, Connections: n.engines.Connections, Groups: groups,
		Warnings: func(owner reconcile.Owner, warnings []error) {
			if n.opts.ServiceWarnings != nil {
				n.opts.ServiceWarnings(owner, warnings)
			}
		},
	})
}
