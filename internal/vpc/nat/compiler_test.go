package nat_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/nat"
)

const external = kubeovn.DefaultExternalSubnet

// twoGateways returns two VPCs, each with a Subnet, a gateway, and two EIPs with a rule each.
func twoGateways() *nat.Objects {
	o := &nat.Objects{
		Subnets: []kubeovn.Subnet{{ObjectMeta: made(external, 1), Spec: kubeovn.SubnetSpec{
			Provider: "e.default", CIDRBlock: "192.168.100.0/24", Gateway: "192.168.100.1",
		}}},
		Definitions: map[string]string{"e.default": `{"type":"macvlan","master":"ens37"}`},
	}
	for i := range 2 {
		name := fmt.Sprint("g", i)
		o.Vpcs = append(o.Vpcs, kubeovn.Vpc{ObjectMeta: made(name, 2)})
		o.Subnets = append(o.Subnets, kubeovn.Subnet{ObjectMeta: made(name, 3), Spec: kubeovn.SubnetSpec{Vpc: name, CIDRBlock: "10.0.1.0/24"}})
		o.Gateways = append(o.Gateways, kubeovn.VpcNatGateway{
			ObjectMeta: made(name, 4), Spec: kubeovn.VpcNatGatewaySpec{Vpc: name, Subnet: name, LanIP: "10.0.1.254"},
			Status: kubeovn.VpcNatGatewayStatus{IP: fmt.Sprint("192.168.100.", 10+i)},
		})
		for j := range 2 {
			eip, address := fmt.Sprintf("e%d%d", i, j), fmt.Sprint("192.168.100.", 100+10*i+j)
			o.EIPs = append(o.EIPs, kubeovn.IptablesEIP{
				ObjectMeta: made(eip, 5), Spec: kubeovn.IptablesEIPSpec{NatGwDp: name}, Status: kubeovn.IptablesEIPStatus{IP: address},
			})
			o.FIPs = append(o.FIPs, kubeovn.IptablesFIPRule{ObjectMeta: made(eip, 6), Spec: kubeovn.IptablesFIPRuleSpec{EIP: eip, InternalIP: "10.0.1.5"}})
			o.SNATs = append(o.SNATs, kubeovn.IptablesSnatRule{ObjectMeta: made(eip, 7), Spec: kubeovn.IptablesSnatRuleSpec{EIP: eip, InternalCIDR: "10.0.1.0/24"}})
			o.DNATs = append(o.DNATs, kubeovn.IptablesDnatRule{ObjectMeta: made(eip, 8), Spec: kubeovn.IptablesDnatRuleSpec{
				EIP: eip, ExternalPort: "80", InternalIP: "10.0.1.6", InternalPort: "80",
			}})
		}
	}
	return o
}

// After every change, in whatever order the objects are listed and the gateways are requested, a compiler that keeps former states returns
// what a compilation of everything returns.
func TestCompiler(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		o, kept := twoGateways(), &nat.Compiler{}
		pick := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(r, label) }
		index := func(length int) int { return rapid.IntRange(0, length-1).Draw(r, "index") }
		eip := func() string { return pick("eip", "e00", "e01", "e10", "e11", "none") }
		changes := map[string]func(){
			"vpc": func() {
				o.Vpcs[index(2)].Spec.StaticRoutes = []kubeovn.StaticRoute{
					{CIDR: pick("route", "10.9.0.0/16", "10.8.0.0/16"), NextHopIP: pick("hop", "10.0.1.9", "10.0.1.253", "10.0.1.252"), Policy: "policyDst"},
				}
			},
			"subnet": func() {
				o.Subnets[1+index(2)].Spec.CIDRBlock = pick("range", "10.0.1.0/24", "10.0.0.0/16", "10.7.0.0/24")
			},
			"external": func() { o.Subnets[0].Spec.Gateway = pick("gateway", "192.168.100.1", "192.168.100.2") },
			"definition": func() {
				o.Definitions["e.default"] = pick("definition", `{"type":"macvlan","master":"ens37"}`, `{"type":"macvlan","master":"ens38"}`, "{")
			},
			"gateway": func() {
				g := &o.Gateways[index(2)]
				g.Spec.Vpc = pick("of VPC", "g0", "g1") // with another VPC's Subnet, its lanIp counts nevertheless
				g.Spec.LanIP, g.Status.IP = pick("lanIp", "10.0.1.254", "10.0.1.253"), pick("own", "192.168.100.10", "192.168.100.11", "")
			},
			"eip": func() {
				e := &o.EIPs[index(4)]
				e.Spec.NatGwDp, e.Status.IP = pick("of", "g0", "g1"), pick("address", "192.168.100.100", "192.168.100.101", "192.168.100.110", "")
				e.CreationTimestamp = metav1.NewTime(time.Unix(int64(rapid.IntRange(1, 9).Draw(r, "age")), 0))
			},
			"fip": func() {
				o.FIPs[index(4)].Spec = kubeovn.IptablesFIPRuleSpec{EIP: eip(), InternalIP: pick("internal", "10.0.1.5", "10.0.1.7", "x")}
			},
			"snat": func() {
				o.SNATs[index(4)].Spec = kubeovn.IptablesSnatRuleSpec{EIP: eip(), InternalCIDR: pick("source", "10.0.1.0/24", "10.0.1.0/28", "x")}
			},
			"dnat": func() { o.DNATs[index(4)].Spec.EIP = eip() },
		}
		names := []string{"vpc", "subnet", "external", "definition", "gateway", "eip", "fip", "snat", "dnat"}
		for range rapid.IntRange(1, 20).Draw(r, "changes") {
			changes[rapid.SampledFrom(names).Draw(r, "change")]()
			o.EIPs, o.FIPs, o.Subnets = rapid.Permutation(o.EIPs).Draw(r, "EIPs"), rapid.Permutation(o.FIPs).Draw(r, "FIPs"), rapid.Permutation(o.Subnets).Draw(r, "Subnets")
			wanted := rapid.SampledFrom([][]string{nil, {"g0"}, {"g1"}, {"g0", "g1"}}).Draw(r, "wanted")
			have, want := kept.Compile(o, wanted...), nat.Compile(o, wanted...)
			for name, g := range want.Gateways {
				now := have.Gateways[name]
				if now.Problem != g.Problem || now.Hash != g.Hash || now.Definition != g.Definition || !reflect.DeepEqual(now.Result, g.Result) {
					r.Fatalf("gateway %s: %+v\nof everything: %+v", name, now, g)
				}
			}
		}
	})
}
