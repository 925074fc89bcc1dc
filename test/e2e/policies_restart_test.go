//go:build lab

package e2e

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/test/traffic"
)

// An agent that is killed under traffic, while policies change, loses no allowed packet and passes no denied one.
func TestPolicyAgentRestarts(t *testing.T) {
	s := newPolicyScene(t, "again")
	echoed := echo(t, s.server.Netns, s.server.IPs[0])
	// One policy is unchanged all the time, and another is added and deleted.
	s.policy(t, "again", map[string]string{"app": "server"}, ingress(networkingv1.NetworkPolicyIngressRule{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(map[string]string{"app": "far"})}},
	}))
	s.reach(t, "far only", map[uint16][3]bool{sourcePort: {false, true, false}})
	ping(t, s.far.Netns, s.server.IPs[0])
	allowed, err := traffic.NewLoad([]traffic.Pair{{Name: "far", From: s.far.Netns, To: addrPort(s.server)}}, *pairRate)
	if err != nil {
		t.Fatal(err)
	}
	denied, err := traffic.NewLoad([]traffic.Pair{
		{Name: "near", From: s.near.Netns, To: addrPort(s.server)}, {Name: "other", From: s.otherPod.Netns, To: addrPort(s.server)},
	}, *pairRate/10)
	if err != nil {
		t.Fatal(err)
	}
	for i := range *restarts {
		s.policy(t, "beside", map[string]string{"app": "server"}, ingress(networkingv1.NetworkPolicyIngressRule{
			From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("192.0.2.%d/32", i)}}},
		}))
		kill(t, s.cluster, "n1/weft-agent", syscall.SIGKILL)
		await(t, "n1 ready", func(ctx context.Context) error { return ready(ctx, s.server.Node) })
	}
	tallies, err := allowed.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if tally := tallies["far"]; tally.Lost > 0 || tally.Sent == 0 {
		t.Errorf("allowed traffic: %s", tally)
	}
	refused, err := denied.Stop()
	if err == nil {
		t.Error("all denied datagrams were answered") // a stream that loses a packet returns an error
	}
	for name, tally := range refused {
		if tally.Sent == 0 || tally.Lost != tally.Sent {
			t.Errorf("denied traffic of %s: %s", name, tally)
		}
	}
	for _, p := range []*lab.Pod{s.near, s.otherPod} {
		if n := echoed.Sources()[p.IPs[0]]; n > 0 {
			t.Errorf("%d denied datagrams of %s arrived", n, p.Name)
		}
	}
	t.Logf("%d restarts; allowed: %s; refused: %v", *restarts, tallies["far"], refused)
}

// While the API server is away, the known policies stay in effect, also for an agent that starts meanwhile: nothing is opened, nothing
// ends, and an unknown pod is not attached.
func TestPolicyWithoutAPIServer(t *testing.T) {
	s := newPolicyScene(t, "away")
	s.policy(t, "away", map[string]string{"app": "server"}, ingress(networkingv1.NetworkPolicyIngressRule{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(map[string]string{"app": "far"})}},
	}))
	farOnly := map[uint16][3]bool{sourcePort: {false, true, false}}
	s.reach(t, "far only", farOnly)
	want := settledState(t, s.server.Node)
	back := apiAway(t, s.cluster)
	unknown, err := s.cluster.AddPod(t.Context(), lab.PodSpec{Node: "n1", Name: "away-unknown", NoObject: true})
	if unknown != nil {
		defer delPod(t, unknown)
	}
	var failure *podruntime.Failure
	if !asFailure(err, &failure) || failure.Code != codeTryAgain {
		t.Errorf("ADD of a pod that the agent has not observed: %v, want code %d", err, codeTryAgain)
	}
	s.reach(t, "far only, without the API server", farOnly)
	kill(t, s.cluster, "n1/weft-agent", syscall.SIGKILL)
	s.reach(t, "far only, by an agent that starts without the API server", farOnly)
	if unknown != nil {
		delPod(t, unknown)
	}
	back()
	await(t, "n1 ready", func(ctx context.Context) error { return ready(ctx, s.server.Node) })
	awaitState(t, s.server.Node, want, "the API server is back")
	s.reach(t, "far only, when the API server is back", farOnly)
	s.drop(t, "away")
	s.reach(t, "without a policy", map[uint16][3]bool{sourcePort: {true, true, true}})
}
