package agent

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
	"weft.dev/weft/internal/watermark"
)

// netNamespaces is the watch of NetNamespaces. Tenants, egress firewalls, egress IPs and multicast each follow it in the modes that they are
// for, and no others: it begins with the first follower, and ends with the last.
type netNamespaces struct {
	cache cache.Cache
	// marks are told what comes in.
	marks *marks

	mu        sync.Mutex
	followers int
}

// mark returns a new mark that is told what comes in.
func (w *netNamespaces) mark(kind realised.Kind) *watermark.Mark {
	if w == nil {
		return nil
	}
	return w.marks.of(kind)
}

// follow has note told of each NetNamespace, and again when what it asks for changes, or it goes; and passed of all other changes,
// unless it is nil. It does not wait for the first.
func (w *netNamespaces) follow(ctx context.Context, note, passed func(passage)) (toolscache.ResourceEventHandlerRegistration, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	informer, err := w.informer(ctx)
	if err != nil {
		return nil, err
	}
	tell := func(object any) {
		if at, ok := passageOf(object); ok {
			note(at)
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: tell, DeleteFunc: tell,
		UpdateFunc: func(old, now any) {
			if asksAnew(old, now) {
				tell(now)
			} else if at, ok := passageOf(now); ok && passed != nil {
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

// asksAnew reports whether a NetNamespace is another, or asks for something else. What is only told in its status, which every agent
// would hear of, it does not ask for.
func asksAnew(old, now any) bool {
	before, ok := old.(*networkv1.NetNamespace)
	after, ok2 := now.(*networkv1.NetNamespace)
	return !ok || !ok2 || before.UID != after.UID || before.NetID != after.NetID || before.NetName != after.NetName ||
		!slices.Equal(before.EgressIPs, after.EgressIPs) || !maps.Equal(before.Annotations, after.Annotations)
}

// unfollow ends what follow began, whatever it returns.
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

// follower gathers the names of NetNamespaces that change, for one who acts on them in steps.
type follower struct {
	vnids *netNamespaces
	// wake has a step taken. changed is told as well while the node waits for the NetNamespaces.
	wake    chan struct{}
	changed func()
	// mark says how far what was told is in effect.
	mark *watermark.Mark

	// mu guards what follows.
	mu sync.Mutex
	// handler is told of changes; nil: nobody watches.
	handler toolscache.ResourceEventHandlerRegistration
	dirty   map[string]struct{}
	// awaited tells that the node waits for them.
	awaited bool
}

func newFollower(vnids *netNamespaces, changed func()) *follower {
	return &follower{vnids: vnids, wake: make(chan struct{}, 1), changed: changed, dirty: map[string]struct{}{}, mark: vnids.mark(realised.NetNamespace)}
}

// await says whether the node waits for NetNamespaces.
func (f *follower) await(awaited bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awaited = awaited
}

// begin watches, and returns an error until everything is known once.
func (f *follower) begin(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handler == nil {
		f.mark.Begin()
		handler, err := f.vnids.follow(ctx, f.note, func(at passage) { at.tell(f.mark, false) })
		if err != nil {
			return err
		}
		f.handler = handler
	}
	if !f.handler.HasSynced() {
		return errUnread
	}
	return nil
}

// end stops watching, and reports whether anybody did. What is untaken from then on is there when somebody watches again.
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

// note takes note of a NetNamespace that changed.
func (f *follower) note(at passage) {
	f.mu.Lock()
	f.dirty[at.key] = struct{}{}
	at.tell(f.mark, true)
	awaited := f.awaited
	f.mu.Unlock()
	f.signal()
	if awaited {
		f.changed()
	}
}

// signal has a step taken soon.
func (f *follower) signal() { wakeUp(f.wake) }

// take returns what changed since it was last asked. Not ok: nobody watches, or not everything is known once, and a part would be
// taken for all.
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

// untake gives back what could not be acted upon.
func (f *follower) untake(dirty map[string]struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.Copy(f.dirty, dirty)
}

// vnidOf returns the VNID that a NetNamespace gives its namespace. Not ok: it cannot be used, and counts as none; the API server
// refuses such, and one may be older than its rules.
func vnidOf(nn *networkv1.NetNamespace) (vnid uint32, ok bool) {
	return nn.NetID, nn.NetName == nn.Name && nn.NetID <= networkv1.VNIDMax
}
