package ports

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
)

// reshape restores traffic shaping that another program changed, and reports whether to try again.
func (e *Ends) reshape(ctx context.Context) (left bool) {
	if e.engines.Shapers == nil {
		return false
	}
	want := e.wantedShapes()
	if len(want) == 0 {
		return false
	}
	have, err := e.engines.Shapers.Shapes(ctx, e.opts.Namespace)
	if err != nil {
		if ctx.Err() == nil {
			e.opts.Log.Warn("reading pods' traffic shaping failed, trying again", "error", err)
		}
		return true
	}
	for _, key := range slices.SortedFunc(maps.Keys(want), func(a, b attach.Key) int { return strings.Compare(a.String(), b.String()) }) {
		w := want[key]
		if !w.shape.Matches(have[w.name]) {
			left = e.reshapeOne(ctx, key, w, have[w.name]) || left
		}
	}
	return left
}

// shaped is the desired shaping of a port.
type shaped struct {
	name  string
	shape podlink.Shape
}

// wantedShapes returns the desired shaping of attached pods.
func (e *Ends) wantedShapes() map[attach.Key]shaped {
	all := map[attach.Key]shaped{}
	e.opts.Live.Each(func(rec *attach.Record) {
		if rec.State == attach.Attached && rec.Bandwidth.Limited() && e.pool.Has(rec.OFPort) {
			all[rec.Key()] = shaped{rec.HostInterface, plan.Shape(rec)}
		}
	})
	return all
}

// reshapeOne restores the shaping of one pod, unless a request for it is under way, and reports whether to try again.
func (e *Ends) reshapeOne(ctx context.Context, key attach.Key, want shaped, have podlink.Shape) (left bool) {
	unlock, free := e.opts.Records.TryLock(key)
	if !free {
		return true
	}
	defer unlock()
	if !e.opts.Live.IsLive(key) {
		return false
	}
	err := e.engines.Shapers.Reshape(ctx, e.opts.Namespace, want.name, want.shape)
	if errors.Is(err, link.ErrNoDevice) { // no traffic passes there any more
		return false
	}
	if err != nil {
		if ctx.Err() == nil {
			e.opts.Log.Warn("restoring a pod's traffic shaping failed, trying again", "link", want.name, "error", err)
		}
		return true
	}
	e.opts.Log.Warn("restored what another program changed", "link", want.name, "was", have.String(), "is", want.shape.String())
	return false
}
