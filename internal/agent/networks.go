package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"weft.dev/weft/internal/agent/engines"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/health"
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/steps"
)

// networks are the networks of this node: which of them are present, and which is the default.
type networks struct {
	agent *agent
	// kinds are the networks other than the overlay.
	kinds []*kind
	// overlay is closed when the overlay must be started.
	overlay     chan struct{}
	needOverlay func()
	// changed wakes the writer of the runtime's configuration.
	changed chan struct{}

	mu sync.Mutex
	// home is the overlay's presence, valid once known is set.
	home  network.Presence
	known bool
}

// kind is a network other than the overlay, present or not.
type kind struct {
	network.Kind
	objects cache.Cache
	api     client.Client
	wake    chan struct{}

	mu sync.Mutex
	// presence is decided from the API server's objects, and valid once known is set.
	presence network.Presence
	known    bool
	// unknown is why the presence is not known yet.
	unknown string
	// watched says that the objects of Presence, which also contain the bindings of pods, are watched.
	watched bool
	// network is nil while the network does not run on this node; why then says what it waits for.
	network network.Network
	why     string
}

// notRead is the state of a network before its first request to the API server.
const notRead = "its objects have not been read yet"

// newNetworks returns the networks of an agent. It watches nothing before run.
func newNetworks(a *agent) (*networks, error) {
	n := &networks{agent: a, overlay: make(chan struct{}), changed: make(chan struct{}, 1)}
	n.needOverlay = sync.OnceFunc(func() { close(n.overlay) })
	for _, k := range a.opts.Networks {
		made, err := newKind(a, k)
		if err != nil {
			return nil, fmt.Errorf("network %s: %w", k.Name, err)
		}
		n.kinds = append(n.kinds, made)
	}
	return n, nil
}

func newKind(a *agent, k network.Kind) (*kind, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if k.Scheme != nil {
		if err := k.Scheme(scheme); err != nil {
			return nil, fmt.Errorf("scheme: %w", err)
		}
	}
	// The mapper is built in advance: with discovery, the agent could not start without the API server.
	mapper := meta.NewDefaultRESTMapper(nil)
	by := map[client.Object]cache.ByObject{}
	for _, object := range k.Objects {
		gvk, err := apiutil.GVKForObject(object.Kind, scheme)
		if err != nil {
			return nil, fmt.Errorf("scheme: %w", err)
		}
		scope := meta.RESTScopeRoot
		if object.Namespaced {
			scope = meta.RESTScopeNamespace
		}
		if object.Resource == "" {
			mapper.Add(gvk, scope)
		} else {
			mapper.AddSpecific(gvk, gvk.GroupVersion().WithResource(object.Resource), gvk.GroupVersion().WithResource(object.Resource), scope)
		}
		watched := object.By
		watched.Transform = object.Strip
		if object.Strip == nil {
			watched.Transform = cache.TransformStripManagedFields()
		}
		by[object.Kind] = watched
	}
	objects, err := cache.New(a.opts.Config, cache.Options{
		Scheme: scheme, Mapper: mapper, ByObject: by, NewInformer: informer.Latest(),
	})
	if err != nil {
		return nil, fmt.Errorf("watching the API server: %w", err)
	}
	api, err := client.New(a.opts.Config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return &kind{Kind: k, objects: objects, api: api, wake: make(chan struct{}, 1), why: notRead, unknown: notRead}, nil
}

// run starts and stops networks as their presence changes, until ctx ends. The networks themselves end with engineCtx.
func (n *networks) run(ctx, engineCtx context.Context, e *engines.Engines, group *errgroup.Group) error {
	if len(n.kinds) == 0 {
		n.needOverlay()
		return nil
	}
	n.agent.waiting.set("waiting for the API server to say which networks are configured")
	n.agent.watchNode(e, n.ready)
	n.agent.health.Warn(health.Check{Name: "networks", Run: n.problems})
	following, followCtx := errgroup.WithContext(ctx)
	for _, k := range n.kinds {
		following.Go(func() error { return k.objects.Start(followCtx) })
		following.Go(func() error { return n.follow(followCtx, engineCtx, k, e, group) })
	}
	following.Go(func() error { return n.followOverlay(followCtx) })
	following.Go(func() error { return n.configure(followCtx, e) })
	return following.Wait()
}

// followOverlay starts the overlay once a ClusterNetwork exists, or its pods need it.
func (n *networks) followOverlay(ctx context.Context) error {
	a := n.agent
	if hasRecords(a.store, overlay.NetworkName) {
		n.needOverlay()
	}
	return a.objects.FollowPresence(ctx, func(p network.Presence) {
		if p.Present {
			n.needOverlay()
		} else if !hasRecords(a.store, overlay.NetworkName) {
			n.leaveOverlay()
		}
		n.mu.Lock()
		n.home, n.known = p, true
		n.mu.Unlock()
		steps.Wake(n.changed)
	})
}

// leaveOverlay removes what is left of an overlay that is no longer configured and has no pods on this node.
func (n *networks) leaveOverlay() {
	select {
	case <-n.overlay: // it runs, and continues
	default:
		if e := n.agent.engines.Load(); e != nil {
			e.Handovers.Done(overlay.NetworkName)
		}
	}
}

// removed is called when a record of a network has been deleted.
func (n *networks) removed(name string) {
	for _, k := range n.kinds {
		if k.Name == name {
			steps.Wake(k.wake)
		}
	}
}

// hasRecords reports whether a network has attachments on this node.
func hasRecords(store *attach.Store, name string) bool {
	return slices.ContainsFunc(store.List(), func(rec attach.Record) bool { return network.KindOf(rec.Network) == name })
}
