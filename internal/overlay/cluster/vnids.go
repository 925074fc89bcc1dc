package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster"
	clusterplan "weft.dev/weft/internal/cluster/plan"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/overlay/cluster/plan"
)

// vnidReconciler writes NetNamespaces as plan.VNIDs decides.
type vnidReconciler struct {
	client  client.Client
	live    client.Reader // the API server itself
	report  *cluster.Reporter
	log     *slog.Logger
	metrics *metrics.Controller
	random  *rand.Rand
}

func (v *vnidReconciler) setUp(tools cluster.Tools) error {
	c, err := controller.NewTyped(nameVNIDs, tools.Manager, cluster.Options(nameVNIDs, v.metrics, v))
	if err != nil {
		return fmt.Errorf("make the controller: %w", err)
	}
	comesOrGoes := predicate.TypedFuncs[*corev1.Namespace]{UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Namespace]) bool {
		return e.ObjectOld.UID != e.ObjectNew.UID
	}}
	return errors.Join(
		c.Watch(tools.Reading("namespaces",
			source.TypedKind(tools.Manager.GetCache(), &corev1.Namespace{}, cluster.Enqueue[*corev1.Namespace](), comesOrGoes))),
		c.Watch(tools.Reading("netnamespaces",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.NetNamespace{}, cluster.Enqueue[*networkv1.NetNamespace]()))),
		c.Watch(tools.Reading("clusternetworks",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.ClusterNetwork{}, cluster.Enqueue[*networkv1.ClusterNetwork]()))),
	)
}

// Reconcile makes a plan from the cache. If it assigns or deletes something, it is made again from the API server itself before it is
// written.
func (v *vnidReconciler) Reconcile(ctx context.Context, _ cluster.Everything) (reconcile.Result, error) {
	config, err := readConfig(ctx, v.client)
	if err != nil {
		return reconcile.Result{}, err
	}
	state, err := v.cached(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	v.metrics.VNIDs(len(state.NetNamespaces))
	if config == nil { // without a network, problems stay as reported
		return reconcile.Result{}, nil
	}
	if !config.Mode.HasVNIDs() {
		v.report.Report(nil, actionAssignVNID)
		return reconcile.Result{}, nil
	}
	state.Mode = config.Mode
	result := plan.VNIDs(state, v.random)
	if result.Assigns || len(result.Delete) > 0 {
		if state.NetNamespaces, err = v.liveNetNamespaces(ctx); err != nil {
			return reconcile.Result{}, err
		}
		if state.Namespaces, err = v.confirmNamespaces(ctx, state.Namespaces, result.Delete); err != nil {
			return reconcile.Result{}, err
		}
		confirmed := result.Delete
		result = plan.VNIDs(state, v.random)
		result.Delete = cluster.Within(result.Delete, confirmed)
	}
	for _, p := range v.report.Report(result.Problems, actionAssignVNID) {
		v.log.WarnContext(ctx, "problem", "message", p.Message, "kind", p.Kind, "name", p.Name, "reason", p.Reason)
	}
	return cluster.Settle(cluster.Write(ctx, v.client, v.log, result.Writes, nil), v.updateStatus(ctx, state.NetNamespaces, result))
}

func (v *vnidReconciler) cached(ctx context.Context) (plan.VNIDState, error) {
	var namespaces corev1.NamespaceList
	var netNamespaces networkv1.NetNamespaceList
	if err := errors.Join(v.client.List(ctx, &namespaces), v.client.List(ctx, &netNamespaces)); err != nil {
		return plan.VNIDState{}, fmt.Errorf("read Namespaces and NetNamespaces from the cache: %w", err)
	}
	state := plan.VNIDState{NetNamespaces: netNamespaces.Items}
	for i := range namespaces.Items {
		state.Namespaces = append(state.Namespaces, namespaceValue(&namespaces.Items[i]))
	}
	return state, nil
}

func (v *vnidReconciler) liveNetNamespaces(ctx context.Context) ([]networkv1.NetNamespace, error) {
	var all []networkv1.NetNamespace
	err := cluster.Pages(ctx, v.live, func() *networkv1.NetNamespaceList { return &networkv1.NetNamespaceList{} },
		func(l *networkv1.NetNamespaceList) { all = append(all, l.Items...) })
	return all, err
}

// confirmNamespaces reads, from the API server itself, the Namespaces of NetNamespaces that would be deleted, and corrects the list.
func (v *vnidReconciler) confirmNamespaces(
	ctx context.Context, namespaces []plan.Namespace, deletions []*networkv1.NetNamespace,
) ([]plan.Namespace, error) {
	for _, nn := range deletions {
		var ns corev1.Namespace
		found, err := cluster.Exists(ctx, v.live, &ns, nn.Name)
		if err != nil {
			return nil, err
		}
		namespaces = slices.DeleteFunc(namespaces, func(n plan.Namespace) bool { return n.Name == nn.Name })
		if found {
			namespaces = append(namespaces, namespaceValue(&ns))
		}
	}
	return namespaces, nil
}

func namespaceValue(ns *corev1.Namespace) plan.Namespace {
	return plan.Namespace{Name: ns.Name, UID: ns.UID, Created: ns.CreationTimestamp.Time}
}

// updateStatus writes on NetNamespaces what is wrong with them, except on those that the plan writes.
func (v *vnidReconciler) updateStatus(ctx context.Context, all []networkv1.NetNamespace, result plan.VNIDPlan) error {
	written := map[string]bool{}
	for _, nn := range slices.Concat(result.Delete, result.Update) {
		written[nn.Name] = true
	}
	var errs []error
	for i := range all {
		nn := &all[i]
		problems := clusterplan.About(result.Problems, plan.KindNetNamespace, nn.Name)
		if written[nn.Name] || settledValidity(nn.Status.Conditions, problems) {
			continue
		}
		nn = nn.DeepCopy()
		errs = append(errs, updateValidity(ctx, v.client, nn, &nn.Status.Conditions, problems))
	}
	return errors.Join(errs...)
}
