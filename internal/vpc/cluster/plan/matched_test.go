package plan_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan"
	"weft.dev/weft/internal/vpc/nat"
)

// A floating IP or a port forward to an address that the VPC has no way to is programmed, and says so; with a Subnet or a static route for it,
// it does not.
func TestUnreachedInternalAddress(t *testing.T) {
	w := newWorld(t)
	for _, make := range w.users() {
		make()
	}
	w.fips["fip01"].Spec.InternalIP = "10.7.7.7"
	w.dnats["web"].Spec.InternalIP = "10.7.7.8"
	w.settle(t)
	expect := func(want string) {
		t.Helper()
		for name, conditions := range map[string]string{
			"fip01": condition(w.fips["fip01"].Status.Conditions, "Matched"), "web": condition(w.dnats["web"].Status.Conditions, "Matched"),
		} {
			if !strings.HasPrefix(conditions, want) || want != "True" && !strings.Contains(conditions, "spec.internalIp is in no Subnet of Vpc test-vpc-1") {
				t.Errorf("%s: %q, want %s", name, conditions, want)
			}
		}
		if !w.fips["fip01"].Status.Ready || !w.dnats["web"].Status.Ready {
			t.Errorf("not in effect: %s", w.conditions())
		}
	}
	expect("False NoSubnet: ")
	if have := condition(w.fips["fip01"].Status.Conditions, "Matched"); !strings.Contains(have, "net1 (10.0.1.0/24)") {
		t.Errorf("the condition names no Subnet of the VPC: %q", have)
	}
	routes := w.vpcs["test-vpc-1"].Spec.StaticRoutes
	w.vpcs["test-vpc-1"].Spec.StaticRoutes = append(routes[:1:1], kubeovn.StaticRoute{CIDR: "10.7.0.0/16", NextHopIP: "10.0.1.9"})
	w.vpcs["test-vpc-1"].Generation++
	w.settle(t)
	expect("True")
	w.vpcs["test-vpc-1"].Spec.StaticRoutes[1].NextHopIP = "10.0.1.254" // the gateway itself
	w.vpcs["test-vpc-1"].Generation++
	w.settle(t)
	expect("False NoSubnet: ")
	w.vpcs["test-vpc-1"].Spec.StaticRoutes = routes
	w.subnet("net7", 20, "test-vpc-1", "10.7.7.0/24")
	w.settle(t)
	expect("True")
	w.fip("bad", 30, "eip3", "10.9.9.9") // a rule that is not in effect for another reason
	w.settle(t)
	if have := condition(w.fips["bad"].Status.Conditions, "Matched"); have != "" {
		t.Errorf("a rule in conflict says %q", have)
	}
}

// Why an agent could not program a gateway is in the conditions of the gateway and of its EIPs.
func TestFailureOfGateway(t *testing.T) {
	w := settledUsers(t)
	const why = "spec.config.master of the NetworkAttachmentDefinition names ens37, which node node1 does not have"
	failed := w.pods["vpc-nat-gw-gw1-0"].DeepCopy()
	failed.Status.Conditions = []corev1.PodCondition{{Type: nat.Condition, Status: corev1.ConditionFalse, Reason: nat.ReasonFailed, Message: why}}
	w.pods[failed.Name] = failed
	p := w.plan(t)
	found := map[string]string{}
	for _, object := range p.Statuses {
		switch o := object.(type) {
		case *kubeovn.VpcNatGateway:
			found["gateway"] = condition(o.Status.Conditions, "Ready")
		case *kubeovn.IptablesEIP:
			found["EIP"] = condition(o.Status.Conditions, "Ready")
		}
	}
	for _, what := range []string{"gateway", "EIP"} {
		if have := found[what]; !strings.HasPrefix(have, "False Pending: ") || !strings.Contains(have, why) {
			t.Errorf("the condition of the %s: %q", what, have)
		}
	}
}

// Why the API server refuses the StatefulSet of a gateway is in the gateway's condition, until it is not refused any more.
func TestRefusedWorkload(t *testing.T) {
	w := newWorld(t)
	for _, make := range w.users() {
		make()
	}
	w.refuses = func(o plan.Object) bool {
		_, workload := o.(*appsv1.StatefulSet)
		return workload
	}
	for range 10 {
		w.step(t)
	}
	ready := func() string {
		for _, object := range w.planner.Plan(w.objects().Now).Statuses {
			if g, is := object.(*kubeovn.VpcNatGateway); is {
				w.gateways["gw1"].Status = g.Status
				w.planner.Set(g)
			}
		}
		return condition(w.gateways["gw1"].Status.Conditions, "Ready")
	}
	const why = "spec.template.spec.tolerations[0].operator: Unsupported value"
	w.planner.RefuseWorkload("vpc-nat-gw-gw1", why)
	if have := ready(); !strings.HasPrefix(have, "False Refused: ") || !strings.Contains(have, "spec.tolerations") || !strings.Contains(have, why) {
		t.Errorf("refused: %q", have)
	}
	w.planner.RefuseWorkload("vpc-nat-gw-gw1", "")
	if have := ready(); !strings.HasPrefix(have, "False Pending: ") {
		t.Errorf("not refused any more: %q", have)
	}
}
