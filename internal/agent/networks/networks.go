// Package networks starts and stops the networks of one node as objects configure them, decides which is the default, and places pods.
package networks

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/steps"
)

// Options are the options of Networks. All are required.
type Options struct {
	// Kinds are the networks other than the overlay.
	Kinds []network.Kind
	// Config is the configuration of the API server's client.
	Config *rest.Config
	// Store has the attachments of this node, and Handler serves the container runtime.
	Store   *attach.Store
	Handler Handler
	// Overlay is the overlay, which is not one of the kinds.
	Overlay Overlay
	// Node describes this node to networks, except for its engines.
	Node node.Node
	// OVSRunDir is the directory of the switch's sockets, for messages.
	OVSRunDir string
	// Events sends networks' events, and Report returns what replaces a network's section in the node's NodeNetwork.
	Events network.Events
	Report func(name string) func(weftv1.NodeNetworkSection)
	Log    *slog.Logger
}

// Handler serves the container runtime with the networks that run.
type Handler interface {
	// Serve adds a network until leave is called.
	Serve(name string, served network.Network, ready <-chan struct{}) (leave func())
	// Records returns the records of a network.
	Records(name string) network.Records
}

// Overlay is what networks need of the overlay.
type Overlay interface {
	// FollowPresence calls found with the overlay's presence, and again when it changes.
	FollowPresence(ctx context.Context, found func(network.Presence)) error
	// Ready returns nil if the overlay can serve pods, else what the agent waits for.
	Ready() error
}

// Networks are the networks of this node: which of them are present, and which is the default.
type Networks struct {
	options Options
	// kinds are the networks other than the overlay.
	kinds []*kind
	// overlay is closed when the overlay must be started.
	overlay     chan struct{}
	needOverlay func()
	// changed is signalled when the default network, or whether it can serve, may have changed.
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

// New returns the networks. Nothing is watched before Run.
func New(options Options) (*Networks, error) {
	n := &Networks{options: options, overlay: make(chan struct{}), changed: make(chan struct{}, 1)}
	n.needOverlay = sync.OnceFunc(func() { close(n.overlay) })
	for _, k := range options.Kinds {
		made, err := newKind(options.Config, k)
		if err != nil {
			return nil, fmt.Errorf("network %s: %w", k.Name, err)
		}
		n.kinds = append(n.kinds, made)
	}
	return n, nil
}

func newKind(config *rest.Config, k network.Kind) (*kind, error) {
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
	objects, err := cache.New(config, cache.Options{
		Scheme: scheme, Mapper: mapper, ByObject: by, NewInformer: informer.Latest(),
	})
	if err != nil {
		return nil, fmt.Errorf("watching the API server: %w", err)
	}
	api, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return &kind{Kind: k, objects: objects, api: api, wake: make(chan struct{}, 1), why: notRead, unknown: notRead}, nil
}

// Run starts and stops networks as their presence changes, until ctx ends. The networks themselves end with engineCtx.
func (n *Networks) Run(ctx context.Context, at Running) error {
	if len(n.kinds) == 0 {
		n.needOverlay()
		return nil
	}
	following, followCtx := errgroup.WithContext(ctx)
	for _, k := range n.kinds {
		following.Go(func() error { return k.objects.Start(followCtx) })
		following.Go(func() error { return n.follow(followCtx, at, k) })
	}
	following.Go(func() error { return n.followOverlay(followCtx, at) })
	return following.Wait()
}

// followOverlay starts the overlay once a ClusterNetwork exists, or its pods need it.
func (n *Networks) followOverlay(ctx context.Context, at Running) error {
	if HasRecords(n.options.Store, overlay.NetworkName) {
		n.needOverlay()
	}
	return n.options.Overlay.FollowPresence(ctx, func(p network.Presence) {
		if p.Present {
			n.needOverlay()
		} else if !HasRecords(n.options.Store, overlay.NetworkName) {
			n.leaveOverlay(at)
		}
		n.mu.Lock()
		n.home, n.known = p, true
		n.mu.Unlock()
		steps.Wake(n.changed)
	})
}

// leaveOverlay removes what is left of an overlay that is no longer configured and has no pods on this node.
func (n *Networks) leaveOverlay(at Running) {
	select {
	case <-n.overlay: // it runs, and continues
	default:
		at.Engines.Handovers.Done(overlay.NetworkName)
	}
}

// Removed is called when a record of a network has been deleted.
func (n *Networks) Removed(name string) {
	for _, k := range n.kinds {
		if k.Name == name {
			steps.Wake(k.wake)
		}
	}
}

// Needed is closed once the overlay must be started.
func (n *Networks) Needed() <-chan struct{} { return n.overlay }

// Changed receives once the default network, or whether it can serve, may have changed. It has one receiver.
func (n *Networks) Changed() <-chan struct{} { return n.changed }

// Look makes Changed receive.
func (n *Networks) Look() { steps.Wake(n.changed) }

// Configurations returns the configurations of the container runtime that networks bring, by network.
func (n *Networks) Configurations() map[string]network.Conflist {
	all := map[string]network.Conflist{}
	for _, k := range n.kinds {
		if k.CNI.Content != nil {
			all[k.Name] = k.CNI
		}
	}
	return all
}

// CanServe reports whether a network other than the overlay runs and can serve pods.
func (n *Networks) CanServe(name string) bool {
	for _, k := range n.kinds {
		if k.Name == name {
			_, running, err := k.state()
			return running && err == nil
		}
	}
	return false
}

// TunnelPorts returns the UDP ports of tunnels that networks' objects configure.
func (n *Networks) TunnelPorts() []uint16 {
	var ports []uint16
	for _, k := range n.kinds {
		ports = append(ports, k.tunnelPorts()...)
	}
	return ports
}

// tunnelPorts returns the UDP ports of tunnels that the network's objects configure.
func (k *kind) tunnelPorts() []uint16 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.presence.TunnelPorts
}

// HasRecords reports whether a network has attachments on this node.
func HasRecords(store *attach.Store, name string) bool {
	return slices.ContainsFunc(store.List(), func(rec attach.Record) bool { return network.KindOf(rec.Network) == name })
}

// ClosedPorts returns the UDP ports of the networks' tunnels, ascending, without duplicates.
func ClosedPorts(kinds []network.Kind) []uint16 {
	var ports []uint16
	for i := range kinds {
		ports = append(ports, kinds[i].ClosedPorts...)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}
