package node

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	fakesource "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/internal/watermark"
)

// markedNetNamespaces is a cache whose informer lists and watches a source in memory, and notifies marks of arriving objects.
type markedNetNamespaces struct {
	watchedNetNamespaces
	marks *marks
}

func (w *markedNetNamespaces) GetInformer(ctx context.Context, kind client.Object, options ...cache.InformerGetOption) (cache.Informer, error) {
	if w.running == nil {
		w.running = toolscache.NewSharedIndexInformer(w.source, kind, 0, toolscache.Indexers{})
		if err := w.running.SetTransform(w.marks.strip); err != nil {
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
	marks := newMarks()
	objects := &markedNetNamespaces{watchedNetNamespaces{source: source}, marks}
	vnids := &netNamespaces{cache: objects, marks: marks}
	f := newFollower(vnids, func() {})
	const many = 100
	var mu sync.Mutex
	reported := map[string]uint64{} // the version of each object that was reported last
	versions := map[string]uint64{}
	name := func(i int) string { return fmt.Sprintf("shop-%03d", i) }
	object := func(i int, vnid uint32) *networkv1.NetNamespace {
		return &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name(i)}, NetName: name(i), NetID: vnid}
	}
	f.mark.Begin()
	note := func(at change) {
		mu.Lock()
		defer mu.Unlock()
		f.note(at)
		reported[at.key] = at.version
		f.mark.Take() // a step that takes no time
		f.mark.Done(nil)
		if len(versions) < many {
			return // for the first list there is no version before all objects are reported
		}
		for key, version := range versions {
			if said, _ := f.mark.Version(); said >= version && reported[key] < version {
				t.Errorf("%s in version %d counts as in effect after the report of %s in %d, but %s was reported in %d", key, version, at.key, at.version, key, reported[key])
			}
		}
	}
	for i := range many {
		source.Add(object(i, 10))
	}
	handler, err := vnids.follow(t.Context(), note, func(at change) { at.mark(f.mark, false) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := vnids.unfollow(t.Context(), handler); err != nil {
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
			said, known := f.mark.Version()
			return known && said >= highest
		})
	}
}

func TestTrafficOf(t *testing.T) {
	nn := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", ResourceVersion: "12"}}
	enp := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "out", ResourceVersion: "none"}}
	for want, reported := range map[change]any{
		{key: "shop", version: 12}:             nn,
		{key: "shop", version: 12, gone: true}: toolscache.DeletedFinalStateUnknown{Obj: nn},
		{key: "shop/out"}:                      enp,
	} {
		if got, ok := changeOf(reported); got != want || !ok {
			t.Errorf("%+v, %v; want %+v", got, ok, want)
		}
	}
	if _, ok := changeOf("shop"); ok {
		t.Error("a string counts as an object")
	}
	m := newMarks()
	reported := 0
	changed := func() { reported++ }
	m.changed.Store(&changed)
	mark := m.of(realised.EgressNetworkPolicy)
	mark.Begin()
	enp.ResourceVersion = "7"
	if _, err := m.strip(enp); err != nil {
		t.Fatal(err)
	}
	mark.Observed("other/one", 9, false)
	mark.Done(nil)
	if version, ok := mark.Version(); !ok || strconv.FormatUint(version, 10) != "0" || reported == 0 {
		t.Errorf("%d (%v) is in effect, and shop/out, which was added, was not reported; %d changes", version, ok, reported)
	}
}

// What an engine cannot program is an exception of the objects concerned. If these are not known, no version is reported for the kind. Of
// several marks, the lowest counts.
func TestFailuresAreExceptions(t *testing.T) {
	f := failures{all: map[realised.Kind]string{realised.NetworkPolicy: "the switch is away"}, objects: map[realised.Kind]map[string]string{}, spaces: map[realised.Kind]map[string]string{}}
	f.note(overlay.Object{Kind: "NetNamespace", Name: "shop"}, "nft: no")
	f.note(overlay.Object{Kind: "EgressNetworkPolicy", Namespace: "shop"}, "openflow: no")
	f.note(overlay.Object{Kind: "NetworkPolicy", Namespace: "shop", Name: "web"}, "openflow: no")
	e := newEgressFirewalls(nil, nil, nil)
	e.judged.here = map[string][]egressfirewall.Key{"shop": {{Namespace: "shop", Name: "out"}}}
	if diff := cmp.Diff(map[string]string{"shop/out": "openflow: no"}, e.judged.said(f.spaces[realised.EgressNetworkPolicy])); diff != "" {
		t.Errorf("egress firewalls (-want +got):\n%s", diff)
	}
	m := newMarks()
	marks := []*watermark.Mark{m.of(realised.NetNamespace), m.of(realised.NetNamespace)}
	want := func(what string, kind realised.Kind, want admin.Realised) {
		t.Helper()
		if diff := cmp.Diff(want, f.kind(kind, marks, nil)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	exceptions := map[string]string{"shop": "nft: no"}
	for i, mark := range marks {
		want("a follower without a watch", realised.NetNamespace, admin.Realised{Kind: "NetNamespace", Exceptions: exceptions})
		mark.Begin()
		mark.Observed("shop", uint64(20-i), true)
		mark.Take()
		mark.Done(nil)
	}
	want("both follow", realised.NetNamespace, admin.Realised{Kind: "NetNamespace", Version: "19", Exceptions: exceptions})
	marks[0].Done(errors.New("not programmed"))
	want("one fails", realised.NetNamespace, admin.Realised{Kind: "NetNamespace", Version: "19", Reason: "not programmed", Exceptions: exceptions})
	want("the engine is away", realised.NetworkPolicy, admin.Realised{Kind: "NetworkPolicy", Reason: "the switch is away", Exceptions: map[string]string{"shop/web": "openflow: no"}})
}

// Only the part of another node's status that this node uses is kept.
func TestStatusOfOthersIsStripped(t *testing.T) {
	m := newMarks()
	m.node = "own"
	refused := []networkv1.HostSubnetRefusedEgressIP{{IP: "192.0.2.102", Reason: "it is taken"}}
	status := networkv1.HostSubnetStatus{Attachments: 7, VXLANPorts: []int32{4789}, RefusedEgressIPs: refused}
	for name, want := range map[string]networkv1.HostSubnetStatus{"other": {RefusedEgressIPs: refused}, "own": status} {
		hs := networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: status}
		if _, err := m.strip(&hs); err != nil || !reflect.DeepEqual(hs.Status, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, hs.Status, err, want)
		}
	}
}
