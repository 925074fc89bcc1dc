// Package cluster is OpenStack's part of the controller: it keeps projects, users, Namespaces and networks in step with the
// Tenants and Networks of stackube's users.
package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/objects"
)

// Options of the part.
type Options struct {
	Cloud *cloud.Cloud
	// Reserved are ranges that Networks must not overlap.
	Reserved objects.Reserved
	// Project is the id of the project for Networks of namespaces without a Tenant.
	Project string
	// UserCIDR and UserGateway are of the Network that each tenant gets. Default: stackube's, 10.244.0.0/16 and 10.244.0.1.
	UserCIDR    netip.Prefix
	UserGateway netip.Addr
}

// removeAgain is how often a deletion looks whether it may go on.
const removeAgain = 2 * time.Second

// Part returns OpenStack's part of the controller.
func Part(opts Options) cluster.Part {
	group := stackubev1.GroupName
	keep := []string{"get", "list", "watch", "create", "update", "delete"}
	return cluster.Part{
		Name:    "neutron",
		Schemes: []func(*runtime.Scheme) error{stackubev1.AddToScheme},
		Objects: []cluster.Object{
			{Resource: "namespaces", Verbs: []string{"get", "list", "watch", "create", "delete"}, Kind: &corev1.Namespace{}},
			{Group: group, Resource: "networks", Verbs: keep, Kind: &stackubev1.Network{}},
			{Group: group, Resource: "networks/status", Verbs: []string{"update"}},
			{Group: group, Resource: "tenants", Verbs: []string{"get", "list", "watch", "update"}, Kind: &stackubev1.Tenant{}},
			{Group: group, Resource: "tenants/status", Verbs: []string{"update"}},
		},
		SetUp: func(tools cluster.Tools) error { return setUp(tools, opts) },
	}
}

func setUp(tools cluster.Tools, opts Options) error {
	if !opts.UserCIDR.IsValid() {
		opts.UserCIDR, opts.UserGateway = netip.MustParsePrefix("10.244.0.0/16"), netip.MustParseAddr("10.244.0.1")
	}
	spec := stackubev1.NetworkSpec{CIDR: opts.UserCIDR.String()}
	if opts.UserGateway.IsValid() {
		spec.Gateway = opts.UserGateway.String()
	}
	networks := &networkReconciler{client: tools.Client, cloud: opts.Cloud, reserved: opts.Reserved, own: opts.Project, log: tools.Log}
	tenants := &tenantReconciler{client: tools.Client, cloud: opts.Cloud, network: spec, log: tools.Log}
	err := ctrl.NewControllerManagedBy(tools.Manager).Named("neutron-networks").For(&stackubev1.Network{}).
		Watches(&stackubev1.Tenant{}, handler.EnqueueRequestsFromMapFunc(networks.ofTenant)).Complete(networks)
	if err != nil {
		return fmt.Errorf("set up the controller of Networks: %w", err)
	}
	err = ctrl.NewControllerManagedBy(tools.Manager).Named("neutron-tenants").For(&stackubev1.Tenant{}).
		Watches(&stackubev1.Network{}, handler.EnqueueRequestsFromMapFunc(tenantOf)).Complete(tenants)
	if err != nil {
		return fmt.Errorf("set up the controller of Tenants: %w", err)
	}
	return nil
}

// ofTenant lists the Networks that a Tenant's project matters to.
func (r *networkReconciler) ofTenant(ctx context.Context, t client.Object) []reconcile.Request {
	var list stackubev1.NetworkList
	if err := r.client.List(ctx, &list, client.InNamespace(t.GetName())); err != nil {
		r.log.Warn("networks of a tenant not listed", "tenant", t.GetName(), "error", err)
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// tenantOf is the Tenant of a Network's namespace.
func tenantOf(_ context.Context, n client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: objects.TenantNamespace, Name: n.GetNamespace()}}}
}
