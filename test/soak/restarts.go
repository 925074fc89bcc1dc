package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/report"
)

const (
	// restartsAtATime is the number of restarts that are counted together, so that a loss can be assigned to them.
	restartsAtATime = 50
	// longControl is the duration of the traffic before the first restart, without any fault.
	longControl = 15 * time.Second
)

// restarts restarts agents under traffic, by SIGTERM and SIGKILL, while pods are added and deleted. No packet may be lost, and no flow
// except those of deleted pods.
func (s *soak) restarts(ctx context.Context) error {
	r := report.Row{Part: "restarts", Name: "agents restarted under traffic"}
	began := time.Now()
	defer func() {
		r.Took = time.Since(began)
		s.report.Add(r)
	}()
	if quiet, err := s.quiet(ctx, &r); !quiet {
		return err
	}
	before, err := s.rest(ctx, false)
	if err != nil {
		return err
	}
	for r.Count < s.opts.restarts && ctx.Err() == nil {
		n := min(restartsAtATime, s.opts.restarts-r.Count)
		chunk := time.Now()
		err := s.load(ctx, &r, losses.All, func() error { return s.restartSome(ctx, &r, n) })
		s.holes(&r)
		if err != nil {
			r.Fail(err)
			break
		}
		s.report.Say("restarts: %d, %d of %d packets lost, %s each", r.Count, r.Lost, r.Sent, (time.Since(chunk) / time.Duration(n)).Round(time.Millisecond))
	}
	s.leaks(ctx, &r, before, false)
	r.Fail(s.siege.honest(ctx))
	r.Note = "back after: from the signal until the agent was ready, a new pod attached and reached, and the old pod deleted"
	return ctx.Err()
}

// quiet runs the traffic without a fault, and reports whether nothing is lost; else the row's verdict is that the machine is too busy.
func (s *soak) quiet(ctx context.Context, r *report.Row) (bool, error) {
	lost, err := s.control(ctx, losses.All, longControl)
	if err != nil {
		return false, err
	}
	if lost > 0 && s.opts.loss {
		r.Verdict = report.Busy
		r.Fail(fmt.Errorf("%d packets were lost in %s without a restart: loss during restarts would prove nothing", lost, longControl))
		return false, nil
	}
	return true, nil
}

// restartSome restarts the agents of both nodes concurrently.
func (s *soak) restartSome(ctx context.Context, r *report.Row, n int) error {
	var mu sync.Mutex
	var group errgroup.Group
	for i, node := range s.cluster.Nodes() {
		times := n / 2
		if i == 0 {
			times = n - times
		}
		group.Go(func() error {
			slowest, err := s.restartOne(ctx, node, times)
			mu.Lock()
			defer mu.Unlock()
			r.Count += times
			r.Back = max(r.Back, slowest)
			return err
		})
	}
	return group.Wait()
}

// restartOne restarts one node's agent the given number of times; each time one pod is added and one deleted.
func (s *soak) restartOne(ctx context.Context, n lab.Node, times int) (slowest time.Duration, err error) {
	watch, err := probe.WatchFlows(ctx, n)
	if err != nil {
		return 0, err
	}
	defer func() { _ = watch.Close() }()
	var gone []*lab.Pod
	pod, err := probe.AddPod(ctx, s.cluster, lab.PodSpec{Node: n.Name, Name: "restart", NoObject: true})
	if err != nil {
		return 0, err
	}
	for i := range times {
		gone = append(gone, pod)
		began := time.Now()
		if pod, err = s.restart(ctx, n, pod, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2]); err != nil {
			return slowest, fmt.Errorf("%s: %w", n.Name, err)
		}
		slowest = max(slowest, time.Since(began))
	}
	err = probe.Detach(ctx, pod)
	return slowest, errors.Join(err, watch.Check(ctx, append(gone, pod)))
}

// restart restarts a node's agent while a pod is deleted and another one is added, which it returns.
func (s *soak) restart(ctx context.Context, n lab.Node, old *lab.Pod, signal syscall.Signal) (*lab.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	var fresh *lab.Pod
	pid, err := probe.Signal(ctx, s.cluster, n.Name+"/weft-agent", signal)
	if err != nil {
		return nil, err
	}
	var group errgroup.Group
	group.Go(func() error { return probe.Detach(ctx, old) })
	group.Go(func() (err error) {
		fresh, err = probe.AddPod(ctx, s.cluster, lab.PodSpec{Node: n.Name, Name: "restart", NoObject: true})
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := s.awaitAgent(ctx, n, pid); err != nil {
		return nil, err
	}
	return fresh, s.cast.reached(ctx, fresh)
}

// awaitAgent waits until a node's agent has another PID than old, and serves.
func (s *soak) awaitAgent(ctx context.Context, n lab.Node, old int) error {
	_, err := probe.Await(ctx, probe.Patience, "the agent of "+n.Name+" serving again", func(ctx context.Context) error {
		now, err := probe.Program(ctx, s.cluster, n.Name+"/weft-agent")
		if err != nil {
			return err
		}
		if now.Pid == old {
			return fmt.Errorf("it still has the process ID %d", old)
		}
		return probe.Ready(ctx, n)
	})
	return err
}

// crowdMax is the capacity of both nodes' subnets beside the permanent pods.
const crowdMax = 2 * 500

// atATime is the number of concurrent requests of a crowd.
const atATime = 32

// crowds adds and deletes crowds of pods, and counts what remains of them.
func (s *soak) crowds(ctx context.Context) error {
	before, err := s.rest(ctx, true)
	if err != nil {
		return err
	}
	for i := range s.opts.rounds {
		r := report.Row{Part: "crowds", Name: fmt.Sprintf("round %d: %d pods added and deleted", i+1, s.opts.crowd)}
		began := time.Now()
		err := s.load(ctx, &r, losses.None, func() error { return s.crowd(ctx, &r) })
		r.Fail(err)
		gone := time.Now()
		s.leaks(ctx, &r, before, true)
		r.Back = time.Since(gone)
		r.Fail(s.siege.honest(ctx))
		s.holes(&r)
		r.Took = time.Since(began)
		memory, err := probe.Memory(ctx, s.cluster, "n1/weft-agent")
		if err != nil {
			return err
		}
		r.Note += fmt.Sprintf("; %d packets of the permanent pods lost; the agent of n1 has %d KiB", r.Others, memory)
		s.report.Add(r)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// crowd is one round.
func (s *soak) crowd(ctx context.Context, r *report.Row) error {
	began := time.Now()
	pods := make([]*lab.Pod, s.opts.crowd)
	var group errgroup.Group
	group.SetLimit(losses.AtATime)
	for i := range pods {
		group.Go(func() (err error) {
			pods[i], err = probe.AddPod(ctx, s.cluster, lab.PodSpec{Node: s.cluster.Node(1 + i%2).Name, Name: fmt.Sprintf("crowd-%d", i), NoObject: true})
			return err
		})
	}
	err := group.Wait()
	added := time.Since(began)
	holders := map[netip.Addr]*lab.Pod{}
	for _, p := range s.cast.pods {
		holders[p.IPs[0]] = p
	}
	for _, p := range pods {
		if p == nil || len(p.IPs) == 0 {
			continue
		}
		if other := holders[p.IPs[0]]; other != nil {
			r.Holes++
			r.Fail(fmt.Errorf("pods %s and %s both have %s", p.Name, other.Name, p.IPs[0]))
		}
		holders[p.IPs[0]] = p
		r.Count++
	}
	if err == nil {
		for _, i := range s.some(len(pods), 20) {
			err = errors.Join(err, s.cast.reached(ctx, pods[i]))
		}
	}
	leaving := time.Now()
	group = errgroup.Group{}
	group.SetLimit(losses.AtATime)
	for _, p := range pods {
		if p != nil {
			group.Go(func() error { return probe.Detach(ctx, p) })
		}
	}
	err = errors.Join(err, group.Wait())
	r.Note = fmt.Sprintf("added in %s, deleted in %s", added.Round(time.Millisecond), time.Since(leaving).Round(time.Millisecond))
	return err
}

// some returns up to n different numbers below the limit.
func (s *soak) some(limit, n int) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.random.Perm(limit)[:min(n, limit)]
}
