package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/objects"
)

// serviceReconciler keeps Octavia in step with Services of type LoadBalancer in namespaces whose pods are on a Network with the namespace's
// name.
type serviceReconciler struct {
	client client.Client
	cloud  *connection
	events events.EventRecorder
	log    *slog.Logger
	waits  waits
}

func (r *serviceReconciler) setUp(tools cluster.Tools) error {
	err := ctrl.NewControllerManagedBy(tools.Manager).Named("neutron-services").For(&corev1.Service{}).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(serviceOfSlice)).
		Watches(&stackubev1.Network{}, handler.EnqueueRequestsFromMapFunc(r.servicesOf)).
		WithOptions(controllerOptions()).Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of load balancers: %w", err)
	}
	return nil
}

// serviceOfSlice returns the Service to which a slice's endpoints belong.
func serviceOfSlice(_ context.Context, slice client.Object) []reconcile.Request {
	name := slice.GetLabels()[discoveryv1.LabelServiceName]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: slice.GetNamespace(), Name: name}}}
}

// servicesOf returns the Services of a Network's namespace.
func (r *serviceReconciler) servicesOf(ctx context.Context, n client.Object) []reconcile.Request {
	var list corev1.ServiceList
	if err := r.client.List(ctx, &list, client.InNamespace(n.GetNamespace())); err != nil {
		r.log.WarnContext(ctx, "services of a network not listed", "network", n.GetNamespace(), "error", err)
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// Reconcile requests from Octavia the next change of one Service's load balancer. It does not wait for the change: the Service is queued
// again.
func (r *serviceReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s := &corev1.Service{}
	if err := r.client.Get(ctx, req.NamespacedName, s); err != nil {
		r.waits.end(req.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	network, err := r.networkOf(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !objects.Balanced(s) || network == nil {
		result, err := r.remove(ctx, s)
		if err != nil {
			r.waits.unknown(req.NamespacedName)
		}
		return settle(result, err)
	}
	if network.Status.NetworkID == "" {
		return ctrl.Result{}, nil // the Network's change queues this Service again
	}
	before := s.DeepCopy()
	if controllerutil.AddFinalizer(s, Finalizer) {
		if err := r.client.Patch(ctx, s, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return cluster.Settle(fmt.Errorf("add the finalizer to service %s: %w", req.NamespacedName, err))
		}
	}
	result, err := r.ensure(ctx, s, network)
	if err != nil {
		r.log.WarnContext(ctx, "load balancer not in step", "service", req.String(), "error", err)
		r.events.Eventf(s, nil, corev1.EventTypeWarning, "LoadBalancer", "EnsureLoadBalancer", "%s", cluster.Note(err.Error()))
		if result.RequeueAfter > 0 {
			return result, nil
		}
		r.waits.unknown(req.NamespacedName)
	}
	return settle(result, err)
}

// networkOf returns the Network of the pods of a Service's namespace; nil if there is none.
func (r *serviceReconciler) networkOf(ctx context.Context, s *corev1.Service) (*stackubev1.Network, error) {
	n := &stackubev1.Network{}
	err := r.client.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Namespace}, n)
	if apierrors.IsNotFound(err) || err == nil && !n.DeletionTimestamp.IsZero() {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	if err != nil {
		return nil, fmt.Errorf("read Network %s/%s: %w", s.Namespace, s.Namespace, err)
	}
	return n, nil
}

// errService marks errors that only a change of the Service fixes.
var errService = errors.New("the Service cannot be served")

// ensure requests the next change in Octavia, and writes the addresses to the Service once there is none. If it returns a result with an
// error, the Service is reconciled again then, and not before.
func (r *serviceReconciler) ensure(ctx context.Context, s *corev1.Service, n *stackubev1.Network) (result ctrl.Result, err error) {
	os, err := r.cloud.get(ctx)
	if err != nil {
		return result, err
	}
	answered := r.cloud.late.Begin(s.UID)
	defer func() {
		answered(err)
		r.cloud.failed(os, err)
	}()
	want, err := r.wanted(ctx, os, s, n)
	if errors.Is(err, errService) {
		result.RequeueAfter = reread
	}
	if err != nil {
		return result, err
	}
	key := client.ObjectKeyFromObject(s)
	if left := r.waits.barred(key, &s.Spec); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	held, progress, err := os.AdvanceBalancer(ctx, want)
	if errors.Is(err, cloud.ErrBalancer) && len(s.Status.LoadBalancer.Ingress) == 0 {
		// It has failed before it served anything: it is created again.
		_, gone := os.WithdrawBalancer(ctx, &held.LoadBalancer)
		result.RequeueAfter = r.waits.failed(key, &s.Spec)
		return result, errors.Join(fmt.Errorf("%w; it is created again in %s, and at once if the Service changes", err, result.RequeueAfter), gone)
	}
	if err != nil {
		return result, err
	}
	if progress != cloud.InStep {
		return r.again(s, progress == cloud.Pending), nil
	}
	r.waits.end(key)
	address := held.VipAddress
	if held.FloatingIP.IsValid() {
		address = held.FloatingIP.String()
	}
	return ctrl.Result{RequeueAfter: reread}, r.updateStatus(ctx, s, address)
}

// wanted compiles the load balancer of a Service.
func (r *serviceReconciler) wanted(ctx context.Context, os *session, s *corev1.Service, n *stackubev1.Network) (cloud.Balancer, error) {
	project, err := projectOf(ctx, r.client, os, n)
	if err != nil {
		return cloud.Balancer{}, err
	}
	network, err := os.usable(ctx, n, project, n.Status.NetworkID)
	if errors.Is(err, errUse) {
		err = fmt.Errorf("%w: %w", errService, err)
	}
	if err != nil {
		return cloud.Balancer{}, err
	}
	var slicesOf discoveryv1.EndpointSliceList
	err = r.client.List(ctx, &slicesOf, client.InNamespace(s.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: s.Name})
	if err != nil {
		return cloud.Balancer{}, fmt.Errorf("list the EndpointSlices of service %s/%s: %w", s.Namespace, s.Name, err)
	}
	want, err := objects.Balancer(s, slicesOf.Items, n, network, project)
	if err != nil {
		return cloud.Balancer{}, fmt.Errorf("%w: %w", errService, err)
	}
	return want, nil
}

// again queues the Service again, for when Octavia may have made the current change. An event reports a change that takes too long.
func (r *serviceReconciler) again(s *corev1.Service, pending bool) ctrl.Result {
	next, waited := r.waits.next(client.ObjectKeyFromObject(s), pending)
	if waited >= pendingLimit {
		r.events.Eventf(s, nil, corev1.EventTypeWarning, "LoadBalancer", "EnsureLoadBalancer",
			"Octavia has had a change of load balancer %s under way for more than %s: openstack loadbalancer show %[1]s",
			objects.BalancerName(s.Namespace, s.Name), pendingLimit)
	}
	return ctrl.Result{RequeueAfter: next}
}

// updateStatus writes the Service's external address. kube-proxy must not treat it as its own: what the nodes send there is sent to Octavia.
func (r *serviceReconciler) updateStatus(ctx context.Context, s *corev1.Service, address string) error {
	var want []corev1.LoadBalancerIngress
	if address != "" {
		want = []corev1.LoadBalancerIngress{{IP: address, IPMode: new(corev1.LoadBalancerIPModeProxy)}}
	}
	same := func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP && a.Hostname == b.Hostname }
	if slices.EqualFunc(s.Status.LoadBalancer.Ingress, want, same) {
		return nil
	}
	before := s.DeepCopy()
	s.Status.LoadBalancer.Ingress = want
	if err := r.client.Status().Patch(ctx, s, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of service %s/%s: %w", s.Namespace, s.Name, err)
	}
	if address != "" {
		r.events.Eventf(s, nil, corev1.EventTypeNormal, "LoadBalancer", "EnsureLoadBalancer", "Octavia serves the Service at %s", address)
	}
	return nil
}

// remove removes the load balancer of a Service that does not request one any more, without waiting for Octavia.
func (r *serviceReconciler) remove(ctx context.Context, s *corev1.Service) (result ctrl.Result, err error) {
	if !controllerutil.ContainsFinalizer(s, Finalizer) {
		return result, nil
	}
	os, err := r.cloud.get(ctx)
	if err != nil {
		return result, err
	}
	defer func() { r.cloud.failed(os, err) }()
	left := r.cloud.late.Left(s.UID) // before the look
	held, err := os.OwnBalancer(ctx, "", objects.BalancerOwner(s), objects.BalancerName(s.Namespace, s.Name))
	// Without Octavia in the catalogue a Service that has an address keeps its finalizer: its load balancer exists, and the catalogue may have
	// Octavia again.
	never := errors.Is(err, cloud.ErrNoOctavia) && len(s.Status.LoadBalancer.Ingress) == 0
	gone := never || errors.Is(err, cloud.ErrNotFound) || errors.Is(err, cloud.ErrForeign)
	if err == nil {
		gone, err = os.WithdrawBalancer(ctx, held)
	}
	switch {
	case !gone && err != nil:
		return result, err
	case !gone:
		return r.again(s, true), nil
	}
	r.waits.end(client.ObjectKeyFromObject(s))
	if s.DeletionTimestamp.IsZero() {
		if err := r.updateStatus(ctx, s, ""); err != nil {
			return result, err
		}
	}
	if left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	before := s.DeepCopy()
	controllerutil.RemoveFinalizer(s, Finalizer)
	if err := client.IgnoreNotFound(r.client.Patch(ctx, s, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))); err != nil {
		return result, fmt.Errorf("remove the finalizer of service %s/%s: %w", s.Namespace, s.Name, err)
	}
	return result, nil
}

// trimSlice reduces a cached EndpointSlice to what load balancers need.
func trimSlice(object any) (any, error) {
	if slice, is := object.(*discoveryv1.EndpointSlice); is {
		slice.ManagedFields, slice.Annotations = nil, nil
		for i := range slice.Endpoints {
			slice.Endpoints[i].TargetRef, slice.Endpoints[i].DeprecatedTopology = nil, nil
		}
	}
	return object, nil
}
