package engines

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"time"

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
	default:
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
func mistakesFlows(version string) bool {
	// The first release of each series with the commit "dpif-netdev: Fix dpif_netdev_flow_put". All later series have it.
	repaired := map[[2]int]int{{2, 17}: 8, {3, 0}: 5, {3, 1}: 3}
	parts := strings.SplitN(version, ".", 4)
	if len(parts) < 3 {
		return true
	}
	var number [3]int
	for i := range number {
		digits := parts[i]
		if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = digits[:end]
		}
		var err error
		if number[i], err = strconv.Atoi(digits); err != nil {
			return true
		}
	}
	series := [2]int{number[0], number[1]}
	if patch, known := repaired[series]; known {
		return number[2] < patch
	}
	return series[0] < 3 // 3.2 is the first that always had it
}
