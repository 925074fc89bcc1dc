package kubestore

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
)

// following returns a watch of a dual-stack network that has received all nodes, of which there are none, and its updates.
func following(t *testing.T) (*watch, *[]lease.Update) {
	t.Helper()
	keys, err := lease.NewKeys(lease.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	store := New(Options{Node: "n1", Keys: keys})
	store.config = netconf.Config{EnableIPv4: true, EnableIPv6: true}
	var updates []lease.Update
	w := &watch{store: store, report: func(update lease.Update) { updates = append(updates, update) }, seen: map[string]entry{}}
	w.complete(cache.NewStore(cache.MetaNamespaceKeyFunc))
	updates = nil
	return w, &updates
}

// another is the Node of another node.
func another(keys *lease.Keys, cidrs ...string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n9", Annotations: map[string]string{
			keys.Managed: "true", keys.BackendType: "host-gw", keys.PublicIP: "192.0.2.9", keys.PublicIP6: "2001:db8::9",
		}},
		Spec: corev1.NodeSpec{PodCIDRs: cidrs},
	}
}

// TestChanges: a change of the podCIDRs alone, or of one family alone, is reported; a resync without a change is not.
func TestChanges(t *testing.T) {
	w, updates := following(t)
	node := another(&w.store.options.Keys)
	for _, c := range []struct {
		name   string
		change func()
		want   string // the subnet and the public address of IPv4; empty: no update
	}{
		{"an annotated node without podCIDRs", func() {}, "invalid Prefix invalid IP"},
		{"its podCIDRs", func() { node.Spec.PodCIDRs = []string{"10.5.9.0/24", "fd00:5:0:9::/64"} }, "10.5.9.0/24 192.0.2.9"},
		{"a resync", func() {}, ""},
		{"an address of IPv4 alone", func() { node.Annotations[w.store.options.Keys.PublicIP] = "192.0.2.19" }, "10.5.9.0/24 192.0.2.19"},
		{"a label, which is not part of a lease", func() { node.Labels = map[string]string{"a": "b"} }, ""},
	} {
		*updates = nil
		c.change()
		w.set(node.DeepCopy())
		got := ""
		for _, update := range *updates {
			l := update.Set["n9"].Lease
			got += l.Subnet.String() + " " + l.PublicIP.String()
		}
		if got != c.want {
			t.Errorf("%s: update %q, want %q", c.name, got, c.want)
		}
	}
}

// TestMissedDeletion: a deletion that the watch has missed, of which the cache knows only the last state, removes the lease. A Node that is
// created again with other podCIDRs has the new ones.
func TestMissedDeletion(t *testing.T) {
	w, updates := following(t)
	node := another(&w.store.options.Keys, "10.5.9.0/24", "fd00:5:0:9::/64")
	w.set(node)
	w.remove(cache.DeletedFinalStateUnknown{Key: "n9", Obj: node})
	w.set(another(&w.store.options.Keys, "10.5.90.0/24", "fd00:5:0:90::/64"))
	if len(*updates) != 3 {
		t.Fatalf("updates %v, want 3", *updates)
	}
	if gone := (*updates)[1].Delete; !slices.Equal(gone, []string{"n9"}) {
		t.Errorf("deleted %v, want n9", gone)
	}
	if subnet := (*updates)[2].Set["n9"].Lease.Subnet; subnet != netip.MustParsePrefix("10.5.90.0/24") {
		t.Errorf("subnet %s of %v", subnet, slices.Collect(maps.Keys((*updates)[2].Set)))
	}
}

// TestLostAnnotations: annotations that the node had already at the start are written again when they are lost.
func TestLostAnnotations(t *testing.T) {
	w, updates := following(t)
	w.gate, w.own = gate{}, lease.Lease{Subnet: netip.MustParsePrefix("10.5.1.0/24"), PublicIP: netip.MustParseAddr("192.0.2.1"), Backend: "host-gw"}
	own := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: w.store.options.Keys.Annotations(&w.own, nil)},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.5.1.0/24"}},
	}
	nodes := cache.NewStore(cache.MetaNamespaceKeyFunc)
	if err := nodes.Add(own); err != nil {
		t.Fatal(err)
	}
	w.complete(nodes)
	if len(*updates) != 1 || (*updates)[0].Restart != nil {
		t.Fatalf("at the start: %+v", *updates)
	}
	lost := own.DeepCopy()
	delete(lost.Annotations, w.store.options.Keys.PublicIP)
	w.set(lost)
	if len(*updates) != 2 || (*updates)[1].Restart == nil {
		t.Errorf("when an annotation is lost: %+v", *updates)
	}
}
