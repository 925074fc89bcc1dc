package overlay

import (
	"context"
	"time"

	"weft.dev/weft/test/soak/overlay/faults"
	"weft.dev/weft/test/soak/report"
)

// Clock sets the machine's clock forward, and back again, while everything runs. The wall clock is the whole machine's: network
// namespaces have none of their own, and a statically linked program cannot be given another one. So a flag must enable this part.
func Clock(ctx context.Context, s *Stage) error {
	if !s.opts.Clock {
		s.report.Add(report.Row{Part: "clock", Name: "the clock jumps", Verdict: report.Refused, Wrong: []string{
			"it sets the clock of the whole machine; allow that with -clock",
		}})
		return nil
	}
	f := faults.ClockJump()
	r := report.Row{Part: "clock", Name: f.Name, Count: 1}
	began := time.Now()
	if !s.suffer(ctx, &r, f) && ctx.Err() == nil {
		r.Repairs++
	}
	r.Took = time.Since(began)
	s.report.Add(r)
	return ctx.Err()
}
