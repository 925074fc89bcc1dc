// Package overlay has the soak's parts on the overlay network, which share a lab: agents that restart and are killed under traffic, policies
// that change meanwhile, faults of every kind, crowds of pods.
package overlay

import (
	"context"
	"errors"
	"math/rand/v2"
	"regexp"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/soak/overlay/cast"
	"weft.dev/weft/test/soak/overlay/siege"
	"weft.dev/weft/test/soak/report"
)

// Options of a run.
type Options struct {
	// Lab is the name of the lab, Bin the folder with Weft's programs.
	Lab, Bin string
	// Faults selects the faults of the part Faults, by their names.
	Faults *regexp.Regexp
	// Seed is the seed of all random choices.
	Seed uint64
	// Restarts and Kills are the numbers of restarts and kills of agents.
	Restarts, Kills int
	// Rounds is the number of rounds of pods, Crowd the number of pods of a round: CrowdMax at most.
	Rounds, Crowd int
	// Rate is the number of datagrams a second of each pair of pods.
	Rate int
	// Clock allows Clock to set the clock of the whole machine; Loss says that lost packets are judged.
	Clock, Loss bool
}

// Stage is the lab of all parts, with its permanent pods and the siege.
type Stage struct {
	opts    Options
	report  *report.Report
	chance  *chance
	cluster *lab.Cluster
	cast    *cast.Cast
	siege   *siege.Siege
	packets packets
	ledger  ledger
}

// New returns a stage whose lab is down.
func New(opts Options, to *report.Report) *Stage {
	return &Stage{opts: opts, report: to, chance: &chance{random: rand.New(rand.NewPCG(opts.Seed, opts.Seed>>32))}}
}

// Raise starts the lab, the permanent pods and the siege.
func (s *Stage) Raise(ctx context.Context) error {
	err := lab.Down(ctx, s.opts.Lab, nil) // of a killed run
	if err != nil {
		return err
	}
	began := time.Now()
	if s.cluster, err = lab.Up(ctx, lab.Config{Name: s.opts.Lab, Nodes: 2, Runtime: plan.RuntimeCNI, WeftBin: s.opts.Bin}, nil); err != nil {
		return err
	}
	s.report.Say("lab up in %s", time.Since(began).Round(10*time.Millisecond))
	if s.cast, err = cast.New(ctx, s.cluster); err != nil {
		return err
	}
	s.packets = packets{pairs: s.cast.Pairs, rate: s.opts.Rate, judged: s.opts.Loss}
	s.ledger = ledger{cluster: s.cluster}
	if s.siege, err = siege.New(ctx, s.cast); err != nil {
		return err
	}
	return s.siege.Honest(ctx)
}

// Lower stops everything.
func (s *Stage) Lower(ctx context.Context) error {
	var errs []error
	if s.siege != nil {
		errs = append(errs, s.siege.End())
		s.report.Hostile += s.siege.Sent()
	}
	if s.cast != nil {
		gone, cancel := context.WithTimeout(ctx, 10*time.Second)
		_ = s.cast.Close(gone) // the lab is removed with them
		cancel()
	}
	s.siege, s.cast = nil, nil
	return errors.Join(append(errs, lab.Down(ctx, s.opts.Lab, nil))...)
}

// repair rebuilds the lab after Weft did not recover by itself.
func (s *Stage) repair(ctx context.Context, r *report.Row) error {
	r.Repairs++
	s.report.Say("%s did not come back by itself: making the lab anew", r.Name)
	if err := s.Lower(ctx); err != nil {
		return err
	}
	return s.Raise(ctx)
}

// holes adds the sniffers' findings to a row.
func (s *Stage) holes(r *report.Row) { r.Breached(s.siege.Received()) }
