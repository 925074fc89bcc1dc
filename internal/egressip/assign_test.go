package egressip_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/egressip"
)

// auto returns a node with a range that lists the given addresses.
func auto(name string, numbers ...int) egressip.Node {
	n := node(name, numbers...)
	n.CIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	return n
}

func with(n egressip.Node, change func(*egressip.Node)) egressip.Node {
	change(&n)
	return n
}

func offline(n *egressip.Node) { n.Offline = true }

func unproven(n *egressip.Node) { n.Unproven = true }

func capacity(most int) func(*egressip.Node) {
	return func(n *egressip.Node) { n.Limited, n.Capacity = true, most }
}

func TestAssign(t *testing.T) {
	wanted := []egressip.Namespace{ns("ns1", 10, 1, 2, 3), ns("ns2", 11, 4, 5), ns("ns3", 12, 6)}
	type lists = map[string][]netip.Addr
	for _, test := range []struct {
		name       string
		namespaces []egressip.Namespace
		nodes      []egressip.Node
		want       lists
		again      bool
		texts      string
	}{
		{"no ranges", wanted, []egressip.Node{node("n1", 1)}, nil, false, ""},
		{ // the order is 6, 4, 1, 5, 2, 3
			"to the node with the fewest addresses, in turn", wanted,
			[]egressip.Node{auto("n1"), auto("n2"), auto("n3")},
			lists{"n1": ips(6, 5, 3), "n2": ips(4, 2), "n3": ips(1)},
			false, "",
		},
		{
			"what is somewhere stays; then what can go to one node only", wanted[1:],
			[]egressip.Node{auto("n1", 5), auto("n2")},
			lists{"n1": ips(5, 6), "n2": ips(4)},
			false, "",
		},
		{
			"no namespace requests the address any more, or two do",
			[]egressip.Namespace{ns("a", 10, 1, 2), ns("b", 11, 2)},
			[]egressip.Node{auto("n1", 1, 2, 9)},
			lists{"n1": ips(1)},
			false, "",
		},
		{
			"off a node that does not answer, in the first round", wanted[2:],
			[]egressip.Node{with(auto("n1", 6), offline), auto("n2")},
			lists{"n1": nil, "n2": nil},
			true, "",
		},
		{
			"and to another in the second", wanted[2:],
			[]egressip.Node{with(auto("n1"), offline), auto("n2")},
			lists{"n1": nil, "n2": ips(6)},
			false, "",
		},
		{
			"off a node that does not answer only what another can have",
			[]egressip.Namespace{ns("a", 10, 1, 2), ns("b", 11, 3)},
			[]egressip.Node{with(auto("n1", 1, 3), offline), auto("n2", 2)},
			lists{"n1": ips(1), "n2": ips(2)},
			true, "",
		},
		{
			"none off it that another would take, were there not one without a node that it takes first",
			[]egressip.Namespace{ns("a", 10, 1), ns("b", 11, 2)},
			[]egressip.Node{with(auto("n1", 2), offline), with(auto("n2"), capacity(1))},
			lists{"n1": ips(2), "n2": ips(1)},
			false, "",
		},
		{
			"none where no node answers", wanted[2:],
			[]egressip.Node{with(auto("n1", 6), offline), with(auto("n2"), offline)},
			lists{"n1": ips(6), "n2": nil},
			false, "",
		},
		{
			"nothing to one that has not answered yet, and nothing off it", wanted,
			[]egressip.Node{with(auto("n1", 6), unproven), auto("n2")},
			lists{"n1": ips(6), "n2": ips(4, 1)},
			false, "node n1 has not answered yet",
		},
		{
			"nor to balance, nor from it",
			[]egressip.Namespace{ns("a", 10, 1), ns("b", 11, 2), ns("c", 12, 3), ns("d", 13, 4), ns("e", 14, 5), ns("f", 15, 6)},
			[]egressip.Node{with(auto("n1", 1, 2, 3, 4), unproven), auto("n2", 5, 6), with(auto("n3"), unproven)},
			lists{"n1": ips(1, 2, 3, 4), "n2": ips(5, 6), "n3": nil},
			false, "",
		},
		{
			"out of the range", wanted[2:],
			[]egressip.Node{
				with(auto("n1", 6), func(n *egressip.Node) { n.CIDRs = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} }), auto("n2"),
			},
			lists{"n1": nil, "n2": nil},
			true, "",
		},
		{
			"over the capacity", wanted,
			[]egressip.Node{with(auto("n1", 6, 4, 1), capacity(2)), auto("n2")},
			lists{"n1": ips(6, 4), "n2": ips(5, 2)},
			true, "192.0.2.3 is hosted by no node",
		},
		{
			"first what only one node can have",
			[]egressip.Namespace{ns("a", 10, 1), ns("b", 11, 100)},
			[]egressip.Node{
				with(auto("n1"), capacity(1)), with(auto("n2"), func(n *egressip.Node) {
					n.Limited, n.Capacity, n.CIDRs = true, 1, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")}
				}),
			},
			lists{"n1": ips(100), "n2": ips(1)},
			false, "",
		},
		{
			"of equal nodes the one with most room", wanted[2:],
			[]egressip.Node{with(auto("n1"), capacity(2)), with(auto("n2"), capacity(3))},
			lists{"n1": nil, "n2": ips(6)},
			false, "",
		},
		{
			"by hand at another node", wanted[2:],
			[]egressip.Node{auto("n1", 6), node("n2", 6)},
			lists{"n1": nil},
			false, "",
		},
		{
			"at two nodes: off both first", wanted[2:],
			[]egressip.Node{auto("n1", 6), auto("n2", 6)},
			lists{"n1": nil, "n2": nil},
			true, "",
		},
		{
			"a node came back: half of what it would have is taken off the other",
			[]egressip.Namespace{
				ns("a", 10, 1), ns("b", 11, 2), ns("c", 12, 3), ns("d", 13, 4),
			},
			[]egressip.Node{auto("n1", 1, 2, 3, 4), auto("n2")},
			lists{"n1": ips(1, 3), "n2": nil},
			true, "",
		},
		{
			"one is no less than half of two",
			[]egressip.Namespace{
				ns("a", 10, 1), ns("b", 11, 2), ns("c", 12, 3), ns("d", 13, 4),
			},
			[]egressip.Node{auto("n1", 1, 2, 3), auto("n2", 4)},
			lists{"n1": ips(1, 2, 3), "n2": ips(4)},
			false, "",
		},
	} {
		got := egressip.Assign(test.namespaces, test.nodes)
		if diff := cmp.Diff(test.want, got.IPs, equate); diff != "" || got.Again != test.again {
			t.Errorf("%s: again is %v (-want +got):\n%s", test.name, got.Again, diff)
		}
		if text := texts(got.Problems); !strings.Contains(text, test.texts) || (text == "") != (test.texts == "") {
			t.Errorf("%s: reported: %q", test.name, text)
		}
	}
}

func TestAssignReportsReasons(t *testing.T) {
	got := egressip.Assign([]egressip.Namespace{ns("a", 10, 1, 2, 3, 4, 5)}, []egressip.Node{
		auto("n1", 1), with(auto("n2"), offline), with(auto("n3"), capacity(0)), auto("n4", 2),
		with(auto("n5"), func(n *egressip.Node) { n.CIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.4/32")} }),
	})
	want := "192.0.2.3 is hosted by no node: node n1 has 192.0.2.1 for this project already; node n2 does not answer; " +
		"node n3 has all 0 that it can have; node n4 has 192.0.2.2 for this project already"
	if !strings.Contains(texts(got.Problems), want) || len(got.Problems) != 2 {
		t.Errorf("reported:\n%s", texts(got.Problems))
	}
	got = egressip.Assign([]egressip.Namespace{ns("a", 10, 200)}, []egressip.Node{
		with(auto("n5"), func(n *egressip.Node) { n.CIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.4/32")} }),
	})
	if text := texts(got.Problems); !strings.Contains(text, "192.0.2.200 is hosted by no node: no node has it in its egressCIDRs") {
		t.Errorf("reported: %q", text)
	}
}
