package lifecycle

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/reconcile"
)

// Check compares a pod's interface with its record, and the record with the result that the runtime got. It implements cni.Handler.
func (h *Handler) Check(ctx context.Context, req *cni.Request) error {
	if err := h.board.any(); err != nil {
		return err
	}
	key := attach.Key{ContainerID: req.ContainerID, IfName: req.IfName}
	rec, err := h.store.Get(key)
	if errors.Is(err, attach.ErrNotFound) || err == nil && rec.State != attach.Attached {
		return cni.Errorf(cni.CodeUnknownContainer, "attachment %s: it is not on this node", key)
	}
	if err != nil {
		return cni.Errorf(cni.CodeIO, "%w", err)
	}
	s, err := h.board.of(network.KindOf(rec.Network), cni.CodeTryAgainLater)
	if err != nil {
		return err
	}
	prev, err := previous(req)
	if err != nil {
		return err
	}
	if req.Netns != rec.Netns {
		return fmt.Errorf("attachment %s: it is in namespace %s, not in %s", key, rec.Netns, req.Netns)
	}
	err = errors.Join(plan.Compare(&rec, prev), codeOf(s.network.Check(ctx, rec)))
	if err != nil {
		return fmt.Errorf("pod %s/%s, interface %s with MTU %d: %w", rec.PodNamespace, rec.PodName, rec.IfName, rec.MTU, err)
	}
	return nil
}

// previous returns ADD's result as the runtime passes it; nil if it passes none.
func previous(req *cni.Request) (*types100.Result, error) {
	if req.NetConf == nil {
		return nil, nil //nolint:nilnil // no result is an answer here
	}
	return req.NetConf.PrevResult()
}

// codeOf gives an error without a code the code that runtimes act on.
func codeOf(err error) error {
	var own *cni.Error
	switch {
	case err == nil, errors.As(err, &own):
		return err
	case errors.Is(err, link.ErrNoNamespace), errors.Is(err, link.ErrNotNamespace):
		return cni.Errorf(cni.CodeInvalidNetns, "%w", err)
	case errors.Is(err, reconcile.ErrUnavailable), errors.Is(err, reconcile.ErrStopped),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return cni.Errorf(cni.CodeTryAgainLater, "%w: try again later", err)
	default:
		return err
	}
}
