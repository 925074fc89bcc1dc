package flows_test

import (
	"slices"
	"testing"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/reconcile"
)

func stats(owner string, table uint8, packets uint64) openflow.FlowStats {
	return openflow.FlowStats{Packets: packets, Bytes: 10 * packets, Flow: &openflow.Flow{Table: table, Cookie: cookies.Of(reconcile.Owner(owner))}}
}

// TestByObject: a flow counts for each object that it was compiled from; flows without an owner come last; unknown owners are shown as
// unknown.
func TestByObject(t *testing.T) {
	owners := []admin.Owner{
		{Cookie: flowCookie("policyterm/a"), Owner: "policyterm/a", MoreObjects: true, Objects: []admin.Object{{Kind: "NetworkPolicy", Namespace: "web", Name: "a"}, {Kind: "NetworkPolicy", Namespace: "web", Name: "b"}}},
		{Cookie: flowCookie("policyrule/a"), Owner: "policyrule/a", Objects: []admin.Object{{Kind: "NetworkPolicy", Namespace: "web", Name: "a"}}},
		{Cookie: flowCookie("hostsubnet/1"), Owner: "hostsubnet/1"},
	}
	dump := []openflow.FlowStats{stats("policyrule/a", 80, 2), stats("policyterm/a", 27, 5), stats("hostsubnet/1", 90, 1), stats("attachment/x", 20, 1)}
	report := flows.Explain(dump, owners)
	if report.Total != 4 || report.Unowned != 1 {
		t.Errorf("%d flows, %d without an owner", report.Total, report.Unowned)
	}
	explained := report.ByObject()
	var got []string
	for _, g := range explained.Objects {
		got = append(got, g.Object)
	}
	want := []string{
		"NetworkPolicy web/a", "NetworkPolicy web/b", "further NetworkPolicies (ask for one by --policy)", "hostsubnet/1, which has gone", "no owner",
	}
	if !slices.Equal(got, want) {
		t.Errorf("objects %q, want %q", got, want)
	}
	if g := explained.Objects[0]; g.Flows != 2 || g.Shared != 1 || g.Packets != 7 || g.Bytes != 70 || !slices.Equal(g.Tables, []uint8{27, 80}) {
		t.Errorf("the first object has %+v", g)
	}
}

func flowCookie(owner string) string {
	report := flows.Explain([]openflow.FlowStats{stats(owner, 0, 0)}, nil)
	return report.Flows[0].Cookie
}

func TestFilterOfBridges(t *testing.T) {
	for _, c := range []struct {
		filter flows.Filter
		ok     bool
	}{
		{flows.Filter{Bridge: "br-n"}, true},
		{flows.Filter{Bridge: "br-n", Pod: "a/b"}, true},
		{flows.Filter{Bridge: "br0", Policy: "a/b"}, true},
		{flows.Filter{Bridge: "br-n", Policy: "a/b"}, false},
		{flows.Filter{Bridge: "br-n", Service: "a/b"}, false},
		{flows.Filter{Bridge: "../br0"}, false},
		{flows.Filter{Bridge: "a-name-of-16-ch."}, false},
	} {
		if err := c.filter.Validate(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.filter, err)
		}
	}
}
