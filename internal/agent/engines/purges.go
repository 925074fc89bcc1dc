package engines

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"weft.dev/weft/internal/reconcile"
)

// purges removes the flows of the userspace datapath after each change of OpenFlow flows. In some releases of Open vSwitch, the datapath may
// apply the new actions of one of its flows to another one that overlaps it, and regard the change as done. The first flow then keeps its
// actions as long as packets arrive for it: it passes what the tables drop, or drops what they pass. Flows that were removed are created
// again from the tables, by the thread that forwards the packets: none is lost.
type purges struct {
	due   chan struct{}
	purge func(context.Context) error
	log   *slog.Logger
}

// purgesRest is the time between two purges. Changes within it share the next one.
const purgesRest = 250 * time.Millisecond

func newPurges(log *slog.Logger, purge func(context.Context) error) *purges {
	return &purges{due: make(chan struct{}, 1), purge: purge, log: log}
}

// after takes note of a commit. It does not wait.
func (p *purges) after(event reconcile.Event) {
	if event.Read || event.Set+event.Deleted == 0 {
		return
	}
	select {
	case p.due <- struct{}{}:
	default: // a purge is due already
	}
}

// run purges until ctx ends.
func (p *purges) run(ctx context.Context) {
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.due:
		}
		err := p.purge(ctx)
		if err != nil && !failed && ctx.Err() == nil {
			p.log.Warn("the datapath may keep outdated flows, trying again", "error", err)
		}
		if failed = err != nil; failed {
			select {
			case p.due <- struct{}{}:
			default:
			}
		}
		timer := time.NewTimer(purgesRest)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// mistakesFlows reports whether the userspace datapath of a release of Open vSwitch may change another flow than the intended one. An unknown
// release may.
func mistakesFlows(release string) bool {
	is, err := version.ParseGeneric(release)
	if err != nil {
		return true
	}
	// The first release of each series with the commit "dpif-netdev: Fix dpif_netdev_flow_put". All of 3.2 and later have it.
	for _, repaired := range []*version.Version{version.MustParseGeneric("2.17.8"), version.MustParseGeneric("3.0.5"), version.MustParseGeneric("3.1.3")} {
		if is.Major() == repaired.Major() && is.Minor() == repaired.Minor() {
			return is.LessThan(repaired)
		}
	}
	return is.LessThan(version.MustParseGeneric("3.2"))
}
