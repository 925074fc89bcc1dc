package lifecycle

import (
	"context"
	"errors"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/network"
)

// superseded reports whether a plan that failed because another attachment has what the pod needs (attach.ConflictError) can be made again. It
// removes that attachment if it is being removed anyway, or if it is of a former sandbox of the same pod: the kubelet creates a sandbox only
// when the former one has ended, and a runtime that has lost its state never detaches that one.
func superseded(ctx context.Context, h *Handler, req *cni.Request, planned error) bool {
	var conflict *attach.ConflictError
	if !errors.As(planned, &conflict) || conflict.Holder.ContainerID == req.ContainerID || ctx.Err() != nil {
		return false
	}
	unlock, err := h.lock(ctx, conflict.Holder)
	if err != nil {
		return false
	}
	defer unlock()
	rec, err := h.store.Get(conflict.Holder)
	if errors.Is(err, attach.ErrNotFound) {
		return true
	}
	former := rec.PodUID != "" && rec.PodUID == req.Args.PodUID
	if err != nil || !former && rec.State != attach.Closing {
		return false
	}
	s, err := h.board.of(network.KindOf(rec.Network), cni.CodeTryAgainLater)
	if err != nil || !isClosed(s.handedOver) {
		return false
	}
	h.closing.add(conflict.Holder)
	if err := h.remove(ctx, s, rec); err != nil {
		h.opts.Log.Warn("removing an attachment that another one replaces, going on in the background", "attachment", conflict.Holder.String(), "error", err)
		h.reaper.takeOver(ctx, conflict.Holder)
		return false
	}
	return true
}
