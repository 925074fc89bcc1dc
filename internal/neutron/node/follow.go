package node

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/neutron/ports"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
)

// open records an attachment, and returns once its flows are in effect.
func (n *Network) open(ctx context.Context, rec *attach.Record, d *ports.Details) error {
	if err := n.compiler.open(ctx, rec, scopeOf(rec, d)); err != nil {
		return err
	}
	return n.settled(ctx, ownerOf(rec), scopeOf(rec, d).owner())
}

// settled waits until what was handed over is programmed, and returns why these owners' flows are not.
func (n *Network) settled(ctx context.Context, owners ...reconcile.Owner) error {
	if err := n.flows().Loop.Apply(ctx, nil); err != nil {
		return fmt.Errorf("flows of %s: %w", pipeline.Bridge, err)
	}
	for _, o := range owners {
		if err := n.flows().Loop.Failure(o); err != nil {
			return fmt.Errorf("flows of %s: %w", pipeline.Bridge, err)
		}
	}
	return nil
}

// objectChanged requests the compilation of the flows that depend on an object. before is nil for an object that is new or gone.
func (n *Network) objectChanged(before, object client.Object, gone bool) {
	if before != nil && before.GetResourceVersion() == object.GetResourceVersion() {
		return // the watch repeats an unchanged object
	}
	switch now := object.(type) {
	case *weftv1.NeutronPort:
		n.ports.WakeUp()
		if was, is := before.(*weftv1.NeutronPort); !is || !equality.Semantic.DeepEqual(was.Spec, now.Spec) {
			n.compiler.namespaceChanged(now.Spec.Network.Namespace, false)
		}
	case *corev1.Pod:
		was, is := before.(*corev1.Pod)
		if !is || was.UID != now.UID || !reflect.DeepEqual(policy.FromPod(was), policy.FromPod(now)) {
			n.compiler.namespaceChanged(now.Namespace, true)
		}
	case *corev1.Namespace:
		if was, is := before.(*corev1.Namespace); !is || !maps.Equal(was.Labels, now.Labels) {
			n.compiler.namespaceChanged(now.Name, true)
		}
	case *corev1.Service:
		if slices.Contains(hostServices(), client.ObjectKeyFromObject(now)) {
			n.compiler.hostChanged()
		}
		n.compiler.namespaceChanged(now.Namespace, false)
		n.addresses.changed(now, gone)
	default:
		n.compiler.namespaceChanged(now.GetNamespace(), false)
	}
}

// handler hands the events of an informer to objectChanged.
func (n *Network) handler() toolscache.ResourceEventHandlerFuncs {
	changed := func(before, now any, deleted bool) {
		was, _ := before.(client.Object)
		if object, is := informer.LastState(now).(client.Object); is {
			n.objectChanged(was, object, deleted)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(now any) { changed(nil, now, false) },
		UpdateFunc: func(before, now any) { changed(before, now, false) },
		DeleteFunc: func(last any) { changed(nil, last, true) },
	}
}

// stripPod reduces a pod to what policies depend on.
func stripPod(object any) (any, error) {
	pod, is := object.(*corev1.Pod)
	if !is {
		return object, nil
	}
	kept := &corev1.Pod{TypeMeta: pod.TypeMeta, ObjectMeta: pod.ObjectMeta}
	kept.ManagedFields, kept.OwnerReferences, kept.Annotations = nil, nil, nil
	if mirrored, mirrors := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirrors {
		kept.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: mirrored}
	}
	ports := func(list []corev1.Container) (out []corev1.Container) {
		for i := range list {
			if len(list[i].Ports) > 0 {
				out = append(out, corev1.Container{Ports: list[i].Ports})
			}
		}
		return out
	}
	kept.Spec = corev1.PodSpec{
		NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork,
		Containers: ports(pod.Spec.Containers), InitContainers: ports(pod.Spec.InitContainers),
	}
	kept.Status = corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs}
	return kept, nil
}
