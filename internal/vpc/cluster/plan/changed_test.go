package plan_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
)

// A Subnet whose range or gateway is changed names the pods that keep the former one, until they are recreated. It stays while such pods exist.
func TestChangedSubnet(t *testing.T) {
	w := newWorld(t)
	w.vpc("v", 1, kubeovn.VpcSpec{})
	s := w.subnet("s", 2, "v", "10.0.1.0/24")
	w.pod("a", "s", "10.0.1.5")
	w.pod("b", "s", "10.0.1.200")
	w.settle(t)
	settle := func() {
		t.Helper()
		for range 20 {
			if !w.step(t) {
				return
			}
		}
		t.Fatal("plans go on without end")
	}
	ready := func() *metav1.Condition {
		t.Helper()
		return meta.FindStatusCondition(w.subnets["s"].Status.Conditions, kubeovn.ConditionReady)
	}
	change := func(cidr, gateway string, want ...string) {
		t.Helper()
		s.Spec.CIDRBlock, s.Spec.Gateway = cidr, gateway
		s.Generation++
		settle()
		c := ready()
		if len(want) == 0 != (c.Status == metav1.ConditionTrue) {
			t.Errorf("range %s, gateway %q: %+v", cidr, gateway, c)
		}
		for _, words := range want {
			if !strings.Contains(c.Message, words) {
				t.Errorf("range %s, gateway %q: condition %q, want %q in it", cidr, gateway, c.Message, words)
			}
		}
	}
	change("10.0.0.0/23", "10.0.1.1") // a larger range, with the same gateway
	change("10.0.1.0/24", "10.0.1.9", "spec.gateway: pod ns1/a", "pod ns1/b", "10.0.1.1", "recreate")
	change("10.0.1.0/24", "10.0.1.5", "pod ns1/a", "10.0.1.5 is the gateway")
	change("10.0.1.0/25", "10.0.1.1", "spec.cidrBlock: pod ns1/b", "10.0.1.200")
	if c := ready(); strings.Contains(c.Message, "ns1/a") {
		t.Errorf("a pod that fits: %s", c.Message)
	}
	now := metav1.Now()
	delete(w.pods, "a")
	s.DeletionTimestamp = &now
	settle()
	if w.subnets["s"] == nil || !strings.Contains(w.ports(), "s/10.0.1.200") {
		t.Errorf("the Subnet of a pod outside its range is gone: %s", w.ports())
	}
	delete(w.pods, "b")
	w.settle(t)
	if len(w.subnets)+len(w.ips) != 0 {
		t.Errorf("left: %v %v", w.subnets, w.ips)
	}
}

// A mistake in excludeIps or routeTable of a Subnet, which the API server refuses unless the object is older than the rule, stops new addresses
// until it is corrected. Running pods keep their ports.
func TestMistakeStopsNewAddresses(t *testing.T) {
	for field, change := range map[string]func(s *kubeovn.SubnetSpec){
		"spec.excludeIps[0]": func(s *kubeovn.SubnetSpec) { s.ExcludeIps = []string{"10.0.1.9..10.0.1.5"} },
		"spec.routeTable":    func(s *kubeovn.SubnetSpec) { s.RouteTable = "a b" },
	} {
		t.Run(field, func(t *testing.T) {
			w := newWorld(t)
			w.vpc("v", 1, kubeovn.VpcSpec{})
			s := w.subnet("s", 2, "v", "10.0.1.0/24")
			w.pod("before", "s", "10.0.1.7")
			w.settle(t)
			good := s.Spec
			change(&s.Spec)
			s.Generation++
			w.pod("fixed", "s", "10.0.1.8")
			w.pod("next", "s", "")
			w.settle(t)
			if have := condition(s.Status.Conditions, "Ready"); !strings.HasPrefix(have, "False Invalid: "+field) {
				t.Errorf("condition %s", have)
			}
			if !strings.Contains(w.ports(), "s/10.0.1.7") {
				t.Error("the running pod has no port any more")
			}
			for _, pod := range []string{"fixed", "next"} {
				if why := w.waiting["ns1/"+pod]; w.ips[pod+".ns1"] != nil || !strings.Contains(why, field) {
					t.Errorf("pod %s waits because %q; address %v", pod, why, w.ips[pod+".ns1"])
				}
			}
			s.Spec = good
			s.Generation++
			w.settle(t)
			if w.ips["fixed.ns1"] == nil || w.ips["next.ns1"] == nil || condition(s.Status.Conditions, "Ready") != "True Ready: " {
				t.Errorf("corrected: %v, waiting %v, %s", keys(w.ips), w.waiting, condition(s.Status.Conditions, "Ready"))
			}
		})
	}
}

// If excludeIps of an external Subnet cannot be read, EIPs get the addresses that they request, and no others.
func TestMistakeOfExternalSubnet(t *testing.T) {
	w := settledUsers(t)
	before := w.eips["eip1"].Status.IP
	w.subnets[kubeovn.DefaultExternalSubnet].Spec.ExcludeIps = []string{"192.168.100.1-192.168.100.220"}
	w.eip("any", 30, "")
	w.eip("fixed", 31, "192.168.100.240")
	w.settle(t)
	if have := w.eips["eip1"].Status; have.IP != before || !have.Ready {
		t.Errorf("eip1: %+v", have)
	}
	if any, fixed := w.eips["any"].Status.IP, w.eips["fixed"].Status.IP; any != "" || fixed != "192.168.100.240" {
		t.Errorf("addresses %q and %q", any, fixed)
	}
}

// A Subnet that cannot be used any more stays as long as pods have addresses of it, as one that can be used does.
func TestUnusableSubnetStays(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"Invalid":  func(w *world) { w.subnets["s"].Spec.CIDRBlock = "127.0.0.0/24" },
		"Missing":  func(w *world) { w.subnets["s"].Spec.Vpc = "none" },
		"Conflict": func(w *world) { w.subnets["older"].Spec.CIDRBlock = "10.0.0.0/16" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.vpc("v", 1, kubeovn.VpcSpec{})
			w.subnet("older", 2, "v", "10.1.0.0/16")
			w.subnet("s", 3, "v", "10.0.1.0/24")
			w.pod("a", "s", "")
			settle := func() {
				for w.step(t) {
				}
			}
			settle()
			change(w)
			settle()
			if have := condition(w.subnets["s"].Status.Conditions, "Ready"); !strings.HasPrefix(have, "False "+name) {
				t.Errorf("changed: %s", have)
			}
			now := metav1.Now()
			w.subnets["s"].DeletionTimestamp = &now
			settle()
			if w.subnets["s"] == nil {
				t.Fatal("the Subnet is gone, and its pod runs")
			}
			if have := condition(w.subnets["s"].Status.Conditions, "Ready"); !strings.HasPrefix(have, "False InUse: pods that have addresses of the Subnet: 1; delete them") {
				t.Errorf("being deleted: %s", have)
			}
			delete(w.pods, "a")
			settle()
			if w.subnets["s"] != nil || len(w.ips) > 0 {
				t.Errorf("left: %v %v", keys(w.subnets), keys(w.ips))
			}
		})
	}
}

// A Subnet that is made again under the name of one whose pods still run gives none of their addresses: the IP objects have the names.
func TestAddressesOfFormerSubnet(t *testing.T) {
	w := newWorld(t)
	w.vpc("v", 1, kubeovn.VpcSpec{})
	w.subnet("s", 2, "v", "10.0.1.0/24")
	w.pod("first", "s", "")
	w.pod("second", "s", "10.0.1.77")
	w.settle(t)
	settle := func() {
		for w.step(t) { // which fails if an IP object has the name of another one
		}
	}
	w.subnet("s", 3, "v", "10.0.1.0/24").UID = "another"
	w.pod("fixed", "s", "10.0.1.77")
	w.pod("next", "s", "")
	settle()
	if why := w.waiting["ns1/fixed"]; w.ips["fixed.ns1"] != nil || !strings.Contains(why, "10.0.1.77 by the IP object s.10.0.1.77") {
		t.Errorf("the pod with the address of another one waits because %q", why)
	}
	if ip := w.ips["next.ns1"]; ip == nil || ip.Spec.V4IPAddress != "10.0.1.3" {
		t.Errorf("the other pod: %v", ip)
	}
	if have := w.subnets["s"].Status.V4UsingIPRange; have != "10.0.1.2-10.0.1.3,10.0.1.77" {
		t.Errorf("in use: %s", have)
	}
	delete(w.pods, "second")
	settle()
	if ip := w.ips["fixed.ns1"]; ip == nil || ip.Spec.SubnetUID != "another" {
		t.Errorf("once the other pod is gone: %v, waiting: %v", ip, w.waiting)
	}
}

// A Subnet is made again under its name while the pod of a gateway in it runs: the gateway keeps its lanIp, and its port stays.
func TestGatewayInSubnetMadeAgain(t *testing.T) {
	w := settledUsers(t)
	again := w.subnets["net1"].DeepCopy()
	again.UID, again.Status = "again", kubeovn.SubnetStatus{}
	w.subnets["net1"] = again
	for range 10 {
		w.step(t)
	}
	if have := condition(w.gateways["gw1"].Status.Conditions, "Ready"); strings.Contains(have, "lanIp") {
		t.Errorf("the gateway: %s", have)
	}
	if have := w.ports(); !strings.Contains(have, "net1/10.0.1.254") {
		t.Errorf("the port of lanIp is gone: %s", have)
	}
}
