package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"weft.dev/weft/internal/cluster/plan"
	"weft.dev/weft/internal/metrics"
)

// numbers is a planner that gives each Namespace a ConfigMap with the lowest free number, and deletes the ConfigMaps of deleted Namespaces.
type numbers struct{ plans int }

func (n *numbers) Plan(ctx context.Context, from client.Reader) (Plan, error) {
	n.plans++
	var namespaces corev1.NamespaceList
	var given corev1.ConfigMapList
	if err := from.List(ctx, &namespaces); err != nil {
		return Plan{}, err
	}
	if err := from.List(ctx, &given); err != nil {
		return Plan{}, err
	}
	var result Plan
	has, used := map[string]bool{}, map[string]bool{}
	for i := range namespaces.Items {
		has[namespaces.Items[i].Name] = false
	}
	for i := range given.Items {
		m := &given.Items[i]
		used[m.Data["number"]] = true
		if _, there := has[m.Name]; !there {
			result.Delete = append(result.Delete, Deletion{Object: m, Owner: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}})
			continue
		}
		has[m.Name] = true
	}
	for i := range namespaces.Items {
		if name := namespaces.Items[i].Name; !has[name] {
			number := 1
			for used[fmt.Sprint(number)] {
				number++
			}
			used[fmt.Sprint(number)] = true
			result.Create, result.Assigns = append(result.Create, numbered(name, fmt.Sprint(number))), true
		}
	}
	if len(namespaces.Items) == 0 {
		result.Problems = []plan.Problem{{Object: plan.Object{Kind: "ConfigMap", Namespace: "numbers", Name: "all"}, Reason: "Empty", Message: "create a Namespace"}}
	}
	return result, nil
}

func numbered(name, number string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "numbers", Name: name, UID: "of-" + types.UID(name)}, Data: map[string]string{"number": number}}
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// behind reads from an outdated cache, and writes to the API server.
type behind struct {
	client.Client

	cache client.Reader
}

func (b *behind) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	return b.cache.Get(ctx, key, object, options...)
}

func (b *behind) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return b.cache.List(ctx, list, options...)
}

func store(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

// given returns the numbers assigned in the API server, by name.
func given(t *testing.T, live client.Client) string {
	t.Helper()
	var all corev1.ConfigMapList
	if err := live.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for i := range all.Items {
		lines = append(lines, all.Items[i].Name+"="+all.Items[i].Data["number"])
	}
	return strings.Join(lines, " ")
}

// A plan that assigns or deletes is computed again from the API server itself. So with an outdated cache, no number is assigned twice, and
// an object that exists again is not deleted.
func TestPlansAreConfirmed(t *testing.T) {
	for name, test := range map[string]struct {
		cache, live []client.Object
		want        string
		plans       int
	}{
		"up to date":                        {[]client.Object{namespace("a")}, []client.Object{namespace("a")}, "a=1", 2},
		"nothing to write":                  {[]client.Object{namespace("a"), numbered("a", "1")}, []client.Object{namespace("a"), numbered("a", "1")}, "a=1", 1},
		"another's number is not seen yet":  {[]client.Object{namespace("a")}, []client.Object{namespace("a"), numbered("b", "1")}, "a=2 b=1", 2},
		"its own number is not seen yet":    {[]client.Object{namespace("a")}, []client.Object{namespace("a"), numbered("a", "7")}, "a=7", 2},
		"the owner has come back":           {[]client.Object{numbered("a", "1")}, []client.Object{namespace("a"), numbered("a", "1")}, "a=1", 2},
		"the owner is gone":                 {[]client.Object{numbered("a", "1")}, []client.Object{numbered("a", "1")}, "", 2},
		"what is deleted is gone already":   {[]client.Object{numbered("a", "1")}, nil, "", 2},
		"what only the second plan deletes": {[]client.Object{numbered("a", "1")}, []client.Object{numbered("a", "1"), numbered("b", "2")}, "b=2", 2},
	} {
		t.Run(name, func(t *testing.T) {
			live, cache := store(t, test.live...), store(t, test.cache...)
			planner := &numbers{}
			tools := Tools{Client: &behind{live, cache}, Live: live, Log: slog.New(slog.DiscardHandler), Metrics: metrics.NewController("v1")}
			f := &follower{tools: tools, Following: Following{Name: "numbers", Planner: planner, Given: []client.Object{&corev1.ConfigMap{}}}}
			if _, err := f.Reconcile(t.Context(), Everything{}); err != nil {
				t.Fatal(err)
			}
			if got := given(t, live); got != test.want || planner.plans != test.plans {
				t.Errorf("%q after %d plans, want %q after %d", got, planner.plans, test.want, test.plans)
			}
		})
	}
}

// Lists of kinds without assigned values are read from the cache, single objects from the API server.
func TestConfirmingReader(t *testing.T) {
	live, cache := store(t, namespace("live"), numbered("live", "1")), store(t, namespace("cached"))
	reader := &confirming{cached: cache, live: live, lists: []string{"ConfigMapList"}}
	var namespaces corev1.NamespaceList
	var given corev1.ConfigMapList
	if err := reader.List(t.Context(), &namespaces); err != nil || len(namespaces.Items) != 1 || namespaces.Items[0].Name != "cached" {
		t.Errorf("Namespaces: %v %v", namespaces.Items, err)
	}
	if err := reader.List(t.Context(), &given); err != nil || len(given.Items) != 1 {
		t.Errorf("ConfigMaps: %v %v", given.Items, err)
	}
	if err := reader.Get(t.Context(), client.ObjectKey{Name: "cached"}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Namespace that only the cache has: %v", err)
	}
}

// A problem is reported once, on its object, with the object's namespace.
func TestProblemsOfPlans(t *testing.T) {
	recorder, empty := events.NewFakeRecorder(16), store(t)
	tools := Tools{Client: empty, Live: empty, Events: recorder, Log: slog.New(slog.DiscardHandler), Metrics: metrics.NewController("v1")}
	report := tools.Reporter("numbers", "numbers.example/v1")
	f := &follower{tools: tools, Following: Following{Name: "numbers", Planner: &numbers{}, Reporter: report, Action: "Number"}}
	for range 2 {
		if _, err := f.Reconcile(t.Context(), Everything{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := sent(recorder); len(got) != 1 || got[0] != "Warning Empty create a Namespace" {
		t.Errorf("events %q", got)
	}
	if ref := report.reference(plan.Object{Kind: "Number", Namespace: "a", Name: "b"}); ref.APIVersion != "numbers.example/v1" || ref.Namespace != "a" {
		t.Errorf("%+v", ref)
	}
	if ref := report.reference(plan.Object{Kind: "Pod", Namespace: "a", Name: "b"}); ref.APIVersion != "v1" {
		t.Errorf("%+v", ref)
	}
}

// The cache keeps the union of the parts' selections.
func TestCachedIsTheUnion(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	keep := func(object any) (any, error) { return object, nil }
	only := fields.OneTermEqualSelector("metadata.name", "a")
	part := func(name string, o Object) Part { return Part{Name: name, Objects: []Object{o}} }
	cached, err := Cached([]Part{
		part("a", Object{Resource: "nodes", Kind: &corev1.Node{}, Keep: keep}), part("b", Object{Resource: "nodes", Kind: &corev1.Node{}, Field: only}),
		part("c", Object{Resource: "pods"}), part("d", Object{Resource: "services", Kind: &corev1.Service{}}),
	}, scheme)
	if err != nil || len(cached) != 1 {
		t.Fatalf("%v %v", cached, err)
	}
	for object, kept := range cached {
		if _, node := object.(*corev1.Node); !node || kept.Transform == nil {
			t.Errorf("%T: %+v", object, kept)
		}
	}
	_, err = Cached([]Part{
		part("a", Object{Resource: "nodes", Kind: &corev1.Node{}, Keep: keep}), part("b", Object{Resource: "nodes", Kind: &corev1.Node{}, Keep: keep}),
	}, scheme)
	if err == nil || !strings.Contains(err.Error(), "networks a and b") {
		t.Errorf("two that strip Nodes: %v", err)
	}
}
