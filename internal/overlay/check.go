package overlay

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

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
		return cni.Errorf(cni.CodeUnknownContainer, "attachment %s: it is not on this node", key)
	}
	if err != nil {
		return cni.Errorf(cni.CodeIO, "%w", err)
	}
	s := n.settings.Load()
	if s == nil {
		return cni.Errorf(cni.CodeTryAgainLater, "%w: try again later", n.Ready())
	}
	prev, err := previous(req)
	if err != nil {
		return err
	}
	if req.Netns != rec.Netns {
		return fmt.Errorf("attachment %s: it is in namespace %s, not in %s", key, rec.Netns, req.Netns)
	}
	pair, err := n.pair(&rec, &s.attachments)
	if err != nil {
		return err
	}
	err = errors.Join(
		plan.Compare(&rec, prev),
		inPod(n.checkPair(ctx, &rec, pair)),
		inPod(n.checkMacvlan(ctx, &rec)),
		s.pipeline.CheckPod(pod(&rec)),
		n.engines.Rows.Failure(owner(key)),
		n.engines.Flows.Failure(owner(key)),
		n.engines.Rules.Failure(owner(key)),
	)
	if err != nil {
		return fmt.Errorf("pod %s/%s, interface %s with MTU %d: %w", rec.PodNamespace, rec.PodName, rec.IfName, rec.MTU, err)
	}
	return nil
}

// previous returns what the runtime says that Add's result was; nil where it does not say.
func previous(req *cni.Request) (*types100.Result, error) {
	if req.NetConf == nil {
		return nil, nil //nolint:nilnil // No result is an answer here.
	}
	return req.NetConf.PrevResult()
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
