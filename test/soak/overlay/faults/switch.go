package faults

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/overlay/kubelet"
	"weft.dev/weft/test/soak/overlay/program"
)

// switchFaults are the faults of Open vSwitch.
func switchFaults() []Fault {
	kill := func(name string, spares losses.Scope, programs ...string) Fault {
		return Fault{Name: name, Spares: spares, Kills: programs, Do: func(ctx context.Context, s *Scene, _ lab.Node) (string, error) {
			var group errgroup.Group
			for _, p := range programs {
				group.Go(func() error { return probe.Kill(ctx, s.Cluster, p, syscall.SIGKILL) })
			}
			return "", group.Wait()
		}}
	}
	return []Fault{
		kill("ovsdb-server killed", losses.All, "n1/ovsdb-server"),
		kill("ovs-vswitchd killed", losses.Far, "n1/ovs-vswitchd"),
		kill("ovs-vswitchd and the agent killed", losses.Far, "n1/ovs-vswitchd", "n1/weft-agent"),
		kill("Open vSwitch and the agent killed", losses.Far, "n1/ovs-vswitchd", "n1/ovsdb-server", "n1/weft-agent"),
		{Name: "ovs-vswitchd hangs during ADD and DEL", Spares: losses.Far, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			return s.hangDuring(ctx, n, program.Switch(n), 5*time.Second)
		}},
		{Name: "ovsdb-server hangs during ADD and DEL", Spares: losses.All, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			return s.hangDuring(ctx, n, program.Database(n), 5*time.Second)
		}},
		{Name: "ovs-vswitchd hangs while pods are deleted twice", Spares: losses.Far, Do: delTwiceHung},
		{Name: "ovsdb-server killed during ADD and DEL", Spares: losses.All, Kills: []string{"n1/ovsdb-server"}, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			return s.killDuring(ctx, n, program.Database(n))
		}},
		{Name: "ovs-vswitchd killed during ADD and DEL", Spares: losses.Far, Kills: []string{"n1/ovs-vswitchd"}, Do: func(ctx context.Context, s *Scene, n lab.Node) (string, error) {
			return s.killDuring(ctx, n, program.Switch(n))
		}},
	}
}

// hangDuring adds and deletes pods while a program hangs.
func (s *Scene) hangDuring(ctx context.Context, n lab.Node, name string, length time.Duration) (string, error) {
	leaving, err := kubelet.AddSome(ctx, s.Cluster, n, 3)
	if err != nil {
		return "", err
	}
	var requests errgroup.Group
	err = program.Hang(ctx, s.Cluster, name, length, func() error {
		s.comeAndGo(ctx, n, leaving, &requests)
		return nil
	})
	return "", errors.Join(err, requests.Wait())
}

// killDuring adds and deletes pods while a program is killed.
func (s *Scene) killDuring(ctx context.Context, n lab.Node, name string) (string, error) {
	leaving, err := kubelet.AddSome(ctx, s.Cluster, n, 3)
	if err != nil {
		return "", err
	}
	var requests errgroup.Group
	s.comeAndGo(ctx, n, leaving, &requests)
	<-time.After(s.Within(20 * time.Millisecond))
	return "", errors.Join(probe.Kill(ctx, s.Cluster, name, syscall.SIGKILL), requests.Wait())
}

// comeAndGo deletes pods, adds as many, and deletes these.
func (s *Scene) comeAndGo(ctx context.Context, n lab.Node, leaving []*lab.Pod, requests *errgroup.Group) {
	for _, p := range leaving {
		requests.Go(func() error { return probe.Detach(ctx, p) })
		requests.Go(func() error {
			fresh, err := kubelet.Add(ctx, s.Cluster, n, "coming")
			if err != nil {
				return err
			}
			return errors.Join(s.Cast.Reached(ctx, fresh), probe.Detach(ctx, fresh))
		})
	}
}

// delTwiceHung deletes pods twice while the switch hangs. The runtime gets an answer to each DEL before its time limit.
func delTwiceHung(ctx context.Context, s *Scene, n lab.Node) (string, error) {
	pods, err := kubelet.AddSome(ctx, s.Cluster, n, 3)
	if err != nil {
		return "", err
	}
	var slowest time.Duration
	var repeated []error
	err = program.Hang(ctx, s.Cluster, program.Switch(n), 0, func() error {
		var errs []error
		for range 2 {
			for _, p := range pods {
				began := time.Now()
				err := kubelet.DeleteOnce(ctx, p)
				slowest = max(slowest, time.Since(began))
				if failure, known := probe.AsFailure(err); err != nil && (!known || failure.Code != probe.CodeTryAgain) {
					errs = append(errs, err)
				} else if err != nil {
					repeated = append(repeated, err)
				}
			}
		}
		return errors.Join(errs...)
	})
	for _, p := range pods {
		err = errors.Join(err, probe.Detach(ctx, p))
	}
	return fmt.Sprintf("slowest answer after %s; %d of 6 told to try again", slowest.Round(time.Millisecond), len(repeated)), err
}
