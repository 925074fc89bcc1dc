package overlay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/overlay/program"
	"weft.dev/weft/test/soak/report"
)

// restartsAtATime is the number of restarts that are counted together, so that a loss can be assigned to them.
const restartsAtATime = 50

// restarts is a run of the part Restarts.
type restarts struct {
	*Stage
	row report.Row
}

// Restarts restarts agents under traffic, by SIGTERM and SIGKILL, while pods are added and deleted. No packet may be lost, and no flow
// except those of deleted pods.
func Restarts(ctx context.Context, s *Stage) error {
	r := &restarts{Stage: s, row: report.Row{Part: "restarts", Name: "agents restarted under traffic"}}
	began := time.Now()
	defer func() {
		r.row.Took = time.Since(began)
		s.report.Add(r.row)
	}()
	if quiet, err := s.packets.quiet(ctx, &r.row); !quiet {
		return err
	}
	before, err := s.ledger.rest(ctx, false)
	if err != nil {
		return err
	}
	for r.row.Count < s.opts.Restarts && ctx.Err() == nil {
		n := min(restartsAtATime, s.opts.Restarts-r.row.Count)
		chunk := time.Now()
		err := s.packets.load(ctx, &r.row, losses.All, func() error { return r.some(ctx, n) })
		s.holes(&r.row)
		if err != nil {
			r.row.Fail(err)
			break
		}
		s.report.Say("restarts: %d, %d of %d packets lost, %s each", r.row.Count, r.row.Lost, r.row.Sent, (time.Since(chunk) / time.Duration(n)).Round(time.Millisecond))
	}
	s.ledger.leaks(ctx, &r.row, before, false)
	r.row.Fail(s.siege.Honest(ctx))
	r.row.Note = "back after: from the signal until the agent was ready, a new pod attached and reached, and the old pod deleted"
	return ctx.Err()
}

// some restarts the agents of both nodes concurrently.
func (r *restarts) some(ctx context.Context, n int) error {
	var mu sync.Mutex
	var group errgroup.Group
	for i, node := range r.cluster.Nodes() {
		times := n / 2
		if i == 0 {
			times = n - times
		}
		group.Go(func() error {
			slowest, err := r.one(ctx, node, times)
			mu.Lock()
			defer mu.Unlock()
			r.row.Count += times
			r.row.Back = max(r.row.Back, slowest)
			return err
		})
	}
	return group.Wait()
}

// one restarts one node's agent the given number of times; each time one pod is added and one deleted.
func (r *restarts) one(ctx context.Context, n lab.Node, times int) (slowest time.Duration, err error) {
	watch, err := probe.WatchFlows(ctx, n)
	if err != nil {
		return 0, err
	}
	defer func() { _ = watch.Close() }()
	var gone []*lab.Pod
	pod, err := probe.AddPod(ctx, r.cluster, lab.PodSpec{Node: n.Name, Name: "restart", NoObject: true})
	if err != nil {
		return 0, err
	}
	for i := range times {
		gone = append(gone, pod)
		began := time.Now()
		if pod, err = r.restart(ctx, n, pod, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2]); err != nil {
			return slowest, fmt.Errorf("%s: %w", n.Name, err)
		}
		slowest = max(slowest, time.Since(began))
	}
	err = probe.Detach(ctx, pod)
	return slowest, errors.Join(err, watch.Check(ctx, append(gone, pod)))
}

// restart restarts a node's agent while a pod is deleted and another one is added, which it returns.
func (r *restarts) restart(ctx context.Context, n lab.Node, old *lab.Pod, signal syscall.Signal) (*lab.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, probe.Patience)
	defer cancel()
	var fresh *lab.Pod
	pid, err := probe.Signal(ctx, r.cluster, program.Agent(n), signal)
	if err != nil {
		return nil, err
	}
	var group errgroup.Group
	group.Go(func() error { return probe.Detach(ctx, old) })
	group.Go(func() (err error) {
		fresh, err = probe.AddPod(ctx, r.cluster, lab.PodSpec{Node: n.Name, Name: "restart", NoObject: true})
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := program.AwaitAgent(ctx, r.cluster, n, pid); err != nil {
		return nil, err
	}
	return fresh, r.cast.Reached(ctx, fresh)
}
