package policy_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weft.dev/weft/internal/policy"
)

// cluster is what a benchmark computes.
type cluster struct {
	namespaces []policy.Namespace
	pods       []policy.Pod
	policies   []*networkingv1.NetworkPolicy
}

func (c *cluster) pod(namespace, name string, labels map[string]string) {
	n := len(c.pods)
	c.pods = append(c.pods, policy.Pod{
		Key: policy.Key{Namespace: namespace, Name: name}, Node: "node" + strconv.Itoa(n%100), Labels: labels,
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})},
	})
}

func selects(key, value string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func (c *cluster) policy(namespace, name string, pods metav1.LabelSelector, from ...metav1.LabelSelector) {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: networkingv1.NetworkPolicySpec{PodSelector: pods}}
	for i := range from {
		np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
			From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &from[i]}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(80))}},
		})
	}
	c.policies = append(c.policies, np)
}

// oneNamespace has 10,000 pods and policies in one namespace; the pods of each policy are chosen by labels of their own, or
// all policies select all pods.
func oneNamespace(shared bool) *cluster {
	c := &cluster{namespaces: []policy.Namespace{{Name: "one"}}}
	for i := range 10_000 {
		name := strconv.Itoa(i)
		c.pod("one", name, map[string]string{"app": name, "kind": "all"})
		if shared {
			c.policy("one", name, selects("kind", "all"), selects("kind", "all"))
		} else {
			c.policy("one", name, selects("app", name), selects("app", strconv.Itoa((i+1)%10_000)), selects("kind", "all"))
		}
	}
	return c
}

// manyNamespaces has 25,000 namespaces with four pods and three policies each: nothing passes, one pod to another, and one
// from everywhere in the namespace.
func manyNamespaces() *cluster {
	c := &cluster{}
	for i := range 25_000 {
		ns := "ns" + strconv.Itoa(i)
		c.namespaces = append(c.namespaces, policy.Namespace{Name: ns, Labels: map[string]string{"kubernetes.io/metadata.name": ns}})
		for p := range 4 {
			c.pod(ns, "pod"+strconv.Itoa(p), map[string]string{"app": "app-" + strconv.Itoa(p), "kind": "all"})
		}
		c.policy(ns, "deny", metav1.LabelSelector{})
		c.policy(ns, "first", selects("app", "app-1"), selects("app", "app-2"))
		c.policy(ns, "second", selects("app", "app-2"), metav1.LabelSelector{})
	}
	return c
}

func (c *cluster) compile(b *testing.B) *policy.Index {
	x := policy.New("")
	for _, ns := range c.namespaces {
		x.SetNamespace(ns)
	}
	for _, p := range c.pods {
		x.SetPod(p)
	}
	for _, np := range c.policies {
		p, err := policy.FromNetworkPolicy(np)
		if err != nil {
			b.Fatal(err)
		}
		x.SetPolicy(p)
	}
	return x
}

// all reads everything that there is to program: rules, sets, isolation.
func all(x *policy.Index, c *cluster) (rules, members, isolated int) {
	read := map[policy.SetName]bool{}
	for _, np := range c.policies {
		for _, r := range x.Rules(policy.Key{Namespace: np.Namespace, Name: np.Name}) {
			rules++
			for _, name := range append([]policy.SetName{r.Subjects}, r.PeerSets...) {
				if !read[name] {
					read[name] = true
					members += len(x.Addresses(name))
				}
			}
		}
	}
	for i := range c.pods {
		if isolation, _ := x.Isolation(c.pods[i].Key); isolation.Ingress {
			isolated++
		}
	}
	return rules, members, isolated
}

// BenchmarkCompute computes all of a cluster from its objects: what an agent does when it starts.
func BenchmarkCompute(b *testing.B) {
	for _, size := range []struct {
		name string
		make func() *cluster
	}{
		{"policies=10k/pods=10k/namespaces=1/own-pods", func() *cluster { return oneNamespace(false) }},
		{"policies=10k/pods=10k/namespaces=1/all-pods", func() *cluster { return oneNamespace(true) }},
		{"policies=75k/pods=100k/namespaces=25k", manyNamespaces},
	} {
		b.Run(size.name, func(b *testing.B) {
			c := size.make()
			before := heap()
			var x *policy.Index
			for b.Loop() {
				x = c.compile(b)
				rules, members, isolated := all(x, c)
				b.ReportMetric(float64(rules), "rules")
				b.ReportMetric(float64(members), "members")
				b.ReportMetric(float64(isolated), "isolated")
			}
			b.ReportMetric(float64(heap()-before)/(1<<20), "MiB-held")
			runtime.KeepAlive(x)
		})
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkChange changes one pod, or one policy, of a large cluster.
func BenchmarkChange(b *testing.B) {
	for name, c := range map[string]*cluster{"one-namespace": oneNamespace(false), "one-namespace-all-pods": oneNamespace(true), "many-namespaces": manyNamespaces()} {
		x := policy.New("node1")
		for _, ns := range c.namespaces {
			x.SetNamespace(ns)
		}
		for _, p := range c.pods {
			x.SetPod(p)
		}
		for _, np := range c.policies {
			p, err := policy.FromNetworkPolicy(np)
			if err != nil {
				b.Fatal(err)
			}
			x.SetPolicy(p)
		}
		b.Run(fmt.Sprintf("%s/pod", name), func(b *testing.B) {
			p := c.pods[77]
			for b.Loop() {
				x.DeletePod(p.Key)
				x.SetPod(p)
			}
		})
		b.Run(fmt.Sprintf("%s/policy", name), func(b *testing.B) {
			p, err := policy.FromNetworkPolicy(c.policies[77])
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				x.DeletePolicy(p.Key)
				x.SetPolicy(p)
				x.Rules(p.Key)
			}
		})
	}
}
