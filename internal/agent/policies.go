package agent

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"weft.dev/weft/internal/openflow/ofproto"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/watermark"
)

// policyMark is the resourceVersion observed of NetworkPolicies.
type policyMark struct{ *watermark.Mark }

// Saw implements follow.Mark.
func (m policyMark) Saw(notified any, concerns bool) {
	at, _ := changeOf(notified)
	at.mark(m.Mark, concerns)
}

// watchSync bounds how long one attempt waits for watches.
const watchSync = 10 * time.Second

// reportPolicyProblems reports which parts of a NetworkPolicy are not enforced on this node.
func (a *agent) reportPolicyProblems(ctx context.Context, key policy.Key, problems []error) {
	const most = 20 // an object may be wrong in thousands of places
	for _, problem := range problems[:min(most, len(problems))] {
		a.opts.Log.Warn("NetworkPolicy not realised as written", "policy", key.String(), "error", problem)
	}
	if object := a.objects.policies.Policy(ctx, key); object != nil {
		a.events.Policy(object, errors.Join(problems[:min(most, len(problems))]...).Error())
	}
}

// Purge implements overlay.Datapath. Where its flows overlap, the userspace datapath of Open vSwitch 3.1.0 may apply new actions to another
// of its flows than the intended one (it finds them by a packet, not by their name), and regard the change as done. Traffic that is no
// longer allowed would then pass as long as packets arrive. Purged flows are created again from the switch's current state.
func (c *connections) Purge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	paths, _ := filepath.Glob(filepath.Join(c.runDir, "ovs-vswitchd.*.ctl")) // the error is for a bad pattern
	err := errNoSwitch
	for _, path := range paths { // a switch that was killed leaves its socket behind
		if _, failed := ofproto.Command(ctx, path, "revalidator/purge"); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		return nil
	}
	return err
}

// followPolicies keeps policies in step until ctx ends.
func (a *agent) followPolicies(ctx context.Context, network *overlay.Network) error {
	return a.keepInStep(ctx, a.objects.policies.Wake(), "NetworkPolicies", func() error { return a.objects.policies.Step(ctx, network.UpdatePolicies, false) })
}

// updateNetwork updates the network from a view. In the mode with policies, the network receives all policies before it enters the mode;
// after it leaves the mode, it receives none.
func (a *agent) updateNetwork(ctx context.Context, network *overlay.Network, view overlay.View) error {
	if !view.ByPolicies() {
		a.objects.policies.Forget()
		if err := network.Update(ctx, view); err != nil {
			return err
		}
		return a.objects.policies.Leave(ctx)
	}
	if err := a.objects.policies.Enter(ctx); err != nil {
		return err
	}
	if err := a.objects.policies.Step(ctx, network.UpdatePolicies, true); err != nil {
		return err
	}
	if err := network.Update(ctx, view); err != nil {
		return err
	}
	// Policies that changed meanwhile may have been handed over and not be in effect yet. This step waits for them; if it fails, it is
	// retried.
	if err := a.objects.policies.Step(ctx, network.UpdatePolicies, false); err != nil {
		a.objects.policies.Signal()
	}
	return nil
}
