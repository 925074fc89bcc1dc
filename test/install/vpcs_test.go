//go:build lab

package install

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"weft.dev/weft/deploy"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/labs"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// VPCs are turned on in a cluster that has pods on the overlay, off, and on again. The overlay loses no packet, a pod of a VPC starts each
// time, the objects of the VPC can be deleted, and after VPCs are off, nothing of them is left on the nodes.
func TestVPCsOffAndOn(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	here := root(t)
	c := up(t, lab.Config{Nodes: 2, NoWeft: true, WeftBin: current(t), VPC: true})
	labs.Load(t, c.Cluster, c.Config.WeftBin, thisImage)
	c.kubectl("apply", "--server-side", "-f", filepath.Join(here, "deploy/third-party"))
	c.apply(filepath.Join(here, "deploy/weft.yaml"), thisImage)
	c.rolledOut()
	without := map[string]trace{}
	pods := map[string]string{"asks": "n1", "near": "n1", "far": "n2"}
	for _, name := range []string{"asks", "near", "far"} {
		c.start(name, pods[name])
	}
	for _, n := range c.Nodes() {
		without[n.Name] = traceOf(ctx, t, n)
	}
	targets := c.echoes(ctx, map[string]string{"near": "n1", "far": "n2"})
	c.unharmed("control", targets, func() {
		select {
		case <-time.After(control()): // the time that traffic runs
		case <-ctx.Done():
		}
	})
	c.unharmed("VPCs on", targets, func() { c.withVPCs(here) })
	c.unharmed("a pod in a VPC", targets, func() { c.side(false) })
	c.unharmed("VPCs off", targets, func() { c.withoutVPCs(ctx, here) })
	for _, n := range c.Nodes() {
		if err := traceOf(ctx, t, n).differs(without[n.Name]); err != nil {
			t.Errorf("%s is not as it was before VPCs were on:\n%v", n.Name, err)
		}
	}
	c.unharmed("VPCs on again", targets, func() { c.withVPCs(here) })
	c.unharmed("a pod in the VPC, and its deletion", targets, func() { c.side(true) })
}

// echoes answers at pods, by their nodes, and returns where.
func (c *cluster) echoes(ctx context.Context, pods map[string]string) map[string]netip.AddrPort {
	c.t.Helper()
	targets := map[string]netip.AddrPort{}
	for name, node := range pods {
		address := netip.AddrPortFrom(netip.MustParseAddr(c.address(name)), echoPort)
		echo, err := traffic.NewEcho(c.netns(name, node), address)
		if err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { _ = echo.Close() })
		targets[name] = address
		waiting, cancel := context.WithTimeout(ctx, probe.Patience)
		_, err = traffic.Ping(waiting, c.netns("asks", "n1"), address)
		cancel()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	return targets
}

// unharmed runs act while the pod "asks" sends to all targets; a lost packet is an error.
func (c *cluster) unharmed(what string, targets map[string]netip.AddrPort, act func()) {
	c.t.Helper()
	began := time.Now()
	sent, lost := c.during(targets, act)
	c.t.Logf("%s: %d packets in %s, %d lost", what, sent, time.Since(began).Round(100*time.Millisecond), lost)
	if lost > 0 {
		c.t.Errorf("%s: %d of %d packets of the overlay lost", what, lost, sent)
	}
}

func (c *cluster) withVPCs(here string) {
	c.t.Helper()
	c.apply(filepath.Join(here, "deploy/weft-vpc.yaml"), thisImage)
	c.kubectl("-n", "weft", "rollout", "status", "statefulset/weft-ovn", "--timeout=180s")
	c.kubectl("-n", "weft", "rollout", "status", "daemonset/weft-ovn-controller", "--timeout=180s")
	c.rolledOut()
}

// side starts a pod in a VPC and deletes it; with deletion also the Subnet and the Vpc.
func (c *cluster) side(deletion bool) {
	c.t.Helper()
	// A namespace of its own: running pods of a bound namespace would keep addresses of the Subnet, and it could not be deleted.
	const objects = `
apiVersion: v1
kind: Namespace
metadata: {name: side}
---
apiVersion: kubeovn.io/v1
kind: Vpc
metadata: {name: side}
spec: {namespaces: [side]}
---
apiVersion: kubeovn.io/v1
kind: Subnet
metadata: {name: side-net}
spec: {vpc: side, protocol: IPv4, cidrBlock: 10.77.0.0/24, namespaces: [side]}
---
apiVersion: v1
kind: Pod
metadata: {name: inside, namespace: side, annotations: {ovn.kubernetes.io/logical_switch: side-net}}
spec:
  nodeName: n2
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: "weft.local/busybox:1", imagePullPolicy: Never, command: [sleep, infinity]}]
`
	namespace, rest, _ := strings.Cut(objects, "---")
	for _, text := range []string{namespace, rest} { // a namespace has its service account a moment later
		if _, err := c.try(text, "apply", "-f", "-"); err != nil {
			c.t.Fatal(err)
		}
		c.kubectl("-n", "side", "wait", "--for=create", "serviceaccount/default", "--timeout=60s")
	}
	c.kubectl("-n", "side", "wait", "--for=condition=Ready", "pod/inside", "--timeout=120s")
	got := c.kubectl("-n", "side", "get", "pod", "inside", "-o", "jsonpath={.status.podIP}")
	if !strings.HasPrefix(got, "10.77.0.") {
		c.t.Errorf("the pod has address %s, not one of 10.77.0.0/24", got)
	}
	c.kubectl("-n", "side", "delete", "pod", "inside", "--now", "--wait")
	if !deletion {
		return
	}
	for _, object := range []string{"subnet.kubeovn.io/side-net", "vpc.kubeovn.io/side"} {
		if _, err := c.try("", "delete", object, "--wait", "--timeout=60s"); err != nil {
			state, told := c.try("", "get", "subnets.kubeovn.io,vpcs.kubeovn.io,ips.kubeovn.io", "-o", "yaml")
			logs, logged := c.try("", "-n", "weft", "logs", "--prefix", "--tail=60", "-l", "app=weft-controller")
			c.t.Fatalf("%v\n%s %v\n%s %v", err, state, told, logs, logged)
		}
	}
}

// withoutVPCs turns VPCs off: what `helm upgrade --set vpc.enabled=false` deletes is deleted, and the nodes are cleaned as docs/vpc.md says.
func (c *cluster) withoutVPCs(ctx context.Context, here string) {
	c.t.Helper()
	c.apply(filepath.Join(here, "deploy/weft.yaml"), thisImage)
	with, without := objectsOf(c.t, filepath.Join(here, "deploy/weft-vpc.yaml")), objectsOf(c.t, filepath.Join(here, "deploy/weft.yaml"))
	for object, text := range with {
		if _, kept := without[object]; kept {
			continue
		}
		if _, err := c.try(text, "delete", "--wait", "-f", "-"); err != nil {
			c.t.Fatal(err)
		}
	}
	c.rolledOut()
	for _, n := range c.Nodes() {
		for _, argv := range [][]string{
			{"ovs-vsctl", "--if-exists", "del-br", "br-int"},
			{"nft", "delete", "table", "inet", "weft_vpc"},
			{"nft", "delete", "table", "arp", "weft_vpc"},
			{"sh", "-c", "rm -rf /var/lib/weft/ovn /var/lib/weft/ovn-*"},
		} {
			if out, err := probe.Run(ctx, n.Enter(argv...)); err != nil {
				c.t.Fatalf("%s: %v: %v %s", n.Name, argv, err, out)
			}
		}
	}
}

// objectsOf returns the objects of a manifest by kind, namespace and name.
func objectsOf(t *testing.T, manifest string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]string{}
	for _, document := range slices.Collect(strings.SplitSeq(strings.ReplaceAll(string(text), deploy.Image, thisImage), "\n---\n")) {
		var object struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Name      string `json:"name"`
				Namespace string `json:"namespace"`
			} `json:"metadata"`
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%s: %v", manifest, err)
		}
		if object.Kind != "" {
			objects[fmt.Sprintf("%s %s/%s", object.Kind, object.Metadata.Namespace, object.Metadata.Name)] = document
		}
	}
	return objects
}
