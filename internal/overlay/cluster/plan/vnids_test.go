package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
)

func ns(name string) Namespace { return Namespace{Name: name, UID: types.UID("u" + name)} }

// nn returns the NetNamespace of a Namespace made by ns, with a request if it is not empty.
func nn(name string, id uint32, request string) networkv1.NetNamespace {
	obj := networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name, NetID: id}
	annotate(&obj, networkv1.AnnotationNamespaceUID, "u"+name)
	if request != "" {
		annotate(&obj, networkv1.AnnotationChangeNetwork, request)
	}
	return obj
}

func bare(name string, id uint32) networkv1.NetNamespace {
	obj := nn(name, id, "")
	obj.Annotations = nil
	return obj
}

// show returns a plan as readable lines. IDs that are not in known are random, and shown as "new".
func (p VNIDPlan) show(known map[uint32]bool) []string {
	var lines []string
	add := func(verb string, objs []*networkv1.NetNamespace) {
		for _, o := range objs {
			id := fmt.Sprint(o.NetID)
			if !known[o.NetID] && o.NetID >= networkv1.VNIDMin && o.NetID <= networkv1.VNIDMax {
				id = "new"
			}
			line := fmt.Sprintf("%s %s %s", verb, o.Name, id)
			for _, key := range slices.Sorted(maps.Keys(o.Annotations)) {
				line += fmt.Sprintf(" %s=%s", key[strings.LastIndex(key, "/")+1:], o.Annotations[key])
			}
			lines = append(lines, strings.ReplaceAll(line, "multitenant.", ""))
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

func TestVNIDs(t *testing.T) {
	const tenants, policies = clusternetwork.ModeMultitenant, clusternetwork.ModeNetworkPolicy
	for _, test := range []struct {
		name          string
		mode          clusternetwork.Mode
		namespaces    []Namespace
		netNamespaces []networkv1.NetNamespace
		want          []string
	}{
		{"flat network", clusternetwork.ModeSubnet, []Namespace{ns("a")}, []networkv1.NetNamespace{nn("gone", 10, "global")}, nil},
		{"no network", "", []Namespace{ns("a")}, nil, nil},
		{
			"new namespaces", policies,
			[]Namespace{ns("default"), ns("a")},
			nil,
			[]string{"create a new namespace-uid=ua", "create default 0 namespace-uid=udefault"},
		},
		{"as it should be", tenants, []Namespace{ns("default"), ns("a")}, []networkv1.NetNamespace{nn("default", 0, ""), nn("a", 12, "")}, nil},
		{
			"one that came without its Namespace's UID is stamped", tenants,
			[]Namespace{ns("a")},
			[]networkv1.NetNamespace{bare("a", 12), bare("restored", 13)},
			[]string{"update a 12 namespace-uid=ua"},
		},
		{
			"a namespace deleted", tenants,
			nil,
			[]networkv1.NetNamespace{nn("a", 12, "")},
			[]string{"delete a 12 namespace-uid=ua"},
		},
		{
			"a namespace made again", tenants,
			[]Namespace{{Name: "a", UID: "new"}},
			[]networkv1.NetNamespace{nn("a", 12, "")},
			[]string{"delete a 12 namespace-uid=ua"},
		},
		{
			"a NetNamespace deleted by hand", tenants,
			[]Namespace{ns("a"), ns("b")},
			[]networkv1.NetNamespace{nn("b", 13, "")},
			[]string{"create a new namespace-uid=ua"},
		},
		{
			"global", tenants,
			[]Namespace{ns("a")},
			[]networkv1.NetNamespace{nn("a", 12, "global")},
			[]string{"update a 0 namespace-uid=ua"},
		},
		{
			"join", tenants,
			[]Namespace{ns("a"), ns("b")},
			[]networkv1.NetNamespace{nn("a", 12, "join:b"), nn("b", 13, "")},
			[]string{"update a 13 namespace-uid=ua"},
		},
		{
			"default stays global", tenants,
			[]Namespace{ns("default"), ns("b")},
			[]networkv1.NetNamespace{nn("default", 0, "join:b"), nn("b", 13, "")},
			[]string{"Invalid on NetNamespace default"},
		},
		{
			"join itself", tenants,
			[]Namespace{ns("a")},
			[]networkv1.NetNamespace{nn("a", 12, "join:a")},
			[]string{"update a 12 namespace-uid=ua"},
		},
		{
			"join one that there is not: it waits", tenants,
			[]Namespace{ns("a")},
			[]networkv1.NetNamespace{nn("a", 12, "join:b")},
			[]string{"Invalid on NetNamespace a"},
		},
		{
			"join one that moves: it waits for it", tenants,
			[]Namespace{ns("a"), ns("b")},
			[]networkv1.NetNamespace{nn("a", 12, "global"), nn("b", 13, "join:a")},
			[]string{"update a 0 namespace-uid=ua"},
		},
		{
			"each joins the other", tenants,
			[]Namespace{ns("a"), ns("b")},
			[]networkv1.NetNamespace{nn("a", 12, "join:b"), nn("b", 13, "join:a")},
			[]string{"update a 13 namespace-uid=ua"},
		},
		{
			"isolate", tenants,
			[]Namespace{ns("a"), ns("b")},
			[]networkv1.NetNamespace{nn("a", 12, "isolate"), nn("b", 12, "")},
			[]string{"update a new namespace-uid=ua"},
		},
		{
			"isolate both: the last holder keeps it", tenants,
			[]Namespace{ns("a"), ns("b")},
			[]networkv1.NetNamespace{nn("a", 12, "isolate"), nn("b", 12, "isolate")},
			[]string{"update a new namespace-uid=ua", "update b 12 namespace-uid=ub"},
		},
		{
			"isolate the only one", tenants,
			[]Namespace{ns("a")},
			[]networkv1.NetNamespace{nn("a", 12, "isolate")},
			[]string{"update a 12 namespace-uid=ua"},
		},
		{
			"isolate a global one", tenants,
			[]Namespace{ns("a")},
			[]networkv1.NetNamespace{nn("a", 0, "isolate")},
			[]string{"update a new namespace-uid=ua"},
		},
		{
			"default stays", tenants,
			[]Namespace{ns("default")},
			[]networkv1.NetNamespace{nn("default", 0, "isolate")},
			[]string{"Invalid on NetNamespace default"},
		},
		{
			"nonsense, and one that is all right", tenants,
			[]Namespace{ns("a"), ns("b"), ns("c"), ns("d")},
			[]networkv1.NetNamespace{nn("a", 12, "join"), nn("b", 13, "join:c:d"), nn("c", 14, "Global"), nn("d", 15, "global")},
			[]string{"update d 0 namespace-uid=ud", "Invalid on NetNamespace a", "Invalid on NetNamespace b", "Invalid on NetNamespace c"},
		},
		{
			"with policies VNIDs stay, the request goes", policies,
			[]Namespace{ns("a")},
			[]networkv1.NetNamespace{nn("a", 12, "global")},
			[]string{"update a 12 namespace-uid=ua", "Invalid on NetNamespace a"},
		},
		{
			"with policies a VNID has one holder", policies,
			[]Namespace{ns("a"), ns("b"), ns("c"), ns("d")},
			[]networkv1.NetNamespace{nn("a", 12, ""), nn("b", 12, ""), nn("c", 0, ""), nn("d", 0, "")},
			[]string{"Conflict on NetNamespace a", "Conflict on NetNamespace b"},
		},
		{
			"fields that cannot be", tenants,
			[]Namespace{ns("a"), ns("b")},
			[]networkv1.NetNamespace{nn("a", 1<<24, ""), nn("b", 13, "")},
			[]string{"Invalid on NetNamespace a"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			known := map[uint32]bool{}
			before := slices.Clone(test.netNamespaces)
			for i := range before {
				known[before[i].NetID] = true
				before[i] = *before[i].DeepCopy()
			}
			got := VNIDs(VNIDState{test.mode, test.namespaces, test.netNamespaces}, rand.New(rand.NewPCG(1, 1)))
			if diff := cmp.Diff(test.want, got.show(known)); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, test.netNamespaces); diff != "" {
				t.Errorf("the state was changed (-before +after):\n%s", diff)
			}
		})
	}
}

// A request to join an impossible namespace name is reported at once as invalid; a request for one that does not exist yet stays.
func TestJoinReportsProblems(t *testing.T) {
	for request, want := range map[string]string{
		"join:ta:tb": `"ta:tb" is not a namespace's name`,
		"join:":      `"" is not a namespace's name`,
		"join:later": `it is joined when there is`,
	} {
		got := VNIDs(VNIDState{
			Mode: clusternetwork.ModeMultitenant, Namespaces: []Namespace{ns("a")}, NetNamespaces: []networkv1.NetNamespace{nn("a", 12, request)},
		}, rand.New(rand.NewPCG(1, 2)))
		if len(got.Problems) != 1 || !strings.Contains(got.Problems[0].Message, want) {
			t.Errorf("%s: %v, want %s", request, got.Problems, want)
		}
	}
}

// Plans that are written one after the other end in an empty plan.
func TestVNIDsConverge(t *testing.T) {
	state := VNIDState{Mode: clusternetwork.ModeMultitenant}
	for i := range 50 {
		name := fmt.Sprintf("n%02d", i)
		request := []string{"global", "isolate", fmt.Sprintf("join:n%02d", (i*7)%50), "join:missing", ""}[i%5]
		state.Namespaces = append(state.Namespaces, ns(name))
		if i%3 > 0 {
			state.NetNamespaces = append(state.NetNamespaces, nn(name, uint32(10+i/4), request))
		}
	}
	random := rand.New(rand.NewPCG(3, 4))
	for round := 0; ; round++ {
		result := VNIDs(state, random)
		if result.Empty() {
			break
		}
		if round > 10 {
			t.Fatal("plans do not come to rest")
		}
		for _, o := range result.Update {
			i := slices.IndexFunc(state.NetNamespaces, func(n networkv1.NetNamespace) bool { return n.Name == o.Name })
			state.NetNamespaces[i] = *o
		}
		for _, o := range result.Create {
			state.NetNamespaces = append(state.NetNamespaces, *o)
		}
	}
	if len(state.NetNamespaces) != len(state.Namespaces) {
		t.Errorf("%d NetNamespaces for %d Namespaces", len(state.NetNamespaces), len(state.Namespaces))
	}
}
