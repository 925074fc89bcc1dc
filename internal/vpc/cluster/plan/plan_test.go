package plan_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/vpc/objects"
)

// Objects may be created in any order, with or without plans in between, and be deleted in any order: the final state is the same, and
// nothing is left.
func TestOrders(t *testing.T) {
	build := func(w *world) []func() {
		peering := func(remote, local string) []kubeovn.VpcPeering {
			return []kubeovn.VpcPeering{{RemoteVpc: remote, LocalConnectIP: local}}
		}
		return []func(){
			func() { w.vpc("v1", 1, kubeovn.VpcSpec{VpcPeerings: peering("v2", "169.254.0.1/30")}) },
			func() { w.vpc("v2", 2, kubeovn.VpcSpec{VpcPeerings: peering("v1", "169.254.0.2/30")}) },
			func() { w.subnet("s1", 3, "v1", "10.0.1.0/24") },
			func() { w.subnet("s2", 4, "v2", "10.0.1.0/24") },
			func() { w.subnet("overlaps", 5, "v1", "10.0.0.0/16") },
			func() { w.subnet("default", 6, "", "10.9.0.0/24") },
			func() { w.pod("p1", "s1", "10.0.1.77") },
			func() { w.pod("p2", "s2", "10.0.1.77") },
			func() { w.pod("p3", "none", "10.0.1.78") },
			func() {
				w.gateways["gw"] = &kubeovn.VpcNatGateway{ObjectMeta: created("gw", 7), Spec: kubeovn.VpcNatGatewaySpec{Vpc: "v1", Subnet: "s1", LanIP: "10.0.1.254"}}
			},
		}
	}
	first := newWorld(t)
	for _, make := range build(first) {
		make()
	}
	first.settle(t)
	want := first.ports()
	if !strings.Contains(want, "v1/peer/v2") || !strings.Contains(want, "s2/10.0.1.77") || strings.Contains(want, "overlaps") {
		t.Fatalf("rows:\n%s", want)
	}
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(r)
		for _, make := range rapid.Permutation(build(w)).Draw(r, "creations") {
			make()
			if rapid.Bool().Draw(r, "plan") {
				w.step(r)
			}
		}
		w.settle(r)
		if have := w.ports(); have != want {
			r.Fatalf("another order gives other rows:\n%s\nwant:\n%s", have, want)
		}
		now := metav1.NewTime(time.Unix(2000, 0))
		var deletions []func()
		for _, v := range w.vpcs {
			deletions = append(deletions, func() { v.DeletionTimestamp = &now })
		}
		for _, s := range w.subnets {
			deletions = append(deletions, func() { s.DeletionTimestamp = &now })
		}
		for name := range w.pods {
			deletions = append(deletions, func() { delete(w.pods, name) })
		}
		deletions = append(deletions, func() { w.gateways["gw"].DeletionTimestamp = &now })
		slices.SortFunc(deletions, func(func(), func()) int { return 0 })
		for _, remove := range rapid.Permutation(deletions).Draw(r, "deletions") {
			remove()
			if rapid.Bool().Draw(r, "plan") {
				w.step(r)
			}
		}
		w.settle(r)
		if left := len(w.database.Rows()) + len(w.vpcs) + len(w.subnets) + len(w.ips); left != 0 {
			r.Fatalf("%d objects and rows are left: %v %v %v", left, w.vpcs, w.subnets, w.ips)
		}
	})
}

// Pods are created and deleted at random; addresses are unique, and counts are right after every step.
func TestChurn(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(r)
		w.vpc("v", 1, kubeovn.VpcSpec{})
		w.subnet("s", 2, "v", "10.0.1.0/24")
		w.settle(r)
		for i := range rapid.IntRange(1, 30).Draw(r, "steps") {
			name := fmt.Sprint("p", rapid.IntRange(0, 9).Draw(r, "pod"))
			if rapid.Bool().Draw(r, "comes") {
				w.pod(name, "s", rapid.SampledFrom([]string{"", "", "10.0.1.5", "10.0.1.6", "10.0.1.1", "nonsense"}).Draw(r, "address")).UID = types.UID(fmt.Sprint(i))
			} else {
				delete(w.pods, name)
			}
			w.step(r)
			countsAgree(r, &w.subnets["s"].Status)
		}
		w.settle(r)
		for name, pod := range w.pods {
			_, has := w.ips[objects.PodKey(pod.Namespace, name)]
			_, waits := w.waiting["ns1/"+name]
			if has == waits {
				r.Fatalf("pod %s: has an address %v, waits for one %v", name, has, waits)
			}
		}
	})
}

// countsAgree requires the ranges of a Subnet of 253 addresses to have as many as the counts, none of them twice.
func countsAgree(r *rapid.T, s *kubeovn.SubnetStatus) {
	r.Helper()
	seen := map[netip.Addr]bool{}
	for ranges, count := range map[string]int64{s.V4UsingIPRange: s.V4UsingIPs, s.V4AvailableIPRange: s.V4AvailableIPs} {
		var have int64
		for word := range strings.SplitSeq(ranges, ",") {
			first, last, _ := strings.Cut(word, "-")
			for addr := netip.MustParseAddr(cmp.Or(first, "0.0.0.0")); word != ""; addr = addr.Next() {
				if have++; seen[addr] {
					r.Fatalf("%s is in the ranges twice: %+v", addr, s)
				}
				if seen[addr] = true; addr.String() == cmp.Or(last, first) {
					break
				}
			}
		}
		if have != count {
			r.Fatalf("%d addresses in %q, and %d by the count", have, ranges, count)
		}
	}
	if len(seen) != 253 {
		r.Fatalf("%d addresses in all, want 253: %+v", len(seen), s)
	}
}

// A released address is used again only after a lap through the range, and a pod that uses a ready port changes no row except that of the
// next ready port.
func TestLapAndReadyPorts(t *testing.T) {
	w := newWorld(t)
	w.vpc("v", 1, kubeovn.VpcSpec{})
	w.subnet("s", 2, "v", "10.0.1.0/24")
	w.settle(t)
	before := w.database.Rows()
	w.pod("a", "s", "")
	w.settle(t)
	change := reconcile.Diff(w.database.Rows(), before)
	if len(change.Set) != 1 || len(change.Delete) != 0 { // the ninth port
		t.Errorf("a pod sets %d rows and removes %d", len(change.Set), len(change.Delete))
	}
	first := w.ips["a.ns1"].Spec.V4IPAddress
	delete(w.pods, "a")
	w.settle(t)
	w.pod("b", "s", "").UID = "other"
	w.settle(t)
	if second := w.ips["b.ns1"].Spec.V4IPAddress; first != "10.0.1.2" || second != "10.0.1.3" {
		t.Errorf("%s, then %s", first, second)
	}
}

// A pod with the name of a former pod and another UID gets its own address, once the former pod's is free.
func TestPodOfTheSameName(t *testing.T) {
	w := newWorld(t)
	w.vpc("v", 1, kubeovn.VpcSpec{})
	w.subnet("s", 2, "v", "10.0.1.0/24")
	w.pod("a", "s", "10.0.1.9")
	w.settle(t)
	w.pod("a", "s", "10.0.1.9").UID = "new"
	w.step(t)
	if len(w.ips) != 0 || w.waiting["ns1/a"] == "" {
		t.Errorf("%v, %v", w.ips, w.waiting)
	}
	w.settle(t)
	if w.ips["a.ns1"].Spec.PodUID != "new" {
		t.Errorf("%+v", w.ips["a.ns1"])
	}
}

// Conditions and reasons name the invalid field, and other objects are not affected.
func TestProblems(t *testing.T) {
	w := newWorld(t)
	w.vpc("v", 1, kubeovn.VpcSpec{EnableBfd: true, VpcPeerings: []kubeovn.VpcPeering{{RemoteVpc: "v", LocalConnectIP: "169.254.0.1/30"}}})
	w.vpc("ovn-cluster", 1, kubeovn.VpcSpec{})
	w.subnet("good", 2, "v", "10.0.1.0/24")
	w.subnet("overlaps", 3, "v", "10.0.1.128/25")
	w.subnet("orphan", 3, "none", "10.0.1.0/24")
	w.subnet("default", 3, "", "10.0.3.0/24")
	w.subnet("outside", 3, "v", "10.0.4.0/24").Spec.Gateway = "10.0.5.1"
	w.pod("ok", "good", "")
	w.pod("taken", "good", "10.0.1.1")
	w.pod("bad", "good", "10.0.1.999")
	w.pod("mac", "good", "").Annotations[kubeovn.AnnotationMACAddress] = "01:00:5e:00:00:01"
	w.pod("late", "default", "")
	pool := w.pod("pool-1", "good", "")
	pool.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "pool", Controller: new(bool)}}
	*pool.OwnerReferences[0].Controller = true
	pool.Annotations[kubeovn.AnnotationIPPool] = "10.0.1.40, 10.0.1.41"
	w.settle(t)
	for name, want := range map[string]string{
		"overlaps": "Conflict: spec.cidrBlock: 10.0.1.128/25 overlaps 10.0.1.0/24 of the older Subnet good",
		"orphan":   "Missing: spec.vpc: there is no Vpc", "default": "DefaultVpc: spec.vpc", "outside": "Invalid: spec.gateway", "good": "Ready: ",
	} {
		if c := meta.FindStatusCondition(w.subnets[name].Status.Conditions, "Ready"); c == nil || !strings.HasPrefix(c.Reason+": "+c.Message, want) {
			t.Errorf("Subnet %s: %+v, want %s", name, c, want)
		}
	}
	for name, want := range map[string]string{"v": "Invalid: spec.vpcPeerings[0].remoteVpc", "ovn-cluster": "DefaultVpc: metadata.name"} {
		if c := meta.FindStatusCondition(w.vpcs[name].Status.Conditions, "Ready"); c == nil || !strings.HasPrefix(c.Reason+": "+c.Message, want) {
			t.Errorf("Vpc %s: %+v", name, c)
		}
	}
	if c := meta.FindStatusCondition(w.vpcs["v"].Status.Conditions, "Supported"); c == nil || !strings.Contains(c.Message, "spec.enableBfd") {
		t.Errorf("Supported: %+v", c)
	}
	for pod, want := range map[string]string{"taken": "gateway", "bad": "not an address", "mac": "not a MAC address", "late": "name a Vpc"} {
		if !strings.Contains(w.waiting["ns1/"+pod], want) {
			t.Errorf("pod %s waits because %q, want %q", pod, w.waiting["ns1/"+pod], want)
		}
	}
	if w.ips["ok.ns1"] == nil || w.ips["pool-1.ns1"].Spec.V4IPAddress != "10.0.1.41" {
		t.Errorf("addresses: %v", w.ips)
	}
	if _, err := netip.ParseAddr(w.subnets["good"].Status.LastIP); err != nil {
		t.Error(err)
	}
}

// A pod that NetworkPolicies isolate is closed in that direction, and no other pod is.
func TestIsolated(t *testing.T) {
	w := newWorld(t)
	w.vpc("v", 1, kubeovn.VpcSpec{})
	w.subnet("s", 2, "v", "10.0.1.0/24")
	for _, name := range []string{"db", "web", "free"} {
		w.pod(name, "s", "").Labels = map[string]string{"app": name}
	}
	w.settle(t)
	policy := func(name, app string, types ...networkingv1.PolicyType) {
		w.policies[name] = &networkingv1.NetworkPolicy{ObjectMeta: created(name, 60), Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, PolicyTypes: types,
		}}
		w.policies[name].Namespace = "ns1"
	}
	rules := func() (all []string) {
		for key, row := range w.database.Rows() {
			if key.Table == ovn.ACL {
				all = append(all, row.Text["direction"]+" "+row.Text["action"]+" "+row.Text["match"])
			}
		}
		slices.Sort(all)
		return all
	}
	policy("in", "db", networkingv1.PolicyTypeIngress)
	policy("both", "web", networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress)
	w.settle(t)
	db, web := `"s/`+w.ips["db.ns1"].Spec.V4IPAddress+`"`, `"s/`+w.ips["web.ns1"].Spec.V4IPAddress+`"`
	want := []string{
		"from-lport allow-related inport == " + db + " && ip", "from-lport drop inport == " + web + " && ip",
		"to-lport drop outport == " + db + " && ip", "to-lport drop outport == " + web + " && ip",
	}
	slices.Sort(want)
	if have := rules(); !slices.Equal(have, want) {
		t.Errorf("rules %q, want %q", have, want)
	}
	w.pods["db"].Labels = map[string]string{"app": "other"}
	delete(w.policies, "both")
	w.settle(t)
	if have := rules(); len(have) != 0 {
		t.Errorf("rules that are left: %q", have)
	}
}

// A MAC address of the form that is derived from addresses is given only to its own address: otherwise a pod could have a router's or a NAT
// gateway's MAC address, or block the next address of the Subnet.
func TestForeignMAC(t *testing.T) {
	w := newWorld(t)
	w.vpc("v", 1, kubeovn.VpcSpec{})
	w.subnet("s", 2, "v", "10.0.1.0/24")
	w.gateways["gw"] = &kubeovn.VpcNatGateway{ObjectMeta: created("gw", 3), Spec: kubeovn.VpcNatGatewaySpec{Vpc: "v", Subnet: "s", LanIP: "10.0.1.254"}}
	w.settle(t)
	for name, mac := range map[string]string{
		"next": "0a:58:0a:00:01:02", "gateway": "0A:58:0A:00:01:FE", "router": "0a:58:0a:00:01:01", "own": "0a:58:0a:00:01:09", "free": "02:00:00:00:00:01",
	} {
		w.pod(name, "s", map[string]string{"next": "10.0.1.7", "gateway": "10.0.1.8", "own": "10.0.1.9"}[name]).Annotations[kubeovn.AnnotationMACAddress] = mac
	}
	w.settle(t)
	w.pod("any", "s", "")
	w.settle(t)
	for pod, want := range map[string]string{"next": "belongs to another address", "gateway": "belongs to another address", "router": "gateway's MAC address"} {
		if have := w.waiting["ns1/"+pod]; !strings.Contains(have, want) {
			t.Errorf("pod %s waits because %q, want %q", pod, have, want)
		}
	}
	for _, pod := range []string{"own", "free", "any"} {
		if w.ips[pod+".ns1"] == nil {
			t.Errorf("pod %s has no address: %s", pod, w.waiting["ns1/"+pod])
		}
	}
}

// Names of IP objects are unique, and not longer than the limit.
func TestIPName(t *testing.T) {
	long := strings.Repeat("a", 250)
	at := netip.MustParseAddr
	if a, b := objects.IPName(long, at("10.0.1.2")), objects.IPName(long, at("10.0.1.3")); a == b || len(a) > 253 {
		t.Errorf("%s, %s", a, b)
	}
	if have := objects.IPName("net1", at("10.0.1.2")); have != "net1.10.0.1.2" {
		t.Errorf("%s", have)
	}
}
