package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/report"
)

// jump is the clock's jump: longer than every lease and time-out, and within the certificates' validity.
const jump = time.Hour

// clock sets the machine's clock forward, and back again, while everything runs. The wall clock is the whole machine's: network
// namespaces have none of their own, and a statically linked program cannot be given another one. So a flag must enable this part.
func (s *soak) clock(ctx context.Context) error {
	if !s.opts.clock {
		s.report.Add(report.Row{Part: "clock", Name: "the clock jumps", Verdict: report.Refused, Wrong: []string{
			"it sets the clock of the whole machine; allow that with -clock",
		}})
		return nil
	}
	f := fault{name: "the clock jumps an hour forward, and back", spares: losses.All, kills: []string{"n1/weft-agent", "weft-controller"}, do: jumpClock}
	r := report.Row{Part: "clock", Name: f.name, Count: 1}
	began := time.Now()
	if !s.suffer(ctx, &r, &f) && ctx.Err() == nil {
		r.Repairs++
	}
	r.Took = time.Since(began)
	s.report.Add(r)
	return ctx.Err()
}

// setClock sets the wall clock.
func setClock(to time.Time) error {
	tv := unix.NsecToTimeval(to.UnixNano())
	if err := unix.Settimeofday(&tv); err != nil {
		return fmt.Errorf("setting the clock: %w", err)
	}
	return nil
}

// jumpClock sets the clock forward, and back by the time that the monotonic clock has measured meanwhile. After each jump, everything
// must work: pods, a restart, objects, the controller's leader election.
func jumpClock(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	before := time.Now() // includes the monotonic clock's time
	defer func() {
		err = errors.Join(err, setClock(before.Round(0).Add(time.Since(before))), s.afterJump(ctx, n))
	}()
	if err := setClock(before.Round(0).Add(jump)); err != nil {
		return "", err
	}
	return "", s.afterJump(ctx, n)
}

func (s *soak) afterJump(ctx context.Context, n lab.Node) (err error) {
	if err := s.cast.fresh(ctx, n.Name, "jumped"); err != nil {
		return err
	}
	old, err := probe.Signal(ctx, s.cluster, agentOf(n), syscall.SIGKILL)
	if err != nil {
		return err
	}
	if err := s.awaitAgent(ctx, n, old); err != nil {
		return err
	}
	hosts, err := s.guestComes(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, guestGoes(ctx, hosts)) }()
	return s.guestSeen(ctx, n)
}
