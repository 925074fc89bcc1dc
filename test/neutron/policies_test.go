//go:build lab

package neutron

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/reach"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// dualPod is a pod with an address of each family.
type dualPod struct {
	reach.Pod

	six netip.Addr
}

// families returns the pod with each of its addresses.
func (p dualPod) families() []reach.Pod {
	six := p.Pod
	six.IP = p.six
	return []reach.Pod{p.Pod, six}
}

const (
	serverPort = 9000
	floodPort  = 9001
)

// policiesOfBothFamilies: pods of tenant blue, whose Network has an IPv6 range, have an address of each family, and packets of both pass on a node
// and between nodes. A NetworkPolicy that denies is in effect from a pod's first packet. One that allows one peer admits that peer alone,
// and ends the connections of the peer that it no longer allows. No pod sends from another pod's address.
func policiesOfBothFamilies(ctx context.Context, t *testing.T) {
	t.Helper()
	s := &policiesScene{
		kube:  func(args ...string) string { return kubectl(ctx, t, append([]string{"-n", "blue"}, args...)...) },
		apply: func(text string) { apply(ctx, t, text) },
	}
	t.Cleanup(func() {
		_, _ = tryKubectl(context.WithoutCancel(ctx), "-n", "blue", "delete", "networkpolicy,pod", "-l", "test=policies", "--wait=false")
	})
	nodes := cloudFor.lab.Nodes()
	freeDualPorts(ctx, t, nodes[0].Name, nodes[1].Name)
	s.near, s.far = s.start(ctx, t, "near", nodes[0]), s.start(ctx, t, "far", nodes[1])
	s.allow("")
	flood := s.flood(ctx, t, freeDualPorts(ctx, t, nodes[0].Name))
	s.server = s.start(ctx, t, "server", nodes[0])
	for _, p := range s.server.families() {
		if !flood.to[p.IP] {
			t.Errorf("no datagrams were sent to %s", p.IP)
		}
	}
	if four, six := received(t, s.server.Netns); four+six > 0 {
		t.Errorf("a pod that a policy isolates has received %d and %d datagrams", four, six)
	}
	server, err := traffic.NewSourceServer(s.server.Netns, "server", netip.AddrPortFrom(netip.IPv6Unspecified(), serverPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	s.reaches(ctx, t, "no peer is allowed", false, false)
	s.allow("near")
	s.reaches(ctx, t, "near is allowed", true, false)
	if _, err := probe.Await(ctx, probe.Patience, "the allowed peer's datagrams", func(context.Context) error {
		if four, six := received(t, s.server.Netns); four == 0 || six == 0 {
			return fmt.Errorf("%d and %d have arrived", four, six)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	flood.stop()
	former := s.connections(ctx, t, s.near)
	s.allow("far")
	s.reaches(ctx, t, "far is allowed", false, true)
	latter := s.connections(ctx, t, s.far)
	ended(ctx, t, former)
	s.allow("near")
	s.reaches(ctx, t, "near is allowed again", true, false)
	ended(ctx, t, latter)
	s.kube("delete", "networkpolicy", "isolated")
	s.reaches(ctx, t, "no pod is isolated", true, true)
	s.spoof(t)
}

// policiesScene is a server, and a peer on its node and one on another.
type policiesScene struct {
	kube              func(args ...string) string
	apply             func(text string)
	near, far, server dualPod
}

func apply(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	if _, err := cloudFor.group.Run(ctx, text, cloudFor.lab.Kubectl("apply", "-f", "-")...); err != nil {
		t.Fatal(err)
	}
}

// start runs a pod on a node until it is ready.
func (s *policiesScene) start(ctx context.Context, t *testing.T, app string, node lab.Node) dualPod {
	t.Helper()
	name := "policies-" + app
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `, namespace: blue, labels: {test: policies, app: policies-` + app + `}}
spec:
  nodeName: ` + node.Name + `
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  containers:
    - name: netexec
      image: weft.local/agnhost:dev
      imagePullPolicy: IfNotPresent
      args: [netexec, --http-port=80]
      readinessProbe: {httpGet: {path: /healthz, port: 80}, periodSeconds: 1}
`)
	s.kube("wait", "--for=condition=Ready", "pod/"+name, "--timeout=120s")
	client, err := cloudFor.lab.Client()
	if err != nil {
		t.Fatal(err)
	}
	found, err := reach.Pods(ctx, cloudFor.lab, client, "blue/"+name)
	if err != nil {
		t.Fatal(err)
	}
	addresses := strings.Fields(s.kube("get", "pod", name, "-o", "jsonpath={.status.podIPs[*].ip}"))
	if len(addresses) != 2 || addresses[0] != found["blue/"+name].IP.String() || !strings.HasPrefix(addresses[1], "fd00:10:244:") {
		t.Fatalf("pod %s has addresses %v", name, addresses)
	}
	return dualPod{found["blue/"+name], netip.MustParseAddr(addresses[1])}
}

// allow isolates the server, and allows one peer; "": none.
func (s *policiesScene) allow(app string) {
	rule := "[]"
	if app != "" {
		rule = "[{from: [{podSelector: {matchLabels: {app: policies-" + app + "}}}]}]"
	}
	s.apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolated, namespace: blue, labels: {test: policies}}
spec: {podSelector: {matchLabels: {app: policies-server}}, policyTypes: [Ingress], ingress: ` + rule + `}
`)
}

// freeDualPorts waits until all of blue's ports on nodes that are free have an address of each family and are ACTIVE, some on each node, and
// returns their addresses.
func freeDualPorts(ctx context.Context, t *testing.T, nodes ...string) map[netip.Addr]bool {
	t.Helper()
	var addresses map[netip.Addr]bool
	_, err := probe.Await(ctx, probe.Patience, "free ports with addresses of both families", func(ctx context.Context) error {
		out, err := tryKubectl(ctx, "get", "neutronports", "-o", "json")
		if err != nil {
			return err
		}
		var list weftv1.NeutronPortList
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return err
		}
		addresses = map[netip.Addr]bool{}
		on := map[string]int{}
		for i := range list.Items {
			p := &list.Items[i]
			if p.Spec.Network.Namespace != "blue" || p.Status.Pod != nil || p.Status.ReleasedAt != nil {
				continue
			}
			if len(p.Spec.Addresses) != 2 || !p.Spec.Active || p.DeletionTimestamp != nil {
				return fmt.Errorf("port %s: %+v", p.Name, p.Spec)
			}
			on[p.Spec.Node]++
			for _, a := range p.Spec.Addresses {
				addresses[netip.MustParsePrefix(a.Address).Addr()] = true
			}
		}
		for _, node := range nodes { // all of them, so that a later pod has one of these
			if on[node] < ahead.LeastSpare {
				return fmt.Errorf("free ports: %v", on)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return addresses
}

// flooding is what the peers send to addresses that pods do not have yet.
type flooding struct {
	to   map[netip.Addr]bool
	stop func()
}

// flood sends datagrams from both peers to addresses, until it is stopped.
func (s *policiesScene) flood(ctx context.Context, t *testing.T, to map[netip.Addr]bool) flooding {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	f := flooding{to: to, stop: func() { cancel(); done.Wait() }}
	t.Cleanup(f.stop)
	for _, from := range []dualPod{s.near, s.far} {
		conn, err := traffic.ListenUDP(from.Netns, netip.AddrPortFrom(netip.IPv6Unspecified(), 0))
		if err != nil {
			t.Fatal(err)
		}
		done.Go(func() {
			defer func() { _ = conn.Close() }()
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				for addr := range to {
					_, _ = conn.WriteToUDPAddrPort([]byte("flood"), netip.AddrPortFrom(addr, floodPort))
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	return f
}

// received counts the datagrams of each family that a network namespace has received for ports that no socket has.
func received(t *testing.T, path string) (four, six int) {
	t.Helper()
	var snmp, snmp6 []byte
	err := traffic.In(path, func() (err error) {
		if snmp, err = os.ReadFile("/proc/thread-self/net/snmp"); err == nil {
			snmp6, err = os.ReadFile("/proc/thread-self/net/snmp6")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(snmp)) {
		fields := strings.Fields(line)
		switch {
		case fields[0] != "Udp:":
		case names == nil:
			names = fields
		default:
			for i, name := range names {
				if name == "NoPorts" {
					four, err = strconv.Atoi(fields[i])
				}
			}
		}
	}
	for line := range strings.Lines(string(snmp6)) {
		if fields := strings.Fields(line); fields[0] == "Udp6NoPorts" && err == nil {
			six, err = strconv.Atoi(fields[1])
		}
	}
	if err != nil || names == nil {
		t.Fatalf("counters of datagrams: %v", err)
	}
	return four, six
}

// reaches waits until each peer reaches the server, or does not, by both families and protocols, with its own address.
func (s *policiesScene) reaches(ctx context.Context, t *testing.T, when string, near, far bool) {
	t.Helper()
	var all errgroup.Group
	for _, c := range []struct {
		from dualPod
		want bool
	}{{s.near, near}, {s.far, far}} {
		for i, to := range s.server.families() {
			source := c.from.families()[i].IP
			for _, network := range []string{"tcp", "udp"} {
				all.Go(func() error {
					what := fmt.Sprintf("%s: %s to %s by %s, reached: %t", when, c.from.Name, to.IP, network, c.want)
					_, err := probe.Await(ctx, probe.Patience, what, func(ctx context.Context) error {
						answer, err := traffic.Ask(ctx, c.from.Netns, network, netip.AddrPortFrom(to.IP, serverPort))
						if reached := err == nil; reached != c.want || reached && answer.Source != source {
							return fmt.Errorf("%s, %w", answer, err)
						}
						return nil
					})
					return err
				})
			}
		}
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
}

// connections opens connections of a peer to the server, of each family and protocol.
func (s *policiesScene) connections(ctx context.Context, t *testing.T, from dualPod) map[string]*traffic.Conn {
	t.Helper()
	open := map[string]*traffic.Conn{}
	for _, to := range s.server.families() {
		for _, network := range []string{"tcp", "udp"} {
			c, err := traffic.Dial(ctx, from.Netns, network, netip.AddrPortFrom(to.IP, serverPort))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			if _, err := c.Ask(); err != nil {
				t.Fatal(err)
			}
			open[fmt.Sprintf("%s connection of %s to %s", network, from.Name, to.IP)] = c
		}
	}
	return open
}

// ended waits until connections do not work any more: one lost datagram is not the end.
func ended(ctx context.Context, t *testing.T, open map[string]*traffic.Conn) {
	t.Helper()
	var all errgroup.Group
	for name, c := range open {
		all.Go(func() error {
			_, err := probe.Await(ctx, probe.Patience, "the end of the "+name, func(context.Context) error {
				for range 2 {
					if answer, err := c.Ask(); err == nil {
						return fmt.Errorf("it still works: %s", answer)
					}
				}
				return nil
			})
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
}

// spoof sends to the server from each peer with the other's address, by both families.
func (s *policiesScene) spoof(t *testing.T) {
	t.Helper()
	for _, c := range [][2]dualPod{{s.near, s.far}, {s.far, s.near}} {
		for i, from := range c[0].families() {
			other := c[1].families()[i]
			rows, err := reach.Spoof(from, s.server.families()[i], other.IP, other.MAC)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				if !row.OK() {
					t.Errorf("%s from %s to %s: seen %s, must see %s", row.Name, row.From, row.To, row.Seen, row.Want)
				}
			}
		}
	}
}
