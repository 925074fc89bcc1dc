//go:build lab

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/tenant"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// The name in the tests' policies, and a record that gives it an address.
const egressName = "www.egress.test"

func address(ttl int, host netip.Addr) string {
	return fmt.Sprintf("%s. %d IN A %s", egressName, ttl, host)
}

// A policy's rules on addresses and names take effect for pods on all nodes at the same time; other namespaces are not affected.
func TestEgressFirewall(t *testing.T) {
	c := cluster(t)
	byPolicies(t, c)
	s := newGuardScene(t, c)
	before := map[string]probe.State{}
	for _, n := range c.Nodes() {
		before[n.Name] = settledState(t, n)
	}
	all := s.hosts[0].String() + "/30" // 20 to 23
	one := func(i int) string { return s.hosts[i].String() + "/32" }
	s.reach(t, "no policy", 0, 1, 2, 3)

	t.Run("ranges in order", func(t *testing.T) {
		s.policy(t, guardedOne, "default", "Allow "+one(0), "Deny "+all)
		s.reach(t, "the exception before the range", 0)
		s.condition(t, guardedOne, "default", networkv1.ReasonValid, "")
		s.policy(t, guardedOne, "default", "Deny "+all, "Allow "+one(0))
		s.reach(t, "the exception after the range")
		s.policy(t, guardedOne, "default", "Deny "+one(1), "Allow "+all, "Deny 0.0.0.0/0")
		s.reach(t, "three ranges", 0, 2, 3)
		has(t, owned(t), "egressfirewall")
		s.policy(t, guardedOne, "default", "Deny 0.0.0.0/0")
		s.reach(t, "deny all")
		s.policy(t, guardedOne, "default")
		s.reach(t, "no rules", 0, 1, 2, 3)
	})
	t.Run("a connection ends", func(t *testing.T) {
		conn, err := traffic.Dial(t.Context(), s.near.Netns, "tcp", port(s.hosts[0], sourcePort))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Ask(); err != nil {
			t.Fatal(err)
		}
		s.policy(t, guardedOne, "default", "Deny "+one(0))
		s.reach(t, "one denied", 1, 2, 3)
		if answer, err := conn.Ask(); err == nil {
			t.Errorf("the connection still works: %s", answer)
		}
	})
	t.Run("several policies", func(t *testing.T) {
		s.policy(t, guardedOne, "default", "Deny "+one(0))
		s.policy(t, guardedOne, "other", "Allow 0.0.0.0/0")
		s.reach(t, "two policies")
		for _, name := range []string{"default", "other"} {
			s.condition(t, guardedOne, name, networkv1.ReasonConflict, "2 EgressNetworkPolicies")
		}
		s.drop(t, guardedOne, "other")
		s.reach(t, "one policy again", 1, 2, 3)
		s.condition(t, guardedOne, "default", networkv1.ReasonValid, "")
	})
	t.Run("wrong policies are refused", func(t *testing.T) {
		for says, text := range map[string]string{
			"supported values":        "AllowX 192.0.2.0/24",
			"exactly one of":          "Allow ",
			"an address is no name":   "Allow 192.0.2.1",
			"spec.egress[0].to.dnsNa": "Allow *.example.test",
		} {
			object := &networkv1.EgressNetworkPolicy{}
			object.Namespace, object.Name, object.Spec.Egress = guardedTwo, "wrong", rules(text)
			if err := s.api.Create(t.Context(), object); err == nil {
				s.drop(t, guardedTwo, "wrong")
				t.Errorf("%q was accepted", text)
			} else if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(says)) {
				t.Errorf("%q: error %v does not contain %q", text, err, says)
			}
		}
	})
	t.Run("names", func(t *testing.T) { s.names(t, all) })
	t.Run("restarts", func(t *testing.T) { s.restarts(t, all) })

	s.drop(t, guardedOne, "default")
	s.reach(t, "no policy again", 0, 1, 2, 3)
	for _, n := range c.Nodes() {
		awaitState(t, n, before[n.Name], "the policy was deleted")
	}
}

// names: a name has the addresses of the name server's answer for one TTL. Traffic to names without a known address is denied.
func (s *guardScene) names(t *testing.T, all string) {
	const ttl, alias, large = 5, "alias.egress.test", "large.egress.test"
	for _, name := range []string{egressName, alias, large} {
		s.zone.fails(name)
	}
	s.policy(t, guardedOne, "default", "Allow "+egressName, "Allow "+alias, "Allow "+large, "Deny "+all)
	s.reach(t, "allowed names that cannot be resolved")
	s.zone.cut(large)
	s.zone.has(large, fmt.Sprintf("%s. %d IN A %s", large, ttl, s.hosts[1]))
	s.zone.has(alias, fmt.Sprintf("%s. %d IN CNAME far.test.", alias, ttl), fmt.Sprintf("far.test. %d IN A %s", ttl, s.hosts[0]))
	s.zone.has(egressName, address(ttl, s.hosts[2]))
	s.reach(t, "the names are resolved: an alias, an answer that is larger than a UDP packet, and a usual one", 0, 1, 2)
	if s.zone.byTCP() == 0 {
		t.Error("no query by TCP")
	}
	s.zone.has(egressName, address(ttl, s.hosts[3]))
	s.reach(t, "a name has another address", 0, 1, 3)
	for _, name := range []string{egressName, alias, large} {
		s.zone.has(name)
	}
	s.reach(t, "the names no longer exist")

	s.zone.fails(egressName)
	s.policy(t, guardedOne, "default", "Allow "+s.hosts[3].String()+"/32", "Deny "+egressName) // the name still does not exist
	s.reach(t, "a denied name that does not exist", 0, 1, 2, 3)
	s.zone.fails("other.egress.test") // before the first query, because "does not exist" is an answer as well
	s.policy(t, guardedOne, "default", "Allow "+s.hosts[3].String()+"/32", "Deny other.egress.test")
	s.reach(t, "a denied name without an answer: everything is denied that no earlier rule matched", 3)
	s.zone.has("other.egress.test", fmt.Sprintf("other.egress.test. %d IN A %s", ttl, s.hosts[0]))
	s.reach(t, "the denied name is resolved", 1, 2, 3)
}

// restarts: killing an agent under traffic changes nothing: traffic to an allowed name passes, and denied traffic does not.
func (s *guardScene) restarts(t *testing.T, all string) {
	s.zone.has(egressName, address(5, s.hosts[0]))
	s.policy(t, guardedOne, "default", "Allow "+egressName, "Deny "+all)
	s.reach(t, "allowed by name", 0)
	denied := echo(t, s.cluster.Outside.Netns, s.hosts[2])
	allowed := echo(t, s.cluster.Outside.Netns, s.hosts[0])
	running := func(to netip.Addr) *traffic.Load {
		load, err := traffic.NewLoad([]traffic.Pair{
			{Name: "near to " + to.String(), From: s.near.Netns, To: port(to, echoPort)}, {Name: "far to " + to.String(), From: s.far.Netns, To: port(to, echoPort)},
		}, 200)
		if err != nil {
			t.Fatal(err)
		}
		return load
	}
	ping(t, s.near.Netns, s.hosts[0])
	ping(t, s.far.Netns, s.hosts[0])
	watches := map[string]*probe.FlowWatch{}
	for _, n := range s.cluster.Nodes() {
		watches[n.Name] = watchFlows(t, n)
	}
	good, bad := running(s.hosts[0]), running(s.hosts[2])
	for i, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGTERM, syscall.SIGKILL} {
		n := s.cluster.Node(1 + i%2)
		if i == 2 { // with the name server away, the result is the same
			s.zone.fails(egressName)
		}
		kill(t, s.cluster, n.Name+"/weft-agent", signal)
		await(t, n.Name+" ready", func(ctx context.Context) error { return ready(ctx, n) })
	}
	tallies, err := good.Stop()
	sent := uint64(0)
	for _, tally := range tallies {
		sent += tally.Sent
		if tally.Lost > 0 {
			t.Errorf("allowed packets were lost: %v", err)
		}
	}
	tallies, _ = bad.Stop() // all are lost
	for _, tally := range tallies {
		if tally.Sent == 0 {
			t.Error("no denied packet was sent")
		}
	}
	if sources := denied.Sources(); len(sources) > 0 {
		t.Errorf("denied packets arrived: %v", sources)
	}
	if len(allowed.Sources()) == 0 || sent == 0 {
		t.Error("no allowed packet was sent")
	}
	for name, watch := range watches {
		if err := watch.Check(t.Context(), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Logf("%d allowed packets, none lost; no denied packet arrived", sent)
	s.reach(t, "after restarts", 0)
}

// With isolated projects: namespaces that share a VNID are closed if any has a policy. A global namespace is not affected. A policy
// applies to its namespace even when that moves to another VNID.
func TestEgressFirewallOfProjects(t *testing.T) {
	c := cluster(t)
	e := &estate{cluster: c}
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.Timeout = 0 // watches are long-lived
	if e.tenants, err = tenant.New(config); err != nil {
		t.Fatal(err)
	}
	e.flatAgain(t)
	s := newGuardScene(t, c)
	s.policy(t, guardedOne, "default", "Deny "+s.hosts[0].String()+"/32")
	s.condition(t, guardedOne, "default", networkv1.ReasonNoEffect, "egress firewalls need a network with VNIDs")
	s.reach(t, "a flat network", 0, 1, 2, 3)

	e.setMode(t, networkv1.PluginMultitenant)
	s.reach(t, "isolated projects", 1, 2, 3)
	s.condition(t, guardedOne, "default", networkv1.ReasonValid, "")
	both := func(what string, places ...int) {
		t.Helper()
		s.reachOf(t, what, map[*lab.Pod][]int{s.near: places, s.far: places, s.otherPod: places})
	}
	end := s.forbidden(t, 0)
	e.change(t, tenant.Join(guardedOne), guardedTwo)
	both("joined")
	s.condition(t, guardedOne, "default", networkv1.ReasonConflict, "several namespaces have the VNID")
	e.change(t, tenant.Isolate(), guardedTwo)
	s.reach(t, "isolated again", 1, 2, 3)
	e.change(t, tenant.Isolate(), guardedOne)
	s.reach(t, "moved", 1, 2, 3)
	end()
	e.change(t, tenant.Global(), guardedOne)
	s.reach(t, "global", 0, 1, 2, 3)
	s.condition(t, guardedOne, "default", networkv1.ReasonNoEffect, "VNID 0")
	e.change(t, tenant.Isolate(), guardedOne)
	s.reach(t, "no longer global", 1, 2, 3)
	e.setMode(t, networkv1.PluginSubnet)
	s.reach(t, "flat again", 0, 1, 2, 3)
}

// forbidden sends to a host that the first namespace must not reach. end stops that and counts.
func (s *guardScene) forbidden(t *testing.T, host int) (end func()) {
	t.Helper()
	at := echo(t, s.cluster.Outside.Netns, s.hosts[host])
	load, err := traffic.NewLoad([]traffic.Pair{{Name: "forbidden", From: s.near.Netns, To: port(s.hosts[host], echoPort)}, {Name: "forbidden from far", From: s.far.Netns, To: port(s.hosts[host], echoPort)}}, 200)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	return func() {
		tallies, _ := load.Stop() // all are lost
		if sources := at.Sources(); len(sources) > 0 {
			t.Errorf("packets that were denied all the time arrived: %v", sources)
		}
		t.Logf("%v in %s", tallies, time.Since(began).Round(time.Millisecond))
	}
}
