package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/internal/steps"
	"weft.dev/weft/internal/watermark"
)

// netNamespaces is the watch of NetNamespaces. Tenants, egress firewalls, egress IPs and multicast follow it, each only in its modes. It
// begins with the first follower, and ends with the last.
type netNamespaces struct {
	cache cache.Cache
	// marks are notified of arriving objects.
	marks *marks

	mu        sync.Mutex
	followers int
}

// mark returns a new mark that is notified of arriving objects.
func (w *netNamespaces) mark(kind realised.Kind) *watermark.Mark {
	if w == nil {
		return nil
	}
	return w.marks.of(kind)
}

// follow calls note for each NetNamespace, and again when its requests change or it is deleted. It calls passed, unless that is nil, for
// all other changes. It does not wait for the first list.
func (w *netNamespaces) follow(ctx context.Context, note, passed func(change)) (toolscache.ResourceEventHandlerRegistration, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	informer, err := w.informer(ctx)
	if err != nil {
		return nil, err
	}
	notify := func(object any) {
		if at, ok := changeOf(object); ok {
			note(at)
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: notify, DeleteFunc: notify,
		UpdateFunc: func(old, now any) {
			if asksAnew(old, now) {
				notify(now)
			} else if at, ok := changeOf(now); ok && passed != nil {
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

// unfollow ends what follow began, even if it returns an error.
func (w *netNamespaces) unfollow(ctx context.Context, registration toolscache.ResourceEventHandlerRegistration) error {
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

func (w *netNamespaces) informer(ctx context.Context) (cache.Informer, error) {
	informer, err := w.cache.GetInformer(ctx, &networkv1.NetNamespace{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching NetNamespaces: %w", err)
	}
	return informer, nil
}

// follower collects the names of NetNamespaces that changed, for a reader that processes them in steps.
type follower struct {
	vnids *netNamespaces
	// wake triggers a step. While the node waits for the NetNamespaces, changed is called as well.
	wake    chan struct{}
	changed func()
	// mark is the resourceVersion observed of this follower.
	mark *watermark.Mark

	// mu guards the fields below.
	mu sync.Mutex
	// handler receives changes; nil: nothing is watched.
	handler toolscache.ResourceEventHandlerRegistration
	dirty   map[string]struct{}
	// awaited says that the node waits for NetNamespaces.
	awaited bool
}

func newFollower(vnids *netNamespaces, changed func()) *follower {
	return &follower{vnids: vnids, wake: make(chan struct{}, 1), changed: changed, dirty: map[string]struct{}{}, mark: vnids.mark(realised.NetNamespace)}
}

// await sets whether the node waits for NetNamespaces.
func (f *follower) await(awaited bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awaited = awaited
}

// begin starts to watch, and returns an error until the first list is processed.
func (f *follower) begin(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handler == nil {
		f.mark.Begin()
		handler, err := f.vnids.follow(ctx, f.note, func(at change) { at.mark(f.mark, false) })
		if err != nil {
			return err
		}
		f.handler = handler
	}
	if !f.handler.HasSynced() {
		return ErrUnread
	}
	return nil
}

// end stops watching, and reports whether there was a watch. Names that are returned with untake afterwards are kept for the next watch.
func (f *follower) end(ctx context.Context) (watched bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handler == nil {
		return false, nil
	}
	err = f.vnids.unfollow(ctx, f.handler)
	f.handler, f.awaited, f.dirty = nil, false, map[string]struct{}{}
	f.mark.End()
	return true, err
}

// note records a NetNamespace that changed.
func (f *follower) note(at change) {
	f.mu.Lock()
	f.dirty[at.key] = struct{}{}
	at.mark(f.mark, true)
	awaited := f.awaited
	f.mu.Unlock()
	f.signal()
	if awaited {
		f.changed()
	}
}

// signal triggers a step.
func (f *follower) signal() { steps.Wake(f.wake) }

// take returns what changed since the last call. ok is false if nothing is watched, or the first list is not complete: a part would be
// taken for the whole.
func (f *follower) take() (dirty map[string]struct{}, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handler == nil || !f.handler.HasSynced() {
		return nil, false
	}
	f.mark.Take()
	dirty, f.dirty = f.dirty, map[string]struct{}{}
	return dirty, true
}

// untake returns names that could not be processed.
func (f *follower) untake(dirty map[string]struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(f.dirty, dirty)
}

// vnidOf returns the VNID of a namespace from its NetNamespace. ok is false if the NetNamespace is invalid, and counts as none. The API
// server refuses invalid ones, but some may be older than its rules.
func vnidOf(nn *networkv1.NetNamespace) (vnid uint32, ok bool) {
	return nn.NetID, nn.NetName == nn.Name && nn.NetID <= networkv1.VNIDMax
}
