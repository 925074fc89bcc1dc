package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/openflow/ofproto"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/balancer"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/service"
)

// indexService finds the EndpointSlices of a Service.
const indexService = "service"

// services tracks which Services changed, and compiles them from the cached objects.
type services struct {
	cache cache.Cache
	node  string
	wake  chan struct{}

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

func newServices(store cache.Cache, node string) *services {
	return &services{
		cache: store, node: node, wake: make(chan struct{}, 1), nodes: true, idling: newIdling(),
		dirty: map[types.NamespacedName]struct{}{}, known: map[types.NamespacedName]struct{}{},
	}
}

// watch registers handlers for changes. It does not wait for the informers.
func (s *services) watch(ctx context.Context) error {
	err := s.cache.IndexField(ctx, &discoveryv1.EndpointSlice{}, indexService, func(object client.Object) []string {
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
		informer, err := s.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
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

func (s *services) noteService(object any) {
	if at, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = at.Obj
	}
	if svc, ok := object.(*corev1.Service); ok {
		s.note(func() { s.dirty[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = struct{}{} })
	}
}

func (s *services) noteSlice(object any) {
	if at, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = at.Obj
	}
	if slice, ok := object.(*discoveryv1.EndpointSlice); ok {
		name := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
		s.note(func() { s.dirty[name] = struct{}{} })
	}
}

func (s *services) note(set func()) {
	s.mu.Lock()
	set()
	s.mu.Unlock()
	wakeUp(s.wake)
}

// step updates the network with what changed since the last step; the first time, with everything.
func (s *services) step(ctx context.Context, network *overlay.Network) error {
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
	return network.Services.Update(ctx, change)
}

// change compiles what changed. It adds the names of all Services that had to be compiled to dirty.
func (s *services) change(ctx context.Context, dirty map[types.NamespacedName]struct{}, nodes bool) (balancer.Change, error) {
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
func (s *services) everything(ctx context.Context, names map[types.NamespacedName]struct{}) error {
	var list corev1.ServiceList
	if err := s.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
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
func (s *services) compile(ctx context.Context, name types.NamespacedName) (balancer.Service, error) {
	var object corev1.Service
	err := s.cache.Get(ctx, name, &object)
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
	if !virtual {
		s.idling.gone(name)
		return balancer.Service{}, nil
	}
	svc.Waking = s.awaits(&object)
	var list discoveryv1.EndpointSliceList
	err = s.cache.List(ctx, &list, client.InNamespace(name.Namespace), client.MatchingFields{indexService: name.Name}, client.UnsafeDisableDeepCopy)
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
func (s *services) awaits(object *corev1.Service) bool {
	waking, begins := s.idling.note(object, time.Now())
	if begins > 0 {
		name := client.ObjectKeyFromObject(object)
		time.AfterFunc(begins, func() { s.note(func() { s.dirty[name] = struct{}{} }) })
	}
	return waking
}

// nodeFacts returns this node's place, and the addresses that serve node ports.
func (s *services) nodeFacts(ctx context.Context) (service.Place, pipeline.NodeAddresses, error) {
	var list corev1.NodeList
	place, addresses := service.Place{Node: s.node}, pipeline.NodeAddresses{}
	if err := s.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return place, addresses, fmt.Errorf("listing Nodes: %w", err)
	}
	for i := range list.Items {
		node, to := &list.Items[i], &addresses.Others
		if node.Name == s.node {
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

// followServices keeps Services in step until ctx ends.
func (a *agent) followServices(ctx context.Context, network *overlay.Network) error {
	return a.keepInStep(ctx, a.objects.services.wake, "Services", func() error { return a.objects.services.step(ctx, network) })
}

// reportServiceWarnings reports what this node's switch does not implement of a Service.
func (a *agent) reportServiceWarnings(ctx context.Context, owner reconcile.Owner, warnings []error) {
	const most = 20 // an object may be wrong in thousands of places
	name := strings.TrimPrefix(string(owner), "service/")
	if len(warnings) > 0 {
		a.objects.services.event(ctx, a.events, owner, warnings[0])
	}
	for _, err := range warnings[:min(most, len(warnings))] {
		a.opts.Log.Warn("Service not served in the switch as written", "service", name, "error", err)
	}
	if more := len(warnings) - most; more > 0 {
		a.opts.Log.Warn("Service not served in the switch as written, in several places", "service", name, "places", more)
	}
}

// event reports on a Service what this node does not implement of it. For a deleted Service, there is no event.
func (s *services) event(ctx context.Context, to *recorder, owner reconcile.Owner, warning error) {
	namespace, name, ok := strings.Cut(strings.TrimPrefix(string(owner), "service/"), "/")
	if !ok {
		return
	}
	var object corev1.Service
	// It was compiled from the cache, so this does not wait.
	if err := s.cache.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &object, client.UnsafeDisableDeepCopy); err != nil {
		return
	}
	to.Service(namespace, name, string(object.UID), warning.Error())
}

// connections are the connections that the switch tracks.
type connections struct {
	runDir string
	flows  *bridge.Engine
}

var errNoSwitch = errors.New("ovs-vswitchd does not answer on its control socket")

// revalidation is twice the longest time until the switch's datapath uses new flows (other_config:max-revalidator of
// ovs-vswitchd.conf.db(5), 500 ms).
const revalidation = time.Second

func wait(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the switch: %w", context.Cause(ctx))
	}
}

// forgetTimeout bounds the wait for the datapath.
const forgetTimeout = 10 * time.Second

// Forget implements balancer.Connections. Until the datapath uses the new flows, a packet would create the same conntrack entry again. A
// round of the datapath that is in progress may already have passed the flow in question, so there is a second round. The first one removes
// most entries.
func (c *connections) Forget(ctx context.Context, what []openflow.CTFlush) error {
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	for range 2 {
		if err := c.settle(ctx); err != nil {
			return err
		}
		if err := c.Flush(ctx, what); err != nil {
			return err
		}
	}
	return nil
}

// Flush implements balancer.Connections.
func (c *connections) Flush(ctx context.Context, what []openflow.CTFlush) error {
	for _, flush := range what {
		if err := c.flows.FlushCT(ctx, flush); err != nil {
			return err
		}
	}
	return nil
}

// settle waits until the datapath uses the flows that are committed. A switch that was killed leaves its socket behind, with its process ID
// in the name.
func (c *connections) settle(ctx context.Context) error {
	paths, _ := filepath.Glob(filepath.Join(c.runDir, "ovs-vswitchd.*.ctl")) // the error is for a bad pattern
	err := errNoSwitch
	for _, path := range paths {
		_, failed := ofproto.Command(ctx, path, "revalidator/wait")
		switch {
		case failed == nil:
			return nil
		case errors.Is(failed, ofproto.ErrCommand): // "can't wait on multiple udpifs": bridges of both datapath types
			return wait(ctx, revalidation)
		}
		err = errors.Join(err, failed)
	}
	return err
}
