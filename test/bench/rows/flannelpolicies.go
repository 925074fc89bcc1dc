package rows

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"weft.dev/weft/test/bench/flannel"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/bench/switches"
)

// besidePolicies is the number of policies for other pods.
const besidePolicies = 1_000

// policyCost is the metric of what a policy adds to the node's table.
const policyCost = "policy-cost"

// flannelPolicies measures policies, and packets beside them.
func flannelPolicies() Group {
	return Group{
		Title: fmt.Sprintf("flannel: with %d policies for other pods of the node: packets, against flanneld; a policy's creation until the last packet", besidePolicies),
		Rows: []measure.Row{
			{Name: "flannel/policy/throughput/nodes", Metric: flannel.ThroughputNodes, Unit: "MB/s (more is better)", Target: measure.RatioAtLeast(0.95)},
			{Name: "flannel/policy/throughput/node", Metric: flannel.ThroughputNode, Unit: "MB/s (more is better)", Target: measure.RatioAtLeast(0.95)},
			{Name: "flannel/policy/packet-cpu/nodes", Metric: flannel.PacketNodes, Unit: "ns of CPU a packet", Target: measure.RatioAtMost(1.05)},
			{Name: "flannel/policy/packet-cpu/node", Metric: flannel.PacketNode, Unit: "ns of CPU a packet", Target: measure.RatioAtMost(1.05)},
			{Name: "flannel/policy/p50", Metric: latencyP50, Unit: "ms until the last packet", Target: measure.AtMost(20), Alone: true},
			{Name: "flannel/policy/p99", Metric: latencyP99, Unit: "ms until the last packet", Target: measure.AtMost(50), Alone: true},
			{Name: "flannel/policy/cost", Metric: policyCost, Unit: "rules and elements", Target: measure.AtMost(410), Alone: true},
		},
		run: onFlannel(true, func(ctx context.Context, b Bench, rows []measure.Row, f *stage.Flannel) (results []measure.Result, err error) {
			ours, err := flannel.Open(ctx, f.Ours)
			defer func() { err = errors.Join(err, ours.Close()) }()
			if err != nil {
				return nil, err
			}
			peers, err := flannel.Open(ctx, f.Peers)
			defer func() { err = errors.Join(err, peers.Close()) }()
			if err != nil {
				return nil, err
			}
			s := &isolation{cluster: f.Cluster}
			s.programmed = func(ctx context.Context) (int, error) { return flannel.Policies(ctx, f.Ours[0].Node) }
			defer func() { err = errors.Join(err, s.silence()) }()
			if err := s.populate(ctx); err != nil {
				return nil, err
			}
			spec := switches.Allowing(switches.Labelled(flannel.CostLabel, flannel.CostTo), switches.Labelled(flannel.CostLabel, flannel.CostFrom), echoPort)
			cost, err := flannel.PolicyCost(ctx, f.Cluster, f.Ours[0].Node, switches.PolicyNamespace, spec)
			if err != nil {
				return nil, err
			}
			b.Stage.Say("making %d policies", besidePolicies)
			if err := s.fill(ctx, besidePolicies); err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, func(ctx context.Context) (measure.Figures, error) {
				figures, err := s.measure(ctx)
				if err != nil {
					return nil, err
				}
				packets, err := ours.Measure(ctx)
				maps.Copy(figures, packets)
				figures[policyCost] = cost
				return figures, err
			}, peers.Measure)
		}),
	}
}
