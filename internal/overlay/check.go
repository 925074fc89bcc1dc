package overlay

import (
	"context"
	"errors"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
)

// Check compares the veth pair and its configuration, the port and the flows. It implements network.Network.
func (n *Network) Check(ctx context.Context, rec attach.Record) error {
	s := n.settings.Load()
	if s == nil {
		return cni.Errorf(cni.CodeTryAgainLater, "the network is not ready: %w: try again later", n.Ready())
	}
	pair, err := n.pair(&rec, &s.attachments)
	if err != nil {
		return err
	}
	o := owner(rec.Key())
	return errors.Join(
		inPod(n.checkPair(ctx, &rec, pair)),
		inPod(n.checkMacvlan(ctx, &rec)),
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
