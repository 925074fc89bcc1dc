package node

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weftv1 "weft.dev/weft/api/weft/v1"
)

// join makes the node a chassis of OVN.
func (v *Network) join(ctx context.Context) error {
	sw, err := v.node.Switch(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is why
		}
		return fmt.Errorf("VPCs: %w", err)
	}
	return v.options.Join(ctx, sw.Datapath, v.report)
}

// report reports the node as a chassis in its NodeNetwork.
func (v *Network) report(chassis weftv1.VPCNode, problem error) {
	if v.deps.Report == nil {
		return
	}
	ready := metav1.Condition{
		Type: weftv1.NetworkReady, Status: metav1.ConditionTrue, Reason: "Chassis", Message: "the node has joined OVN as chassis " + chassis.Chassis,
	}
	if problem != nil {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "NoChassis", problem.Error()
	}
	v.deps.Report(weftv1.NodeNetworkSection{Conditions: []metav1.Condition{ready}, VPC: &chassis})
}
