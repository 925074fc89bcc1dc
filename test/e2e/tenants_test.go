//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/internal/tenant"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// Projects of the tests: the first is unchanged, the second moves, the third is unrelated.
const (
	projectA = "tenants-a"
	projectB = "tenants-b"
	projectC = "tenants-c"
)

// estate is a cluster with projects, each with server pods on both nodes.
type estate struct {
	cluster *lab.Cluster
	tenants *tenant.Client
	pods    map[string]*lab.Pod
	echoes  map[string]*traffic.Echo
}

// addProject makes a namespace. When the test ends, it is deleted as a namespace controller would do it.
func addProject(t *testing.T, c *lab.Cluster, name string) {
	t.Helper()
	client, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	namespaces := client.CoreV1().Namespaces()
	_, err = namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err := namespaces.Delete(ctx, name, metav1.DeleteOptions{})
		if err == nil {
			_, err = namespaces.Finalize(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.UpdateOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			t.Errorf("removing namespace %s: %v", name, err)
		}
	})
}

// addPodIn starts a pod of a project. It is deleted when the test ends.
func addPodIn(t *testing.T, c *lab.Cluster, node, namespace, name string) *lab.Pod {
	t.Helper()
	return addPodAs(t, c, lab.PodSpec{Node: node, Namespace: namespace, Name: name, NoObject: true})
}

// newEstate makes the projects, in the cluster's mode.
func newEstate(t *testing.T) *estate {
	t.Helper()
	e := &estate{cluster: cluster(t), pods: map[string]*lab.Pod{}, echoes: map[string]*traffic.Echo{}}
	config, err := e.cluster.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.Timeout = 0 // watches are long-lived
	if e.tenants, err = tenant.New(config); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{projectA, projectB, projectC} {
		addProject(t, e.cluster, name)
	}
	for _, p := range []struct{ name, namespace, node string }{
		{"a1", projectA, "n1"},
		{"a2", projectA, "n2"},
		{"a3", projectA, "n1"},
		{"b1", projectB, "n1"},
		{"b2", projectB, "n2"},
		{"c1", projectC, "n1"},
		{"c2", projectC, "n2"},
		{"d1", "default", "n1"},
		{"d2", "default", "n2"},
	} {
		pod := addPodIn(t, e.cluster, p.node, p.namespace, "tenants-"+p.name)
		e.pods[p.name], e.echoes[p.name] = pod, echo(t, pod.Netns, pod.IPs[0])
	}
	return e
}

// setMode changes the mode of the running cluster, and waits until it is in effect on all nodes. It asks the agents: they write their
// HostSubnets only every 5 seconds.
func (e *estate) setMode(t *testing.T, plugin string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	networks := objects(t, e.cluster, network, "clusternetworks")
	patch := fmt.Appendf(nil, `{"pluginName":%q}`, plugin)
	if _, err := networks.Patch(ctx, networkv1.ClusterNetworkDefault, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	var following errgroup.Group
	for _, n := range e.cluster.Nodes() {
		following.Go(func() error {
			if _, err := probe.Await(ctx, patience, n.Name+" follows "+plugin, inEffect(n, plugin)); err != nil {
				return err
			}
			// The switch's datapath follows the flows within half a second.
			_, err := probe.Run(ctx, n.Enter("ovs-appctl", "-T", "60", "-t", "ovs-vswitchd", "revalidator/wait"))
			return err
		})
	}
	if err := following.Wait(); err != nil {
		t.Fatal(err)
	}
}

// inEffect returns what returns nil once a plugin's mode is in effect on a node: its agent has the mode, no engine has anything to commit, and
// the flows are the same twice in succession.
func inEffect(n lab.Node, plugin string) func(context.Context) error {
	var last string
	return func(ctx context.Context) error {
		before := last
		last = ""
		state, err := probe.AgentState(ctx, n)
		if err != nil {
			return err
		}
		for i := range state.Engines {
			if e := &state.Engines[i]; e.Waiting > 0 {
				return fmt.Errorf("%d items of engine %s wait", e.Waiting, e.Name)
			}
		}
		if state.Mode == "" || !strings.HasSuffix(plugin, "-"+state.Mode) {
			return fmt.Errorf("it has mode %q", state.Mode)
		}
		if last = probe.StateIn(ctx, n, "flows"); last != before {
			return errors.New("its flows still change")
		}
		return nil
	}
}

// flatAgain restores the mode that other tests expect, however the test ends.
func (e *estate) flatAgain(t *testing.T) {
	t.Cleanup(func() {
		e.setMode(t, networkv1.PluginSubnet)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := objects(t, e.cluster, network, "netnamespaces").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Errorf("removing NetNamespaces: %v", err)
		}
	})
}

// change changes projects, and waits until the change is in effect.
func (e *estate) change(t *testing.T, request tenant.Request, names ...string) tenant.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tenant.Patience)
	defer cancel()
	request.Namespaces = names
	began := time.Now()
	report, err := e.tenants.Change(ctx, request, true, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v after %s", report, time.Since(began).Round(time.Millisecond))
	return report
}

// counts returns how many datagrams a pod has received from another.
func (e *estate) counts(from, to string) int { return e.echoes[to].Sources()[e.pods[from].IPs[0]] }

// groups lists the networks: "a+b c" are two networks, of which the first has two projects. All projects can reach d's pods.
type groups []string

func (g groups) together(from, to string) bool {
	return from[0] == 'd' || to[0] == 'd' || from[0] == to[0] || slices.ContainsFunc(g, func(one string) bool {
		return slices.Contains([]byte(one), from[0]) && slices.Contains([]byte(one), to[0])
	})
}

// judge sends from each pod to each other, and compares the result with the groups. Datagrams that must not arrive are sent before those
// that must, by the same sender to the same node.
func (e *estate) judge(t *testing.T, when string, g groups) {
	t.Helper()
	forbidden, allowed := 0, 0
	before := map[[2]string]int{}
	each := func(together bool, f func(from, to string)) {
		for from := range e.pods {
			for to := range e.pods {
				if from != to && g.together(from, to) == together {
					f(from, to)
				}
			}
		}
	}
	each(false, func(from, to string) {
		before[[2]string{from, to}] = e.counts(from, to)
		for range 3 {
			sendUDP(t, e.pods[from].Netns, addrPort(e.pods[to]), []byte(from+" to "+to))
		}
	})
	each(true, func(from, to string) {
		allowed++
		ping(t, e.pods[from].Netns, e.pods[to].IPs[0])
	})
	each(false, func(from, to string) {
		forbidden++
		if n := e.counts(from, to) - before[[2]string{from, to}]; n > 0 {
			t.Errorf("%s: %s reaches %s of another project", when, from, to)
		}
	})
	for _, n := range e.cluster.Nodes() { // hosts reach all pods
		for _, p := range e.pods {
			ping(t, n.Netns, p.IPs[0])
		}
	}
	t.Logf("%s: %d pairs reach each other, %d do not", when, allowed, forbidden)
}

// pairsOf returns the streams between pods with these short names.
func (e *estate) pairsOf(pairs ...[2]string) *load {
	l := &load{}
	for _, p := range pairs {
		l.from, l.to = append(l.from, e.pods[p[0]]), append(l.to, e.pods[p[1]])
	}
	return l
}

// forbid starts streams that must not arrive. end stops them and counts.
func (e *estate) forbid(t *testing.T, pairs ...[2]string) (end func()) {
	t.Helper()
	const rate = 200
	var streams []traffic.Pair
	before := map[[2]string]int{}
	for _, p := range pairs {
		before[p] = e.counts(p[0], p[1])
		streams = append(streams, traffic.Pair{Name: p[0] + " to " + p[1], From: e.pods[p[0]].Netns, To: addrPort(e.pods[p[1]])})
	}
	running, err := traffic.NewLoad(streams, rate)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		tallies, _ := running.Stop() // the error is that all were lost
		sent := uint64(0)
		for _, tally := range tallies {
			sent += tally.Sent
		}
		for _, p := range pairs {
			if n := e.counts(p[0], p[1]) - before[p]; n > 0 {
				t.Errorf("%d packets of %s arrived at %s, which was another project's all the time", n, p[0], p[1])
			}
		}
		if sent == 0 {
			t.Error("no denied packet was sent")
		}
		t.Logf("%d denied packets sent", sent)
	}
}

// A running cluster turns isolation of projects on and off, joins projects, isolates them again and makes them global, all under traffic:
// no packet is lost that is allowed before and after, and none passes that is forbidden before and after. Killed agents change nothing of
// that.
func TestTenants(t *testing.T) {
	e := newEstate(t)
	flat := map[string]probe.State{}
	for _, n := range e.cluster.Nodes() {
		flat[n.Name] = settledState(t, n)
	}
	e.judge(t, "flat", groups{"abc"})
	l := e.pairsOf([2]string{"a1", "a2"}, [2]string{"b2", "b1"}, [2]string{"c1", "c2"}, [2]string{"d1", "b2"}, [2]string{"a1", "a3"}, [2]string{"b1", "d2"})
	l.control(t, window(5*time.Second))
	e.flatAgain(t)
	l.during(t, "the change to isolated projects", func() { e.setMode(t, networkv1.PluginMultitenant) })
	e.judge(t, "isolated", nil)

	t.Run("moves", func(t *testing.T) {
		end := e.forbid(t, [2]string{"c1", "a2"}, [2]string{"a1", "c2"}, [2]string{"c1", "a3"})
		defer end()
		l.during(t, "joined, isolated, global, isolated", func() {
			e.change(t, tenant.Join(projectA), projectB)
			e.judge(t, "joined", groups{"ab"})
			e.change(t, tenant.Isolate(), projectB)
			e.judge(t, "isolated again", nil)
			e.change(t, tenant.Global(), projectB)
			e.judge(t, "global", groups{"ab", "bc"})
			e.change(t, tenant.Isolate(), projectB)
			e.judge(t, "no longer global", nil)
		})
	})
	t.Run("restarts", func(t *testing.T) {
		end := e.forbid(t, [2]string{"c1", "a2"}, [2]string{"b1", "c2"}, [2]string{"c1", "a3"})
		defer end()
		watches := map[string]*probe.FlowWatch{}
		for _, n := range e.cluster.Nodes() {
			watches[n.Name] = watchFlows(t, n)
		}
		l.during(t, "agents killed", func() {
			for i, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGTERM, syscall.SIGKILL} {
				n := e.cluster.Node(1 + i%2)
				kill(t, e.cluster, n.Name+"/weft-agent", signal)
				await(t, n.Name+" ready", func(ctx context.Context) error { return ready(ctx, n) })
			}
		})
		for name, watch := range watches {
			if err := watch.Check(t.Context(), nil); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		e.judge(t, "after restarts", nil)
		asks(t, newRealised(t, e.cluster), realised.NetNamespace, projectB, 2)
	})
	t.Run("connection", func(t *testing.T) { e.connectionEnds(t) })
	t.Run("services", func(t *testing.T) { e.services(t) })
	t.Run("new", func(t *testing.T) { e.newProject(t) })
	t.Run("hostile", func(t *testing.T) {
		c := e.cluster
		newStageOf(t, c, []*lab.Pod{
			addPodIn(t, c, "n1", projectA, "attacker"), addPodIn(t, c, "n1", projectB, "neighbour"), addPodIn(t, c, "n2", projectB, "remote"),
		}, true).attack(t)
	})
	t.Run("wrong", func(t *testing.T) { e.wrongRequests(t) })

	l.during(t, "the change to a flat network, and three times to isolated projects and back", func() {
		e.setMode(t, networkv1.PluginSubnet)
		for range 3 { // a wrong order loses packets mostly, but not always
			e.setMode(t, networkv1.PluginMultitenant)
			e.setMode(t, networkv1.PluginSubnet)
		}
	})
	e.judge(t, "flat again", groups{"abc"})
	for _, n := range e.cluster.Nodes() {
		awaitState(t, n, flat[n.Name], "the network is flat again")
	}
}

// connectionEnds: an established connection ends when its permission is revoked.
func (e *estate) connectionEnds(t *testing.T) {
	e.change(t, tenant.Join(projectA), projectB)
	streams, err := traffic.NewLoad([]traffic.Pair{{Name: "a1 to b2", From: e.pods["a1"].Netns, To: addrPort(e.pods["b2"])}}, 200)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = streams.Stop() }() // losing packets is intended
	await(t, "packets of a1 at b2", func(context.Context) error {
		if e.counts("a1", "b2") == 0 {
			return errors.New("no packet so far")
		}
		return nil
	})
	e.change(t, tenant.Isolate(), projectB)
	at := e.counts("a1", "b2")
	for range 100 { // packets in flight have arrived by then
		ping(t, e.pods["a1"].Netns, e.pods["a2"].IPs[0])
	}
	e.judge(t, "while a client retries its connection", nil)
	if now := e.counts("a1", "b2"); now != at {
		t.Errorf("%d packets of the connection arrived after it was denied", now-at)
	}
}

// services: a Service leads a client only to endpoints of the client's own project and of global ones, on any node.
func (e *estate) services(t *testing.T) {
	client, err := e.cluster.Client()
	if err != nil {
		t.Fatal(err)
	}
	s := &serviceScene{cluster: e.cluster, client: client}
	for _, name := range []string{"a2", "a3", "c1", "c2", "d2"} {
		startSourceServer(t, e.pods[name].Netns, name, sourcePort)
	}
	own := s.simple(t, "tenants-own", nil, at(e.pods["a2"]), at(e.pods["a3"]))
	global := s.simple(t, "tenants-global", nil, at(e.pods["d2"]))
	near, far := s.simple(t, "tenants-near", nil, at(e.pods["c1"])), s.simple(t, "tenants-far", nil, at(e.pods["c2"]))
	asks := e.pods["a1"].Netns
	settles(t, asks, port(own, 80), "a2", "a3")
	settles(t, asks, port(global, 80), "d2")
	settles(t, e.pods["d1"].Netns, port(own, 80), "a2", "a3") // a global project reaches all; and the node has these Services
	settles(t, e.pods["d1"].Netns, port(near, 80), "c1")
	settles(t, e.pods["d1"].Netns, port(far, 80), "c2")
	settles(t, e.cluster.Node(1).Netns, port(far, 80), "c2") // by kube-proxy
	for _, network := range []string{"tcp", "udp"} {
		silent(t, asks, network, port(near, 80))
		silent(t, asks, network, port(far, 80))
	}
	refused(t, asks, port(own, 81), "tcp", "udp") // an unused port of a Service is not passed to the host
}

// newProject: a pod that is created with its namespace is attached, and isolated from its first packet on.
func (e *estate) newProject(t *testing.T) {
	const name = "tenants-new"
	addProject(t, e.cluster, name)
	one, two := addPodIn(t, e.cluster, "n1", name, "new-1"), addPodIn(t, e.cluster, "n2", name, "new-2")
	there := echo(t, two.Netns, two.IPs[0])
	for _, from := range []string{"a1", "a2", "c2"} {
		sendUDP(t, e.pods[from].Netns, addrPort(two), []byte("hello"))
	}
	ping(t, one.Netns, two.IPs[0])
	ping(t, e.pods["d1"].Netns, two.IPs[0])
	for _, from := range []string{"a1", "a2", "c2"} {
		if n := there.Sources()[e.pods[from].IPs[0]]; n > 0 {
			t.Errorf("%s reaches the new project", from)
		}
	}
	// A namespace that does not exist has no VNID, and its pods are not attached.
	if p, err := e.cluster.AddPod(t.Context(), lab.PodSpec{Node: "n1", Namespace: "tenants-none", Name: "none", NoObject: true}); err == nil {
		t.Error("a pod of a namespace without a VNID was attached")
		delPod(t, p)
	} else if failure, known := probe.AsFailure(err); !known || failure.Code != codeTryAgain {
		t.Errorf("a pod of a namespace without a VNID: %v", err)
	} else {
		delPod(t, p)
	}
}

// wrongRequests are refused with a reason, and change nothing.
func (e *estate) wrongRequests(t *testing.T) {
	for what, bad := range map[string]struct {
		request tenant.Request
		names   []string
	}{
		"stays global":          {tenant.Isolate(), []string{"default"}},
		"tenants-unknown":       {tenant.Join("tenants-unknown"), []string{projectA}},
		"cannot join itself":    {tenant.Join(projectA), []string{projectA}},
		"give the namespaces":   {tenant.Global(), nil},
		"no NetNamespace of th": {tenant.Global(), []string{"tenants-unknown"}},
	} {
		bad.request.Namespaces = bad.names
		if report, err := e.tenants.Change(t.Context(), bad.request, true, func(string) {}); err == nil {
			t.Errorf("%q: %v", what, report)
		} else if !strings.Contains(err.Error(), what) {
			t.Errorf("error %v does not contain %q", err, what)
		}
	}
}
