package supervisor

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"weft.dev/weft/lab/addon"
	"weft.dev/weft/lab/plan"
)

// weftNamespace is the namespace of Weft's manifest.
const weftNamespace = "weft"

// deployment installs Weft and DNS in pods.
type deployment struct {
	lab     plan.Lab
	kubectl kubectl
}

// weft installs Weft as its users do, and waits until it runs and every node is ready.
func (d deployment) weft(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	if err := d.secret(ctx); err != nil {
		return err
	}
	if _, err := d.kubectl.run(ctx, "", "apply", "-f", filepath.Join(d.lab.DeployDir, manifest(d.lab))); err != nil {
		return err
	}
	var waits [][]string
	if d.lab.NoSwitch {
		waits = [][]string{
			{"label", "nodes", "--all", "weft.dev/open-vswitch=pod"},
			{
				"-n", "weft", "wait", "--for=jsonpath={.status.numberReady}=" + strconv.Itoa(d.lab.Nodes),
				"daemonset/weft-openvswitch", "--timeout=120s",
			},
		}
	}
	waits = append(waits, vpcWaits(d.lab)...)
	waits = append(waits, [][]string{
		{"-n", "weft", "rollout", "status", "daemonset/weft-agent", "--timeout=180s"},
		{"wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s"},
		// On one node, only one replica of two can run.
		{"-n", "weft", "wait", "--for=condition=Available", "deployment/weft-controller", "--timeout=120s"},
	}...)
	for _, w := range waits {
		if _, err := d.kubectl.run(ctx, "", w...); err != nil {
			pods, _ := d.kubectl.run(ctx, "", "-n", "weft", "get", "pods", "-o", "wide")
			return fmt.Errorf("%w\n%s", err, pods)
		}
	}
	return nil
}

// secret creates the namespace of Weft's manifest with kubestack.conf, as users of OpenStack do.
func (d deployment) secret(ctx context.Context) error {
	if d.lab.OpenStack == "" {
		return nil
	}
	if _, err := d.kubectl.run(ctx, "", "create", "namespace", weftNamespace); err != nil {
		return err
	}
	_, err := d.kubectl.run(ctx, "", "-n", weftNamespace, "create", "secret", "generic", "weft-neutron", "--from-file=kubestack.conf="+kubestackConf(d.lab))
	return err
}

// manifest returns the manifest by which the lab installs Weft.
func manifest(l plan.Lab) string {
	switch {
	case l.VPC:
		return "weft-vpc.yaml"
	case l.OpenStack != "":
		return "weft-neutron.yaml"
	case l.Network.Flannel():
		return "weft-flannel.yaml"
	default:
		return "weft.yaml"
	}
}

// vpcWaits returns further arguments for kubectl wait, if OVN runs in pods.
func vpcWaits(l plan.Lab) [][]string {
	if !l.VPC {
		return nil
	}
	return [][]string{{"-n", "weft", "rollout", "status", "statefulset/weft-ovn", "--timeout=180s"}}
}

// dns starts the cluster's DNS, and waits until it answers. A kubelet repeats what failed after delays that grow up to 2 minutes.
func (d deployment) dns(ctx context.Context) error {
	if _, err := d.kubectl.run(ctx, addon.CoreDNS, "apply", "-f", "-"); err != nil {
		return err
	}
	if _, err := d.kubectl.run(ctx, "", "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=300s"); err != nil {
		pods, _ := d.kubectl.run(ctx, "", "-n", "kube-system", "get", "pods", "-o", "wide")
		events, _ := d.kubectl.run(ctx, "", "-n", "kube-system", "get", "events", "--field-selector=type=Warning")
		return fmt.Errorf("%w\n%s\n%s", err, pods, events)
	}
	return nil
}
