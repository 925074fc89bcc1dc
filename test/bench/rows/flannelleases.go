package rows

import (
	"context"
	"errors"
	"time"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
)

const (
	manyLeases, fewLeases = 5_000, 50
	// leaseEvents is the number of leases that are added and removed in a round, one after the other.
	leaseEvents = 20
	// resyncTime includes one full comparison, which runs every 10 s.
	resyncTime = 11 * time.Second
)

// Metrics of leases.
const (
	leasesListed = "leases-listed"
	leaseCame    = "lease-came"
	leaseResync  = "lease-resync"
)

// flannelLeases compares a start with many leases against iproute2's batches with the same entries.
func flannelLeases() Group {
	return Group{
		Title: "flannel: from the start of weft flanneld until 5,000 leases are in effect, against ip -batch and bridge -batch with their 15,000 entries",
		Rows: []measure.Row{
			{Name: "flannel/leases-5000", Metric: leasesListed, Unit: "ms", Target: measure.RatioAtMost(1.3)},
		},
		run: func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
			ours, peer, closeAll, err := twoNodes(ctx, b, manyLeases, manyLeases)
			defer func() { err = errors.Join(err, closeAll()) }()
			if err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, func(ctx context.Context) (measure.Figures, error) {
				took, err := ours.Start(ctx)
				ours.Stop()
				return measure.Figures{leasesListed: milliseconds(took)}, errors.Join(err, ours.Clear(ctx))
			}, func(ctx context.Context) (measure.Figures, error) {
				took, err := peer.Batch(ctx)
				return measure.Figures{leasesListed: milliseconds(took)}, errors.Join(err, peer.Clear(ctx))
			})
		},
	}
}

// flannelLeaseEvent measures one more lease beside many, and beside few.
func flannelLeaseEvent() Group {
	return Group{
		Title: "flannel: from etcd's answer to one more lease until it is in effect, with 5,000 present, against 50",
		Rows: []measure.Row{
			{Name: "flannel/lease-event", Metric: leaseCame, Unit: "ms, p50", Target: measure.AtMost(5), Alone: true},
			{Name: "flannel/lease-event/growth", Metric: leaseCame, Unit: "ms, p50", Target: measure.RatioAtMost(1.5)},
		},
		run: func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
			many, few, closeAll, err := twoNodes(ctx, b, manyLeases, fewLeases)
			defer func() { err = errors.Join(err, closeAll()) }()
			if err != nil {
				return nil, err
			}
			for _, node := range []*stage.Leases{many, few} {
				if _, err := node.Start(ctx); err != nil {
					return nil, err
				}
			}
			return b.compare(ctx, rows, leasesCome(many), leasesCome(few))
		},
	}
}

// flannelResync counts the changes of a full comparison when nothing needs to change.
func flannelResync() Group {
	return Group{
		Title: "flannel: changes of the kernel's routes, neighbours and forwarding entries in 11 s, with 5,000 leases and nothing to do",
		Rows: []measure.Row{
			{Name: "flannel/resync", Metric: leaseResync, Unit: "changes", Target: measure.AtMost(0)},
		},
		run: func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
			node, err := b.Stage.Leases(ctx, "leases", manyLeases)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, node.Strike()) }()
			if _, err := node.Start(ctx); err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, func(ctx context.Context) (measure.Figures, error) {
				changes, err := node.Changes(ctx, resyncTime)
				return measure.Figures{leaseResync: float64(changes)}, err
			}, nil)
		},
	}
}

func leasesCome(node *stage.Leases) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		var took []float64
		for range leaseEvents {
			d, err := node.Event(ctx)
			if err != nil {
				return nil, err
			}
			took = append(took, milliseconds(d))
		}
		return measure.Figures{leaseCame: measure.Median(took)}, nil
	}
}

// twoNodes makes a node for each side. It returns a function that removes them, also with an error.
func twoNodes(ctx context.Context, b Bench, ours, peer int) (o, p *stage.Leases, closeAll func() error, err error) {
	closeAll = func() error {
		var errs []error
		for _, node := range []*stage.Leases{o, p} {
			if node != nil {
				errs = append(errs, node.Strike())
			}
		}
		return errors.Join(errs...)
	}
	if o, err = b.Stage.Leases(ctx, "leases", ours); err != nil {
		return o, p, closeAll, err
	}
	p, err = b.Stage.Leases(ctx, "leases-peer", peer)
	return o, p, closeAll, err
}
