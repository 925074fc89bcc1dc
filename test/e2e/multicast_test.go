//go:build lab

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/tenant"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// Projects of the multicast tests. The third never enables it.
const (
	multicastA = "multicast-a"
	multicastB = "multicast-b"
	multicastC = "multicast-c"
)

// multicastScene is pods of projects on both nodes, and both hosts, all in one multicast group.
type multicastScene struct {
	estate

	pods    map[string]*lab.Pod // a1 is the first project's on n1, and so on
	members map[string]*traffic.GroupMember
	rounds  int
}

func multicastGroup() netip.AddrPort { return netip.MustParseAddrPort("239.17.0.9:7793") }

func newMulticastScene(t *testing.T, plugin string) *multicastScene {
	t.Helper()
	c := &multicastScene{estate: estate{cluster: cluster(t)}, pods: map[string]*lab.Pod{}, members: map[string]*traffic.GroupMember{}}
	config, err := c.cluster.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.Timeout = 0 // watches are long-lived
	if c.tenants, err = tenant.New(config); err != nil {
		t.Fatal(err)
	}
	c.flatAgain(t)
	for _, name := range []string{multicastA, multicastB, multicastC} {
		addProject(t, c.cluster, name)
	}
	if plugin == networkv1.PluginNetworkPolicy {
		byPolicies(t, c.cluster)
	} else {
		c.setMode(t, plugin)
	}
	for name, spec := range map[string]lab.PodSpec{
		"a1": {Node: "n1", Namespace: multicastA}, "a2": {Node: "n2", Namespace: multicastA}, "a3": {Node: "n1", Namespace: multicastA},
		"b1": {Node: "n1", Namespace: multicastB}, "b2": {Node: "n2", Namespace: multicastB},
		"c1": {Node: "n1", Namespace: multicastC}, "c2": {Node: "n2", Namespace: multicastC},
	} {
		c.add(t, name, spec)
	}
	for _, n := range c.cluster.Nodes() {
		c.join(t, n.Name, n.Netns, "tun0")
		if err := c.members[n.Name].By(n.Netns, "tun0"); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// add starts a pod that joins the group and sends.
func (c *multicastScene) add(t *testing.T, name string, spec lab.PodSpec) {
	t.Helper()
	spec.Name = "multicast-" + name
	c.pods[name] = (&policyScene{cluster: c.cluster}).pod(t, spec)
	echo(t, c.pods[name].Netns, c.pods[name].IPs[0])
	c.join(t, name, c.pods[name].Netns, "eth0")
}

func (c *multicastScene) join(t *testing.T, name, netns, device string) {
	t.Helper()
	member, err := traffic.JoinGroup(netns, device, multicastGroup())
	if err != nil {
		t.Fatal(err)
	}
	c.members[name] = member
	t.Cleanup(func() {
		if err := member.Close(); err != nil {
			t.Error(err)
		}
	})
}

// want enables or disables multicast for a project; "" removes the annotation.
func (c *multicastScene) want(t *testing.T, project, value string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, networkv1.AnnotationMulticast, value)
	if value == "" {
		patch = fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, networkv1.AnnotationMulticast)
	}
	spaces := objects(t, c.cluster, network, "netnamespaces")
	await(t, "the NetNamespace of "+project, func(ctx context.Context) error {
		_, err := spaces.Patch(ctx, project, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// datagram is one datagram of one sender.
type datagram struct{ from, text string }

// sendAll has every member send one datagram of at least size bytes, and returns the datagrams.
func (c *multicastScene) sendAll(t *testing.T, size int) []datagram {
	t.Helper()
	var datagrams []datagram
	c.rounds++
	for _, name := range slices.Sorted(maps.Keys(c.members)) {
		text := fmt.Appendf(nil, "%s %d ", name, c.rounds)
		text = append(text, bytes.Repeat([]byte("x"), max(0, size-len(text)))...)
		if err := c.members[name].Send(text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		datagrams = append(datagrams, datagram{name, string(text)})
	}
	return datagrams
}

// together reports whether one member receives another's datagrams: both are pods of one of the sets of projects.
func together(sets []string, from, to string) bool {
	return from != to && slices.ContainsFunc(sets, func(set string) bool {
		return slices.Contains([]byte(set), from[0]) && slices.Contains([]byte(set), to[0])
	})
}

// judge returns the members that did not receive a datagram they should (missing), and those that received a wrong or repeated one
// (stray).
func (c *multicastScene) judge(datagrams []datagram, sets []string) (missing, stray []string) {
	for _, s := range datagrams {
		for to, member := range c.members {
			n := member.Count(s.text)
			wanted := together(sets, s.from, to)
			switch {
			case wanted && n == 0:
				missing = append(missing, s.from+" to "+to)
			case !wanted && n > 0 || n > 1:
				stray = append(stray, fmt.Sprintf("%s to %s, %d times", s.from, to, n))
			}
		}
	}
	slices.Sort(missing)
	slices.Sort(stray)
	return missing, stray
}

// fence returns when all earlier datagrams have arrived: after them, each node has got an answer from each pod, except for pods that only
// their own node can reach.
func (c *multicastScene) fence(t *testing.T) {
	t.Helper()
	for range 3 {
		for _, n := range c.cluster.Nodes() {
			for name, p := range c.pods {
				if name[0] == 'a' && p.Node.Name != n.Name {
					continue
				}
				ping(t, n.Netns, p.IPs[0])
			}
		}
	}
}

// receives waits until each set of projects shares multicast, and then checks this with datagrams of several sizes: no other member
// receives them, and none receives them twice.
func (c *multicastScene) receives(t *testing.T, when string, sets ...string) {
	t.Helper()
	took := await(t, when, func(context.Context) error {
		datagrams := c.sendAll(t, 0)
		c.fence(t)
		if missing, stray := c.judge(datagrams, sets); len(missing)+len(stray) > 0 {
			return fmt.Errorf("missing: %v, stray: %v", missing, stray)
		}
		return nil
	})
	t.Logf("%s after %s", when, took.Round(time.Millisecond))
	for _, size := range []int{100, 1400, 5000} { // the last in fragments
		datagrams := c.sendAll(t, size)
		await(t, "all members of the project received the datagrams", func(context.Context) error {
			if missing, _ := c.judge(datagrams, sets); len(missing) > 0 {
				return fmt.Errorf("%s, %d bytes: missing: %v", when, size, missing)
			}
			return nil
		})
		c.fence(t)
		if missing, stray := c.judge(datagrams, sets); len(missing)+len(stray) > 0 {
			t.Errorf("%s, %d bytes: missing: %v, stray: %v", when, size, missing, stray)
		}
	}
}

// large: a datagram of more fragments than the switch forwards in one go reaches all pods of a node. The namespace of their ports
// reassembles nothing: it would mix up fragments of different pods.
func (c *multicastScene) large(t *testing.T, from string, sets ...string) {
	t.Helper()
	const size = 60000
	before := c.reassembled(t)
	await(t, "a large datagram of "+from, func(context.Context) error {
		c.rounds++
		text := string(append(fmt.Appendf(nil, "%s %d ", from, c.rounds), bytes.Repeat([]byte("x"), size)...))
		if err := c.members[from].Send([]byte(text)); err != nil {
			return err
		}
		c.fence(t)
		if missing, stray := c.judge([]datagram{{from, text}}, sets); len(missing)+len(stray) > 0 {
			return fmt.Errorf("missing: %v, stray: %v", missing, stray)
		}
		return nil
	})
	if after := c.reassembled(t); after != before {
		t.Errorf("fragments in the ports' namespaces: %s, before %s", after, before)
	}
}

// reassembled returns how many fragments the namespaces of ports were to reassemble, for each node.
func (c *multicastScene) reassembled(t *testing.T) string {
	t.Helper()
	var counts []string
	for _, n := range c.cluster.Nodes() {
		var rows [][]string
		for line := range strings.Lines(mustRun(t, n.Enter("nsenter", "--net="+agent.PortsNamespace(agent.DefaultRunDir), "cat", "/proc/net/snmp"))) {
			if strings.HasPrefix(line, "Ip:") {
				rows = append(rows, strings.Fields(line))
			}
		}
		if len(rows) != 2 || !slices.Contains(rows[0], "ReasmReqds") {
			t.Fatalf("%s: no counters in %q", n.Name, rows)
		}
		counts = append(counts, rows[1][slices.Index(rows[0], "ReasmReqds")])
	}
	return strings.Join(counts, " ")
}

// Multicast is off until all namespaces of a project enable it. Then all pods of the project receive each other's datagrams on all nodes,
// and no others do, including hosts. Joined projects have it together or not at all. Restarts lose nothing.
func TestMulticast(t *testing.T) {
	flat := map[string]probe.State{}
	for _, n := range cluster(t).Nodes() {
		flat[n.Name] = settledState(t, n)
	}
	t.Run("projects", func(t *testing.T) {
		c := newMulticastScene(t, networkv1.PluginMultitenant)
		c.receives(t, "off")
		c.want(t, multicastA, "true")
		c.receives(t, "on for the first project", "a")
		c.want(t, multicastB, "yes")
		c.receives(t, "on for the first project; the second has a value other than true", "a")
		c.want(t, multicastB, "true")
		c.receives(t, "on for two projects", "a", "b")
		c.large(t, "a2", "a", "b")
		c.change(t, tenant.Join(multicastA), multicastB)
		c.receives(t, "joined", "ab")
		c.restarts(t)
		c.want(t, multicastB, "")
		c.receives(t, "joined, on for one namespace only")
		c.change(t, tenant.Isolate(), multicastB)
		c.receives(t, "isolated again", "a")
		c.want(t, multicastB, "true")
		c.comeAndGo(t)
		c.want(t, multicastA, "false")
		c.receives(t, "off again", "b")
		c.setMode(t, networkv1.PluginSubnet)
		c.receives(t, "in a flat network")
	})
	t.Run("policies", func(t *testing.T) {
		c := newMulticastScene(t, networkv1.PluginNetworkPolicy)
		c.receives(t, "off")
		c.want(t, multicastA, "true")
		c.receives(t, "on for the first project", "a")
		client, err := c.cluster.Client()
		if err != nil {
			t.Fatal(err)
		}
		deny := networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}}
		policies := client.NetworkingV1().NetworkPolicies(multicastA)
		if _, err := policies.Create(t.Context(), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny"}, Spec: deny}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		await(t, "isolated", func(ctx context.Context) error {
			short, cancel := context.WithTimeout(ctx, brief)
			defer cancel()
			if _, err := traffic.Ping(short, c.pods["a1"].Netns, addrPort(c.pods["a2"])); err == nil {
				return errors.New("a1 reaches a2")
			}
			return nil
		})
		c.receives(t, "on, and isolated otherwise", "a")
		c.large(t, "a2", "a")
		if err := policies.Delete(t.Context(), "deny", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	for _, n := range cluster(t).Nodes() {
		await(t, "the flows of "+n.Name+" as before", func(ctx context.Context) error {
			for _, subject := range []string{"flows", "groups"} {
				if now, before := probe.StateIn(ctx, n, subject), flat[n.Name][subject]; now != before {
					return fmt.Errorf("%s are\n%s\nand were\n%s", subject, now, before)
				}
			}
			return nil
		})
	}
}

// restarts kills agents while all members receive all datagrams: nothing is lost.
func (c *multicastScene) restarts(t *testing.T) {
	t.Helper()
	stop, stopped := make(chan struct{}), make(chan []datagram)
	go func() {
		var datagrams []datagram
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				stopped <- datagrams
				return
			case <-ticker.C:
			}
			for _, name := range []string{"a1", "b2"} {
				text := fmt.Sprintf("%s during restarts %d", name, i)
				if err := c.members[name].Send([]byte(text)); err != nil {
					t.Error(err)
				}
				datagrams = append(datagrams, datagram{name, text})
			}
		}
	}()
	for i, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGTERM, syscall.SIGKILL} {
		n := c.cluster.Node(1 + i%2)
		kill(t, c.cluster, n.Name+"/weft-agent", signal)
		await(t, n.Name+" ready", func(ctx context.Context) error { return ready(ctx, n) })
	}
	close(stop)
	datagrams := <-stopped
	c.fence(t) // they have arrived, and are read sooner or later
	_, _ = probe.Await(t.Context(), generous, "the datagrams read", func(context.Context) error {
		if missing, _ := c.judge(datagrams, []string{"ab"}); len(missing) > 0 {
			return fmt.Errorf("%d deliveries are missing", len(missing))
		}
		return nil
	})
	if missing, stray := c.judge(datagrams, []string{"ab"}); len(missing)+len(stray) > 0 {
		t.Errorf("of %d datagrams while agents were killed, %d deliveries are missing and %d are stray", len(datagrams), len(missing), len(stray))
	}
	t.Logf("%d datagrams sent while agents were killed", len(datagrams))
}

// comeAndGo: a new pod receives datagrams. A pod of another project that gets a deleted pod's port does not.
func (c *multicastScene) comeAndGo(t *testing.T) {
	t.Helper()
	for i := range 5 {
		name := fmt.Sprintf("a%d", 10+i)
		c.add(t, name, lab.PodSpec{Node: "n1", Namespace: multicastA})
	}
	c.receives(t, "with more pods", "a", "b")
	for i := range 5 {
		name := fmt.Sprintf("a%d", 10+i)
		delPod(t, c.pods[name])
		delete(c.pods, name)
		delete(c.members, name)
	}
	for i := range 40 { // more than there are pre-plugged ports, so that some get reused ports
		c.add(t, fmt.Sprintf("c%d", 10+i), lab.PodSpec{Node: "n1", Namespace: multicastC})
	}
	c.receives(t, "with other pods", "a", "b")
}
