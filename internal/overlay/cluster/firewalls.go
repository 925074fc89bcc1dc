package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/overlay/cluster/plan"
)

// firewallReconciler writes on EgressNetworkPolicies whether they can be used, as plan.Firewalls decides. The agents decide by themselves:
// nothing waits for what is written here.
type firewallReconciler struct {
	client  client.Client
	events  events.EventRecorder
	log     *slog.Logger
	metrics *metrics.Controller
}

func (f *firewallReconciler) setUp(tools cluster.Tools) error {
	c, err := controller.NewTyped(nameFirewalls, tools.Manager, cluster.Options(nameFirewalls, f.metrics, f))
	if err != nil {
		return fmt.Errorf("make the controller: %w", err)
	}
	specChanges := predicate.TypedFuncs[*networkv1.EgressNetworkPolicy]{UpdateFunc: func(e event.TypedUpdateEvent[*networkv1.EgressNetworkPolicy]) bool {
		return e.ObjectOld.UID != e.ObjectNew.UID || e.ObjectOld.Generation != e.ObjectNew.Generation
	}}
	numberChanges := predicate.TypedFuncs[*networkv1.NetNamespace]{UpdateFunc: func(e event.TypedUpdateEvent[*networkv1.NetNamespace]) bool {
		return e.ObjectOld.NetID != e.ObjectNew.NetID
	}}
	return errors.Join(
		c.Watch(tools.Reading("egressnetworkpolicies",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.EgressNetworkPolicy{}, cluster.Enqueue[*networkv1.EgressNetworkPolicy](), specChanges))),
		c.Watch(tools.Reading("netnamespaces",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.NetNamespace{}, cluster.Enqueue[*networkv1.NetNamespace](), numberChanges))),
		c.Watch(tools.Reading("clusternetworks",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.ClusterNetwork{}, cluster.Enqueue[*networkv1.ClusterNetwork]()))),
	)
}

// Reconcile checks all policies, and writes each status that differs.
func (f *firewallReconciler) Reconcile(ctx context.Context, _ cluster.Everything) (reconcile.Result, error) {
	config, err := readConfig(ctx, f.client)
	if err != nil {
		return reconcile.Result{}, err
	}
	if config == nil { // without a network there is nothing to check against
		return reconcile.Result{}, nil
	}
	var policies networkv1.EgressNetworkPolicyList
	var netNamespaces networkv1.NetNamespaceList
	if err := errors.Join(f.client.List(ctx, &policies), f.client.List(ctx, &netNamespaces)); err != nil {
		return reconcile.Result{}, fmt.Errorf("read EgressNetworkPolicies and NetNamespaces from the cache: %w", err)
	}
	var errs []error
	reasons := map[string]int{}
	for _, found := range plan.Firewalls(plan.FirewallState{Mode: config.Mode, Policies: policies.Items, NetNamespaces: netNamespaces.Items}) {
		if found.Reason != networkv1.ReasonValid {
			reasons[found.Reason]++
		}
		errs = append(errs, f.updateStatus(ctx, found))
	}
	f.metrics.Problems(nameFirewalls, reasons)
	return cluster.Settle(errs...)
}

// updateStatus writes a policy's condition if it differs, and sends an event if the new one reports a problem.
func (f *firewallReconciler) updateStatus(ctx context.Context, found plan.FirewallFinding) error {
	p := found.Policy
	valid := found.Reason == networkv1.ReasonValid
	if !cluster.SetConditions(&p.Status.Conditions, p.Generation, condition(networkv1.ConditionValid, found.Reason, found.Message, valid)) {
		return nil
	}
	if err := f.client.Status().Update(ctx, p); err != nil {
		return fmt.Errorf("update the status of EgressNetworkPolicy %s/%s: %w", p.Namespace, p.Name, err)
	}
	if valid {
		return nil
	}
	f.log.WarnContext(ctx, "problem", "message", found.Message, "kind", "EgressNetworkPolicy", "namespace", p.Namespace, "name", p.Name, "reason", found.Reason)
	f.events.Eventf(&corev1.ObjectReference{
		Kind: "EgressNetworkPolicy", APIVersion: networkv1.GroupVersion().String(), Namespace: p.Namespace, Name: p.Name, UID: p.UID,
	}, nil, corev1.EventTypeWarning, found.Reason, actionJudgeFirewall, "%s", cluster.Note(found.Message))
	return nil
}
