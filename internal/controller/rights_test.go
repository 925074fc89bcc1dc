package controller

import (
	"maps"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"weft.dev/weft/deploy"
	shared "weft.dev/weft/internal/cluster"
	neutroncluster "weft.dev/weft/internal/neutron/cluster"
	vpccluster "weft.dev/weft/internal/vpc/cluster"
)

// The chart gives the controller what its parts use, and nothing more.
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

// checkRights compares the rights of the controller with what parts use.
func checkRights(t *testing.T, have map[string][]string, parts []shared.Part) {
	t.Helper()
	want := map[string][]string{
		// Any part may report about objects, and read what nodes report.
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

// granted are the verbs that the controller's ClusterRoles among objects give, by "group/resource".
func granted(t *testing.T, objects []*unstructured.Unstructured) map[string][]string {
	t.Helper()
	have := map[string][]string{}
	for _, object := range objects {
		own := object.GetNamespace() == "weft" // the lease and its events are no part's
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
