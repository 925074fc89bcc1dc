package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/policy/follow"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/internal/service"
)

// defaultClusterNetwork is the name of the only ClusterNetwork that is used.
const defaultClusterNetwork = "default"

// objects are the API server's objects of the network, kept current by watches. A signal says only that something changed: its receivers
// read all objects.
type objects struct {
	cache   cache.Cache
	node    string
	log     *slog.Logger
	changed chan struct{}
	// services have separate handlers: an event of a Service causes work for that Service only.
	services *services
	// policies are watched in one mode only.
	policies *follow.Follower
	// tenants have a separate watch, only in the mode that has them.
	tenants *tenants
	// egressFirewalls and egressIPs are for traffic out of the cluster: EgressNetworkPolicies, and the egress IPs of NetNamespaces. Both have
	// separate watches, in the modes that have VNIDs.
	egressFirewalls *egressFirewalls
	egressIPs       *egressIPs
	// multicast has a separate watch, in the modes that have VNIDs.
	multicast *multicastNamespaces
	// closed are the addresses and ports that the agent's options close to pods.
	closed overlay.Closed
	// closedPorts are UDP ports of other networks' tunnels.
	closedPorts []uint16
	// port is the tunnels' port.
	port *tunnelPort
	// marks are the resourceVersions observed. mode is the network's mode: "" before the first one, or during a change of modes.
	marks *marks
	mode  atomic.Value

	mu sync.Mutex
	// since is when the first of the changes was observed that no step has taken yet.
	since time.Time
}

func newObjects(opts *Options) (*objects, error) {
	node, log := opts.Node, opts.Log
	scheme := runtime.NewScheme()
	if err := errors.Join(networkv1.AddToScheme(scheme), corev1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), networkingv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
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
	served, err := labels.Parse(servedLabels)
	if err != nil {
		return nil, fmt.Errorf("labels of Services: %w", err)
	}
	marks := newMarks()
	marks.node = node
	store, err := cache.New(opts.Config, cache.Options{
		Scheme: scheme, Mapper: mapper, DefaultTransform: marks.strip, NewInformer: informer.New(beginsWithOldList),
		ByObject: map[client.Object]cache.ByObject{&corev1.Service{}: {Label: served}, &discoveryv1.EndpointSlice{}: {Label: served}},
	})
	if err != nil {
		return nil, fmt.Errorf("watching the API server: %w", err)
	}
	o := &objects{
		cache: store, node: node, log: log, changed: make(chan struct{}, 1),
		services: newServices(store, node), policies: follow.New(store, policyMark{marks.of(realised.NetworkPolicy)}), marks: marks,
		port:   &tunnelPort{log: log},
		closed: overlay.Closed{Metadata: opts.MetadataAddresses, TCPPorts: opts.ClosedNodePorts},
	}
	o.closedPorts = closedPorts(opts.Networks)
	vnids := &netNamespaces{cache: store, marks: marks}
	o.tenants = newTenants(store, vnids, log, o.signal)
	o.egressFirewalls = newEgressFirewalls(store, vnids, log)
	o.tenants.ahead = o.egressFirewalls.ahead
	o.egressIPs = newEgressIPs(store, vnids, node, o.signal)
	o.multicast = newMulticast(store, vnids, o.signal)
	return o, nil
}

// servedLabels select the same Services and slices as kube-proxy: no headless ones, and none of another proxy.
const servedLabels = "!" + labelProxy + ",!" + corev1.IsHeadlessService

// labelProxy names another proxy that serves the Service (k8s.io/kubernetes/pkg/proxy/apis).
const labelProxy = "service.kubernetes.io/service-proxy-name"

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
		stripService(o)
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

// stripService removes all annotations of a Service except the time at which it was idled.
func stripService(o *corev1.Service) {
	at, idled := o.Annotations[service.AnnotationIdled]
	o.Annotations = nil
	if idled {
		o.Annotations = map[string]string{service.AnnotationIdled: at}
	}
}

// run watches until ctx ends.
func (o *objects) run(ctx context.Context) error {
	for _, kind := range []client.Object{&networkv1.ClusterNetwork{}, &networkv1.HostSubnet{}} {
		informer, err := o.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
		handler := toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { o.signal() },
			UpdateFunc: func(old, now any) {
				if concerns(old, now) {
					o.signal()
				} else if host, ok := now.(*networkv1.HostSubnet); ok {
					before := old.(*networkv1.HostSubnet) //nolint:forcetypeassert // of one kind
					if !slices.Equal(before.Status.RefusedEgressIPs, host.Status.RefusedEgressIPs) {
						o.egressIPs.signal()
					}
				}
			},
			DeleteFunc: func(any) { o.signal() },
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
	}
	if err := o.services.watch(ctx); err != nil {
		return err
	}
	return o.cache.Start(ctx)
}

func (o *objects) signal() {
	o.putBack(time.Now())
	wakeUp(o.changed)
}

// putBack records that a change observed at this time is not programmed yet.
func (o *objects) putBack(seen time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() || seen.Before(o.since) {
		o.since = seen
	}
}

// take returns when the first change was observed that is not programmed yet; now, if there is none.
func (o *objects) take() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	since := o.since
	o.since = time.Time{}
	if since.IsZero() {
		return time.Now()
	}
	return since
}

// synced waits until all first lists are processed.
func (o *objects) synced(ctx context.Context) error {
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
func (o *objects) view(ctx context.Context) (overlay.View, error) {
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
			view.Cluster.VXLANPort = o.port.settle(config.VXLANPort, object)
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
