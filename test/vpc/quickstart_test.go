//go:build lab

package vpc

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/vpcmatrix"
)

// TestExamples applies the objects of deploy/examples/vpc to a cluster that runs OVN from the manifest, and measures what reaches what: pods of a
// VPC each other, with their own addresses; nothing between VPCs of the same range, nor between a VPC and the cluster's network, and no
// frame with another pod's address.
func TestExamples(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	c := up(ctx, t, lab.Config{Name: "vpcexamples", Nodes: 2, Runtime: plan.RuntimeKubelet, VPC: true})
	kubectl := func(args ...string) string {
		t.Helper()
		return must(ctx, t, append([]string{
			"env", "NO_PROXY=*", filepath.Join(lab.KubernetesBin(c.Config), "kubectl"), "--kubeconfig=" + c.Kubeconfig,
		}, args...)...)
	}
	kubectl("apply", "-f", "../../deploy/examples/vpc")
	for _, pod := range []string{"ns1/vpc1-pod", "ns1/vpc1-other", "ns2/vpc2-pod", "ns2/vpc2-other", "default/overlay-pod"} {
		namespace, name, _ := strings.Cut(pod, "/")
		kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=180s")
	}
	report, err := vpcmatrix.Run(ctx, c, vpcmatrix.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	if err := report.Table(&table); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + table.String())
	if !report.OK() {
		t.Error("the matrix is not as it must be")
	}
	if err := c.Crashed(ctx); err != nil {
		t.Error(err)
	}
}
