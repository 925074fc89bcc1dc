//go:build lab

package flannel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/internal/child"
	"weft.dev/weft/internal/flannel/flanneltest"
	"weft.dev/weft/internal/flannel/handover"
	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/addon"
	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/image"
	"weft.dev/weft/lab/pages"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/labs"
	"weft.dev/weft/test/probe"
)

// kubectl runs kubectl and returns what it prints.
func kubectl(ctx context.Context, t *testing.T, c *lab.Cluster, args ...string) string {
	t.Helper()
	out, err := tryKubectl(ctx, c, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryKubectl(ctx context.Context, c *lab.Cluster, args ...string) (string, error) {
	return probe.Output(ctx, c.Kubectl(args...)...)
}

// original replaces the nodes' plugin by flannel's own.
func original(t *testing.T, c *lab.Cluster) {
	t.Helper()
	text, err := os.ReadFile(flanneltest.Plugin(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes() {
		path := n.Root("/opt/cni/bin/flannel")
		if err := errors.Join(os.Remove(path), os.WriteFile(path, text, 0o755)); err != nil { //nolint:gosec // an executable
			t.Fatal(err)
		}
	}
}

// flanneld runs the original flanneld on every node until the returned function is called.
func flanneld(ctx context.Context, t *testing.T, c *lab.Cluster) (stop func()) {
	t.Helper()
	program := flanneltest.Flanneld(t)
	conf := filepath.Join(t.TempDir(), "net-conf.json")
	if err := os.WriteFile(conf, []byte(`{"Network":"10.244.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}`), 0o644); err != nil { //nolint:gosec // no secret
		t.Fatal(err)
	}
	kubeconfig := plan.New(c.Config).Path("kubeconfig", controlplane.Weft)
	var running []*child.Process
	stop = func() {
		for _, cmd := range running {
			cmd.Signal(syscall.SIGTERM)
			<-cmd.Done()
		}
		running = nil
	}
	t.Cleanup(func() { stop() })
	for _, n := range c.Nodes() {
		argv := n.Enter(program, "--kube-subnet-mgr", "--kubeconfig-file="+kubeconfig, "--net-config-path="+conf, "--iface=eth0", "--ip-masq", "--healthz-port=8082")
		cmd := exec.Command(argv[0], argv[1:]...) //nolint:gosec // the test's own command
		cmd.Env = append(os.Environ(), "NODE_NAME="+n.Name)
		var log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &log, &log
		started, err := child.Start(cmd, "")
		if err != nil {
			t.Fatal(err)
		}
		running = append(running, started)
		testwait.Eventually(t, "flanneld of "+n.Name+" is ready", func() error {
			_, err := probe.Output(ctx, n.Enter("curl", "-sf", "http://127.0.0.1:8082/readyz")...)
			return err
		})
	}
	return stop
}

// stream is a flow of ICMP echoes between two pods, 1,000 a second.
type stream struct {
	name string
	ping *child.Process
	out  *bytes.Buffer
}

// podsOf returns the pods of flannel's plugin on a node, by name.
func podsOf(t *testing.T, n lab.Node) map[string]handover.Pod {
	t.Helper()
	pods, err := handover.Read(n.Root(handover.ResultsDir), "cbr0")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]handover.Pod{}
	for _, pod := range pods {
		out[pod.Namespace+"/"+pod.Name] = pod
	}
	return out
}

// startStream starts a flow from a pod to an address.
func startStream(t *testing.T, n lab.Node, from handover.Pod, to netip.Addr) *stream {
	t.Helper()
	s := &stream{name: from.Name + " to " + to.String(), out: &bytes.Buffer{}}
	netns := n.Root(strings.TrimPrefix(from.Netns, "/var"))
	cmd := exec.Command("nsenter", "--net="+netns, "ping", "-n", "-q", "-i", "0.001", to.String()) //nolint:gosec // the test's own command
	cmd.Stdout, cmd.Stderr = s.out, s.out
	var err error
	if s.ping, err = child.Start(cmd, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *stream) stop() (sent, received int) {
	s.ping.Signal(syscall.SIGINT)
	<-s.ping.Done()
	for line := range strings.Lines(s.out.String()) {
		if _, err := fmt.Sscanf(line, "%d packets transmitted, %d received", &sent, &received); err == nil {
			break
		}
	}
	return sent, received
}

// runStreams runs a flow between each pair of pods while something happens, and returns how many packets were lost. The last of each flow
// may be on its way when it ends.
func runStreams(t *testing.T, c *lab.Cluster, pairs [][2]handover.Pod, nodes map[string]lab.Node, during func()) (lost int) {
	t.Helper()
	var streams []*stream
	for _, pair := range pairs {
		streams = append(streams, startStream(t, nodes[pair[0].Namespace+"/"+pair[0].Name], pair[0], pair[1].Addresses[0].Addr()))
	}
	during()
	for _, s := range streams {
		sent, received := s.stop()
		t.Logf("%s: %d packets, %d answered", s.name, sent, received)
		if sent < 10 {
			t.Errorf("%s: only %d packets were sent:\n%s", s.name, sent, s.out)
		}
		lost += max(0, sent-received-1)
	}
	return lost
}

// reservation is host-local's file of an address on a node.
func reservation(n lab.Node, addr netip.Addr) string {
	return n.Root(filepath.Join("/var/lib/cni/networks/cbr0", addr.String()))
}

// takeover hands the nodes from Weft's daemon to flanneld, from that to the agent, and back, while pods that flannel's own plugin, bridge and
// host-local attached exchange packets. None is lost, and the pods keep their addresses. The agent is installed, and the nodes are given back,
// by the commands of docs/flannel.md.
func takeover(ctx context.Context, t *testing.T, c *lab.Cluster, page func(ctx context.Context, words string)) {
	pods, nodes := map[string]handover.Pod{}, map[string]lab.Node{}
	var everywhere []handover.Pod
	for _, n := range c.Nodes() {
		for name, pod := range podsOf(t, n) {
			pods[name], nodes[name] = pod, n
			if strings.HasPrefix(name, "quickstart/everywhere") {
				everywhere = append(everywhere, pod)
			}
		}
	}
	if len(everywhere) != 2 {
		t.Fatalf("%d pods of the DaemonSet everywhere, want 2", len(everywhere))
	}
	var same [2]handover.Pod // two pods of one node
	for name, pod := range pods {
		if strings.HasPrefix(name, "quickstart/somewhere") {
			same[0] = pod
			for _, other := range everywhere {
				if nodes["quickstart/"+other.Name].Name == nodes[name].Name {
					same[1] = other
				}
			}
		}
	}
	pairs := [][2]handover.Pod{{everywhere[0], everywhere[1]}, {everywhere[1], everywhere[0]}, same}
	if lost := runStreams(t, c, pairs, nodes, func() { <-time.After(2 * time.Second) }); lost > 0 {
		t.Fatalf("the machine is too busy: %d packets were lost without a change", lost)
	}
	lost := runStreams(t, c, pairs, nodes, func() {
		kubectl(ctx, t, c, "-n", "kube-flannel", "delete", "daemonset", "kube-flannel-ds", "--wait=true", "--cascade=foreground")
		stop := flanneld(ctx, t, c)
		stop()
		page(ctx, "helm install weft")
		kubectl(ctx, t, c, "-n", "weft", "rollout", "status", "daemonset/weft-agent", "--timeout=180s")
		for name := range pods {
			testwait.Eventually(t, "a record of "+name, func() error { return recorded(nodes[name], name) })
		}
	})
	if lost > 0 {
		t.Errorf("%d packets were lost when the agent took the nodes over", lost)
	}
	for name, pod := range pods {
		for _, address := range pod.Addresses {
			if _, err := os.Stat(reservation(nodes[name], address.Addr())); err != nil {
				t.Errorf("pod %s: host-local's file: %v", name, err)
			}
		}
	}
	inStep(ctx, t, c)
	reachesAsItMust(ctx, t, c, "the matrix of pods that were taken over")
	var stop func()
	lost = runStreams(t, c, pairs, nodes, func() {
		page(ctx, "delete daemonset weft-agent")
		page(ctx, "weft cleanup --give-back")
		original(t, c)
		stop = flanneld(ctx, t, c)
	})
	if lost > 0 {
		t.Errorf("%d packets were lost when the nodes were given back", lost)
	}
	for _, n := range c.Nodes() {
		if out, err := probe.Output(ctx, n.Enter("nft", "list", "tables")...); err != nil || strings.Contains(out, "weft") {
			t.Errorf("tables of %s after it was given back: %s %v", n.Name, out, err)
		}
	}
	// flannel's plugin ends and attaches pods again.
	kubectl(ctx, t, c, "-n", "quickstart", "delete", "pod", everywhere[0].Name, "--wait=true")
	gone := reservation(nodes["quickstart/"+everywhere[0].Name], everywhere[0].Addresses[0].Addr())
	testwait.Eventually(t, "flannel's plugin frees the address", func() error {
		if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %w", gone, err)
		}
		return nil
	})
	kubectl(ctx, t, c, "-n", "quickstart", "rollout", "status", "daemonset/everywhere", "--timeout=300s")
	stop()
}

// wayBack runs the rest of the commands of docs/flannel.md on nodes that were given back: flannel's manifest again, and from it to the agent.
func wayBack(ctx context.Context, t *testing.T, c *lab.Cluster, page func(ctx context.Context, words string)) {
	t.Helper()
	page(ctx, "kube-flannel.yml")
	kubectl(ctx, t, c, "-n", "kube-flannel", "set", "image", "daemonset/kube-flannel-ds", "*="+image.Ref)
	kubectl(ctx, t, c, "-n", "kube-flannel", "rollout", "status", "daemonset/kube-flannel-ds", "--timeout=300s")
	page(ctx, "delete daemonset kube-flannel-ds")
	kubectl(ctx, t, c, "-n", "weft", "rollout", "status", "daemonset/weft-agent", "--timeout=180s")
	inStep(ctx, t, c)
	hostPorts(ctx, t, c, page)
}

// hostPorts: portmap, which is in flannel's manifest, serves host ports on the agent's nodes as well: those of pods that were taken over, and
// those of the pods that replace them.
func hostPorts(ctx context.Context, t *testing.T, c *lab.Cluster, page func(ctx context.Context, words string)) {
	t.Helper()
	reach := func(when string) {
		t.Helper()
		pods := strings.Fields(kubectl(ctx, t, c, "-n", "quickstart", "get", "pods", "-l", "app=everywhere", "-o",
			"jsonpath={range .items[*]}{.metadata.name} {.status.hostIP} {end}"))
		if len(pods) != 4 {
			t.Fatalf("%s: pods and their nodes: %q", when, pods)
		}
		for _, pair := range [][3]string{{pods[0], pods[2], pods[3]}, {pods[2], pods[0], pods[1]}} {
			from, to, node := pair[0], pair[1], pair[2]
			testwait.Eventually(t, when+": "+from+" reaches the host port of "+to, func() error {
				got, err := tryKubectl(ctx, c, "-n", "quickstart", "exec", from, "--", "wget", "-T", "2", "-q", "-O", "-", "http://"+node+":8090/hostname")
				if err == nil && got != to {
					err = fmt.Errorf("%q answers", got)
				}
				return err
			})
		}
	}
	reach("taken over")
	kubectl(ctx, t, c, "-n", "quickstart", "delete", "pods", "-l", "app=everywhere", "--wait=true")
	kubectl(ctx, t, c, "-n", "quickstart", "rollout", "status", "daemonset/everywhere", "--timeout=300s")
	reach("attached by the agent")
	page(ctx, "nft list map inet weft-flannel hostports")
}

// inStep holds the operator's commands to what they say of a flannel network: `weft status` finds no problem, and `weft diff` no difference.
func inStep(ctx context.Context, t *testing.T, c *lab.Cluster) {
	t.Helper()
	weft := filepath.Join(weftBin, "weft")
	testwait.Eventually(t, "weft status", func() error {
		out, err := probe.Output(ctx, "env", "NO_PROXY=*", weft, "--kubeconfig="+c.Kubeconfig, "status")
		if err == nil && !strings.Contains(out, "nodes with a lease: 2 of 2, with Weft's agent: 2") {
			err = errors.New(out)
		}
		return err
	})
	for _, n := range c.Nodes() {
		testwait.Eventually(t, "weft diff on "+n.Name, func() error {
			out, err := probe.Output(ctx, n.Enter(weft, "diff")...)
			if err == nil && !strings.Contains(out, "nftables weft-flannel-pods") {
				err = errors.New(out)
			}
			return err
		})
	}
}

// recorded returns an error unless the agent has a record of a pod, namespace/name.
func recorded(n lab.Node, name string) error {
	files, err := filepath.Glob(n.Root("/var/lib/weft/attachments/*.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), `"`+name[strings.Index(name, "/")+1:]+`"`) {
			return nil
		}
	}
	return fmt.Errorf("none among %d", len(files))
}

// TestManifest: flannel's own manifest works with Weft's image in it, beside flannel's own plugin. Pods on two nodes reach each other, a
// Service and the outside. The agent then takes the nodes over, and gives them back. The steps are the commands of docs/flannel.md.
func TestManifest(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit+limit/2)
	defer cancel()
	c := labs.Up(ctx, t, lab.Config{WeftBin: weftBin, Name: "flanman", Nodes: 2, Runtime: plan.RuntimeKubelet, Network: plan.NetworkFlannel, NoWeft: true})
	labs.Load(t, c, weftBin, "")
	kubectl(ctx, t, c, "-n", "kube-system", "delete", "configmap", "kube-flannel-cfg") // the manifest brings its own
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	page := pages.Begin(t, pages.Runner{
		Root: root, Bin: c.Config.WeftBin, Lab: c.Name(), Names: strings.NewReplacer("kube-flannel.yml", "test/flannel/testdata/kube-flannel.yaml"),
	}, "flannel")
	kubectl(ctx, t, c, "apply", "-f", "testdata/kube-flannel.yaml")
	page(ctx, "set image")
	if _, err := tryKubectl(ctx, c, "-n", "kube-flannel", "rollout", "status", "daemonset/kube-flannel-ds", "--timeout=300s"); err != nil {
		pods, _ := tryKubectl(ctx, c, "-n", "kube-flannel", "describe", "pods")
		logs, _ := tryKubectl(ctx, c, "-n", "kube-flannel", "logs", "--all-containers", "--prefix", "daemonset/kube-flannel-ds")
		t.Fatalf("%v\n%s\n%s", err, pods, logs)
	}
	kubectl(ctx, t, c, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=300s")
	for _, node := range []string{"n1", "n2"} {
		if reason := kubectl(ctx, t, c, "get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="NetworkUnavailable")].reason}`); reason != "FlannelIsUp" {
			t.Errorf("condition NetworkUnavailable of %s has reason %q", node, reason)
		}
	}
	original(t, c)
	dns := filepath.Join(t.TempDir(), "coredns.yaml")
	if err := os.WriteFile(dns, []byte(addon.CoreDNS), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(ctx, t, c, "apply", "-f", dns, "-f", "../../deploy/examples/quickstart.yaml")
	kubectl(ctx, t, c, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=300s")
	for _, set := range []string{"quickstart-shop/daemonset/api", "quickstart-shop/deployment/till", "quickstart-street/daemonset/passer"} {
		namespace, name, _ := strings.Cut(set, "/")
		kubectl(ctx, t, c, "-n", namespace, "rollout", "status", name, "--timeout=300s")
	}
	kubectl(ctx, t, c, "-n", "quickstart", "rollout", "status", "daemonset/everywhere", "--timeout=300s")
	kubectl(ctx, t, c, "-n", "quickstart", "rollout", "status", "deployment/somewhere", "--timeout=300s")
	pods := strings.Fields(kubectl(ctx, t, c, "-n", "quickstart", "get", "pods", "-l", "app=everywhere", "-o", "jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {end}"))
	if len(pods) != 4 {
		t.Fatalf("pods %q", pods)
	}
	service := kubectl(ctx, t, c, "-n", "quickstart", "get", "service", "somewhere", "-o", "jsonpath={.spec.clusterIP}")
	asks := func(pod, url, want string) {
		t.Helper()
		testwait.Eventually(t, pod+" gets "+url, func() error {
			got, err := tryKubectl(ctx, c, "-n", "quickstart", "exec", pod, "--", "wget", "-T", "5", "-q", "-O", "-", url)
			if err == nil && !strings.HasPrefix(got, want) {
				err = fmt.Errorf("answer %q, want %q", got, want)
			}
			return err
		})
	}
	for i, pod := range []string{pods[0], pods[2]} {
		asks(pod, "http://"+pods[3-2*i]+":8080/clientip", pods[1+2*i]+":")
		asks(pod, "http://"+service+"/hostname", "somewhere-")
		asks(pod, c.Outside.URL, "172.31.0.")
	}
	takeover(ctx, t, c, page)
	wayBack(ctx, t, c, page)
	if err := c.Crashed(ctx); err != nil {
		t.Error(err)
	}
}
