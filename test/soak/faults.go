package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/report"
)

// fault is a fault, on the first node if it concerns a node. Weft must recover from every fault by itself.
type fault struct {
	name string
	// spares are the pairs of pods that must not lose a packet.
	spares losses.Scope
	// opens says that the fault itself opens the network: packets received until it is undone are not a hole of Weft's.
	opens bool
	// kills are the programs that the fault ends; others must not end.
	kills []string
	// do causes the fault, and ends it if such a fault ends by itself: a disk that has space again, an API server that is back. It returns
	// what it observed, and an error if Weft did not behave as promised during the fault.
	do func(ctx context.Context, s *soak, n lab.Node) (note string, err error)
}

// kinds returns all faults, in their order.
func kinds() []fault {
	return slices.Concat(requestFaults(), agentFaults(), byHand(), switchFaults(), apiFaults(), clusterFaults(), diskFaults())
}

// faults causes each fault, under traffic and siege, and waits until everything is as before.
func (s *soak) faults(ctx context.Context) error {
	lost, err := s.control(ctx, losses.All, controlTime)
	if err != nil {
		return err
	}
	if lost > 0 && s.opts.loss {
		s.report.Add(report.Row{Part: "faults", Name: "control", Verdict: report.Busy, Wrong: []string{
			fmt.Sprintf("%d packets were lost in %s without a fault: loss during faults would prove nothing", lost, controlTime),
		}})
		return nil
	}
	for _, f := range kinds() {
		if !s.opts.faults.MatchString(f.name) {
			continue
		}
		r := report.Row{Part: "faults", Name: f.name, Count: 1}
		began := time.Now()
		back := s.suffer(ctx, &r, &f)
		r.Took = time.Since(began)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !back {
			if err := s.repair(ctx, &r); err != nil {
				return err
			}
		}
		s.report.Add(r)
	}
	return nil
}

// before is the state before a fault.
type before struct {
	states   map[string]probe.State
	census   map[string]probe.Counts
	programs map[string]process.Status
	logged   map[string]int
}

func (s *soak) before(ctx context.Context) (b before, err error) {
	b = before{states: map[string]probe.State{}, programs: map[string]process.Status{}, logged: map[string]int{}}
	for _, n := range s.cluster.Nodes() {
		if b.states[n.Name], err = probe.SettledState(ctx, n); err != nil {
			return b, err
		}
		log, err := probe.Log(ctx, s.cluster, n.Name+"/weft-agent")
		if err != nil {
			return b, err
		}
		b.logged[n.Name] = len(log)
	}
	if b.census, err = s.census(ctx, false); err != nil {
		return b, err
	}
	programs, err := s.cluster.Programs(ctx)
	for _, p := range programs {
		b.programs[p.Name] = p
	}
	return b, err
}

// suffer causes one fault, and reports whether everything recovered.
func (s *soak) suffer(ctx context.Context, r *report.Row, f *fault) (back bool) {
	was, err := s.before(ctx)
	if err != nil {
		r.Fail(fmt.Errorf("before the fault: %w", err))
		return false
	}
	s.holes(r) // from before the fault; normally none
	err = s.load(ctx, r, f.spares, func() error {
		begun := time.Now()
		note, err := f.do(ctx, s, s.cluster.Node(1))
		r.Note = note
		r.Fail(err)
		if err := s.recovered(ctx, &was); err != nil {
			return err
		}
		r.Back = time.Since(begun)
		if f.opens {
			if err := restored(ctx, s, r); err != nil {
				return err
			}
		}
		for _, n := range s.cluster.Nodes() {
			if err := s.cast.fresh(ctx, n.Name, "after"); err != nil {
				return err
			}
		}
		return s.siege.honest(ctx)
	})
	r.Fail(err)
	back = err == nil
	s.holes(r)
	if back {
		s.leaks(ctx, r, was.census, false)
		r.Fail(s.ended(ctx, f, &was))
	}
	return back
}

// appctlTime is the time limit of ovs-appctl in seconds. A round of the datapath takes half a second at most.
const appctlTime = "30"

// restored takes what was received while a fault had opened the network.
func restored(ctx context.Context, s *soak, r *report.Row) error {
	// Open vSwitch adapts the flows of the datapath after it has answered a change of its tables. Until then packets may still take the path
	// that the fault opened. One round is not enough: it may have begun before, and passed the flow in question already.
	for _, n := range s.cluster.Nodes() {
		for range 2 {
			if _, err := probe.Run(ctx, n.Enter("ovs-appctl", "-T", appctlTime, "-t", "ovs-vswitchd", "revalidator/wait")); err != nil {
				return err
			}
		}
	}
	if received := s.siege.received(); len(received) > 0 {
		r.Note += fmt.Sprintf("; %d packets received until the state was restored", len(received))
	}
	return nil
}

// recoveryTime is the time limit for recovery from a fault. It is long: the loops retry after up to 10 s.
const recoveryTime = time.Minute

// recovered waits until both nodes have their former state, serve, and all required paths work.
func (s *soak) recovered(ctx context.Context, was *before) error {
	for _, n := range s.cluster.Nodes() {
		_, err := probe.Await(ctx, recoveryTime, n.Name+" as it was", func(ctx context.Context) error {
			return probe.StateOf(ctx, n).Differs(was.states[n.Name])
		})
		if err != nil {
			return err
		}
		if _, err := probe.Await(ctx, recoveryTime, n.Name+" ready", func(ctx context.Context) error { return probe.Ready(ctx, n) }); err != nil {
			return err
		}
	}
	return s.cast.reach(ctx)
}

// ended returns an error if a program ended that the fault does not end, or an agent panicked.
func (s *soak) ended(ctx context.Context, f *fault, was *before) error {
	programs, err := s.cluster.Programs(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range programs {
		if p.Restarts > was.programs[p.Name].Restarts && !slices.Contains(f.kills, p.Name) {
			errs = append(errs, fmt.Errorf("%s ended (%s), although the fault does not end it", p.Name, p.Last))
		}
		if p.Crash != was.programs[p.Name].Crash {
			errs = append(errs, fmt.Errorf("%s crashed: %s", p.Name, p.Crash))
		}
	}
	for _, n := range s.cluster.Nodes() {
		log, err := probe.Log(ctx, s.cluster, n.Name+"/weft-agent")
		if err != nil {
			return err
		}
		for line := range strings.Lines(log[min(was.logged[n.Name], len(log)):]) {
			if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
				errs = append(errs, fmt.Errorf("the agent of %s: %s", n.Name, line))
			}
		}
	}
	return errors.Join(errs...)
}

// agentOf and the functions below return the names of programs.
func agentOf(n lab.Node) string    { return n.Name + "/weft-agent" }
func switchOf(n lab.Node) string   { return n.Name + "/ovs-vswitchd" }
func databaseOf(n lab.Node) string { return n.Name + "/ovsdb-server" }
