package node

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/projects"
)

// fakeObjects is a cache of NetNamespaces.
type fakeObjects struct {
	cache.Cache
	objects map[string]*networkv1.NetNamespace
	err     error
}

func (f *fakeObjects) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	found := f.objects[key.Name]
	switch {
	case f.err != nil:
		return f.err
	case found == nil:
		return apierrors.NewNotFound(schema.GroupResource{Group: networkv1.GroupName, Resource: "netnamespaces"}, key.Name)
	}
	found.DeepCopyInto(into.(*networkv1.NetNamespace)) //nolint:forcetypeassert // nothing else is asked for
	return nil
}

func (f *fakeObjects) put(name string, netID uint32, version string) {
	f.objects[name] = &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}, NetName: name, NetID: netID}
}

// A change contains only what differs, with the version of the last object whose VNID is another. A new object has no version: no pod
// changes its VNID.
func TestTenantChange(t *testing.T) {
	f := &fakeObjects{objects: map[string]*networkv1.NetNamespace{}}
	x := newTenants(f, nil, slog.New(slog.DiscardHandler), func() {})
	look := func(names ...string) projects.Change {
		t.Helper()
		dirty := map[string]struct{}{}
		for _, name := range names {
			dirty[name] = struct{}{}
		}
		change, err := x.change(t.Context(), dirty)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(x.known, change.VNIDs)
		for _, name := range change.Gone {
			delete(x.known, name)
		}
		slices.Sort(change.Gone)
		return change
	}
	want := func(what string, got, want projects.Change) {
		t.Helper()
		if want.VNIDs == nil {
			want.VNIDs = map[string]uint32{}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	f.put("a", 10, "100")
	f.put("b", 20, "99")
	want("the first", look("a", "b", "c"), projects.Change{VNIDs: map[string]uint32{"a": 10, "b": 20}, Version: 100})
	f.put("a", 10, "101") // only its status has changed
	f.put("new", 30, "102")
	want("a new one", look("a", "new"), projects.Change{VNIDs: map[string]uint32{"new": 30}})
	f.put("b", 10, "103")
	want("a move", look("b"), projects.Change{VNIDs: map[string]uint32{"b": 10}, Version: 103})
	delete(f.objects, "a")
	f.objects["new"].NetName = "another-name"
	want("deleted, and invalid", look("a", "new", "never"), projects.Change{Gone: []string{"a", "new"}})
	f.err = errors.New("away")
	if _, err := x.change(t.Context(), map[string]struct{}{"b": {}}); err == nil {
		t.Error("an object that cannot be parsed counts as deleted")
	}
}

// A node with pods waits for their VNIDs before it isolates them, and names the namespaces without one. The wait is bounded.
func TestWaitingForVNIDs(t *testing.T) {
	store, err := attach.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	for i, namespace := range []string{"a", "b", "b"} {
		record := attach.Record{
			Network: overlay.NetworkName, ContainerID: strings.Repeat("c", i+1), IfName: "eth0", Netns: "/run/netns/x", PodNamespace: namespace,
			BootID: "boot", State: attach.Attached, Created: time.Unix(1, 0),
		}
		if err := store.Put(t.Context(), record); err != nil {
			t.Fatal(err)
		}
	}
	network := overlay.New(overlay.Engines{}, store, overlay.Options{BootID: "boot"})
	x := newTenants(&fakeObjects{}, nil, slog.New(slog.DiscardHandler), func() {})
	now := time.Unix(1000, 0)
	if err := x.complete(network, now); err == nil || !strings.Contains(err.Error(), "namespaces a, b before") {
		t.Errorf("without VNIDs: %v", err)
	}
	if err := network.Projects.Update(t.Context(), projects.Change{VNIDs: map[string]uint32{"a": 1}}); err != nil {
		t.Fatal(err)
	}
	if err := x.complete(network, now.Add(startPatience-1)); err == nil || !strings.Contains(err.Error(), "namespaces b before") {
		t.Errorf("with one: %v", err)
	}
	if err := x.complete(network, now.Add(startPatience)); err == nil {
		t.Error("it does not wait, although VNIDs still change")
	}
	if err := x.complete(network, now.Add(2*startPatience-1)); err != nil {
		t.Errorf("for ever: %v", err)
	}
	if err := network.Projects.Update(t.Context(), projects.Change{VNIDs: map[string]uint32{"b": 2}}); err != nil {
		t.Fatal(err)
	}
	if err := x.complete(network, now); err != nil {
		t.Errorf("with all: %v", err)
	}
	if err := x.prepare(t.Context(), network, clusternetwork.ModeSubnet); err != nil {
		t.Errorf("in a flat network: %v", err)
	}
}
