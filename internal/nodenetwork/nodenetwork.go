// Package nodenetwork writes the NodeNetwork of one node: networks set their sections, and the writer creates the object, writes the
// differences, and restores what others change. It is for the node's agent, and does not read the objects of other nodes.
package nodenetwork

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
)

// Defaults of Options.
const (
	// DefaultGather is how long changes are gathered before the first write after a quiet time.
	DefaultGather = 250 * time.Millisecond
	// DefaultRest is the minimum time between two writes.
	DefaultRest = 5 * time.Second
)

// requestTimeout bounds a request to the API server.
const requestTimeout = 5 * time.Second

// maxMessage is the maximum length of a condition's message, in bytes.
const maxMessage = 1024

// Options configure a Writer.
type Options struct {
	// Config is the configuration of the API server client. Required.
	Config *rest.Config
	// Node is the name of the node. Required.
	Node string
	// Gather is how long changes are gathered before the first write after a quiet time. Default DefaultGather.
	Gather time.Duration
	// Rest is the minimum time between two writes, and the delay before a failed write is repeated. Default DefaultRest.
	Rest time.Duration
	// Log is the writer's logger. Default: discarded.
	Log *slog.Logger
}

// Writer writes the NodeNetwork of one node. Its methods may be called at any time, also before Run.
type Writer struct {
	opts   Options
	client client.Client
	cache  cache.Cache
	wake   chan struct{}

	mu sync.Mutex
	// sections has the sections that were set, by name. only has the node's networks, once they are known.
	sections map[string]weftv1.NodeNetworkSection
	only     []string
	known    bool
}

// New returns a writer. It does not connect.
func New(opts Options) (*Writer, error) {
	if opts.Config == nil || opts.Node == "" {
		return nil, fmt.Errorf("NodeNetwork: a configuration of the API server and the node's name are needed")
	}
	if opts.Gather == 0 {
		opts.Gather = DefaultGather
	}
	if opts.Rest == 0 {
		opts.Rest = DefaultRest
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	scheme := runtime.NewScheme()
	if err := weftv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("scheme: %w", err)
	}
	// The kinds are known: discovery would need the API server before the agent can start.
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{weftv1.GroupVersion(), corev1.SchemeGroupVersion})
	mapper.Add(weftv1.GroupVersion().WithKind("NodeNetwork"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	own := fields.OneTermEqualSelector("metadata.name", opts.Node)
	store, err := cache.New(opts.Config, cache.Options{
		Scheme: scheme, Mapper: mapper, DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&weftv1.NodeNetwork{}: {Field: own}},
	})
	if err != nil {
		return nil, fmt.Errorf("watch NodeNetwork %s: %w", opts.Node, err)
	}
	c, err := client.New(opts.Config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return &Writer{opts: opts, client: c, cache: store, wake: make(chan struct{}, 1), sections: map[string]weftv1.NodeNetworkSection{}}, nil
}

// Set replaces the section of a network. A condition without a transition time keeps the reported one while its status does not change. Set
// returns at once; an unchanged section is not written.
func (w *Writer) Set(section weftv1.NodeNetworkSection) {
	section = *section.DeepCopy()
	for i := range section.Conditions {
		section.Conditions[i].Message = bounded(section.Conditions[i].Message)
	}
	w.mu.Lock()
	w.sections[section.Name] = section
	w.mu.Unlock()
	w.signal()
}

// Keep sets the node's networks. The sections of all others are removed. Until the first call, sections that a previous agent wrote stay.
func (w *Writer) Keep(networks ...string) {
	w.mu.Lock()
	w.only, w.known = slices.Clone(networks), true
	for name := range w.sections {
		if !slices.Contains(networks, name) {
			delete(w.sections, name)
		}
	}
	w.mu.Unlock()
	w.signal()
}

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // a signal is pending already
	}
}

// Run writes changes until ctx ends.
func (w *Writer) Run(ctx context.Context) error {
	informer, err := w.cache.GetInformer(ctx, &weftv1.NodeNetwork{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch NodeNetwork %s: %w", w.opts.Node, err)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { w.signal() }, UpdateFunc: func(any, any) { w.signal() }, DeleteFunc: func(any) { w.signal() },
	}); err != nil {
		return fmt.Errorf("watch NodeNetwork %s: %w", w.opts.Node, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.cache.Start(ctx) }()
	if w.cache.WaitForCacheSync(ctx) {
		w.follow(ctx)
	}
	if err := <-ended; err != nil && ctx.Err() == nil {
		return fmt.Errorf("watch NodeNetwork %s: %w", w.opts.Node, err)
	}
	return nil
}

// follow writes after each change, at the intervals of the options.
func (w *Writer) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		if !pause(ctx, w.opts.Gather) {
			return
		}
		wrote, err := w.step(ctx)
		if err != nil && ctx.Err() == nil {
			w.opts.Log.Warn("NodeNetwork not written, trying again", "node", w.opts.Node, "error", err)
			w.signal()
		}
		if (wrote || err != nil) && !pause(ctx, w.opts.Rest-w.opts.Gather) {
			return
		}
	}
}

// pause waits, and reports whether it ended before ctx did.
func pause(ctx context.Context, rest time.Duration) bool {
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// step writes the differences, and reports whether there were any.
func (w *Writer) step(ctx context.Context) (wrote bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var have weftv1.NodeNetwork
	err = w.cache.Get(ctx, client.ObjectKey{Name: w.opts.Node}, &have)
	switch {
	case apierrors.IsNotFound(err):
		created, err := w.create(ctx)
		if err != nil {
			return true, err
		}
		have, wrote = *created, true
	case err != nil:
		return false, fmt.Errorf("read NodeNetwork %s: %w", w.opts.Node, err)
	}
	want := w.want(have.Status.Networks, metav1.Now())
	if equality.Semantic.DeepEqual(have.Status.Networks, want) {
		return wrote, nil
	}
	err = w.patch(ctx, &have, want)
	if !apierrors.IsInvalid(err) {
		return true, err
	}
	return true, w.singly(ctx, &have, want)
}

// create creates the node's object, owned by its Node.
func (w *Writer) create(ctx context.Context) (*weftv1.NodeNetwork, error) {
	var node corev1.Node
	if err := w.client.Get(ctx, client.ObjectKey{Name: w.opts.Node}, &node); err != nil {
		return nil, fmt.Errorf("read Node %s, the owner of its NodeNetwork: %w", w.opts.Node, err)
	}
	object := &weftv1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: w.opts.Node, OwnerReferences: []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
	}}}}
	err := w.client.Create(ctx, object)
	if apierrors.IsAlreadyExists(err) { // the cache is outdated
		err = w.client.Get(ctx, client.ObjectKey{Name: w.opts.Node}, object)
	}
	if err != nil {
		return nil, fmt.Errorf("create NodeNetwork %s: %w", w.opts.Node, err)
	}
	return object, nil
}

// patch writes sections. It fails if the object has changed since it was read: the watch then reports the new state.
func (w *Writer) patch(ctx context.Context, have *weftv1.NodeNetwork, sections []weftv1.NodeNetworkSection) error {
	text, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": have.UID, "resourceVersion": have.ResourceVersion},
		"status":   map[string]any{"networks": sections},
	})
	if err != nil {
		return fmt.Errorf("status of NodeNetwork %s: %w", have.Name, err)
	}
	changed := have.DeepCopy()
	if err := w.client.Status().Patch(ctx, changed, client.RawPatch(types.MergePatchType, bytes.TrimSpace(text))); err != nil {
		return fmt.Errorf("status of NodeNetwork %s: %w", have.Name, err)
	}
	have.ResourceVersion, have.Status = changed.ResourceVersion, changed.Status
	return nil
}

// singly writes the sections one by one, so that one that the API server refuses does not block the others.
func (w *Writer) singly(ctx context.Context, have *weftv1.NodeNetwork, want []weftv1.NodeNetworkSection) error {
	var refused error
	sections := slices.DeleteFunc(slices.Clone(have.Status.Networks), func(s weftv1.NodeNetworkSection) bool { return find(want, s.Name) < 0 })
	for i := range want {
		next := slices.Clone(sections)
		if at := find(next, want[i].Name); at >= 0 {
			next[at] = want[i]
		} else {
			next = append(next, want[i])
		}
		if equality.Semantic.DeepEqual(have.Status.Networks, next) {
			continue
		}
		err := w.patch(ctx, have, next)
		switch {
		case apierrors.IsInvalid(err):
			refused = fmt.Errorf("section %s: %w", want[i].Name, err)
		case err != nil:
			return err
		default:
			sections = next
		}
	}
	return refused
}

func find(sections []weftv1.NodeNetworkSection, name string) int {
	return slices.IndexFunc(sections, func(s weftv1.NodeNetworkSection) bool { return s.Name == name })
}

// want returns the sections that the object is to have, sorted by name.
func (w *Writer) want(have []weftv1.NodeNetworkSection, now metav1.Time) []weftv1.NodeNetworkSection {
	w.mu.Lock()
	defer w.mu.Unlock()
	return merge(have, w.sections, now, func(name string) bool { return !w.known || slices.Contains(w.only, name) })
}

// merge replaces sections of the object with those in set. A section that is not in set stays if stays returns true for its name.
func merge(have []weftv1.NodeNetworkSection, set map[string]weftv1.NodeNetworkSection, now metav1.Time, stays func(string) bool) []weftv1.NodeNetworkSection {
	var result []weftv1.NodeNetworkSection
	reported := map[string]*weftv1.NodeNetworkSection{}
	for i := range have {
		reported[have[i].Name] = &have[i]
		if _, replaced := set[have[i].Name]; !replaced && stays(have[i].Name) {
			result = append(result, *have[i].DeepCopy())
		}
	}
	for name, section := range set {
		section = *section.DeepCopy()
		for i := range section.Conditions {
			c := &section.Conditions[i]
			if !c.LastTransitionTime.IsZero() {
				continue
			}
			c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second)) // in the precision in which it is stored
			if before := reported[name]; before != nil {
				if was := meta.FindStatusCondition(before.Conditions, c.Type); was != nil && was.Status == c.Status {
					c.LastTransitionTime = was.LastTransitionTime
				}
			}
		}
		result = append(result, section)
	}
	slices.SortFunc(result, func(a, b weftv1.NodeNetworkSection) int { return strings.Compare(a.Name, b.Name) })
	return result
}

func bounded(message string) string {
	const more = " ..."
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage-len(more)], "") + more
}
