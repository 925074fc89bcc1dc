package pipeline_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/conjunction"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/oracle"
	"weft.dev/weft/internal/reconcile"
)

func policySample() *pipeline.Config {
	c := sample(true)
	c.Mode = pipeline.ModeNetworkPolicy
	return c
}

// policyPods are the pods of all worlds: the sample's two on this node, the others on another.
var policyPods = map[string]string{"here-a": "10.128.0.5", "here-b": "10.128.0.6", "there-a": "10.129.0.7", "there-b": "10.129.0.8"}

func drawPolicyLabels(r *rapid.T) map[string]string {
	if value := rapid.SampledFrom([]string{"", "x", "y"}).Draw(r, "label"); value != "" {
		return map[string]string{"app": value}
	}
	return nil
}

func drawPolicySelector(r *rapid.T) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: drawPolicyLabels(r)}
}

func drawPolicyPeer(r *rapid.T) networkingv1.NetworkPolicyPeer {
	switch rapid.IntRange(0, 3).Draw(r, "peer") {
	case 0:
		return networkingv1.NetworkPolicyPeer{PodSelector: drawPolicySelector(r)}
	case 1:
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: drawPolicySelector(r)}
	case 2:
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: drawPolicySelector(r), PodSelector: drawPolicySelector(r)}
	default:
		block := rapid.SampledFrom([]networkingv1.IPBlock{
			{CIDR: "0.0.0.0/0"},
			{CIDR: "0.0.0.0/0", Except: []string{"10.128.0.0/14"}},
			{CIDR: "10.129.0.7/32"},
			{CIDR: "10.128.0.0/23", Except: []string{"10.128.0.6/32"}},
			{CIDR: "198.51.100.0/24"},
			{CIDR: "fd00::/8"},
		}).Draw(r, "block")
		return networkingv1.NetworkPolicyPeer{IPBlock: &block}
	}
}

func drawPolicyPort(r *rapid.T) networkingv1.NetworkPolicyPort {
	port := networkingv1.NetworkPolicyPort{Protocol: new(rapid.SampledFrom([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}).Draw(r, "protocol"))}
	switch rapid.IntRange(0, 3).Draw(r, "port") {
	case 0:
		port.Port = new(intstr.FromInt32(80))
	case 1:
		port.Port, port.EndPort = new(intstr.FromInt32(70)), new(int32(85))
	case 2:
		port.Port = new(intstr.FromString("web"))
	}
	return port
}

func drawFew[T any](r *rapid.T, what string, draw func(*rapid.T) T) []T {
	var list []T
	for range rapid.SampledFrom([]int{0, 1, 1, 2}).Draw(r, what) {
		list = append(list, draw(r))
	}
	return list
}

func drawNetworkPolicy(r *rapid.T, name string) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: rapid.SampledFrom([]string{"one", "one", "two"}).Draw(r, "namespace"), Name: name}}
	np.Spec.PodSelector = *drawPolicySelector(r)
	np.Spec.PolicyTypes = rapid.SampledFrom([][]networkingv1.PolicyType{{"Ingress"}, {"Egress"}, {"Ingress", "Egress"}}).Draw(r, "types")
	np.Spec.Ingress = drawFew(r, "ingress", func(r *rapid.T) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: drawFew(r, "from", drawPolicyPeer), Ports: drawFew(r, "ports", drawPolicyPort)}
	})
	np.Spec.Egress = drawFew(r, "egress", func(r *rapid.T) networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{To: drawFew(r, "to", drawPolicyPeer), Ports: drawFew(r, "ports", drawPolicyPort)}
	})
	return np
}

func drawPolicyPod(r *rapid.T, name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: rapid.SampledFrom([]string{"one", "one", "two"}).Draw(r, "namespace"), Name: name, Labels: drawPolicyLabels(r)}}
	pod.Status.PodIP = policyPods[name]
	pod.Status.PodIPs = []corev1.PodIP{{IP: policyPods[name]}}
	if rapid.Bool().Draw(r, "has a named port") {
		pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: rapid.SampledFrom([]int32{80, 81}).Draw(r, "number")}}}}
	}
	return pod
}

// node is the state of a node that follows its index's effects.
type node struct {
	config    *pipeline.Config
	index     *policy.Index
	rules     *conjunction.Compiler
	fragments map[reconcile.Owner]map[openflow.Key]openflow.Entry
	names     map[string]policy.Key
}

func newNode(c *pipeline.Config) *node {
	return &node{
		config: c, index: policy.New(""), rules: conjunction.New(c.LocalSubnet),
		fragments: map[reconcile.Owner]map[openflow.Key]openflow.Entry{}, names: map[string]policy.Key{},
	}
}

// apply applies an effect, and returns how many owners' fragments changed.
func (n *node) apply(e policy.Effect) int {
	n.rules.Apply(e, n.index)
	changed := n.rules.Changed()
	for owner, fragment := range changed {
		n.fragments[owner] = fragment
		if len(fragment) == 0 {
			delete(n.fragments, owner)
		}
	}
	return len(changed)
}

func (n *node) setPod(pod *corev1.Pod) {
	p := policy.FromPod(pod)
	if was, ok := n.names[pod.Name]; ok && was != p.Key {
		n.apply(n.index.DeletePod(was))
	}
	n.names[pod.Name] = p.Key
	n.apply(n.index.SetPod(p))
}

func (n *node) setPolicy(t testing.TB, np *networkingv1.NetworkPolicy) int {
	t.Helper()
	p, err := policy.FromNetworkPolicy(np)
	if err != nil {
		t.Fatal(err)
	}
	return n.apply(n.index.SetPolicy(p))
}

// flows returns all flows of rules, and checks that each key has only one owner.
func (n *node) flows(t testing.TB) map[openflow.Key]openflow.Entry {
	t.Helper()
	all := map[openflow.Key]openflow.Entry{}
	for owner, fragment := range n.fragments {
		for key, entry := range fragment {
			if all[key] != nil {
				t.Errorf("%s: %s has another owner as well", owner, key)
			}
			all[key] = entry
		}
	}
	return all
}

// pods returns the sample's pods as policies isolate them.
func (n *node) pods() []pipeline.Pod {
	a, b := podA, podB
	for name, pod := range map[string]*pipeline.Pod{"here-a": &a, "here-b": &b} {
		pod.Isolation, _ = n.index.Isolation(n.names[name])
	}
	return []pipeline.Pod{a, b}
}

func drawPolicyWorld(r *rapid.T) oracle.World {
	var w oracle.World
	for _, name := range []string{"one", "two"} {
		w.Namespaces = append(w.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: drawPolicyLabels(r)}})
	}
	for _, name := range []string{"here-a", "here-b", "there-a", "there-b"} {
		w.Pods = append(w.Pods, drawPolicyPod(r, name))
	}
	for i := range rapid.IntRange(1, 4).Draw(r, "policies") {
		w.Policies = append(w.Policies, drawNetworkPolicy(r, fmt.Sprint("policy", i)))
	}
	return w
}

func nodeOf(t testing.TB, w oracle.World) *node {
	t.Helper()
	return nodeInStages(t, w, conjunction.StageRoom)
}

// nodeInStages is nodeOf with room for this many rules in a stage.
func nodeInStages(t testing.TB, w oracle.World, room int) *node {
	t.Helper()
	n := newNode(policySample())
	n.rules.Room = room
	for _, ns := range w.Namespaces {
		n.apply(n.index.SetNamespace(policy.FromNamespace(ns)))
	}
	for _, pod := range w.Pods {
		n.setPod(pod)
	}
	for _, np := range w.Policies {
		n.setPolicy(t, np)
	}
	return n
}

// Following the effects of changes leads to the same flows as a new compilation.
func TestConjunctionsAgainstBeginningAnew(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := drawPolicyWorld(r)
		n := nodeOf(t, w)
		for range rapid.IntRange(1, 20).Draw(r, "changes") {
			switch rapid.IntRange(0, 3).Draw(r, "change") {
			case 0:
				i := rapid.IntRange(0, len(w.Pods)-1).Draw(r, "pod")
				w.Pods[i] = drawPolicyPod(r, w.Pods[i].Name)
				n.setPod(w.Pods[i])
			case 1:
				i := rapid.IntRange(0, 1).Draw(r, "namespace")
				w.Namespaces[i] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Namespaces[i].Name, Labels: drawPolicyLabels(r)}}
				n.apply(n.index.SetNamespace(policy.FromNamespace(w.Namespaces[i])))
			default:
				i := rapid.IntRange(0, len(w.Policies)-1).Draw(r, "policy")
				next := drawNetworkPolicy(r, w.Policies[i].Name)
				if next.Namespace != w.Policies[i].Namespace {
					n.apply(n.index.DeletePolicy(policy.Key{Namespace: w.Policies[i].Namespace, Name: next.Name}))
				}
				w.Policies[i] = next
				n.setPolicy(t, next)
			}
		}
		want, got := nodeOf(t, w).flows(t), n.flows(t)
		if change := reconcile.Diff(want, got); !change.Empty() {
			r.Fatalf("it has other flows than one that begins anew: %v", change)
		}
		for _, np := range w.Policies {
			n.apply(n.index.DeletePolicy(policy.Key{Namespace: np.Namespace, Name: np.Name}))
		}
		if len(n.fragments) > 0 {
			r.Fatalf("without policies, there is left %v", n.fragments)
		}
	})
}

// crowd returns a world of server pods on this node, and of client pods on others, in one namespace.
func crowd(pods int) (*node, *networkingv1.NetworkPolicy) {
	c := policySample()
	c.LocalSubnet = netip.MustParsePrefix("10.128.0.0/20")
	n := newNode(c)
	n.apply(n.index.SetNamespace(policy.Namespace{Name: "one"}))
	for i := range pods {
		for role, base := range map[string]string{"server": "10.128.0.5", "client": "10.132.0.5"} {
			addr := netip.MustParseAddr(base)
			for range i {
				addr = addr.Next()
			}
			n.apply(n.index.SetPod(policy.Pod{Key: policy.Key{Namespace: "one", Name: fmt.Sprint(role, i)}, Labels: map[string]string{"role": role}, Addresses: []netip.Addr{addr}}))
		}
	}
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "one", Name: "serve"}}
	np.Spec.PodSelector.MatchLabels = map[string]string{"role": "server"}
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "client"}}}},
		Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(8080))}},
	}}
	return n, np
}

// The number of a policy's flows is the sum of what it names. The number of a pod's own flows does not depend on its isolation. A change of
// one address changes one flow.
func TestFlowsOfAPolicy(t *testing.T) {
	for pods, most := range map[int]int{200: 410, 1000: 2010} {
		n, np := crowd(pods)
		n.setPolicy(t, np)
		if got := len(n.flows(t)); got > most || got < 2*pods {
			t.Errorf("%d pods to %d pods on one port are %d flows, more than %d, or too few", pods, pods, got, most)
		}
		a := podA
		open := len(n.config.Pod(a))
		a.Isolation = policy.Isolation{Ingress: true, Egress: true}
		if isolated := len(n.config.Pod(a)); isolated != open {
			t.Errorf("a pod's own flows are %d, and %d once it is isolated", open, isolated)
		}
		for role, addr := range map[string]string{"server": "10.128.15.1", "client": "10.133.0.1"} {
			touched := n.apply(n.index.SetPod(policy.Pod{Key: policy.Key{Namespace: "one", Name: "more"}, Labels: map[string]string{"role": role}, Addresses: addrs(addr)}))
			if touched != 1 {
				t.Errorf("one more %s changes the fragments of %d owners, want 1", role, touched)
			}
			n.apply(n.index.DeletePod(policy.Key{Namespace: "one", Name: "more"}))
		}
	}
}

// A policy that selects no pod here has no flows here.
func TestPolicyOfOthers(t *testing.T) {
	n, np := crowd(10)
	np.Spec.PodSelector.MatchLabels = map[string]string{"role": "client"}
	n.setPolicy(t, np)
	if flows := n.flows(t); len(flows) > 0 {
		t.Errorf("none of the policy's pods is here, and it has the flows %v", flows)
	}
}

// Rules that do not fit one flow are in stages of their own, and none moves when others are added or removed.
func TestStages(t *testing.T) {
	n, np := crowd(1)
	const beyond = 3
	keys := map[string]policy.Key{}
	for i := range 2*conjunction.StageRoom + beyond {
		np.Name = fmt.Sprint("policy", i)
		np.Spec.Ingress[0].Ports[0].Port = new(intstr.FromInt32(int32(i + 1)))
		p, err := policy.FromNetworkPolicy(np)
		if err != nil {
			t.Fatal(err)
		}
		n.rules.Apply(n.index.SetPolicy(p), n.index)
		keys[np.Name] = policy.Key{Namespace: np.Namespace, Name: np.Name}
	}
	n.apply(policy.Effect{})
	stages := func() map[uint16]int {
		named := map[uint16]int{}
		for key, entry := range n.flows(t) {
			if key.Match == "ip,nw_src=10.132.0.5" {
				named[key.Priority] = len(entry.(*openflow.Flow).Actions)
			}
		}
		return named
	}
	before := stages()
	if got := slices.Sorted(maps.Values(before)); !slices.Equal(got, []int{beyond, conjunction.StageRoom, conjunction.StageRoom}) {
		t.Errorf("the client's flows have %v actions", got)
	}
	// Of a rule for one port, these fragments change: its verdict, its port, and one for each pod.
	if touched := n.apply(n.index.DeletePolicy(keys["policy7"])); touched != 4 {
		t.Errorf("one policy's end changes the fragments of %d owners, want 4", touched)
	}
	if got := slices.Sorted(maps.Values(stages())); !slices.Equal(got, []int{beyond, conjunction.StageRoom - 1, conjunction.StageRoom}) {
		t.Errorf("the client's flows have %v actions", got)
	}
	np.Name = "policy7"
	n.setPolicy(t, np) // another policy allows the same: they share a conjunction
	np.Spec.Ingress[0].Ports[0].Port = new(intstr.FromInt32(8))
	n.setPolicy(t, np)
	if after := stages(); !maps.Equal(after, before) {
		t.Errorf("the client's flows have %v actions, and had %v", after, before)
	}
	for _, key := range keys {
		n.rules.Apply(n.index.DeletePolicy(key), n.index)
	}
	n.apply(policy.Effect{})
	if len(n.fragments) > 0 {
		t.Errorf("without policies there is left %v", n.fragments)
	}
}
