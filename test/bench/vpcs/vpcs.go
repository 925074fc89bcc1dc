// Package vpcs has the rows of the benchmark about VPCs: the groups, their targets, and which work of package vpc is compared.
package vpcs

import (
	"context"
	"errors"
	"fmt"
	"os"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/bench/vpc"
)

// Compare runs rounds of both sides, and computes the results.
type Compare func(ctx context.Context, rows []measure.Row, ours, peer measure.Side) ([]measure.Result, error)

// Group is the rows that share a scene.
type Group struct {
	// Title describes the rounds.
	Title string
	Rows  []measure.Row
	// Run measures those of the rows that it gets.
	Run func(ctx context.Context, st *stage.Stage, rows []measure.Row, compare Compare) ([]measure.Result, error)
}

// Groups returns the groups in the order of measurement.
func Groups() []Group {
	return []Group{add(), firstPing(), floatingIPs(), forwarding(), many(), agentMemory()}
}

// run measures rows in a lab with VPCs.
type run func(context.Context, []measure.Row, Compare, *vpc.Scene) ([]measure.Result, error)

// inLab runs a group in a lab with VPCs, which exists only for the group.
func inLab(run run) func(context.Context, *stage.Stage, []measure.Row, Compare) ([]measure.Result, error) {
	return func(ctx context.Context, st *stage.Stage, rows []measure.Row, compare Compare) (results []measure.Result, err error) {
		s, err := vpc.Open(ctx, st, stage.KindVPC)
		defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
		if err != nil {
			return nil, err
		}
		return run(ctx, rows, compare, s)
	}
}

// add compares ADD in a VPC with the same interface made by hand on the same node. The logical ports exist before.
func add() Group {
	return Group{
		Title: "VPC: ADD into a Subnet, against veth and iface-id by hand, until ovn-installed",
		Rows:  []measure.Row{{Name: "vpc/add", Metric: vpc.Add, Unit: "ms, p50", Target: measure.RatioAtMost(1.3)}},
		Run: inLab(func(ctx context.Context, rows []measure.Row, compare Compare, s *vpc.Scene) ([]measure.Result, error) {
			if err := s.Create(ctx, vpc.Vpc("add"), vpc.Subnet("add")); err != nil {
				return nil, err
			}
			if err := s.ByHand().Network(ctx, "hand"); err != nil {
				return nil, err
			}
			return compare(ctx, rows, s.AddPods("add"), s.ByHand().AddPods("hand"))
		}),
	}
}

// firstPing compares a whole VPC with its NAT gateway, from the first object to the first answer, with the same configuration by hand.
func firstPing() Group {
	return Group{
		Title: "VPC: from the objects of a Vpc, Subnet, gateway and EIP to the first answer, against ovn-nbctl --wait=hv and a gateway by hand",
		Rows:  []measure.Row{{Name: "vpc/first-ping", Metric: vpc.Ping, Unit: "ms", Target: measure.RatioAtMost(1.5)}},
		Run: inLab(func(ctx context.Context, rows []measure.Row, compare Compare, s *vpc.Scene) ([]measure.Result, error) {
			return compare(ctx, rows, s.FirstPing, s.ByHand().FirstPing)
		}),
	}
}

// floatingIPs compares 50 concurrent EIPs with floating IPs with the same configuration by hand.
func floatingIPs() Group {
	return Group{
		Title: "NAT gateway: 50 EIPs with floating IPs until the last one answers, against kubectl apply of as many objects, one nft -f and one ip -batch",
		Rows: []measure.Row{
			{Name: "gateway/fip-50", Metric: vpc.Floating, Unit: "ms", Target: measure.RatioAtMost(2)},
			{Name: "gateway/fip-50/all", Metric: vpc.Floating, Unit: "ms", Target: measure.AtMost(3000), Alone: true},
		},
		Run: inLab(func(ctx context.Context, rows []measure.Row, compare Compare, s *vpc.Scene) ([]measure.Result, error) {
			dir, err := os.MkdirTemp("", "weft-bench")
			if err != nil {
				return nil, fmt.Errorf("make a folder for manifests: %w", err)
			}
			defer func() { _ = os.RemoveAll(dir) }()
			ours, peer, err := s.FloatingIPs(ctx, dir)
			if err != nil {
				return nil, err
			}
			return compare(ctx, rows, ours, peer)
		}),
	}
}

// forwarding compares the cost of packets through a gateway with a table made by hand.
func forwarding() Group {
	return Group{
		Title: "NAT gateway: packets through its table, against a table by hand with the same elements",
		Rows: []measure.Row{
			{Name: "gateway/forwarding/throughput", Metric: vpc.Throughput, Unit: "MB/s (more is better)", Target: measure.RatioAtLeast(0.95)},
			{Name: "gateway/forwarding/cpu", Metric: vpc.PacketCPU, Unit: "ns of CPU a packet", Target: measure.RatioAtMost(1.05)},
		},
		Run: func(ctx context.Context, st *stage.Stage, rows []measure.Row, compare Compare) ([]measure.Result, error) {
			ours, peer, err := vpc.Forwarding(ctx, st)
			if err != nil {
				return nil, err
			}
			return compare(ctx, rows, ours, peer)
		},
	}
}
