package faults

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
	"weft.dev/weft/test/soak/overlay/program"
)

// jump is the clock's jump: longer than every lease and time-out, and within the certificates' validity.
const jump = time.Hour

// ClockJump is the fault of the part that may set the machine's clock.
func ClockJump() Fault {
	return Fault{
		Name: "the clock jumps an hour forward, and back", Spares: losses.All, Kills: []string{"n1/weft-agent", "weft-controller"}, Do: jumpClock,
	}
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
func jumpClock(ctx context.Context, s *Scene, n lab.Node) (note string, err error) {
	before := time.Now() // includes the monotonic clock's time
	defer func() {
		err = errors.Join(err, setClock(before.Round(0).Add(time.Since(before))), s.afterJump(ctx, n))
	}()
	if err := setClock(before.Round(0).Add(jump)); err != nil {
		return "", err
	}
	return "", s.afterJump(ctx, n)
}

func (s *Scene) afterJump(ctx context.Context, n lab.Node) (err error) {
	if err := s.Cast.Fresh(ctx, n.Name, "jumped"); err != nil {
		return err
	}
	old, err := probe.Signal(ctx, s.Cluster, program.Agent(n), syscall.SIGKILL)
	if err != nil {
		return err
	}
	if err := program.AwaitAgent(ctx, s.Cluster, n, old); err != nil {
		return err
	}
	hosts, err := s.guestComes(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, guestGoes(ctx, hosts)) }()
	return s.guestSeen(ctx, n)
}
