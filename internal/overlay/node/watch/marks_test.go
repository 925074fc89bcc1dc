package watch

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	fakesource "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/realised"
)

// markedNetNamespaces is a cache whose informer lists and watches a source in memory, and notifies marks of arriving objects.
type markedNetNamespaces struct {
	watchedNetNamespaces
	marks *Marks
}

func (w *markedNetNamespaces) GetInformer(ctx context.Context, kind client.Object, options ...cache.InformerGetOption) (cache.Informer, error) {
	if w.running == nil {
		w.running = toolscache.NewSharedIndexInformer(w.source, kind, 0, toolscache.Indexers{})
		if err := w.running.SetTransform(func(object any) (any, error) {
			w.marks.Came(object)
			return object, nil
		}); err != nil {
			return nil, err
		}
		ctx, w.stop = context.WithCancel(context.WithoutCancel(ctx))
		go w.running.RunWithContext(ctx)
	}
	return w.running, nil
}

// After a gap in the watch, an informer reports what changed in any order. Even if each reported object is in effect at once, an object
// that is not reported yet must not count as in effect.
func TestMarkOverGapsOfTheWatch(t *testing.T) {
	source := fakesource.NewFakeControllerSource()
	marks := NewMarks()
	objects := &markedNetNamespaces{watchedNetNamespaces{source: source}, marks}
	vnids := &NetNamespaces{cache: objects, marks: marks}
	f := NewFollower(vnids, func() {})
	const many = 100
	var mu sync.Mutex
	reported := map[string]uint64{} // the version of each object that was reported last
	versions := map[string]uint64{}
	name := func(i int) string { return fmt.Sprintf("shop-%03d", i) }
	object := func(i int, vnid uint32) *networkv1.NetNamespace {
		return &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name(i)}, NetName: name(i), NetID: vnid}
	}
	f.Mark.Begin()
	note := func(at Change) {
		mu.Lock()
		defer mu.Unlock()
		f.note(at)
		reported[at.Key] = at.version
		f.Mark.Take() // a step that takes no time
		f.Mark.Done(nil)
		if len(versions) < many {
			return // for the first list there is no version before all objects are reported
		}
		for key, version := range versions {
			if said, _ := f.Mark.Version(); said >= version && reported[key] < version {
				t.Errorf("%s in version %d counts as in effect after the report of %s in %d, but %s was reported in %d", key, version, at.Key, at.version, key, reported[key])
			}
		}
	}
	for i := range many {
		source.Add(object(i, 10))
	}
	handler, err := vnids.Follow(t.Context(), note, func(at Change) { at.Mark(f.Mark, false) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := vnids.Unfollow(t.Context(), handler); err != nil {
			t.Error(err)
		}
	}()
	await := func(what string, done func() bool) {
		t.Helper()
		for begin := time.Now(); ; {
			mu.Lock()
			is := done()
			mu.Unlock()
			switch {
			case is:
				return
			case time.Since(begin) > patience:
				t.Fatal(what)
			}
			<-time.After(time.Millisecond)
		}
	}
	await("not all objects reported", func() bool { return len(reported) == many })
	highest := uint64(many)
	for round := range uint32(2) {
		mu.Lock()
		for i := many - 1; i >= 0; i-- { // the last by name is the first by version
			highest++
			versions[name(i)] = highest
		}
		mu.Unlock()
		for i := many - 1; i >= 0; i-- {
			source.ModifyDropWatch(object(i, 11+round))
		}
		source.ResetWatch()
		await("changes in the gap not reported", func() bool {
			said, known := f.Mark.Version()
			return known && said >= highest
		})
	}
}

func TestTrafficOf(t *testing.T) {
	nn := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", ResourceVersion: "12"}}
	enp := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "out", ResourceVersion: "none"}}
	for want, reported := range map[Change]any{
		{Key: "shop", version: 12}:             nn,
		{Key: "shop", version: 12, gone: true}: toolscache.DeletedFinalStateUnknown{Obj: nn},
		{Key: "shop/out"}:                      enp,
	} {
		if got, ok := ChangeOf(reported); got != want || !ok {
			t.Errorf("%+v, %v; want %+v", got, ok, want)
		}
	}
	if _, ok := ChangeOf("shop"); ok {
		t.Error("a string counts as an object")
	}
	m := NewMarks()
	reported := 0
	m.OnChange(func() { reported++ })
	mark := m.Of(realised.EgressNetworkPolicy)
	mark.Begin()
	enp.ResourceVersion = "7"
	m.Came(enp)
	mark.Observed("other/one", 9, false)
	mark.Done(nil)
	if version, ok := mark.Version(); !ok || strconv.FormatUint(version, 10) != "0" || reported == 0 {
		t.Errorf("%d (%v) is in effect, and shop/out, which was added, was not reported; %d changes", version, ok, reported)
	}
}
