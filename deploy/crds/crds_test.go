package crds

import (
	"maps"
	"slices"
	"testing"
)

func TestAll(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	neutron, err := Neutron()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range neutron {
		if crd.Spec.Group != "stackube.kubernetes.io" {
			t.Errorf("%s is installed with OpenStack's networks only", crd.Name)
		}
	}
	kinds := map[string][]string{}
	all = append(all, neutron...)
	for _, crd := range all {
		kinds[crd.Spec.Group] = append(kinds[crd.Spec.Group], crd.Spec.Names.Kind)
	}
	for group, want := range map[string][]string{
		"network.openshift.io":   {"ClusterNetwork", "EgressNetworkPolicy", "HostSubnet", "NetNamespace"},
		"network.weft.dev":       {"NeutronPort", "NodeNetwork"},
		"stackube.kubernetes.io": {"Network", "Tenant"},
		"kubeovn.io": {
			"IP", "IptablesDnatRule", "IptablesEIP", "IptablesFIPRule", "IptablesSnatRule", "QoSPolicy", "Subnet", "Vpc", "VpcNatGateway",
		},
	} {
		if have := slices.Sorted(slices.Values(kinds[group])); !slices.Equal(have, want) {
			t.Errorf("group %s has %v, want %v", group, have, want)
		}
		delete(kinds, group)
	}
	for group := range maps.Keys(kinds) {
		t.Errorf("unexpected group %s", group)
	}
}
