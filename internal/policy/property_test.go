package policy_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/oracle"
)

// All names are of a small set, so that objects refer to each other often.
var (
	spaceNames  = []string{"a", "b", "c"}
	mostlyA     = []string{"a", "a", "b", "a", "c"}
	labelValues = map[string][]string{"app": {"x", "y", "z"}, "tier": {"1", "2"}}
	podIPs      = []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.1.1", "10.0.1.2", "10.0.1.3"}
	podIPs6     = []string{"fd00::1", "fd00::2", "fd00::100"}
	// outside are addresses of no pod: beside the pods', the nodes', far away.
	outside    = []string{"10.0.0.9", "10.0.2.1", "192.0.2.1", "203.0.113.7", "fd00::9", "2001:db8::1"}
	portNames  = []string{"http", "dns"}
	protocols  = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	portPool   = []int32{80, 81, 83, 84, 1023}
	allPackets = []oracle.Packet{
		{Protocol: corev1.ProtocolTCP, Port: 80},
		{Protocol: corev1.ProtocolTCP, Port: 81},
		{Protocol: corev1.ProtocolTCP, Port: 83},
		{Protocol: corev1.ProtocolTCP, Port: 1023},
		{Protocol: corev1.ProtocolUDP, Port: 80},
		{Protocol: corev1.ProtocolUDP, Port: 84},
		{Protocol: corev1.ProtocolSCTP, Port: 80},
		{Protocol: "ICMP", Port: 80},
	}
)

func drawLabels(r *rapid.T) map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if value := rapid.SampledFrom(append([]string{""}, labelValues[key]...)).Draw(r, key); value != "" {
			labels[key] = value
		}
	}
	return labels
}

func drawSelector(r *rapid.T) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	for range rapid.SampledFrom([]int{0, 1, 1, 0, 1, 2}).Draw(r, "requirements") {
		key := rapid.SampledFrom([]string{"app", "tier"}).Draw(r, "key")
		values := rapid.SliceOfNDistinct(rapid.SampledFrom(labelValues[key]), 1, 2, rapid.ID).Draw(r, "values")
		switch op := rapid.SampledFrom([]metav1.LabelSelectorOperator{"", "", "In", "NotIn", "Exists", "DoesNotExist"}).Draw(r, "operator"); op {
		case "":
			if s.MatchLabels == nil {
				s.MatchLabels = map[string]string{}
			}
			s.MatchLabels[key] = values[0]
		case "In", "NotIn":
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: values})
		default:
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: op})
		}
	}
	return s
}

var blocks = map[string][]string{
	"10.0.0.0/16": {"10.0.0.0/24", "10.0.1.0/24", "10.0.0.2/32", "10.0.0.0/30"},
	"10.0.0.7/29": {"10.0.0.4/31", "10.0.0.1/32", "10.0.0.0/31"},
	"10.0.0.2/32": nil,
	"0.0.0.0/0":   {"10.0.0.0/8", "192.0.2.0/24", "10.0.0.3/32", "128.0.0.0/1"},
	"::/0":        {"fd00::/8", "fd00::1/128"},
	"fd00::/64":   {"fd00::2/127", "fd00::100/120"},
}

func drawPeer(r *rapid.T) networkingv1.NetworkPolicyPeer {
	switch rapid.IntRange(0, 3).Draw(r, "kind of peer") {
	case 0:
		return networkingv1.NetworkPolicyPeer{PodSelector: drawSelector(r)}
	case 1:
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: drawSelector(r)}
	case 2:
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: drawSelector(r), PodSelector: drawSelector(r)}
	default:
		cidr := rapid.SampledFrom(slices.Sorted(maps.Keys(blocks))).Draw(r, "cidr")
		block := &networkingv1.IPBlock{CIDR: cidr}
		for _, except := range blocks[cidr] {
			if rapid.Bool().Draw(r, except) {
				block.Except = append(block.Except, except)
			}
		}
		return networkingv1.NetworkPolicyPeer{IPBlock: block}
	}
}

func drawPort(r *rapid.T) networkingv1.NetworkPolicyPort {
	var out networkingv1.NetworkPolicyPort
	if rapid.Bool().Draw(r, "has protocol") {
		out.Protocol = new(rapid.SampledFrom(protocols).Draw(r, "protocol"))
	}
	switch rapid.IntRange(0, 3).Draw(r, "kind of port") {
	case 0:
	case 1:
		out.Port = new(intstr.FromString(rapid.SampledFrom(portNames).Draw(r, "name")))
	case 2:
		first := rapid.SampledFrom(portPool).Draw(r, "first")
		out.Port = new(intstr.FromInt32(first))
		out.EndPort = new(rapid.Int32Range(first, first+1000).Draw(r, "last"))
	default:
		out.Port = new(intstr.FromInt32(rapid.SampledFrom(portPool).Draw(r, "number")))
	}
	return out
}

func drawList[T any](r *rapid.T, what string, draw func(*rapid.T) T) []T {
	var list []T
	for range rapid.SampledFrom([]int{0, 1, 1, 2}).Draw(r, what) {
		list = append(list, draw(r))
	}
	return list
}

func drawPolicy(r *rapid.T, name string) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: rapid.SampledFrom(mostlyA).Draw(r, "namespace"), Name: name}}
	np.Spec.PodSelector = *drawSelector(r)
	if value := rapid.SampledFrom([]string{"", "", policy.EstablishedKeep, policy.EstablishedEnd}).Draw(r, "established"); value != "" {
		np.Annotations = map[string]string{policy.AnnotationEstablished: value}
	}
	np.Spec.PolicyTypes = rapid.SampledFrom([][]networkingv1.PolicyType{nil, {"Ingress"}, {"Egress"}, {"Ingress", "Egress"}, {"Egress", "Ingress"}}).Draw(r, "types")
	np.Spec.Ingress = drawList(r, "ingress", func(r *rapid.T) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: drawList(r, "from", drawPeer), Ports: drawList(r, "ports", drawPort)}
	})
	np.Spec.Egress = drawList(r, "egress", func(r *rapid.T) networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{To: drawList(r, "to", drawPeer), Ports: drawList(r, "ports", drawPort)}
	})
	return np
}

func drawPod(r *rapid.T, namespace, name string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: drawLabels(r)}}
	pod.Spec.NodeName = rapid.SampledFrom([]string{"n1", "n2", ""}).Draw(r, "node")
	pod.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{"Running", "Running", "Running", "Pending", "Succeeded", "Failed"}).Draw(r, "phase")
	if ip := rapid.SampledFrom(append([]string{""}, podIPs...)).Draw(r, "ip"); ip != "" {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
		pod.Status.PodIP = ip
	}
	if ip := rapid.SampledFrom(append([]string{"", "", ""}, podIPs6...)).Draw(r, "ip6"); ip != "" {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if pod.Spec.HostNetwork = rapid.IntRange(0, 9).Draw(r, "host network") == 0; pod.Spec.HostNetwork {
		pod.Status.PodIP, pod.Status.PodIPs = "192.0.2.1", []corev1.PodIP{{IP: "192.0.2.1"}}
	}
	container := func(r *rapid.T) corev1.Container {
		return corev1.Container{Ports: drawList(r, "container ports", func(r *rapid.T) corev1.ContainerPort {
			return corev1.ContainerPort{
				Name: rapid.SampledFrom(append([]string{""}, portNames...)).Draw(r, "port name"), ContainerPort: rapid.SampledFrom(portPool).Draw(r, "port"),
				Protocol: rapid.SampledFrom(append([]corev1.Protocol{"", "", ""}, protocols...)).Draw(r, "protocol"),
			}
		})}
	}
	pod.Spec.Containers = []corev1.Container{container(r)}
	pod.Spec.InitContainers = drawList(r, "init containers", container)
	return pod
}

func drawNamespace(r *rapid.T, name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: drawLabels(r)}}
}

func drawWorld(r *rapid.T) oracle.World {
	var w oracle.World
	for _, name := range spaceNames {
		if rapid.IntRange(0, 9).Draw(r, "known") > 0 {
			w.Namespaces = append(w.Namespaces, drawNamespace(r, name))
		}
	}
	for i := range rapid.SampledFrom([]int{2, 4, 6, 8}).Draw(r, "pods") {
		w.Pods = append(w.Pods, drawPod(r, rapid.SampledFrom(mostlyA).Draw(r, "namespace"), fmt.Sprint("pod", i)))
	}
	for i := range rapid.SampledFrom([]int{1, 3, 5, 7}).Draw(r, "policies") {
		w.Policies = append(w.Policies, drawPolicy(r, fmt.Sprint("policy", i)))
	}
	return w
}

// addresses are the addresses that a packet of a world can have: those of its pods, and outside ones.
func addresses(w oracle.World) []netip.Addr {
	all := map[netip.Addr]bool{}
	for _, text := range outside {
		all[netip.MustParseAddr(text)] = true
	}
	for _, pod := range w.Pods {
		for _, ip := range pod.Status.PodIPs {
			all[netip.MustParseAddr(ip.IP)] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), netip.Addr.Compare)
}

// The rules judge every packet as the documentation says: a million packets in a full run.
func TestRulesAgainstOracle(t *testing.T) {
	packets := 1_000_000
	if testing.Short() {
		packets = 30_000
	}
	isOutside := map[netip.Addr]bool{}
	for _, text := range outside {
		isOutside[netip.MustParseAddr(text)] = true
	}
	judged, passed := 0, 0
	for judged < packets {
		rapid.Check(t, func(r *rapid.T) {
			w := drawWorld(r)
			x := index(t, w)
			j := newJudge(x, w)
			from := addresses(w)
			for _, src := range from {
				for _, dst := range from {
					if src.Is4() != dst.Is4() || isOutside[src] && isOutside[dst] {
						continue
					}
					for _, p := range allPackets {
						p.Src, p.Dst = src, dst
						want := w.Allowed(p)
						if got := j.allowed(p); got != want {
							r.Fatalf("%+v: the rules say %t, the oracle %t\nrules: %+v\nsets: %v\nisolated: %v", p, got, want, j.rules, j.sets, j.isolated)
						}
						if got := connects(x, w, p); got != want {
							r.Fatalf("%+v: Allows says %t, the oracle %t", p, got, want)
						}
						judged++
						if want {
							passed++
						}
					}
				}
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d packets judged, %d of them allowed", judged, passed)
}

// state is what a network stores of an index: it reads only what effects name.
type state struct {
	Rules     map[policy.Key][]policy.Rule
	Addresses map[policy.SetName]map[netip.Addr]bool
	Pods      map[policy.SetName]map[policy.Key]bool
	Isolation map[policy.Key]policy.Isolation
}

func newState() *state {
	return &state{map[policy.Key][]policy.Rule{}, map[policy.SetName]map[netip.Addr]bool{}, map[policy.SetName]map[policy.Key]bool{}, map[policy.Key]policy.Isolation{}}
}

func (s *state) apply(r *rapid.T, x *policy.Index, e policy.Effect, here func(policy.Key) bool) {
	for _, d := range e.Sets {
		if len(d.Added)+len(d.Removed)+len(d.Joined)+len(d.Left) == 0 {
			r.Fatalf("a delta of %s has nothing", d.Set)
		}
		if s.Addresses[d.Set] == nil {
			continue // no rule that this network stores has named it yet
		}
		shift(r, s.Addresses[d.Set], d.Added, d.Removed)
		shift(r, s.Pods[d.Set], d.Joined, d.Left)
	}
	for _, key := range e.Policies {
		if s.Rules[key] = x.Rules(key); len(s.Rules[key]) == 0 {
			delete(s.Rules, key)
		}
	}
	s.settle(x)
	for _, pod := range e.Pods {
		isolation, ok := x.Isolation(pod)
		if s.Isolation[pod] = isolation; !ok || !here(pod) {
			delete(s.Isolation, pod)
		}
	}
}

// settle reads the sets that rules name for the first time, and drops those that no rule names.
func (s *state) settle(x *policy.Index) {
	named := map[policy.SetName]bool{}
	for _, rules := range s.Rules {
		for _, r := range rules {
			for _, name := range append([]policy.SetName{r.Subjects}, r.PeerSets...) {
				named[name] = true
			}
		}
	}
	maps.DeleteFunc(s.Addresses, func(name policy.SetName, _ map[netip.Addr]bool) bool { return !named[name] })
	maps.DeleteFunc(s.Pods, func(name policy.SetName, _ map[policy.Key]bool) bool { return !named[name] })
	for name := range named {
		if s.Addresses[name] == nil {
			s.Addresses[name], s.Pods[name] = asSet(x.Addresses(name)), asSet(x.Pods(name))
		}
	}
}

func asSet[T comparable](list []T) map[T]bool {
	m := map[T]bool{}
	for _, item := range list {
		m[item] = true
	}
	return m
}

func shift[T comparable](r *rapid.T, set map[T]bool, came, went []T) {
	for _, item := range came {
		if set[item] {
			r.Fatalf("%v comes into a set that has it", item)
		}
		set[item] = true
	}
	for _, item := range went {
		if !set[item] {
			r.Fatalf("%v leaves a set that has it not", item)
		}
		delete(set, item)
	}
}

// events changes a world at random, and updates an index.
type events struct {
	pods       map[policy.Key]*corev1.Pod
	namespaces map[string]*corev1.Namespace
	policies   map[policy.Key]*networkingv1.NetworkPolicy
}

func (v *events) world() oracle.World {
	return oracle.World{Pods: slices.Collect(maps.Values(v.pods)), Namespaces: slices.Collect(maps.Values(v.namespaces)), Policies: slices.Collect(maps.Values(v.policies))}
}

func (v *events) next(r *rapid.T, t *testing.T, x *policy.Index) policy.Effect {
	remove := rapid.IntRange(0, 3).Draw(r, "remove") == 0
	switch rapid.SampledFrom([]string{"pod", "pod", "pod", "policy", "policy", "namespace"}).Draw(r, "event") {
	case "pod":
		key := policy.Key{Namespace: rapid.SampledFrom(spaceNames).Draw(r, "namespace"), Name: rapid.SampledFrom([]string{"p", "q", "r"}).Draw(r, "name")}
		if remove {
			delete(v.pods, key)
			return x.DeletePod(key)
		}
		v.pods[key] = drawPod(r, key.Namespace, key.Name)
		return x.SetPod(policy.FromPod(v.pods[key]))
	case "namespace":
		name := rapid.SampledFrom(spaceNames).Draw(r, "namespace")
		if remove {
			delete(v.namespaces, name)
			return x.DeleteNamespace(name)
		}
		v.namespaces[name] = drawNamespace(r, name)
		return x.SetNamespace(policy.FromNamespace(v.namespaces[name]))
	default:
		np := drawPolicy(r, rapid.SampledFrom([]string{"one", "two"}).Draw(r, "name"))
		key := policy.Key{Namespace: np.Namespace, Name: np.Name}
		if remove {
			delete(v.policies, key)
			return x.DeletePolicy(key)
		}
		v.policies[key] = np
		return x.SetPolicy(compile(t, np))
	}
}

// A state that follows the effects of events equals a state that starts with all objects, in whatever order these come.
func TestEffectsAgainstBeginningAnew(t *testing.T) {
	for _, node := range []string{"", "n1"} {
		t.Run("node "+node, func(t *testing.T) {
			check(t, func(r *rapid.T) {
				v := &events{map[policy.Key]*corev1.Pod{}, map[string]*corev1.Namespace{}, map[policy.Key]*networkingv1.NetworkPolicy{}}
				here := func(key policy.Key) bool {
					return v.pods[key] != nil && (node == "" || v.pods[key].Spec.NodeName == node)
				}
				x, kept := policy.New(node), newState()
				for range rapid.IntRange(1, 60).Draw(r, "events") {
					kept.apply(r, x, v.next(r, t, x), here)
				}
				w := v.world()
				anew, want := index(t, w), newState()
				for key := range v.policies {
					if rules := anew.Rules(key); len(rules) > 0 {
						want.Rules[key] = rules
					}
				}
				want.settle(anew)
				for key := range v.pods {
					if isolation, ok := anew.Isolation(key); ok && here(key) {
						want.Isolation[key] = isolation
					}
				}
				if diff := cmp.Diff(want, kept, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
					r.Fatalf("want the result of a new index (-), got the result of the effects (+):\n%s", diff)
				}
				for key := range v.pods {
					if diff := cmp.Diff(anew.Policies(key), x.Policies(key)); diff != "" {
						r.Fatalf("the policies that isolate %s: %s", key, diff)
					}
				}
				for name, pods := range want.Pods {
					for key := range v.pods {
						if x.Has(name, key) != pods[key] {
							r.Fatalf("%s has %s: %t", name, key, x.Has(name, key))
						}
					}
				}
				empty(r, x, v)
			})
		})
	}
}

// check runs more checks than rapid's default, if there is time.
func check(t *testing.T, property func(*rapid.T)) {
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		if rapid.Check(t, property); t.Failed() {
			return
		}
	}
}

// empty deletes everything: nothing may remain.
func empty(r *rapid.T, x *policy.Index, v *events) {
	for key := range v.policies {
		x.DeletePolicy(key)
	}
	if n := x.Sets(); n != 0 {
		r.Fatalf("%d sets remain without a policy", n)
	}
	for key := range v.pods {
		x.DeletePod(key)
	}
	for name := range v.namespaces {
		x.DeleteNamespace(name)
	}
	if n := x.Size(); n != 0 {
		r.Fatalf("%d things remain of nothing", n)
	}
}
