package nat_test

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/vpc/gateway"
	"weft.dev/weft/internal/vpc/nat"
)

func made(name string, second int64) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Unix(second, 0))}
}

// A gateway that cannot be compiled keeps the translations of its rules: whatever older EIPs of the same address there are that its state
// would not have (of another external Subnet, or being deleted), and also if the gateway names another external Subnet than all its EIPs.
func TestRequiredOfShadowedEIPs(t *testing.T) {
	const address = "192.168.100.230"
	eip := func(name string, second int64, external string) kubeovn.IptablesEIP {
		return kubeovn.IptablesEIP{
			ObjectMeta: made(name, second), Spec: kubeovn.IptablesEIPSpec{NatGwDp: "gw", ExternalSubnet: external},
			Status: kubeovn.IptablesEIPStatus{IP: address},
		}
	}
	leaving := eip("leaving", 2, "ext")
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Unix(9, 0)}
	for name, c := range map[string]struct {
		external string
		eips     []kubeovn.IptablesEIP
	}{
		"older EIPs that the gateway cannot have": {"ext", []kubeovn.IptablesEIP{eip("elsewhere", 1, "other"), leaving, eip("own", 3, "ext")}},
		"a gateway with a misspelt Subnet":        {"typo", []kubeovn.IptablesEIP{leaving, eip("own", 3, "ext")}},
	} {
		t.Run(name, func(t *testing.T) {
			network := nat.Compile(&nat.Objects{
				Gateways: []kubeovn.VpcNatGateway{{ObjectMeta: made("gw", 1), Spec: kubeovn.VpcNatGatewaySpec{
					Vpc: "v", Subnet: "s", LanIP: "10.0.1.254", ExternalSubnets: []string{c.external},
				}}},
				EIPs: c.eips,
				FIPs: []kubeovn.IptablesFIPRule{{ObjectMeta: made("f", 4), Spec: kubeovn.IptablesFIPRuleSpec{EIP: "own", InternalIP: "10.0.1.5"}}},
			})
			if network.Gateways["gw"].Problem == (nat.Problem{}) {
				t.Fatal("the gateway compiles")
			}
			required := network.Required("gw")
			element := &nft.Element{
				Family: nft.FamilyIPv4, Table: gateway.Table, Set: gateway.FloatingIn, Match: []string{address}, Value: []string{"10.0.1.5"},
				Owner: "IptablesFIPRule/f",
			}
			if !required.Element(element) {
				t.Error("the translation of a rule that exists is withdrawn")
			}
			element.Value = []string{"10.0.1.6"}
			if required.Element(element) {
				t.Error("a translation that no rule requires is kept")
			}
		})
	}
}

// A prefix that the VPC's router sends to a gateway leads outside in each gateway of the VPC, whatever their order, and also if the other
// gateway cannot be compiled. A gateway of another VPC with the same lanIp counts for nothing.
func TestRouteToAnotherGateway(t *testing.T) {
	o := twoGateways()
	o.Vpcs[0].Spec.StaticRoutes = []kubeovn.StaticRoute{{CIDR: "8.8.8.0/24", NextHopIP: "10.0.1.253", Policy: "policyDst"}}
	inside := func() bool {
		g := nat.Compile(o, "g0").Gateways["g0"]
		if g.Problem != (nat.Problem{}) {
			t.Fatal(g.Problem)
		}
		return slices.ContainsFunc(g.Result.State.Routes, func(r gateway.Route) bool { return r.Dst.String() == "8.8.8.0/24" })
	}
	o.Gateways[1].Spec.LanIP = "10.0.1.253"
	if !inside() {
		t.Error("a gateway of another VPC makes the prefix lead outside")
	}
	o.Gateways = append(o.Gateways, kubeovn.VpcNatGateway{
		ObjectMeta: made("a", 9), Spec: kubeovn.VpcNatGatewaySpec{Vpc: "g0", Subnet: "g0", LanIP: "10.0.1.253", ExternalSubnets: []string{"none"}},
	})
	if inside() {
		t.Error("the prefix leads to another gateway of the VPC, and is returned to the VPC")
	}
	o.Gateways[2].Spec.LanIP = "10.0.1.252"
	if !inside() {
		t.Error("the other gateway has another lanIp, and the prefix leads outside")
	}
}
