package overlay

import (
	"context"
	"errors"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
)

// Check compares the veth pair and its configuration, the port and the flows. It implements network.Network.
func (a *attachments) Check(ctx context.Context, rec attach.Record) error {
	s := a.pods.settings.Load()
	if s == nil {
		return cni.Errorf(cni.CodeTryAgainLater, "the network is not ready: %w: try again later", a.ready())
	}
	pair, err := a.ports.Preplugged.Pair(&rec, &s.Attachments)
	if err != nil {
		return err
	}
	o := owner(rec.Key())
	return errors.Join(
		inPod(plan.CheckPair(ctx, a.engines.Pods, &rec, pair)),
		inPod(a.routers.Check(ctx, &rec)),
		closure(s, &rec),
		a.engines.Rows.Failure(o),
		a.engines.Flows.Failure(o),
		a.engines.Rules.Failure(o),
		a.hostPorts.Check(ctx, &rec),
	)
}

func inPod(err error) error {
	if errors.Is(err, link.ErrNoNamespace) {
		return cni.Errorf(cni.CodeInvalidNetns, "%w", err)
	}
	return err
}
