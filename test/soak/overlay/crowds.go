package overlay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/report"
)

// CrowdMax is the capacity of both nodes' subnets beside the permanent pods.
const CrowdMax = 2 * 500

// Crowds adds and deletes crowds of pods, and counts what remains of them.
func Crowds(ctx context.Context, s *Stage) error {
	before, err := s.ledger.rest(ctx, true)
	if err != nil {
		return err
	}
	for i := range s.opts.Rounds {
		r := report.Row{Part: "crowds", Name: fmt.Sprintf("round %d: %d pods added and deleted", i+1, s.opts.Crowd)}
		began := time.Now()
		err := s.packets.load(ctx, &r, losses.None, func() error { return s.crowd(ctx, &r) })
		r.Fail(err)
		gone := time.Now()
		s.ledger.leaks(ctx, &r, before, true)
		r.Back = time.Since(gone)
		r.Fail(s.siege.Honest(ctx))
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
func (s *Stage) crowd(ctx context.Context, r *report.Row) error {
	began := time.Now()
	pods := make([]*lab.Pod, s.opts.Crowd)
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
	holders := s.cast.Holders()
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
		for _, i := range s.chance.some(len(pods), 20) {
			err = errors.Join(err, s.cast.Reached(ctx, pods[i]))
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
