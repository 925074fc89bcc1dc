package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/overlay"
	"weft.dev/weft/test/soak/quiet"
	"weft.dev/weft/test/soak/report"
)

// soak is a run.
type soak struct {
	opts   options
	report *report.Report
	stage  *overlay.Stage // of the parts without labs of their own
}

// part is a part of a run that can be selected.
type part struct {
	name string
	// loss says that its result is worthless on a busy machine.
	loss bool
	// own says that it uses labs of its own.
	own bool
	run func(ctx context.Context, s *soak) error
}

// parts returns all parts in their order: those that count packets first, while the machine is quiet.
func parts() []part {
	onOverlay := func(run func(context.Context, *overlay.Stage) error) func(context.Context, *soak) error {
		return func(ctx context.Context, s *soak) error { return run(ctx, s.stage) }
	}
	return []part{
		{name: "restarts", loss: true, run: onOverlay(overlay.Restarts)},
		{name: "policies", loss: true, run: onOverlay(overlay.Policies)},
		{name: "faults", loss: true, run: onOverlay(overlay.Faults)},
		{name: "kills", run: onOverlay(overlay.Kills)},
		{name: "crowds", run: onOverlay(overlay.Crowds)},
		{name: "clock", run: onOverlay(overlay.Clock)},
		{name: "neutron", loss: true, own: true, run: onNeutron},
		{name: "vpc", loss: true, own: true, run: onVPCs},
		{name: "flannel", loss: true, own: true, run: onFlannel},
	}
}

// selected returns the parts whose names match, in their order.
func selected(names *regexp.Regexp) []part {
	return slices.DeleteFunc(parts(), func(p part) bool { return !names.MatchString(p.name) })
}

func partNames() []string {
	var names []string
	for _, p := range parts() {
		names = append(names, p.name)
	}
	return names
}

func newSoak(opts options, out io.Writer) *soak {
	to := report.New(opts.seed, out)
	return &soak{opts: opts, report: to, stage: overlay.New(overlay.Options{
		Lab: opts.lab, Bin: opts.bin, Faults: opts.faults, Seed: opts.seed, Restarts: opts.restarts, Kills: opts.kills,
		Rounds: opts.rounds, Crowd: opts.crowd, Rate: opts.rate, Clock: opts.clock, Loss: opts.loss,
	}, to)}
}

// run runs the selected parts in one lab. An error means that the run cannot continue; findings of parts are in the report.
func (s *soak) run(ctx context.Context) (err error) {
	chosen := selected(s.opts.parts)
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
		err = errors.Join(err, s.stage.Lower(down), before.Left())
	}()
	if slices.ContainsFunc(chosen, func(p part) bool { return !p.own }) {
		if err := s.stage.Raise(ctx); err != nil {
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
			if err := s.stage.Lower(ctx); err != nil {
				return err
			}
		}
		if err := p.run(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return ctx.Err()
}

// full reports whether the run has its full size.
func (o *options) full() bool {
	return o.restarts >= 500 && o.kills >= 1000 && o.rounds >= 5 && o.crowd >= 1000 && o.faults.String() == "" && o.clock && o.loss
}
