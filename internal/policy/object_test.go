package policy_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/transport"
)

var byValue = cmp.Options{
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b policy.Selector) bool { return a.String() == b.String() }),
}

func TestFromNetworkPolicy(t *testing.T) {
	got, err := policy.FromNetworkPolicy(parse[networkingv1.NetworkPolicy](t, `{metadata: {namespace: shop, name: web}, spec: {
		podSelector: {matchLabels: {b: "2", a: "1"}, matchExpressions: [{key: c, operator: In, values: [q, p, q]}, {key: d, operator: DoesNotExist}, {key: a, operator: In, values: ["1"]}]},
		ingress: [{from: [{ipBlock: {cidr: 10.0.0.1/8, except: [10.0.0.0/9]}}, {ipBlock: {cidr: 010.0.0.0/24}}, {ipBlock: {cidr: "::ffff:192.0.2.0/120"}}],
		           ports: [{port: 80, endPort: 83}, {port: 82, endPort: 90}, {port: sql}, {port: sql}, {port: 5, protocol: UDP}]}],
		egress: [{}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if text := got.Pods.String(); text != "{!d,a=1,b=2,c in (p,q)}" {
		t.Errorf("the selector is %s", text)
	}
	all := ^uint16(0)
	want := policy.Policy{Key: policy.Key{Namespace: "shop", Name: "web"}, Pods: got.Pods, Sides: [2]policy.Side{
		policy.Ingress: {Isolates: true, Allows: []policy.Allow{{
			Blocks:   []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.128.0.0/9"), netip.MustParsePrefix("192.0.2.0/24")},
			Services: []policy.Service{{transport.TCP, 80, all - 7}, {transport.TCP, 88, all - 1}, {transport.TCP, 90, all}, {transport.UDP, 5, all}},
			Named:    []policy.NamedPort{{transport.TCP, "sql"}},
		}}},
		policy.Egress: {Isolates: true, Allows: []policy.Allow{{AnyPeer: true, AnyService: true}}},
	}}
	if diff := cmp.Diff(want, got, byValue); diff != "" {
		t.Error(diff)
	}
	if owner := got.Owner(); owner != "networkpolicy/shop/web" {
		t.Error(owner)
	}
}

// An unparsable field is named in the error, and the policy isolates: in the given directions, and all pods if the selector is
// unparsable.
func TestWhatCannotBeUnderstood(t *testing.T) {
	const ports = `{podSelector: {matchLabels: {a: b}}, ingress: [{}, {ports: [{port: 1}, %s]}]}`
	const from = `{podSelector: {matchLabels: {a: b}}, ingress: [{from: [{podSelector: {}}, %s]}]}`
	const block = `{podSelector: {matchLabels: {a: b}}, policyTypes: [Egress], egress: [{to: [{ipBlock: %s}]}]}`
	var many strings.Builder
	for i := range 70000 {
		fmt.Fprintf(&many, "{port: %d},", i%60000+1)
	}
	var wide strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&wide, "10.%d.%d.1/32,", i/250, i%250)
	}
	for _, c := range []struct{ spec, want string }{
		{fmt.Sprintf(ports, `{protocol: ICMP, port: 1}`), `spec.ingress[1].ports[1].protocol: "ICMP" is not one of TCP, UDP, SCTP`},
		{fmt.Sprintf(ports, `{protocol: ""}`), `ports[1].protocol: "" is not one`},
		{fmt.Sprintf(ports, `{port: 0}`), `ports[1].port: 0 is not in 1 to 65535`},
		{fmt.Sprintf(ports, `{port: 65536}`), `ports[1].port: 65536 is not in`},
		{fmt.Sprintf(ports, `{port: -2147483648, endPort: 5}`), `ports[1].port: -2147483648 is not in`},
		{fmt.Sprintf(ports, `{port: 10, endPort: 9}`), `ports[1].endPort: 9 is not in 10 (the port) to 65535`},
		{fmt.Sprintf(ports, `{port: 10, endPort: 65536}`), `ports[1].endPort: 65536 is not in`},
		{fmt.Sprintf(ports, `{endPort: 9}`), `ports[1].endPort: there is no port`},
		{fmt.Sprintf(ports, `{port: http, endPort: 9}`), `ports[1].endPort: a range begins with a number`},
		{fmt.Sprintf(ports, `{port: "80"}`), `ports[1].port: "80" is not a port name`},
		{fmt.Sprintf(from, `{}`), `spec.ingress[0].from[1]: has none of podSelector, namespaceSelector, ipBlock`},
		{fmt.Sprintf(from, `{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}`), `from[1]: has ipBlock and a selector`},
		{fmt.Sprintf(from, `{podSelector: {matchExpressions: [{key: a, operator: Near}]}}`), `from[1].podSelector.matchExpressions[0]: operator "Near" is not one of`},
		{fmt.Sprintf(from, `{namespaceSelector: {matchExpressions: [{key: a, operator: In, values: []}]}}`), `from[1].namespaceSelector.matchExpressions[0]`},
		{fmt.Sprintf(from, `{namespaceSelector: {matchLabels: {"a b": c}}}`), `from[1].namespaceSelector.matchLabels`},
		{fmt.Sprintf(block, `{cidr: ""}`), `spec.egress[0].to[0].ipBlock.cidr: "" is not a CIDR`},
		{fmt.Sprintf(block, `{cidr: 10.0.0.0/33}`), `ipBlock.cidr: "10.0.0.0/33" is not a CIDR`},
		{fmt.Sprintf(block, `{cidr: 10.0.0.0/8, except: [10.1.0.0/16, 11.0.0.0/16]}`), `ipBlock.except[1]: 11.0.0.0/16 is not within 10.0.0.0/8`},
		{fmt.Sprintf(block, `{cidr: 10.0.0.0/8, except: [10.0.0.0/8]}`), `ipBlock.except[0]: 10.0.0.0/8 is not within`},
		{fmt.Sprintf(block, `{cidr: 10.0.0.0/8, except: ["::/9"]}`), `ipBlock.except[0]: ::/9 is not within`},
		{fmt.Sprintf(block, `{cidr: 10.0.0.0/8, except: [x]}`), `ipBlock.except[0]: "x" is not a CIDR`},
		{`{podSelector: {matchLabels: {a: b}}, ingress: [{ports: [` + many.String() + `]}]}`, `spec.ingress[0]: the policy has more than 65536`},
		{`{podSelector: {matchLabels: {a: b}}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [` + wide.String() + `]}}]}]}`, `spec.ingress[0].from[0].ipBlock: the policy has more than 65536`},
	} {
		np := &networkingv1.NetworkPolicy{Spec: *parse[networkingv1.NetworkPolicySpec](t, c.spec)}
		np.Namespace, np.Name = "shop", "bad"
		got, err := policy.FromNetworkPolicy(np)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "NetworkPolicy shop/bad isolates") {
			t.Errorf("%.100s: the error is %v, want %s", c.spec, err, c.want)
		}
		egress := len(np.Spec.PolicyTypes) > 0
		if got.Sides[policy.Ingress].Isolates == egress || got.Sides[policy.Egress].Isolates != egress || got.Sides[0].Allows != nil || got.Sides[1].Allows != nil {
			t.Errorf("%.100s is compiled to %+v", c.spec, got)
		}
		if got.Pods.String() != "{a=b}" {
			t.Errorf("%.100s selects %s", c.spec, got.Pods)
		}
	}
	for _, spec := range []string{
		`{podSelector: {matchLabels: {a: b}}, policyTypes: [Ingress, Sideways], ingress: [{}]}`,
		`{podSelector: {matchExpressions: [{key: a, operator: Near}]}, ingress: [{}], egress: [{}]}`,
	} {
		np := &networkingv1.NetworkPolicy{Spec: *parse[networkingv1.NetworkPolicySpec](t, spec)}
		got, err := policy.FromNetworkPolicy(np)
		if err == nil || !got.Sides[policy.Ingress].Isolates || !got.Sides[policy.Egress].Isolates || got.Sides[0].Allows != nil || got.Sides[1].Allows != nil {
			t.Errorf("%s: %v, %+v", spec, err, got)
		}
		if all := strings.Contains(spec, "Near"); all != got.Pods.Matches(nil) {
			t.Errorf("%s selects %s", spec, got.Pods)
		}
	}
}

// The annotation for established connections is parsed, and an unknown value changes nothing else.
func TestEstablishedConnections(t *testing.T) {
	for _, c := range []struct {
		annotations map[string]string
		keeps       bool
		problem     string
	}{
		{nil, false, ""},
		{map[string]string{policy.AnnotationEstablished: "end"}, false, ""},
		{map[string]string{policy.AnnotationEstablished: "keep"}, true, ""},
		{map[string]string{policy.AnnotationEstablished: "Keep"}, false, `metadata.annotations[network.weft.dev/established-connections]: "Keep" is neither keep nor end`},
		{map[string]string{policy.AnnotationEstablished: ""}, false, `"" is neither`},
	} {
		np := &networkingv1.NetworkPolicy{Spec: *parse[networkingv1.NetworkPolicySpec](t, `{podSelector: {}, ingress: [{}]}`)}
		np.Namespace, np.Name, np.Annotations = "shop", "web", c.annotations
		got, err := policy.FromNetworkPolicy(np)
		if (err != nil) != (c.problem != "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%v: the error is %v, want %s", c.annotations, err, c.problem)
		}
		if got.Keeps != c.keeps || len(got.Sides[policy.Ingress].Allows) != 1 {
			t.Errorf("%v is compiled to %+v", c.annotations, got)
		}
	}
}

// An invalid policy closes its own pods, and does not affect others.
func TestOneBadPolicyStopsNoOther(t *testing.T) {
	x := policy.New("")
	x.SetPod(policy.Pod{Key: policy.Key{Namespace: "shop", Name: "a"}, Labels: map[string]string{"app": "a"}})
	x.SetPod(policy.Pod{Key: policy.Key{Namespace: "shop", Name: "b"}, Labels: map[string]string{"app": "b"}})
	good := &networkingv1.NetworkPolicy{Spec: *parse[networkingv1.NetworkPolicySpec](t, `{podSelector: {matchLabels: {app: b}}, ingress: [{}]}`)}
	bad := &networkingv1.NetworkPolicy{Spec: *parse[networkingv1.NetworkPolicySpec](t, `{podSelector: {matchLabels: {app: a}}, ingress: [{}, {ports: [{port: 0}]}]}`)}
	for name, np := range map[string]*networkingv1.NetworkPolicy{"good": good, "bad": bad} {
		np.Namespace, np.Name = "shop", name
		p, err := policy.FromNetworkPolicy(np)
		if (err != nil) != (name == "bad") {
			t.Error(name, err)
		}
		x.SetPolicy(p)
	}
	for _, name := range []string{"a", "b"} {
		if i, ok := x.Isolation(policy.Key{Namespace: "shop", Name: name}); !ok || i != (policy.Isolation{Ingress: true}) {
			t.Errorf("%s is isolated %+v, %t", name, i, ok)
		}
	}
	if rules := x.Rules(policy.Key{Namespace: "shop", Name: "bad"}); rules != nil {
		t.Errorf("the bad policy has rules: %+v", rules)
	}
	if rules := x.Rules(policy.Key{Namespace: "shop", Name: "good"}); len(rules) != 1 || !rules[0].AnyPeer || !rules[0].AnyService {
		t.Errorf("the good policy has rules %+v", rules)
	}
}

func TestFromPod(t *testing.T) {
	got := policy.FromPod(parse[corev1.Pod](t, `{metadata: {namespace: shop, name: db, labels: {a: b}}, spec: {nodeName: n1, containers: [
		{name: c, ports: [{name: sql, containerPort: 5432}, {containerPort: 1}, {name: x, containerPort: 70000}, {name: y, containerPort: 1, protocol: ICMP}]},
		{name: d, ports: [{name: sql, containerPort: 5433}]}], initContainers: [{name: e, ports: [{name: dns, containerPort: 53, protocol: UDP}, {name: sql, containerPort: 5432}]}]},
		status: {podIP: 10.0.0.9, podIPs: [{ip: 10.0.0.9}, {ip: "fd00::1"}, {ip: nonsense}, {ip: "fe80::1%eth0"}, {ip: ""}, {ip: "0.0.0.0"}]}}`))
	want := policy.Pod{
		Key: policy.Key{Namespace: "shop", Name: "db"}, Node: "n1", Labels: map[string]string{"a": "b"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::1")},
		Ports: []policy.ContainerPort{{policy.NamedPort{Protocol: transport.TCP, Name: "sql"}, 5432}, {policy.NamedPort{Protocol: transport.TCP, Name: "sql"}, 5433}, {policy.NamedPort{Protocol: transport.UDP, Name: "dns"}, 53}},
	}
	if diff := cmp.Diff(want, got, byValue); diff != "" {
		t.Error(diff)
	}
	for phase, ended := range map[corev1.PodPhase]bool{"": false, "Pending": false, "Running": false, "Unknown": false, "Succeeded": true, "Failed": true} {
		if got := policy.FromPod(&corev1.Pod{Status: corev1.PodStatus{Phase: phase}}); got.Ended != ended {
			t.Errorf("a pod that is %q has ended: %t", phase, got.Ended)
		}
	}
}

// Ranges are split into ports and masks that cover each of their ports once, and no other.
func TestRangesOfPorts(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var ranges [][2]uint16
		for range rapid.IntRange(1, 4).Draw(r, "ranges") {
			first := rapid.Uint16().Draw(r, "first")
			ranges = append(ranges, [2]uint16{first, rapid.Uint16Range(first, 65535).Draw(r, "last")})
		}
		services := policy.Split(transport.TCP, ranges...)
		for port := range 65536 {
			in, times := false, 0
			for _, x := range ranges {
				in = in || port >= int(x[0]) && port <= int(x[1])
			}
			for _, s := range services {
				if s.Contains(transport.TCP, uint16(port)) {
					times++
				}
			}
			if in != (times == 1) || times > 1 {
				r.Fatalf("%d is in %v: %t; %d times in %v", port, ranges, in, times, services)
			}
		}
	})
	for _, c := range []struct {
		ranges [][2]uint16
		want   int
	}{
		{[][2]uint16{{0, 65535}}, 1},
		{[][2]uint16{{1, 65535}}, 16},
		{[][2]uint16{{1, 65534}}, 30}, // the worst case
		{[][2]uint16{{1000, 1003}}, 1},
		{[][2]uint16{{80, 80}, {82, 82}}, 2},
		{[][2]uint16{{80, 80}, {81, 81}}, 1},
		{[][2]uint16{{80, 80}, {81, 81}, {82, 83}}, 1},
		{[][2]uint16{{65535, 65535}, {65535, 65535}}, 1},
	} {
		if got := policy.Split(transport.TCP, c.ranges...); len(got) != c.want {
			t.Errorf("%v comes apart into %d: %v", c.ranges, len(got), got)
		}
	}
}

// Every policy either compiles or allows nothing; no compiled rule is one that no packet could match.
func FuzzFromNetworkPolicy(f *testing.F) {
	f.Add([]byte(`{"metadata":{"namespace":"shop","name":"web"},"spec":{"podSelector":{},"policyTypes":["Ingress","Egress"],"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}],"ports":[{"port":"http"},{"port":1,"endPort":65535}]}],"egress":[{}]}}`))
	f.Add([]byte(`{"spec":{"podSelector":{"matchExpressions":[{"key":"a","operator":"NotIn","values":["b"]}]},"egress":[{"to":[{"namespaceSelector":{}},{"podSelector":{"matchLabels":{"a":"b"}}}],"ports":[{"protocol":"SCTP"}]}]}}`))
	f.Add([]byte(`{"spec":{"policyTypes":["x"],"ingress":[{"from":[{}],"ports":[{"endPort":-1}]}]}}`))
	f.Add([]byte(`{"spec":{"ingress":[{"from":[{"ipBlock":{"cidr":"::ffff:0:0/90","except":["::ffff:1.2.3.4/127","010.1.1.1/31"]}}]}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		obj := &networkingv1.NetworkPolicy{}
		if json.Unmarshal(data, obj) != nil {
			return
		}
		p, err := policy.FromNetworkPolicy(obj)
		for d, side := range p.Sides {
			if err != nil && len(side.Allows) > 0 || !side.Isolates && len(side.Allows) > 0 {
				t.Errorf("side %d: %+v, %v", d, side, err)
			}
			for _, a := range side.Allows {
				checkAllow(t, a)
			}
		}
		if !p.Sides[policy.Ingress].Isolates && !p.Sides[policy.Egress].Isolates {
			t.Error("the policy isolates nothing")
		}
		x := policy.New("")
		x.SetPod(policy.Pod{Key: policy.Key{Namespace: p.Key.Namespace, Name: "pod"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
		x.SetPolicy(p)
		for _, r := range x.Rules(p.Key) {
			if !r.AnyPeer && len(r.PeerSets)+len(r.PeerBlocks) == 0 || !r.AnyService && len(r.Services) == 0 {
				t.Errorf("rule %+v", r)
			}
		}
		x.DeletePolicy(p.Key)
		if x.Sets() != 0 {
			t.Error("sets remain")
		}
	})
}

func checkAllow(t *testing.T, a policy.Allow) {
	for i, b := range a.Blocks {
		if !b.IsValid() || b.Masked() != b || b.Addr().Is4In6() || i > 0 && a.Blocks[i-1].Overlaps(b) {
			t.Errorf("blocks %v", a.Blocks)
		}
	}
	for _, s := range a.Services {
		if s.Port&^s.Mask != 0 || strings.HasPrefix(s.Protocol.String(), "protocol") {
			t.Errorf("service %+v", s)
		}
	}
	if a.AnyPeer != (len(a.Peers)+len(a.Blocks) == 0) && a.AnyPeer || a.AnyService != (len(a.Services)+len(a.Named) == 0) {
		t.Errorf("%+v", a)
	}
}

// Whatever a pod contains: its value has only valid addresses and ports.
func FuzzFromPod(f *testing.F) {
	f.Add([]byte(`{"metadata":{"namespace":"a","name":"b"},"spec":{"containers":[{"ports":[{"name":"x","containerPort":80}]}]},"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"::ffff:10.0.0.1"}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		obj := &corev1.Pod{}
		if json.Unmarshal(data, obj) != nil {
			return
		}
		p := policy.FromPod(obj)
		for i, ip := range p.Addresses {
			if !ip.IsValid() || ip.Is4In6() || ip.IsUnspecified() || ip.Zone() != "" || i > 0 && !p.Addresses[i-1].Less(ip) {
				t.Errorf("addresses %v", p.Addresses)
			}
		}
		for _, c := range p.Ports {
			if c.Number == 0 || c.Name == "" {
				t.Errorf("port %+v", c)
			}
		}
	})
}

func TestSelectorsOfAnyLength(t *testing.T) {
	long := func(last string) metav1.LabelSelector {
		s := metav1.LabelSelector{}
		for i := range 40 {
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: fmt.Sprint("key", i), Operator: "Exists"})
		}
		s.MatchLabels = map[string]string{"zone": last}
		return s
	}
	x := policy.New("")
	names := map[policy.SetName]bool{}
	for i, last := range []string{"a", "b", "a"} {
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint(i)}, Spec: networkingv1.NetworkPolicySpec{PodSelector: long(last), Ingress: []networkingv1.NetworkPolicyIngressRule{{}}}}
		x.SetPolicy(compile(t, np))
		name := x.Rules(policy.Key{Namespace: "shop", Name: np.Name})[0].Subjects
		if len(name) > 200 {
			t.Errorf("a name of %d bytes", len(name))
		}
		names[name] = true
	}
	if len(names) != 2 {
		t.Errorf("two selectors of three policies have the names %v", names)
	}
}
