package policy_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/policy"
)

// Nodes are found by the labels of their namespace, whatever the order of the objects, and by nothing else. (OpenShift SDN did not find
// them if it had received the policy before the namespace.)
func TestNodesAreFoundByLabels(t *testing.T) {
	const namespace = "openshift-host-network"
	labels := map[string]string{"policy-group.network.openshift.io/host-network": ""}
	node := pod("n2", "", "10.128.2.1")
	node.Key.Namespace, node.Labels, node.IsNode = namespace, nil, true
	beside := pod("beside", "", "10.128.2.9")
	beside.Key.Namespace, beside.Labels = namespace, nil
	peers := []struct {
		peer  string
		nodes bool
	}{
		{`{namespaceSelector: {matchLabels: {policy-group.network.openshift.io/host-network: ""}}}`, true},
		{`{namespaceSelector: {matchExpressions: [{key: policy-group.network.openshift.io/host-network, operator: Exists}]}}`, true},
		{`{namespaceSelector: {matchLabels: {policy-group.network.openshift.io/host-network: ""}}, podSelector: {}}`, true},
		{`{namespaceSelector: {}}`, false},
		{`{namespaceSelector: {}, podSelector: {}}`, false},
		{`{namespaceSelector: {matchExpressions: [{key: team, operator: DoesNotExist}]}}`, false},
		{`{namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [a]}]}}`, false},
		{`{namespaceSelector: {matchLabels: {policy-group.network.openshift.io/host-network: ""}}, podSelector: {matchLabels: {app: web}}}`, false},
	}
	steps := map[string]func(*policy.Index){
		"node": func(x *policy.Index) {
			x.SetPod(node)
			x.SetPod(beside)
		},
		"namespace": func(x *policy.Index) { x.SetNamespace(policy.Namespace{Name: namespace, Labels: labels}) },
		"policy": func(x *policy.Index) {
			for i, c := range peers {
				setPolicy(t, x, fmt.Sprint("policy", i), `{podSelector: {}, ingress: [{from: [`+c.peer+`]}]}`)
			}
		},
	}
	for _, order := range [][]string{
		{"node", "namespace", "policy"},
		{"node", "policy", "namespace"},
		{"policy", "node", "namespace"},
		{"policy", "namespace", "node"},
		{"namespace", "policy", "node"},
		{"namespace", "node", "policy"},
	} {
		x := policy.New("n1")
		for _, step := range order {
			steps[step](x)
		}
		for i, c := range peers {
			want := ips("10.128.2.1", "10.128.2.9")
			switch {
			case i == len(peers)-1:
				want = nil
			case !c.nodes:
				want = ips("10.128.2.9")
			}
			set := x.Rules(key(fmt.Sprint("policy", i)))[0].PeerSets[0]
			if diff := cmp.Diff(want, x.Addresses(set), byValue); diff != "" {
				t.Errorf("%v: %s finds (-want +got):\n%s", order, c.peer, diff)
			}
		}
		if e := x.SetNamespace(policy.Namespace{Name: namespace}); len(e.Sets) != 2 { // two selectors that it met, one of them with and without podSelector
			t.Errorf("%v: the label goes with the effect %+v", order, e)
		}
	}
	// A policy of that namespace isolates no node, and its sets have none.
	x := policy.New("n1")
	steps["node"](x)
	np := policy.Policy{Key: policy.Key{Namespace: namespace, Name: "all"}}
	np.Sides[policy.Ingress] = policy.Side{Isolates: true, Allows: []policy.Allow{{Peers: []policy.Peer{{}}, AnyService: true}}}
	x.SetPolicy(np)
	for _, set := range append(x.Rules(np.Key)[0].PeerSets, x.Rules(np.Key)[0].Subjects) {
		if diff := cmp.Diff(ips("10.128.2.9"), x.Addresses(set), byValue); diff != "" {
			t.Error(diff)
		}
	}
}
