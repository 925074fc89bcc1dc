package overlay

import (
	"context"
	"errors"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
)

// Check compares a pod's interface with what Add made of it: the veth and what is on it, the port, the flows. It
// implements cni.Handler.
func (n *Network) Check(ctx context.Context, req *cni.Request) error {
	key := attach.Key{ContainerID: req.ContainerID, IfName: req.IfName}
	rec, err := n.store.Get(key)
	if errors.Is(err, attach.ErrNotFound) || err == nil && rec.State != attach.Attached {
		return cni.Errorf(cni.CodeUnknownContainer, "attachment %s: the node does not have it", key)
	}
	if err != nil {
		return cni.Errorf(cni.CodeIO, "%w", err)
	}
	s := n.settings.Load()
	if s == nil {
		return cni.Errorf(cni.CodeTryAgainLater, "%w: try again later", n.Ready())
	}
	pair, err := plan.Pair(&rec, &s.attachments)
	if err != nil {
		return err
	}
	return errors.Join(
		inPod(n.engines.Pods.Check(ctx, pair)),
		n.engines.Rows.Failure(owner(key)),
		n.engines.Flows.Failure(owner(key)),
	)
}

func inPod(err error) error {
	if errors.Is(err, link.ErrNoNamespace) {
		return cni.Errorf(cni.CodeInvalidNetns, "%w", err)
	}
	return err
}

// Status reports whether Add can be served. It implements cni.Handler.
func (n *Network) Status(context.Context, *cni.Request) error {
	if err := n.Ready(); err != nil {
		return cni.Errorf(cni.CodeNotAvailable, "%w", err)
	}
	failed := errors.Join(
		n.engines.Rules.Failure(ownerCluster), n.engines.Rows.Failure(ownerCluster),
		n.engines.Links.Failure(ownerCluster), n.engines.Flows.Failure(ownerCluster),
	)
	if failed != nil {
		return cni.Errorf(cni.CodeLimitedConnectivity, "%w", failed)
	}
	return nil
}
