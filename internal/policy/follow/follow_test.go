package follow

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"weft.dev/weft/internal/policy"
)

func fullPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: "u1", Labels: map[string]string{"app": "web"},
			Annotations:     map[string]string{"large": "value", corev1.MirrorPodAnnotationKey: "hash"},
			OwnerReferences: []metav1.OwnerReference{{Name: "web"}}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Spec: corev1.PodSpec{
			NodeName: "n1", ServiceAccountName: "web", Volumes: []corev1.Volume{{Name: "data"}},
			Containers: []corev1.Container{
				{Name: "main", Image: "web", Env: []corev1.EnvVar{{Name: "SECRET", Value: "x"}}, Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}},
				{Name: "log", Image: "log"},
			},
			InitContainers: []corev1.Container{{Name: "side", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9090}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.128.0.5", PodIPs: []corev1.PodIP{{IP: "10.128.0.5"}}, Message: "fine"},
	}
}

// A stripped pod means the same to policies as the pod, and keeps nothing else: no environment, no volumes.
func TestStripPod(t *testing.T) {
	whole := policyPod(fullPod())
	kept := fullPod()
	StripPod(kept)
	if !samePolicyObject(kept, fullPod()) {
		t.Errorf("kept says %+v, the pod %+v", policyPod(kept), whole)
	}
	if !slices.Equal(whole.UIDs, []string{"u1", "hash"}) || len(whole.Ports) != 2 {
		t.Errorf("the pod is known by %v and has the ports %v", whole.UIDs, whole.Ports)
	}
	if len(kept.Spec.Volumes)+len(kept.OwnerReferences) > 0 || kept.Annotations["large"] != "" || kept.Status.Message != "" ||
		slices.ContainsFunc(kept.Spec.Containers, func(c corev1.Container) bool { return c.Image != "" || len(c.Env) > 0 }) {
		t.Errorf("kept is more than is used: %+v", kept)
	}
}

// Pods are written often; only changes that affect policies are events.
func TestSamePolicyObject(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		same   bool
	}{
		"a heartbeat":         {func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}} }, true},
		"an annotation":       {func(p *corev1.Pod) { p.Annotations["large"] = "other" }, true},
		"a label":             {func(p *corev1.Pod) { p.Labels["app"] = "db" }, false},
		"an address":          {func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "10.128.0.6" }, false},
		"its end":             {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"another of the name": {func(p *corev1.Pod) { p.UID = types.UID("u2") }, false},
		"a node":              {func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, false},
	} {
		after := fullPod()
		c.change(after)
		if same := samePolicyObject(fullPod(), after); same != c.same {
			t.Errorf("%s: the same %t, want %t", name, same, c.same)
		}
	}
	a, b := &networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicy{}
	if b.Labels = map[string]string{"x": "y"}; !samePolicyObject(a, b) {
		t.Error("a policy's own labels count")
	}
	kept := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{policy.AnnotationEstablished: policy.EstablishedKeep, "large": "value"}}}
	StripPolicy(kept)
	if len(kept.Annotations) != 1 || samePolicyObject(a, kept) {
		t.Errorf("what becomes of connections does not count, or more is kept: %v", kept.Annotations)
	}
	if b.Spec.PolicyTypes = []networkingv1.PolicyType{"Egress"}; samePolicyObject(a, b) {
		t.Error("a policy's types do not count")
	}
	if samePolicyObject(&corev1.Namespace{}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"x": "y"}}}) {
		t.Error("a namespace's labels do not count")
	}
}

// Events are merged: one step takes all waiting events of an object. The deletion of an object may come as a tombstone.
func TestPolicyEventsFold(t *testing.T) {
	p := New(nil, nil)
	p.listed = true
	for range 3 {
		p.note(fullPod())
	}
	p.note(toolscache.DeletedFinalStateUnknown{Obj: &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "deny"}}})
	p.note(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	if len(p.wake) != 1 {
		t.Errorf("%d wake-ups wait, want 1", len(p.wake))
	}
	names, _, _ := p.take()
	_, pod := names.pods[policy.Key{Namespace: "shop", Name: "web"}]
	_, deny := names.policies[policy.Key{Namespace: "shop", Name: "deny"}]
	_, space := names.namespaces["shop"]
	if !pod || !deny || !space || len(names.pods)+len(names.policies)+len(names.namespaces) != 3 {
		t.Errorf("taken are %v", names)
	}
	p.putBack(names, false)
	if again, _, _ := p.take(); len(again.pods) != 1 || len(again.policies) != 1 || len(again.namespaces) != 1 {
		t.Errorf("put back, and taken again are %v", again)
	}
}
