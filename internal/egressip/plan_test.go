package egressip_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/egressip"
)

// ip returns the address for a number; the examples name addresses by numbers.
func ip(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}) }

func ips(numbers ...int) []netip.Addr {
	var list []netip.Addr
	for _, n := range numbers {
		list = append(list, ip(n))
	}
	return list
}

var equate = cmp.Options{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()} //nolint:gochecknoglobals // constant

func ns(name string, vnid uint32, numbers ...int) egressip.Namespace {
	return egressip.Namespace{Name: name, VNID: vnid, IPs: ips(numbers...)}
}

func node(name string, numbers ...int) egressip.Node {
	return egressip.Node{Name: name, IPs: ips(numbers...)}
}

func texts(problems []egressip.Problem) string {
	var lines []string
	for _, p := range problems {
		lines = append(lines, p.Kind+" "+p.Name+": "+p.Reason+": "+p.Message)
	}
	return strings.Join(lines, "\n")
}

func TestPlan(t *testing.T) {
	type holders = []egressip.Holder
	for _, test := range []struct {
		name       string
		namespaces []egressip.Namespace
		nodes      []egressip.Node
		want       map[uint32]holders
		texts      []string
	}{
		{"no namespace requests an address", []egressip.Namespace{ns("a", 10)}, []egressip.Node{node("n1", 1)}, nil, nil},
		{
			"one",
			[]egressip.Namespace{ns("a", 10, 1), ns("b", 11)},
			[]egressip.Node{node("n1", 1), node("n2")},
			map[uint32]holders{10: {{ip(1), "n1"}}},
			nil,
		},
		{
			"several, in order of preference",
			[]egressip.Namespace{ns("a", 10, 3, 1, 2)},
			[]egressip.Node{node("n1", 1), node("n2", 3)},
			map[uint32]holders{10: {{ip(3), "n2"}, {ip(1), "n1"}}},
			[]string{"NetNamespace a: EgressIPUnassigned: egressIPs: 192.0.2.2 is hosted by no node"},
		},
		{
			"hosted by none",
			[]egressip.Namespace{ns("a", 10, 1)},
			[]egressip.Node{node("n1")},
			map[uint32]holders{10: nil},
			[]string{"NetNamespace a: EgressIPUnassigned: egressIPs: 192.0.2.1 is hosted by no node"},
		},
		{
			"wanted by two projects: both are closed, also where they have another",
			[]egressip.Namespace{ns("a", 10, 1, 2), ns("b", 11, 1)},
			[]egressip.Node{node("n1", 1), node("n2", 2)},
			map[uint32]holders{10: nil, 11: nil},
			[]string{"NetNamespace a: EgressIPConflict: egressIPs: 192.0.2.1 is listed by b as well", "NetNamespace b: EgressIPConflict: egressIPs: 192.0.2.1 is listed by a as well"},
		},
		{
			"listed by two nodes: the other one is used",
			[]egressip.Namespace{ns("a", 10, 1, 2)},
			[]egressip.Node{node("n1", 1), node("n2", 1), node("n3", 2)},
			map[uint32]holders{10: {{ip(2), "n3"}}},
			[]string{
				"HostSubnet n1: EgressIPConflict: egressIPs: 192.0.2.1 is listed by nodes n1, n2", "HostSubnet n2: EgressIPConflict",
				"NetNamespace a: EgressIPConflict: egressIPs: 192.0.2.1 is listed by nodes n1, n2",
			},
		},
		{ // OpenShift SDN used one or both, depending on the order of events
			"two of a project at one node: the first one wanted is used",
			[]egressip.Namespace{ns("a", 10, 2, 1)},
			[]egressip.Node{node("n1", 1, 2)},
			map[uint32]holders{10: {{ip(2), "n1"}}},
			[]string{"NetNamespace a: EgressIPConflict: egressIPs: 192.0.2.1 is not used: node n1 has 192.0.2.2 for this project already"},
		},
		{ // in OpenShift SDN, the joined namespace without addresses removed those of the other
			"joined projects share",
			[]egressip.Namespace{ns("a", 10, 1), ns("b", 10), ns("c", 10, 1, 2)},
			[]egressip.Node{node("n1", 1), node("n2", 2)},
			map[uint32]holders{10: {{ip(1), "n1"}, {ip(2), "n2"}}},
			nil,
		},
		{
			"global projects",
			[]egressip.Namespace{ns("default", 0, 1)},
			[]egressip.Node{node("n1", 1, 1)},
			map[uint32]holders{0: {{ip(1), "n1"}}},
			nil,
		},
	} {
		plan := egressip.NewPlan(test.namespaces, test.nodes)
		got := map[uint32]holders{}
		for vnid, way := range plan.Ways {
			got[vnid] = way.Holders
		}
		if diff := cmp.Diff(test.want, got, equate); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
		for _, want := range test.texts {
			if !strings.Contains(texts(plan.Problems), want) {
				t.Errorf("%s: %q is not reported in:\n%s", test.name, want, texts(plan.Problems))
			}
		}
		if len(plan.Problems) != len(test.texts) {
			t.Errorf("%s: reported:\n%s", test.name, texts(plan.Problems))
		}
	}
}

// When a namespace's VNID changes, its addresses move to the new VNID, and the old one leaves no conflict. (OpenShift SDN lost both.)
func TestMovedProjectKeepsItsAddresses(t *testing.T) {
	nodes := []egressip.Node{node("n1", 1)}
	plan := egressip.NewPlan([]egressip.Namespace{ns("a", 99, 1)}, nodes)
	want := map[uint32]egressip.Way{99: {VNID: 99, Namespaces: []string{"a"}, Holders: []egressip.Holder{{IP: ip(1), Node: "n1"}}}}
	if diff := cmp.Diff(want, plan.Ways, equate); diff != "" || len(plan.Problems) > 0 {
		t.Errorf("%v (-want +got):\n%s", plan.Problems, diff)
	}
	if diff := cmp.Diff(map[netip.Addr]uint32{ip(1): 99}, plan.Held("n1"), equate); diff != "" {
		t.Error(diff)
	}
}

// world is a random set of objects with few distinct values, so that they interact.
type world struct {
	namespaces []egressip.Namespace
	nodes      []egressip.Node
}

func drawIPs(t *rapid.T, label string, most int) []netip.Addr {
	var list []netip.Addr
	for _, n := range rapid.SliceOfN(rapid.IntRange(1, 14), 0, most).Draw(t, label) {
		list = append(list, ip(n))
	}
	return list
}

func drawWorld(t *rapid.T, automatic bool) world {
	var w world
	for i := range rapid.IntRange(0, 6).Draw(t, "namespaces") {
		w.namespaces = append(w.namespaces, egressip.Namespace{
			Name: fmt.Sprintf("ns%d", i), VNID: rapid.Uint32Range(0, 4).Draw(t, "vnid"), IPs: drawIPs(t, "wants", 4),
		})
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "nodes") {
		n := egressip.Node{Name: fmt.Sprintf("n%d", i), IPs: drawIPs(t, "lists", 4)}
		if automatic && rapid.IntRange(0, 9).Draw(t, "by hand") > 0 {
			n.CIDRs = rapid.SliceOfN(rapid.SampledFrom([]netip.Prefix{
				netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.0/29"), netip.MustParsePrefix("192.0.2.8/29"),
			}), 1, 2).Draw(t, "cidrs")
			n.Limited, n.Capacity = rapid.Bool().Draw(t, "limited"), rapid.IntRange(0, 5).Draw(t, "capacity")
			n.Offline = rapid.IntRange(0, 3).Draw(t, "offline") == 0
			n.Unproven = rapid.IntRange(0, 5).Draw(t, "unproven") == 0
		}
		w.nodes = append(w.nodes, n)
	}
	return w
}

// used computes from the documented rules alone whether a VNID uses an address on a node.
func (w *world) used(vnid uint32, addr netip.Addr, at string) bool {
	wanters := map[uint32]bool{}
	var wanted []netip.Addr
	byName := slices.SortedFunc(slices.Values(w.namespaces), func(a, b egressip.Namespace) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range byName {
		if slices.Contains(n.IPs, addr) {
			wanters[n.VNID] = true
		}
		if n.VNID == vnid {
			wanted = append(wanted, n.IPs...)
		}
	}
	if len(wanters) != 1 || !wanters[vnid] {
		return false
	}
	for _, any := range wanted {
		for _, n := range w.namespaces {
			if n.VNID != vnid && slices.Contains(n.IPs, any) {
				return false // another project wants one of its addresses
			}
		}
	}
	for _, any := range wanted {
		hosts := w.hosts(any)
		if len(hosts) == 1 && hosts[0] == at {
			return any == addr // the first address that only this node has
		}
	}
	return false
}

func (w *world) hosts(addr netip.Addr) []string {
	var names []string
	for _, n := range w.nodes {
		if slices.Contains(n.IPs, addr) {
			names = append(names, n.Name)
		}
	}
	return names
}

func TestPlanIsAsTheRulesSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, false)
		plan := egressip.NewPlan(w.namespaces, w.nodes)
		for vnid := range uint32(5) {
			for n := 1; n <= 14; n++ {
				for _, at := range w.nodes {
					got := slices.Contains(plan.Ways[vnid].Holders, egressip.Holder{IP: ip(n), Node: at.Name})
					if want := w.used(vnid, ip(n), at.Name); got != want {
						t.Fatalf("VNID %d, %s at %s: in use %v, and not %v", vnid, ip(n), at.Name, got, want)
					}
				}
			}
		}
		for _, n := range w.namespaces {
			if _, closed := plan.Ways[n.VNID]; len(n.IPs) > 0 && !closed {
				t.Fatalf("%s wants addresses, and its traffic leaves by its node", n.Name)
			}
		}
		shuffled := world{rapid.Permutation(w.namespaces).Draw(t, "namespaces"), rapid.Permutation(w.nodes).Draw(t, "nodes")}
		if diff := cmp.Diff(plan, egressip.NewPlan(shuffled.namespaces, shuffled.nodes), equate); diff != "" {
			t.Fatalf("in another order:\n%s", diff)
		}
	})
}

// give applies an assignment.
func (w *world) give(a egressip.Assignment) {
	w.nodes = slices.Clone(w.nodes)
	for i := range w.nodes {
		if list, automatic := a.IPs[w.nodes[i].Name]; automatic {
			w.nodes[i].IPs = list
		}
	}
}

func (w *world) at() map[netip.Addr][]string {
	at := map[netip.Addr][]string{}
	for _, n := range w.nodes {
		for _, addr := range n.IPs {
			at[addr] = append(at[addr], n.Name)
		}
	}
	return at
}

func TestAssignNeverMovesInOneRoundAndSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, true)
		lasting := w.lasting()
		for round := 0; ; round++ {
			before := w.at()
			a := egressip.Assign(w.namespaces, w.nodes)
			shuffled := world{rapid.Permutation(w.namespaces).Draw(t, "namespaces"), rapid.Permutation(w.nodes).Draw(t, "nodes")}
			if diff := cmp.Diff(a, egressip.Assign(shuffled.namespaces, shuffled.nodes), equate); diff != "" {
				t.Fatalf("in another order:\n%s", diff)
			}
			w.give(a)
			w.checkRound(t, before, a)
			if maps.EqualFunc(before, w.at(), slices.Equal) {
				if a.Again {
					t.Fatal("nothing changed, and another round is asked for")
				}
				break
			}
			if round == 20 {
				t.Fatalf("it does not settle: %v, then %v", before, w.at())
			}
		}
		w.checkSettled(t)
		for _, addr := range lasting {
			if len(w.at()[addr]) == 0 {
				t.Fatalf("%s was at a node that does not answer, and is nowhere", addr)
			}
		}
	})
}

// lasting returns the addresses that offline nodes list and can still have: no other rule removes them.
func (w *world) lasting() []netip.Addr {
	var lasting []netip.Addr
	for _, n := range w.nodes {
		seats := map[uint32]int{}
		for _, addr := range n.IPs {
			for _, vnid := range w.wanters(addr) {
				seats[vnid]++
			}
		}
		for _, addr := range n.IPs {
			vnids := w.wanters(addr)
			fits := slices.ContainsFunc(n.CIDRs, func(c netip.Prefix) bool { return c.Contains(addr) }) && (!n.Limited || len(n.IPs) <= n.Capacity)
			if n.Offline && fits && len(w.hosts(addr)) == 1 && len(vnids) == 1 && seats[vnids[0]] == 1 {
				lasting = append(lasting, addr)
			}
		}
	}
	return lasting
}

func (w *world) checkRound(t *rapid.T, before map[netip.Addr][]string, a egressip.Assignment) {
	judged := slices.ContainsFunc(w.nodes, func(n egressip.Node) bool { return len(n.CIDRs) > 0 && !n.Offline })
	for addr, nodes := range w.at() {
		for _, name := range nodes {
			if had := before[addr]; len(had) > 0 && !slices.Contains(had, name) {
				t.Fatalf("%s moved from %v to %s in one round", addr, had, name)
			}
		}
	}
	for _, n := range w.nodes {
		if len(n.CIDRs) == 0 {
			continue
		}
		seats := map[uint32]netip.Addr{}
		for _, addr := range a.IPs[n.Name] {
			if (n.Offline && judged || n.Unproven) && !slices.Contains(before[addr], n.Name) {
				t.Fatalf("%s is given to %s, offline %v, unproven %v", addr, n.Name, n.Offline, n.Unproven)
			}
			if !slices.ContainsFunc(n.CIDRs, func(c netip.Prefix) bool { return c.Contains(addr) }) {
				t.Fatalf("%s is given to %s, with %v", addr, n.Name, n.CIDRs)
			}
			vnids := w.wanters(addr)
			if len(vnids) != 1 {
				t.Fatalf("%s is given out, and wanted by VNIDs %v", addr, vnids)
			}
			if other, taken := seats[vnids[0]]; taken {
				t.Fatalf("%s has %s and %s for VNID %d", n.Name, addr, other, vnids[0])
			}
			seats[vnids[0]] = addr
		}
		if n.Limited && len(a.IPs[n.Name]) > n.Capacity {
			t.Fatalf("%s has %v, over its capacity %d", n.Name, a.IPs[n.Name], n.Capacity)
		}
	}
}

func (w *world) wanters(addr netip.Addr) []uint32 {
	var vnids []uint32
	for _, n := range w.namespaces {
		if slices.Contains(n.IPs, addr) && !slices.Contains(vnids, n.VNID) {
			vnids = append(vnids, n.VNID)
		}
	}
	return vnids
}

// checkSettled checks that every address that a node could have is on a node, that a problem is reported for every other one, and that no
// two nodes with ranges have the same address.
func (w *world) checkSettled(t *rapid.T) {
	settled := egressip.Assign(w.namespaces, w.nodes)
	at := w.at()
	for n := 1; n <= 14; n++ {
		vnids := w.wanters(ip(n))
		automatic := 0
		for _, n2 := range w.nodes {
			if len(n2.CIDRs) > 0 && slices.Contains(n2.IPs, ip(n)) {
				automatic++
			}
		}
		if automatic > 1 || automatic == 1 && len(at[ip(n)]) > 1 {
			t.Fatalf("%s is at %v", ip(n), at[ip(n)])
		}
		named := strings.Contains(texts(settled.Problems), ip(n).String()+" is hosted by no node")
		anyRange := slices.ContainsFunc(w.nodes, func(n egressip.Node) bool { return len(n.CIDRs) > 0 })
		if want := len(vnids) == 1 && len(at[ip(n)]) == 0 && anyRange; named != want {
			t.Fatalf("%s at %v, wanted by %v: reported %v\n%s", ip(n), at[ip(n)], vnids, named, texts(settled.Problems))
		}
	}
}
