package controller

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/deploy"
	shared "weft.dev/weft/internal/cluster"
	neutroncluster "weft.dev/weft/internal/neutron/cluster"
	"weft.dev/weft/internal/placement"
	vpccluster "weft.dev/weft/internal/vpc/cluster"
)

// The chart gives the controller exactly the rights that its parts use.
func TestRightsAreWhatPartsUse(t *testing.T) {
	withVPCs, err := deploy.VPCObjects()
	if err != nil {
		t.Fatal(err)
	}
	checkRights(t, granted(t, withVPCs), parts(Options{vpcs: &vpccluster.Options{}}))

	withNeutron, err := deploy.NeutronObjects()
	if err != nil {
		t.Fatal(err)
	}
	checkRights(t, granted(t, withNeutron), parts(Options{Neutron: &neutroncluster.Options{}}))

	alone, err := deploy.Objects()
	if err != nil {
		t.Fatal(err)
	}
	checkRights(t, granted(t, alone), parts(Options{}))
}

// All networks' parts can share a cache, which keeps the fields of Pods that any of them reads.
func TestPartsShareACache(t *testing.T) {
	all := parts(Options{vpcs: &vpccluster.Options{}, Neutron: &neutroncluster.Options{}})
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), shared.AddToScheme(all, scheme)); err != nil {
		t.Fatal(err)
	}
	cached, err := shared.Cached(all, scheme)
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		placement.AnnotationNetwork: "a", kubeovn.AnnotationLogicalSwitch: "b", "other": "c",
	}}}
	for object, by := range cached {
		if _, pods := object.(*corev1.Pod); !pods {
			continue
		}
		kept, err := by.Transform(pod)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{placement.AnnotationNetwork: "a", kubeovn.AnnotationLogicalSwitch: "b"}
		if have := kept.(*corev1.Pod).Annotations; !maps.Equal(have, want) {
			t.Errorf("annotations: %v", have)
		}
		return
	}
	t.Error("Pods are not cached")
}

// checkRights compares the rights of the controller with those that parts use.
func checkRights(t *testing.T, have map[string][]string, parts []shared.Part) {
	t.Helper()
	want := map[string][]string{
		// All parts may send events about objects, and read the nodes' reports.
		"events.k8s.io/events":          {"create", "patch"},
		"network.weft.dev/nodenetworks": {"get", "list", "watch"},
	}
	for _, part := range parts {
		for _, object := range part.Objects {
			key := object.Group + "/" + object.Resource
			want[key] = append(want[key], object.Verbs...)
		}
	}
	sorted := func(verbs []string) string {
		return strings.Join(slices.Compact(slices.Sorted(slices.Values(verbs))), " ")
	}
	for resource := range maps.Keys(want) {
		if sorted(have[resource]) != sorted(want[resource]) {
			t.Errorf("%s: the chart allows %q, parts use %q", resource, sorted(have[resource]), sorted(want[resource]))
		}
	}
	for resource := range have {
		if want[resource] == nil {
			t.Errorf("%s: the chart allows %q, no part uses it", resource, sorted(have[resource]))
		}
	}
}

// granted returns the verbs that the controller's ClusterRoles in objects grant, by "group/resource".
func granted(t *testing.T, objects []*unstructured.Unstructured) map[string][]string {
	t.Helper()
	have := map[string][]string{}
	for _, object := range objects {
		own := object.GetNamespace() == "weft" // the lease and its events belong to no part
		if !strings.HasSuffix(object.GetKind(), "Role") || own || !strings.HasPrefix(object.GetName(), "weft-controller") {
			continue
		}
		var role rbacv1.ClusterRole
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					have[group+"/"+resource] = append(have[group+"/"+resource], rule.Verbs...)
				}
			}
		}
	}
	return have
}
