// Package flannel is the soak's part of flannel networks: faults under counted packets, and rounds of pods, in a lab of two nodes with Weft's
// agent and one with the original flanneld and its plugin.
package flannel

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
)

// Options of a run.
type Options struct {
	// Lab is the name of the lab, Bin the folder with Weft's programs.
	Lab, Bin string
	// Faults selects faults by their names.
	Faults *regexp.Regexp
	// Rounds is the number of rounds of pods, and Crowd the number of pods of a round.
	Rounds, Crowd int
	// Say prints a line of progress.
	Say func(format string, args ...any)
}

// Row is a result: of the control, a fault or a round.
type Row struct {
	Name string
	// Count is 1, or the number of pods.
	Count int
	// Spared names the pairs that must lose no packet: Sent and Lost count theirs, Others the losses of the others.
	Spared             string
	Sent, Lost, Others uint64
	// Leaks counts leftovers.
	Leaks int
	// Back is the time from the fault until the node was as before.
	Back, Took time.Duration
	// Wrong has what must not have happened. Lossy says which spared pairs lost packets, and Late that Back is too long: a busy machine may
	// cause both.
	Wrong       []error
	Lossy, Late error
}

func (r *Row) wrong(err error) {
	if err != nil {
		r.Wrong = append(r.Wrong, err)
	}
}

// Run runs the part in a lab of its own. An error is the reason why it could not continue.
func Run(ctx context.Context, opts Options, add func(Row)) error {
	config := lab.Config{Name: opts.Lab, Nodes: 3, Runtime: plan.RuntimeCNI, Network: plan.NetworkFlannel, Flanneld: original, WeftBin: opts.Bin}
	return losses.InLab(ctx, config, func(cluster *lab.Cluster, took time.Duration) (err error) {
		s, err := newScene(ctx, cluster)
		if err != nil {
			return errors.Join(err, s.close())
		}
		defer func() { err = errors.Join(err, s.close()) }()
		opts.Say("lab of two nodes with Weft and one with flanneld up in %s", took.Round(time.Second))
		return s.run(ctx, &opts, add)
	})
}

// run runs the control, the faults and the crowds.
func (s *scene) run(ctx context.Context, opts *Options, add func(Row)) error {
	calm, err := s.control(ctx)
	if err != nil {
		return err
	}
	add(*calm)
	for _, f := range faults() {
		if !opts.Faults.MatchString(f.name) {
			continue
		}
		add(s.suffer(ctx, &f))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return s.crowds(ctx, opts.Rounds, opts.Crowd, add)
}

const (
	// rate is the number of datagrams per second that each pair exchanges.
	rate = 1000
	// original is the node that runs flanneld.
	original = "n3"
	// calm is how long packets continue after a fault.
	calm = 3 * time.Second
	// noticed and checked are the limits of a repair: after an event, and without one (the agent reads everything back every 10 s).
	noticed, checked = time.Second, 10 * time.Second
)

// control counts packets without a fault.
func (s *scene) control(ctx context.Context) (*Row, error) {
	r := &Row{Name: "control: no fault", Count: 1, Spared: string(all)}
	began := time.Now()
	err := s.load(ctx, r, all, func() error { return nil })
	r.Took = time.Since(began)
	return r, err
}

// load counts packets of all pairs while act runs and for some time after it.
func (s *scene) load(ctx context.Context, r *Row, spared scope, act func() error) error {
	tallies, lost, err := losses.Count(ctx, s.pairs, rate, calm, act)
	rule := losses.Rule{Spares: spared.covers}
	loss := rule.Judge(tallies)
	r.Spared, r.Sent, r.Lost, r.Others = string(spared), loss.Sent, loss.Lost, loss.Others
	if loss.Err != nil {
		r.Lossy = fmt.Errorf("packets of spared pairs were lost: %w", lost)
	}
	return err
}

// suffer causes a fault, and waits until the node is as before and serves.
func (s *scene) suffer(ctx context.Context, f *fault) Row {
	r := Row{Name: f.name, Count: 1}
	began := time.Now()
	defer func() { r.Took = time.Since(began) }()
	was, err := s.settled(ctx)
	if err != nil {
		r.wrong(fmt.Errorf("before the fault: %w", err))
		return r
	}
	r.wrong(s.load(ctx, &r, f.spares, func() error {
		if err := f.do(ctx, s); err != nil {
			return err
		}
		begun := time.Now()
		_, err := probe.Await(ctx, probe.Patience, "the node as before", func(ctx context.Context) error {
			return s.differs(ctx, was)
		})
		if r.Back = time.Since(begun); err != nil {
			return err
		}
		if limit := f.limit; limit > 0 && r.Back > limit {
			r.Late = fmt.Errorf("the node was as before after %s, want %s", r.Back.Round(time.Millisecond), limit)
		}
		return s.reach(ctx)
	}))
	for _, n := range s.nodes {
		r.wrong(s.fresh(ctx, n.Name))
	}
	r.Took = time.Since(began)
	return r
}
