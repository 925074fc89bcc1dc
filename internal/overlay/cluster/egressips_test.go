package cluster

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/liveness"
	"weft.dev/weft/internal/overlay/cluster/plan"
)

// A new leader assigns no addresses to a node that has not answered it: a node that failed together with the previous leader never answers.
// If no node answers, all count as proven.
func TestHostWithoutAnswerIsUnproven(t *testing.T) {
	n1, n2 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for name, test := range map[string]struct {
		dead map[netip.Addr]bool
		// dies answers once, and never again.
		dies netip.Addr
		want map[string]bool
	}{
		"all answer":                          {nil, netip.Addr{}, map[string]bool{"n1": false, "n2": false}},
		"one is dead":                         {map[netip.Addr]bool{n1: true}, netip.Addr{}, map[string]bool{"n1": true, "n2": false}},
		"none does":                           {map[netip.Addr]bool{n1: true, n2: true}, netip.Addr{}, map[string]bool{"n1": false, "n2": false}},
		"none but one that does not any more": {map[netip.Addr]bool{n1: true}, n2, map[string]bool{"n1": false, "n2": false}},
	} {
		changed := make(chan struct{}, 100)
		var died atomic.Bool
		r := &egressReconciler{alive: &liveness.Watcher{
			Proven: true, Changed: func() { changed <- struct{}{} },
			Ask: func(_ context.Context, host netip.Addr) error {
				if test.dead[host] || host == test.dies && died.Swap(true) {
					return errors.New("dead")
				}
				return nil
			},
		}}
		ask := func() (plan.EgressIPState, bool) {
			state := plan.EgressIPState{Offline: map[string]bool{}}
			for node, addr := range map[string]netip.Addr{"n1": n1, "n2": n2} {
				state.HostSubnets = append(state.HostSubnets, networkv1.HostSubnet{
					ObjectMeta: metav1.ObjectMeta{Name: node}, HostIP: addr.String(), EgressCIDRs: []string{"192.0.2.0/24"},
				})
			}
			known := r.ask(&state)
			return state, known
		}
		if _, known := ask(); known {
			t.Errorf("%s: nodes count as reachable before a probe", name)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.alive.Run(ctx) }()
		deadline := time.After(10 * time.Second)
		_, known := ask()
		for !known || test.dies.IsValid() && !r.alive.Gone(test.dies) {
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("%s: no verdict on the nodes", name)
			}
			_, known = ask()
		}
		state, _ := ask()
		for node, want := range test.want {
			if state.Unproven[node] != want || state.Offline[node] {
				t.Errorf("%s: %s is unproven: %v, offline: %v", name, node, state.Unproven[node], state.Offline[node])
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// EgressIPsInUse is True only if every address that a namespace wants is in use.
func TestEgressIPsInUse(t *testing.T) {
	refused := []plan.Problem{{Reason: networkv1.ReasonEgressIPRefused, Message: "192.0.2.5 is not used"}}
	for name, c := range map[string]struct {
		used            string
		problems        []plan.Problem
		holds           bool
		reason, message string
	}{
		"all are in use":      {"192.0.2.6 at n2", nil, true, networkv1.ReasonInUse, "192.0.2.6 at n2"},
		"one of two is":       {"192.0.2.6 at n2", refused, false, networkv1.ReasonEgressIPRefused, "in use: 192.0.2.6 at n2; 192.0.2.5 is not used"},
		"the only one is not": {"", refused, false, networkv1.ReasonEgressIPRefused, "192.0.2.5 is not used"},
		"no node has one":     {"", nil, false, networkv1.ReasonEgressIPUnassigned, "nothing leaves the cluster from this namespace"},
	} {
		if got := egressCondition(c.used, c.problems); got.Type != networkv1.ConditionEgressIPsInUse || got.Holds != c.holds || got.Reason != c.reason || got.Message != c.message {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
