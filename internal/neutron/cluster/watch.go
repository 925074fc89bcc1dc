package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/cluster/view"
)

// networkOfPort returns the Network that a NeutronPort names.
func networkOfPort(_ context.Context, o client.Object) []reconcile.Request {
	port, ok := o.(*weftv1.NeutronPort)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: port.Spec.Network.Namespace, Name: port.Spec.Network.Name}}}
}

// networkOfPod returns the Network to which a pod is, or was, to be attached.
func (r *portReconciler) networkOfPod(ctx context.Context, o client.Object) []reconcile.Request {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return nil
	}
	where, err := view.NewPlaces(ctx, r.client)
	if err == nil {
		namespace := &corev1.Namespace{}
		err = r.client.Get(ctx, client.ObjectKey{Name: pod.Namespace}, namespace)
		running := pod.DeepCopy()
		running.Status.Phase = corev1.PodRunning // a pod that has ended has left its port
		if key, found := where.Of(running, namespace); err == nil && found {
			return []reconcile.Request{{NamespacedName: key}}
		}
	}
	if client.IgnoreNotFound(err) != nil {
		r.log.WarnContext(ctx, "network of a pod unknown; looking again with the next change", "pod", client.ObjectKeyFromObject(pod).String(), "error", err)
	}
	return nil
}

// networksOfNamespace returns the Networks in a Namespace.
func (r *portReconciler) networksOfNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return r.networks(ctx, client.InNamespace(o.GetName()))
}

// allNetworks returns all Networks.
func (r *portReconciler) allNetworks(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.networks(ctx)
}

func (r *portReconciler) networks(ctx context.Context, options ...client.ListOption) []reconcile.Request {
	var list stackubev1.NetworkList
	if err := r.client.List(ctx, &list, options...); err != nil {
		r.log.WarnContext(ctx, "networks not listed", "error", err)
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// runsElsewhere passes the pod changes that change how many ports a node needs.
func runsElsewhere() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, wasPod := e.ObjectOld.(*corev1.Pod)
		after, isPod := e.ObjectNew.(*corev1.Pod)
		return wasPod && isPod && (before.Spec.NodeName != after.Spec.NodeName || ended(before) != ended(after) ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero())
	}}
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// comesOrGoes passes new and deleted objects.
func comesOrGoes() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
}

// hostnameChanges passes reports that change a node's name in Neutron.
func hostnameChanges() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, was := e.ObjectOld.(*weftv1.NodeNetwork)
		after, is := e.ObjectNew.(*weftv1.NodeNetwork)
		return was && is && view.Hostname(before) != view.Hostname(after)
	}}
}
