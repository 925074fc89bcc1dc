//go:build lab

package vpc

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/vpcmatrix"
	"weft.dev/weft/test/labs"
)

// TestExamples applies the objects of deploy/examples/vpc to a cluster that runs OVN from the manifest, and measures what reaches what: pods of a
// VPC each other, with their own addresses; the outside by the NAT gateway, with the EIP's; nothing between VPCs of the same range, nor
// between a VPC and the cluster's network, and no frame with another pod's address. The example's SNAT rule matches no Subnet: its
// condition says so, and once it is corrected, its rows turn, also after faults of OVN and of the gateway. The commands of docs/vpc.md come
// first and last: they make a VPC, look at OVN, and delete everything. The lab leaves nothing on the machine.
func TestExamples(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	labs.LeavesNothing(t, "vpcexamples")
	c := labs.Up(ctx, t, lab.Config{WeftBin: weftBin, Name: "vpcexamples", Nodes: 2, Runtime: plan.RuntimeKubelet, VPC: true})
	kubectl := func(args ...string) string {
		t.Helper()
		return must(ctx, t, c.Kubectl(args...)...)
	}
	page := page(t, c, "vpc")
	kubectl("apply", "-f", "../../deploy/examples/vpc/00-namespaces.yaml")
	kubectl("-n", "ns1", "wait", "--for=create", "serviceaccount/default", "--timeout=60s")
	page(ctx, "kind: Vpc")
	kubectl("-n", "ns1", "wait", "--for=condition=Ready", "pod/web", "--timeout=180s")
	kubectl("-n", "ns1", "delete", "pod", "web", "--grace-period=1")

	kubectl("apply", "-f", "../../deploy/examples/vpc")
	for _, pod := range []string{"ns1/vpc1-pod", "ns1/vpc1-other", "ns2/vpc2-pod", "ns2/vpc2-other", "default/overlay-pod"} {
		namespace, name, _ := strings.Cut(pod, "/")
		kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=180s")
	}
	kubectl("wait", "--for=condition=Ready", "--timeout=180s", "iptables-eips/eip2", "iptables-eips/eip3", "iptables-fip-rules/fip01")
	matrix := func(o vpcmatrix.Options) {
		t.Helper()
		report, err := vpcmatrix.Run(ctx, c, o)
		if err != nil {
			t.Fatal(err)
		}
		labs.AsItMust(t, report)
	}
	options := vpcmatrix.Options{FloatingIP: netip.MustParseAddr("192.168.100.232")}
	matrix(options)
	matched := kubectl("get", "iptables-snat-rules", "snat01", "-o", `jsonpath={.status.conditions[?(@.type=="Matched")].message}`)
	if !strings.Contains(matched, "spec.internalCIDR overlaps no Subnet") || !strings.Contains(matched, "net1 (10.0.1.0/24)") {
		t.Errorf("the condition of an SNAT rule that matches no Subnet: %q", matched)
	}
	kubectl("patch", "iptables-snat-rules", "snat01", "--type=merge", `--patch={"spec":{"internalCIDR":"10.0.1.0/24"}}`)
	kubectl("wait", "--for=condition=Matched", "iptables-snat-rules/snat01", "--timeout=60s")
	options.SNAT = netip.MustParseAddr("192.168.100.231")
	matrix(options)

	page(ctx, "ovn-sbctl")
	t.Run("faults", func(t *testing.T) { faultsOfManifest(ctx, t, c) })
	matrix(options)

	for _, namespace := range []string{"ns1", "ns2"} {
		kubectl("-n", namespace, "delete", "pods", "--all", "--grace-period=1")
	}
	page(ctx, "--all")
	const kinds = "vpcs.kubeovn.io,subnets.kubeovn.io,ips.kubeovn.io,vpc-nat-gateways,iptables-eips,iptables-snat-rules,iptables-fip-rules"
	testwait.Eventually(t, "the page's commands have removed all objects", func() error {
		if left := kubectl("get", "-o", "name", kinds); left != "" {
			return errors.New(left)
		}
		return nil
	})
	if err := c.Crashed(ctx); err != nil {
		t.Error(err)
	}
}
