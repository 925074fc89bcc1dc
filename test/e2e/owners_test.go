//go:build lab

package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/lab"
)

// flowsOf runs weft flows for a node.
func flowsOf(t *testing.T, o *operator, n lab.Node, args ...string) (answer, flows.Report) {
	t.Helper()
	a := ask(t.Context(), t, n.Enter(append([]string{o.weft, "flows", "-o", "json"}, args...)...)...)
	var report flows.Report
	if a.out != "" {
		if err := json.Unmarshal([]byte(a.out), &report); err != nil {
			t.Fatalf("%v: %+v", err, a)
		}
	}
	return a, report
}

// owned fails the test unless every flow of all nodes has an owner and objects. It counts the flows by kind of owner; the flows that the
// switch learned count as "learned".
func owned(t *testing.T) map[string]int {
	t.Helper()
	o := newOperator(t)
	kinds := map[string]int{}
	for _, n := range o.cluster.Nodes() {
		a, report := flowsOf(t, o, n)
		if a.code != 0 || report.Unowned != 0 || report.OwnersUnknown != "" || report.Total == 0 || len(report.Flows) != report.Total {
			t.Errorf("%s: code %d, %s, %d of %d flows have no owner", n.Name, a.code, a.err, report.Unowned, report.Total)
		}
		for _, f := range report.Flows {
			if len(f.Objects) == 0 {
				t.Errorf("%s: the flow of %q in table %d, %s, has no source", n.Name, f.Owner, f.Table, f.Match)
			}
			if kinds[f.Kind]++; f.Learned {
				kinds["learned"]++
			}
		}
	}
	return kinds
}

// has fails the test unless there are flows of these kinds of owners: otherwise the test would not cover them.
func has(t *testing.T, kinds map[string]int, wanted ...string) {
	t.Helper()
	for _, kind := range wanted {
		if kinds[kind] == 0 {
			t.Errorf("no flow of kind %s, of %v", kind, kinds)
		}
	}
	t.Logf("flows by kind of owner: %v", kinds)
}

// Every flow is assigned to its object, with pods, Services with affinity, and policies. A query for an object returns its flows. Without
// the agent the flows are still listed.
func TestFlowsHaveOwners(t *testing.T) {
	s := newPolicyScene(t, "owners")
	allow := networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(map[string]string{"app": "far"})}}}
	s.policy(t, "owners-allow", map[string]string{"app": "server"}, ingress(allow))
	s.reach(t, "the policy", map[uint16][3]bool{sourcePort: {false, true, false}})
	services := &serviceScene{cluster: s.cluster, client: s.client}
	vip := port(services.simple(t, "owners-sticky", sticky(60), at(s.server)), 80)
	settles(t, s.far.Netns, vip, s.server.Name)
	has(t, owned(t), "cluster", "state", "attachment", "hostsubnet", "service", "policyrule", "policyterm", "affinity", "learned", "nodes")

	o, n1 := newOperator(t), s.cluster.Node(1)
	for _, test := range []struct{ flag, name, kind string }{
		{"--policy", "default/owners-allow", "NetworkPolicy"},
		{"--service", "default/owners-sticky", "Service"},
		{"--pod", "default/" + s.server.Name, "Pod"},
	} {
		a, report := flowsOf(t, o, n1, test.flag, test.name)
		if a.code != 0 || len(report.Flows) == 0 || len(report.Flows) == report.Total {
			t.Errorf("%s %s: code %d, %s, %d of %d flows", test.flag, test.name, a.code, a.err, len(report.Flows), report.Total)
		}
		for _, f := range report.Flows {
			is := func(name string) bool { return test.kind+" "+test.name == name }
			if !slices.ContainsFunc(f.Objects, func(o admin.Object) bool { return is(o.String()) }) && f.Pod != test.name {
				t.Errorf("%s %s: a flow of %v", test.flag, test.name, f.Objects)
			}
		}
	}
	a := ask(t.Context(), t, n1.Enter(o.weft, "flows", "--explain", "--policy", "default/owners-allow")...)
	if a.code != 0 || !strings.Contains(a.out, "NetworkPolicy default/owners-allow: ") || !strings.Contains(a.out, " in table 80") {
		t.Errorf("explained: %+v", a)
	}
	if a, _ := flowsOf(t, o, n1, "--pod", "default/missing"); a.code != 2 || !strings.Contains(a.err, "default/"+s.server.Name) {
		t.Errorf("a pod that does not exist: %+v", a)
	}
	s.withoutAgent(t, o)
}

// withoutAgent queries the flows while the agent hangs.
func (s *policyScene) withoutAgent(t *testing.T, o *operator) {
	t.Helper()
	defer hang(t, s.cluster, "n1/weft-agent")()
	a, report := flowsOf(t, o, s.cluster.Node(1), "--timeout", "4s")
	if a.code != 2 || report.Total == 0 || len(report.Flows) != report.Total || report.OwnersUnknown == "" || !strings.Contains(a.err, "did not answer in time") {
		t.Errorf("while the agent hangs: code %d, %s, %d flows of %d", a.code, a.err, len(report.Flows), report.Total)
	}
	for _, f := range report.Flows {
		if f.Kind == "" {
			t.Errorf("while the agent hangs, the flow of table %d, %s has no kind of owner", f.Table, f.Match)
		}
	}
}

// The same with isolated projects.
func TestFlowsOfTenantsHaveOwners(t *testing.T) {
	e := newEstate(t)
	e.flatAgain(t)
	e.setMode(t, networkv1.PluginMultitenant)
	has(t, owned(t), "cluster", "state", "attachment", "hostsubnet", "service", "targets")
}
