package node

import (
	"context"
	"errors"
	"time"

	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/node/watch"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/watermark"
)

// policyMark is the resourceVersion observed of NetworkPolicies.
type policyMark struct{ *watermark.Mark }

// Saw implements follow.Mark.
func (m policyMark) Saw(notified any, concerns bool) {
	at, _ := watch.ChangeOf(notified)
	at.Mark(m.Mark, concerns)
}

// watchSync bounds how long one attempt waits for watches.
const watchSync = 10 * time.Second

// ReportPolicyProblems reports which parts of a NetworkPolicy are not enforced on this node.
func (o *Objects) ReportPolicyProblems(ctx context.Context, key policy.Key, problems []error) {
	const most = 20 // an object may be wrong in thousands of places
	for _, problem := range problems[:min(most, len(problems))] {
		o.log.Warn("NetworkPolicy not realised as written", "policy", key.String(), "error", problem)
	}
	if object := o.policies.Policy(ctx, key); object != nil {
		o.events.Policy(object, errors.Join(problems[:min(most, len(problems))]...).Error())
	}
}

// updateNetwork updates the network from a view. In the mode with policies, the network receives all policies before it enters the mode;
// after it leaves the mode, it receives none.
func (o *Objects) updateNetwork(ctx context.Context, network *overlay.Network, view overlay.View) error {
	if !view.ByPolicies() {
		o.policies.Forget()
		if err := network.Update(ctx, view); err != nil {
			return err
		}
		return o.policies.Leave(ctx)
	}
	if err := o.policies.Enter(ctx); err != nil {
		return err
	}
	if err := o.policies.Step(ctx, network.UpdatePolicies); err != nil {
		return err
	}
	if err := network.Update(ctx, view); err != nil {
		return err
	}
	// Policies that changed meanwhile may have been handed over and not be in effect yet. This step waits for them; if it fails, it is
	// retried.
	if err := o.policies.Step(ctx, network.UpdatePolicies); err != nil {
		o.policies.Signal()
	}
	return nil
}
