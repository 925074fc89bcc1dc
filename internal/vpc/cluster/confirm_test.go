package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	shared "weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/vpc/cluster/plan"
)

// live is an API server that has pods, and counts the requests for them.
type live struct {
	client.Reader
	pods map[string]*corev1.Pod // by "<namespace>/<name>"
	fail error

	mu          sync.Mutex
	gets, pages int
}

func (l *live) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gets++
	pod := l.pods[key.String()]
	switch {
	case l.fail != nil:
		return l.fail
	case pod == nil:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
	}
	pod.DeepCopyInto(object.(*corev1.Pod))
	return nil
}

func (l *live) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pages++
	o := (&client.ListOptions{}).ApplyOptions(options)
	page := list.(*metav1.PartialObjectMetadataList)
	if kind := page.GroupVersionKind(); kind.Kind != "PodList" || o.Limit == 0 {
		return fmt.Errorf("a list of %s with limit %d", kind, o.Limit)
	}
	at, _ := strconv.Atoi(o.Continue)
	for _, name := range slices.Sorted(maps.Keys(l.pods)) {
		if pod := l.pods[name]; pod.Namespace == o.Namespace {
			page.Items = append(page.Items, metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta})
		}
	}
	page.Items = page.Items[at:]
	if limit := int(o.Limit); len(page.Items) > limit {
		page.Items, page.Continue = page.Items[:limit], strconv.Itoa(at+limit)
	}
	return l.fail
}

func (l *live) requests() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%d gets, %d pages", l.gets, l.pages)
}

// with returns a reconciler that has read a Vpc v and its Subnets a and b.
func with(server *recorder, l *live) *reconciler {
	r := &reconciler{
		tools: shared.Tools{Client: server, Live: l}, planner: plan.NewPlanner(), written: map[key]version{}, log: slog.New(slog.DiscardHandler),
	}
	held := []string{kubeovn.Finalizer}
	r.knows(&kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v", Finalizers: held}})
	for i, name := range []string{"a", "b"} {
		r.knows(&kubeovn.Subnet{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Finalizers: held},
			Spec:       kubeovn.SubnetSpec{Vpc: "v", CIDRBlock: fmt.Sprintf("10.%d.0.0/16", i)},
		})
	}
	return r
}

// podOf returns a pod that is bound to the Subnet of its namespace's name.
func podOf(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{kubeovn.AnnotationLogicalSwitch: namespace},
		},
		Spec: corev1.PodSpec{NodeName: "node"},
	}
}

// ipOf returns the IP object of a pod, the i-th one of its Subnet.
func ipOf(pod *corev1.Pod, i int) *kubeovn.IP {
	address := fmt.Sprintf("10.%d.%d.%d", map[string]int{"a": 0, "b": 1}[pod.Namespace], 1+i/200, 1+i%200)
	return &kubeovn.IP{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace + "." + address}, Spec: kubeovn.IPSpec{
		PodName: pod.Name, Namespace: pod.Namespace, PodUID: string(pod.UID), Subnet: pod.Namespace, SubnetUID: pod.Namespace, V4IPAddress: address,
	}}
}

// If a thousand pods of one tenant end at a time, no request confirms what the watch has reported, another tenant's address is assigned before
// theirs are freed, and a plan frees a limited number of them.
func TestManyPodsEnd(t *testing.T) {
	const count = 1000
	server, api := &recorder{}, &live{}
	r := with(server, api)
	var pods []*corev1.Pod
	for i := range count {
		pod := podOf("a", fmt.Sprint("p", i))
		pods = append(pods, pod)
		r.handOver(pod, false)
		r.knows(ipOf(pod, i))
	}
	r.planner.Plan(metav1.Now())
	for _, pod := range pods {
		r.handOver(pod, true)
	}
	r.handOver(podOf("b", "other"), false)
	deletions := 0
	for round := 0; ; round++ {
		p := r.planner.Plan(metav1.Now())
		if len(p.Delete) != count-deletions {
			t.Fatalf("round %d: %d addresses are to be freed after %d", round, len(p.Delete), deletions)
		}
		if behind, err := r.confirm(t.Context(), p); behind || err != nil {
			t.Fatalf("behind: %t, %v", behind, err)
		}
		server.writes = nil
		if errs := r.write(t.Context(), p); errors.Join(errs...) != nil {
			t.Fatal(errs)
		}
		if created := slices.Index(server.writes, "create *v1.IP"); (created == 0) != (round == 0) {
			t.Errorf("round %d: the other tenant's address is written at place %d", round, created)
		}
		now := 0
		for _, what := range server.writes {
			if what == "delete *v1.IP" {
				now++
			}
		}
		if deletions += now; now > maxFreed {
			t.Errorf("round %d: %d addresses are freed", round, now)
		}
		if result, err := r.settle(); err != nil || (result.RequeueAfter > 0) != (deletions < count) {
			t.Errorf("round %d: the next one is due after %s, %v; %d are freed", round, result.RequeueAfter, err, deletions)
		}
		if deletions == count {
			break
		}
	}
	if have := api.requests(); have != "0 gets, 0 pages" {
		t.Errorf("%s", have)
	}
}

// An IP object that cannot be deleted does not keep those after it; if none can be deleted, the delay after an error applies.
func TestUndeletableIPs(t *testing.T) {
	server := &recorder{refuses: "delete *v1.IP"}
	r := with(server, &live{})
	for i := range maxFreed + 1 {
		r.knows(ipOf(podOf("a", fmt.Sprint("p", i)), i))
	}
	first := r.planner.Plan(metav1.Now())
	errs := r.write(t.Context(), first)
	if len(errs) < maxFreed || r.freeing.left {
		t.Errorf("%d errors; another round is due at once: %t", len(errs), r.freeing.left)
	}
	server.refuses = ""
	w := &writer{reconciler: r, plan: r.planner.Plan(metav1.Now())}
	if _, freed := w.removals(); len(freed) != maxFreed+1 || freed[0] != first.Delete[maxFreed] || freed[1] != first.Delete[0] {
		t.Errorf("%d are to be freed, %s first", len(freed), freed[0].Name)
	}
}

// Addresses whose pods the cache does not have are confirmed once, with a list where there are many in a namespace: that of a pod that exists
// stays. Of a pod with two IP objects, the later one is removed.
func TestConfirmation(t *testing.T) {
	server, api := &recorder{}, &live{pods: map[string]*corev1.Pod{}}
	r := with(server, api)
	add := func(pod *corev1.Pod) { api.pods[pod.Namespace+"/"+pod.Name] = pod }
	ips := map[string]*kubeovn.IP{}
	for i := range 1000 {
		pod := podOf("a", fmt.Sprint("p", i))
		ips[pod.Name] = ipOf(pod, i)
		r.knows(ips[pod.Name])
		switch {
		case i == 0:
			add(pod)
		case i == 1: // its containers have ended
			pod.Status.Phase = corev1.PodFailed
			add(pod)
		case i < podsPerPage+10: // of the same name, and another one
			pod.UID += "-2"
			add(pod)
		}
	}
	for i := range 5 {
		pod := podOf("b", fmt.Sprint("q", i))
		ips[pod.Name] = ipOf(pod, i)
		r.knows(ips[pod.Name])
	}
	impossible := ipOf(podOf("b", "../p0"), 6)
	r.knows(impossible)
	present := podOf("b", "present")
	r.handOver(present, false)
	one, two := ipOf(present, 7), ipOf(present, 8)
	two.CreationTimestamp = metav1.Now()
	r.knows(one)
	r.knows(two)

	p := r.planner.Plan(metav1.Now())
	if len(p.Confirm) != 1005 || len(p.Delete) != 1007 || slices.Contains(p.Confirm, impossible) || slices.Contains(p.Confirm, two) {
		t.Errorf("%d are to be confirmed, %d removed", len(p.Confirm), len(p.Delete))
	}
	if behind, err := r.confirm(t.Context(), p); !behind || err != nil {
		t.Errorf("behind: %t, %v", behind, err)
	}
	const want = "7 gets, 2 pages"
	if have := api.requests(); have != want {
		t.Errorf("%s, want %s", have, want)
	}
	r.planner.Again()
	p = r.planner.Plan(metav1.Now())
	if len(p.Confirm) > 0 || len(p.Delete) != 1006 || slices.Contains(p.Delete, ips["p0"]) || slices.Contains(p.Delete, one) || !slices.Contains(p.Delete, two) {
		t.Errorf("then %d are to be confirmed, %d removed", len(p.Confirm), len(p.Delete))
	}
	if behind, err := r.confirm(t.Context(), p); behind || err != nil || api.requests() != want {
		t.Errorf("behind: %t, %v; %s", behind, err, api.requests())
	}
}

// Nothing is removed while the API server does not answer.
func TestUnconfirmed(t *testing.T) {
	for _, count := range []int{1, listedAbove + 1} {
		api := &live{fail: errRefused}
		r := with(&recorder{}, api)
		for i := range count {
			r.knows(ipOf(podOf("a", fmt.Sprint("p", i)), i))
		}
		if _, err := r.confirm(t.Context(), r.planner.Plan(metav1.Now())); !errors.Is(err, errRefused) {
			t.Errorf("%d pods: %v", count, err)
		}
		r.planner.Again()
		if p := r.planner.Plan(metav1.Now()); len(p.Confirm) != count {
			t.Errorf("%d pods: then %d are to be confirmed", count, len(p.Confirm))
		}
	}
}
