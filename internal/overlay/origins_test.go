package overlay

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/policy"
)

// The flows of every kind of owner lead to objects.
func TestOrigins(t *testing.T) {
	n := newNode(t.TempDir())
	l := startPolicies(t, n, denyAll(t), policyPod("one", web), policyPod("two", client))
	firewalls := FirewallChange{Firewalls: map[string]*egressfirewall.Firewall{"default": {Closed: "a test"}}}
	if err := l.Firewalls.Update(t.Context(), firewalls); err != nil {
		t.Fatal(err)
	}
	egress := EgressIPs{
		Ways:       map[uint32]EgressWay{42: {Nodes: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}},
		Namespaces: map[string]uint32{"shop": 42, "default": 42},
	}
	if err := l.EgressIPs.Update(t.Context(), egress); err != nil {
		t.Fatal(err)
	}
	l.add(t, l.request("one"))
	l.add(t, l.request("two"))
	got := map[string][]Object{}
	pods := map[string]string{}
	owners := append(l.engines.Flows.Owners(), pipeline.OwnerState, "service/web/api")
	for _, origin := range l.Origins(owners, policy.Key{}) {
		kind, _, _ := strings.Cut(string(origin.Owner), "/")
		for _, o := range origin.Objects {
			if !slices.Contains(got[kind], o) {
				got[kind] = append(got[kind], o)
			}
		}
		if len(origin.Objects) == 0 {
			t.Errorf("%s comes from nothing", origin.Owner)
		}
		if origin.Pod.Name != "" {
			pods[string(origin.Owner)] = origin.Pod.String()
		}
	}
	cluster := []Object{{Kind: "ClusterNetwork", Name: "default"}}
	want := map[string][]Object{
		"cluster": cluster, "state": cluster, "nodes": {{Kind: "Node"}}, "targets": {{Kind: "EndpointSlice"}}, "service": {{"Service", "web", "api"}},
		"hostsubnet": {{Kind: "HostSubnet", Name: "b"}, {Kind: "HostSubnet", Name: "c"}},
		"attachment": {{"Pod", "default", "pod-one"}, {"Pod", "default", "pod-two"}},
		"policyterm": {{"NetworkPolicy", "default", "deny"}}, "policyrule": {{"NetworkPolicy", "default", "deny"}},
		"egressfirewall": {{Kind: "EgressNetworkPolicy", Namespace: "default"}},
		"egressip":       {{Kind: "NetNamespace", Name: "default"}, {Kind: "NetNamespace", Name: "shop"}},
	}
	for kind := range got {
		if want[kind] == nil {
			t.Errorf("a kind of owners that this test does not know: %s", kind)
		}
	}
	maps.DeleteFunc(want, func(kind string, _ []Object) bool {
		return (kind == "nodes" || kind == "targets") && got[kind] == nil // these have flows only with Services
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	rec := l.record(t, l.request("two"))
	term := "policyterm/ingress/from/" + rec.Addresses[0].Addr().String() + "/32"
	if pods[term] != "default/pod-two" {
		t.Errorf("the pod of %s is %q, of %v", term, pods[term], pods)
	}
	l.del(t, l.request("one"))
	l.settled(t)
	if err := l.engines.Flows.Apply(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	for _, o := range l.engines.Flows.Owners() {
		if o == owner(keyOf(l.request("one"))) {
			t.Error("a pod that has gone still owns flows")
		}
	}
}
