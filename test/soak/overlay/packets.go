package overlay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/report"
	"weft.dev/weft/test/traffic"
)

// longControl is the duration of the traffic before the first restart, without any fault.
const longControl = 15 * time.Second

// packets are the datagrams that pairs of pods exchange, and the judgement of their losses.
type packets struct {
	pairs []traffic.Pair
	rate  int // of each pair, per second
	// judged says that lost packets are failures.
	judged bool
}

// load runs the traffic while f runs, and adds its result to the row.
func (p *packets) load(ctx context.Context, r *report.Row, spared losses.Scope, f func() error) error {
	tallies, lost, err := losses.Count(ctx, p.pairs, p.rate, 0, f)
	rule := losses.Rule{Spares: spared.Covers}
	loss := rule.Judge(tallies)
	r.Spared, r.Sent, r.Lost, r.Others = string(spared), r.Sent+loss.Sent, r.Lost+loss.Lost, r.Others+loss.Others
	if loss.Err != nil && p.judged {
		p.blame(ctx, r, spared, lost)
	}
	if !p.judged && r.Verdict == "" && spared != losses.None {
		r.Verdict = report.Unjudged
	}
	return err
}

// controlTime is the duration of the control run after a loss.
const controlTime = 10 * time.Second

// blame decides whether the fault lost the packets, by running the same traffic without it.
func (p *packets) blame(ctx context.Context, r *report.Row, spared losses.Scope, lossErr error) {
	lost, controlErr := p.control(ctx, spared, controlTime)
	if lost > 0 || controlErr != nil {
		r.Verdict = report.Busy
		r.Fail(fmt.Errorf("packets were lost, and %d of the same traffic right after, without a fault: %w", lost, errors.Join(lossErr, controlErr)))
		return
	}
	r.Fail(fmt.Errorf("packets were lost, and none of the same traffic in %s right after: %w", controlTime, lossErr))
}

// control runs the traffic without a fault, and returns its loss.
func (p *packets) control(ctx context.Context, spared losses.Scope, length time.Duration) (lost uint64, err error) {
	if !p.judged {
		return 0, nil
	}
	tallies, _, err := losses.Count(ctx, p.pairs, p.rate, length, ctx.Err)
	rule := losses.Rule{Spares: spared.Covers}
	return rule.Judge(tallies).Lost, errors.Join(err, ctx.Err())
}

// quiet runs the traffic without a fault, and reports whether nothing is lost; else the row's verdict is that the machine is too busy.
func (p *packets) quiet(ctx context.Context, r *report.Row) (bool, error) {
	lost, err := p.control(ctx, losses.All, longControl)
	if err != nil {
		return false, err
	}
	if lost > 0 && p.judged {
		r.Verdict = report.Busy
		r.Fail(fmt.Errorf("%d packets were lost in %s without a restart: loss during restarts would prove nothing", lost, longControl))
		return false, nil
	}
	return true, nil
}
