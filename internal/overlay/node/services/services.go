// Package services follows Services, EndpointSlices and Nodes, and hands what the overlay serves of them to its balancer. It also requests the
// pods of idled Services when a client connects.
package services

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/balancer"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/steps"
)

// indexService finds the EndpointSlices of a Service.
const indexService = "service"

// Options are the options of a Follower. All fields are required, except Clients and Events if Run is not called.
type Options struct {
	// Cache has the Services, EndpointSlices and Nodes.
	Cache cache.Cache
	// Node is the name of this node.
	Node string
	// Clients write the events that request the pods of idled Services.
	Clients kubernetes.Interface
	// Events reports on Services.
	Events Events
	// Log is the agent's log.
	Log *slog.Logger
}

// Events reports on Services by events.
type Events interface {
	// Service reports what this node does not implement of a Service.
	Service(namespace, name, uid, note string)
}

// Balancer is the overlay's feature that serves Services.
type Balancer interface {
	Update(ctx context.Context, change balancer.Change) error
}

// Follower tracks which Services changed, and compiles them from the cached objects.
type Follower struct {
	Options
	wake chan struct{}

	// mu guards the fields below.
	mu    sync.Mutex
	dirty map[types.NamespacedName]struct{}
	// nodes says that addresses of a node, or this node's zone, may have changed.
	nodes bool

	// The fields below are used by step only.
	idling  *idling
	place   service.Place
	known   map[types.NamespacedName]struct{}
	started bool
}

// New returns a follower. It follows nothing before Watch.
func New(options Options) *Follower {
	return &Follower{
		Options: options, wake: make(chan struct{}, 1), nodes: true, idling: newIdling(),
		dirty: map[types.NamespacedName]struct{}{}, known: map[types.NamespacedName]struct{}{},
	}
}

// Watch registers handlers for changes. It does not wait for the informers.
func (s *Follower) Watch(ctx context.Context) error {
	err := s.Cache.IndexField(ctx, &discoveryv1.EndpointSlice{}, indexService, func(object client.Object) []string {
		return []string{object.GetLabels()[discoveryv1.LabelServiceName]}
	})
	if err != nil {
		return fmt.Errorf("watching the API server: %w", err)
	}
	for kind, note := range map[client.Object]func(any){
		&corev1.Service{}:            s.noteService,
		&discoveryv1.EndpointSlice{}: s.noteSlice,
		&corev1.Node{}:               func(any) { s.note(func() { s.nodes = true }) },
	} {
		informer, err := s.Cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
		handler := toolscache.ResourceEventHandlerFuncs{
			AddFunc: note, DeleteFunc: note,
			UpdateFunc: func(before, after any) {
				if !sameNode(before, after) {
					note(before) // a slice may have belonged to another Service
					note(after)
				}
			},
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
	}
	return nil
}

// sameNode reports whether two states of a node are the same in the fields that matter here. Nodes are written often.
func sameNode(before, after any) bool {
	a, ok := before.(*corev1.Node)
	b, too := after.(*corev1.Node)
	return ok && too && a.Labels[corev1.LabelTopologyZone] == b.Labels[corev1.LabelTopologyZone] &&
		slices.Equal(a.Status.Addresses, b.Status.Addresses)
}

func (s *Follower) noteService(object any) {
	if svc, ok := informer.LastState(object).(*corev1.Service); ok {
		s.note(func() { s.dirty[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = struct{}{} })
	}
}

func (s *Follower) noteSlice(object any) {
	if slice, ok := informer.LastState(object).(*discoveryv1.EndpointSlice); ok {
		name := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
		s.note(func() { s.dirty[name] = struct{}{} })
	}
}

func (s *Follower) note(set func()) {
	s.mu.Lock()
	set()
	s.mu.Unlock()
	steps.Wake(s.wake)
}

// Step updates the network with what changed since the last step; the first time, with everything.
func (s *Follower) Step(ctx context.Context, services Balancer) error {
	s.mu.Lock()
	dirty, nodes := s.dirty, s.nodes
	s.dirty, s.nodes = map[types.NamespacedName]struct{}{}, false
	s.mu.Unlock()
	change, err := s.change(ctx, dirty, nodes)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		maps.Copy(s.dirty, dirty)
		s.nodes = s.nodes || nodes
		return err
	}
	return services.Update(ctx, change)
}

// change compiles what changed. It adds the names of all Services that had to be compiled to dirty.
func (s *Follower) change(ctx context.Context, dirty map[types.NamespacedName]struct{}, nodes bool) (balancer.Change, error) {
	change := balancer.Change{Services: map[reconcile.Owner]balancer.Service{}}
	if nodes {
		place, addresses, err := s.nodeFacts(ctx)
		if err != nil {
			return change, err
		}
		change.Nodes = &addresses
		if place != s.place || !s.started {
			s.place = place
			if err := s.everything(ctx, dirty); err != nil {
				return change, err
			}
		}
	}
	for name := range dirty {
		compiled, err := s.compile(ctx, name)
		if err != nil {
			return change, err
		}
		change.Services[service.Owner(name.Namespace, name.Name)] = compiled
	}
	s.started = true
	return change, nil
}

// everything adds all Services to the names, including deleted ones.
func (s *Follower) everything(ctx context.Context, names map[types.NamespacedName]struct{}) error {
	var list corev1.ServiceList
	if err := s.Cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing Services: %w", err)
	}
	for i := range list.Items {
		names[client.ObjectKeyFromObject(&list.Items[i])] = struct{}{}
	}
	for name := range s.known {
		names[name] = struct{}{}
	}
	return nil
}

// compile returns a Service in the form that this node's pods use; empty if it does not exist.
func (s *Follower) compile(ctx context.Context, name types.NamespacedName) (balancer.Service, error) {
	var object corev1.Service
	err := s.Cache.Get(ctx, name, &object)
	if apierrors.IsNotFound(err) {
		delete(s.known, name)
		s.idling.gone(name)
		return balancer.Service{}, nil
	}
	if err != nil {
		return balancer.Service{}, fmt.Errorf("reading Service %s: %w", name, err)
	}
	s.known[name] = struct{}{}
	svc, virtual := service.FromService(&object)
	_, another := object.Labels[labelProxy]
	switch {
	case !virtual:
		s.idling.gone(name)
		return balancer.Service{}, nil
	case another:
		s.idling.gone(name)
		return balancer.Service{Host: []netip.Addr{svc.ClusterIP}, Created: object.CreationTimestamp.Time}, nil
	default:
	}
	svc.Waking = s.awaits(&object)
	var list discoveryv1.EndpointSliceList
	err = s.Cache.List(ctx, &list, client.InNamespace(name.Namespace), client.MatchingFields{indexService: name.Name}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return balancer.Service{}, fmt.Errorf("EndpointSlices of %s: %w", name, err)
	}
	var found []service.Slice
	for i := range list.Items {
		if slice, usable := service.FromSlice(&list.Items[i]); usable {
			found = append(found, slice)
		}
	}
	addresses := service.Compile(svc, found, s.place)
	if slices.ContainsFunc(addresses, func(v service.VirtualAddress) bool { return v.Verdict == service.Forward }) {
		s.idling.served(name)
	}
	return balancer.Service{Addresses: addresses, Created: object.CreationTimestamp.Time}, nil
}

// awaits reports whether a Service's clients wait for its pods after it was idled. When the wait ends, the Service is compiled again.
func (s *Follower) awaits(object *corev1.Service) bool {
	waking, begins := s.idling.note(object, time.Now())
	if begins > 0 {
		name := client.ObjectKeyFromObject(object)
		time.AfterFunc(begins, func() { s.note(func() { s.dirty[name] = struct{}{} }) })
	}
	return waking
}

// nodeFacts returns this node's place, and the addresses that serve node ports.
func (s *Follower) nodeFacts(ctx context.Context) (service.Place, pipeline.NodeAddresses, error) {
	var list corev1.NodeList
	place, addresses := service.Place{Node: s.Node}, pipeline.NodeAddresses{}
	if err := s.Cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return place, addresses, fmt.Errorf("listing Nodes: %w", err)
	}
	for i := range list.Items {
		node, to := &list.Items[i], &addresses.Others
		if node.Name == s.Node {
			place.Zone, to = node.Labels[corev1.LabelTopologyZone], &addresses.Local
		}
		for _, address := range node.Status.Addresses {
			ip, err := netip.ParseAddr(address.Address)
			if err == nil && (address.Type == corev1.NodeInternalIP || address.Type == corev1.NodeExternalIP) {
				*to = append(*to, ip.Unmap())
			}
		}
	}
	for _, list := range []*[]netip.Addr{&addresses.Local, &addresses.Others} {
		slices.SortFunc(*list, netip.Addr.Compare)
		*list = slices.Compact(*list)
	}
	return place, addresses, nil
}

// Run keeps Services in step, and requests the pods of idled ones, until ctx ends.
func (s *Follower) Run(ctx context.Context, services Balancer) error {
	running, runCtx := errgroup.WithContext(ctx)
	running.Go(func() error {
		return steps.Keep(runCtx, s.Log, s.wake, "Services", func() error { return s.Step(runCtx, services) })
	})
	running.Go(func() error { return s.wakeIdled(runCtx) })
	return running.Wait()
}

// PacketIn handles a packet that the switch reports. It does not block.
func (s *Follower) PacketIn(in *openflow.PacketIn) { s.idling.packet(in) }

// Report reports what this node's switch does not implement of a Service.
func (s *Follower) Report(ctx context.Context, owner reconcile.Owner, warnings []error) {
	const most = 20 // an object may be wrong in thousands of places
	name := strings.TrimPrefix(string(owner), "service/")
	if len(warnings) > 0 {
		s.event(ctx, owner, warnings[0])
	}
	for _, err := range warnings[:min(most, len(warnings))] {
		s.Log.Warn("Service not served in the switch as written", "service", name, "error", err)
	}
	if more := len(warnings) - most; more > 0 {
		s.Log.Warn("Service not served in the switch as written, in several places", "service", name, "places", more)
	}
}

// event reports on a Service what this node does not implement of it. For a deleted Service, there is no event.
func (s *Follower) event(ctx context.Context, owner reconcile.Owner, warning error) {
	namespace, name, ok := strings.Cut(strings.TrimPrefix(string(owner), "service/"), "/")
	if !ok {
		return
	}
	var object corev1.Service
	// It was compiled from the cache, so this does not wait.
	if err := s.Cache.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &object, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	s.Events.Service(namespace, name, string(object.UID), warning.Error())
}

// ServiceLabels and SliceLabels select what kube-proxy selects: no headless Services, and no endpoints of Services that another proxy serves.
// These Services themselves are selected, because the switch leaves their addresses to the host.
const (
	ServiceLabels = "!" + corev1.IsHeadlessService
	SliceLabels   = "!" + labelProxy + "," + ServiceLabels
)

// labelProxy names another proxy that serves the Service (k8s.io/kubernetes/pkg/proxy/apis).
const labelProxy = "service.kubernetes.io/service-proxy-name"

// Strip removes all annotations of a Service except the time at which it was idled.
func Strip(o *corev1.Service) {
	at, idled := o.Annotations[service.AnnotationIdled]
	o.Annotations = nil
	if idled {
		o.Annotations = map[string]string{service.AnnotationIdled: at}
	}
}
