//go:build lab

package neutron

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/routers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
)

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

// A plain stackube Tenant becomes a project, a user that can authenticate, a Namespace and a Network with subnet, router and security
// group, all by `weft controller` with the chart's rights. What is wrong is reported in statuses and events. A restart writes nothing to
// OpenStack, and after the Tenant's deletion nothing is left there.
func TestTenant(t *testing.T) {
	ctx, c := connect(t)
	controller := startController(ctx, t)
	kube := controller.kube
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

	below(ctx, t, c, tenant.Status.ProjectID, n.Status.NetworkID)

	wrongs(ctx, t, kube, c)
	controller.noSecrets(ctx, t)
	controller.restartWritesNothing(ctx, t, "/v3/roles?name=load-balancer_member",
		"/v2.0/security-groups?name="+cloud.DefaultGroup+"&project_id="+tenant.Status.ProjectID)

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
}

// below compares what the tenant's project has in OpenStack with what its Network asks for.
func below(ctx context.Context, t *testing.T, c *openstack.Client, project, network string) {
	t.Helper()
	held, err := cloud.New(c, cloud.Config{}).FindNetwork(ctx, "", "", network)
	if err != nil {
		t.Fatal(err)
	}
	if held.ProjectID != project || len(held.Held) != 1 || held.Held[0].CIDR != "10.244.0.0/16" || held.Held[0].GatewayIP != "10.244.0.1" {
		t.Errorf("Neutron has %+v, want one subnet in project %s", held, project)
	}
	pages, err := routers.List(c.Network, routers.ListOpts{ProjectID: project}).AllPages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := routers.ExtractRouters(pages); err != nil || len(found) != 1 || found[0].Name != "kube-weft-test-blue-weft-test-blue" {
		t.Errorf("the project has routers %+v: %v", found, err)
	}
	pages, err = groups.List(c.Network, groups.ListOpts{ProjectID: project, Name: cloud.DefaultGroup}).AllPages(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := groups.ExtractGroups(pages); err != nil || len(found) != 1 {
		t.Errorf("the project has groups %+v: %v", found, err)
	}
}

// untilEvent waits for an event about an object.
func untilEvent(ctx context.Context, t *testing.T, kube client.Client, o client.Object, words string) {
	t.Helper()
	for {
		var list eventsv1.EventList
		if err := kube.List(ctx, &list, client.InNamespace(o.GetNamespace())); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if e := &list.Items[i]; e.Regarding.UID == o.GetUID() && strings.Contains(e.Note, words) {
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no event about %s says %q", o.GetName(), words)
		case <-time.After(100 * time.Millisecond):
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
		{&stackubev1.Tenant{ // the user of another Tenant
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "weft-test-second"},
			Spec:       stackubev1.TenantSpec{UserName: "weft-test-blue-user", Password: tenantPassword, TenantID: foreign},
		}, "made by Weft for Tenant weft-test-blue"},
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
		untilEvent(ctx, t, kube, wrong.object, wrong.want)
		if err := kube.Delete(ctx, wrong.object); err != nil {
			t.Fatal(err)
		}
		untilGone(ctx, t, kube, wrong.object)
	}
	if _, err := openstack.New(ctx, adminConf(), openstack.Options{Transport: cloudFor.stack.Transport()}); err != nil {
		t.Errorf("OpenStack's administrator after all that: %v", err)
	}
}
