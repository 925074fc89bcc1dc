package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan"
)

// Whatever changes, and whatever cannot be written or is written later, the plan of the changes equals the plan of everything: world.plan compares them after
// each change.
func TestPlannerAgreesWithCompile(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(r)
		w.spaces["ns2"] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns2"}}
		uid := 0
		one := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(r, label) }
		fresh := func(object metav1.Object) {
			uid++
			object.SetUID(types.UID(fmt.Sprint("uid-", uid)))
		}
		deleted := metav1.NewTime(time.Unix(2000, 0))
		steps := map[string]func(){
			"a Vpc": func() {
				name, other := one("vpc", "v1", "v2", "v3"), one("peer", "v1", "v2", "v3")
				if v := w.vpcs[name]; v != nil && rapid.IntRange(0, 9).Draw(r, "key of another") == 0 {
					v.Status.TunnelKey = rapid.IntRange(0, 4).Draw(r, "key")
					return
				}
				spec := kubeovn.VpcSpec{Namespaces: rapid.SampledFrom([][]string{nil, {"ns1"}, {"ns2"}}).Draw(r, "namespaces")}
				if rapid.Bool().Draw(r, "peering") {
					local := map[string]string{"v1": "169.254.0.1/29", "v2": "169.254.0.2/29", "v3": "169.254.0.3/29"}[name]
					spec.VpcPeerings = []kubeovn.VpcPeering{{RemoteVpc: other, LocalConnectIP: local}}
				}
				if v := w.vpcs[name]; v != nil {
					v.Spec = spec
					return
				}
				w.vpc(name, rapid.IntRange(1, 5).Draw(r, "age"), spec)
				fresh(w.vpcs[name])
			},
			"a Subnet": func() {
				name, vpc, cidr := one("subnet", "s1", "s2", "s3"), one("of", "v1", "v2", ""), one("range", "10.0.1.0/24", "10.0.1.0/29", "10.0.2.0/28")
				if s := w.subnets[name]; s != nil {
					s.Spec.ExcludeIps = rapid.SampledFrom([][]string{nil, {"10.0.1.2"}, {"10.0.1.2..10.0.1.6"}}).Draw(r, "excludes")
					s.Spec.Namespaces = rapid.SampledFrom([][]string{nil, {"ns1"}}).Draw(r, "bound")
					s.Spec.Private = rapid.Bool().Draw(r, "private")
					s.Spec.RouteTable = one("table", "", "", "a b")
					s.Spec.CIDRBlock = one("new range", s.Spec.CIDRBlock, s.Spec.CIDRBlock, cidr, "127.0.0.0/24")
					s.Spec.NamespaceSelectors = nil
					if team := one("of team", "", "a", "b"); team != "" {
						s.Spec.NamespaceSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"team": team}}}
					}
					if to := one("moves to", "", "", "", "v1", "v2", "v3"); to != "" {
						s.Spec.Vpc = to
					}
					return
				}
				fresh(w.subnet(name, rapid.IntRange(1, 5).Draw(r, "age"), vpc, cidr))
			},
			"a pod": func() {
				name := one("pod", "p1", "p2", "p3", "p4")
				pod := w.pod(name, one("in", "", "s1", "s2", "s3", "none"), one("address", "", "", "10.0.1.3", "10.0.2.3"))
				pod.Namespace = one("namespace", "ns1", "ns2")
				fresh(pod)
				if rapid.Bool().Draw(r, "no node") {
					pod.Spec.NodeName = ""
				}
				if mac := one("mac", "", "", "02:00:00:00:00:01"); mac != "" {
					pod.Annotations[kubeovn.AnnotationMACAddress] = mac
				}
			},
			"a pod with a node": func() {
				if pod := w.pods[one("pod", "p1", "p2", "p3", "p4")]; pod != nil {
					pod.Spec.NodeName = "node1"
				}
			},
			"a pod that ends": func() {
				if pod := w.pods[one("pod", "p1", "p2", "p3", "p4")]; pod != nil {
					pod.Status.Phase = corev1.PodSucceeded
				}
			},
			"a policy": func() {
				w.policies["p"] = &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: one("namespace", "ns1", "ns2")}}
				if rapid.Bool().Draw(r, "egress") {
					w.policies["p"].Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
				}
			},
			"a policy less": func() { delete(w.policies, "p") },
			"a pod less":    func() { delete(w.pods, one("pod", "p1", "p2", "p3", "p4")) },
			"a namespace": func() {
				space := w.spaces[one("namespace", "ns1", "ns2")]
				space.Annotations = map[string]string{kubeovn.AnnotationLogicalSwitch: one("in", "", "s1", "s2,s1", "s3, s2")}
				space.Labels = map[string]string{"team": one("team", "a", "b")}
			},
			"a gateway": func() {
				name := one("gateway", "gw1", "gw2")
				spec := kubeovn.VpcNatGatewaySpec{Vpc: one("vpc", "v1", "v2"), Subnet: one("in", "s1", "s2"), LanIP: one("lanIp", "10.0.1.5", "10.0.1.4", "10.0.2.3")}
				if g := w.gateways[name]; g != nil {
					g.Spec = spec
					return
				}
				w.gateways[name] = &kubeovn.VpcNatGateway{ObjectMeta: created(name, 6), Spec: spec}
				fresh(w.gateways[name])
			},
			"an external Subnet": func() {
				if w.subnets["ovn-vpc-external-network"] == nil {
					s := w.subnet("ovn-vpc-external-network", 3, "", "192.168.100.0/24")
					s.Spec.Provider, s.Spec.Gateway = "ovn-vpc-external-network.kube-system", "192.168.100.1"
					s.Spec.ExcludeIps = []string{"192.168.100.1..192.168.100.220"}
					fresh(s)
				}
			},
			"a definition": func() { w.definitions["ovn-vpc-external-network.kube-system"] = natDefinition },
			"a second external Subnet": func() {
				if w.subnets["ex2"] == nil {
					s := w.subnet("ex2", rapid.IntRange(2, 4).Draw(r, "age"), "", "192.168.100.0/24")
					s.Spec.Provider = "ex2.kube-system"
					fresh(s)
				}
			},
			"a second definition": func() {
				other := strings.ReplaceAll(natDefinition, "ens37", "ens38")
				w.definitions["ex2.kube-system"] = one("config", natDefinition, natDefinition, other, "{")
			},
			"no second definition": func() { delete(w.definitions, "ex2.kube-system") },
			"no definition":        func() { delete(w.definitions, "ovn-vpc-external-network.kube-system") },
			"configuration":        func() { w.config.Enabled, w.config.Image = rapid.Bool().Draw(r, "on"), one("image", "", "i") },
			"an EIP": func() {
				if name := one("eip", "e1", "e2"); w.eips[name] == nil {
					e := w.eip(name, 7, one("address", "", "192.168.100.230", "192.168.100.231"))
					e.Spec.ExternalSubnet = one("outside", "", "ex2")
					fresh(e)
				}
			},
			"a rule":                 func() { w.fip("f", 8, one("eip", "e1", "e2"), "10.0.1.3") },
			"a rule less":            func() { delete(w.fips, "f") },
			"a Subnet that vanishes": func() { delete(w.subnets, one("subnet", "s1", "s2", "s3")) }, // by hand, without its finalizer
			"a deletion": func() {
				switch kind, at := rapid.IntRange(0, 3).Draw(r, "kind"), one("which", "1", "2", "3"); {
				case kind == 0 && w.vpcs["v"+at] != nil:
					w.vpcs["v"+at].DeletionTimestamp = &deleted
				case kind == 1 && w.subnets["s"+at] != nil:
					w.subnets["s"+at].DeletionTimestamp = &deleted
				case kind == 2 && w.gateways["gw"+at] != nil:
					w.gateways["gw"+at].DeletionTimestamp = &deleted
				case kind == 3 && w.eips["e"+at] != nil:
					w.eips["e"+at].DeletionTimestamp = &deleted
				}
			},
			"doubt": func() { w.planner.Again() },
		}
		if rapid.Bool().Draw(r, "furnished") {
			w.vpc("v1", 1, kubeovn.VpcSpec{})
			w.subnet("s1", 1, "v1", "10.0.1.0/29")
			w.pod("p1", "s1", "")
			w.pod("p2", "s1", "")
			for range 5 {
				w.step(r)
			}
		}
		for range rapid.IntRange(1, 40).Draw(r, "steps") {
			steps[rapid.SampledFrom(keys(steps)).Draw(r, "step")]()
			if w.refuses = nil; rapid.IntRange(0, 3).Draw(r, "refusals") == 0 {
				w.refuses = func(plan.Object) bool { return rapid.Bool().Draw(r, "refused") }
			}
			if w.postpones = nil; rapid.IntRange(0, 3).Draw(r, "postponements") == 0 {
				w.postpones = func(plan.Object) bool { return rapid.Bool().Draw(r, "postponed") }
			}
			if rapid.IntRange(0, 3).Draw(r, "plan") > 0 {
				w.step(r)
			}
		}
		w.refuses, w.postpones = nil, nil
		for range 30 {
			if !w.step(r) {
				return
			}
		}
		r.Fatalf("plans go on without end")
	})
}

// BenchmarkPod measures the cost of one pod, from its event to rows and the IP object, in clusters of different sizes; BenchmarkSubnet that
// of one more Subnet with its Vpc.
func BenchmarkPod(b *testing.B) {
	for _, size := range []int{10, 250} {
		b.Run(fmt.Sprintf("subnets=%d", size), func(b *testing.B) {
			p := large(b, size)
			pod := podIn(0, 1000)
			for b.Loop() {
				p.Set(pod)
				made := p.Plan(metav1.Now())
				if len(made.Create) != 1 || len(made.Fragments) != 1 {
					b.Fatalf("%d addresses, %d fragments", len(made.Create), len(made.Fragments))
				}
				p.Set(made.Create[0])
				p.Plan(metav1.Now())
				p.Remove(made.Create[0])
				p.Remove(pod)
				p.Plan(metav1.Now())
			}
		})
	}
}

// BenchmarkSubnet: see BenchmarkPod.
func BenchmarkSubnet(b *testing.B) {
	for _, size := range []int{10, 250} {
		b.Run(fmt.Sprintf("subnets=%d", size), func(b *testing.B) {
			p := large(b, size)
			vpc, subnet := pair(size)
			for b.Loop() {
				p.Set(vpc)
				p.Set(subnet)
				if made := p.Plan(metav1.Now()); len(made.Fragments["Subnet/"+subnet.Name+"/"+string(subnet.UID)]) == 0 || len(made.Fragments) != 2 {
					b.Fatalf("%d fragments", len(made.Fragments))
				}
				p.Remove(subnet)
				p.Remove(vpc)
				p.Plan(metav1.Now())
			}
		})
	}
}

func pair(i int) (*kubeovn.Vpc, *kubeovn.Subnet) {
	v := &kubeovn.Vpc{ObjectMeta: created(fmt.Sprint("v", i), i)}
	s := &kubeovn.Subnet{ObjectMeta: created(fmt.Sprint("s", i), i), Spec: kubeovn.SubnetSpec{Vpc: v.Name, CIDRBlock: "10.0.0.0/24"}}
	v.Finalizers, s.Finalizers = []string{kubeovn.Finalizer}, []string{kubeovn.Finalizer}
	return v, s
}

func podIn(subnet, i int) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: created(fmt.Sprintf("p%d-%d", subnet, i), 1000), Spec: corev1.PodSpec{NodeName: "n"}}
	pod.Namespace, pod.Annotations = "ns1", map[string]string{kubeovn.AnnotationLogicalSwitch: fmt.Sprint("s", subnet)}
	return pod
}

// large returns a planner with the given number of VPCs, each with one Subnet of 40 pods.
func large(b *testing.B, subnets int) *plan.Planner {
	b.Helper()
	p := plan.NewPlanner()
	p.Set(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns1"}})
	for i := range subnets {
		v, s := pair(i)
		p.Set(v)
		p.Set(s)
		for j := range 40 {
			p.Set(podIn(i, j))
		}
	}
	for range 5 {
		made := p.Plan(metav1.Now())
		for _, ip := range made.Create {
			p.Set(ip)
		}
		for _, v := range made.VpcStatus {
			p.Set(v)
		}
		for _, s := range made.SubnetStatus {
			p.Set(s)
		}
	}
	if made := p.Plan(metav1.Now()); len(made.Fragments) != 0 {
		b.Fatalf("a plan without a change has %d fragments", len(made.Fragments))
	}
	return p
}

// An address is removed without a confirmation only if its pod was seen, and is reported as deleted or as replaced by a newer one. A report of
// an earlier pod of the name may come late.
func TestConfirm(t *testing.T) {
	pod := func(uid, version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: "p", UID: types.UID(uid), ResourceVersion: version}}
	}
	ended := pod("u", "6")
	ended.Status.Phase = corev1.PodSucceeded
	for name, c := range map[string]struct {
		change  func(p *plan.Planner)
		confirm bool
	}{
		"deleted":                  {func(p *plan.Planner) { p.Remove(pod("u", "6")) }, false},
		"ended":                    {func(p *plan.Planner) { p.Set(ended) }, false},
		"ended and deleted":        {func(p *plan.Planner) { p.Set(ended); p.Remove(ended) }, false},
		"replaced":                 {func(p *plan.Planner) { p.Set(pod("v", "6")) }, false},
		"replaced and deleted":     {func(p *plan.Planner) { p.Set(pod("v", "6")); p.Remove(pod("v", "7")) }, false},
		"deleted, of another UID":  {func(p *plan.Planner) { p.Remove(pod("t", "4")) }, true},
		"replaced by an older one": {func(p *plan.Planner) { p.Set(pod("t", "4")) }, true},
		"confirmed": {func(p *plan.Planner) {
			p.Remove(pod("t", "4"))
			p.Gone(p.Plan(metav1.Now()).Confirm[0])
			p.Again()
		}, false},
		"deleted, and the IP object reported again": {func(p *plan.Planner) { p.Remove(pod("u", "6")); p.Set(ipOfConfirm("u")) }, false},
		"deleted, and the IP object of another pod": {func(p *plan.Planner) { p.Remove(pod("u", "6")); p.Set(ipOfConfirm("w")) }, true},
		"never seen": {func(p *plan.Planner) {
			p.Remove(pod("u", "6"))
			p.Remove(ipOfConfirm("u"))
			p.Plan(metav1.Now())
			p.Set(ipOfConfirm("u"))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan.NewPlanner()
			p.Set(&kubeovn.Vpc{ObjectMeta: created("v", 1)})
			p.Set(&kubeovn.Subnet{ObjectMeta: created("s", 2), Spec: kubeovn.SubnetSpec{Vpc: "v", CIDRBlock: "10.0.1.0/24"}})
			p.Set(pod("u", "5"))
			p.Set(ipOfConfirm("u"))
			if first := p.Plan(metav1.Now()); len(first.Delete) > 0 {
				t.Fatalf("removed before the change: %v", first.Delete)
			}
			c.change(p)
			have := p.Plan(metav1.Now())
			if len(have.Delete) != 1 || (len(have.Confirm) == 1) != c.confirm {
				t.Errorf("removed: %d; to be confirmed: %d", len(have.Delete), len(have.Confirm))
			}
		})
	}
}

func ipOfConfirm(uid string) *kubeovn.IP {
	return &kubeovn.IP{ObjectMeta: metav1.ObjectMeta{Name: "s.10.0.1.2"}, Spec: kubeovn.IPSpec{
		PodName: "p", Namespace: "ns1", PodUID: uid, Subnet: "s", SubnetUID: "uid-s", V4IPAddress: "10.0.1.2", MacAddress: "0a:58:0a:00:01:02",
	}}
}
