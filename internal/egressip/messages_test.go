package egressip_test

import (
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/internal/egressip"
)

// An address that no node can have is reported as it is written, and not as a conflict between the projects that want it.
func TestAddressesOfNoHost(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	plan := egressip.NewPlan([]egressip.Namespace{{Name: "a", VNID: 10, IPs: []netip.Addr{loopback}}, {Name: "b", VNID: 11, IPs: []netip.Addr{loopback}}}, nil)
	if len(plan.Problems) != 2 {
		t.Fatalf("problems %v, want one for each namespace", plan.Problems)
	}
	for _, p := range plan.Problems {
		if p.Reason != egressip.ReasonUnassigned || !strings.Contains(p.Message, "127.0.0.1 is no address that a node can have") {
			t.Errorf("%s: %s %s", p.Name, p.Reason, p.Message)
		}
	}
}
