//go:build lab

package vpc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/labs"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// port is where echoes answer.
const port = 7000

// under is a cluster of plain processes with the objects of users, and traffic between its pods.
type under struct {
	t     *testing.T
	ctx   context.Context
	c     *lab.Cluster
	pods  map[string]*lab.Pod
	gate  *lab.Pod
	pairs []traffic.Pair
}

func (u *under) kubectl(args ...string) string {
	u.t.Helper()
	return must(u.ctx, u.t, u.c.Kubectl(args...)...)
}

// pod starts a pod in a Subnet.
func (u *under) pod(namespace, name, node, subnet, address string) *lab.Pod {
	u.t.Helper()
	annotations := map[string]string{"ovn.kubernetes.io/logical_switch": subnet}
	if address != "" {
		annotations["ovn.kubernetes.io/ip_address"] = address
	}
	return u.start(lab.PodSpec{Namespace: namespace, Name: name, Node: node, Annotations: annotations})
}

// start starts a pod; the network may not be ready for it at once.
func (u *under) start(spec lab.PodSpec) *lab.Pod {
	u.t.Helper()
	uid, err := u.c.MakeObject(u.ctx, spec)
	if err != nil {
		u.t.Fatal(err)
	}
	node, err := u.c.NodeNamed(spec.Node)
	if err != nil {
		u.t.Fatal(err)
	}
	var pod *lab.Pod
	testwait.Eventually(u.t, spec.Name+" is attached", func() error {
		var err error
		if pod, err = node.Attach(u.ctx, spec, uid); err != nil && pod != nil {
			_, undone := pod.Detach(u.ctx)
			err = fmt.Errorf("%w, %w", err, undone)
		}
		return err
	})
	return pod
}

// gateway starts the pod of the NAT gateway as its StatefulSet has it.
func (u *under) gateway() *lab.Pod {
	u.t.Helper()
	var set struct {
		Spec struct {
			Template struct {
				Metadata struct{ Labels, Annotations map[string]string }
			}
		}
	}
	testwait.Eventually(u.t, "the gateway's StatefulSet", func() error {
		text, err := probe.Output(u.ctx, u.c.Kubectl("-n", "kube-system", "get", "statefulset", "vpc-nat-gw-gw1", "-o", "json")...)
		if err != nil {
			return err
		}
		return json.Unmarshal([]byte(text), &set)
	})
	meta := set.Spec.Template.Metadata
	return u.start(lab.PodSpec{Namespace: "kube-system", Name: "vpc-nat-gw-gw1-0", Node: "n2", Labels: meta.Labels, Annotations: meta.Annotations})
}

// echo answers at a pod, or in another namespace.
func (u *under) echo(netns string) {
	u.t.Helper()
	e, err := traffic.NewEcho(netns, netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { _ = e.Close() })
}

// furnish applies the objects of users and starts their pods: in one subnet, in another one, one with a floating IP, and the gateway.
func (u *under) furnish() {
	u.t.Helper()
	for _, file := range []string{"00-namespaces", "01-nat-config", "02-external", "03-vpc", "04-subnet-pod", "05-gateway", "06-eips-snat", "07-floating-ip"} {
		u.kubectl("apply", "-f", "../../deploy/examples/vpc/"+file+".yaml")
	}
	second := filepath.Join(u.t.TempDir(), "subnet.yaml")
	if err := os.WriteFile(second, []byte(`
apiVersion: kubeovn.io/v1
kind: Subnet
metadata: {name: across}
spec: {vpc: test-vpc-1, cidrBlock: 10.0.3.0/24, namespaces: [ns1]}
`), 0o600); err != nil {
		u.t.Fatal(err)
	}
	u.kubectl("apply", "-f", second)
	u.kubectl("patch", "iptables-snat-rules", "snat01", "--type=merge", `--patch={"spec":{"internalCIDR":"10.0.1.0/24"}}`)
	u.pods = map[string]*lab.Pod{
		"one": u.pod("ns1", "one", "n1", "net1", ""), "two": u.pod("ns1", "two", "n2", "net1", ""),
		"across": u.pod("ns1", "across", "n2", "across", ""), "floating": u.pod("ns1", "floating", "n1", "net1", "10.0.1.5"),
	}
	u.gate = u.gateway()
	u.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "iptables-eips/eip2", "iptables-snat-rules/snat01", "iptables-fip-rules/fip01")
	for _, pod := range u.pods {
		u.echo(pod.Netns)
	}
	u.echo(u.c.External.Netns)
	at := func(address netip.Addr) netip.AddrPort { return netip.AddrPortFrom(address, port) }
	u.pairs = []traffic.Pair{
		{Name: "within a subnet", From: u.pods["one"].Netns, To: at(u.pods["two"].IPs[0])},
		{Name: "across subnets", From: u.pods["one"].Netns, To: at(u.pods["across"].IPs[0])},
		{Name: "through the gateway", From: u.pods["one"].Netns, To: at(u.c.External.IP)},
		{Name: "to a floating IP", From: u.c.External.Netns, To: at(netip.MustParseAddr("192.168.100.232"))},
	}
	for _, pair := range u.pairs {
		u.reaches(pair)
	}
}

func (u *under) reaches(pair traffic.Pair) {
	u.t.Helper()
	testwait.Eventually(u.t, pair.Name+" arrives", func() error {
		ctx, cancel := context.WithTimeout(u.ctx, 2*time.Second)
		defer cancel()
		_, err := traffic.Ping(ctx, pair.From, pair.To)
		return err
	})
}

// rows returns the version of every row of the northbound database, which changes with each write: but those of NB_Global, which counts, and of
// Logical_Switch, which lists the ports that come and go.
func (u *under) rows() map[string]string {
	u.t.Helper()
	socket := "unix:" + plan.New(u.c.Config).RunPath("ovn", "nb.sock")
	all := map[string]string{}
	for _, table := range []string{
		"Logical_Router", "Logical_Router_Port", "Logical_Router_Static_Route", "Logical_Router_Policy", "Logical_Switch_Port", "ACL",
	} {
		text := must(u.ctx, u.t, "ovsdb-client", "transact", socket,
			`["OVN_Northbound",{"op":"select","table":"`+table+`","where":[],"columns":["_uuid","_version"]}]`)
		var answer []struct {
			Rows []struct {
				UUID    []string `json:"_uuid"`
				Version []string `json:"_version"`
			}
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer) != 1 {
			u.t.Fatalf("rows of %s: %v: %s", table, err, text)
		}
		for _, row := range answer[0].Rows {
			all[table+" "+row.UUID[1]] = row.Version[1]
		}
	}
	return all
}

// load sends on all pairs while act runs, and returns what was lost of each.
func (u *under) load(act func()) map[string]traffic.Tally {
	u.t.Helper()
	load, err := traffic.NewLoad(u.pairs, 50)
	if err != nil {
		u.t.Fatal(err)
	}
	act()
	tallies, _ := load.Stop() // what is lost is judged by the caller
	return tallies
}

// settle has a pod come and go: whoever was restarted has then done a whole round.
func (u *under) settle(name string) {
	u.t.Helper()
	pod := u.pod("ns1", name, "n1", "net1", "10.0.1.99")
	if err := u.c.DelPod(u.ctx, pod); err != nil {
		u.t.Fatal(err)
	}
	testwait.Eventually(u.t, "the address of "+name+" is free", func() error {
		return u.noAddress("ns1/" + name)
	})
}

// noAddress returns an error while a pod, namespace/name, has an IP object.
func (u *under) noAddress(pod string) error {
	u.t.Helper()
	held := u.kubectl("get", "ips", "-o", `jsonpath={range .items[*]}{.spec.namespace}/{.spec.podName}{"\n"}{end}`)
	if slices.Contains(strings.Fields(held), pod) {
		return fmt.Errorf("%s has an address", pod)
	}
	return nil
}

// TestFailures kills every program of VPCs under traffic within a subnet, across subnets, through the gateway and to a floating IP: nothing is
// lost, and no row of the northbound database is written. Pods that may not use a Subnet get no network, and no pod reaches nodes' tunnel port.
func TestFailures(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	u := &under{t: t, ctx: ctx, c: labs.Up(ctx, t, lab.Config{WeftBin: weftBin, Name: "vpcfailures", Nodes: 2, Runtime: plan.RuntimeCNI, VPC: true})}
	u.furnish()
	// The lab is up: `up` with the same settings finds that, and starts nothing.
	page(t, u.c, "vpc-cni", "weft-lab ", "weft-lab --name "+u.c.Name()+" ", "/run/weft-lab/lab/", "/run/weft-lab/"+u.c.Name()+"/")(ctx, "ovn-nbctl")
	t.Run("refused", u.refused)
	t.Run("tunnel port", u.tunnelPort)
	control := u.load(func() { u.settle("control") })
	t.Logf("without a failure: %v", control)
	for _, program := range []string{
		"n1/weft-agent", "n2/weft-agent", "weft-controller", "ovn/ovn-northd", "ovn/ovsdb-nb", "ovn/ovsdb-sb", "n1/ovn-controller", "n2/ovn-controller",
	} {
		t.Run(strings.ReplaceAll(program, "/", " "), func(t *testing.T) {
			u := &under{t: t, ctx: ctx, c: u.c, pods: u.pods, pairs: u.pairs}
			before := u.rows()
			lost := u.load(func() {
				if err := probe.Kill(ctx, u.c, program, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				u.settle("probe")
			})
			t.Logf("%v", lost)
			for name, tally := range lost {
				// ovn-controller installs its flows anew; all others are not in the packets' way.
				if tally.Lost > control[name].Lost && !strings.HasSuffix(program, "ovn-controller") {
					t.Errorf("%s: %v", name, tally)
				}
			}
			for _, pair := range u.pairs {
				u.reaches(pair)
			}
			testwait.Eventually(t, "the rows are as they were", func() error {
				after := u.rows()
				for row, version := range before {
					// A server that starts gives all rows new versions.
					if _, there := after[row]; !there || after[row] != version && program != "ovn/ovsdb-nb" {
						return fmt.Errorf("%s was of version %s, is of %q", row, version, after[row])
					}
				}
				if len(after) != len(before) {
					return fmt.Errorf("%d rows, were %d", len(after), len(before))
				}
				return nil
			})
		})
	}
	t.Run("gateway replaced", u.replaced)
}

// refused starts pods that are bound to what they may not use: they get no network, and the reason names what to do.
func (u *under) refused(t *testing.T) {
	for name, want := range map[string]string{"net1": "may not use Subnet net1", "none": `Subnet "none" does not exist`} {
		spec := lab.PodSpec{Namespace: "intruder", Name: "bound-to-" + name, Node: "n1", Annotations: map[string]string{"ovn.kubernetes.io/logical_switch": name}}
		pod, err := u.c.AddPod(u.ctx, spec)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a pod bound to %s: %v, want %q", name, err, want)
		}
		if pod == nil {
			continue
		}
		if out, err := probe.Output(u.ctx, pod.Enter("ip", "-o", "link")...); err == nil && strings.Contains(out, "eth0") {
			t.Errorf("a refused pod has an interface: %s", out)
		}
		if err := u.c.DelPod(u.ctx, pod); err != nil {
			t.Error(err)
		}
	}
}

// tunnelPort sends from a pod of the cluster's own network to the nodes' Geneve port, and to the port beside it: only the latter arrives.
func (u *under) tunnelPort(t *testing.T) {
	const geneve, beside = 6081, 6083
	pod := u.start(lab.PodSpec{Namespace: "default", Name: "overlay", Node: "n1"})
	defer func() {
		if err := u.c.DelPod(u.ctx, pod); err != nil {
			t.Error(err)
		}
	}()
	for _, node := range u.c.Nodes() {
		echoes := map[uint16]*traffic.Echo{}
		for _, to := range []uint16{geneve, beside} {
			echo, err := traffic.NewEcho(node.Netns, netip.AddrPortFrom(netip.IPv4Unspecified(), to))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = echo.Close() }()
			echoes[to] = echo
		}
		conn, err := traffic.ListenUDP(pod.Netns, netip.AddrPort{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		testwait.Eventually(t, "UDP beside the tunnel port of "+node.Name, func() error {
			for _, to := range []uint16{geneve, beside} {
				if _, err := conn.WriteToUDPAddrPort([]byte("weft"), netip.AddrPortFrom(node.IP, to)); err != nil {
					return err
				}
			}
			if len(echoes[beside].Sources()) == 0 {
				return fmt.Errorf("nothing arrives at %s", node.IP)
			}
			return nil
		})
		if from := echoes[geneve].Sources(); len(from) > 0 {
			t.Errorf("a pod reaches UDP %d of %s: %v", geneve, node.Name, from)
		}
	}
}

// replaced deletes the gateway's pod and starts another one: with its first packet it is complete, and what is counted under the old one's
// address is the new one's.
func (u *under) replaced(t *testing.T) {
	u = &under{t: t, ctx: u.ctx, c: u.c, pods: u.pods, gate: u.gate, pairs: u.pairs}
	if err := u.c.DelPod(u.ctx, u.gate); err != nil {
		t.Fatal(err)
	}
	testwait.Eventually(t, "the former gateway's address is free", func() error {
		return u.noAddress("kube-system/vpc-nat-gw-gw1-0")
	})
	u.gate = u.gateway()
	for _, pair := range u.pairs {
		u.reaches(pair)
	}
}
