//go:build real

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/deploy"
	"weft.dev/weft/deploy/crds"
	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/internal/testwait"
)

var server *apiservertest.Server //nolint:gochecknoglobals // set once, by TestMain

const deadline = 60 * time.Second // for a condition to become true, on a busy machine

func TestMain(m *testing.M) {
	os.Exit(apiservertest.Main(m, func(s *apiservertest.Server) error {
		server = s
		return prepare(context.Background())
	}))
}

// prepare applies what a user applies: the CRDs, and the manifest with the controller's rights.
func prepare(ctx context.Context) error {
	all, err := crds.All()
	if err != nil {
		return err
	}
	if err := server.InstallCRDs(ctx, all); err != nil {
		return err
	}
	manifest, err := deploy.Objects()
	if err != nil {
		return err
	}
	c, err := client.New(server.Config(), client.Options{})
	if err != nil {
		return err
	}
	for _, obj := range manifest {
		if err := c.Create(ctx, obj, client.FieldValidation("Strict")); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("apply %s %s: %w", obj.GetKind(), obj.GetName(), err)
		}
	}
	return nil
}

func newClient(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), networkv1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(server.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// cluster is an empty cluster for one test.
type cluster struct {
	client.Client
	t *testing.T
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{newClient(t), t}
	for _, obj := range []client.Object{
		&corev1.Node{}, &networkv1.HostSubnet{}, &networkv1.NetNamespace{}, &networkv1.ClusterNetwork{},
	} {
		c.must(c.DeleteAllOf(t.Context(), obj))
	}
	c.must(client.IgnoreNotFound(c.Delete(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "weft", Name: "weft-controller"}})))
	c.must(c.DeleteAllOf(t.Context(), &eventsv1.Event{}, client.InNamespace("default")))
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) network(plugin string, ranges ...networkv1.ClusterNetworkEntry) *networkv1.ClusterNetwork {
	c.t.Helper()
	obj := &networkv1.ClusterNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, ServiceNetwork: "172.30.0.0/16", PluginName: plugin, ClusterNetworks: ranges,
	}
	c.must(c.Create(c.t.Context(), obj))
	return obj
}

func (c *cluster) node(name, address string) *corev1.Node {
	c.t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.must(c.Create(c.t.Context(), node))
	c.address(node, address)
	return node
}

func (c *cluster) address(node *corev1.Node, address string) {
	c.t.Helper()
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: node.Name},
		{Type: corev1.NodeInternalIP, Address: address},
	}
	if strings.Contains(address, ".") { // of IPv4 addresses, the first counts
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "198.51.100.1"})
	}
	c.must(c.Status().Update(c.t.Context(), node))
}

// eventually waits until check returns nil.
func (c *cluster) eventually(what string, check func() error) {
	c.t.Helper()
	testwait.Within(c.t, deadline, what, check)
}

func (c *cluster) hostSubnet(name string) (networkv1.HostSubnet, error) {
	var hs networkv1.HostSubnet
	return hs, c.Get(c.t.Context(), client.ObjectKey{Name: name}, &hs)
}

// awaitSubnet waits until the host has the address and the subnet; an empty subnet matches any.
func (c *cluster) awaitSubnet(name, address, subnet string) networkv1.HostSubnet {
	c.t.Helper()
	var hs networkv1.HostSubnet
	c.eventually("HostSubnet "+name, func() (err error) {
		if hs, err = c.hostSubnet(name); err != nil {
			return err
		}
		if hs.HostIP != address || hs.Subnet == "" || subnet != "" && hs.Subnet != subnet {
			return fmt.Errorf("it has %s, %s, want %s, %s", hs.HostIP, hs.Subnet, address, subnet)
		}
		return nil
	})
	return hs
}

func (c *cluster) awaitVNID(name string, check func(networkv1.NetNamespace) bool) networkv1.NetNamespace {
	c.t.Helper()
	var nn networkv1.NetNamespace
	c.eventually("NetNamespace "+name, func() error {
		nn = networkv1.NetNamespace{}
		if err := c.Get(c.t.Context(), client.ObjectKey{Name: name}, &nn); err != nil {
			return err
		}
		if !check(nn) {
			return fmt.Errorf("it is %+v", nn)
		}
		return nil
	})
	return nn
}

func (c *cluster) awaitGone(obj client.Object) {
	c.t.Helper()
	c.eventually(fmt.Sprintf("%T %s gone", obj, obj.GetName()), func() error {
		err := c.Get(c.t.Context(), client.ObjectKeyFromObject(obj), obj)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is still there (%w)", errors.Join(err, errors.New("found")))
	})
}

// awaitCondition waits for a condition of the ClusterNetwork, with the given words in its message.
func (c *cluster) awaitCondition(name, reason string, words ...string) {
	c.t.Helper()
	c.eventually("condition "+name, func() error {
		var cn networkv1.ClusterNetwork
		if err := c.Get(c.t.Context(), client.ObjectKey{Name: "default"}, &cn); err != nil {
			return err
		}
		got := meta.FindStatusCondition(cn.Status.Conditions, name)
		if got == nil || got.Reason != reason {
			return fmt.Errorf("it is %+v, want %s", got, reason)
		}
		for _, word := range words {
			if !strings.Contains(got.Message, word) {
				return fmt.Errorf("%q is not in %q", word, got.Message)
			}
		}
		return nil
	})
}

func (c *cluster) awaitEvent(kind, name, words string) {
	c.t.Helper()
	c.eventually("event on "+kind+" "+name, func() error {
		var list eventsv1.EventList
		if err := c.List(c.t.Context(), &list, client.InNamespace("default")); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Kind == kind && e.Regarding.Name == name && strings.Contains(e.Note, words)
		}) {
			return fmt.Errorf("none says %q among %d", words, len(list.Items))
		}
		return nil
	})
}

// replica is a running controller with its own connection to the API server.
type replica struct {
	cancel context.CancelFunc
	done   chan error
	cut    atomic.Bool // all requests fail
	mu     sync.Mutex
	writes []string // "METHOD path", without leases
}

// trip returns a transport that passes requests on, or fails them while the replica is cut off.
func (r *replica) trip(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		if r.cut.Load() {
			return nil, errors.New("the network is cut")
		}
		if request.Method != http.MethodGet && !strings.Contains(request.URL.Path, "/leases") {
			r.mu.Lock()
			r.writes = append(r.writes, request.Method+" "+request.URL.Path)
			r.mu.Unlock()
		}
		return next.RoundTrip(request)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

func (r *replica) written() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.writes)
}

// start runs a controller with the rights of its service account until the end of the test, or until stop.
func (c *cluster) start(change func(*Options)) *replica {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &replica{cancel: cancel, done: make(chan error, 1)}
	config := server.ConfigAs("weft", "weft-controller")
	config.Wrap(r.trip)
	options := Options{
		Config: config, LeaseDuration: 9 * time.Second, // a shorter lease gets lost on a busy machine
		Resync: time.Second,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if change != nil {
		change(&options)
	}
	go func() { r.done <- Run(ctx, options) }()
	c.t.Cleanup(func() {
		cancel()
		select {
		case <-r.done: //nolint:errcheck // the test has asked where it matters
		case <-time.After(deadline):
			c.t.Error("Run does not end with its context")
		}
	})
	return r
}

// stop ends a controller orderly.
func (c *cluster) stop(r *replica) {
	c.t.Helper()
	r.cancel()
	err := <-r.done
	if err != nil {
		c.t.Errorf("Run: %v", err)
	}
	r.done <- err
}

// withoutRules writes objects while the CRD's validation rules are removed.
func (c *cluster) withoutRules(write func()) {
	c.t.Helper()
	key := client.ObjectKey{Name: "clusternetworks.network.openshift.io"}
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	c.must(c.Get(c.t.Context(), key, crd))
	rules, _, err := unstructured.NestedFieldCopy(crd.Object, "spec", "versions")
	c.must(err)
	c.must(unstructured.SetNestedSlice(crd.Object, []any{map[string]any{
		"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
		"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
	}}, "spec", "versions"))
	c.must(c.Update(c.t.Context(), crd))
	c.eventually("the rules are gone", func() error {
		return c.Create(c.t.Context(), &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, client.DryRunAll)
	})
	write()
	c.must(c.Get(c.t.Context(), key, crd))
	crd.Object["spec"].(map[string]any)["versions"] = rules //nolint:forcetypeassert // a definition has a spec
	c.must(c.Update(c.t.Context(), crd))
	c.eventually("the rules are back", func() error {
		if c.Create(c.t.Context(), &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, client.DryRunAll) == nil {
			return errors.New("accepted")
		}
		return nil
	})
}

func (c *cluster) namespace(name string) *corev1.Namespace {
	c.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.must(c.Create(c.t.Context(), ns))
	c.t.Cleanup(func() { c.removeNamespace(ns) })
	return ns
}

// removeNamespace deletes a namespace and finalizes it, as the namespace controller does.
func (c *cluster) removeNamespace(ns *corev1.Namespace) {
	ctx := context.Background()
	if err := c.Delete(ctx, ns); apierrors.IsNotFound(err) {
		return
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(ns), ns); apierrors.IsNotFound(err) {
		return
	}
	ns.Spec.Finalizers = nil
	if err := c.SubResource("finalize").Update(ctx, ns); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		c.t.Errorf("finalize %s: %v", ns.Name, err)
	}
}

// request requests another VNID for a namespace.
func (c *cluster) request(name, value string) {
	c.t.Helper()
	c.eventually("request on "+name, func() error {
		var nn networkv1.NetNamespace
		if err := c.Get(c.t.Context(), client.ObjectKey{Name: name}, &nn); err != nil {
			return err
		}
		if nn.Annotations == nil {
			nn.Annotations = map[string]string{}
		}
		nn.Annotations[networkv1.AnnotationChangeNetwork] = value
		return c.Update(c.t.Context(), &nn)
	})
}

func answered(nn networkv1.NetNamespace) bool {
	_, waiting := nn.Annotations[networkv1.AnnotationChangeNetwork]
	return !waiting
}
