package plan_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan"
	"weft.dev/weft/internal/vpc/nat"
)

// A requested address is assigned by the EIP's finalizer: from then on the gateway has it, and no other EIP gets it, also not an older one
// or from a controller that has started since, before the status reports it. An EIP whose requested address is not available gets no
// finalizer.
func TestRequestedAddress(t *testing.T) {
	w := settledUsers(t)
	const address = "192.168.100.240"
	w.eip("requested", 20, address)
	w.fip("requested", 21, "requested", "10.0.1.9")
	inGateway := func(eip string) bool { return nat.Compile(w.natObjects()).Gateways["gw1"].Has(eip) }
	finalized := func(p *plan.Plan, name string) bool {
		return slices.ContainsFunc(p.Updates, func(o plan.Object) bool {
			return o.GetName() == name && slices.Contains(o.GetFinalizers(), kubeovn.Finalizer)
		})
	}
	statusOf := func(p *plan.Plan, name string) *kubeovn.IptablesEIP {
		for _, o := range p.Statuses {
			if eip, is := o.(*kubeovn.IptablesEIP); is && eip.Name == name {
				return eip
			}
		}
		return nil
	}
	if inGateway("requested") {
		t.Error("the gateway has an address that the controller has not assigned")
	}
	first := w.plan(t)
	if !finalized(first, "requested") {
		t.Fatal("the plan has no finalizer for the EIP")
	}
	if status := statusOf(first, "requested"); status == nil || status.Status.IP != address || !first.Reports(status) {
		t.Errorf("the status that reports the address: %+v", status)
	}
	w.eips["requested"].Finalizers = []string{kubeovn.Finalizer} // the status is not written
	if !inGateway("requested") {
		t.Error("the gateway lacks the assigned address while the status does not report it")
	}
	w.eip("older", 1, address)
	restarted := plan.Compile(w.objects())
	if finalized(restarted, "older") {
		t.Error("two EIPs get one address")
	}
	if status := statusOf(restarted, "older"); status == nil || status.Status.IP != "" || !strings.Contains(condition(status.Status.Conditions, "Ready"), "Conflict") {
		t.Errorf("the EIP whose address is taken: %+v", status)
	}
	if status := statusOf(restarted, "requested"); status == nil || status.Status.IP != address {
		t.Errorf("the status after a restart: %+v", status)
	}
	w.settle(t)
	if have := w.eips["requested"].Status; have.IP != address || !have.Ready {
		t.Errorf("the EIP in the end: %+v", have)
	}
	if fip := w.fips["requested"].Status; fip.V4ip != address || !fip.Ready {
		t.Errorf("the floating IP in the end: %+v", fip)
	}
}

// A gateway's pod may run before the gateway has its finalizer. If the gateway is then deleted, it is gone while the pod still has its EIPs:
// an EIP's address is free only once the pod is gone.
func TestAddressOfDeletedGateway(t *testing.T) {
	w := newWorld(t)
	for _, make := range w.users() {
		make()
	}
	w.refuses = func(o plan.Object) bool {
		_, gateway := o.(*kubeovn.VpcNatGateway)
		return gateway
	}
	for range 5 {
		w.step(t)
	}
	const pod = "vpc-nat-gw-gw1-0"
	if g := w.gateways["gw1"]; len(g.Finalizers) > 0 || g.Status.IP != "" || w.pods[pod] == nil {
		t.Fatalf("without the gateway's finalizer: %+v, pod %v", g, w.pods[pod])
	}
	w.refuses = func(o plan.Object) bool {
		_, workload := o.(*appsv1.StatefulSet)
		return workload
	}
	now := metav1.NewTime(time.Unix(2000, 0))
	delete(w.gateways, "gw1")
	delete(w.fips, "fip01")
	w.eips["eip3"].DeletionTimestamp = &now
	for range 3 {
		w.step(t)
	}
	if w.pods[pod] == nil || w.eips["eip3"] == nil {
		t.Errorf("while the pod runs: pod %v, EIP %v", w.pods[pod], w.eips["eip3"])
	}
	w.refuses = nil
	w.settle(t)
	if w.pods[pod] != nil || w.eips["eip3"] != nil || len(w.workloads) > 0 {
		t.Errorf("in the end: pod %v, EIP %v, StatefulSets %v", w.pods[pod], w.eips["eip3"], w.workloads)
	}
}

// An EIP of a gateway that cannot be compiled any more is deleted, and its address is free, once the gateway's pod does not have it: the agent
// withdraws it, or the pod has no state because it was made again meanwhile.
func TestEIPOfInvalidGateway(t *testing.T) {
	const definition, pod = "ovn-vpc-external-network.kube-system", "vpc-nat-gw-gw1-0"
	now := metav1.NewTime(time.Unix(2000, 0))
	for name, between := range map[string]func(w *world){
		"the pod runs": func(*world) {},
		"the pod is made again": func(w *world) {
			again := w.pods[pod].DeepCopy()
			again.UID, again.Status = "again", corev1.PodStatus{}
			w.pods[pod] = again
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := settledUsers(t)
			delete(w.definitions, definition)
			w.settle(t)
			between(w)
			w.settle(t)
			if w.eips["eip3"].Status.Ready || w.eips["eip3"].Status.IP == "" {
				t.Errorf("the EIP of a gateway without a definition: %+v", w.eips["eip3"].Status)
			}
			w.eips["eip3"].DeletionTimestamp = &now
			w.settle(t)
			if w.eips["eip3"] == nil {
				t.Fatal("the EIP is gone, and a rule names it")
			}
			delete(w.fips, "fip01")
			agent := w.pods[pod].Status.DeepCopy()
			w.step(t)
			w.pods[pod].Status = *agent // the agent has not withdrawn the address yet
			w.step(t)
			if w.eips["eip3"] == nil {
				t.Fatal("the EIP is gone while the pod has its address")
			}
			w.settle(t)
			if w.eips["eip3"] != nil {
				t.Fatalf("the EIP stays: %+v", w.eips["eip3"])
			}
			w.eip("next", 30, "192.168.100.232")
			w.settle(t)
			if have := w.eips["next"].Status; have.IP != "192.168.100.232" {
				t.Errorf("the next EIP of the address: %+v", have)
			}
			w.definitions[definition] = natDefinition
			w.settle(t)
			if have := w.conditions(); strings.Contains(have, "ready=false") {
				t.Errorf("with the definition: %s", have)
			}
		})
	}
}

// A gateway whose node does not report is not Ready, and neither are its EIPs and rules. One whose container stops is.
func TestLostGateway(t *testing.T) {
	w := settledUsers(t)
	condition := func(of corev1.PodConditionType, status corev1.ConditionStatus, second int64) corev1.PodCondition {
		return corev1.PodCondition{Type: of, Status: status, LastTransitionTime: metav1.NewTime(time.Unix(second, 0))}
	}
	programmed := w.pods["vpc-nat-gw-gw1-0"].Status.Conditions[0]
	programmed.LastTransitionTime = metav1.NewTime(time.Unix(100, 0))
	for name, c := range map[string]struct {
		ready, containers corev1.PodCondition
		want              bool
	}{
		"it runs": {condition(corev1.PodReady, corev1.ConditionTrue, 101), condition(corev1.ContainersReady, corev1.ConditionTrue, 99), true},
		"the kubelet has not seen the readiness gate": {
			condition(corev1.PodReady, corev1.ConditionFalse, 90), condition(corev1.ContainersReady, corev1.ConditionTrue, 99), true,
		},
		"its container stops": {
			condition(corev1.PodReady, corev1.ConditionFalse, 200), condition(corev1.ContainersReady, corev1.ConditionFalse, 200), true,
		},
		"its node is gone": {condition(corev1.PodReady, corev1.ConditionFalse, 200), condition(corev1.ContainersReady, corev1.ConditionTrue, 99), false},
	} {
		t.Run(name, func(t *testing.T) {
			w.pods["vpc-nat-gw-gw1-0"].Status.Conditions = []corev1.PodCondition{programmed, c.ready, c.containers}
			statuses := plan.Compile(w.objects()).Statuses
			if c.want {
				if len(statuses) > 0 {
					t.Errorf("reports on %s", statuses[0].GetName())
				}
				return
			}
			for _, name := range []string{"gw1", "eip3", "fip01"} {
				at := slices.IndexFunc(statuses, func(o plan.Object) bool { return o.GetName() == name })
				if at < 0 {
					t.Errorf("no report on %s", name)
				} else if text := dump(statuses[at]); !strings.Contains(text, "node1 is not ready") || strings.Contains(text, `"ready":true`) {
					t.Errorf("the report on %s: %s", name, text)
				}
			}
		})
	}
}
