package cluster

import (
	"strings"
	"testing"

	"k8s.io/client-go/tools/events"

	shared "weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/vpc/cluster/plan"
	"weft.dev/weft/internal/vpc/northbound"
)

// An event on a pod says why it has no address, and that NetworkPolicies close it, in which direction, and what to do: once for each reason.
func TestEventsOfPods(t *testing.T) {
	recorder := events.NewFakeRecorder(16)
	r := &reconciler{tools: shared.Tools{Events: recorder}, reported: map[string]string{}, closed: map[string]northbound.Closed{}}
	sent := func(p *plan.Plan) (all []string) {
		r.report(p)
		for len(recorder.Events) > 0 {
			all = append(all, <-recorder.Events)
		}
		return all
	}
	ingress, both := northbound.Closed{Ingress: true}, northbound.Closed{Ingress: true, Egress: true}
	for i, c := range []struct {
		plan *plan.Plan
		want []string
	}{
		{&plan.Plan{Closed: map[string]northbound.Closed{"ns1/db": ingress}}, []string{"Isolated", "isolate the pod for ingress.", "acls"}},
		{&plan.Plan{Closed: map[string]northbound.Closed{"ns1/db": ingress}}, nil},
		{&plan.Plan{Closed: map[string]northbound.Closed{"ns1/db": both}}, []string{"Isolated", "ingress and egress"}},
		{&plan.Plan{Closed: map[string]northbound.Closed{"ns1/db": {Egress: true}}}, []string{"Isolated", "isolate the pod for egress."}},
		{&plan.Plan{}, nil},
		{&plan.Plan{Closed: map[string]northbound.Closed{"ns1/db": ingress}}, []string{"Isolated", "ingress"}},
		{&plan.Plan{Waiting: map[string]string{"ns1/web": "no room"}}, []string{"NoAddress", "no room"}},
		{&plan.Plan{Waiting: map[string]string{"ns1/web": "no room"}}, nil},
		{&plan.Plan{Waiting: map[string]string{"ns1/web": "no Subnet"}}, []string{"NoAddress", "no Subnet"}},
	} {
		have := sent(c.plan)
		if len(have) != min(len(c.want), 1) {
			t.Errorf("step %d: %d events: %q", i, len(have), have)
			continue
		}
		for _, words := range c.want {
			if !strings.Contains(have[0], words) {
				t.Errorf("step %d: %q, want %q in it", i, have[0], words)
			}
		}
	}
}
