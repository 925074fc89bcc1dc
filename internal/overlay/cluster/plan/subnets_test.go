package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	networkv1 "weft.dev/weft/api/openshift/v1"
	clusterplan "weft.dev/weft/internal/cluster/plan"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/ipam"
)

func network(ranges ...ipam.Range) *clusternetwork.Config {
	return &clusternetwork.Config{
		ClusterNetworks: ranges, ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"), Mode: clusternetwork.ModeMultitenant,
	}
}

func usual() *clusternetwork.Config {
	return network(ipam.Range{Prefix: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9})
}

func allocator(t interface{ Fatal(...any) }, config *clusternetwork.Config) *ipam.NodeSubnets {
	if config == nil {
		return nil
	}
	alloc, err := ipam.NewNodeSubnets(config.ClusterNetworks)
	if err != nil {
		t.Fatal(err)
	}
	return alloc
}

func node(name, uid, address string) Node {
	return Node{Name: name, UID: types.UID(uid), Address: address}
}

// hs returns a HostSubnet; annotations are key, value, key, value.
func hs(name, address, subnet string, annotations ...string) networkv1.HostSubnet {
	obj := networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: address, Subnet: subnet}
	for i := 0; i < len(annotations); i += 2 {
		annotate(&obj, annotations[i], annotations[i+1])
	}
	return obj
}

const uidKey = networkv1.AnnotationNodeUID

// show returns a plan as readable lines.
func (p SubnetPlan) show() []string {
	var lines []string
	add := func(verb string, objs []*networkv1.HostSubnet) {
		for _, o := range objs {
			line := fmt.Sprintf("%s %s %s %s", verb, o.Name, o.HostIP, o.Subnet)
			for _, key := range slices.Sorted(maps.Keys(o.Annotations)) {
				line += fmt.Sprintf(" %s=%s", key[strings.LastIndex(key, "/")+1:], o.Annotations[key])
			}
			lines = append(lines, line)
		}
	}
	add("delete", p.Delete)
	add("update", p.Update)
	add("create", p.Create)
	for _, problem := range p.Problems {
		lines = append(lines, fmt.Sprintf("%s on %s %s", problem.Reason, problem.Kind, problem.Name))
	}
	return lines
}

func TestSubnets(t *testing.T) {
	tiny := network(ipam.Range{Prefix: netip.MustParsePrefix("10.1.0.0/16"), HostBits: 15})
	for _, test := range []struct {
		name        string
		config      *clusternetwork.Config
		nodes       []Node
		hostSubnets []networkv1.HostSubnet
		want        []string
	}{
		{"nothing", usual(), nil, nil, nil},
		{
			"nodes get subnets in order", usual(),
			[]Node{node("a", "ua", "192.0.2.1"), node("b", "ub", "192.0.2.2")},
			nil,
			[]string{"create a 192.0.2.1 10.128.0.0/23 node-uid=ua", "create b 192.0.2.2 10.129.0.0/23 node-uid=ub"},
		},
		{
			"older nodes first", usual(),
			[]Node{
				{Name: "a", UID: "ua", Address: "192.0.2.1", Created: time.Unix(9, 0)},
				{Name: "b", UID: "ub", Address: "192.0.2.2", Created: time.Unix(5, 0)},
			},
			nil,
			[]string{"create b 192.0.2.2 10.128.0.0/23 node-uid=ub", "create a 192.0.2.1 10.129.0.0/23 node-uid=ua"},
		},
		{
			"as it should be", usual(),
			[]Node{node("a", "ua", "192.0.2.1")},
			[]networkv1.HostSubnet{hs("a", "192.0.2.1", "10.128.0.0/23", uidKey, "ua")},
			nil,
		},
		{
			"what is used is not given out again", usual(),
			[]Node{node("a", "ua", "192.0.2.1"), node("b", "ub", "192.0.2.2")},
			[]networkv1.HostSubnet{hs("b", "192.0.2.2", "10.128.0.0/22", uidKey, "ub")},
			[]string{"create a 192.0.2.1 10.129.0.0/23 node-uid=ua"},
		},
		{
			"another address is followed in place", usual(),
			[]Node{node("a", "ua", "192.0.2.9")},
			[]networkv1.HostSubnet{hs("a", "192.0.2.1", "10.128.0.0/23", uidKey, "ua")},
			[]string{"update a 192.0.2.9 10.128.0.0/23 node-uid=ua"},
		},
		{
			"one without UID is stamped, address and all in one update", usual(),
			[]Node{node("a", "ua", "192.0.2.9")},
			[]networkv1.HostSubnet{hs("a", "192.0.2.1", "10.128.0.0/23")},
			[]string{"update a 192.0.2.9 10.128.0.0/23 node-uid=ua"},
		},
		{
			"a Node made again", usual(),
			[]Node{node("a", "new", "192.0.2.1")},
			[]networkv1.HostSubnet{hs("a", "192.0.2.1", "10.128.0.0/23", uidKey, "old")},
			[]string{"delete a 192.0.2.1 10.128.0.0/23 node-uid=old"},
		},
		{
			"a Node deleted", usual(),
			nil,
			[]networkv1.HostSubnet{hs("a", "192.0.2.1", "10.128.0.0/23", uidKey, "ua")},
			[]string{"delete a 192.0.2.1 10.128.0.0/23 node-uid=ua"},
		},
		{
			"a host that is no Node", usual(),
			nil,
			[]networkv1.HostSubnet{hs("f5", "192.0.2.1", "10.128.0.0/23")},
			nil,
		},
		{
			"a host that is no Node asks for a subnet", usual(),
			nil,
			[]networkv1.HostSubnet{hs("f5", "192.0.2.1", "", networkv1.AnnotationAssignSubnet, "true", networkv1.AnnotationFixedVNID, "12")},
			[]string{"update f5 192.0.2.1 10.128.0.0/23 fixed-vnid-host=12"},
		},
		{
			"with a VNID that cannot be", usual(),
			nil,
			[]networkv1.HostSubnet{hs("f5", "192.0.2.1", "", networkv1.AnnotationAssignSubnet, "", networkv1.AnnotationFixedVNID, "16777216")},
			[]string{"update f5 192.0.2.1 10.128.0.0/23", "Invalid on HostSubnet f5"},
		},
		{
			"and has one", usual(),
			nil,
			[]networkv1.HostSubnet{hs("f5", "192.0.2.1", "10.131.0.0/23", networkv1.AnnotationAssignSubnet, "true")},
			[]string{"update f5 192.0.2.1 10.131.0.0/23"},
		},
		{
			"a Node's that asks for a subnet", usual(),
			[]Node{node("a", "ua", "192.0.2.1")},
			[]networkv1.HostSubnet{hs("a", "192.0.2.1", "", networkv1.AnnotationAssignSubnet, "true")},
			[]string{"update a 192.0.2.1 10.128.0.0/23 node-uid=ua"},
		},
		{
			"one that cannot be used is made again, the others are served", usual(),
			[]Node{node("a", "ua", "192.0.2.1"), node("b", "ub", "192.0.2.2"), node("c", "uc", "192.0.2.3"), node("d", "ud", "192.0.2.4")},
			[]networkv1.HostSubnet{
				hs("a", "127.0.0.1", "10.128.0.0/23", uidKey, "ua"), hs("b", "192.0.2.2", "", uidKey, "ub"), hs("c", "192.0.2.3", "garbage", uidKey, "uc"),
			},
			[]string{
				"delete a 127.0.0.1 10.128.0.0/23 node-uid=ua", "delete b 192.0.2.2  node-uid=ub", "delete c 192.0.2.3 garbage node-uid=uc",
				"create d 192.0.2.4 10.129.0.0/23 node-uid=ud",
			},
		},
		{
			"a wrong VNID does not cost a Node its subnet", usual(),
			[]Node{node("a", "ua", "192.0.2.1")},
			[]networkv1.HostSubnet{hs("a", "192.0.2.1", "10.128.0.0/23", uidKey, "ua", networkv1.AnnotationFixedVNID, "x")},
			nil,
		},
		{
			"an invalid HostSubnet without a Node is kept, and reported", usual(),
			nil,
			[]networkv1.HostSubnet{hs("f5", "0.0.0.0", "10.128.0.0/23")},
			[]string{"Invalid on HostSubnet f5"},
		},
		{
			"addresses that cannot be", usual(),
			[]Node{node("a", "ua", ""), node("b", "ub", "fd00::1"), node("c", "uc", "10.129.0.7"), node("d", "ud", "172.30.0.1"), node("e", "ue", "x"), node("f", "uf", "192.0.2.1")},
			[]networkv1.HostSubnet{hs("a", "192.0.2.7", "10.128.0.0/23", uidKey, "ua")},
			[]string{
				"create f 192.0.2.1 10.129.0.0/23 node-uid=uf", "Incomplete on Node a", "Incomplete on Node b",
				"Incomplete on Node c", "Incomplete on Node d", "Incomplete on Node e",
			},
		},
		{
			"exhausted", tiny,
			[]Node{node("a", "ua", "192.0.2.1"), node("b", "ub", "192.0.2.2"), node("c", "uc", "192.0.2.3")},
			[]networkv1.HostSubnet{hs("f5", "192.0.2.4", "", networkv1.AnnotationAssignSubnet, "")},
			[]string{
				"create a 192.0.2.1 10.1.0.0/17 node-uid=ua", "create b 192.0.2.2 10.1.128.0/17 node-uid=ub",
				"Exhausted on Node c", "Exhausted on HostSubnet f5",
			},
		},
		{
			"what is deleted is not given out in the same plan", tiny,
			[]Node{node("b", "ub", "192.0.2.2"), node("c", "uc", "192.0.2.3")},
			[]networkv1.HostSubnet{hs("a", "192.0.2.1", "10.1.0.0/17", uidKey, "ua"), hs("b", "192.0.2.2", "10.1.128.0/17", uidKey, "ub")},
			[]string{"delete a 192.0.2.1 10.1.0.0/17 node-uid=ua", "Exhausted on Node c"},
		},
		{
			"overlapping and foreign HostSubnets are reported", usual(),
			nil,
			[]networkv1.HostSubnet{
				hs("a", "192.0.2.1", "10.128.0.0/23"), hs("b", "192.0.2.2", "10.128.0.0/23"),
				hs("c", "192.0.2.3", "10.128.0.0/22"), hs("d", "192.0.2.4", "10.200.0.0/23"),
			},
			[]string{"Conflict on HostSubnet d", "Conflict on HostSubnet b", "Conflict on HostSubnet c"},
		},
		{
			"without a network nothing is given out, the rest goes on", nil,
			[]Node{node("a", "ua", "192.0.2.1"), node("b", "ub", "192.0.2.22")},
			[]networkv1.HostSubnet{
				hs("b", "192.0.2.2", "10.128.0.0/23", uidKey, "ub"), hs("c", "192.0.2.3", "10.129.0.0/23", uidKey, "uc"),
				hs("f5", "192.0.2.4", "", networkv1.AnnotationAssignSubnet, ""),
			},
			[]string{"delete c 192.0.2.3 10.129.0.0/23 node-uid=uc", "update b 192.0.2.22 10.128.0.0/23 node-uid=ub"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := slices.Clone(test.hostSubnets)
			for i := range before {
				before[i] = *before[i].DeepCopy()
			}
			got := Subnets(SubnetState{Config: test.config, Nodes: test.nodes, HostSubnets: test.hostSubnets}, allocator(t, test.config))
			if diff := cmp.Diff(test.want, got.show()); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, test.hostSubnets); diff != "" {
				t.Errorf("the state was changed (-before +after):\n%s", diff)
			}
			for _, gone := range got.Delete {
				if got.Because[gone.Name] == "" {
					t.Errorf("nothing says why HostSubnet %s goes", gone.Name)
				}
			}
			if gives := strings.Contains(strings.Join(test.want, "\n"), "create"); gives && !got.Assigns {
				t.Error("subnets are given out, and the plan does not say so")
			}
		})
	}
}

// A host that returns gets its former subnet if it is free. Otherwise, and for all other hosts, the order is unchanged.
func TestReturningHostHasItsSubnet(t *testing.T) {
	config := usual()
	alloc := allocator(t, config)
	former := map[string]netip.Prefix{
		"back": netip.MustParsePrefix("10.131.0.0/23"), "late": netip.MustParsePrefix("10.128.0.0/23"),
		"resized": netip.MustParsePrefix("10.130.0.0/24"), "elsewhere": netip.MustParsePrefix("10.1.0.0/23"),
	}
	plan := Subnets(SubnetState{
		Config: config, Former: former,
		Nodes: []Node{
			node("back", "u1", "192.0.2.1"), node("elsewhere", "u2", "192.0.2.2"), node("held", "u3", "192.0.2.3"),
			node("late", "u4", "192.0.2.4"), node("resized", "u5", "192.0.2.5"),
		},
		HostSubnets: []networkv1.HostSubnet{hs("held", "192.0.2.3", "10.128.0.0/23", uidKey, "u3")},
	}, alloc)
	want := []string{
		"create back 192.0.2.1 10.131.0.0/23 node-uid=u1", "create elsewhere 192.0.2.2 10.129.0.0/23 node-uid=u2",
		"create late 192.0.2.4 10.130.0.0/23 node-uid=u4", "create resized 192.0.2.5 10.128.2.0/23 node-uid=u5",
	}
	if got := plan.show(); !slices.Equal(got, want) || !plan.Assigns {
		t.Errorf("plan\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestProblemsNameWhatToDo(t *testing.T) {
	alloc := allocator(t, usual())
	plan := Subnets(SubnetState{Config: usual(), Nodes: []Node{node("c", "uc", "10.129.0.7")}}, alloc)
	want := "node c: checked against the network: address 10.129.0.7 of the node lies in the cluster network 10.128.0.0/14: use other addresses for nodes, or another cluster network"
	if len(plan.Problems) != 1 || plan.Problems[0].Message != want || plan.Problems[0].UID != "uc" {
		t.Errorf("%+v", plan.Problems)
	}
	many := slices.Repeat(plan.Problems, 13)
	if got := clusterplan.Summary(many); strings.Count(got, want) != 10 || !strings.HasSuffix(got, "; and 3 more") {
		t.Errorf("summary: %s", got)
	}
}

// After any changes of nodes, with failed writes and writes of another controller, plans lead to one subnet for each node, no two overlap,
// and then nothing is written.
func TestSubnetsConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := network(ipam.Range{Prefix: netip.MustParsePrefix("10.1.0.0/24"), HostBits: 4}) // 16 subnets for 6 names
		alloc := allocator(t, config)
		nodes, stored := map[string]Node{}, map[string]networkv1.HostSubnet{}
		name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"})
		uid := 0
		round := func(fails func() bool) bool {
			result := Subnets(SubnetState{Config: config, Nodes: slices.Collect(maps.Values(nodes)), HostSubnets: slices.Collect(maps.Values(stored))}, alloc)
			for _, o := range result.Delete {
				if !fails() {
					delete(stored, o.Name)
				}
			}
			for _, o := range slices.Concat(result.Update, result.Create) {
				if !fails() {
					stored[o.Name] = *o
				}
			}
			return !result.Empty()
		}
		t.Repeat(map[string]func(*rapid.T){
			"node": func(t *rapid.T) {
				uid++
				n := name.Draw(t, "name")
				nodes[n] = node(n, fmt.Sprint(uid), fmt.Sprintf("192.0.2.%d", rapid.IntRange(1, 9).Draw(t, "address")))
			},
			"gone":   func(t *rapid.T) { delete(nodes, name.Draw(t, "name")) },
			"leader": func(t *rapid.T) { alloc = allocator(t, config) },
			"hand":   func(t *rapid.T) { delete(stored, name.Draw(t, "name")) },
			"f5": func(t *rapid.T) {
				if n := "f5" + name.Draw(t, "name"); stored[n].Name == "" {
					stored[n] = hs(n, "192.0.2.77", "", networkv1.AnnotationAssignSubnet, "true")
				}
			},
			"partly": func(t *rapid.T) { round(func() bool { return rapid.Bool().Draw(t, "fails") }) },
			"": func(t *rapid.T) {
				subnets := map[string]string{}
				for _, o := range stored {
					if other := subnets[o.Subnet]; o.Subnet != "" && other != "" {
						t.Fatalf("%s and %s both have %s", o.Name, other, o.Subnet)
					}
					subnets[o.Subnet] = o.Name
				}
			},
		})
		for i := 0; round(func() bool { return false }); i++ {
			if i > 3 {
				t.Fatalf("still writing after %d plans", i)
			}
		}
		for _, n := range nodes {
			o := stored[n.Name]
			if o.Subnet == "" || o.HostIP != n.Address || o.Annotations[uidKey] != string(n.UID) {
				t.Fatalf("node %+v has %+v", n, o)
			}
		}
		for _, o := range stored {
			if _, ok := nodes[o.Name]; !ok && (o.Annotations[uidKey] != "" || o.Subnet == "") {
				t.Fatalf("left: %+v", o)
			}
		}
	})
}

func BenchmarkSubnetsNothingToDo5000(b *testing.B) {
	config := network(ipam.Range{Prefix: netip.MustParsePrefix("10.0.0.0/8"), HostBits: 9})
	alloc := allocator(b, config)
	state := SubnetState{Config: config}
	for i := range 5000 {
		state.Nodes = append(state.Nodes, node(fmt.Sprintf("node-%d", i), fmt.Sprint(i), fmt.Sprintf("192.168.%d.%d", i/250, i%250+1)))
	}
	for _, o := range Subnets(state, alloc).Create {
		state.HostSubnets = append(state.HostSubnets, *o)
	}
	for b.Loop() {
		if p := Subnets(state, alloc); !p.Empty() {
			b.Fatal(p.show()[0])
		}
	}
}
