package engines

import (
	"context"
	"time"

	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/podveth"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/reconcile"
)

// hostEnds are the pods' host veths. Restoring them counts as drift of the links.
type hostEnds struct {
	*podveth.Pods
	metrics *metrics.Agent
}

// Restore implements ports.HostEnds.
func (h *hostEnds) Restore(ctx context.Context, name string, want podlink.HostEnd) error {
	begin := time.Now()
	err := h.Pods.Restore(ctx, name, want)
	h.metrics.Commit(reconcile.Event{Engine: NameLinks, Set: 1, Drift: reconcile.Drift{Altered: 1}, Took: time.Since(begin), Err: err})
	return err
}

// Reshape implements podlink.Shapers.
func (h *hostEnds) Reshape(ctx context.Context, path, name string, want podlink.Shape) error {
	if want == (podlink.Shape{}) {
		return h.Pods.Reshape(ctx, path, name, want) // of a port that is being removed
	}
	begin := time.Now()
	err := h.Pods.Reshape(ctx, path, name, want)
	h.metrics.Commit(reconcile.Event{Engine: NameLinks, Set: 1, Drift: reconcile.Drift{Altered: 1}, Took: time.Since(begin), Err: err})
	return err
}
