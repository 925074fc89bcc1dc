//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/test/firstpacket"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// otherPort is a second port where pods answer.
const otherPort = sourcePort + 1

// byPolicies sets the lab's network to the mode with NetworkPolicies, until the test ends.
func byPolicies(t *testing.T, c *lab.Cluster) {
	t.Helper()
	networks := objects(t, c, network, "clusternetworks")
	good, err := networks.Get(t.Context(), networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	former, _, err := unstructured.NestedString(good.Object, "pluginName")
	if err != nil {
		t.Fatal(err)
	}
	before := map[string]string{}
	for _, n := range c.Nodes() {
		before[n.Name] = settledFlows(t, n)
	}
	t.Cleanup(func() {
		restore(t, networks, good)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for _, n := range c.Nodes() { // the next test may begin with a change of the mode
			if _, err := probe.Await(ctx, patience, n.Name+" in its former mode", inEffect(n, isolates(former))); err != nil {
				t.Error(err)
			}
		}
	})
	patch := fmt.Sprintf(`{"pluginName":%q}`, networkv1.PluginNetworkPolicy)
	if _, err := networks.Patch(t.Context(), networkv1.ClusterNetworkDefault, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	withVNIDs := isolates(networkv1.PluginNetworkPolicy)
	for _, n := range c.Nodes() {
		await(t, n.Name+" in the mode with NetworkPolicies", inEffect(n, func(state *admin.State, flows string) bool {
			return withVNIDs(state, flows) && flows != before[n.Name]
		}))
	}
}

// settledFlows returns a node's flows once they are the same twice in succession.
func settledFlows(t *testing.T, n lab.Node) (flows string) {
	t.Helper()
	await(t, n.Name+" settled", func(ctx context.Context) error {
		before := flows
		if flows = probe.StateIn(ctx, n, "flows"); flows != before {
			return errors.New("its flows still change")
		}
		return nil
	})
	return flows
}

// policyScene is pods in two namespaces: servers and clients on both nodes.
type policyScene struct {
	cluster *lab.Cluster
	client  kubernetes.Interface
	// server is on the first node. near and far are clients on the first and the second node. otherPod is on the second node, in another
	// namespace.
	server, near, far, otherPod *lab.Pod
	// annotations are set on the policies.
	annotations map[string]string
}

func newPolicyScene(t *testing.T, name string) *policyScene {
	t.Helper()
	c := cluster(t)
	byPolicies(t, c)
	s := &policyScene{cluster: c}
	var err error
	if s.client, err = c.Client(); err != nil {
		t.Fatal(err)
	}
	s.server = s.pod(t, lab.PodSpec{Node: "n1", Name: name + "-server", Labels: map[string]string{"app": "server"}, Ports: []corev1.ContainerPort{{Name: "other", ContainerPort: otherPort}}})
	s.near = s.pod(t, lab.PodSpec{Node: "n1", Name: name + "-near", Labels: map[string]string{"app": "near"}})
	s.far = s.pod(t, lab.PodSpec{Node: "n2", Name: name + "-far", Labels: map[string]string{"app": "far"}})
	s.otherPod = s.pod(t, lab.PodSpec{Node: "n2", Namespace: "other-namespace", Name: name + "-other", Labels: map[string]string{"app": "far"}})
	for _, p := range []*lab.Pod{s.server, s.near, s.far} {
		startSourceServer(t, p.Netns, p.Name, sourcePort)
		startSourceServer(t, p.Netns, p.Name, otherPort)
	}
	return s
}

func (s *policyScene) pod(t *testing.T, spec lab.PodSpec) *lab.Pod {
	t.Helper()
	p, err := tryAddPod(t.Context(), s.cluster, spec)
	if p != nil {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := s.cluster.DelPod(ctx, p); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// policy makes a policy for the servers, or replaces it. It is deleted when the test ends.
func (s *policyScene) policy(t *testing.T, name string, selector map[string]string, spec networkingv1.NetworkPolicySpec) {
	t.Helper()
	policies := s.client.NetworkingV1().NetworkPolicies("default")
	spec.PodSelector.MatchLabels = selector
	object := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: s.annotations}, Spec: spec}
	if now, err := policies.Get(t.Context(), name, metav1.GetOptions{}); err == nil {
		object.ResourceVersion = now.ResourceVersion
		if _, err := policies.Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		return
	}
	if _, err := policies.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.drop(t, name) })
}

// drop deletes a policy. If it is missing, that is no error.
func (s *policyScene) drop(t *testing.T, name string) {
	t.Helper()
	list, err := s.client.NetworkingV1().NetworkPolicies("default").List(context.Background(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if err := s.client.NetworkingV1().NetworkPolicies("default").Delete(context.Background(), list.Items[i].Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}

const (
	// brief is the time limit for an answer that must not come: within a machine it takes microseconds.
	brief = 400 * time.Millisecond
	// generous is the time limit for an answer that must come, also on a busy machine. An answer ends the wait.
	generous = 5 * time.Second
)

// answers reports whether a connection by TCP is answered in time. A connection without an answer is followed by another one, each with twice
// the time: on a path that has just opened, that is sooner than TCP's repetition of the first packet.
func answers(ctx context.Context, from string, to netip.AddrPort, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for once := brief; ; once *= 2 {
		trying, cancel := context.WithTimeout(ctx, once)
		_, err := traffic.Ask(trying, from, "tcp", to)
		cancel()
		if err == nil {
			return true
		}
		if late, known := errors.AsType[net.Error](err); ctx.Err() != nil || !known || !late.Timeout() {
			return false
		}
	}
}

// attempt is a client, the address that it connects to, and whether an answer is expected.
type attempt struct {
	name   string
	from   string
	to     netip.AddrPort
	passes bool
}

// expect waits until all expectations hold at the same time. The connections are made at once, because most of the time is spent waiting for
// answers that must not come.
func expect(t *testing.T, what string, all ...attempt) {
	t.Helper()
	took := await(t, what, func(ctx context.Context) error {
		var group errgroup.Group
		for _, w := range all {
			group.Go(func() error {
				wait := brief
				if w.passes {
					wait = generous
				}
				if got := answers(ctx, w.from, w.to, wait); got != w.passes {
					return fmt.Errorf("connection from %s to %s is answered: %t", w.name, w.to, got)
				}
				return nil
			})
		}
		return group.Wait()
	})
	t.Logf("%s, after %s", what, took.Round(time.Millisecond))
}

// reach checks which of near, far and otherPod reach the server, by port.
func (s *policyScene) reach(t *testing.T, what string, byPort map[uint16][3]bool) {
	t.Helper()
	var all []attempt
	for _, number := range slices.Sorted(maps.Keys(byPort)) {
		for i, from := range []*lab.Pod{s.near, s.far, s.otherPod} {
			all = append(all, attempt{from.Name, from.Netns, port(s.server.IPs[0], number), byPort[number][i]})
		}
	}
	expect(t, what, all...)
}

func ingress(rules ...networkingv1.NetworkPolicyIngressRule) networkingv1.NetworkPolicySpec {
	return networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, Ingress: rules}
}

func labelled(labels map[string]string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: labels}
}

// Which clients may reach a pod, for each kind of rule of a policy.
func TestPolicyIngress(t *testing.T) {
	s := newPolicyScene(t, "in")
	server := map[string]string{"app": "server"}
	from := func(peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: peers, Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(sourcePort))}}}
	}
	none, all := [3]bool{}, [3]bool{true, true, true}
	s.reach(t, "without a policy", map[uint16][3]bool{sourcePort: all, otherPort: all})

	s.policy(t, "in", server, ingress())
	s.reach(t, "default deny", map[uint16][3]bool{sourcePort: none, otherPort: none})
	n1 := s.server.Node
	expect(t, "the node to its own pod, and the pod to others",
		attempt{"the node", n1.Netns, port(s.server.IPs[0], sourcePort), true},
		attempt{"the other node", s.far.Node.Netns, port(s.server.IPs[0], sourcePort), false},
		attempt{"the server", s.server.Netns, port(s.far.IPs[0], sourcePort), true},
		attempt{"the server", s.server.Netns, port(s.near.IPs[0], sourcePort), true},
		attempt{"the server to itself", s.server.Netns, port(s.server.IPs[0], sourcePort), true})

	s.policy(t, "in", server, ingress(from(networkingv1.NetworkPolicyPeer{PodSelector: labelled(map[string]string{"app": "far"})})))
	s.reach(t, "podSelector", map[uint16][3]bool{sourcePort: {false, true, false}, otherPort: none})

	s.policy(t, "in", server, ingress(from(networkingv1.NetworkPolicyPeer{NamespaceSelector: labelled(map[string]string{corev1.LabelMetadataName: "other-namespace"})})))
	s.reach(t, "namespaceSelector", map[uint16][3]bool{sourcePort: {false, false, true}, otherPort: none})

	block := &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{netip.PrefixFrom(s.far.IPs[0], 32).String()}}
	s.policy(t, "in", server, ingress(from(networkingv1.NetworkPolicyPeer{IPBlock: block})))
	s.reach(t, "ipBlock with except", map[uint16][3]bool{sourcePort: {true, false, true}, otherPort: none})

	s.policy(t, "in", server, ingress(networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("other"))}}}))
	s.reach(t, "a named port", map[uint16][3]bool{sourcePort: none, otherPort: all})

	s.policy(t, "in", server, ingress(networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(1)), EndPort: new(int32(sourcePort))}}}))
	s.reach(t, "a range of ports", map[uint16][3]bool{sourcePort: all, otherPort: none})

	group := map[string]string{"policy-group.network.openshift.io/host-network": ""}
	s.policy(t, "in", server, ingress(from(networkingv1.NetworkPolicyPeer{NamespaceSelector: labelled(group)})))
	other := attempt{"the other node", s.far.Node.Netns, port(s.server.IPs[0], sourcePort), false}
	expect(t, "no namespace has the label of the nodes' namespace", other)
	s.hostNetwork(t, group)
	other.passes = true
	expect(t, "the nodes' namespace has the label", other)
	s.reach(t, "which is no pod's", map[uint16][3]bool{sourcePort: none, otherPort: none})

	s.drop(t, "in")
	s.reach(t, "without a policy again", map[uint16][3]bool{sourcePort: all, otherPort: all})
}

// hostNetwork sets labels on the nodes' namespace, until the test ends.
func (s *policyScene) hostNetwork(t *testing.T, labels map[string]string) {
	t.Helper()
	set := func(ctx context.Context, labels map[string]string) error {
		namespaces := s.client.CoreV1().Namespaces()
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: networkv1.HostNetworkNamespace, Labels: labels}}
		_, err := namespaces.Create(ctx, object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the lab never deletes namespaces
			_, err = namespaces.Update(ctx, object, metav1.UpdateOptions{})
		}
		return err
	}
	if err := set(t.Context(), labels); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set(context.Background(), nil); err != nil {
			t.Error(err)
		}
	})
}

// Which destinations a pod may reach, also through a Service: the endpoint counts.
func TestPolicyEgress(t *testing.T) {
	s := newPolicyScene(t, "out")
	services := &serviceScene{cluster: s.cluster, client: s.client}
	ip := services.simple(t, "out", nil, at(s.server))
	for _, from := range []*lab.Pod{s.near, s.far} {
		settles(t, from.Netns, port(ip, 80), s.server.Name)
	}
	// A Service with an endpoint outside of the pods' network: packets to this endpoint do not pass the switch a second time.
	host := s.far.Node
	sourceServerAt(t, host.Netns, "host", port(host.IP, sourcePort))
	outside := services.simple(t, "out-host", nil, endpoint{host.IP, host.Name, at(s.server).conditions})
	settles(t, s.far.Netns, port(outside, 80), "host")
	far := map[string]string{"app": "far"}
	reach := func(what string, direct, other, byService, toHost bool) {
		t.Helper()
		expect(t, what,
			attempt{"far", s.far.Netns, port(s.server.IPs[0], sourcePort), direct},
			attempt{"far", s.far.Netns, port(s.server.IPs[0], otherPort), other},
			attempt{"far, by the Service", s.far.Netns, port(ip, 80), byService},
			attempt{"far, by the Service of a host", s.far.Netns, port(outside, 80), toHost},
			attempt{"near", s.near.Netns, port(ip, 80), true},
			attempt{"the server to far", s.server.Netns, port(s.far.IPs[0], sourcePort), true})
	}
	deny := networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}}
	s.policy(t, "out", far, deny)
	reach("egress is denied, and answers pass", false, false, false, false)

	allow := deny
	allow.Egress = []networkingv1.NetworkPolicyEgressRule{{
		To:    []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(map[string]string{"app": "server"})}},
		Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(sourcePort))}},
	}}
	s.policy(t, "out", far, allow)
	reach("egress to the endpoint is allowed", true, false, true, false)

	toService := deny
	toService.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: ip.String() + "/32"}}}}}
	s.policy(t, "out", far, toService)
	reach("egress to the Service's address is allowed, which is no endpoint's", false, false, false, false)
	toService.Egress[0].To[0].IPBlock.CIDR = host.IP.String() + "/32"
	s.policy(t, "out", far, toService)
	reach("egress to the host is allowed", false, false, false, true)
	s.drop(t, "out")
	reach("without a policy again", true, true, true, true)

	closed := networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}}
	s.policy(t, "out", map[string]string{"app": "server"}, closed)
	expect(t, "only the server itself",
		attempt{"near", s.near.Netns, port(ip, 80), false},
		attempt{"the server", s.server.Netns, port(s.near.IPs[0], sourcePort), false},
		attempt{"the server to itself, by the Service", s.server.Netns, port(ip, 80), true},
		attempt{"the node", s.server.Node.Netns, port(s.server.IPs[0], sourcePort), true})
}

// A pod's status with the address of another node's pod does not make policies allow that pod.
func TestPolicyRemoteStatus(t *testing.T) {
	s := newPolicyScene(t, "status")
	ghost := map[string]string{"app": "ghost"}
	s.policy(t, "status", map[string]string{"app": "server"}, ingress(networkingv1.NetworkPolicyIngressRule{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(ghost)}},
	}))
	s.reach(t, "no pod has the label", map[uint16][3]bool{sourcePort: {}})
	pods := s.client.CoreV1().Pods("default")
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "status-ghost", Labels: ghost}, Spec: corev1.PodSpec{
		NodeName: "former", Containers: []corev1.Container{{Name: "c", Image: "none"}},
	}}
	made, err := pods.Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pods.Delete(context.Background(), made.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Error(err)
		}
	})
	ip := s.otherPod.IPs[0].String()
	made.Status.Phase, made.Status.PodIP, made.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	if _, err := pods.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The agent receives changes of pods in order: once it has this one, it has the status.
	patch := []byte(`{"metadata":{"labels":{"app":"ghost"}}}`)
	if _, err := pods.Patch(t.Context(), s.far.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.reach(t, "a pod with the label, and a status with the address of the pod in the other namespace", map[uint16][3]bool{sourcePort: {false, true, false}})
}

// connect opens a connection to the server, which is closed when the test ends.
func (s *policyScene) connect(t *testing.T, from *lab.Pod, network string) *traffic.Conn {
	t.Helper()
	return connect(t, from, s.server, network)
}

// connect opens a connection, which is closed when the test ends.
func connect(t *testing.T, from, to *lab.Pod, network string) *traffic.Conn {
	t.Helper()
	var open *traffic.Conn
	await(t, "a connection from "+from.Name, func(ctx context.Context) (err error) {
		open, err = traffic.Dial(ctx, from.Netns, network, port(to.IPs[0], sourcePort))
		return err
	})
	t.Cleanup(func() { _ = open.Close() })
	if _, err := open.Ask(); err != nil {
		t.Fatal(err)
	}
	return open
}

// Connections that a policy no longer allows continue if the policy's annotation keeps them, and end when the annotation is removed. New
// ones cannot begin.
func TestPolicyKeepsConnections(t *testing.T) {
	s := newPolicyScene(t, "keep")
	server := map[string]string{"app": "server"}
	only := func(app string) networkingv1.NetworkPolicySpec {
		return ingress(networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(map[string]string{"app": app})}}})
	}
	s.annotations = map[string]string{policy.AnnotationEstablished: policy.EstablishedKeep}
	s.policy(t, "keep", server, only("far"))
	s.reach(t, "far is allowed", map[uint16][3]bool{sourcePort: {false, true, false}})
	conns := map[string][2]*traffic.Conn{}
	for _, network := range []string{"tcp", "udp"} {
		conns[network] = [2]*traffic.Conn{s.connect(t, s.far, network), s.connect(t, s.far, network)}
	}
	s.policy(t, "keep", server, only("near"))
	s.reach(t, "far is no longer allowed", map[uint16][3]bool{sourcePort: {true, false, false}})
	for network, pair := range conns {
		for range 3 {
			if _, err := pair[0].Ask(); err != nil {
				t.Errorf("%s: an established connection ended, although the policy keeps connections: %v", network, err)
			}
		}
	}
	s.annotations = nil
	s.policy(t, "keep", server, only("near"))
	var ending errgroup.Group // all at once: an unanswered request takes long
	for network, pair := range conns {
		ending.Go(func() error {
			_, err := probe.Await(t.Context(), patience, network+": the end of the connection", func(context.Context) error {
				if answer, err := pair[0].Ask(); err == nil {
					return fmt.Errorf("the connection still works: %s", answer)
				}
				return nil
			})
			if err != nil {
				return err
			}
			if answer, err := pair[1].Ask(); err == nil {
				return fmt.Errorf("%s: the other connection still works: %s", network, answer)
			}
			return nil
		})
	}
	if err := ending.Wait(); err != nil {
		t.Error(err)
	}
	s.drop(t, "keep")
	s.reach(t, "no pod is isolated", map[uint16][3]bool{sourcePort: {true, true, true}})
}

// Connections that a policy no longer allows end, whichever side sends. Allowed ones continue; so do those that an isolated pod itself
// began, also before a policy isolated it.
func TestPolicyEndsConnections(t *testing.T) {
	s := newPolicyScene(t, "end")
	server := map[string]string{"app": "server"}
	allow := func(apps ...string) networkingv1.NetworkPolicySpec {
		var peers []networkingv1.NetworkPolicyPeer
		for _, app := range apps {
			peers = append(peers, networkingv1.NetworkPolicyPeer{PodSelector: labelled(map[string]string{"app": app})})
		}
		return ingress(networkingv1.NetworkPolicyIngressRule{From: peers})
	}
	ends, continues := map[string]*traffic.Conn{}, map[string]*traffic.Conn{}
	for _, network := range []string{"tcp", "udp"} {
		ends[network+", older than the rule"] = s.connect(t, s.far, network)
		continues[network+", allowed all the time"] = s.connect(t, s.near, network)
		continues[network+", opened by the isolated pod"] = connect(t, s.server, s.far, network)
	}
	s.policy(t, "end", server, allow("far", "near"))
	s.reach(t, "near and far are allowed", map[uint16][3]bool{sourcePort: {true, true, false}})
	for name, c := range ends {
		if _, err := c.Ask(); err != nil {
			t.Errorf("a connection ended that a rule allows: %s: %v", name, err)
		}
	}
	for _, network := range []string{"tcp", "udp"} {
		ends[network+", newer than the rule"] = s.connect(t, s.far, network)
	}
	s.policy(t, "end", server, allow("near"))
	s.reach(t, "far is no longer allowed", map[uint16][3]bool{sourcePort: {true, false, false}})
	var asking sync.WaitGroup // all at once: an unanswered request takes long
	for name, c := range ends {
		asking.Go(func() {
			if answer, err := c.Ask(); err == nil {
				t.Errorf("a connection that is no longer allowed still works: %s: %s", name, answer)
			}
		})
	}
	asking.Wait()
	for name, c := range continues {
		if _, err := c.Ask(); err != nil {
			t.Errorf("a connection ended: %s: %v", name, err)
		}
	}
	s.drop(t, "end")
	s.reach(t, "no pod is isolated", map[uint16][3]bool{sourcePort: {true, true, true}})
}

// An agent that is killed under traffic, while policies change, loses no allowed packet and passes no denied one.
func TestPolicyAgentRestarts(t *testing.T) {
	s := newPolicyScene(t, "again")
	echoed := echo(t, s.server.Netns, s.server.IPs[0])
	// One policy is unchanged all the time, and another is added and deleted.
	s.policy(t, "again", map[string]string{"app": "server"}, ingress(networkingv1.NetworkPolicyIngressRule{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(map[string]string{"app": "far"})}},
	}))
	s.reach(t, "far only", map[uint16][3]bool{sourcePort: {false, true, false}})
	ping(t, s.far.Netns, s.server.IPs[0])
	allowed, err := traffic.NewLoad([]traffic.Pair{{Name: "far", From: s.far.Netns, To: addrPort(s.server)}}, *pairRate)
	if err != nil {
		t.Fatal(err)
	}
	denied, err := traffic.NewLoad([]traffic.Pair{
		{Name: "near", From: s.near.Netns, To: addrPort(s.server)}, {Name: "other", From: s.otherPod.Netns, To: addrPort(s.server)},
	}, *pairRate/10)
	if err != nil {
		t.Fatal(err)
	}
	for i := range *restarts {
		s.policy(t, "beside", map[string]string{"app": "server"}, ingress(networkingv1.NetworkPolicyIngressRule{
			From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("192.0.2.%d/32", i)}}},
		}))
		kill(t, s.cluster, "n1/weft-agent", syscall.SIGKILL)
		await(t, "n1 ready", func(ctx context.Context) error { return ready(ctx, s.server.Node) })
	}
	tallies, err := allowed.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if tally := tallies["far"]; tally.Lost > 0 || tally.Sent == 0 {
		t.Errorf("allowed traffic: %s", tally)
	}
	refused, err := denied.Stop()
	if err == nil {
		t.Error("all denied datagrams were answered") // a stream that loses a packet returns an error
	}
	for name, tally := range refused {
		if tally.Sent == 0 || tally.Lost != tally.Sent {
			t.Errorf("denied traffic of %s: %s", name, tally)
		}
	}
	for _, p := range []*lab.Pod{s.near, s.otherPod} {
		if n := echoed.Sources()[p.IPs[0]]; n > 0 {
			t.Errorf("%d denied datagrams of %s arrived", n, p.Name)
		}
	}
	t.Logf("%d restarts; allowed: %s; refused: %v", *restarts, tallies["far"], refused)
}

// An isolated pod receives and sends no denied packet from its first moment on, whatever happens.
func TestPolicyIsolatesFirst(t *testing.T) {
	c := cluster(t)
	byPolicies(t, c)
	report, err := firstpacket.Run(t.Context(), c, *starts)
	t.Log(report.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, leak := range report.Leaks {
		t.Error(leak)
	}
	if report.Starts < *starts {
		t.Errorf("%d pods started, want %d", report.Starts, *starts)
	}
}

// While the API server is away, the known policies stay in effect, also for an agent that starts meanwhile: nothing is opened, nothing
// ends, and an unknown pod is not attached.
func TestPolicyWithoutAPIServer(t *testing.T) {
	s := newPolicyScene(t, "away")
	s.policy(t, "away", map[string]string{"app": "server"}, ingress(networkingv1.NetworkPolicyIngressRule{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(map[string]string{"app": "far"})}},
	}))
	farOnly := map[uint16][3]bool{sourcePort: {false, true, false}}
	s.reach(t, "far only", farOnly)
	want := settledState(t, s.server.Node)
	back := apiAway(t, s.cluster)
	unknown, err := s.cluster.AddPod(t.Context(), lab.PodSpec{Node: "n1", Name: "away-unknown", NoObject: true})
	if unknown != nil {
		defer delPod(t, unknown)
	}
	var failure *podruntime.Failure
	if !asFailure(err, &failure) || failure.Code != codeTryAgain {
		t.Errorf("ADD of a pod that the agent has not observed: %v, want code %d", err, codeTryAgain)
	}
	s.reach(t, "far only, without the API server", farOnly)
	kill(t, s.cluster, "n1/weft-agent", syscall.SIGKILL)
	s.reach(t, "far only, by an agent that starts without the API server", farOnly)
	if unknown != nil {
		delPod(t, unknown)
	}
	back()
	await(t, "n1 ready", func(ctx context.Context) error { return ready(ctx, s.server.Node) })
	awaitState(t, s.server.Node, want, "the API server is back")
	s.reach(t, "far only, when the API server is back", farOnly)
	s.drop(t, "away")
	s.reach(t, "without a policy", map[uint16][3]bool{sourcePort: {true, true, true}})
}
