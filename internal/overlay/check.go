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
func (n *Network) Check(ctx context.Context, rec attach.Record) error {
	s := n.settings.Load()
	if s == nil {
		return cni.Errorf(cni.CodeTryAgainLater, "the network is not ready: %w: try again later", n.Ready())
	}
	pair, err := n.ports.preplugged.pair(&rec, &s.attachments)
	if err != nil {
		return err
	}
	o := owner(rec.Key())
	return errors.Join(
		inPod(checkPair(ctx, n.engines.Pods, &rec, pair)),
		inPod(n.routers.Check(ctx, &rec)),
		s.pipeline.CheckPod(pod(&rec)),
		n.engines.Rows.Failure(o),
		n.engines.Flows.Failure(o),
		n.engines.Rules.Failure(o),
	)
}

func inPod(err error) error {
	if errors.Is(err, link.ErrNoNamespace) {
		return cni.Errorf(cni.CodeInvalidNetns, "%w", err)
	}
	return err
}

// Limits returns why state that every pod needs from the node is not in effect. It implements network.Limiter.
func (n *Network) Limits() error {
	return errors.Join(
		n.engines.Rules.Failure(ownerCluster), n.engines.Rows.Failure(ownerCluster),
		n.engines.Links.Failure(ownerCluster), n.engines.Flows.Failure(ownerCluster),
	)
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
