package node

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/multicast"
	"weft.dev/weft/internal/overlay/node/watch"
)

// multicastNamespaces tracks which namespaces have multicast, with their VNIDs. It follows NetNamespaces in the modes that have VNIDs.
type multicastNamespaces struct {
	*watch.Follower
	cache cache.Cache

	// The fields below are those of the step in progress.

	// received says that the network has received everything once; unsettled, that the last update may not be in effect.
	received, unsettled bool
}

func newMulticast(store cache.Cache, vnids *watch.NetNamespaces, changed func()) *multicastNamespaces {
	return &multicastNamespaces{Follower: watch.NewFollower(vnids, changed), cache: store}
}

// prepare gives the network all namespaces before it enters a mode that has VNIDs. An error says what the agent waits for.
func (m *multicastNamespaces) prepare(ctx context.Context, network *overlay.Network, view *overlay.View) error {
	if !view.Cluster.Mode.HasVNIDs() {
		return nil
	}
	m.Await(true)
	if err := m.Begin(ctx); err != nil {
		return err
	}
	m.Await(false)
	if err := m.step(ctx, network); errors.Is(err, watch.ErrUnprogrammed) {
		m.Signal() // the step is retried; nothing else waits for it
	} else if err != nil {
		return err
	}
	return nil
}

// end stops watching. The network is in a mode without multicast. Before it enters another one, it receives everything again.
func (m *multicastNamespaces) end(ctx context.Context) error {
	watched, err := m.End(ctx)
	if watched {
		m.received, m.unsettled = false, false
	}
	return err
}

// step updates the network with what changed since the last step; the first time, with everything.
func (m *multicastNamespaces) step(ctx context.Context, network *overlay.Network) error {
	return m.Step(ctx, func(ctx context.Context, dirty map[string]struct{}) error {
		err := m.advance(ctx, network, dirty)
		m.Mark.Done(err)
		return err
	})
}

// advance does the work of step once objects are watched.
func (m *multicastNamespaces) advance(ctx context.Context, network *overlay.Network, dirty map[string]struct{}) error {
	change, err := m.change(ctx, dirty)
	if err != nil {
		m.Untake(dirty)
		return err
	}
	if len(change.Namespaces) == 0 && m.received && !m.unsettled {
		return nil
	}
	change.Reset = !m.received
	m.received, m.unsettled = true, true
	if err := network.Multicast.Update(ctx, change); err != nil {
		return fmt.Errorf("%w: %w", watch.ErrUnprogrammed, err)
	}
	m.unsettled = false
	return nil
}

// change reads the NetNamespaces that changed.
func (m *multicastNamespaces) change(ctx context.Context, names map[string]struct{}) (multicast.Change, error) {
	change := multicast.Change{Namespaces: map[string]*multicast.Namespace{}}
	for name := range names {
		var nn networkv1.NetNamespace
		exists, err := informer.Read(ctx, m.cache, client.ObjectKey{Name: name}, &nn)
		if err != nil {
			return change, err
		}
		change.Namespaces[name] = nil
		if _, usable := watch.VNIDOf(&nn); exists && usable {
			change.Namespaces[name] = wantsMulticast(&nn)
		}
	}
	return change, nil
}

// wantsMulticast returns the part of a NetNamespace on which multicast depends.
func wantsMulticast(nn *networkv1.NetNamespace) *multicast.Namespace {
	return &multicast.Namespace{VNID: nn.NetID, On: nn.Annotations[networkv1.AnnotationMulticast] == "true"}
}

// stripNetNamespace removes the parts of a NetNamespace that nodes do not read.
func stripNetNamespace(nn *networkv1.NetNamespace) {
	value, says := nn.Annotations[networkv1.AnnotationMulticast]
	nn.Annotations, nn.Status = nil, networkv1.NetNamespaceStatus{}
	if says {
		nn.Annotations = map[string]string{networkv1.AnnotationMulticast: value}
	}
}
