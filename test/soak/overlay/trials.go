package overlay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/overlay/faults"
	"weft.dev/weft/test/soak/overlay/program"
	"weft.dev/weft/test/soak/report"
)

// Faults causes each fault, under traffic and siege, and waits until everything is as before.
func Faults(ctx context.Context, s *Stage) error {
	lost, err := s.packets.control(ctx, losses.All, controlTime)
	if err != nil {
		return err
	}
	if lost > 0 && s.opts.Loss {
		s.report.Add(report.Row{Part: "faults", Name: "control", Verdict: report.Busy, Wrong: []string{
			fmt.Sprintf("%d packets were lost in %s without a fault: loss during faults would prove nothing", lost, controlTime),
		}})
		return nil
	}
	for _, f := range faults.All() {
		if !s.opts.Faults.MatchString(f.Name) {
			continue
		}
		r := report.Row{Part: "faults", Name: f.Name, Count: 1}
		began := time.Now()
		back := s.suffer(ctx, &r, f)
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

// trial is a fault under way.
type trial struct {
	*Stage
	fault faults.Fault
	row   *report.Row
	was   before
}

// suffer causes one fault, and reports whether everything recovered.
func (s *Stage) suffer(ctx context.Context, r *report.Row, f faults.Fault) (back bool) {
	was, err := s.ledger.before(ctx)
	if err != nil {
		r.Fail(fmt.Errorf("before the fault: %w", err))
		return false
	}
	s.holes(r) // from before the fault; normally none
	t := &trial{Stage: s, fault: f, row: r, was: was}
	err = s.packets.load(ctx, r, f.Spares, func() error { return t.run(ctx) })
	r.Fail(err)
	back = err == nil
	s.holes(r)
	if back {
		s.ledger.leaks(ctx, r, was.census, false)
		r.Fail(s.ledger.ended(ctx, &was, f.Kills))
	}
	return back
}

// run causes the fault, and waits until everything is as before.
func (t *trial) run(ctx context.Context) error {
	begun := time.Now()
	scene := &faults.Scene{Cluster: t.cluster, Cast: t.cast, Within: t.chance.within}
	note, err := t.fault.Do(ctx, scene, t.cluster.Node(1))
	t.row.Note = note
	t.row.Fail(err)
	if err := t.recovered(ctx); err != nil {
		return err
	}
	t.row.Back = time.Since(begun)
	if t.fault.Opens {
		if err := t.restored(ctx); err != nil {
			return err
		}
	}
	for _, n := range t.cluster.Nodes() {
		if err := t.cast.Fresh(ctx, n.Name, "after"); err != nil {
			return err
		}
	}
	return t.siege.Honest(ctx)
}

// appctlTime is the time limit of ovs-appctl in seconds. A round of the datapath takes half a second at most.
const appctlTime = "30"

// restored takes what was received while a fault had opened the network.
func (t *trial) restored(ctx context.Context) error {
	// Open vSwitch adapts the flows of the datapath after it has answered a change of its tables. Until then packets may still take the path
	// that the fault opened. One round is not enough: it may have begun before, and passed the flow in question already.
	for _, n := range t.cluster.Nodes() {
		for range 2 {
			if _, err := probe.Run(ctx, n.Enter("ovs-appctl", "-T", appctlTime, "-t", "ovs-vswitchd", "revalidator/wait")); err != nil {
				return err
			}
		}
	}
	// The node's kernel may still have answers to what it received: they wait until their neighbour is resolved, or found absent.
	for _, n := range t.cluster.Nodes() {
		_, err := probe.Await(ctx, program.RecoveryTime, n.Name+" without unresolved neighbours", func(ctx context.Context) error {
			waiting, err := probe.Run(ctx, n.Enter("ip", "neigh", "show", "nud", "incomplete"))
			if err == nil && waiting != "" {
				err = errors.New(waiting)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	// A sniffer may not have read yet what it received before: what it reads in order ends with the honest packets.
	if err := t.siege.Honest(ctx); err != nil {
		return err
	}
	if received := t.siege.Received(); len(received) > 0 {
		t.row.Note += fmt.Sprintf("; %d packets received until the state was restored", len(received))
	}
	return nil
}

// recovered waits until both nodes have their former state, serve, and all required paths work.
func (t *trial) recovered(ctx context.Context) error {
	for _, n := range t.cluster.Nodes() {
		_, err := probe.Await(ctx, program.RecoveryTime, n.Name+" as it was", func(ctx context.Context) error {
			return probe.StateOf(ctx, n).Differs(t.was.states[n.Name])
		})
		if err != nil {
			return err
		}
		if _, err := probe.Await(ctx, program.RecoveryTime, n.Name+" ready", func(ctx context.Context) error { return probe.Ready(ctx, n) }); err != nil {
			return err
		}
	}
	return t.cast.Reach(ctx)
}
