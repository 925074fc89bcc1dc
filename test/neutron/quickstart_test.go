//go:build lab

package neutron

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/lab/neutronmatrix"
)

// TestExamples applies the objects of deploy/examples/neutron as make quickstart-neutron does, and measures what reaches what: two tenants on
// networks of the same range, pods on two nodes, and a pod of the cluster's own network.
func TestExamples(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	examples := filepath.Join(cloudFor.lab.Config.DeployDir, "examples", "neutron")
	kubectl(ctx, t, "apply", "-f", filepath.Join(examples, "tenants.yaml"))
	kubectl(ctx, t, "wait", "--for=condition=Ready", "tenants.stackube.kubernetes.io/blue", "tenants.stackube.kubernetes.io/red", "--timeout=180s")
	kubectl(ctx, t, "apply", "-f", filepath.Join(examples, "pods.yaml"))
	for _, namespace := range []string{"blue", "red"} {
		kubectl(ctx, t, "-n", namespace, "wait", "--for=condition=Ready", "pods", "--all", "--timeout=240s")
	}
	for _, namespace := range []string{"blue", "red"} {
		kubectl(ctx, t, "-n", namespace, "wait", "--for=jsonpath={.status.loadBalancer.ingress[0].ip}", "service/public", "--timeout=240s")
	}
	kubectl(ctx, t, "wait", "--for=condition=Ready", "pod/overlay-pod", "--timeout=120s")
	report, err := neutronmatrix.Run(ctx, cloudFor.lab)
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
	if err := cloudFor.lab.Crashed(ctx); err != nil {
		t.Error(err)
	}
}
