package networks

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/placement"
)

// Places returns the networks of pods from the API server's objects. This node's pods and all namespaces are watched; an object that the
// watch does not have yet is read from the API server. Of what the runtime passes, only the pod's name and UID are used.
type Places struct {
	cache cache.Cache
	live  client.Reader
	// cluster returns what is known of the networks, and how many of them serve this node.
	cluster func(ctx context.Context) (c placement.Cluster, serving int, err error)
}

// NewPlaces returns the places of a node's pods. Nothing is watched before Run.
func NewPlaces(config *rest.Config, node string, in *Networks) (*Places, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	store, err := cache.New(config, cache.Options{
		Scheme: scheme, Mapper: mapper, DefaultTransform: keepMetadata, NewInformer: informer.Latest(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Field: fields.OneTermEqualSelector("spec.nodeName", node)}},
	})
	if err != nil {
		return nil, fmt.Errorf("watching the API server: %w", err)
	}
	live, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return &Places{cache: store, live: live, cluster: in.cluster}, nil
}

// Limits on waits for the API server: podTimeout while a runtime waits for an answer, knownTimeout for a read from a cache that may not be
// filled yet.
const (
	podTimeout   = 10 * time.Second
	knownTimeout = 100 * time.Millisecond
)

// keepMetadata removes the parts of an object that placement does not read.
func keepMetadata(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		o.ManagedFields, o.Spec, o.Status = nil, corev1.PodSpec{}, corev1.PodStatus{}
	case *corev1.Namespace:
		o.ManagedFields, o.Spec, o.Status = nil, corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
	}
	return object, nil
}

// Run watches until ctx ends.
func (p *Places) Run(ctx context.Context) error {
	for _, kind := range []client.Object{&corev1.Pod{}, &corev1.Namespace{}} {
		if _, err := p.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
	}
	return p.cache.Start(ctx)
}

// Place returns the network of the pod in an ADD.
func (p *Places) Place(ctx context.Context, req *cni.Request) (placement.Decision, error) {
	cluster, serving, err := p.cluster(ctx)
	if err != nil {
		return placement.Decision{}, cni.Errorf(cni.CodeTryAgainLater, "placing pod %s/%s: %w", req.Args.PodNamespace, req.Args.PodName, err)
	}
	if req.Args.PodNamespace == "" || req.Args.PodName == "" { // the runtime is not Kubernetes'
		return placement.Decide(placement.Pod{}, placement.Namespace{}, cluster), nil
	}
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	var pod corev1.Pod
	var namespace corev1.Namespace
	err = errors.Join(p.pod(ctx, req.Args, &pod), p.get(ctx, client.ObjectKey{Name: req.Args.PodNamespace}, &namespace))
	if err != nil && serving > 1 {
		return placement.Decision{}, cni.Errorf(cni.CodeTryAgainLater, "placing pod %s/%s: %w: try again later", req.Args.PodNamespace, req.Args.PodName, err)
	}
	// If only one network serves this node, a pod that the API server does not have, or that cannot be read, is placed by what is known:
	// static pods start while the API server is unreachable.
	return placement.Decide(
		placement.Pod{Namespace: req.Args.PodNamespace, Name: req.Args.PodName, Annotations: pod.Annotations},
		placement.Namespace{Name: req.Args.PodNamespace, Annotations: namespace.Annotations, Labels: namespace.Labels}, cluster), nil
}

// pod reads the pod that the runtime means. A pod of the same name with another UID is a former or a later one.
func (p *Places) pod(ctx context.Context, args cni.Args, pod *corev1.Pod) error {
	key := client.ObjectKey{Namespace: args.PodNamespace, Name: args.PodName}
	if err := p.cached(ctx, key, pod); err == nil && isPod(pod, args.PodUID) {
		return nil
	}
	*pod = corev1.Pod{}
	if err := p.live.Get(ctx, key, pod); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	if !isPod(pod, args.PodUID) {
		uid := pod.UID
		*pod = corev1.Pod{}
		return fmt.Errorf("API server: the pod of that name is another one, %s", uid)
	}
	return nil
}

// isPod reports whether a pod has the UID that the runtime passed. A static pod has another UID at the API server.
func isPod(pod *corev1.Pod, uid string) bool {
	return uid == "" || string(pod.UID) == uid || pod.Annotations[corev1.MirrorPodAnnotationKey] == uid
}

// get reads an object from the watch, or from the API server if the watch does not have it yet.
func (p *Places) get(ctx context.Context, key client.ObjectKey, object client.Object) error {
	if err := p.cached(ctx, key, object); err == nil {
		return nil
	}
	if err := p.live.Get(ctx, key, object); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	return nil
}

// cached reads an object from the watch. Before the watch has its first state, a read waits; the rest of ctx's time is for the API server.
func (p *Places) cached(ctx context.Context, key client.ObjectKey, object client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, knownTimeout)
	defer cancel()
	return p.cache.Get(ctx, key, object)
}

// cluster returns what placement needs to know of the networks.
func (n *Networks) cluster(ctx context.Context) (placement.Cluster, int, error) {
	c := placement.Cluster{Absent: map[string]string{}, Known: []string{overlay.NetworkName}}
	c.Default, c.DefaultReason = n.Default()
	if err := n.Decided(); err != nil {
		return c, 0, err
	}
	n.mu.Lock()
	if !n.home.Present {
		c.Absent[overlay.NetworkName] = n.home.Why
	}
	n.mu.Unlock()
	for _, k := range n.kinds {
		c.Known = append(c.Known, k.Name)
		presence, _, why := k.state()
		if !presence.Present {
			if why == nil {
				why = errors.New("it is not configured")
			}
			c.Absent[k.Name] = why.Error()
		}
		if !k.binds() {
			continue
		}
		binder, err := k.Bind(ctx, k.objects)
		if err != nil {
			return c, 0, fmt.Errorf("bindings of network %s: %w", k.Name, err)
		}
		c.Binders = append(c.Binders, binder)
	}
	return c, len(n.serving()), nil
}

// PlaceOnOverlay replaces Places.Place on a node that serves no other kind of network.
func PlaceOnOverlay(context.Context, *cni.Request) (placement.Decision, error) {
	return placement.Decision{Network: overlay.NetworkName, Reason: "it is the only network"}, nil
}
