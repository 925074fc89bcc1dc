//go:build lab

package neutron

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/lab/neutronmatrix"
	"weft.dev/weft/lab/pages"
	"weft.dev/weft/test/labs"
	"weft.dev/weft/test/probe"
)

// TestExamples applies the objects of deploy/examples/neutron as make quickstart-neutron does, and measures what reaches what: two tenants on
// networks of the same range, pods on two nodes, and a pod of the cluster's own network. Then it runs the commands of the pages.
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
	labs.AsItMust(t, report)
	inStep(ctx, t)
	followPages(ctx, t)
	policiesOfBothFamilies(ctx, t)
	if err := cloudFor.lab.Crashed(ctx); err != nil {
		t.Error(err)
	}
	noSecretsInTheCluster(ctx, t)
}

// inStep holds the operator's commands to what they say of OpenStack's networks: `weft status` counts them, `weft diff` compares br-n and
// finds no difference, and `weft flows` names the owner of each flow of br-n.
func inStep(ctx context.Context, t *testing.T) {
	t.Helper()
	await := func(what string, check func(context.Context) error) {
		if _, err := probe.Await(ctx, probe.Patience, what, check); err != nil {
			t.Error(err)
		}
	}
	await("weft status", func(ctx context.Context) error {
		out, err := probe.Run(ctx, []string{"env", "NO_PROXY=*", weft(t), "--kubeconfig=" + cloudFor.lab.Kubeconfig, "status"})
		if err == nil && !strings.Contains(out, "OpenStack: 2 networks") {
			err = fmt.Errorf("it says %s", out)
		}
		return err
	})
	for _, n := range cloudFor.lab.Nodes() {
		await("weft diff on "+n.Name, func(ctx context.Context) error {
			out, err := probe.Run(ctx, n.Enter(weft(t), "diff"))
			if err == nil && !strings.Contains(out, "openflow br-n") {
				err = fmt.Errorf("it says %s", out)
			}
			return err
		})
		await("weft flows on "+n.Name, func(ctx context.Context) error {
			out, err := probe.Run(ctx, n.Enter(weft(t), "flows", "--bridge", "br-n", "-o", "json"))
			if err != nil {
				return err
			}
			var report flows.Report
			if err := json.Unmarshal([]byte(out), &report); err != nil {
				return err
			}
			ofTenant := slices.ContainsFunc(report.Flows, func(f flows.Flow) bool {
				return slices.ContainsFunc(f.Objects, func(o admin.Object) bool { return o.Namespace == "blue" })
			})
			if report.Unowned > 0 || report.OwnersUnknown != "" || !ofTenant {
				return fmt.Errorf("%d of %d flows have no owner, %s; a flow of a tenant: %t", report.Unowned, report.Total, report.OwnersUnknown, ofTenant)
			}
			return nil
		})
	}
}

// followPages runs the commands of docs/lab.md and docs/neutron.md. They are for the examples' tenants and pods, which are there. The last one
// gives a tenant's Network an IPv6 range.
func followPages(ctx context.Context, t *testing.T) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	c := cloudFor.lab
	page := pages.Begin(t, pages.Runner{
		Root: root, Bin: c.Config.WeftBin, Lab: c.Name(), Names: strings.NewReplacer("weft-lab ", "weft-lab --name "+c.Name()+" "),
	}, "neutron")
	page(ctx, "neutron-matrix")
	page(ctx, "kind: Tenant")
	page(ctx, "kubectl get neutronports")
	page(ctx, "nsenter")
	page(ctx, "nft list map")
	page(ctx, "nft list chain")
	page(ctx, "ipv6CIDR")
	_, err = probe.Await(ctx, probe.Patience, "a port with an IPv6 address", func(ctx context.Context) error {
		out, err := tryKubectl(ctx, "get", "neutronports", "-o", "jsonpath={.items[*].spec.addresses[*].address}")
		if err == nil && !strings.Contains(out, "fd00:10:244:") {
			err = fmt.Errorf("addresses %s", out)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// noSecretsInTheCluster searches for passwords and tokens in what Weft has written in the lab: its logs, also those of containers that have
// ended, the objects in the API server without Secrets and Tenants' specs, the agents' metrics, files and rows on nodes, and weft status.
func noSecretsInTheCluster(ctx context.Context, t *testing.T) {
	t.Helper()
	written := map[string]string{}
	for pod := range strings.FieldsSeq(kubectl(ctx, t, "-n", "weft", "get", "pods", "-o", "name")) {
		written["log of "+pod] = kubectl(ctx, t, "-n", "weft", "logs", pod, "--all-containers", "--tail=-1")
		containers := kubectl(ctx, t, "-n", "weft", "get", pod, "-o", `jsonpath={range .status.containerStatuses[*]}{.name}={.restartCount}{"\n"}{end}`)
		for container := range strings.FieldsSeq(containers) {
			name, restarts, _ := strings.Cut(container, "=")
			if restarts != "0" {
				written["log of the previous "+name+" of "+pod] = kubectl(ctx, t, "-n", "weft", "logs", pod, "-c", name, "--previous", "--tail=-1")
			}
		}
	}
	if len(written) < 1+len(cloudFor.lab.Nodes()) {
		t.Errorf("only %d programs of Weft have a log", len(written))
	}
	for _, kind := range []string{
		"events.events.k8s.io", "networks.stackube.kubernetes.io", "neutronports", "nodenetworks", "nodes", "namespaces", "services", "configmaps", "pods",
	} {
		written[kind] = kubectl(ctx, t, "get", kind, "-A", "-o", "json")
	}
	for _, format := range []string{"text", "json"} {
		out, err := probe.Run(ctx, []string{"env", "NO_PROXY=*", weft(t), "--kubeconfig=" + cloudFor.lab.Kubeconfig, "status", "-o", format})
		if !strings.Contains(out, "OpenStack") && !strings.Contains(out, "neutron") {
			t.Errorf("weft status as %s: %q, %v", format, out, err)
		}
		written["weft status as "+format] = out
	}
	written["statuses of tenants"] = kubectl(ctx, t, "get", "tenants", "-A", "-o", "jsonpath={.items[*].status}")
	controllers := 0
	for _, n := range cloudFor.lab.Nodes() {
		// The namespace of ports is mounted as a file that cannot be read. Sizes are rounded up to their unit.
		files, err := probe.Run(ctx, n.Enter("find", "/var/lib/weft", "/run/weft", "-type", "f", "!", "-path", "/run/weft/cni/ports",
			"-size", "-1024k", "-exec", "cat", "{}", "+"))
		if err != nil {
			t.Fatal(err)
		}
		rows, err := probe.Run(ctx, n.Enter("ovsdb-client", "dump", "unix:/run/openvswitch/db.sock", "Open_vSwitch"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(kubectl(ctx, t, "-n", "weft", "get", "pods", "--field-selector=spec.nodeName="+n.Name, "-o", "name"), "pod/weft-controller") {
			metrics, err := probe.AskController(ctx, n, "/metrics")
			if err != nil {
				t.Error(err)
			}
			controllers++
			written["metrics of the controller on "+n.Name] = metrics
		}
		metrics, err := probe.AskAgent(ctx, n, "/metrics")
		if err != nil || !strings.Contains(metrics, "weft_") {
			t.Errorf("metrics of the agent on %s, %d bytes: %v", n.Name, len(metrics), err)
		}
		written["files of "+n.Name], written["rows of "+n.Name], written["metrics of "+n.Name] = files, rows, metrics
	}
	if controllers == 0 {
		t.Error("no controller's metrics were read")
	}
	for what, text := range written {
		if text == "" {
			t.Errorf("%s: nothing was read", what)
		}
		// The password of the Tenants in deploy/examples.
		if holdsSecret(text) || strings.Contains(text, "change-me") {
			t.Errorf("a password or a token is in %s", what)
		}
	}
}
