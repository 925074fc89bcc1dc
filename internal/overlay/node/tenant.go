package node

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/node/watch"
	"weft.dev/weft/internal/overlay/projects"
	"weft.dev/weft/internal/realised"
)

// A node that enters a mode with VNIDs first waits for the VNIDs of its pods' namespaces, and stays in the former mode: the controller
// allocates a VNID to each namespace when the mode changes. After the limit below it continues, and pods without a VNID are closed.
const (
	// missingPatience is how long the node waits without another VNID arriving.
	missingPatience = time.Minute
	// startPatience is the same for an agent that starts, which attaches no pods while it waits.
	startPatience = 10 * time.Second
)

// tenants tracks which namespaces' VNIDs changed. NetNamespaces are watched in the modes that have VNIDs.
type tenants struct {
	*watch.Follower
	cache cache.Cache
	log   *slog.Logger
	// ahead is called with the changed NetNamespaces before the network receives their VNIDs; nil: not called.
	ahead func(ctx context.Context, network *overlay.Network, names map[string]struct{})

	// known are the VNIDs that the network has received. Like handed, it belongs to the step in progress.
	known map[string]uint32
	// handed says that the network has received what the mark has taken up. It is in effect once nothing is pending in the network.
	handed bool

	// missing is the time since which no further VNID has arrived, missed the number of namespaces without one. Only prepare uses them.
	missing time.Time
	missed  int
}

func newTenants(store cache.Cache, vnids *watch.NetNamespaces, log *slog.Logger, changed func()) *tenants {
	return &tenants{Follower: watch.NewFollower(vnids, changed), cache: store, log: log, known: map[string]uint32{}}
}

// prepare gives the network all VNIDs before packets carry them. An error says what the agent waits for.
func (t *tenants) prepare(ctx context.Context, network *overlay.Network, mode clusternetwork.Mode) error {
	if !mode.HasVNIDs() {
		return nil
	}
	t.Await(true)
	if err := t.Begin(ctx); err != nil {
		return err
	}
	if err := t.step(ctx, network); err != nil {
		return err
	}
	if err := t.complete(network, time.Now()); err != nil {
		return err
	}
	t.Await(false)
	return nil
}

// end stops watching.
func (t *tenants) end(ctx context.Context) error {
	watched, err := t.End(ctx)
	if watched {
		known := make(map[string]struct{}, len(t.known))
		for name := range t.known {
			known[name] = struct{}{}
		}
		t.Untake(known) // some may be deleted while nothing is watched
	}
	return err
}

// step updates the network with what changed since the last step.
func (t *tenants) step(ctx context.Context, network *overlay.Network) error {
	return t.Step(ctx, func(ctx context.Context, dirty map[string]struct{}) error {
		return t.advance(ctx, network, dirty)
	})
}

// advance does the work of step once objects are watched.
func (t *tenants) advance(ctx context.Context, network *overlay.Network, dirty map[string]struct{}) error {
	change, err := t.change(ctx, dirty)
	if err != nil {
		t.Untake(dirty)
		t.Mark.Done(err)
		return err
	}
	maps.Copy(t.known, change.VNIDs)
	for _, name := range change.Gone {
		delete(t.known, name)
	}
	if len(change.VNIDs)+len(change.Gone) == 0 {
		t.finish(network)
		return nil
	}
	if t.ahead != nil {
		t.ahead(ctx, network, dirty)
	}
	if err := network.Projects.Update(ctx, change); err != nil { // the network retries by itself
		t.Mark.Done(err)
		t.handed = true
		return err
	}
	t.finish(network)
	return nil
}

// finish records that what was handed over is in effect, once it is: a namespace changes its VNID in several steps.
func (t *tenants) finish(network *overlay.Network) {
	t.handed = network.Projects.Pending()
	if !t.handed {
		t.Mark.Done(nil)
	}
}

// look records what has come into effect since. If a step is in progress, that step records it.
func (t *tenants) look(network *overlay.Network) {
	t.Between(func() {
		if t.handed {
			t.finish(network)
		}
	})
}

// change returns the differences between the given NetNamespaces and what the network has received. The first time, these are all of them,
// including those deleted while nothing was watched.
func (t *tenants) change(ctx context.Context, dirty map[string]struct{}) (projects.Change, error) {
	change := projects.Change{VNIDs: map[string]uint32{}}
	for name := range dirty {
		var nn networkv1.NetNamespace
		exists, err := informer.Read(ctx, t.cache, client.ObjectKey{Name: name}, &nn)
		if err != nil {
			return change, err
		}
		was, had := t.known[name]
		if !exists || !t.usable(&nn) {
			if had {
				change.Gone = append(change.Gone, name)
			}
			continue
		}
		if had && was == nn.NetID {
			continue
		}
		change.VNIDs[name] = nn.NetID
		if had || len(t.known) == 0 {
			change.Version = max(change.Version, versionOf(&nn))
		}
	}
	return change, nil
}

// usable reports whether a NetNamespace is valid. The pods of an invalid one stay closed.
func (t *tenants) usable(nn *networkv1.NetNamespace) bool {
	if _, ok := watch.VNIDOf(nn); ok {
		return true
	}
	t.log.Error("invalid NetNamespace, its pods' ports are closed: netname must equal metadata.name, and netid must be 0 to 16777215: delete it, the controller creates a valid one",
		"netnamespace", nn.Name, "netname", nn.NetName, "netid", nn.NetID)
	return false
}

// versionOf returns an object's resourceVersion as a number.
func versionOf(nn *networkv1.NetNamespace) uint64 {
	version, err := realised.Version(nn.ResourceVersion)
	if err != nil {
		return 0
	}
	return version
}

// complete returns an error while pods on the node would be closed because they have no VNID, and may still get one.
func (t *tenants) complete(network *overlay.Network, now time.Time) error {
	if network.Projects.InUse() {
		return nil
	}
	names := network.WithoutVNID()
	if len(names) == 0 {
		t.missing = time.Time{}
		return nil
	}
	if t.missing.IsZero() || len(names) < t.missed {
		t.missing = now
	}
	t.missed = len(names)
	const most = 10
	text := clusternetwork.FirstNames(names, most)
	patience := missingPatience
	if network.Ready() != nil {
		patience = startPatience
	}
	if now.Sub(t.missing) < patience {
		return fmt.Errorf("waiting for the VNIDs of namespaces %s before packets carry them: the controller creates a NetNamespace for each", text)
	}
	t.missing = time.Time{}
	t.log.Error("pods' ports stay closed: their namespaces have no VNID until the controller allocates one", "namespaces", text)
	return nil
}
