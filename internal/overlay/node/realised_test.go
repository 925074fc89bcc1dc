package node

import (
	"errors"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/node/watch"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/internal/watermark"
)

// What an engine cannot program is an exception of the objects concerned. If these are not known, no version is reported for the kind. Of
// several marks, the lowest counts.
func TestFailuresAreExceptions(t *testing.T) {
	f := failures{all: map[realised.Kind]string{realised.NetworkPolicy: "the switch is away"}, objects: map[realised.Kind]map[string]string{}, spaces: map[realised.Kind]map[string]string{}}
	f.note(overlay.Object{Kind: "NetNamespace", Name: "shop"}, "nft: no")
	f.note(overlay.Object{Kind: "EgressNetworkPolicy", Namespace: "shop"}, "openflow: no")
	f.note(overlay.Object{Kind: "NetworkPolicy", Namespace: "shop", Name: "web"}, "openflow: no")
	e := newEgressFirewalls(nil, nil, nil)
	e.judged.here = map[string][]egressfirewall.Key{"shop": {{Namespace: "shop", Name: "out"}}}
	if diff := cmp.Diff(map[string]string{"shop/out": "openflow: no"}, e.judged.unrealised(f.spaces[realised.EgressNetworkPolicy])); diff != "" {
		t.Errorf("egress firewalls (-want +got):\n%s", diff)
	}
	m := watch.NewMarks()
	marks := []*watermark.Mark{m.Of(realised.NetNamespace), m.Of(realised.NetNamespace)}
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
	strip := transform("own", watch.NewMarks())
	refused := []networkv1.HostSubnetRefusedEgressIP{{IP: "192.0.2.102", Reason: "it is taken"}}
	status := networkv1.HostSubnetStatus{Attachments: 7, VXLANPorts: []int32{4789}, RefusedEgressIPs: refused}
	for name, want := range map[string]networkv1.HostSubnetStatus{"other": {RefusedEgressIPs: refused}, "own": status} {
		hs := networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: status}
		if _, err := strip(&hs); err != nil || !reflect.DeepEqual(hs.Status, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, hs.Status, err, want)
		}
	}
}

// TestMode: a mode is in effect from the end of its programming until that of another one begins.
func TestMode(t *testing.T) {
	var o Objects
	for _, step := range []struct {
		what string
		do   func()
		want clusternetwork.Mode
	}{
		{"at the start", func() {}, ""},
		{"programming the first one", func() { o.entering(clusternetwork.ModeSubnet) }, ""},
		{"programmed", func() { o.entered(clusternetwork.ModeSubnet) }, clusternetwork.ModeSubnet},
		{"programming the same one", func() { o.entering(clusternetwork.ModeSubnet) }, clusternetwork.ModeSubnet},
		{"programming another one", func() { o.entering(clusternetwork.ModeNetworkPolicy) }, ""},
		{"programmed again", func() { o.entered(clusternetwork.ModeNetworkPolicy) }, clusternetwork.ModeNetworkPolicy},
	} {
		step.do()
		if got := o.Mode(); got != step.want {
			t.Errorf("%s: mode %q, want %q", step.what, got, step.want)
		}
	}
}
