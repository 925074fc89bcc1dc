package plan_test

import (
	"strings"
	"testing"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan"
)

// A pod gets no address while its Vpc has no finalizer: the Vpc could be deleted, with its router, while the pod has the address.
func TestVpcWithoutFinalizer(t *testing.T) {
	w := newWorld(t)
	w.vpc("v", 1, kubeovn.VpcSpec{})
	w.subnet("s", 2, "v", "10.0.1.0/24")
	w.pod("p", "s", "")
	w.refuses = func(o plan.Object) bool {
		_, vpc := o.(*kubeovn.Vpc)
		return vpc
	}
	for range 5 {
		w.step(t)
	}
	if len(w.subnets["s"].Finalizers) == 0 || len(w.ips) > 0 {
		t.Errorf("finalizers of the Subnet %v, IP objects %v", w.subnets["s"].Finalizers, w.ips)
	}
	w.refuses = nil
	w.settle(t)
	if len(w.ips) != 1 {
		t.Errorf("once the Vpc has its finalizer: %v, %v", w.ips, w.waiting)
	}
}

// While rows of a Vpc or Subnet are refused, its condition Ready is False, with the first reason; other objects are not affected.
func TestRefusedRows(t *testing.T) {
	w := newWorld(t)
	w.vpc("v", 1, kubeovn.VpcSpec{})
	w.subnet("s", 2, "v", "10.0.1.0/24")
	w.subnet("t", 2, "v", "10.0.2.0/24")
	w.settle(t)
	owners := []string{"Vpc/v/" + string(w.vpcs["v"].UID), "Subnet/s/" + string(w.subnets["s"].UID)}
	ready := func() []string {
		return []string{condition(w.vpcs["v"].Status.Conditions, "Ready"), condition(w.subnets["s"].Status.Conditions, "Ready"), condition(w.subnets["t"].Status.Conditions, "Ready")}
	}
	for _, why := range []string{"one row", "another row"} {
		if changed := w.planner.Refuse(map[string]string{owners[0]: why, owners[1]: why}); len(changed) != map[string]int{"one row": 2}[why] {
			t.Errorf("%s: changed are %v", why, changed)
		}
		p := w.planner.Plan(w.objects().Now)
		for _, v := range p.VpcStatus {
			w.vpcs[v.Name].Status = v.Status
		}
		for _, s := range p.SubnetStatus {
			w.subnets[s.Name].Status = s.Status
		}
		if have := strings.Join(ready(), "; "); have != "False Refused: one row; False Refused: one row; True Ready: " {
			t.Errorf("%s: %s", why, have)
		}
	}
	if changed := w.planner.Refuse(nil); len(changed) != 2 {
		t.Errorf("written at last: changed are %v", changed)
	}
	w.settle(t)
	if have := strings.Join(ready(), "; "); have != "True Ready: ; True Ready: ; True Ready: " {
		t.Errorf("written at last: %s", have)
	}
}
