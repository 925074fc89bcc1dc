//go:build lab

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// Ports of the nodes that nothing else in a lab uses.
const (
	hostPort     = 18080
	hostPortAt   = 18081
	hostPortEcho = 18082
)

// published are host ports as a runtime passes them; at is the only address of one of them.
func published(at netip.Addr) map[string]any {
	type mapping struct {
		HostPort      int    `json:"hostPort"`
		ContainerPort int    `json:"containerPort"`
		Protocol      string `json:"protocol"`
		HostIP        string `json:"hostIP,omitempty"`
	}
	return map[string]any{"portMappings": []mapping{
		{hostPort, sourcePort, "tcp", ""},
		{hostPort, sourcePort, "udp", ""},
		{hostPortAt, sourcePort, "tcp", at.String()},
		{hostPortAt, sourcePort, "udp", at.String()},
		{hostPortEcho, echoPort, "udp", ""},
	}}
}

// asker is a client and the expected answer: the server's name and the source address that it sees.
type asker struct {
	client string
	from   string
	to     netip.AddrPort
	name   string
	source netip.Addr
}

// asked runs all clients, by both protocols.
func asked(t *testing.T, askers ...asker) {
	t.Helper()
	for _, a := range askers {
		for _, network := range []string{"tcp", "udp"} {
			answer, err := traffic.Ask(t.Context(), a.from, network, a.to)
			if err != nil || answer.Name != a.name || answer.Source != a.source {
				t.Errorf("%s to %s %s: answer %v, %v; want an answer of %s with source %s", a.client, network, a.to, answer, err, a.name, a.source)
			}
		}
	}
}

// A host port leads to its pod, from every client and address, and nothing else does.
func TestHostPorts(t *testing.T) {
	c := cluster(t)
	n1, n2, outside := c.Node(1), c.Node(2), c.Outside
	pods := addPods(t, c, [2]string{"n1", "hp-near"}, [2]string{"n2", "hp-far"})
	near, far := pods[0], pods[1]
	before := settledState(t, n1)
	early, err := traffic.Dial(t.Context(), outside.Netns, "udp", port(n1.IP, hostPort))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = early.Close() }()
	if answer, err := early.Ask(); err == nil {
		t.Fatalf("an answer without a pod: %s", answer)
	}

	spec := lab.PodSpec{Node: "n1", Namespace: "default", Name: "hp-web", NoObject: true, Capabilities: published(n1.IP)}
	web := addPodAs(t, c, spec)
	startSourceServer(t, web.Netns, "web", sourcePort)
	gw := gateway(web.IPs[0])
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	asked(t,
		asker{"outside", outside.Netns, port(n1.IP, hostPort), "web", outside.IP},
		asker{"the other node", n2.Netns, port(n1.IP, hostPort), "web", n2.IP},
		asker{"the node", n1.Netns, port(n1.IP, hostPort), "web", gw},
		asker{"the node, by loopback", n1.Netns, port(loopback, hostPort), "web", gw},
		asker{"the node, by the gateway", n1.Netns, port(gw, hostPort), "web", gw},
		asker{"near", near.Netns, port(n1.IP, hostPort), "web", gw},
		asker{"near, by the gateway", near.Netns, port(gw, hostPort), "web", gw},
		asker{"far", far.Netns, port(n1.IP, hostPort), "web", n2.IP},
		asker{"far, by the gateway", far.Netns, port(gw, hostPort), "web", gw},
		asker{"the other node, by the gateway", n2.Netns, port(gw, hostPort), "web", gw},
		asker{"itself", web.Netns, port(n1.IP, hostPort), "web", gw},
		asker{"outside, at the address", outside.Netns, port(n1.IP, hostPortAt), "web", outside.IP},
		asker{"near, at the address", near.Netns, port(n1.IP, hostPortAt), "web", gw})
	refused(t, n1.Netns, port(loopback, hostPortAt), "tcp", "udp")                              // it is published on one address only
	refused(t, n1.Netns, port(netip.AddrFrom4([4]byte{127, 0, 0, 53}), hostPort), "tcp", "udp") // the node's range
	await(t, "an answer to the client that sent before the pod existed", func(context.Context) error {
		_, err := early.Ask()
		return err
	})

	// Traffic to the same port number on other machines is not changed by the node (CVE-2025-67499).
	startSourceServer(t, n2.Netns, "n2", hostPort)
	startSourceServer(t, outside.Netns, "outside", hostPort)
	asked(t,
		asker{"outside, at another node", outside.Netns, port(n2.IP, hostPort), "n2", outside.IP},
		asker{"the node, at another", n1.Netns, port(n2.IP, hostPort), "n2", n1.IP},
		asker{"near, at another node", near.Netns, port(n2.IP, hostPort), "n2", n1.IP},
		asker{"itself, at another node", web.Netns, port(n2.IP, hostPort), "n2", n1.IP},
		asker{"near, outside", near.Netns, port(outside.IP, hostPort), "outside", n1.IP},
		asker{"the node, outside", n1.Netns, port(outside.IP, hostPort), "outside", n1.IP})
	refused(t, near.Netns, port(far.IPs[0], hostPort), "tcp", "udp")
	silentLoopback(t, near)

	taken(t, n1, spec)
	hostPortsOutlive(t, c, web)

	if _, err := web.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused(t, outside.Netns, port(n1.IP, hostPort), "tcp", "udp")
	// The next pod gets the ports, also for clients with connections to the former pod.
	next := addPodAs(t, c, spec)
	startSourceServer(t, next.Netns, "next", sourcePort)
	await(t, "an answer of the next pod to the former pod's client", func(context.Context) error {
		answer, err := early.Ask()
		if err == nil && answer.Name != "next" {
			err = errors.New(answer.String())
		}
		return err
	})
	if _, err := next.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "no leftovers of pods with host ports", func(ctx context.Context) error {
		for _, subject := range []string{"flows", "groups", "inet weft"} { // there may be more pre-plugged ports than before
			if now := probe.StateIn(ctx, n1, subject); now != before[subject] {
				return fmt.Errorf("%s are %s, were %s", subject, now, before[subject])
			}
		}
		return nil
	})
	if rules := mustRun(t, n1.Enter("nft", "list", "map", "inet", "weft", "hostports")); strings.Contains(rules, "elements") {
		t.Errorf("elements left in the map hostports: %s", rules)
	}
	if files := mustRun(t, n1.Enter("sh", "-c", "ls /var/lib/weft/attachments-extra")); files != "" {
		t.Errorf("files left in attachments-extra: %s", files)
	}
}

// silentLoopback sends from a pod to the loopback range of its node: it gets no answer.
func silentLoopback(t *testing.T, from *lab.Pod) {
	t.Helper()
	mustRun(t, from.Enter("ip", "link", "set", "lo", "down"))
	mustRun(t, from.Enter("ip", "route", "replace", "table", "local", "unicast", "127.0.0.1", "via", gateway(from.IPs[0]).String(), "src", from.IPs[0].String()))
	for _, network := range []string{"tcp", "udp"} {
		ctx, cancel := context.WithTimeout(t.Context(), brief)
		if answer, err := traffic.Ask(ctx, from.Netns, network, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), hostPort)); err == nil {
			t.Errorf("%s from a pod to its node's loopback is answered: %s", network, answer)
		}
		cancel()
	}
}

// taken requests host ports that another pod has.
func taken(t *testing.T, n lab.Node, spec lab.PodSpec) {
	t.Helper()
	spec.Name = "hp-second"
	second, err := n.Attach(t.Context(), spec, "")
	var failure *podruntime.Failure
	if !asFailure(err, &failure) || failure.Code != codeTryAgain || !strings.Contains(err.Error(), "host port 18080/tcp") || !strings.Contains(err.Error(), "pod default/hp-web has it") {
		t.Errorf("a second pod with the host ports: %v", err)
	}
	delPod(t, second)
	wrong := map[string]any{"portMappings": []map[string]any{{"hostPort": 70000, "containerPort": 1, "protocol": "tcp"}}}
	bad, err := n.Attach(t.Context(), lab.PodSpec{Namespace: "default", Name: "hp-bad", Capabilities: wrong}, "")
	if !asFailure(err, &failure) || !strings.Contains(err.Error(), "portMappings[0].hostPort: 70000") {
		t.Errorf("an invalid host port: %v", err)
	}
	delPod(t, bad)
}

// hostPortsOutlive restarts the agent while a host port is in use, also while the API server is away: no packet is lost.
func hostPortsOutlive(t *testing.T, c *lab.Cluster, web *lab.Pod) {
	t.Helper()
	echo(t, web.Netns, web.IPs[0])
	load := func(what string, f func()) {
		t.Helper()
		running, err := traffic.NewLoad([]traffic.Pair{
			{Name: "outside", From: c.Outside.Netns, To: port(c.Node(1).IP, hostPortEcho)},
			{Name: "the node", From: c.Node(1).Netns, To: port(c.Node(1).IP, hostPortEcho)},
		}, *pairRate)
		if err != nil {
			t.Fatal(err)
		}
		f()
		tallies, err := running.Stop()
		for name, tally := range tallies {
			if tally.Lost > 0 || err != nil {
				t.Errorf("%s: %s: %s: %v", what, name, tally, err)
			}
		}
		t.Logf("%s: %v", what, tallies)
	}
	load("control", func() {
		select {
		case <-time.After(window(3 * time.Second)): // the duration of the traffic
		case <-t.Context().Done():
		}
	})
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		load(fmt.Sprint("the agent restarts by ", signal), func() {
			kill(t, c, "n1/weft-agent", signal)
			await(t, "the agent ready", func(ctx context.Context) error { return ready(ctx, c.Node(1)) })
		})
	}
	var result struct{ Interfaces []any }
	if err := json.Unmarshal(web.Result, &result); err != nil || len(result.Interfaces) != 2 {
		t.Errorf("result %s: %v", web.Result, err)
	}
	if err := web.Check(t.Context()); err != nil {
		t.Error(err)
	}
	// Elements removed by hand are restored.
	mustRun(t, c.Node(1).Enter("nft", "flush", "map", "inet", "weft", "hostports"))
	await(t, "the flushed elements restored", func(ctx context.Context) error {
		_, err := traffic.Ask(ctx, c.Outside.Netns, "tcp", port(c.Node(1).IP, hostPort))
		return err
	})
}

// Policies judge traffic through a host port as traffic from outside, by its original address if that is preserved, and requests of the
// node as the node's.
func TestPolicyHostPort(t *testing.T) {
	s := newPolicyScene(t, "hp")
	n1, n2, outside := s.cluster.Node(1), s.cluster.Node(2), s.cluster.Outside
	labels := map[string]string{"app": "published"}
	web := s.pod(t, lab.PodSpec{Node: "n1", Name: "hp-published", Labels: labels, Capabilities: published(n1.IP)})
	startSourceServer(t, web.Netns, "web", sourcePort)
	gw := gateway(web.IPs[0])
	type ways struct{ outside, node, loopback, otherNode, near, far, self, byGateway bool }
	reach := func(what string, w ways) {
		t.Helper()
		to := port(n1.IP, hostPort)
		expect(t, what,
			attempt{"outside", outside.Netns, to, w.outside},
			attempt{"the node", n1.Netns, to, w.node},
			attempt{"the node, by loopback", n1.Netns, port(netip.AddrFrom4([4]byte{127, 0, 0, 1}), hostPort), w.loopback},
			attempt{"the other node", n2.Netns, to, w.otherNode},
			attempt{"near", s.near.Netns, to, w.near},
			attempt{"far", s.far.Netns, to, w.far},
			attempt{"itself", web.Netns, to, w.self},
			attempt{"near, by the gateway", s.near.Netns, port(gw, hostPort), w.byGateway},
			attempt{"far, by the gateway", s.far.Netns, port(gw, hostPort), w.byGateway},
			attempt{"the other node, by the gateway", n2.Netns, port(gw, hostPort), w.byGateway})
	}
	all := ways{true, true, true, true, true, true, true, true}
	node := ways{node: true, loopback: true}
	reach("without a policy", all)
	s.policy(t, "hp", labels, ingress())
	reach("no client except the node", node)
	from := func(cidr string) networkingv1.NetworkPolicySpec {
		peer := networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}
		return ingress(networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{peer}})
	}
	s.policy(t, "hp", labels, ingress(networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: labelled(nil)}}}))
	reach("all pods, and no address outside", node)
	s.policy(t, "hp", labels, from(outside.IP.String()+"/32"))
	reach("an address outside", ways{node: true, loopback: true, outside: true})
	s.policy(t, "hp", labels, from(n2.IP.String()+"/32"))
	reach("the other node, and its pods by it", ways{node: true, loopback: true, otherNode: true, far: true})
	s.policy(t, "hp", labels, from(maskedOutside.String()+"/32"))
	reach("pods of this node, and clients that use its gateway address", ways{node: true, loopback: true, near: true, self: true, byGateway: true})
	s.drop(t, "hp")
	reach("without a policy again", all)
}

// With isolated projects, all of them reach a host port, like all published addresses; they do not reach the pod itself.
func TestTenantHostPort(t *testing.T) {
	c := cluster(t)
	e := &estate{cluster: c}
	e.flatAgain(t)
	for _, name := range []string{projectA, projectB} {
		addProject(t, c, name)
	}
	e.setMode(t, networkv1.PluginMultitenant)
	n1, n2 := c.Node(1), c.Node(2)
	web := addPodAs(t, c, lab.PodSpec{Node: "n1", Namespace: projectA, Name: "hp-tenant", NoObject: true, Capabilities: published(n1.IP)})
	startSourceServer(t, web.Netns, "web", sourcePort)
	near, far := addPodIn(t, c, "n1", projectB, "hp-near-b"), addPodIn(t, c, "n2", projectB, "hp-far-b")
	gw := gateway(web.IPs[0])
	asked(t,
		asker{"outside", c.Outside.Netns, port(n1.IP, hostPort), "web", c.Outside.IP},
		asker{"the node", n1.Netns, port(n1.IP, hostPort), "web", gw},
		asker{"near, of another project", near.Netns, port(n1.IP, hostPort), "web", gw},
		asker{"far, of another project", far.Netns, port(n1.IP, hostPort), "web", n2.IP},
		asker{"far, of another project, by the gateway", far.Netns, port(gw, hostPort), "web", gw},
		asker{"itself", web.Netns, port(n1.IP, hostPort), "web", gw})
	silent(t, near.Netns, "tcp", port(web.IPs[0], sourcePort))
	silent(t, far.Netns, "tcp", port(web.IPs[0], sourcePort))
}
