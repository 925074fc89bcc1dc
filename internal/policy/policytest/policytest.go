// Package policytest has large clusters for benchmarks of policies.
package policytest

import (
	"net/netip"
	"strconv"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weft.dev/weft/internal/policy"
)

// Cluster is a cluster's objects.
type Cluster struct {
	Namespaces []policy.Namespace
	Pods       []policy.Pod
	Policies   []*networkingv1.NetworkPolicy
}

// OneNamespace has 10,000 pods and as many policies in one namespace. Each policy selects one pod, and has two peers: one
// other pod, and all pods. If shared is set, each policy selects all pods and allows all.
func OneNamespace(shared bool) *Cluster {
	const many = 10_000
	c := &Cluster{Namespaces: []policy.Namespace{{Name: "one"}}}
	for i := range many {
		name := strconv.Itoa(i)
		c.pod("one", name, map[string]string{"app": name, "kind": "all"})
		if shared {
			c.policy("one", name, selects("kind", "all"), selects("kind", "all"))
		} else {
			c.policy("one", name, selects("app", name), selects("app", strconv.Itoa((i+1)%many)), selects("kind", "all"))
		}
	}
	return c
}

// ManyNamespaces has 25,000 namespaces with four pods and three policies each, as in Antrea's test: one policy allows nothing, one allows
// one pod to another, and one allows one pod from everywhere in the namespace.
func ManyNamespaces() *Cluster {
	c := &Cluster{}
	for i := range 25_000 {
		ns := "ns" + strconv.Itoa(i)
		c.Namespaces = append(c.Namespaces, policy.Namespace{Name: ns, Labels: map[string]string{"kubernetes.io/metadata.name": ns}})
		for p := range 4 {
			c.pod(ns, "pod"+strconv.Itoa(p), map[string]string{"app": "app-" + strconv.Itoa(p), "kind": "all"})
		}
		c.policy(ns, "deny", metav1.LabelSelector{})
		c.policy(ns, "first", selects("app", "app-1"), selects("app", "app-2"))
		c.policy(ns, "second", selects("app", "app-2"), metav1.LabelSelector{})
	}
	return c
}

func (c *Cluster) pod(namespace, name string, labels map[string]string) {
	n := len(c.Pods)
	c.Pods = append(c.Pods, policy.Pod{
		Key: policy.Key{Namespace: namespace, Name: name}, Node: "node" + strconv.Itoa(n%100), Labels: labels,
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})},
	})
}

func selects(key, value string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func (c *Cluster) policy(namespace, name string, pods metav1.LabelSelector, from ...metav1.LabelSelector) {
	const port = 80
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: networkingv1.NetworkPolicySpec{PodSelector: pods}}
	for i := range from {
		np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
			From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &from[i]}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(port))}},
		})
	}
	c.Policies = append(c.Policies, np)
}

// Index makes a node's index of the cluster.
func (c *Cluster) Index(node string) (*policy.Index, error) {
	x := policy.New(node)
	for _, ns := range c.Namespaces {
		x.SetNamespace(ns)
	}
	for _, p := range c.Pods {
		x.SetPod(p)
	}
	for _, np := range c.Policies {
		p, err := policy.FromNetworkPolicy(np)
		if err != nil {
			return nil, err //nolint:wrapcheck // it names the policy
		}
		x.SetPolicy(p)
	}
	return x, nil
}

// Read reads everything that an engine would program, and counts rules, addresses in sets, and isolated pods.
func (c *Cluster) Read(x *policy.Index) (rules, members, isolated int) {
	read := map[policy.SetName]bool{}
	for _, np := range c.Policies {
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
	for i := range c.Pods {
		if isolation, _ := x.Isolation(c.Pods[i].Key); isolation.Ingress {
			isolated++
		}
	}
	return rules, members, isolated
}
