//go:build real

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/deploy/crds"
	"weft.dev/weft/internal/apiservertest"
	shared "weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/vpc/cluster"
)

var server *apiservertest.Server //nolint:gochecknoglobals // set once, by TestMain

func TestMain(m *testing.M) {
	os.Exit(apiservertest.MainWith(m, &server, crds.All, apiservertest.DefinitionIn(attachmentDefinitions)))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start runs a controller with only the part for VPCs, until the test or stop ends it. Its cache lacks pods with the hidden names.
func start(t *testing.T, central *ovntest.Central, term uint64, hidden ...string) (stop func()) {
	t.Helper()
	return startAs(t, central, term, server.Config(), hidden...)
}

// has reports whether a pod has an IP object, and reads it.
func has(t *testing.T, c client.Client, namespace, pod string, into *kubeovn.IP) bool {
	t.Helper()
	var all kubeovn.IPList
	must(t, c.List(t.Context(), &all))
	for i := range all.Items {
		if all.Items[i].Spec.Namespace == namespace && all.Items[i].Spec.PodName == pod {
			all.Items[i].DeepCopyInto(into)
			return true
		}
	}
	return false
}

// startAs is start with another API configuration.
func startAs(t *testing.T, central *ovntest.Central, term uint64, api *rest.Config, hidden ...string) (stop func()) {
	t.Helper()
	return startWith(t, central, cluster.Options{Term: func(context.Context, client.Reader) (uint64, error) { return term, nil }}, api, hidden...)
}

// startWith is startAs with further options.
func startWith(t *testing.T, central *ovntest.Central, options cluster.Options, api *rest.Config, hidden ...string) (stop func()) {
	t.Helper()
	drift := make(chan struct{}, 1)
	engine, err := ovn.Open(t.Context(), ovn.Config{Endpoints: []string{central.NB()}, Changed: func() {
		select {
		case drift <- struct{}{}:
		default:
		}
	}})
	must(t, err)
	options.Northbound, options.Drift = engine, drift
	parts := []shared.Part{cluster.Part(options)}
	scheme := runtime.NewScheme()
	must(t, errors.Join(clientgoscheme.AddToScheme(scheme), shared.AddToScheme(parts, scheme)))
	cached, err := shared.Cached(parts, scheme)
	must(t, err)
	must(t, shared.OnlyServed(api, cached))
	for object, by := range cached {
		if _, pods := object.(*corev1.Pod); pods {
			for _, name := range hidden {
				by.Field = fields.OneTermNotEqualSelector("metadata.name", name)
				cached[object] = by
			}
		}
	}
	always := true
	mgr, err := manager.New(api, manager.Options{
		Scheme: scheme, Cache: cache.Options{ByObject: cached}, HealthProbeBindAddress: "0", Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &always},
	})
	must(t, err)
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	tools := shared.NewTools(mgr, shared.NewReadiness(metrics.NewController("test")), log, rand.New(rand.NewPCG(1, 1)))
	must(t, shared.SetUp(parts, tools))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			engine.Close()
		}
	}
	t.Cleanup(stop)
	return stop
}

// clientWith returns an API client for Kube-OVN's kinds, and creates a namespace in which pods can be created.
func clientWith(t *testing.T, namespace string) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, errors.Join(clientgoscheme.AddToScheme(scheme), kubeovn.AddToScheme(scheme)))
	c, err := client.New(server.Config(), client.Options{Scheme: scheme})
	must(t, err)
	must(t, c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	must(t, c.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}))
	return c
}

// Loaded is called once all objects that existed at the start are in effect.
func TestLoaded(t *testing.T) {
	central := ovntest.New(t, nil)
	central.Start(ovntest.Northbound)
	c := clientWith(t, "loaded")
	vpc := &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "loaded"}}
	must(t, c.Create(t.Context(), vpc))
	loaded := make(chan string, 1)
	startWith(t, central, cluster.Options{
		Term: func(context.Context, client.Reader) (uint64, error) { return 1, nil },
		Loaded: func() {
			select {
			case loaded <- central.Nbctl("--bare", "--columns=name", "list", "Logical_Router"):
			default:
			}
		},
	}, server.Config())
	select {
	case routers := <-loaded:
		if routers != vpc.Name {
			t.Errorf("routers %q", routers)
		}
	case <-time.After(time.Minute):
		t.Fatal("not called")
	}
	must(t, c.Delete(t.Context(), vpc))
	ovntest.Eventually(t, "the Vpc is gone", func() bool {
		return apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(vpc), vpc))
	})
}

// From users' objects to rows, addresses and conditions, with a real API server and a real northbound database; a restart writes nothing,
// and after the last deletion nothing is left.
func TestController(t *testing.T) {
	central := ovntest.New(t, nil)
	central.Start(ovntest.Northbound)
	outer := t // for what outlives a subtest
	stop := start(outer, central, 1)
	ctx := t.Context()
	c := clientWith(t, "ns1")
	pod := func(name, subnet string) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: name, Annotations: map[string]string{kubeovn.AnnotationLogicalSwitch: subnet}},
			Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		must(t, c.Create(ctx, p))
		return p
	}
	// The subnet and the pods are created before their VPC.
	subnet := &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "net1"}, Spec: kubeovn.SubnetSpec{Vpc: "test-vpc-1", CIDRBlock: "10.0.1.0/24", Namespaces: []string{"ns1"}}}
	must(t, c.Create(ctx, subnet))
	first, lost := pod("vpc1-pod", "net1"), pod("lost", "none")
	vpc := &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "test-vpc-1"}, Spec: kubeovn.VpcSpec{
		StaticRoutes: []kubeovn.StaticRoute{{CIDR: "0.0.0.0/0", NextHopIP: "10.0.1.254", Policy: "policyDst"}},
	}}
	must(t, c.Create(ctx, vpc))
	ip := &kubeovn.IP{}
	ovntest.Eventually(t, "the pod has an address", func() bool {
		return has(t, c, "ns1", "vpc1-pod", ip)
	})
	if ip.Spec.V4IPAddress != "10.0.1.2" || ip.Spec.PodUID != string(first.UID) || ip.Spec.LogicalPort != "net1/10.0.1.2" {
		t.Errorf("IP: %+v", ip.Spec)
	}
	if got := central.Nbctl("lsp-get-addresses", "net1/10.0.1.2"); got != "0a:58:0a:00:01:02 10.0.1.2" {
		t.Errorf("port: %s", got)
	}
	ovntest.Eventually(t, "conditions and counts", func() bool {
		must(t, c.Get(ctx, client.ObjectKeyFromObject(subnet), subnet))
		must(t, c.Get(ctx, client.ObjectKeyFromObject(vpc), vpc))
		return meta.IsStatusConditionTrue(subnet.Status.Conditions, "Ready") && meta.IsStatusConditionTrue(vpc.Status.Conditions, "Ready") &&
			subnet.Status.V4UsingIPs == 1 && subnet.Status.V4UsingIPRange == "10.0.1.2" && vpc.Status.Standby
	})
	if got := central.Nbctl("lr-route-list", "test-vpc-1"); !strings.Contains(got, "0.0.0.0/0") {
		t.Errorf("routes: %s", got)
	}
	ovntest.Eventually(t, "an event for the pod without a Subnet", func() bool {
		var events corev1.EventList
		must(t, c.List(ctx, &events, client.InNamespace("ns1")))
		for _, e := range events.Items {
			if e.InvolvedObject.Name == "lost" && strings.Contains(e.Message, `Subnet "none" does not exist`) {
				return true
			}
		}
		return false
	})

	ovntest.Eventually(t, "the mark of a complete database", func() bool {
		return strings.Contains(central.Nbctl("get", "NB_Global", ".", "external_ids"), ovn.CompleteKey)
	})

	t.Run("restart", func(t *testing.T) {
		stop()
		versions := func() string { // a row's version changes with every write
			return ovntest.Run(t, nil, "ovsdb-client", "transact", central.NB(), `["OVN_Northbound",
				{"op":"select","table":"Logical_Router","where":[],"columns":["_version"]},
				{"op":"select","table":"Logical_Router_Port","where":[],"columns":["_version"]},
				{"op":"select","table":"Logical_Switch_Port","where":[["name","==","net1/10.0.1.2"]],"columns":["_version"]}]`)
		}
		before := versions()
		stop = start(outer, central, 2)
		ovntest.Eventually(t, "the new term", func() bool { return strings.Contains(central.Nbctl("get", "NB_Global", ".", "external_ids"), `"2"`) })
		second := pod("second", "net1") // once this pod has an address, a complete plan was executed
		ovntest.Eventually(t, "the second pod has an address", func() bool { return has(t, c, "ns1", "second", ip) })
		if ip.Spec.V4IPAddress != "10.0.1.3" {
			t.Errorf("the second address: %s", ip.Spec.V4IPAddress)
		}
		must(t, c.Delete(ctx, second, client.GracePeriodSeconds(0)))
		ovntest.Eventually(t, "the address is free", func() bool {
			must(t, c.Get(ctx, client.ObjectKeyFromObject(subnet), subnet))
			return !has(t, c, "ns1", "second", ip) && subnet.Status.V4UsingIPs == 1
		})
		if after := versions(); after != before {
			t.Errorf("rows were of versions %s, are of %s", before, after)
		}
	})
	t.Run("drift", func(t *testing.T) {
		central.Nbctl("set", "Logical_Switch", "net1", "other_config:requested-tnl-key=4000")
		central.Nbctl("lsp-del", "net1/10.0.1.2")
		ovntest.Eventually(t, "rows are put back", func() bool {
			return !strings.Contains(central.Nbctl("get", "Logical_Switch", "net1", "other_config"), "4000") &&
				strings.Contains(central.Nbctl("--bare", "--columns=name", "list", "Logical_Switch_Port"), "net1/10.0.1.2")
		})
	})
	t.Run("replaced database", func(t *testing.T) {
		central.Stop(ovntest.Northbound)
		central.Wipe(ovntest.Northbound)
		central.Start(ovntest.Northbound)
		ovntest.Eventually(t, "the mark, and then all rows", func() bool {
			// ovn-nbctl fails while the engine inserts the row of NB_Global, because it would insert the row too.
			out, err := ovntest.Try(nil, "ovn-nbctl", "--db="+central.NB(), "get", "NB_Global", ".", "external_ids")
			return err == nil && strings.Contains(out, ovn.CompleteKey)
		})
		if got := central.Nbctl("lsp-get-addresses", "net1/10.0.1.2"); got != "0a:58:0a:00:01:02 10.0.1.2" {
			t.Errorf("port: %s", got)
		}
	})
	t.Run("deletion", func(t *testing.T) {
		must(t, c.Delete(ctx, vpc))
		must(t, c.Delete(ctx, subnet))
		ovntest.Eventually(t, "the condition says what is in use", func() bool {
			must(t, c.Get(ctx, client.ObjectKeyFromObject(subnet), subnet))
			ready := meta.FindStatusCondition(subnet.Status.Conditions, "Ready")
			return ready != nil && ready.Reason == kubeovn.ReasonInUse && strings.Contains(ready.Message, "10.0.1.2")
		})
		for _, p := range []*corev1.Pod{first, lost} {
			must(t, c.Delete(ctx, p, client.GracePeriodSeconds(0)))
		}
		ovntest.Eventually(t, "everything is gone", func() bool {
			return apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(vpc), vpc)) &&
				apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(subnet), subnet)) &&
				central.Nbctl("list", "Logical_Router")+central.Nbctl("list", "Logical_Switch") == ""
		})
	})
}

// A pod that is missing in the controller's cache keeps its address and row; if it is missing in the API server too, its address is free. There
// are so many of these that the controller lists the pods of the namespace, and deletes the IP objects in several rounds.
func TestPodsThatTheCacheLacks(t *testing.T) {
	central := ovntest.New(t, nil)
	central.Start(ovntest.Northbound)
	ctx := t.Context()
	const namespace = "behind"
	c := clientWith(t, namespace)
	must(t, c.Create(ctx, &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	subnet := &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: kubeovn.SubnetSpec{Vpc: namespace, CIDRBlock: "10.0.1.0/24"}}
	must(t, c.Create(ctx, subnet))
	hidden := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "hidden"},
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	must(t, c.Create(ctx, hidden))
	const pods = 220
	for i := range pods {
		name, uid, last := fmt.Sprint("gone-", i), fmt.Sprint("gone-", i), 8+i
		if i == pods/2 {
			name, uid, last = "hidden", string(hidden.UID), 7
		}
		address := fmt.Sprint("10.0.1.", last)
		must(t, c.Create(ctx, &kubeovn.IP{ObjectMeta: metav1.ObjectMeta{Name: name + "." + namespace}, Spec: kubeovn.IPSpec{
			PodName: name, Namespace: namespace, PodUID: uid, Subnet: subnet.Name, SubnetUID: string(subnet.UID), NodeName: "node1",
			IPAddress: address, V4IPAddress: address, MacAddress: fmt.Sprintf("0a:58:0a:00:01:%02x", last), LogicalPort: subnet.Name + "/" + address,
		}}))
	}
	stop := start(t, central, 1, "hidden")
	ovntest.Eventually(t, "the addresses of the pods that are gone are free", func() bool {
		var left kubeovn.IPList
		must(t, c.List(ctx, &left))
		return !slices.ContainsFunc(left.Items, func(ip kubeovn.IP) bool { return strings.HasPrefix(ip.Name, "gone-") })
	})
	// A plan after this Subnet has its row is made after the round that deleted.
	later := strings.Repeat("l", 253) // the longest name; that of the pod's port is longer
	must(t, c.Create(ctx, &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: later}, Spec: kubeovn.SubnetSpec{Vpc: namespace, CIDRBlock: "10.100.200.0/24"}}))
	ovntest.Eventually(t, "the later Subnet's switch", func() bool {
		return central.Nbctl("--bare", "--columns=name", "find", "Logical_Switch", "name="+later) != ""
	})
	inLater := hidden.DeepCopy()
	inLater.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: "later", Annotations: map[string]string{
		kubeovn.AnnotationLogicalSwitch: later, kubeovn.AnnotationIPAddress: "10.100.200.100",
	}}
	must(t, c.Create(ctx, inLater))
	ip := &kubeovn.IP{}
	ovntest.Eventually(t, "an address of the later Subnet", func() bool { return has(t, c, namespace, "later", ip) })
	if ip.Spec.LogicalPort != later+"/10.100.200.100" {
		t.Errorf("the port's name is %s", ip.Spec.LogicalPort)
	}
	must(t, c.Get(ctx, client.ObjectKey{Name: "hidden." + namespace}, &kubeovn.IP{}))
	if got := central.Nbctl("lsp-get-addresses", "behind/10.0.1.7"); got != "0a:58:0a:00:01:07 10.0.1.7" {
		t.Errorf("port of the pod that the cache lacks: %q", got)
	}
	stop()
	must(t, c.Delete(ctx, hidden, client.GracePeriodSeconds(0)))
	must(t, c.Delete(ctx, inLater, client.GracePeriodSeconds(0)))
	start(t, central, 2)
	for _, name := range []string{namespace, later} {
		must(t, c.Delete(ctx, &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	must(t, c.Delete(ctx, &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	ovntest.Eventually(t, "everything is gone", func() bool {
		return apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(subnet), subnet)) && central.Nbctl("list", "Logical_Router") == ""
	})
}

// A term grows with each leadership, also if the lease was deleted meanwhile; a replica that does not hold the lease has none.
func TestLeaseTerm(t *testing.T) {
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	c, err := client.New(server.Config(), client.Options{Scheme: scheme})
	must(t, err)
	ctx := t.Context()
	lease := func(holder string, transitions int32) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "term"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseTransitions: &transitions},
		}
	}
	first := lease("one", 41)
	must(t, c.Create(ctx, first))
	term := func(identity string) uint64 {
		t.Helper()
		have, err := cluster.LeaseTerm("default", "term", identity)(ctx, c)
		must(t, err)
		return have
	}
	before := term("one")
	if _, err := cluster.LeaseTerm("default", "term", "two")(ctx, c); !errors.Is(err, cluster.ErrNotLeading) {
		t.Errorf("the term of a replica that does not hold the lease: %v", err)
	}
	taken := lease("two", 42)
	taken.ResourceVersion = first.ResourceVersion
	must(t, c.Update(ctx, taken))
	next := term("two")
	must(t, c.Delete(ctx, taken))
	created := first.CreationTimestamp
	var last uint64
	ovntest.Eventually(t, "a lease of another second", func() bool { // the time of a lease has no fractions
		again := lease("three", 0)
		must(t, c.Create(ctx, again))
		last = term("three")
		must(t, c.Delete(ctx, again))
		return again.CreationTimestamp != created
	})
	if before >= next || next >= last {
		t.Errorf("terms %d, %d, and %d of a new lease do not grow", before, next, last)
	}
}

// Of two replicas that both act as leaders, only the one with the later term assigns addresses, each once.
func TestTwoLeaders(t *testing.T) {
	central := ovntest.New(t, nil)
	central.Start(ovntest.Northbound)
	ctx := t.Context()
	const namespace = "twice"
	c := clientWith(t, namespace)
	vpc := &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	subnet := &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: kubeovn.SubnetSpec{Vpc: namespace, CIDRBlock: "10.0.1.0/24"}}
	must(t, c.Create(ctx, vpc))
	must(t, c.Create(ctx, subnet))
	crowd := func(prefix string, count int) (pods []*corev1.Pod) {
		for i := range count {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: namespace, Name: prefix + string(rune('a'+i)), Annotations: map[string]string{kubeovn.AnnotationLogicalSwitch: namespace},
				},
				Spec: corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}
			must(t, c.Create(ctx, pod))
			pods = append(pods, pod)
		}
		return pods
	}
	have := func(pods []*corev1.Pod) bool {
		for _, pod := range pods {
			if !has(t, c, namespace, pod.Name, &kubeovn.IP{}) {
				return false
			}
		}
		return true
	}
	start(t, central, 1)
	pods := crowd("first-", 5)
	ovntest.Eventually(t, "addresses by the first replica", func() bool { return have(pods) })
	start(t, central, 2)
	pods = append(pods, crowd("second-", 20)...)
	ovntest.Eventually(t, "addresses by both", func() bool { return have(pods) })
	var ips kubeovn.IPList
	must(t, c.List(ctx, &ips))
	holders := map[string]string{}
	for _, ip := range ips.Items {
		if ip.Spec.Subnet != namespace {
			continue
		}
		if other := holders[ip.Spec.V4IPAddress]; other != "" {
			t.Errorf("%s and %s have %s", ip.Name, other, ip.Spec.V4IPAddress)
		}
		holders[ip.Spec.V4IPAddress] = ip.Name
	}
	if len(holders) != len(pods) {
		t.Errorf("%d addresses for %d pods", len(holders), len(pods))
	}
	ovntest.Eventually(t, "the second replica's term", func() bool { return strings.Contains(central.Nbctl("get", "NB_Global", ".", "external_ids"), `"2"`) })
	for _, pod := range pods {
		must(t, c.Delete(ctx, pod, client.GracePeriodSeconds(0)))
	}
	must(t, c.Delete(ctx, subnet))
	must(t, c.Delete(ctx, vpc))
	ovntest.Eventually(t, "everything is gone", func() bool {
		return apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(subnet), subnet)) && central.Nbctl("list", "Logical_Router") == ""
	})
}

// late delays the creation of IP objects.
type late struct {
	http.RoundTripper
	held, release chan struct{}
	done          chan int // the status of each answer
}

func (l *late) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPost || !strings.HasSuffix(req.URL.Path, "/ips") {
		return l.RoundTripper.RoundTrip(req)
	}
	l.held <- struct{}{}
	<-l.release
	answer, err := l.RoundTripper.RoundTrip(req)
	if err == nil {
		l.done <- answer.StatusCode
	}
	return answer, err
}

// A controller that is deposed after it has committed a row, and writes the IP object late, assigns no address that its successor has
// assigned to another pod.
func TestDeposedLeaderWritesLate(t *testing.T) {
	central := ovntest.New(t, nil)
	central.Start(ovntest.Northbound)
	scheme := runtime.NewScheme()
	must(t, errors.Join(clientgoscheme.AddToScheme(scheme), kubeovn.AddToScheme(scheme)))
	c, err := client.New(server.Config(), client.Options{Scheme: scheme})
	must(t, err)
	ctx := t.Context()
	const namespace = "late"
	must(t, c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
	must(t, c.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}))
	vpc := &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	subnet := &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: kubeovn.SubnetSpec{Vpc: namespace, CIDRBlock: "10.0.1.0/24"}}
	must(t, c.Create(ctx, vpc))
	must(t, c.Create(ctx, subnet))
	pod := func(name string) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{
				kubeovn.AnnotationLogicalSwitch: namespace, kubeovn.AnnotationIPAddress: "10.0.1.50",
			}},
			Spec: corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		must(t, c.Create(ctx, p))
		return p
	}
	gate := &late{held: make(chan struct{}, 9), release: make(chan struct{}), done: make(chan int, 9)}
	api := rest.CopyConfig(server.Config())
	api.Wrap(func(next http.RoundTripper) http.RoundTripper {
		gate.RoundTripper = next
		return gate
	})
	startAs(t, central, 1, api)
	slow := pod("slow")
	<-gate.held // the row is committed, the object does not exist
	start(t, central, 2, slow.Name)
	quick := pod("quick") // the successor does not know the other pod yet
	ip := &kubeovn.IP{}
	ovntest.Eventually(t, "an address by the successor", func() bool { return has(t, c, namespace, quick.Name, ip) })
	close(gate.release)
	if status := <-gate.done; status != http.StatusConflict {
		t.Errorf("the object that came late: status %d", status)
	}
	var all kubeovn.IPList
	must(t, c.List(ctx, &all))
	for _, other := range all.Items {
		if other.Spec.SubnetUID == ip.Spec.SubnetUID && other.Spec.V4IPAddress == ip.Spec.V4IPAddress && other.UID != ip.UID {
			t.Errorf("%s has the address of %s", other.Name, ip.Name)
		}
	}
	for _, p := range []*corev1.Pod{slow, quick} {
		must(t, c.Delete(ctx, p, client.GracePeriodSeconds(0)))
	}
	must(t, c.Delete(ctx, subnet))
	must(t, c.Delete(ctx, vpc))
	ovntest.Eventually(t, "everything is gone", func() bool {
		return apierrors.IsNotFound(c.Get(ctx, client.ObjectKeyFromObject(subnet), subnet)) && central.Nbctl("list", "Logical_Router") == ""
	})
}
