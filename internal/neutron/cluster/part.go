// Package cluster is OpenStack's part of the controller: it keeps projects, users, Namespaces and networks in step with the Tenants and
// Networks of stackube's users.
package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/neutron/cluster/view"
	"weft.dev/weft/internal/neutron/objects"
	"weft.dev/weft/internal/neutron/openstack"
)

// Options of the part.
type Options struct {
	// Config is the path of kubestack.conf. It is read when OpenStack is first needed, and again once OpenStack refuses its credentials.
	Config string
	// Cluster marks what this cluster creates in OpenStack: clusters on one OpenStack need different names. Empty: DefaultCluster.
	Cluster string
	// Reserved reads ranges of the cluster's other networks, by their description. Nil: there are none.
	Reserved func(context.Context, client.Reader) (map[string][]netip.Prefix, error)
	// Ranges are those that tenants' networks may use. Default: UserCIDR.
	Ranges []netip.Prefix
	// ReservedRanges are further ranges that no network may overlap.
	ReservedRanges []netip.Prefix
	// UserCIDR and UserGateway are those of the Network that each tenant gets. Default: stackube's, 10.244.0.0/16 and 10.244.0.1.
	UserCIDR    netip.Prefix
	UserGateway netip.Addr
	// Transport sends requests to OpenStack. Nil: a separate transport, with the environment's proxy.
	Transport http.RoundTripper
}

// DefaultCluster is the mark of a cluster without a configured name.
const DefaultCluster = "kubernetes"

// Part returns OpenStack's part of the controller.
func Part(opts Options) cluster.Part {
	group := stackubev1.GroupName
	keep := []string{"get", "list", "watch", "create", "update", "delete"}
	return cluster.Part{
		Name:    "neutron",
		Schemes: []func(*runtime.Scheme) error{stackubev1.AddToScheme, weftv1.AddToScheme, discoveryv1.AddToScheme},
		Objects: []cluster.Object{
			{Resource: "nodes", Verbs: []string{"get", "list", "watch"}, Kind: &corev1.Node{}},
			{Group: "networking.k8s.io", Resource: "servicecidrs", Verbs: []string{"get", "list"}},
			{Resource: "namespaces", Verbs: []string{"get", "list", "watch", "create", "delete"}, Kind: &corev1.Namespace{}},
			{Resource: "pods", Verbs: []string{"get", "list", "watch"}, Kind: &corev1.Pod{}, Pods: view.PodFields()},
			{Group: weftv1.GroupName, Resource: "neutronports", Verbs: append([]string{"patch"}, keep...), Kind: &weftv1.NeutronPort{}},
			{Group: weftv1.GroupName, Resource: "nodenetworks", Verbs: []string{"get", "list", "watch"}, Kind: &weftv1.NodeNetwork{}},
			{Resource: "services", Verbs: []string{"get", "list", "watch", "patch"}, Kind: &corev1.Service{}},
			{Resource: "services/status", Verbs: []string{"patch"}},
			{Group: discoveryv1.GroupName, Resource: "endpointslices", Verbs: []string{"get", "list", "watch"}, Kind: &discoveryv1.EndpointSlice{}, Keep: trimSlice},
			{Group: group, Resource: "networks", Verbs: keep, Kind: &stackubev1.Network{}},
			{Group: group, Resource: "networks/status", Verbs: []string{"update"}},
			{Group: group, Resource: "tenants", Verbs: []string{"get", "list", "watch", "update"}, Kind: &stackubev1.Tenant{}},
			{Group: group, Resource: "tenants/status", Verbs: []string{"update"}},
		},
		SetUp: func(tools cluster.Tools) error { return setUp(tools, opts) },
	}
}

// withDefaults returns the options with defaults. Nodes route the addresses of tenants' pods, so tenants get the range that was chosen for
// them, and further ones only by configuration.
func (o Options) withDefaults() Options {
	if o.Cluster == "" {
		o.Cluster = DefaultCluster
	}
	if !o.UserCIDR.IsValid() {
		o.UserCIDR, o.UserGateway = netip.MustParsePrefix("10.244.0.0/16"), netip.MustParseAddr("10.244.0.1")
	}
	if len(o.Ranges) == 0 {
		o.Ranges = []netip.Prefix{o.UserCIDR.Masked()}
	}
	return o
}

func setUp(tools cluster.Tools, opts Options) error {
	opts = opts.withDefaults()
	spec := stackubev1.NetworkSpec{CIDR: opts.UserCIDR.String()}
	if opts.UserGateway.IsValid() {
		spec.Gateway = opts.UserGateway.String()
	}
	if err := installed(tools.Manager.GetRESTMapper()); err != nil {
		return err
	}
	os := &connection{path: opts.Config, cluster: opts.Cluster, transport: opts.Transport, log: tools.Log, attempts: openstack.NewAttempts()}
	reserved := &reservedReader{cached: tools.Client, live: tools.Live, more: opts.Reserved, allowed: opts.Ranges, own: opts.ReservedRanges}
	networks := &networkReconciler{client: tools.Client, cloud: os, reserved: reserved, events: tools.Events, log: tools.Log}
	tenants := &tenantReconciler{client: tools.Client, cloud: os, events: tools.Events, network: spec, log: tools.Log}
	err := ctrl.NewControllerManagedBy(tools.Manager).Named("neutron-networks").For(&stackubev1.Network{}).
		Watches(&stackubev1.Tenant{}, handler.EnqueueRequestsFromMapFunc(networks.ofTenant)).
		WithOptions(controllerOptions()).Complete(networks)
	if err != nil {
		return fmt.Errorf("set up the controller of Networks: %w", err)
	}
	err = ctrl.NewControllerManagedBy(tools.Manager).Named("neutron-tenants").For(&stackubev1.Tenant{}).
		Watches(&stackubev1.Network{}, handler.EnqueueRequestsFromMapFunc(tenantOf)).
		WithOptions(controllerOptions()).Complete(tenants)
	if err != nil {
		return fmt.Errorf("set up the controller of Tenants: %w", err)
	}
	ports := &portReconciler{
		client: tools.Client, live: tools.Live, cloud: os, reserved: reserved, events: tools.Events, log: tools.Log, now: time.Now,
		known: map[types.NamespacedName]*known{}, claimed: map[types.NamespacedName]map[view.NodeAddress]bool{},
	}
	if err := ports.setUp(tools); err != nil {
		return err
	}
	return (&serviceReconciler{client: tools.Client, cloud: os, events: tools.Events, log: tools.Log}).setUp(tools)
}

// setUp adds the controller of ports. Every object is mapped to the Networks whose ports it concerns.
func (r *portReconciler) setUp(tools cluster.Tools) error {
	err := ctrl.NewControllerManagedBy(tools.Manager).Named("neutron-ports").For(&stackubev1.Network{}).
		Watches(&weftv1.NeutronPort{}, handler.EnqueueRequestsFromMapFunc(networkOfPort)).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.networkOfPod), builder.WithPredicates(runsElsewhere())).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.networksOfNamespace), builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(r.allNetworks), builder.WithPredicates(comesOrGoes())).
		Watches(&weftv1.NodeNetwork{}, handler.EnqueueRequestsFromMapFunc(r.allNetworks), builder.WithPredicates(hostnameChanges())).
		WithOptions(controllerOptions()).Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of ports: %w", err)
	}
	return nil
}

// installed reports whether the API server has the kinds. Without them the whole controller would end after two minutes.
func installed(mapper meta.RESTMapper) error {
	for kind, folder := range map[schema.GroupKind]string{
		{Group: stackubev1.GroupName, Kind: "Network"}: "deploy/stackube", {Group: stackubev1.GroupName, Kind: "Tenant"}: "deploy/stackube",
		{Group: weftv1.GroupName, Kind: "NeutronPort"}: "deploy/crds",
	} {
		_, err := mapper.RESTMapping(kind, "v1")
		if meta.IsNoMatchError(err) {
			return fmt.Errorf("the definition of %s is not installed: kubectl apply --server-side -f %s", kind, folder)
		}
		if err != nil {
			return fmt.Errorf("look for the definition of %s: %w", kind, err)
		}
	}
	return nil
}

// controllerOptions make several objects be reconciled concurrently, because most of the time is OpenStack's, and a failed one again within
// a minute.
func controllerOptions() controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: 4,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](cluster.Again, time.Minute),
	}
}

// rereadConfig is how often an object that has no session looks for a changed kubestack.conf.
const rereadConfig = time.Minute

// settle does not treat conflicts with other writers as errors. After a failed authentication all objects wait for the same next attempt:
// it resumes them all.
func settle(result ctrl.Result, errs ...error) (ctrl.Result, error) {
	for i, err := range errs {
		if left, paused := openstack.Paused(err); paused {
			result, errs[i] = ctrl.Result{RequeueAfter: min(max(left, time.Millisecond), rereadConfig)}, nil
		}
	}
	settled, err := cluster.Settle(errs...)
	if err != nil || settled.RequeueAfter > 0 {
		return settled, err
	}
	return result, nil
}

// ofTenant lists the Networks that depend on a Tenant's project.
func (r *networkReconciler) ofTenant(ctx context.Context, t client.Object) []reconcile.Request {
	var list stackubev1.NetworkList
	if err := r.client.List(ctx, &list, client.InNamespace(t.GetName())); err != nil {
		r.log.WarnContext(ctx, "networks of a tenant not listed", "tenant", t.GetName(), "error", err)
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// tenantOf returns the Tenant of a Network's namespace.
func tenantOf(_ context.Context, n client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: objects.TenantNamespace, Name: n.GetNamespace()}}}
}
