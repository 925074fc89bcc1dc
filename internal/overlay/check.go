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
	pair, err := a.ports.preplugged.pair(&rec, &s.attachments)
	if err != nil {
		return err
	}
	o := owner(rec.Key())
	return errors.Join(
		inPod(checkPair(ctx, a.engines.Pods, &rec, pair)),
		inPod(a.routers.Check(ctx, &rec)),
		s.pipeline.CheckPod(pod(&rec)),
		a.engines.Rows.Failure(o),
		a.engines.Flows.Failure(o),
		a.engines.Rules.Failure(o),
	)
}

func inPod(err error) error {
	if errors.Is(err, link.ErrNoNamespace) {
		return cni.Errorf(cni.CodeInvalidNetns, "%w", err)
	}
	return err
}

// checkPair checks an attachment's own interface. An egress router may have changed its default route after its start.
func checkPair(ctx context.Context, pods link.PodLinks, rec *attach.Record, pair link.Pair) error {
	err := pods.Check(ctx, pair)
	if rec.Macvlan == nil || err == nil {
		return err
	}
	pair.PodRoutes = plan.WithoutDefault(pair.PodRoutes)
	if pods.Check(ctx, pair) == nil {
		return nil
	}
	return err
}
