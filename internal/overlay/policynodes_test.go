package overlay

import (
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/policy"
)

// fromNodes returns a policy that admits peers by a selector of namespaces.
func fromNodes(t *testing.T, name string, selector *metav1.LabelSelector) PolicyChange {
	t.Helper()
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	np.Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress"}
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: selector}}}}
	p, err := policy.FromNetworkPolicy(np)
	if err != nil {
		t.Fatal(err)
	}
	return PolicyChange{Policies: map[policy.Key]*policy.Policy{p.Key: &p}}
}

func hostNetwork(labels map[string]string) PolicyChange {
	return PolicyChange{Namespaces: map[string]*policy.Namespace{networkv1.HostNetworkNamespace: {Name: networkv1.HostNetworkNamespace, Labels: labels}}}
}

// The label of the namespace for hosts' networks admits the present nodes, in any order of changes. Other selectors do not.
func TestNodesArePeersOfPolicies(t *testing.T) {
	group := map[string]string{"policy-group.network.openshift.io/host-network": ""}
	view := policyView()
	for i := range view.Remotes {
		view.Remotes[i].NodeUID = "node"
	}
	view.Remotes = append(view.Remotes, subnet("external", "192.0.2.9", "10.128.6.0/23"))
	n := newNode(t.TempDir())
	l := n.begin(t)
	t.Cleanup(func() { l.stop() })
	all := PolicyChange{Reset: true}
	l.policies(t, all)
	allNamespaces := fromNodes(t, "allNamespaces", &metav1.LabelSelector{})
	l.policies(t, allNamespaces)
	l.policies(t, policyPod("server", web))
	l.update(t, view)
	l.add(t, l.request("server"))
	expect := func(what string, want map[string]int) {
		t.Helper()
		for _, text := range []string{"10.128.2.1", "192.0.2.2", "10.128.4.1", "192.0.2.3", "10.128.6.1", "192.0.2.9", "192.0.2.1"} {
			if got := l.named(t, netip.MustParseAddr(text)); got != want[text] {
				t.Errorf("%s: %d flows let %s in, want %d", what, got, text, want[text])
			}
		}
	}
	nodes := map[string]int{"10.128.2.1": 1, "192.0.2.2": 1, "10.128.4.1": 1, "192.0.2.3": 1, "192.0.2.1": 1}
	expect("all namespaces", nil)
	l.policies(t, hostNetwork(group))
	expect("a namespace for host-network pods exists, and no policy selects it", nil)
	l.policies(t, fromNodes(t, "nodes", &metav1.LabelSelector{MatchLabels: group}))
	expect("it is asked for", nodes)
	before := l.node.state(t)
	l.policies(t, hostNetwork(nil))
	expect("it has the label no more", nil)
	l.policies(t, hostNetwork(group))
	expect("it has the label again", nodes)

	fewer := view
	fewer.Remotes = view.Remotes[:1]
	l.update(t, fewer)
	l.policies(t, PolicyChange{})
	expect("a node has gone", map[string]int{"10.128.2.1": 1, "192.0.2.2": 1, "192.0.2.1": 1})
	l.update(t, view)
	l.policies(t, PolicyChange{})
	expect("it is back", nodes)
	if after := l.node.state(t); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}

	flat := sample()
	flat.Remotes = view.Remotes
	l.update(t, flat)
	expect("in the flat network", nil)
	again := hostNetwork(group)
	again.Reset = true
	for _, change := range []PolicyChange{again, policyPod("server", web), allNamespaces, fromNodes(t, "nodes", &metav1.LabelSelector{MatchLabels: group})} {
		l.policies(t, change)
	}
	l.update(t, view)
	expect("by policies again", nodes)
	l.policies(t, again)
	for _, change := range []PolicyChange{policyPod("server", web), allNamespaces, fromNodes(t, "nodes", &metav1.LabelSelector{MatchLabels: group})} {
		l.policies(t, change)
	}
	expect("all objects are reported again", nodes)

	commits := n.commits()
	l.stop()
	l = n.begin(t)
	for _, change := range []PolicyChange{fromNodes(t, "nodes", &metav1.LabelSelector{MatchLabels: group}), allNamespaces, policyPod("server", web), hostNetwork(group)} {
		l.policies(t, change)
	}
	l.update(t, view)
	if got := n.commits(); got != commits {
		t.Errorf("a restart wrote: %v commits before, %v after", commits, got)
	}
	expect("after a restart", nodes)
}
