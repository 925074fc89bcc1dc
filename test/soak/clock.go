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
)

// jump is how far the clock jumps: past every lease and time-out there is, and within the certificates' time.
const jump = time.Hour

// clock sets the machine's clock forward, and back again, while everything runs. The wall clock is the whole machine's: no
// namespace has one of its own, and a program that is linked statically takes no other. So it is asked for by a flag.
func (s *soak) clock(ctx context.Context) error {
	if !s.opts.clock {
		s.add(row{Part: "clock", Name: "the clock jumps", Verdict: refused, Wrong: []string{
			"it sets the clock for everybody on this machine: -clock lets it",
		}})
		return nil
	}
	f := fault{name: "the clock jumps an hour forward, and back", spares: all, kills: []string{"n1/weft-agent", "weft-controller"}, do: jumpClock}
	r := row{Part: "clock", Name: f.name, Count: 1}
	began := time.Now()
	if !s.suffer(ctx, &r, &f) && ctx.Err() == nil {
		r.Repairs++
	}
	r.Took = time.Since(began)
	s.add(r)
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

// jumpClock sets the clock forward, and back by what the monotonic clock says has passed meanwhile. After either jump the
// network does everything: pods, a restart, objects, a controller that leads.
func jumpClock(ctx context.Context, s *soak, n lab.Node) (note string, err error) {
	before := time.Now() // has the monotonic clock's time too
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
