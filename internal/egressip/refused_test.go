package egressip_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/egressip"
)

// refusing returns a node that cannot hold some addresses.
func refusing(n egressip.Node, numbers ...int) egressip.Node {
	n.Refused = map[netip.Addr]string{}
	for _, number := range numbers {
		n.Refused[ip(number)] = "it is taken"
	}
	return n
}

// An address that its node cannot hold gets no traffic, and a problem is reported. It does not prevent the use of another address of the
// project on the same node.
func TestPlanWithoutRefused(t *testing.T) {
	plan := egressip.NewPlan(
		[]egressip.Namespace{ns("a", 10, 1, 2), ns("b", 11, 3), ns("c", 12, 4, 5)},
		[]egressip.Node{refusing(node("n1", 1, 3, 4, 5), 1, 3, 4, 9), refusing(node("n2", 2), 1)},
	)
	want := map[uint32][]egressip.Holder{10: {{IP: ip(2), Node: "n2"}}, 11: nil, 12: {{IP: ip(5), Node: "n1"}}}
	for vnid, holders := range want {
		if diff := cmp.Diff(holders, plan.Ways[vnid].Holders, equate); diff != "" {
			t.Errorf("project %d (-want +got):\n%s", vnid, diff)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		if !strings.Contains(texts(plan.Problems), "NetNamespace "+name+": EgressIPRefused: egressIPs: ") {
			t.Errorf("%s: reported:\n%s", name, texts(plan.Problems))
		}
	}
	if !strings.Contains(texts(plan.Problems), "node n1 cannot hold it: it is taken") {
		t.Errorf("reported:\n%s", texts(plan.Problems))
	}
}

// An address that one node with ranges cannot hold is given to another node, in two rounds, and stays there. If no node can hold it, the
// namespace's problem has the reason of each node.
func TestAssignWithoutRefused(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	n1, n2 := refusing(node("n1", 1), 1), node("n2")
	n1.CIDRs, n2.CIDRs = ranges, ranges
	namespaces := []egressip.Namespace{ns("a", 10, 1)}
	first := egressip.Assign(namespaces, []egressip.Node{n1, n2})
	if len(first.IPs["n1"]) != 0 || len(first.IPs["n2"]) != 0 || !first.Again {
		t.Errorf("first round: %+v", first)
	}
	n1.IPs = nil
	for round := range 2 {
		next := egressip.Assign(namespaces, []egressip.Node{n1, n2})
		if diff := cmp.Diff(map[string][]netip.Addr{"n1": nil, "n2": ips(1)}, next.IPs, equate); diff != "" || next.Again {
			t.Errorf("round %d (-want +got):\n%s", round+2, diff)
		}
		n2.IPs = next.IPs["n2"]
	}
	n2 = refusing(n2, 1)
	n2.IPs = nil
	none := egressip.Assign(namespaces, []egressip.Node{n1, n2})
	if text := texts(none.Problems); !strings.Contains(text, "node n1 cannot hold it: it is taken; node n2 cannot hold it: it is taken") {
		t.Errorf("reported: %q", text)
	}
}

// A node that refuses every address above one gets none of them, and its traffic does not leave by those that it lists.
func TestRefusedAbove(t *testing.T) {
	namespaces := []egressip.Namespace{ns("a", 10, 5), ns("b", 11, 6)}
	n1 := refusing(auto("n1", 5, 6), 4)
	n1.RefusedAbove = ip(5)
	plan := egressip.NewPlan(namespaces, []egressip.Node{n1})
	if len(plan.Ways[10].Holders) != 1 || len(plan.Ways[11].Holders) != 0 {
		t.Errorf("ways %v", plan.Ways)
	}
	if text := texts(plan.Problems); !strings.Contains(text, "node n1 cannot hold it: its status has no room for more refused addresses, so every address above "+ip(5).String()) {
		t.Errorf("reported: %q", text)
	}
	assigned := egressip.Assign(namespaces, []egressip.Node{n1})
	if diff := cmp.Diff(map[string][]netip.Addr{"n1": ips(5)}, assigned.IPs, equate); diff != "" {
		t.Errorf("lists (-want +got):\n%s", diff)
	}
}
