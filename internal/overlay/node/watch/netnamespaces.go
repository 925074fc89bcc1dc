// Package watch is the watch of NetNamespaces, which several features of the overlay follow, and the resourceVersions observed of each watch.
package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/internal/steps"
	"weft.dev/weft/internal/watermark"
)

// ErrUnread means that NetNamespaces are not known yet.
var ErrUnread = errors.New("waiting for the NetNamespaces, which have the VNIDs: the API server has not listed them yet, or does not permit this agent to read them")

// ErrUnprogrammed means that the network has the new state, and could not program all of it.
var ErrUnprogrammed = errors.New("not programmed")

// NetNamespaces is the watch of NetNamespaces. Tenants, egress firewalls, egress IPs and multicast follow it, each only in its modes. It
// begins with the first follower, and ends with the last.
type NetNamespaces struct {
	cache cache.Cache
	// marks are notified of arriving objects.
	marks *Marks

	mu        sync.Mutex
	followers int
}

// Mark returns a new mark that is notified of arriving objects.
func (w *NetNamespaces) Mark(kind realised.Kind) *watermark.Mark {
	if w == nil {
		return nil
	}
	return w.marks.Of(kind)
}

// Follow calls note for each NetNamespace, and again when its requests change or it is deleted. It calls passed, unless that is nil, for
// all other changes. It does not wait for the first list.
func (w *NetNamespaces) Follow(ctx context.Context, note, passed func(Change)) (toolscache.ResourceEventHandlerRegistration, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	informer, err := w.informer(ctx)
	if err != nil {
		return nil, err
	}
	notify := func(object any) {
		if at, ok := ChangeOf(object); ok {
			note(at)
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: notify, DeleteFunc: notify,
		UpdateFunc: func(old, now any) {
			if asksAnew(old, now) {
				notify(now)
			} else if at, ok := ChangeOf(now); ok && passed != nil {
				passed(at)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching NetNamespaces: %w", err)
	}
	w.followers++
	return registration, nil
}

// asksAnew reports whether a NetNamespace is another object, or requests something else. A change of its status does not count: otherwise
// every agent would process it.
func asksAnew(old, now any) bool {
	before, ok := old.(*networkv1.NetNamespace)
	after, ok2 := now.(*networkv1.NetNamespace)
	return !ok || !ok2 || before.UID != after.UID || before.NetID != after.NetID || before.NetName != after.NetName ||
		!slices.Equal(before.EgressIPs, after.EgressIPs) || !maps.Equal(before.Annotations, after.Annotations)
}

// Unfollow ends what Follow began, even if it returns an error.
func (w *NetNamespaces) Unfollow(ctx context.Context, registration toolscache.ResourceEventHandlerRegistration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	informer, err := w.informer(ctx)
	if err == nil {
		err = informer.RemoveEventHandler(registration)
	}
	if w.followers--; w.followers == 0 && err == nil {
		err = w.cache.RemoveInformer(ctx, &networkv1.NetNamespace{})
	}
	if err != nil {
		return fmt.Errorf("ending the watch of NetNamespaces: %w", err)
	}
	return nil
}

func (w *NetNamespaces) informer(ctx context.Context) (cache.Informer, error) {
	informer, err := w.cache.GetInformer(ctx, &networkv1.NetNamespace{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching NetNamespaces: %w", err)
	}
	return informer, nil
}

// Follower collects the names of NetNamespaces that changed, for a reader that processes them in steps. Step may be called concurrently.
// Begin, Await and End have one caller.
type Follower struct {
	vnids *NetNamespaces
	// wake triggers a step. While the node waits for the NetNamespaces, changed is called as well.
	wake    chan struct{}
	changed func()
	// Mark is the resourceVersion observed of this follower.
	Mark *watermark.Mark
	// runs makes one step at a time.
	runs steps.Runs

	// mu guards the fields below.
	mu sync.Mutex
	// handler receives changes; nil: nothing is watched.
	handler toolscache.ResourceEventHandlerRegistration
	dirty   map[string]struct{}
	// awaited says that the node waits for NetNamespaces, stepping that a step is in progress.
	awaited, stepping bool
}

// New returns the watch of a cache, with the marks that are notified of arriving objects. It begins with the first follower.
func New(store cache.Cache, marks *Marks) *NetNamespaces {
	return &NetNamespaces{cache: store, marks: marks}
}

// NewFollower returns a follower that follows nothing before Begin. changed is called for each change while the node waits for NetNamespaces.
func NewFollower(vnids *NetNamespaces, changed func()) *Follower {
	return &Follower{vnids: vnids, wake: make(chan struct{}, 1), changed: changed, dirty: map[string]struct{}{}, Mark: vnids.Mark(realised.NetNamespace)}
}

// Await sets whether the node waits for NetNamespaces.
func (f *Follower) Await(awaited bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awaited = awaited
}

// listsWithin is how long Begin waits for the first list. An agent that starts has it within milliseconds, and its node is not reported as
// out of step meanwhile.
const listsWithin = time.Second

// Begin starts to watch, and waits until the first list is processed. If that takes longer than listsWithin, it returns ErrUnread.
func (f *Follower) Begin(ctx context.Context) error {
	handler, err := f.follow(ctx)
	if err != nil {
		return err
	}
	listed := handler.HasSyncedChecker().Done()
	select {
	case <-listed:
		return nil
	default:
	}
	timer := time.NewTimer(listsWithin)
	defer timer.Stop()
	select {
	case <-listed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return ErrUnread
	}
}

// follow starts to watch, unless there is a watch.
func (f *Follower) follow(ctx context.Context) (toolscache.ResourceEventHandlerRegistration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handler == nil {
		f.Mark.Begin()
		handler, err := f.vnids.Follow(ctx, f.note, func(at Change) { at.Mark(f.Mark, false) })
		if err != nil {
			return nil, err
		}
		f.handler = handler
	}
	return f.handler, nil
}

// End stops watching once the step in progress has ended, and reports whether there was a watch. Until the next Begin, no step processes
// anything. Names that are returned with Untake afterwards are kept for the next watch.
func (f *Follower) End(ctx context.Context) (watched bool, err error) {
	handler := f.setHandler(nil)
	if handler == nil {
		return false, nil
	}
	if err := f.Step(ctx, nil); err != nil { // a step in progress may still read the objects
		f.setHandler(handler)
		return false, err
	}
	err = f.vnids.Unfollow(ctx, handler)
	f.mu.Lock()
	f.awaited, f.dirty = false, map[string]struct{}{}
	f.mu.Unlock()
	f.Mark.End()
	return true, err
}

// setHandler sets what receives changes, and returns what did before.
func (f *Follower) setHandler(now toolscache.ResourceEventHandlerRegistration) (before toolscache.ResourceEventHandlerRegistration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, f.handler = f.handler, now
	return before
}

// Wake receives once there is work for a step.
func (f *Follower) Wake() <-chan struct{} { return f.wake }

// note records a NetNamespace that changed.
func (f *Follower) note(at Change) {
	f.mu.Lock()
	f.dirty[at.Key] = struct{}{}
	at.Mark(f.Mark, true)
	awaited := f.awaited
	f.mu.Unlock()
	f.Signal()
	if awaited {
		f.changed()
	}
}

// Signal triggers a step.
func (f *Follower) Signal() { steps.Wake(f.wake) }

// Step calls process with the names that changed since the last step. One step is made at a time, as steps.Runs describes. Step does
// nothing while nothing is watched, or the first list is not complete: a part would be taken for the whole. State that only steps use needs no
// lock; between End and Begin it belongs to their caller.
func (f *Follower) Step(ctx context.Context, process func(ctx context.Context, dirty map[string]struct{}) error) error {
	return f.runs.Do(ctx, func(ctx context.Context) error {
		dirty, ok := f.take()
		if !ok {
			return nil
		}
		defer f.stepped()
		return process(ctx, dirty)
	})
}

// Between calls do, unless a step is in progress. do may use what otherwise only steps use. It must not block.
func (f *Follower) Between(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stepping {
		do()
	}
}

// take begins a step with what changed since the last one. ok is false if there is none: nothing is watched, or the first list is not complete.
func (f *Follower) take() (dirty map[string]struct{}, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handler == nil || !f.handler.HasSynced() {
		return nil, false
	}
	f.Mark.Take()
	dirty, f.dirty, f.stepping = f.dirty, map[string]struct{}{}, true
	return dirty, true
}

// stepped ends a step.
func (f *Follower) stepped() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stepping = false
}

// Untake returns names that could not be processed.
func (f *Follower) Untake(dirty map[string]struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(f.dirty, dirty)
}

// VNIDOf returns the VNID of a namespace from its NetNamespace. ok is false if the NetNamespace is invalid, and counts as none. The API
// server refuses invalid ones, but some may be older than its rules.
func VNIDOf(nn *networkv1.NetNamespace) (vnid uint32, ok bool) {
	return nn.NetID, nn.NetName == nn.Name && nn.NetID <= networkv1.VNIDMax
}
