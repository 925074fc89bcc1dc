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

// Short names and columns of Kube-OVN's kinds are Kube-OVN's (its chart, 1.12): scripts of users name them, and columns by their places. Columns
// that Weft adds come after them, or, as Vlan, which later releases of Kube-OVN add, only with -o wide.
func TestKubeOVNNames(t *testing.T) {
	want := map[string]struct {
		short   string
		columns []string
	}{
		"Vpc": {"vpc", []string{"EnableExternal", "EnableBfd", "Standby", "Subnets", "ExtraExternalSubnets", "Namespaces"}},
		"Subnet": {"subnet", []string{
			"Provider", "Vpc", "Protocol", "CIDR", "Private", "NAT", "Default", "GatewayType", "V4Used", "V4Available", "V6Used", "V6Available",
			"ExcludeIPs", "U2OInterconnectionIP",
		}},
		"IP":               {"ip", []string{"V4IP", "V6IP", "Mac", "Node", "Subnet"}},
		"VpcNatGateway":    {"vpc-nat-gw", []string{"Vpc", "Subnet", "LanIP"}},
		"IptablesEIP":      {"eip", []string{"IP", "Mac", "Nat", "NatGwDp", "Ready"}},
		"IptablesFIPRule":  {"fip", []string{"EIP", "V4IP", "InternalIP", "V6IP", "Ready", "NatGwDp"}},
		"IptablesSnatRule": {"snat", []string{"EIP", "V4IP", "V6IP", "InternalCIDR", "NatGwDp", "Ready"}},
		"IptablesDnatRule": {"dnat", []string{"EIP", "Protocol", "V4IP", "V6IP", "InternalIP", "ExternalPort", "InternalPort", "NatGwDp", "Ready"}},
		"QoSPolicy":        {"qos", []string{"Shared", "BindingType"}},
	}
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range all {
		names := crd.Spec.Names
		of, is := want[names.Kind]
		if !is || crd.Spec.Group != "kubeovn.io" {
			continue
		}
		delete(want, names.Kind)
		if !slices.Equal(names.ShortNames, []string{of.short}) {
			t.Errorf("%s has the short names %v, want %s", names.Kind, names.ShortNames, of.short)
		}
		var columns []string
		for _, column := range crd.Spec.Versions[0].AdditionalPrinterColumns {
			if column.Priority == 0 {
				columns = append(columns, column.Name)
			}
		}
		if len(columns) < len(of.columns) || !slices.Equal(columns[:len(of.columns)], of.columns) {
			t.Errorf("%s has the columns %v, want %v first", names.Kind, columns, of.columns)
		}
	}
	if len(want) > 0 {
		t.Errorf("kinds without a definition: %v", want)
	}
}
