package flannel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
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
		_, err := probe.Await(ctx, probe.Patience, "nothing left over", func(ctx context.Context) error {
			after, err := s.census(ctx)
			if err != nil {
				return err
			}
			var errs []error
			for node, counts := range after {
				if err := counts.More(before[node]); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", node, err))
				}
			}
			return errors.Join(errs...)
		})
		if err != nil {
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
func (s *scene) crowd(ctx context.Context, r *Row, count int) error {
	pods := make([]*lab.Pod, count)
	var adding, deleting errgroup.Group
	adding.SetLimit(together)
	for i := range pods {
		adding.Go(func() (err error) {
			pods[i], err = probe.AddPod(ctx, s.cluster, lab.PodSpec{Node: s.nodes[i%len(s.nodes)].Name, Name: "crowd-" + strconv.Itoa(i)})
			return err
		})
	}
	err := adding.Wait()
	addresses := map[netip.Addr]bool{}
	deleting.SetLimit(together)
	for _, p := range pods {
		if p == nil {
			continue
		}
		r.Count++
		for _, ip := range p.IPs {
			if addresses[ip] {
				err = errors.Join(err, fmt.Errorf("two pods have %s", ip))
			}
			addresses[ip] = true
		}
		deleting.Go(func() error { return s.cluster.DelPod(ctx, p) })
	}
	return errors.Join(err, deleting.Wait())
}
