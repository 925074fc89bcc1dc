//go:build lab

package neutron

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/neutron/cloud"
	neutroncluster "weft.dev/weft/internal/neutron/cluster"
	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/objects"
	"weft.dev/weft/internal/neutron/openstack"
)

// notes is a log that tests search.
type notes struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write keeps what is logged.
func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

// control runs OpenStack's part of the controller on the real API server until the test ends.
func control(ctx context.Context, t *testing.T, c *openstack.Client) (client.Client, *notes) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, stackubev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	said := &notes{}
	log := slog.New(slog.NewTextHandler(said, nil))
	told := metrics.NewController("test")
	ready := cluster.NewReadiness(told)
	mgr, err := ctrl.NewManager(ready.Wrap(cloudFor.api.Config()), ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	part := neutroncluster.Part(neutroncluster.Options{
		Cloud: cloud.New(c, cloud.Config{Cluster: "test-tenants"}), Project: c.ProjectID,
		Reserved: objects.Reserved{"the Services": {netip.MustParsePrefix("172.30.0.0/16")}},
	})
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	if err := part.SetUp(cluster.NewTools(mgr, ready, log, random)); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- mgr.Start(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(said)
		}
	})
	kube, err := client.New(cloudFor.api.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return kube, said
}

// until asks for an object until it is as wanted.
func until(ctx context.Context, t *testing.T, kube client.Client, o client.Object, ok func() bool) {
	t.Helper()
	for {
		err := kube.Get(ctx, client.ObjectKeyFromObject(o), o)
		if err == nil && ok() {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not as wanted: %v, %+v", err, o)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// untilGone waits until an object is deleted.
func untilGone(ctx context.Context, t *testing.T, kube client.Client, o client.Object) {
	t.Helper()
	for {
		if err := kube.Get(ctx, client.ObjectKeyFromObject(o), o); apierrors.IsNotFound(err) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("still there: %+v", o)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tenantPassword is what no log, status or error may hold.
const tenantPassword = "weft-test-tenants-password"

// stackubeTenant is a manifest of stackube's users, unchanged.
const stackubeTenant = `
apiVersion: stackube.kubernetes.io/v1
kind: Tenant
metadata: {name: weft-test-blue, namespace: default}
spec: {username: weft-test-blue-user, password: ` + tenantPassword + `}
`

// A plain stackube Tenant becomes a project, a user that can authenticate, a Namespace and a Network; what is wrong is said in
// statuses; after its deletion nothing is left in OpenStack.
func TestTenant(t *testing.T) {
	ctx, c := connect(t)
	kube, said := control(ctx, t, c)
	tenant := &stackubev1.Tenant{}
	if err := yaml.Unmarshal([]byte(stackubeTenant), tenant); err != nil {
		t.Fatal(err)
	}
	if err := kube.Create(ctx, tenant); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, kube, tenant, func() bool { return tenant.Status.State == stackubev1.StateActive && tenant.Status.ProjectID != "" })
	n := &stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: "weft-test-blue", Name: "weft-test-blue"}}
	until(ctx, t, kube, n, func() bool { return n.Status.State == stackubev1.StateActive })
	if n.Spec.CIDR != "10.244.0.0/16" || n.Spec.Gateway != "10.244.0.1" || n.Status.MTU < 1280 {
		t.Errorf("the tenant's network is %+v", n)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "weft-test-blue"}}
	until(ctx, t, kube, ns, func() bool { return ns.Annotations["network.weft.dev/network"] == "neutron/weft-test-blue" })

	user := conf.Global{
		AuthURL: cloudFor.stack.AuthURL(), Username: "weft-test-blue-user", Password: tenantPassword, TenantID: tenant.Status.ProjectID, Region: "RegionOne",
	}
	asUser, err := openstack.New(ctx, user, openstack.Options{Transport: cloudFor.stack.Transport()})
	if err != nil {
		t.Fatalf("the tenant's user: %v", err)
	}
	held, err := cloud.New(asUser, cloud.Config{}).FindNetwork(ctx, "", "kube-weft-test-blue-weft-test-blue", "")
	if err != nil || held.ID != n.Status.NetworkID {
		t.Errorf("the tenant sees %+v: %v", held, err)
	}

	wrongs(ctx, t, kube, c)

	if err := kube.Delete(ctx, tenant); err != nil {
		t.Fatal(err)
	}
	untilGone(ctx, t, kube, tenant)
	untilGone(ctx, t, kube, n)
	admin := cloud.New(c, cloud.Config{})
	if _, err := admin.Project(ctx, "weft-test-blue"); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("the project of a deleted tenant: %v", err)
	}
	if _, err := admin.FindNetwork(ctx, "", "", n.Status.NetworkID); !errors.Is(err, cloud.ErrNotFound) {
		t.Errorf("the network of a deleted tenant: %v", err)
	}
	if _, err := openstack.New(ctx, user, openstack.Options{Transport: cloudFor.stack.Transport()}); err == nil {
		t.Error("the user of a deleted tenant still authenticates")
	} else if strings.Contains(err.Error(), tenantPassword) {
		t.Errorf("the error holds the password: %v", err)
	}
	for _, secret := range []string{tenantPassword, adminConf().AuthURL + "x", string(adminConf().Password), c.Network.TokenID} {
		if secret != "" && strings.Contains(said.String(), secret) {
			t.Error("a password or token is in the controller's log")
		}
	}
}

// wrongs makes objects that cannot be served, and sees that each says so.
func wrongs(ctx context.Context, t *testing.T, kube client.Client, c *openstack.Client) {
	t.Helper()
	foreign := project(ctx, t, c, "weft-test-foreign")
	for _, wrong := range []struct {
		object client.Object
		want   string
	}{
		{&stackubev1.Tenant{ // a project that somebody else made: its members must not get a user of this tenant's
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "weft-test-foreign"},
			Spec:       stackubev1.TenantSpec{UserName: "u", Password: tenantPassword},
		}, "not made by Weft"},
		{&stackubev1.Tenant{ // a user that somebody else made: its password must not change
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "weft-test-thief"},
			Spec:       stackubev1.TenantSpec{UserName: "neutron", Password: tenantPassword, TenantID: foreign},
		}, "not made by Weft"},
		{&stackubev1.Tenant{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "elsewhere"},
			Spec:       stackubev1.TenantSpec{UserName: "u", Password: tenantPassword},
		}, "metadata.namespace"},
		{&stackubev1.Network{
			ObjectMeta: metav1.ObjectMeta{Namespace: "weft-test-blue", Name: "overlaps"}, Spec: stackubev1.NetworkSpec{CIDR: "172.30.4.0/24"},
		}, "the Services"},
		{&stackubev1.Network{
			ObjectMeta: metav1.ObjectMeta{Namespace: "weft-test-blue", Name: "absent"},
			Spec:       stackubev1.NetworkSpec{NetworkID: "00000000-0000-4000-8000-000000000000"},
		}, "not found"},
	} {
		if err := kube.Create(ctx, wrong.object); err != nil {
			t.Fatal(err)
		}
		until(ctx, t, kube, wrong.object, func() bool {
			state, message := "", ""
			switch o := wrong.object.(type) {
			case *stackubev1.Tenant:
				state, message = o.Status.State, o.Status.Message
			case *stackubev1.Network:
				state, message = o.Status.State, o.Status.Message
			}
			return state == stackubev1.StateFailed && strings.Contains(message, wrong.want) && !strings.Contains(message, tenantPassword)
		})
		if err := kube.Delete(ctx, wrong.object); err != nil {
			t.Fatal(err)
		}
		untilGone(ctx, t, kube, wrong.object)
	}
	if _, err := openstack.New(ctx, adminConf(), openstack.Options{Transport: cloudFor.stack.Transport()}); err != nil {
		t.Errorf("OpenStack's administrator after all that: %v", err)
	}
}
