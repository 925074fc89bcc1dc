package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/quiet"
	"weft.dev/weft/test/soak/report"
)

// soak is a run.
type soak struct {
	opts    options
	report  *report.Report
	cluster *lab.Cluster
	cast    *cast
	siege   *siege

	// mu guards random.
	mu     sync.Mutex
	random *rand.Rand
}

// part is a part of a run that can be selected.
type part struct {
	name string
	// loss says that its result is worthless on a busy machine.
	loss bool
	// own says that it uses labs of its own.
	own bool
	run func(*soak, context.Context) error
}

// parts returns all parts in their order: those that count packets first, while the machine is quiet.
func parts() []part {
	return []part{
		{name: "restarts", loss: true, run: (*soak).restarts},
		{name: "policies", loss: true, run: (*soak).policies},
		{name: "faults", loss: true, run: (*soak).faults},
		{name: "kills", run: (*soak).kills},
		{name: "crowds", run: (*soak).crowds},
		{name: "clock", run: (*soak).clock},
		{name: "neutron", loss: true, own: true, run: onNeutron},
		{name: "vpc", loss: true, own: true, run: onVPCs},
		{name: "flannel", loss: true, own: true, run: onFlannel},
	}
}

func partNames() []string {
	var names []string
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

func newSoak(opts options, out io.Writer) *soak {
	return &soak{
		opts: opts, random: rand.New(rand.NewPCG(opts.seed, opts.seed>>32)), report: report.New(opts.seed, out),
	}
}

// within returns a random time less than the limit.
func (s *soak) within(limit time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.random.Int64N(int64(limit)))
}

// run runs the selected parts in one lab. An error means that the run cannot continue; findings of parts are in the report.
func (s *soak) run(ctx context.Context) (err error) {
	chosen := slices.DeleteFunc(parts(), func(p part) bool { return !s.opts.parts.MatchString(p.name) })
	if len(chosen) == 0 {
		return fmt.Errorf("no part matches %s: there are %s", s.opts.parts, strings.Join(partNames(), ", "))
	}
	load := quiet.Load
	if s.opts.loss && slices.ContainsFunc(chosen, func(p part) bool { return p.loss }) {
		load = func() (float64, error) { return quiet.Await(ctx, s.report.Say) }
	}
	if s.report.Load, err = load(); err != nil {
		return err
	}
	s.report.Whole = len(chosen) == len(parts()) && s.opts.full()
	s.report.Say("seed %d, load %.2f on each of %d processors", s.opts.seed, s.report.Load, s.report.Processors)
	before, err := probe.TakeInventory(s.opts.lab)
	if err != nil {
		return err
	}
	defer func() {
		down, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		err = errors.Join(err, s.lower(down), s.leftovers(before))
	}()
	if slices.ContainsFunc(chosen, func(p part) bool { return !p.own }) {
		if err := s.raise(ctx); err != nil {
			return err
		}
	}
	for _, p := range chosen {
		if p.loss && s.opts.loss && s.report.Load > quiet.MaxLoad {
			s.report.Add(report.Row{Part: p.name, Name: "all of it", Verdict: report.Refused, Wrong: []string{fmt.Sprintf(
				"the load was %.2f on each processor before anything began: it counts packets, and needs a quiet machine (or -loss=false, which proves less)", s.report.Load)}})
			continue
		}
		s.report.Say("%s", p.name)
		if p.own { // parts with labs of their own come last
			if err := s.lower(ctx); err != nil {
				return err
			}
		}
		if err := p.run(s, ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return ctx.Err()
}

// full reports whether the run has its full size.
func (o *options) full() bool {
	return o.restarts >= 500 && o.kills >= 1000 && o.rounds >= 5 && o.crowd >= 1000 && o.faults.String() == "" && o.clock && o.loss
}

// raise starts the lab, the permanent pods and the siege.
func (s *soak) raise(ctx context.Context) error {
	bin, err := filepath.Abs(s.opts.bin)
	if err != nil {
		return err
	}
	if err := lab.Down(ctx, s.opts.lab, nil); err != nil { // of a killed run
		return err
	}
	began := time.Now()
	if s.cluster, err = lab.Up(ctx, lab.Config{Name: s.opts.lab, Nodes: 2, Runtime: plan.RuntimeCNI, WeftBin: bin}, nil); err != nil {
		return err
	}
	s.report.Say("lab up in %s", time.Since(began).Round(10*time.Millisecond))
	if s.cast, err = newCast(ctx, s.cluster); err != nil {
		return err
	}
	if s.siege, err = newSiege(ctx, s.cast); err != nil {
		return err
	}
	return s.siege.honest(ctx)
}

// lower stops everything.
func (s *soak) lower(ctx context.Context) error {
	var errs []error
	if s.siege != nil {
		errs = append(errs, s.siege.end())
		s.report.Hostile += int(s.siege.sent.Load())
	}
	if s.cast != nil {
		gone, cancel := context.WithTimeout(ctx, 10*time.Second)
		_ = s.cast.close(gone) // the lab is removed with them
		cancel()
	}
	s.siege, s.cast = nil, nil
	return errors.Join(append(errs, lab.Down(ctx, s.opts.lab, nil))...)
}

// repair rebuilds the lab after Weft did not recover by itself.
func (s *soak) repair(ctx context.Context, r *report.Row) error {
	r.Repairs++
	s.report.Say("%s did not come back by itself: making the lab anew", r.Name)
	if err := s.lower(ctx); err != nil {
		return err
	}
	return s.raise(ctx)
}

// leftovers returns an error that lists what the lab has left on the machine.
func (s *soak) leftovers(before probe.Inventory) error {
	after, err := probe.TakeInventory(s.opts.lab)
	if err != nil {
		return err
	}
	return before.LeftBy(after)
}

// holes adds the sniffers' findings to a row.
func (s *soak) holes(r *report.Row) { r.Breached(s.siege.received()) }

// census counts everything on each node that could leak, except what a restarted program has newly made.
func (s *soak) census(ctx context.Context, programs bool) (map[string]probe.Counts, error) {
	census := map[string]probe.Counts{}
	for _, n := range s.cluster.Nodes() {
		have, err := probe.Count(ctx, s.cluster, n)
		if err != nil {
			return nil, err
		}
		for name := range have {
			if !programs && (strings.HasPrefix(name, "restarts of") || strings.HasPrefix(name, "descriptors of") || name == "goroutines") {
				delete(have, name)
			}
		}
		census[n.Name] = have
	}
	return census, nil
}

// rest is census, once nothing is being made or removed any more.
func (s *soak) rest(ctx context.Context, programs bool) (map[string]probe.Counts, error) {
	for _, n := range s.cluster.Nodes() {
		if _, err := probe.SettledState(ctx, n); err != nil {
			return nil, err
		}
	}
	return s.census(ctx, programs)
}

// leaks waits until nothing new remains, and adds the rest to the row.
func (s *soak) leaks(ctx context.Context, r *report.Row, before map[string]probe.Counts, programs bool) {
	census := losses.Census(func(ctx context.Context) (map[string]probe.Counts, error) { return s.census(ctx, programs) })
	err := census.NothingLeft(ctx, before, nil)
	if err != nil {
		r.Leaks++
		r.Fail(err)
	}
}
