// Package node is the overlay's part of the agent: it follows the API server's objects of the overlay, and hands what they mean for this node
// to the network and its features.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/node/egressips"
	"weft.dev/weft/internal/overlay/node/hostsubnet"
	"weft.dev/weft/internal/overlay/node/services"
	"weft.dev/weft/internal/overlay/node/watch"
	"weft.dev/weft/internal/policy/follow"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/steps"
)

// defaultClusterNetwork is the name of the only ClusterNetwork that is used.
const defaultClusterNetwork = networkv1.ClusterNetworkDefault

// EngineFlows is the name of the engine of the overlay's flows in the agent's state.
const EngineFlows = "openflow"

// Options are the options of Objects.
type Options struct {
	// Config is the configuration of the API server's client. Required.
	Config *rest.Config
	// Clients write events that other programs react to. Required if the objects are followed.
	Clients kubernetes.Interface
	// Node is the name of this node's Node object. Required.
	Node string
	// StateDir is the directory of the file that keeps the addresses of DNS names over a restart. Required.
	StateDir string
	// ResolvConf is the file with the name servers that resolve the names in EgressNetworkPolicies. Required.
	ResolvConf string
	// Closed are the addresses and ports that are closed to pods. Default: none.
	Closed overlay.Closed
	// ClosedPorts are UDP ports of other networks' tunnels. Default: none.
	ClosedPorts []uint16
	// Events reports on objects. Nil: no events are sent, and no address is probed, as in a dry run.
	Events Events
	// Log is the agent's log. Required.
	Log *slog.Logger
}

// Events reports on objects by events.
type Events interface {
	services.Events
	// EgressNetworkPolicy reports problems of a policy on this node, such as names that cannot be resolved.
	EgressNetworkPolicy(object *networkv1.EgressNetworkPolicy, reason, note string)
	// HostSubnet reports why this node does not hold an address of its HostSubnet.
	HostSubnet(uid types.UID, version string, address netip.Addr, note string)
	// Policy reports what this node does not implement of a NetworkPolicy.
	Policy(np *networkingv1.NetworkPolicy, note string)
}

// Objects are the API server's objects of the network, kept current by watches. A signal says only that something changed: its receivers
// read all objects.
type Objects struct {
	cache  cache.Cache
	node   string
	log    *slog.Logger
	events Events
	// changes are the changes of ClusterNetwork and HostSubnets, and of the node, that are not programmed yet.
	changes *Changes
	// services have separate handlers: an event of a Service causes work for that Service only.
	services *services.Follower
	// policies are watched in one mode only.
	policies *follow.Follower
	// tenants have a separate watch, only in the mode that has them.
	tenants *tenants
	// egressFirewalls and egressIPs are for traffic out of the cluster: EgressNetworkPolicies, and the egress IPs of NetNamespaces. Both have
	// separate watches, in the modes that have VNIDs.
	egressFirewalls *egressFirewalls
	egressIPs       *egressips.Follower
	// multicast has a separate watch, in the modes that have VNIDs.
	multicast *multicastNamespaces
	// closed are the addresses and ports that the agent's options close to pods.
	closed overlay.Closed
	// closedPorts are UDP ports of other networks' tunnels.
	closedPorts []uint16
	// port is the tunnels' port.
	port *hostsubnet.TunnelPort
	// marks are the resourceVersions observed. mode is the network's mode: "" before the first one, or during a change of modes.
	marks *watch.Marks
	mode  atomic.Value
}

// New returns the objects. Nothing is watched before Run.
func New(opts Options) (*Objects, error) {
	store, marks, err := newCache(&opts)
	if err != nil {
		return nil, err
	}
	o := &Objects{
		cache: store, node: opts.Node, log: opts.Log, events: opts.Events, changes: newChanges(),
		services: services.New(services.Options{Cache: store, Node: opts.Node, Clients: opts.Clients, Events: opts.Events, Log: opts.Log}),
		policies: follow.New(store, policyMark{marks.Of(realised.NetworkPolicy)}), marks: marks,
		port: hostsubnet.NewTunnelPort(opts.Log), closed: opts.Closed, closedPorts: opts.ClosedPorts,
	}
	vnids := watch.New(store, marks)
	o.tenants = newTenants(store, vnids, opts.Log, o.Changed)
	o.egressFirewalls = newEgressFirewalls(store, vnids, opts.Log)
	o.egressFirewalls.resolve(&opts)
	o.tenants.ahead = o.egressFirewalls.ahead
	o.egressIPs = egressips.New(store, vnids, opts.Node, o.Changed)
	if opts.Events != nil {
		o.egressIPs.Report(opts.Events.HostSubnet)
	}
	o.multicast = newMulticast(store, vnids, o.Changed)
	return o, nil
}

// newCache returns the cache of all kinds of objects, and the marks that are notified of arriving ones.
func newCache(opts *Options) (cache.Cache, *watch.Marks, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(networkv1.AddToScheme(scheme), corev1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), networkingv1.AddToScheme(scheme)); err != nil {
		return nil, nil, fmt.Errorf("scheme: %w", err)
	}
	// The mapper is built in advance: with discovery, the agent could not start without the API server.
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{networkv1.GroupVersion(), corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion, networkingv1.SchemeGroupVersion})
	mapper.Add(networkv1.GroupVersion().WithKind("ClusterNetwork"), meta.RESTScopeRoot)
	mapper.Add(networkv1.GroupVersion().WithKind("HostSubnet"), meta.RESTScopeRoot)
	mapper.Add(networkv1.GroupVersion().WithKind("NetNamespace"), meta.RESTScopeRoot)
	mapper.Add(networkv1.GroupVersion().WithKind("EgressNetworkPolicy"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Service"), meta.RESTScopeNamespace)
	mapper.Add(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	mapper.Add(networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"), meta.RESTScopeNamespace)
	virtual, err := labels.Parse(services.ServiceLabels)
	if err != nil {
		return nil, nil, fmt.Errorf("labels of Services: %w", err)
	}
	served, err := labels.Parse(services.SliceLabels)
	if err != nil {
		return nil, nil, fmt.Errorf("labels of EndpointSlices: %w", err)
	}
	marks := watch.NewMarks()
	store, err := cache.New(opts.Config, cache.Options{
		Scheme: scheme, Mapper: mapper, DefaultTransform: transform(opts.Node, marks), NewInformer: informer.New(beginsWithOldList),
		ByObject: map[client.Object]cache.ByObject{&corev1.Service{}: {Label: virtual}, &discoveryv1.EndpointSlice{}: {Label: served}},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("watching the API server: %w", err)
	}
	return store, marks, nil
}

// Report sets the function that is called when what Realised or RefusedEgressIPs return may have changed. It must not block. It is set before
// Run, and by default nothing is called.
func (o *Objects) Report(changed func()) {
	o.egressIPs.OnChange(changed)
	o.marks.OnChange(changed)
}

// Changes returns the changes that are not programmed yet.
func (o *Objects) Changes() *Changes { return o.changes }

// Changed records a change of the node that Program must take into account.
func (o *Objects) Changed() { o.changes.signal() }

// AddressesChanged records a change of the node's addresses that other programs manage.
func (o *Objects) AddressesChanged() { o.egressIPs.Changed() }

// PodsChanged records that the set of namespaces with pods on this node has changed.
func (o *Objects) PodsChanged() {
	o.egressFirewalls.signal()
	o.egressIPs.Populate()
}

// PacketIn handles a packet that the switch reports. It does not block.
func (o *Objects) PacketIn(in *openflow.PacketIn) { o.services.PacketIn(in) }

// ReportServiceWarnings reports what this node's switch does not implement of a Service.
func (o *Objects) ReportServiceWarnings(ctx context.Context, owner reconcile.Owner, warnings []error) {
	o.services.Report(ctx, owner, warnings)
}

// Port returns the tunnels' port.
func (o *Objects) Port() *hostsubnet.TunnelPort { return o.port }

// RefusedEgressIPs returns the egress IPs that this node cannot hold, with the reasons; nil while they are not known.
func (o *Objects) RefusedEgressIPs() map[string]string { return o.egressIPs.Refusals() }

// Follow keeps the network's features in step with the objects until ctx ends. Program keeps the network itself in step.
func (o *Objects) Follow(ctx context.Context, network *overlay.Network) error {
	following, followCtx := errgroup.WithContext(ctx)
	keep := func(wake <-chan struct{}, what string, step func() error) {
		following.Go(func() error { return steps.Keep(followCtx, o.log, wake, what, step) })
	}
	following.Go(func() error { return o.services.Run(followCtx, network.Services) })
	keep(o.policies.Wake(), "NetworkPolicies", func() error { return o.policies.Step(followCtx, network.UpdatePolicies) })
	keep(o.tenants.Wake(), "the VNIDs of projects", func() error { return o.tenants.step(followCtx, network) })
	keep(o.egressFirewalls.wake, "EgressNetworkPolicies", func() error { return o.egressFirewalls.step(followCtx, network) })
	keep(o.egressIPs.Wake(), "egress addresses", func() error { return o.egressIPs.Step(followCtx, network) })
	keep(o.egressIPs.WithPods(), "nodes with egress addresses", func() error {
		o.egressIPs.UpdateProbed(network)
		return nil
	})
	keep(o.multicast.Wake(), "multicast", func() error { return o.multicast.step(followCtx, network) })
	following.Go(func() error { return o.egressFirewalls.names.Run(followCtx) })
	following.Go(func() error { return o.egressIPs.Run(followCtx) })
	return following.Wait()
}

// Host is what the network's state depends on besides objects.
type Host struct {
	// Facts returns what the overlay needs to know of the node: the interface with this address.
	Facts func(address netip.Addr) (overlay.Node, error)
	// Pass opens the host's firewall for these packets.
	Pass func(ctx context.Context, traffic []nft.Traffic) error
}

// Program brings the network in step with the current objects. With engines that only read, it is a dry run.
func (o *Objects) Program(ctx context.Context, network *overlay.Network, at Host) (overlay.View, error) {
	view, err := o.view(ctx)
	if err != nil {
		return view, err
	}
	if view.Node, err = at.Facts(view.Local.HostIP); err != nil {
		return view, err
	}
	if err := at.Pass(ctx, host.Traffic(view.Node.Datapath, view.Cluster.VXLANPort)); err != nil {
		return view, err
	}
	if err := o.tenants.prepare(ctx, network, view.Cluster.Mode); err != nil {
		return view, err
	}
	if err := o.egressFirewalls.prepare(ctx, network, &view); err != nil {
		return view, err
	}
	if err := o.egressIPs.Prepare(ctx, network, &view); err != nil {
		return view, err
	}
	if err := o.multicast.prepare(ctx, network, &view); err != nil {
		return view, err
	}
	o.entering(view.Cluster.Mode)
	if err := o.updateNetwork(ctx, network, view); err != nil {
		return view, err
	}
	o.entered(view.Cluster.Mode)
	if view.Guarded() { // the modes with VNIDs
		return view, nil
	}
	return view, errors.Join(o.tenants.end(ctx), o.egressFirewalls.end(ctx, network), o.egressIPs.End(ctx, network), o.multicast.end(ctx))
}

// transform is an informer's transform. It is called for each object that arrives from the API server, and for all objects of a list before
// the first of them is reported.
func transform(node string, marks *watch.Marks) toolscache.TransformFunc {
	return func(object any) (any, error) {
		marks.Came(object)
		if hs, ok := object.(*networkv1.HostSubnet); ok && hs.Name != node { // the statuses of other nodes are many times larger than the rest
			hs.Status = networkv1.HostSubnetStatus{RefusedEgressIPs: hs.Status.RefusedEgressIPs}
		}
		return strip(object)
	}
}

// strip removes the parts of objects that the agent does not read, because thousands of objects are kept in memory.
func strip(object any) (any, error) {
	if o, ok := object.(client.Object); ok {
		o.SetManagedFields(nil)
	}
	switch o := object.(type) {
	case *corev1.Node:
		o.Annotations, o.Spec, o.Status = nil, corev1.NodeSpec{}, corev1.NodeStatus{Addresses: o.Status.Addresses}
	case *networkv1.NetNamespace:
		stripNetNamespace(o)
	case *networkv1.EgressNetworkPolicy:
		o.Annotations, o.Status = nil, networkv1.EgressNetworkPolicyStatus{}
	case *corev1.Service:
		services.Strip(o)
	case *corev1.Pod:
		follow.StripPod(o)
	case *corev1.Namespace:
		o.Annotations, o.Spec, o.Status = nil, corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
	case *networkingv1.NetworkPolicy:
		follow.StripPolicy(o)
	case *discoveryv1.EndpointSlice:
		o.Annotations = nil
		for i := range o.Endpoints {
			o.Endpoints[i].TargetRef, o.Endpoints[i].DeprecatedTopology = nil, nil
		}
	}
	return object, nil
}

// Run watches until ctx ends.
func (o *Objects) Run(ctx context.Context) error {
	for _, kind := range []client.Object{&networkv1.ClusterNetwork{}, &networkv1.HostSubnet{}} {
		informer, err := o.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
		handler := toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { o.changes.signal() },
			UpdateFunc: func(old, now any) {
				if concerns(old, now) {
					o.changes.signal()
				} else if host, ok := now.(*networkv1.HostSubnet); ok {
					before := old.(*networkv1.HostSubnet) //nolint:forcetypeassert // of one kind
					if !slices.Equal(before.Status.RefusedEgressIPs, host.Status.RefusedEgressIPs) {
						o.egressIPs.Changed()
					}
				}
			},
			DeleteFunc: func(any) { o.changes.signal() },
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
	}
	if err := o.services.Watch(ctx); err != nil {
		return err
	}
	return o.cache.Start(ctx)
}

// Begin waits until the first lists of all kinds that every start waits for are processed, and gives the network all Services: its first
// Update removes those that it was not given.
func (o *Objects) Begin(ctx context.Context, network *overlay.Network) error {
	if err := o.synced(ctx); err != nil {
		return err
	}
	return o.services.Step(ctx, network.Services)
}

// synced waits until all first lists are processed.
func (o *Objects) synced(ctx context.Context) error {
	var known []toolscache.DoneChecker
	for _, kind := range []client.Object{&networkv1.ClusterNetwork{}, &networkv1.HostSubnet{}, &corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Node{}} {
		informer, err := o.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
		known = append(known, informer.HasSyncedChecker())
	}
	if !toolscache.WaitFor(ctx, "", known...) { // client-go's other functions for this poll ten times a second
		return fmt.Errorf("waiting for the API server: %w", context.Cause(ctx))
	}
	return nil
}

// view returns the overlay's view of the objects. An error says what is missing or wrong, and what to do. An invalid object of a remote
// host is left out and logged: it does not affect the others.
func (o *Objects) view(ctx context.Context) (overlay.View, error) {
	var network networkv1.ClusterNetwork
	if err := o.cache.Get(ctx, client.ObjectKey{Name: defaultClusterNetwork}, &network); err != nil {
		return overlay.View{}, fmt.Errorf("ClusterNetwork %s (create it to define the pods' addresses): %w", defaultClusterNetwork, err)
	}
	config, err := clusternetwork.Parse(&network)
	if err != nil {
		return overlay.View{}, err
	}
	var subnets networkv1.HostSubnetList
	if err := o.cache.List(ctx, &subnets); err != nil {
		return overlay.View{}, fmt.Errorf("HostSubnets: %w", err)
	}
	view := overlay.View{Cluster: config, Closed: o.closed, ClosedPorts: o.closedPorts}
	found := false
	for i := range subnets.Items {
		object := &subnets.Items[i]
		subnet, err := clusternetwork.ParseHostSubnet(object)
		own := object.Name == o.node
		switch {
		case own && err != nil:
			return overlay.View{}, err
		case own && !subnet.Subnet.IsValid():
			return overlay.View{}, fmt.Errorf("HostSubnet %s: it has no subnet yet; the controller allocates one", object.Name)
		case own:
			view.Local, found = subnet, true
			view.Cluster.VXLANPort = o.port.Settle(config.VXLANPort, object)
		case err != nil:
			o.log.Error("remote host left out: its HostSubnet is invalid", "hostsubnet", object.Name, "error", err)
		case subnet.Subnet.IsValid():
			view.Remotes = append(view.Remotes, subnet)
		}
	}
	if !found {
		return overlay.View{}, fmt.Errorf("HostSubnet %s: not found; the controller creates it once the Node has an InternalIP", o.node)
	}
	return view, nil
}

// OwnSubnet returns this node's HostSubnet from the cache; nil if there is none, or the cache is not filled yet.
func (o *Objects) OwnSubnet(ctx context.Context) (*networkv1.HostSubnet, error) {
	ctx, cancel := context.WithTimeout(ctx, knownTimeout)
	defer cancel()
	var own networkv1.HostSubnet
	err := o.cache.Get(ctx, client.ObjectKey{Name: o.node}, &own)
	switch {
	case apierrors.IsNotFound(err), errors.Is(err, context.DeadlineExceeded):
		return nil, nil //nolint:nilnil // none is an answer
	case err != nil:
		return nil, fmt.Errorf("HostSubnet %s: %w", o.node, err)
	}
	return &own, nil
}

// Hosts counts the HostSubnets.
func (o *Objects) Hosts(ctx context.Context) int {
	var all networkv1.HostSubnetList
	if err := o.cache.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return 0 // the number is unknown
	}
	return len(all.Items)
}

// knownTimeout bounds a read from a cache that may not be filled yet.
const knownTimeout = 100 * time.Millisecond

// concerns reports whether an update of an object changes more than its status. Readers of the status watch it themselves.
func concerns(old, now any) bool {
	before, ok := old.(client.Object)
	after, ok2 := now.(client.Object)
	if !ok || !ok2 {
		return true
	}
	return before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
		!equality.Semantic.DeepEqual(before.GetAnnotations(), after.GetAnnotations())
}
