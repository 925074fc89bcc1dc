package cluster

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodFields are the fields of Pods that a part reads, besides those that the cache keeps of every Pod: the metadata (name, namespace, UID,
// version, times, labels, owners), the node, whether the Pod uses the host's network, and the phase.
type PodFields struct {
	// Annotations are keys of annotations.
	Annotations []string
	// Conditions are types of conditions in the status.
	Conditions []corev1.PodConditionType
}

// join returns the union of both.
func (f *PodFields) join(other *PodFields) *PodFields {
	return &PodFields{
		Annotations: slices.Concat(f.Annotations, other.Annotations), Conditions: slices.Concat(f.Conditions, other.Conditions),
	}
}

// keep is the cache's transform for Pods.
func (f *PodFields) keep(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil // the last state of a deleted Pod, which was transformed before
	}
	kept := &corev1.Pod{
		TypeMeta: pod.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp, OwnerReferences: pod.OwnerReferences,
			Annotations: maps.Clone(pod.Annotations),
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	maps.DeleteFunc(kept.Annotations, func(key, _ string) bool { return !slices.Contains(f.Annotations, key) })
	for _, condition := range pod.Status.Conditions {
		if slices.Contains(f.Conditions, condition.Type) {
			kept.Status.Conditions = append(kept.Status.Conditions, condition)
		}
	}
	return kept, nil
}
