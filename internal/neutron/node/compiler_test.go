package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/neutron/ports"
	"weft.dev/weft/internal/reconcile"
)

func fakeCache(t *testing.T, there ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), weftv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(there...).Build()
}

// podNumber is an attachment of a namespace on its Network. A second pod with the same key has other addresses.
func podNumber(t *testing.T, namespace string, number, life int) *attach.Record {
	t.Helper()
	slot := host.Slot(2*number + life%2)
	kept, err := json.Marshal(ports.Details{Port: fmt.Sprintf("port-%d-%d", number, life), Slot: slot, Network: namespace})
	if err != nil {
		t.Fatal(err)
	}
	return &attach.Record{
		ContainerID: fmt.Sprintf("%s-%d", namespace, number), IfName: "eth0", PodNamespace: namespace, PodName: fmt.Sprintf("pod-%d", number), Details: kept,
		MAC: fmt.Sprintf("0a:58:0a:f4:%02x:%02x", number, life), Addresses: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(number), byte(life)}), 16)},
	}
}

func serviceOf(namespace, name string, port int32) (*corev1.Service, *discoveryv1.EndpointSlice) {
	at := metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Labels: map[string]string{discoveryv1.LabelServiceName: name}}
	service := &corev1.Service{ObjectMeta: at, Spec: corev1.ServiceSpec{
		ClusterIP: "10.96.0.7", Ports: []corev1.ServicePort{{Name: "http", Port: port, Protocol: corev1.ProtocolTCP}},
	}}
	endpoints := &discoveryv1.EndpointSlice{
		ObjectMeta: at, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.9.9"}}},
	}
	return service, endpoints
}

func policyOf(namespace string, app string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "policy"},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
			}}},
		},
	}
}

// order is a node on which attachments, events and compilations occur in any order, with a model of what was handed over to the switch's
// loop.
type order struct {
	*compiler

	t     *testing.T
	rt    *rapid.T
	cache client.Client
	loop  fragments
	// pods are the open attachments, and lives counts the openings of each key.
	pods  map[attach.Key]*attach.Record
	lives map[attach.Key]int
	// answered are the ADDs that may have been answered.
	openings []opening
	answered map[attach.Key]bool
	events   []func()
	batches  []*batch
}

func newOrder(t *testing.T, rt *rapid.T) *order {
	o := &order{
		t: t, rt: rt, cache: fakeCache(t), loop: fragments{}, pods: map[attach.Key]*attach.Record{}, lives: map[attach.Key]int{}, answered: map[attach.Key]bool{},
	}
	o.compiler = newCompiler("n1", o.cache, slog.New(slog.DiscardHandler), o.hand)
	return o
}

// hand is the loop's Set. No flows may ever be handed over for a closed pod, and no flows removed from one whose ADD was answered.
func (o *order) hand(f fragments) {
	maps.Copy(o.loop, f)
	open := map[reconcile.Owner]bool{}
	for key, rec := range o.pods {
		open[ownerOf(rec)] = true
		if o.answered[key] && len(o.loop[ownerOf(rec)]) == 0 {
			o.rt.Errorf("pod %s has lost its flows after its ADD", key)
		}
	}
	for owner, flows := range o.loop {
		if kind, _, _ := objectOf(owner); kind == "" && len(flows) > 0 && !open[owner] {
			o.rt.Errorf("the flows of %s have come back after its DEL", owner)
		}
	}
}

func (o *order) key() (namespace string, number int, key attach.Key) {
	namespace, number = rapid.SampledFrom([]string{"blue", "red"}).Draw(o.rt, "namespace"), rapid.IntRange(0, 2).Draw(o.rt, "pod")
	return namespace, number, podNumber(o.t, namespace, number, 0).Key()
}

func (o *order) add() {
	namespace, number, key := o.key()
	if o.pods[key] != nil {
		return
	}
	o.lives[key]++
	rec := podNumber(o.t, namespace, number, o.lives[key])
	o.pods[key] = rec
	o.reopen(key)
	o.openings = append(o.openings, o.admit(rec, scope{namespace, namespace}))
}

func (o *order) del() {
	_, _, key := o.key()
	rec := o.pods[key]
	if rec == nil {
		return
	}
	delete(o.pods, key)
	delete(o.answered, key)
	o.close(rec)
	if rapid.Bool().Draw(o.rt, "removed") {
		o.withdraw([]attach.Record{*rec})
		o.removed([]attach.Record{*rec})
	} else {
		o.events = append(o.events, func() { o.withdraw(nil); o.namespaceChanged(rec.PodNamespace, false) })
	}
}

// answers records which ADDs are answered. From then on their flows must exist.
func (o *order) answers() {
	o.openings = slices.DeleteFunc(o.openings, func(of opening) bool {
		open, _, _, err := o.answer(&of)
		if open {
			if len(o.loop[ownerOf(&of.rec)]) == 0 {
				o.rt.Errorf("the ADD of %s is answered, and it has no flows", of.rec.Key())
			}
			o.answered[of.rec.Key()] = true
		}
		return open || err != nil
	})
}

// change changes an object in the cache. Its event is sent later.
func (o *order) change() {
	namespace := rapid.SampledFrom([]string{"blue", "red"}).Draw(o.rt, "namespace")
	ctx := o.t.Context()
	put := func(object client.Object) {
		_ = o.cache.Delete(ctx, object) // it may not exist
		if err := o.cache.Create(ctx, object); err != nil {
			o.rt.Fatal(err)
		}
	}
	only := false
	switch what := rapid.SampledFrom([]string{"service", "no service", "policy", "no policy", "pod"}).Draw(o.rt, "what"); what {
	case "service":
		s, slice := serviceOf(namespace, "web", rapid.Int32Range(80, 82).Draw(o.rt, "port"))
		put(s)
		put(slice)
	case "no service":
		s, _ := serviceOf(namespace, "web", 80)
		_ = o.cache.Delete(ctx, s) // it may not exist
	case "policy":
		put(policyOf(namespace, rapid.SampledFrom([]string{"a", "b"}).Draw(o.rt, "app")))
	case "no policy":
		_ = o.cache.Delete(ctx, policyOf(namespace, "")) // it may not exist
	case "pod":
		only = true
		name := fmt.Sprintf("pod-%d", rapid.IntRange(0, 2).Draw(o.rt, "pod"))
		put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{"app": rapid.SampledFrom([]string{"a", "b"}).Draw(o.rt, "app")},
		}})
	}
	o.events = append(o.events, func() { o.namespaceChanged(namespace, only) })
}

func (o *order) event() {
	if len(o.events) > 0 {
		o.events[0]()
		o.events = o.events[1:]
	}
}

func (o *order) start() {
	for _, s := range o.waiting() {
		if b := o.begin(s); b != nil && rapid.Bool().Draw(o.rt, "at once") {
			b.compile(o.t.Context(), o.compiler)
			o.batches = append(o.batches, b)
		} else if b != nil {
			o.batches = append(o.batches, b)
		}
	}
}

func (o *order) end() {
	if len(o.batches) == 0 {
		return
	}
	i := rapid.IntRange(0, len(o.batches)-1).Draw(o.rt, "batch")
	b := o.batches[i]
	o.batches = slices.Delete(o.batches, i, i+1)
	if b.made == nil {
		b.compile(o.t.Context(), o.compiler)
	}
	o.handOver(o.t.Context(), b)
	o.answers()
}

// left returns the loop's fragments of networks and pods.
func left(f fragments) fragments {
	kept := fragments{}
	for owner, flows := range f {
		if len(flows) > 0 {
			kept[owner] = flows
		}
	}
	return kept
}

// In whatever order ADDs, DELs, events and compilations occur, a closed pod gets no flows, one with an answered ADD keeps its flows, and in
// the end the switch has the result of compiling all objects.
func TestOrderOfCompilations(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := newOrder(t, rt)
		steps := map[string]func(){"add": o.add, "del": o.del, "change": o.change, "event": o.event, "start": o.start, "end": o.end}
		names := slices.Sorted(maps.Keys(steps))
		for range rapid.IntRange(5, 60).Draw(rt, "steps") {
			steps[rapid.SampledFrom(names).Draw(rt, "step")]()
		}
		for len(o.events) > 0 {
			o.event()
		}
		for len(o.batches) > 0 {
			o.end()
		}
		o.serveAll(t.Context())
		o.answers()
		want := fragments{}
		anew := newCompiler("n1", o.cache, slog.New(slog.DiscardHandler), func(f fragments) { maps.Copy(want, f) })
		for _, rec := range o.pods {
			anew.admit(rec, scope{rec.PodNamespace, rec.PodNamespace})
		}
		anew.serveAll(t.Context())
		if !reflect.DeepEqual(left(want), left(o.loop)) {
			rt.Errorf("the switch has the flows of %v, want those of %v", slices.Sorted(maps.Keys(left(o.loop))), slices.Sorted(maps.Keys(left(want))))
		}
		if len(o.jobs) != len(anew.jobs) {
			rt.Errorf("%d networks are kept, want %d", len(o.jobs), len(anew.jobs))
		}
	})
}

// counted counts the lists that are read.
type counted struct {
	client.Reader

	lists atomic.Int64
}

func (c *counted) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.lists.Add(1)
	return c.Reader.List(ctx, list, opts...)
}

// An event requests the compilation of only those networks that depend on its object.
func TestEventsConcernTheirNamespace(t *testing.T) {
	web, slice := serviceOf("blue", "web", 80)
	reader := &counted{Reader: fakeCache(t, web, slice, policyOf("red", "a"))}
	compiled := func(c *compiler) bool {
		before := reader.lists.Load()
		c.serveAll(t.Context())
		return reader.lists.Load() > before
	}
	n := &Network{ports: ports.New(ports.Options{Node: "n1"}), addresses: &addresses{}}
	n.compiler = newCompiler("n1", reader, slog.New(slog.DiscardHandler), func(fragments) {})
	for _, namespace := range []string{"blue", "red"} {
		n.compiler.admit(podNumber(t, namespace, 1, 1), scope{namespace, namespace})
	}
	n.compiler.serveAll(t.Context())
	meta := func(namespace, version string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: "x", ResourceVersion: version}
	}
	pod := func(namespace, version, phase string, labels map[string]string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: meta(namespace, version), Status: corev1.PodStatus{Phase: corev1.PodPhase(phase), PodIP: "10.244.0.7"}}
		p.Labels = labels
		return p
	}
	port := &weftv1.NeutronPort{ObjectMeta: meta("", "2"), Spec: weftv1.NeutronPortSpec{Node: "n1", Network: weftv1.NeutronPortNetwork{Namespace: "blue", Name: "blue"}}}
	reported := port.DeepCopy()
	reported.ResourceVersion, reported.Status.Plugged = "3", true
	for name, c := range map[string]struct {
		before, now client.Object
		want        bool
	}{
		"a Service":                      {nil, &corev1.Service{ObjectMeta: meta("blue", "2")}, true},
		"a Service of another namespace": {nil, &corev1.Service{ObjectMeta: meta("green", "2")}, false},
		"the same again":                 {&corev1.Service{ObjectMeta: meta("blue", "2")}, &corev1.Service{ObjectMeta: meta("blue", "2")}, false},
		"endpoints":                      {nil, &discoveryv1.EndpointSlice{ObjectMeta: meta("blue", "2")}, true},
		"endpoints of another namespace": {nil, &discoveryv1.EndpointSlice{ObjectMeta: meta("green", "2")}, false},
		"a policy":                       {nil, &networkingv1.NetworkPolicy{ObjectMeta: meta("blue", "2")}, true},
		"a pod where there is no policy": {nil, pod("blue", "2", "Pending", nil), false},
		"a pod where there is one":       {nil, pod("red", "2", "Pending", nil), true},
		"a pod's labels":                 {pod("red", "2", "Running", nil), pod("red", "3", "Running", map[string]string{"app": "a"}), true},
		"a pod that runs":                {pod("red", "2", "Pending", nil), pod("red", "3", "Running", nil), false},
		"a pod that has ended":           {pod("red", "2", "Running", nil), pod("red", "3", "Succeeded", nil), true},
		"a pod of another namespace":     {nil, pod("green", "2", "Running", nil), false},
		"a namespace's labels":           {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red", ResourceVersion: "2"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red", ResourceVersion: "3", Labels: map[string]string{"a": "b"}}}, true},
		"a namespace's annotations":      {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red", ResourceVersion: "2"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red", ResourceVersion: "3"}}, false},
		"a port":                         {nil, port, true},
		"a port's status":                {port, reported, false},
	} {
		n.objectChanged(c.before, c.now, false)
		if got := compiled(n.compiler); got != c.want {
			t.Errorf("%s: compiled %v, want %v", name, got, c.want)
		}
	}
}

// What has not changed is not handed over again: comparing it would keep DELs and the ADDs of other networks waiting.
func TestOnlyChangesAreHandedOver(t *testing.T) {
	web, slice := serviceOf("blue", "web", 80)
	cache := fakeCache(t, web, slice)
	var handed []fragments
	c := newCompiler("n1", cache, slog.New(slog.DiscardHandler), func(f fragments) { handed = append(handed, f) })
	blue := scope{"blue", "blue"}
	recs := map[int]*attach.Record{1: podNumber(t, "blue", 1, 1), 2: podNumber(t, "blue", 2, 1)}
	for _, rec := range recs {
		c.admit(rec, blue)
	}
	// compiled returns the owners that a compilation hands over.
	compiled := func() (owners []reconcile.Owner) {
		handed = nil
		c.namespaceChanged("blue", false)
		c.serveAll(t.Context())
		for _, f := range handed {
			owners = slices.AppendSeq(owners, maps.Keys(f))
		}
		return owners
	}
	if first := compiled(); len(first) != 3 {
		t.Errorf("the first compilation hands over %v", first)
	}
	if again := compiled(); len(again) != 0 {
		t.Errorf("without a change, %v are handed over", again)
	}
	c.admit(podNumber(t, "blue", 3, 1), blue)
	if added := compiled(); !slices.Equal(added, []reconcile.Owner{ownerOf(podNumber(t, "blue", 3, 1))}) {
		t.Errorf("after an ADD, %v are handed over", added)
	}
	if err := cache.Delete(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	if changed := compiled(); !slices.Contains(changed, blue.owner()) {
		t.Errorf("without its Service, %v are handed over", changed)
	}
	// A pod that is closed, and opened again with the same flows, gets them again.
	c.close(recs[1])
	c.reopen(recs[1].Key())
	c.admit(recs[1], blue)
	if opened := compiled(); !slices.Equal(opened, []reconcile.Owner{ownerOf(recs[1])}) {
		t.Errorf("a pod that is opened again: %v are handed over", opened)
	}
}

// The event of a pod during the compilation of its namespace's first policy requests another compilation.
func TestPodChangesDuringACompilation(t *testing.T) {
	cache := fakeCache(t)
	c := newCompiler("n1", cache, slog.New(slog.DiscardHandler), func(fragments) {})
	c.admit(podNumber(t, "blue", 1, 1), scope{"blue", "blue"})
	c.serveAll(t.Context())
	if err := cache.Create(t.Context(), policyOf("blue", "a")); err != nil {
		t.Fatal(err)
	}
	c.namespaceChanged("blue", false)
	b := c.begin(scope{"blue", "blue"})
	b.compile(t.Context(), c)
	c.namespaceChanged("blue", true)
	c.handOver(t.Context(), b)
	if len(c.waiting()) != 1 {
		t.Error("the pod's change is lost")
	}
}

// A policy that is not in effect as written has one event with the reason, until that changes.
func TestRefusedPoliciesHaveEvents(t *testing.T) {
	invalid := policyOf("blue", "a")
	invalid.Spec.Ingress[0].From = []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "nowhere"}}}
	large := manyCombinations(65)
	c := newCompiler("n1", fakeCache(t, invalid, large), slog.New(slog.DiscardHandler), func(fragments) {})
	said := map[string][]string{}
	c.warn = func(policy client.Object, note string) { said[policy.GetName()] = append(said[policy.GetName()], note) }
	rec := podNumber(t, "blue", 1, 1)
	if err := c.objects.(client.Client).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: rec.PodName}}); err != nil { //nolint:forcetypeassert // it is
		t.Fatal(err)
	}
	c.admit(rec, scope{"blue", "blue"})
	for range 3 {
		c.serveAll(t.Context())
		c.namespaceChanged("blue", false)
	}
	for name, want := range map[string]string{invalid.Name: "nowhere", large.Name: "write fewer ports, or peers as ranges"} {
		if len(said[name]) != 1 || !strings.Contains(said[name][0], want) {
			t.Errorf("events of policy %s: %q, want one with %q", name, said[name], want)
		}
	}
}

// shuffled lists NetworkPolicies in another order each time, as a cache may.
type shuffled struct {
	client.Reader
	lists int
}

func (r *shuffled) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := r.Reader.List(ctx, list, opts...)
	if policies, is := list.(*networkingv1.NetworkPolicyList); is {
		if r.lists++; r.lists%2 == 0 {
			slices.Reverse(policies.Items)
		}
	}
	return err
}

// The same problems of several pods and policies are logged once, whatever the order of the objects is, and the text is limited.
func TestProblemsAreLoggedOnce(t *testing.T) {
	var there []client.Object
	for i := range 40 {
		invalid := policyOf("blue", "a")
		invalid.Name = fmt.Sprintf("invalid-%d", i)
		invalid.Spec.Ingress[0].From = []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "nowhere"}}}
		there = append(there, invalid)
	}
	there = append(there, manyCombinations(65))
	for i := range 8 {
		there = append(there, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: fmt.Sprintf("pod-%d", i)}})
	}
	var lines strings.Builder
	c := newCompiler("n1", &shuffled{Reader: fakeCache(t, there...)}, slog.New(slog.NewTextHandler(&lines, nil)), func(fragments) {})
	for i := range 8 {
		c.admit(podNumber(t, "blue", i, 1), scope{"blue", "blue"})
	}
	for range 8 {
		c.serveAll(t.Context())
		c.namespaceChanged("blue", false)
	}
	if n := strings.Count(lines.String(), "\n"); n != 1 || len(lines.String()) > 2*mostLogged {
		t.Errorf("%d lines, %d bytes: %.2000s", n, lines.Len(), lines.String())
	}
}

// Groups whose search begins at the same number, which users can cause, have different numbers, and keep them.
func TestGroupNumbers(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := &groups{first: func(_ scope, key groupKey) uint32 { return uint32(key.port % 3) }}
		scopes := []scope{{"blue", "blue"}, {"red", "red"}}
		held := map[scope]map[groupKey]uint32{}
		for range rapid.IntRange(1, 20).Draw(rt, "compilations") {
			s := rapid.SampledFrom(scopes).Draw(rt, "network")
			now, used := map[groupKey]uint32{}, map[groupKey]bool{}
			for _, port := range rapid.SliceOfDistinct(rapid.Uint16Range(1, 8), rapid.ID[uint16]).Draw(rt, "ports") {
				key := groupKey{uid: types.UID(s.name), port: port}
				now[key], used[key] = g.number(s, key), true
				if was, had := held[s][key]; had && was != now[key] {
					rt.Errorf("group of %v changed from %d to %d", key, was, now[key])
				}
			}
			g.keep(s, used)
			held[s] = now
			seen := map[uint32]groupKey{}
			for _, all := range held {
				for key, number := range all {
					if other, twice := seen[number]; twice || number == 0 {
						rt.Errorf("group %d is that of %v and %v", number, key, other)
					}
					seen[number] = key
				}
			}
			if len(g.assigned) != len(seen) {
				rt.Errorf("%d numbers are assigned for %d groups", len(g.assigned), len(seen))
			}
		}
	})
}
