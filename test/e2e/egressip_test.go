//go:build lab

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// Egress addresses of the tests, on the nodes' network.
const (
	egressOne   = "172.31.0.100"
	egressTwo   = "172.31.0.101"
	egressThree = "172.31.0.102"
	// virtualIP is an address that a node has for another purpose.
	virtualIP = "172.31.0.103"
)

// The projects: the first has egress IPs from the start, the second gets them later.
const (
	egressA = "egress-a"
	egressB = "egress-b"
)

// egressScene is two projects with a pod on each node, and a host outside that reports the source it sees.
type egressScene struct {
	cluster *lab.Cluster
	pods    map[string]*lab.Pod // a1 is the first project's on n1, and so on
}

func newEgressScene(t *testing.T, c *lab.Cluster, plugin string) *egressScene {
	t.Helper()
	s := &egressScene{cluster: c, pods: map[string]*lab.Pod{}}
	e := &estate{cluster: c}
	e.flatAgain(t)
	startSourceServer(t, c.Outside.Netns, "outside", outsidePort)
	for _, name := range []string{egressA, egressB} {
		addProject(t, c, name)
	}
	if plugin == networkv1.PluginNetworkPolicy {
		byPolicies(t, c)
	} else {
		e.setMode(t, plugin)
	}
	pods := (&policyScene{cluster: c}).pod
	for name, spec := range map[string]lab.PodSpec{
		"a1": {Node: "n1", Namespace: egressA}, "a2": {Node: "n2", Namespace: egressA},
		"b1": {Node: "n1", Namespace: egressB}, "b2": {Node: "n2", Namespace: egressB},
	} {
		spec.Name = "egress-" + name
		if spec.Namespace == egressA {
			spec.Capabilities = published(c.Outside.IP) // one port on all addresses, one on an address that no node has
		}
		s.pods[name] = pods(t, spec)
		startSourceServer(t, s.pods[name].Netns, name, sourcePort)
	}
	for _, name := range []string{egressA, egressB} {
		await(t, "a NetNamespace of "+name, func(ctx context.Context) error {
			_, err := objects(t, c, network, "netnamespaces").Get(ctx, name, metav1.GetOptions{})
			return err
		})
	}
	return s
}

// set writes a list of addresses or ranges into an object's field.
func (s *egressScene) set(t *testing.T, resource, name, field string, list ...string) {
	t.Helper()
	if list == nil {
		list = []string{}
	}
	patch, err := json.Marshal(map[string]any{field: list})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := objects(t, s.cluster, network, resource).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *egressScene) want(t *testing.T, project string, ips ...string) {
	t.Helper()
	s.set(t, "netnamespaces", project, "egressIPs", ips...)
}

func (s *egressScene) host(t *testing.T, node string, ips ...string) {
	t.Helper()
	s.set(t, "hostsubnets", node, "egressIPs", ips...)
}

// outsidePort is the port where the host outside answers; the lab uses the usual port for another server.
const outsidePort = 7792

// closed means traffic that does not leave.
const closed = "none"

func (s *egressScene) outside() netip.AddrPort { return port(s.cluster.Outside.IP, outsidePort) }

// crowd adds addresses to the host outside, and returns where it answers: a pod's traffic is distributed over nodes by destination.
func (s *egressScene) crowd(t *testing.T) []netip.AddrPort {
	t.Helper()
	const first, some = 100, 24
	enter := []string{"nsenter", "--net=" + s.cluster.Outside.Netns, "--", "ip", "address"}
	var targets []netip.AddrPort
	for i := range some {
		address := s.cluster.Outside.IP.As4()
		address[3] = byte(first + i) //nolint:gosec // of the test's own
		at := netip.AddrFrom4(address)
		mustRun(t, append(enter, "add", at.String()+"/24", "dev", "eth0"))
		t.Cleanup(func() {
			if _, err := run(context.Background(), append(enter, "del", at.String()+"/24", "dev", "eth0")); err != nil {
				t.Error(err)
			}
		})
		targets = append(targets, port(at, outsidePort))
	}
	return targets
}

// seen returns the source that the host outside sees.
func (s *egressScene) seen(ctx context.Context, pod, protocol string) string {
	return s.seenAt(ctx, pod, protocol, s.outside())
}

// leaveBy waits until all traffic from a1 to the targets leaves by one address, and returns how often it did not.
func (s *egressScene) leaveBy(t *testing.T, what string, targets []netip.AddrPort, address string) (lost int) {
	t.Helper()
	await(t, what, func(ctx context.Context) error {
		for _, target := range targets {
			if got := s.seenAt(ctx, "a1", "tcp", target); got != address {
				lost++
				return fmt.Errorf("the source is %s", got)
			}
		}
		return nil
	})
	return lost
}

// seenAt returns the source that the server at an address sees.
func (s *egressScene) seenAt(ctx context.Context, pod, protocol string, at netip.AddrPort) string {
	ctx, cancel := context.WithTimeout(ctx, brief)
	defer cancel()
	answer, err := traffic.Ask(ctx, s.pods[pod].Netns, protocol, at)
	if err != nil {
		return closed
	}
	return answer.Source.String()
}

// sees waits until the sources of the pods, as the host outside receives them by both protocols, are those listed: "a1 172.31.0.100 a2 none ...".
// A pod without an answer has the source none.
func (s *egressScene) sees(t *testing.T, when string, pairs string) time.Duration {
	t.Helper()
	words := strings.Fields(pairs)
	return await(t, when+": sources are "+pairs, func(ctx context.Context) error {
		var asking errgroup.Group // all at once: an unanswered request takes long
		for i := 0; i < len(words); i += 2 {
			for _, protocol := range []string{"tcp", "udp"} {
				if protocol == "udp" && words[i+1] == closed {
					continue // one request suffices if no answer is expected
				}
				asking.Go(func() error {
					if got := s.seen(ctx, words[i], protocol); got != words[i+1] {
						return fmt.Errorf("the source of %s by %s is %s, want %s", words[i], protocol, got, words[i+1])
					}
					return nil
				})
			}
		}
		return asking.Wait()
	})
}

func TestEgressIPs(t *testing.T) {
	for name, plugin := range map[string]string{"projects": networkv1.PluginMultitenant, "policies": networkv1.PluginNetworkPolicy} {
		t.Run(name, func(t *testing.T) { newEgressScene(t, cluster(t), plugin).run(t) })
	}
}

func (s *egressScene) run(t *testing.T) {
	n1, n2 := s.cluster.Node(1).IP.String(), s.cluster.Node(2).IP.String()
	before := map[string]probe.State{}
	for _, n := range s.cluster.Nodes() {
		before[n.Name] = settledState(t, n)
	}
	t.Cleanup(func() {
		for _, n := range s.cluster.Nodes() {
			s.host(t, n.Name)
		}
	})
	b := " b1 " + n1 + " b2 " + n2
	s.sees(t, "no project has an egress IP", "a1 "+n1+" a2 "+n2+b)
	s.want(t, egressA, egressOne)
	s.sees(t, "no node holds the address", "a1 none a2 none"+b)
	s.host(t, "n1", egressOne)
	s.sees(t, "n1 holds the address", "a1 "+egressOne+" a2 "+egressOne+b)
	s.together(t)
	s.answers(t)
	s.transfer(t)
	s.notReachable(t)
	s.host(t, "n1")
	s.sees(t, "removed from n1", "a1 none a2 none"+b)
	s.host(t, "n2", egressOne)
	s.sees(t, "moved to n2", "a1 "+egressOne+" a2 "+egressOne+b)
	s.want(t, egressB, egressOne)
	s.sees(t, "two projects have the address", "a1 none a2 none b1 none b2 none")
	s.want(t, egressB)
	s.sees(t, "one project has the address again", "a1 "+egressOne+" a2 "+egressOne+b)
	s.want(t, egressA, egressOne, egressTwo)
	s.host(t, "n1", egressTwo)
	s.sees(t, "one address on each node", "a1 "+egressTwo+" a2 "+egressOne+b)
	has(t, owned(t), "egressip")
	s.host(t, "n1", egressTwo, egressOne)
	s.sees(t, "one address on both nodes", "a1 "+egressTwo+" a2 "+egressTwo+b)
	s.host(t, "n1", egressTwo)
	s.sees(t, "one address on each node again", "a1 "+egressTwo+" a2 "+egressOne+b)
	s.putBack(t)
	s.restart(t)
	s.host(t, "n1")
	s.ghost(t)
	s.want(t, egressA)
	s.host(t, "n2")
	s.sees(t, "no project has an egress IP again", "a1 "+n1+" a2 "+n2+b)
	for _, n := range s.cluster.Nodes() {
		awaitState(t, n, before[n.Name], "egress IPs were removed")
	}
}

// together: pods and nodes reach each other as without egress IPs.
func (s *egressScene) together(t *testing.T) {
	t.Helper()
	for _, from := range []string{s.pods["a1"].Netns, s.pods["a2"].Netns, s.cluster.Node(1).Netns, s.cluster.Node(2).Netns} {
		for _, to := range []string{"a1", "a2"} {
			if _, err := traffic.Ask(t.Context(), from, "tcp", port(s.pods[to].IPs[0], sourcePort)); err != nil {
				t.Errorf("%s to %s: %v", from, to, err)
			}
		}
	}
}

// answers: replies to traffic from outside to a pod return to its sender, and not by an egress IP, also through a host port. The client
// is on the node's own address, because the host does not masquerade that.
func (s *egressScene) answers(t *testing.T) {
	t.Helper()
	for i, name := range []string{"a1", "a2"} {
		n := s.cluster.Node(i + 1)
		mustRun(t, n.Enter("ping", "-c", "3", "-i", "0.2", "-W", "2", "-I", n.IP.String(), s.pods[name].IPs[0].String()))
		asked(t, asker{"outside", s.cluster.Outside.Netns, port(n.IP, hostPort), name, s.cluster.Outside.IP})
	}
	// The project's own pods use a node's host port like any address outside.
	to, source := port(s.cluster.Node(2).IP, hostPort), netip.MustParseAddr(egressOne)
	asked(t, asker{"a1", s.pods["a1"].Netns, to, "a2", source}, asker{"a2", s.pods["a2"].Netns, to, "a2", source})
}

// transfer sends more data than fits a TCP window, and an echo of the largest size, by the other node and by the pod's own.
func (s *egressScene) transfer(t *testing.T) {
	t.Helper()
	const sinkPort, size = 7790, 4 << 20
	sink, err := traffic.NewSink(s.cluster.Outside.Netns, port(s.cluster.Outside.IP, sinkPort))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sink.Close() }()
	for _, from := range []string{"a1", "a2"} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		sent, err := traffic.Send(ctx, s.pods[from].Netns, port(s.cluster.Outside.IP, sinkPort), size)
		if err != nil {
			t.Errorf("%s sends %d bytes: %v", from, size, err)
		} else {
			t.Logf("%s: %+v", from, sent)
		}
		if _, err := traffic.PingICMP(ctx, s.pods[from].Netns, s.cluster.Outside.IP, podMTU); err != nil {
			t.Errorf("%s sends a packet of %d bytes: %v", from, podMTU, err)
		}
		cancel()
	}
}

// notReachable: the node is not reachable by an egress IP, and a pod is not reachable by a host port there.
func (s *egressScene) notReachable(t *testing.T) {
	t.Helper()
	startSourceServer(t, s.cluster.Node(1).Netns, "node", 7791)
	address := netip.MustParseAddr(egressOne)
	ask := func(client, from string, to uint16) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), brief)
		defer cancel()
		if answer, err := traffic.Ask(ctx, from, "tcp", port(address, to)); err == nil {
			t.Errorf("%s reaches port %d of the node at its egress IP: %s", client, to, answer)
		}
	}
	for from, netns := range map[string]string{"outside": s.cluster.Outside.Netns, "a pod": s.pods["b2"].Netns, "a pod of the project": s.pods["a1"].Netns} {
		ask(from, netns, 7791)
		ask(from, netns, hostPort)
	}
	ask("the node", s.cluster.Node(1).Netns, hostPort)
}

// putBack: an egress IP that is removed from the interface by hand is restored.
func (s *egressScene) putBack(t *testing.T) {
	t.Helper()
	n := s.cluster.Node(2)
	mustRun(t, n.Enter("ip", "addr", "del", egressOne+"/32", "dev", uplink(s.cluster)))
	took := await(t, "the address restored", func(ctx context.Context) error {
		out, err := run(ctx, n.Enter("ip", "-o", "addr", "show", "dev", uplink(s.cluster)))
		if err == nil && !strings.Contains(out, egressOne+"/32") {
			return errors.New(out)
		}
		return err
	})
	t.Logf("an address removed by hand is restored after %s", took)
	s.sees(t, "after the address is restored", "a1 "+egressTwo+" a2 "+egressOne)
}

// restart: killed agents lose no traffic that leaves by egress IPs, and change nothing.
func (s *egressScene) restart(t *testing.T) {
	t.Helper()
	before := map[string]probe.State{}
	for _, n := range s.cluster.Nodes() {
		before[n.Name] = settledState(t, n)
	}
	echo(t, s.cluster.Outside.Netns, s.cluster.Outside.IP)
	s.host(t, "n1") // so that traffic from a1 leaves by the other node
	s.sees(t, "n2 holds the address", "a1 "+egressOne+" a2 "+egressOne)
	var pairs []traffic.Pair
	for _, name := range []string{"a1", "a2"} {
		pairs = append(pairs, traffic.Pair{Name: name, From: s.pods[name].Netns, To: port(s.cluster.Outside.IP, echoPort)})
	}
	const rate = 200
	running, err := traffic.NewLoad(pairs, rate)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range s.cluster.Nodes() {
		kill(t, s.cluster, n.Name+"/weft-agent", syscall.SIGKILL)
		await(t, n.Name+" ready", func(ctx context.Context) error { return ready(ctx, n) })
	}
	tallies, err := running.Stop()
	if err != nil {
		t.Error(err)
	}
	for name, tally := range tallies {
		t.Logf("%s while agents were killed: %s", name, tally)
	}
	s.host(t, "n1", egressTwo)
	s.sees(t, "as before", "a1 "+egressTwo+" a2 "+egressOne)
	for _, n := range s.cluster.Nodes() {
		awaitState(t, n, before[n.Name], "agents were killed")
	}
}

// ghost: a node that has an address but does not answer loses its share of the outgoing traffic to the other node that has one.
func (s *egressScene) ghost(t *testing.T) {
	t.Helper()
	const name, address, subnet = "ghost.example", "172.31.0.203", "10.131.250.0/23"
	ghost := hostSubnet(name, name, address, subnet, nil)
	ghost.Object["egressIPs"] = []any{egressThree}
	if err := createHostSubnet(t, objects(t, s.cluster, network, "hostsubnets"), ghost); err != nil {
		t.Fatal(err)
	}
	s.want(t, egressA, egressOne, egressThree)
	targets := s.crowd(t)
	began := time.Now()
	lost := s.leaveBy(t, "all connections of a1 leave by the node that answers", targets, egressOne)
	t.Logf("with a node that never answers: all connections leave by the other after %s, %d connections lost", time.Since(began).Round(time.Millisecond), lost)
	s.want(t, egressA, egressOne)
	if err := objects(t, s.cluster, network, "hostsubnets").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// When an address moves, gratuitous ARP updates the neighbours. An address that the node itself has is not changed.
func TestEgressIPAtNode(t *testing.T) {
	s := newEgressScene(t, cluster(t), networkv1.PluginMultitenant)
	t.Cleanup(func() {
		for _, n := range s.cluster.Nodes() {
			s.host(t, n.Name)
		}
	})
	s.want(t, egressA, egressOne)
	sniffer, err := traffic.NewSniffer(s.cluster.Node(2).Netns, uplink(s.cluster), true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sniffer.Close() }()
	address := netip.MustParseAddr(egressOne).AsSlice()
	s.host(t, "n1", egressOne)
	await(t, "n1 announces the address", func(context.Context) error {
		announced := slices.ContainsFunc(sniffer.Frames(), func(frame []byte) bool {
			const header, sender, target = 14, 14 + 14, 14 + 24
			return len(frame) >= target+4 && bytes.Equal(frame[12:header], []byte{8, 6}) &&
				bytes.Equal(frame[sender:sender+4], address) && bytes.Equal(frame[target:target+4], address)
		})
		if !announced {
			return errors.New("no announcement received")
		}
		return nil
	})
	s.refused(t)
}

// refused: a node does not take an egress IP that is its own, or that it has for another purpose. It reports that, and remains reachable
// by it. Once the node has the address for no other purpose, it takes it.
func (s *egressScene) refused(t *testing.T) {
	t.Helper()
	const nodePort = 7791
	n := s.cluster.Node(1)
	virtual := func(change string) []string { return n.Enter("ip", "addr", change, virtualIP+"/32", "dev", "lo") }
	mustRun(t, virtual("add"))
	t.Cleanup(func() { _, _ = run(context.Background(), virtual("del")) }) // if it still exists
	startSourceServer(t, n.Netns, "node", nodePort)
	for _, address := range []string{n.IP.String(), virtualIP} {
		s.want(t, egressA, address)
		s.host(t, n.Name, address)
		s.notHeld(t, n.Name, address)
		s.sees(t, "n1 does not hold "+address, "a1 none a2 none")
		for from, netns := range map[string]string{"outside": s.cluster.Outside.Netns, "n2": s.cluster.Node(2).Netns, "a pod": s.pods["b2"].Netns} {
			ctx, cancel := context.WithTimeout(t.Context(), generous)
			if _, err := traffic.Ask(ctx, netns, "tcp", port(netip.MustParseAddr(address), nodePort)); err != nil {
				t.Errorf("%s does not reach n1 by %s: %v", from, address, err)
			}
			cancel()
		}
	}
	mustRun(t, virtual("del"))
	s.sees(t, "n1 has the address only as an egress IP", "a1 "+virtualIP+" a2 "+virtualIP)
}

// notHeld waits for the event on a HostSubnet which reports that the node does not have an address.
func (s *egressScene) notHeld(t *testing.T, node, address string) {
	t.Helper()
	client, err := s.cluster.Client()
	if err != nil {
		t.Fatal(err)
	}
	await(t, "an event that "+address+" is not held", func(ctx context.Context) error {
		list, err := client.EventsV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "reason=EgressIPNotHeld"})
		if err != nil {
			return err
		}
		var notes []string
		for i := range list.Items {
			if e := &list.Items[i]; e.Regarding.Kind == "HostSubnet" && e.Regarding.Name == node && e.Regarding.UID != "" {
				notes = append(notes, e.Note)
			}
		}
		if !slices.ContainsFunc(notes, func(note string) bool { return strings.HasPrefix(note, "egressIPs: "+address+" is ") }) {
			return fmt.Errorf("the events are %q", notes)
		}
		return nil
	})
}
