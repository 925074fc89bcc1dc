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
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
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
	t.Cleanup(func() {
		restore(t, networks, good)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for _, n := range c.Nodes() { // the next test may begin with a change of the mode
			if _, err := probe.Await(ctx, patience, n.Name+" in its former mode", inEffect(n, former)); err != nil {
				t.Error(err)
			}
		}
	})
	patch := fmt.Sprintf(`{"pluginName":%q}`, networkv1.PluginNetworkPolicy)
	if _, err := networks.Patch(t.Context(), networkv1.ClusterNetworkDefault, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes() {
		await(t, n.Name+" in the mode with NetworkPolicies", inEffect(n, networkv1.PluginNetworkPolicy))
	}
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
