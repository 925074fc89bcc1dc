//go:build real

package deploy_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/deploy"
	"weft.dev/weft/deploy/crds"
	"weft.dev/weft/internal/testwait"
)

func neutronPort(digit, node string) *weftv1.NeutronPort {
	return &weftv1.NeutronPort{
		ObjectMeta: metav1.ObjectMeta{Name: "00000000-0000-4000-8000-00000000000" + digit},
		Spec: weftv1.NeutronPortSpec{
			Network: weftv1.NeutronPortNetwork{Namespace: "blue", Name: "blue", UID: "u", ID: "n"}, Node: node, MAC: "0a:58:0a:f4:00:05", MTU: 1442,
			Addresses: []weftv1.NeutronPortAddress{{Address: "10.244.0.5/16"}},
		},
	}
}

// With OpenStack's networks, an agent reports the ports of its own node, writes no port otherwise, and reads no Tenant.
func TestAgentReportsItsOwnPortsOnly(t *testing.T) {
	ctx := t.Context()
	stackube, err := crds.Neutron()
	must(t, err)
	must(t, server.InstallCRDs(ctx, stackube))
	admin := newClient(t, func(scheme *runtime.Scheme) (client.Client, error) {
		must(t, stackubev1.AddToScheme(scheme))
		return client.New(server.Config(), client.Options{Scheme: scheme})
	})
	all, err := deploy.NeutronObjects()
	must(t, err)
	apply(t, admin, all)
	must(t, admin.Create(ctx, neutronPort("1", "mine")))
	must(t, admin.Create(ctx, neutronPort("2", "other")))
	mine := agentOn(t, "mine")
	plugged := client.RawPatch("application/merge-patch+json", []byte(`{"status": {"plugged": true}}`))
	const refusal = "may change the status of its own node's NeutronPorts only"
	testwait.Until(t, "the policy refuses another node's port", func() bool {
		err := mine.Status().Patch(ctx, neutronPort("2", "other"), plugged)
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusal)
	})
	must(t, mine.Status().Patch(ctx, neutronPort("1", "mine"), plugged))
	for name, err := range map[string]error{
		"a token that names no node": agentOn(t, "").Status().Patch(ctx, neutronPort("1", "mine"), plugged),
		"a port of its own making":   mine.Create(ctx, neutronPort("3", "mine")),
		"its own port deleted":       mine.Delete(ctx, neutronPort("1", "mine")),
		"Tenants read":               mine.List(ctx, tenants()),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
}

// The controller creates and deletes Namespaces of Tenants only.
func TestControllerDeletesTenantsNamespacesOnly(t *testing.T) {
	ctx := t.Context()
	admin := newClient(t, func(scheme *runtime.Scheme) (client.Client, error) {
		return client.New(server.Config(), client.Options{Scheme: scheme})
	})
	all, err := deploy.NeutronObjects()
	must(t, err)
	apply(t, admin, all)
	controller := newClient(t, func(scheme *runtime.Scheme) (client.Client, error) {
		return client.New(server.ConfigAs("weft", "weft-controller"), client.Options{Scheme: scheme})
	})
	namespace := func(name string, annotations map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	}
	must(t, admin.Create(ctx, namespace("shop", nil)))
	const refusal = "may create and delete Namespaces of Tenants only"
	testwait.Until(t, "the policy refuses the deletion of another's Namespace", func() bool {
		err := controller.Delete(ctx, namespace("shop", nil), client.DryRunAll)
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusal)
	})
	if err := controller.Create(ctx, namespace("plain", nil)); !apierrors.IsForbidden(err) {
		t.Errorf("a Namespace without a Tenant: %v, want a refusal", err)
	}
	must(t, controller.Create(ctx, namespace("blue", map[string]string{"network.weft.dev/tenant-uid": "u"})))
	must(t, controller.Delete(ctx, namespace("blue", nil)))
}

func tenants() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(stackubev1.GroupVersion().WithKind("TenantList"))
	return list
}
