package plan_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan"
	"weft.dev/weft/internal/vpc/nat"
)

// A requested address is assigned by the EIP's finalizer: from then on the gateway has it, and no other EIP gets it, also not an older one
// or from a controller that has started since, before the status reports it. An EIP whose requested address is not available gets no
// finalizer.
func TestRequestedAddress(t *testing.T) {
	w := newWorld(t)
	for _, make := range w.users() {
		make()
	}
	w.settle(t)
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
