package overlay

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
)

// createPrepluggedFor creates a pre-plugged port for a pod with limited bandwidth when none is free. Traffic is shaped on the port's veth peer,
// outside the pod's namespace, where the pod cannot remove the shaping.
func (n *Network) createPrepluggedFor(ctx context.Context, rec *attach.Record, pod *cni.Args) error {
	number, err := n.preplugged.makeTaken(ctx)
	if err != nil {
		// Without wrapping err: a missing namespace of ports must not be reported as a missing namespace of the pod.
		return cni.Errorf(cni.CodeTryAgainLater, "pod %s/%s: its bandwidth limit needs a port whose peer is in %s: %s: try again later",
			pod.PodNamespace, pod.PodName, n.opts.Ports, err.Error())
	}
	rec.OFPort = number
	return nil
}

// reshape restores traffic shaping that another program changed, and reports whether to try again.
func (e *ends) reshape(ctx context.Context) (left bool) {
	n := e.network
	if n.engines.Shapers == nil {
		return false
	}
	want := n.wantedShapes()
	if len(want) == 0 {
		return false
	}
	have, err := n.engines.Shapers.Shapes(ctx, n.opts.Ports)
	if err != nil {
		if ctx.Err() == nil {
			n.opts.Log.Warn("reading pods' traffic shaping failed, trying again", "error", err)
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
	shape link.Shape
}

// wantedShapes returns the desired shaping of attached pods.
func (n *Network) wantedShapes() map[attach.Key]shaped {
	n.opening.Lock()
	defer n.opening.Unlock()
	all := map[attach.Key]shaped{}
	for key, rec := range n.live {
		if rec.State == attach.Attached && rec.Bandwidth.Limited() && n.preplugged.has(rec.OFPort) {
			all[key] = shaped{rec.HostInterface, plan.Shape(&rec)}
		}
	}
	return all
}

// reshapeOne restores the shaping of one pod, unless a request for it is under way, and reports whether to try again.
func (e *ends) reshapeOne(ctx context.Context, key attach.Key, want shaped, have link.Shape) (left bool) {
	n := e.network
	unlock, free := n.opts.Records.TryLock(key)
	if !free {
		return true
	}
	defer unlock()
	if !n.isLive(key) {
		return false
	}
	err := n.engines.Shapers.Reshape(ctx, n.opts.Ports, want.name, want.shape)
	if errors.Is(err, link.ErrNoDevice) { // no traffic passes there any more
		return false
	}
	if err != nil {
		if ctx.Err() == nil {
			n.opts.Log.Warn("restoring a pod's traffic shaping failed, trying again", "link", want.name, "error", err)
		}
		return true
	}
	n.opts.Log.Warn("restored what another program changed", "link", want.name, "was", have.String(), "is", want.shape.String())
	return false
}
