package flannel

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
)

// together is the number of requests at the same time.
const together = 16

// agent counts what a node's agent holds.
func (s *scene) agent(ctx context.Context, n lab.Node) (probe.Counts, error) {
	status, err := probe.Program(ctx, s.cluster, n.Name+"/weft-agent")
	if err != nil {
		return nil, err
	}
	descriptors, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(status.Pid), "fd"))
	if err != nil {
		return nil, fmt.Errorf("descriptors of the agent of %s: %w", n.Name, err)
	}
	return probe.Counts{"descriptors of the agent": len(descriptors), "restarts of the agent": status.Restarts}, nil
}

// crowds adds and deletes pods, and counts what remains of them.
func (s *scene) crowds(ctx context.Context, rounds, crowd int, add func(Row)) error {
	before, err := s.census(ctx)
	if err != nil {
		return err
	}
	for i := range rounds {
		r := Row{Name: fmt.Sprintf("round %d: %d pods added and deleted", i+1, crowd)}
		began := time.Now()
		r.wrong(s.crowd(ctx, &r, crowd))
		gone := time.Now()
		if err := losses.Census(s.census).NothingLeft(ctx, before, nil); err != nil {
			r.Leaks++
			r.wrong(err)
		}
		r.wrong(s.reach(ctx))
		r.Back, r.Took = time.Since(gone), time.Since(began)
		add(r)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// crowd adds that many pods on the nodes with Weft, and deletes them.
func (s *scene) crowd(ctx context.Context, r *Row, count int) (err error) {
	crowd := losses.Crowd{
		Pods: count, Together: together,
		Add: func(ctx context.Context, i int) (*lab.Pod, error) {
			return probe.AddPod(ctx, s.cluster, lab.PodSpec{Node: s.nodes[i%len(s.nodes)].Name, Name: "crowd-" + strconv.Itoa(i)})
		},
		Delete:  s.cluster.DelPod,
		Network: func(*lab.Pod) string { return string(plan.NetworkFlannel) },
	}
	r.Count, err = crowd.Run(ctx)
	return err
}
