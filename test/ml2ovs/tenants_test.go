//go:build lab

package ml2ovs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/neutron/openstack"
	"weft.dev/weft/lab/neutronmatrix"
	"weft.dev/weft/lab/pages"
	stack "weft.dev/weft/lab/stack/openstack"
	"weft.dev/weft/test/labs"
	"weft.dev/weft/test/neutron/cloudfault"
	"weft.dev/weft/test/probe"
)

const (
	testTimeout = 16 * time.Minute
	// deadTag is the VLAN of ports that neutron-openvswitch-agent has not bound.
	deadTag = 4095
	// settles is the time limit for the end of what the objects of a test made.
	settles = 5 * time.Minute
)

// tenants are the namespaces of deploy/examples/neutron.
func tenants() []string { return []string{"blue", "red"} }

// Two tenants of one range, with neutron-openvswitch-agent in place of OVN: within a tenant on a node and across nodes, its Service, cluster
// DNS, the router, kubelet's probes; nothing between tenants, to the overlay, to nodes, or with a spoofed source. A pod's port is on br-int
// with the VLAN that Neutron's agent gave it, also after another pod had it. After the objects are deleted nothing of them is left, on the
// nodes and in OpenStack.
func TestTenants(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	admin, kube := clients(ctx, t)
	held, err := cloudfault.Take(ctx, admin)
	if err != nil {
		t.Fatal(err)
	}
	examples := filepath.Join(cluster.Config.DeployDir, "examples", "neutron")

	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// The lab is up: `up` with the same settings finds that, and starts nothing.
	pages.Begin(t, pages.Runner{
		Root: root, Bin: cluster.Config.WeftBin, Lab: cluster.Name(), Names: strings.NewReplacer("weft-lab ", "weft-lab --name "+cluster.Name()+" "),
	}, "ml2ovs")(ctx, "openvswitch")

	kubectl(ctx, t, "apply", "-f", filepath.Join(examples, "tenants.yaml"))
	kubectl(ctx, t, "wait", "--for=condition=Ready", "tenants.stackube.kubernetes.io/blue", "tenants.stackube.kubernetes.io/red", "--timeout=180s")
	before := census(ctx, t)
	kubectl(ctx, t, "apply", "-f", filepath.Join(examples, "pods.yaml"))
	ready(ctx, t)

	matrix(ctx, t)
	servedPorts(ctx, t, kube)
	again(ctx, t, kube, filepath.Join(examples, "pods.yaml"))
	matrix(ctx, t)

	kubectl(ctx, t, "delete", "--wait", "--timeout=360s", "-f", filepath.Join(examples, "pods.yaml"))
	kubectl(ctx, t, "delete", "--wait", "--timeout=360s", "-f", filepath.Join(examples, "tenants.yaml"))
	nothingLeft(ctx, t, kube, before)
	_, err = probe.Await(ctx, settles, "OpenStack's inventory", func(ctx context.Context) error {
		left, err := cloudfault.Take(ctx, admin)
		if err != nil {
			return err
		}
		if more := held.More(left); len(more) > 0 {
			return fmt.Errorf("OpenStack still has %v", more)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := cluster.Crashed(ctx); err != nil {
		t.Error(err)
	}
}

func clients(ctx context.Context, t *testing.T) (*openstack.Client, client.Client) {
	t.Helper()
	admin, err := openstack.New(ctx, conf.Global{
		AuthURL: cluster.OpenStack.AuthURL(), Username: stack.Admin, Password: stack.AdminPassword, TenantName: stack.Admin, Region: stack.Region,
	}, openstack.Options{Transport: cluster.OpenStack.Transport()})
	if err != nil {
		t.Fatal(err)
	}
	config, err := cluster.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	kube, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := weftv1.AddToScheme(kube.Scheme()); err != nil {
		t.Fatal(err)
	}
	return admin, kube
}

func kubectl(ctx context.Context, t *testing.T, args ...string) {
	t.Helper()
	_, err := probe.Run(ctx, cluster.Kubectl(args...))
	if err != nil {
		t.Fatal(err)
	}
}

// ready waits until all pods of the examples are.
func ready(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, namespace := range append(tenants(), "default") {
		kubectl(ctx, t, "-n", namespace, "wait", "--for=condition=Ready", "pods", "--all", "--timeout=240s")
	}
}

// matrix measures what reaches what.
func matrix(ctx context.Context, t *testing.T) {
	t.Helper()
	report, err := neutronmatrix.Run(ctx, cluster)
	if err != nil {
		t.Fatal(err)
	}
	labs.AsItMust(t, report)
}

// served returns the NeutronPorts of the tenants' pods, by namespace/name.
func served(ctx context.Context, kube client.Client) (map[string]weftv1.NeutronPort, error) {
	var all weftv1.NeutronPortList
	if err := kube.List(ctx, &all); err != nil {
		return nil, err
	}
	of := map[string]weftv1.NeutronPort{}
	for _, p := range all.Items {
		if p.Status.Pod != nil {
			of[p.Status.Pod.Namespace+"/"+p.Status.Pod.Name] = p
		}
	}
	return of, nil
}

// servedPorts looks at the ports of all pods: bound by Neutron's agent.
func servedPorts(ctx context.Context, t *testing.T, kube client.Client) {
	t.Helper()
	of, err := served(ctx, kube)
	if err != nil {
		t.Fatal(err)
	}
	if want := 3 * len(tenants()); len(of) != want {
		t.Errorf("%d pods have ports, want %d: %v", len(of), want, of)
	}
	for pod, p := range of {
		if _, err := boundRow(ctx, &p); err != nil {
			t.Errorf("pod %s: %v", pod, err)
		}
	}
}

var errNotBound = errors.New("not bound by Neutron's agent")

// boundRow returns the UUID of a bound port's row on its node's br-int.
func boundRow(ctx context.Context, p *weftv1.NeutronPort) (string, error) {
	n, err := cluster.NodeNamed(p.Spec.Node)
	if err != nil {
		return "", err
	}
	out, err := probe.Run(ctx, n.Enter("ovs-vsctl", "--bare", "--columns=_uuid,tag", "find", "Port", "name="+host.IntegrationPort(p.Name)))
	if err != nil {
		return "", err
	}
	words := strings.Fields(out)
	if len(words) != 2 {
		return "", fmt.Errorf("port %s of %s has row %q: %w", p.Name, n.Name, out, errNotBound)
	}
	if tag, err := strconv.Atoi(words[1]); err != nil || tag == deadTag {
		return "", fmt.Errorf("port %s of %s has VLAN %q: %w", p.Name, n.Name, words[1], errNotBound)
	}
	return words[0], nil
}

// again deletes a tenant's pod. Its port gets a new row on br-int, and no other pod gets the port before Neutron's agent has bound that row.
// Then the examples are applied again, for the next matrix.
func again(ctx context.Context, t *testing.T, kube client.Client, manifest string) {
	t.Helper()
	const pod = "blue/near"
	of, err := served(ctx, kube)
	if err != nil {
		t.Fatal(err)
	}
	port := of[pod]
	former, err := boundRow(ctx, &port)
	if err != nil {
		t.Fatal(err)
	}
	kubectl(ctx, t, "-n", "blue", "delete", "pod", "near", "--wait", "--timeout=60s")
	_, err = probe.Await(ctx, settles, "the port of a deleted pod", func(ctx context.Context) error {
		row, err := boundRow(ctx, &port)
		if err == nil && row == former {
			err = fmt.Errorf("port %s still has the row that the pod's packets used", port.Name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	kubectl(ctx, t, "apply", "-f", manifest)
	ready(ctx, t)
}

// counts has a node's resources, by kind, each as lines of text.
type counts map[string][]string

// census lists what pods on Neutron's networks have on each node. Nodes have br-n from the first Network on; its flows are programmed last.
func census(ctx context.Context, t *testing.T) (all map[string]counts) {
	t.Helper()
	_, err := probe.Await(ctx, settles, "br-n on each node", func(ctx context.Context) (err error) {
		all, err = takeCensus(ctx)
		for node, c := range all {
			if len(c[flowsOfBridge]) < 2 {
				err = errors.Join(err, fmt.Errorf("%s has the flows %v", node, c[flowsOfBridge]))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const (
	flowsOfBridge = "flows of br-n"
	ruleset       = "nftables"
)

// withoutKubeProxy returns the lines of a ruleset less those of kube-proxy's tables: it may leave the chains of a deleted Service there until
// its next full synchronization, an hour later.
func withoutKubeProxy(lines []string) []string {
	inside := false
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		if words := strings.Fields(line); len(words) > 2 && words[0] == "table" {
			inside = words[2] == "kube-proxy"
		}
		return inside
	})
}

func takeCensus(ctx context.Context) (map[string]counts, error) {
	all := map[string]counts{}
	for _, n := range cluster.Nodes() {
		c := counts{}
		for name, command := range map[string]string{
			"links": "ip -br link show", "routes": "ip route show", "rules": "ip rule show",
			flowsOfBridge: "ovs-ofctl -O OpenFlow15 --no-stats dump-flows br-n", ruleset: "nft -s list ruleset",
			"ports": "ovs-vsctl --bare --columns=name,external_ids list Interface",
		} {
			out, err := probe.Run(ctx, n.Enter(strings.Fields(command)...))
			if err != nil {
				return nil, err
			}
			c[name] = strings.Split(strings.TrimSpace(out), "\n")
		}
		c[ruleset] = withoutKubeProxy(c[ruleset])
		records, err := filepath.Glob(n.Root("/var/lib/weft/attachments/*.json"))
		if err != nil {
			return nil, err
		}
		c["records"] = records
		all[n.Name] = c
	}
	return all, nil
}

// nothingLeft waits until the nodes have as many resources as before the tenants, and there are no NeutronPorts.
func nothingLeft(ctx context.Context, t *testing.T, kube client.Client, before map[string]counts) {
	t.Helper()
	_, err := probe.Await(ctx, settles, "what the tenants' pods left", func(ctx context.Context) error {
		var ports weftv1.NeutronPortList
		if err := kube.List(ctx, &ports); err != nil {
			return err
		}
		var errs []error
		if n := len(ports.Items); n > 0 {
			errs = append(errs, fmt.Errorf("%d NeutronPorts", n))
		}
		now, err := takeCensus(ctx)
		if err != nil {
			return err
		}
		for node, c := range now {
			for kind, lines := range c {
				if have, want := len(lines), len(before[node][kind]); have > want {
					errs = append(errs, fmt.Errorf("%s has %d %s, %d before: %v", node, have, kind, want, beyond(before[node][kind], lines)))
				}
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Error(err)
	}
}

// beyond returns the lines that are not among those before.
func beyond(before, now []string) []string {
	return slices.DeleteFunc(slices.Clone(now), func(line string) bool { return slices.Contains(before, line) })
}
