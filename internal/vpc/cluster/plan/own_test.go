package plan_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// A gateway that is to have no address of its own any more frees it, once its pod has the state without it.
func TestOwnAddressOfGatewayIsFreed(t *testing.T) {
	w := settledUsers(t)
	own := w.gateways["gw1"].Status.IP
	if own == "" {
		t.Fatal("the gateway has no address")
	}
	w.gateways["gw1"].Spec.NoDefaultEIP = true
	w.gateways["gw1"].Generation++
	w.eip("bad", 30, own)
	w.settle(t)
	if g := w.gateways["gw1"].Status; g.IP != "" || !g.Ready {
		t.Errorf("the gateway: %+v", g)
	}
	if !w.eips["bad"].Status.Ready {
		t.Errorf("the EIP with the former address: %+v", w.eips["bad"].Status.Conditions)
	}
	w.gateways["gw1"].Spec.NoDefaultEIP = false
	w.gateways["gw1"].Generation++
	w.settle(t)
	if g := w.gateways["gw1"].Status; g.IP == "" || g.IP == own || !g.Ready {
		t.Errorf("the gateway, which has an address again: %+v", g)
	}
}

// A gateway of whose StatefulSet no pod can be created says that its name is the reason.
func TestNamesOfGateways(t *testing.T) {
	for name, good := range map[string]bool{strings.Repeat("a", 41): true, strings.Repeat("a", 42): false, "gw.eu": false} {
		w := newWorld(t)
		for _, make := range w.users() {
			make()
		}
		g := w.gateways["gw1"]
		delete(w.gateways, "gw1")
		g.Name = name
		w.gateways[name] = g
		w.settle(t)
		have := condition(g.Status.Conditions, "Ready")
		if invalid := strings.Contains(have, "metadata.name") && strings.Contains(have, "41 characters"); invalid == good {
			t.Errorf("%s: %s", name, have)
		}
		if _, created := w.workloads["vpc-nat-gw-"+name]; created != good {
			t.Errorf("%s: its StatefulSet is created: %t", name, created)
		}
	}
}

// A gateway's pod that does not become ready, because of a wrong image or selector, is replaced when that is corrected: a StatefulSet of the
// policy OrderedReady would wait for it for ever.
func TestUnreadyPodIsReplaced(t *testing.T) {
	w := settledUsers(t)
	if have := w.workloads["vpc-nat-gw-gw1"].Spec.PodManagementPolicy; have != appsv1.ParallelPodManagement {
		t.Errorf("the policy is %q", have)
	}
}
