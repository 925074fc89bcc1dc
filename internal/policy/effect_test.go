package policy_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"

	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/transport"
)

func key(name string) policy.Key { return policy.Key{Namespace: "shop", Name: name} }

func setPolicy(t testing.TB, x *policy.Index, name, spec string) policy.Effect {
	t.Helper()
	np := &networkingv1.NetworkPolicy{Spec: *parse[networkingv1.NetworkPolicySpec](t, spec)}
	np.Namespace, np.Name = "shop", name
	return x.SetPolicy(compile(t, np))
}

func pod(name, app, ip string) policy.Pod {
	p := policy.Pod{Key: key(name), Node: "n1", Labels: map[string]string{"app": app}}
	if ip != "" {
		p.Addresses = []netip.Addr{netip.MustParseAddr(ip)}
	}
	return p
}

func ips(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// A thousand policies with the same selectors share their sets: a new or deleted pod causes one delta for each set, and no policy is
// compiled again.
func TestAChangeCostsWhatItChanges(t *testing.T) {
	x := policy.New("")
	for i := range 1000 {
		x.SetPod(pod(fmt.Sprint("web", i), "web", fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)))
	}
	for i := range 1000 {
		e := setPolicy(t, x, fmt.Sprint("policy", i), `{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}, {port: 443}]}]}`)
		if isolated := len(e.Pods); i == 0 && isolated != 1000 || i > 0 && isolated != 0 {
			t.Fatalf("policy %d changes the isolation of %d pods", i, isolated)
		}
		if len(e.Policies) != 1 || len(e.Sets) != 0 {
			t.Fatalf("policy %d changes %d policies and %d sets", i, len(e.Policies), len(e.Sets))
		}
	}
	const name = "pods shop/{app=web}"
	want := policy.Effect{Sets: []policy.Delta{{Set: name, Added: ips("10.0.9.1"), Joined: []policy.Key{key("new")}}}, Pods: []policy.Key{key("new")}}
	if diff := cmp.Diff(want, x.SetPod(pod("new", "web", "10.0.9.1")), byValue); diff != "" {
		t.Error("a pod comes:", diff)
	}
	want = policy.Effect{Sets: []policy.Delta{{Set: name, Added: ips("10.0.9.2"), Removed: ips("10.0.9.1")}}}
	if diff := cmp.Diff(want, x.SetPod(pod("new", "web", "10.0.9.2")), byValue); diff != "" {
		t.Error("its address changes:", diff)
	}
	if diff := cmp.Diff(policy.Effect{}, x.SetPod(pod("new", "web", "10.0.9.2")), byValue); diff != "" {
		t.Error("nothing of it changes:", diff)
	}
	want = policy.Effect{Sets: []policy.Delta{{Set: name, Removed: ips("10.0.9.2"), Left: []policy.Key{key("new")}}}, Pods: []policy.Key{key("new")}}
	if diff := cmp.Diff(want, x.SetPod(pod("new", "other", "10.0.9.2")), byValue); diff != "" {
		t.Error("its labels change:", diff)
	}
	if diff := cmp.Diff(policy.Effect{Pods: []policy.Key{key("new")}}, x.DeletePod(key("new")), byValue); diff != "" {
		t.Error("it goes:", diff)
	}
	// 1,000 to 1,000 on two ports: the rule costs the sum of its dimensions.
	r := x.Rules(key("policy7"))[0]
	if cost := len(x.Addresses(r.Subjects)) + len(x.Addresses(r.PeerSets[0])) + len(r.Services); cost != 2002 {
		t.Errorf("1,000 pods to 1,000 pods on two ports cost %d", cost)
	}
}

// Changes that other implementations have wrongly ignored.
func TestChangesThatLookSmall(t *testing.T) {
	x := policy.New("")
	x.SetPod(pod("web", "web", "10.0.0.1"))
	setPolicy(t, x, "policy", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}`)
	e := setPolicy(t, x, "policy", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress, Egress]}`)
	if i, _ := x.Isolation(key("web")); !i.Egress || len(e.Pods) != 1 {
		t.Errorf("policyTypes alone change: isolated %+v, effect %+v", i, e)
	}
	if e := setPolicy(t, x, "policy", `{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress, Ingress]}`); len(e.Policies)+len(e.Pods) != 0 {
		t.Errorf("the order of policyTypes has the effect %+v", e)
	}
	setPolicy(t, x, "policy", `{podSelector: {matchLabels: {app: web}}, ingress: [{from: []}]}`)
	if rules := x.Rules(key("policy")); len(rules) != 1 || !rules[0].AnyPeer {
		t.Errorf("from: [] gives %+v", rules)
	}
	setPolicy(t, x, "policy", `{podSelector: {matchLabels: {app: web}}, ingress: []}`)
	if rules := x.Rules(key("policy")); len(rules) != 0 {
		t.Errorf("ingress: [] gives %+v", rules)
	}
}

// A named port has a rule for each of its numbers. Pods add and remove these rules.
func TestNamedPortsFollowThePods(t *testing.T) {
	named := func(name string, numbers ...uint16) policy.Pod {
		p := pod(name, "web", map[string]string{"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}[name])
		for _, n := range numbers {
			p.Ports = append(p.Ports, policy.ContainerPort{NamedPort: policy.NamedPort{Protocol: transport.TCP, Name: "http"}, Number: n})
		}
		return p
	}
	x := policy.New("")
	setPolicy(t, x, "policy", `{podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: http}]}]}`)
	rules := func() (list []policy.RuleName) {
		for _, r := range x.Rules(key("policy")) {
			list = append(list, r.Name)
		}
		return list
	}
	if got := rules(); got != nil {
		t.Errorf("without pods there are rules %v", got)
	}
	if e := x.SetPod(named("a", 80)); len(e.Policies) != 1 {
		t.Errorf("the first pod with the port has the effect %+v", e)
	}
	if diff := cmp.Diff([]policy.RuleName{"shop/policy ingress[0] TCP/http=80"}, rules()); diff != "" {
		t.Error(diff)
	}
	if e := x.SetPod(named("b", 80)); len(e.Policies) != 0 || len(e.Sets) != 2 { // the subjects, and the subjects with 80
		t.Errorf("a second pod with the same number has the effect %+v", e)
	}
	if e := x.SetPod(named("c", 80, 8080)); len(e.Policies) != 1 {
		t.Errorf("a pod with a new number has the effect %+v", e)
	}
	if diff := cmp.Diff([]policy.RuleName{"shop/policy ingress[0] TCP/http=80", "shop/policy ingress[0] TCP/http=8080"}, rules()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]policy.Key{key("c")}, x.Pods("pods shop/{app=web} port TCP/http=8080")); diff != "" {
		t.Error(diff)
	}
	waits := named("d", 9090)
	if e := x.SetPod(waits); len(e.Policies) != 0 || len(rules()) != 2 {
		t.Errorf("a pod with a new number, but no address yet, has the effect %+v", e)
	}
	waits.Addresses = ips("10.0.0.4")
	if e := x.SetPod(waits); len(e.Policies) != 1 || len(rules()) != 3 {
		t.Errorf("it gets an address with the effect %+v", e)
	}
	waits.Addresses = nil
	if e := x.SetPod(waits); len(e.Policies) != 1 || len(rules()) != 2 {
		t.Errorf("it loses its address with the effect %+v", e)
	}
	if e := x.DeletePod(key("c")); len(e.Policies) != 1 {
		t.Errorf("the last pod with a number goes with the effect %+v", e)
	}
	if diff := cmp.Diff([]policy.RuleName{"shop/policy ingress[0] TCP/http=80"}, rules()); diff != "" {
		t.Error(diff)
	}
}

// When a namespace's labels change, its pods' named ports are added to and removed from the sets that select the namespace.
func TestNamedPortsFollowTheNamespaces(t *testing.T) {
	x := policy.New("")
	web := pod("web", "web", "10.0.0.1")
	web.Ports = []policy.ContainerPort{{NamedPort: policy.NamedPort{Protocol: transport.TCP, Name: "http"}, Number: 80}}
	x.SetPod(web)
	x.SetNamespace(policy.Namespace{Name: "shop"})
	setPolicy(t, x, "policy", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {team: a}}}], ports: [{port: http}]}, {to: [{namespaceSelector: {}}], ports: [{port: http}]}]}`)
	const some, every = policy.RuleName("shop/policy egress[0] TCP/http=80"), policy.RuleName("shop/policy egress[1] TCP/http=80")
	for i, step := range []struct {
		change func() policy.Effect
		again  bool
		want   []policy.RuleName
	}{
		{func() policy.Effect { return policy.Effect{} }, false, []policy.RuleName{every}},
		{func() policy.Effect {
			return x.SetNamespace(policy.Namespace{Name: "shop", Labels: map[string]string{"team": "a"}})
		}, true, []policy.RuleName{some, every}},
		{func() policy.Effect {
			return x.SetNamespace(policy.Namespace{Name: "shop", Labels: map[string]string{"team": "a", "x": "y"}})
		}, false, []policy.RuleName{some, every}},
		{func() policy.Effect {
			return x.SetNamespace(policy.Namespace{Name: "shop", Labels: map[string]string{"team": "b"}})
		}, true, []policy.RuleName{every}},
		{func() policy.Effect { return x.DeleteNamespace("shop") }, true, nil},
	} {
		if e := step.change(); (len(e.Policies) > 0) != step.again || len(e.Sets) > 0 {
			t.Errorf("step %d has the effect %+v", i, e)
		}
		var got []policy.RuleName
		for _, r := range x.Rules(key("policy")) {
			got = append(got, r.Name)
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("step %d: %s", i, diff)
		}
	}
}

// Of a pod with two addresses, only the one in a block belongs to the block, also when the pod is added later.
func TestNamedPortInABlock(t *testing.T) {
	x := policy.New("")
	setPolicy(t, x, "policy", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.0/30]}}], ports: [{port: http}]}]}`)
	http := func(name string, addresses ...string) policy.Pod {
		p := pod(name, "web", "")
		p.Addresses = ips(addresses...)
		p.Ports = []policy.ContainerPort{{NamedPort: policy.NamedPort{Protocol: transport.TCP, Name: "http"}, Number: 80}}
		return p
	}
	x.SetPod(http("first", "10.0.0.4"))
	const name = "pods */{} in 10.0.0.4/30,10.0.0.8/29,10.0.0.16/28,10.0.0.32/27,10.0.0.64/26,10.0.0.128/25 port TCP/http=80"
	if diff := cmp.Diff([]policy.SetName{name}, x.Rules(key("policy"))[0].PeerSets); diff != "" {
		t.Fatal(diff)
	}
	for _, d := range x.SetPod(http("second", "10.0.0.128", "10.0.1.1", "fd00::1")).Sets {
		if want := ips("10.0.0.128"); d.Set == name {
			if diff := cmp.Diff(want, d.Added, byValue); diff != "" {
				t.Error(diff)
			}
		}
	}
	x.SetPod(http("third", "10.0.0.3"))
	if diff := cmp.Diff(ips("10.0.0.4", "10.0.0.128"), x.Addresses(name), byValue); diff != "" {
		t.Error(diff)
	}
}

// An address that two pods have for a moment stays in the set while one of them has it.
func TestTwoPodsWithOneAddress(t *testing.T) {
	x := policy.New("")
	setPolicy(t, x, "policy", `{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}`)
	x.SetPod(pod("old", "web", "10.0.0.1"))
	const name = "pods shop/{app=web}"
	for _, e := range []policy.Effect{x.SetPod(pod("new", "web", "10.0.0.1")), x.DeletePod(key("old"))} {
		for _, d := range e.Sets {
			if len(d.Added)+len(d.Removed) != 0 {
				t.Errorf("the address comes or goes: %+v", d)
			}
		}
	}
	if diff := cmp.Diff(ips("10.0.0.1"), x.Addresses(name), byValue); diff != "" {
		t.Error(diff)
	}
	x.SetPod(pod("other", "db", "10.0.0.1"))
	x.DeletePod(key("new"))
	if got := x.Addresses(name); len(got) != 0 {
		t.Errorf("the address of a pod that is gone remains: %v", got)
	}
}

// The effects of an index for one node name only that node's pods.
func TestIsolationOfOneNode(t *testing.T) {
	x := policy.New("n1")
	there := pod("there", "web", "10.0.1.1")
	there.Node = "n2"
	if e := x.SetPod(there); len(e.Pods) != 0 {
		t.Errorf("a pod elsewhere: %+v", e)
	}
	if e := x.SetPod(pod("here", "web", "10.0.0.1")); len(e.Pods) != 1 {
		t.Errorf("a pod here: %+v", e)
	}
	e := setPolicy(t, x, "policy", `{podSelector: {}, policyTypes: [Ingress, Egress]}`)
	if diff := cmp.Diff([]policy.Key{key("here")}, e.Pods); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]policy.Key{key("policy")}, x.Policies(key("here"))); diff != "" {
		t.Error(diff)
	}
	there.Node = "n1"
	if e := x.SetPod(there); len(e.Pods) != 1 {
		t.Errorf("a pod that comes here: %+v", e)
	}
}

// Established connections continue if all policies that isolate the pod in a direction keep them.
func TestPoliciesThatKeepConnections(t *testing.T) {
	x := policy.New("")
	x.SetPod(pod("web", "web", "10.0.0.1"))
	set := func(name, established, spec string) policy.Effect {
		t.Helper()
		np := &networkingv1.NetworkPolicy{Spec: *parse[networkingv1.NetworkPolicySpec](t, spec)}
		np.Namespace, np.Name, np.Annotations = "shop", name, map[string]string{policy.AnnotationEstablished: established}
		p, err := policy.FromNetworkPolicy(np)
		if err != nil {
			t.Fatal(err)
		}
		return x.SetPolicy(p)
	}
	const all, some, both = `{podSelector: {}}`, `{podSelector: {matchLabels: {app: web}}}`, `{podSelector: {}, policyTypes: [Ingress, Egress]}`
	kept, ended := policy.Isolation{Ingress: true, KeepsIngress: true}, policy.Isolation{Ingress: true}
	for i, step := range []struct {
		change   func() policy.Effect
		want     policy.Isolation
		reported bool
	}{
		{func() policy.Effect { return set("a", "keep", all) }, kept, true},
		{func() policy.Effect { return set("b", "keep", some) }, kept, false},
		{func() policy.Effect { return set("c", "keep", all) }, kept, false},
		{func() policy.Effect { return set("c", "end", all) }, ended, true},
		{func() policy.Effect { return set("d", "end", some) }, ended, false},
		{func() policy.Effect { return x.DeletePolicy(key("c")) }, ended, false},
		{func() policy.Effect { return set("d", "keep", some) }, kept, true},
		{func() policy.Effect { return set("c", "end", both) }, policy.Isolation{Ingress: true, Egress: true}, true},
		{func() policy.Effect { return x.DeletePolicy(key("c")) }, kept, true},
	} {
		e := step.change()
		if got, _ := x.Isolation(key("web")); got != step.want || step.reported && len(e.Pods) != 1 {
			t.Errorf("step %d: the pod is isolated %+v, want %+v; the effect is %+v", i, got, step.want, e)
		}
	}
}

// Which isolation allows less than which.
func TestNarrower(t *testing.T) {
	none, ingress, egress := policy.Isolation{}, policy.Isolation{Ingress: true}, policy.Isolation{Egress: true}
	keeps := policy.Isolation{Ingress: true, KeepsIngress: true}
	for _, c := range []struct {
		than, is policy.Isolation
		want     bool
	}{
		{none, none, false},
		{none, ingress, true},
		{ingress, none, false},
		{ingress, egress, true},
		{ingress, ingress, false},
		{none, keeps, true},
		{keeps, ingress, true},
		{ingress, keeps, false},
		{keeps, keeps, false},
		{keeps, none, false},
	} {
		if got := c.is.Narrower(c.than); got != c.want {
			t.Errorf("%+v is narrower than %+v: %t", c.is, c.than, got)
		}
	}
}

// A pod without an address is already in sets and isolated: its network isolates it before it has an address.
func TestPodWithoutAddress(t *testing.T) {
	x := policy.New("")
	setPolicy(t, x, "policy", `{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`)
	e := x.SetPod(pod("web", "web", ""))
	if len(e.Pods) != 1 || len(e.Sets) != 1 || len(e.Sets[0].Joined) != 1 || len(e.Sets[0].Added) != 0 {
		t.Errorf("effect %+v", e)
	}
	if i, ok := x.Isolation(key("web")); !ok || !i.Ingress {
		t.Errorf("isolation %+v, %t", i, ok)
	}
	if _, ok := x.Isolation(key("missing")); ok {
		t.Error("a pod that was not reported is known")
	}
}

// With many different labels, the index finds exactly the matching pods, and drops deleted ones.
func TestManyKindsOfPods(t *testing.T) {
	x := policy.New("")
	for i := range 40 {
		p := pod(fmt.Sprint("pod", i), fmt.Sprint("app", i), "")
		p.Labels["tier"] = fmt.Sprint("tier", i%4)
		x.SetPod(p)
	}
	for spec, want := range map[string]int{
		`{matchLabels: {app: app3}}`: 1, `{matchLabels: {app: app3, tier: tier3}}`: 1, `{matchLabels: {app: app3, tier: tier2}}`: 0,
		`{matchExpressions: [{key: app, operator: In, values: [app1, app2, none]}]}`: 2, `{matchLabels: {tier: tier1}}`: 10,
		`{matchLabels: {tier: tier1}, matchExpressions: [{key: app, operator: NotIn, values: [app1]}]}`: 9,
		`{matchExpressions: [{key: tier, operator: Exists}]}`:                                           40, `{matchExpressions: [{key: none, operator: Exists}]}`: 0, `{}`: 40,
	} {
		setPolicy(t, x, "policy", `{podSelector: `+spec+`, ingress: [{}]}`)
		if got := len(x.Pods(x.Rules(key("policy"))[0].Subjects)); got != want {
			t.Errorf("%s selects %d pods, want %d", spec, got, want)
		}
	}
	x.DeletePolicy(key("policy"))
	for i := range 30 {
		x.DeletePod(key(fmt.Sprint("pod", i)))
	}
	setPolicy(t, x, "policy", `{podSelector: {matchLabels: {tier: tier1}}, ingress: [{}]}`)
	if got := len(x.Pods("pods shop/{tier=tier1}")); got != 2 {
		t.Errorf("of those that are left, %d are found, want 2", got)
	}
}
