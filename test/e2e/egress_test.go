//go:build lab

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// networkClient returns a client for the network's objects.
func networkClient(t *testing.T, c *lab.Cluster) client.Client {
	t.Helper()
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := networkv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// A namespace has an egress firewall and an egress IP. Allowed traffic leaves by the egress IP, and denied traffic is dropped, whether
// the pod is on the node with the address or on another.
func TestEgressFirewallWithEgressIP(t *testing.T) {
	for name, plugin := range map[string]string{"projects": networkv1.PluginMultitenant, "policies": networkv1.PluginNetworkPolicy} {
		t.Run(name, func(t *testing.T) {
			s := bothScene{egressScene: newEgressScene(t, cluster(t), plugin)}
			s.guards = &guardScene{cluster: s.cluster, api: networkClient(t, s.cluster)}
			s.good, s.bad = s.guards.host(t, 20), s.guards.host(t, 21)
			s.run(t)
		})
	}
}

// bothScene is two projects, the first with a firewall and egress IPs, and two hosts outside.
type bothScene struct {
	*egressScene
	guards *guardScene
	// good is the host that the firewall allows, bad a host that it denies.
	good, bad netip.Addr
}

func (s *bothScene) run(t *testing.T) {
	n1, n2 := s.cluster.Node(1), s.cluster.Node(2)
	before := map[string]probe.State{}
	for _, n := range s.cluster.Nodes() {
		before[n.Name] = settledState(t, n)
		sourceServerAt(t, n.Netns, n.Name, port(n.IP, 53))
	}
	t.Cleanup(func() {
		for _, n := range s.cluster.Nodes() {
			s.host(t, n.Name)
		}
	})
	one, all := s.good.String()+"/32", "0.0.0.0/0"
	s.host(t, "n1", egressOne)
	s.want(t, egressA, egressOne)
	s.leaves(t, "an egress IP and no firewall", egressOne, egressOne)
	s.guards.policy(t, egressA, "default", "Allow "+one, "Deny "+all)
	s.leaves(t, "one host allowed", egressOne, closed)
	s.throughout(t)
	s.guards.policy(t, egressA, "default", "Deny "+s.bad.String()+"/32")
	s.leaves(t, "one host denied", egressOne, closed)
	s.guards.policy(t, egressA, "default", "Deny "+all)
	s.leaves(t, "all denied", closed, closed)
	s.namesFromNode(t)
	s.guards.policy(t, egressA, "default", "Allow "+one, "Deny "+all)
	s.host(t, "n1")
	s.leaves(t, "no node holds the address", closed, closed)
	s.namesFromNode(t)
	s.want(t, egressA)
	nodes := [2]string{n1.IP.String(), n2.IP.String()}
	s.seenBy(t, "a firewall and no egress IP", nodes, [2]string{closed, closed})
	s.guards.drop(t, egressA, "default")
	s.seenBy(t, "no firewall and no egress IP", nodes, nodes)
	for _, n := range s.cluster.Nodes() {
		awaitState(t, n, before[n.Name], "firewall and egress IP were removed")
	}
}

// leaves waits until the two hosts see the expected sources for both pods of the first project, by TCP and by UDP. The second project's
// sources must be unchanged.
func (s *bothScene) leaves(t *testing.T, when, good, bad string) {
	t.Helper()
	s.seenBy(t, when, [2]string{good, good}, [2]string{bad, bad})
}

// seenBy is leaves with different sources for the pods: a1 first, then a2.
func (s *bothScene) seenBy(t *testing.T, when string, good, bad [2]string) {
	t.Helper()
	n1, n2 := s.cluster.Node(1).IP.String(), s.cluster.Node(2).IP.String()
	took := await(t, when, func(ctx context.Context) error {
		var asking errgroup.Group // all at once: an unanswered request takes long
		for _, want := range []struct {
			pod    string
			host   netip.Addr
			seenAs string
		}{{"a1", s.good, good[0]}, {"a2", s.good, good[1]}, {"a1", s.bad, bad[0]}, {"a2", s.bad, bad[1]}, {"b1", s.bad, n1}, {"b2", s.bad, n2}} {
			for _, protocol := range []string{"tcp", "udp"} {
				asking.Go(func() error {
					if got := s.seenAt(ctx, want.pod, protocol, port(want.host, sourcePort)); got != want.seenAs {
						return fmt.Errorf("at %s, the source of %s by %s is %s, want %s", want.host, want.pod, protocol, got, want.seenAs)
					}
					return nil
				})
			}
		}
		return asking.Wait()
	})
	t.Logf("%s, after %s", when, took)
}

// namesFromNode: pods resolve names at their own node, with their own addresses.
func (s *bothScene) namesFromNode(t *testing.T) {
	t.Helper()
	await(t, "name queries of pods to their nodes", func(ctx context.Context) error {
		for i, name := range []string{"a1", "a2"} {
			for _, protocol := range []string{"tcp", "udp"} {
				want := s.pods[name].IPs[0].String()
				if got := s.seenAt(ctx, name, protocol, port(s.cluster.Node(i+1).IP, 53)); got != want {
					return fmt.Errorf("that of %s by %s has source %s, want %s", name, protocol, got, want)
				}
			}
		}
		return nil
	})
}

// throughout: while agents are killed and the address moves, the denied host sees no packet, and the other host only the egress IP.
func (s *bothScene) throughout(t *testing.T) {
	t.Helper()
	good, bad := echo(t, s.cluster.Outside.Netns, s.good), echo(t, s.cluster.Outside.Netns, s.bad)
	var pairs []traffic.Pair
	for _, name := range []string{"a1", "a2"} {
		for _, host := range []netip.Addr{s.good, s.bad} {
			pairs = append(pairs, traffic.Pair{Name: name + " to " + host.String(), From: s.pods[name].Netns, To: port(host, echoPort)})
		}
	}
	running, err := traffic.NewLoad(pairs, 200)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range s.cluster.Nodes() {
		kill(t, s.cluster, n.Name+"/weft-agent", syscall.SIGKILL)
		await(t, n.Name+" ready", func(ctx context.Context) error { return ready(ctx, n) })
	}
	s.host(t, "n1")
	s.host(t, "n2", egressOne)
	s.leaves(t, "the address on n2", egressOne, closed)
	s.host(t, "n2")
	s.host(t, "n1", egressOne)
	s.leaves(t, "the address on n1 again", egressOne, closed)
	tallies, _ := running.Stop() // denied datagrams are lost
	for name, tally := range tallies {
		t.Logf("%s: %s", name, tally)
	}
	if sources := bad.Sources(); len(sources) > 0 {
		t.Errorf("denied packets arrived: %v", sources)
	}
	if sources := good.Sources(); len(sources) != 1 || sources[netip.MustParseAddr(egressOne)] == 0 {
		t.Errorf("allowed packets have other sources than %s: %v", egressOne, sources)
	}
}
