package rows

import (
	"context"
	"errors"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/vpc"
)

// vpcAdd compares ADD in a VPC with the same interface made by hand on the same node. The logical ports exist before.
func vpcAdd() Group {
	return Group{
		Title: "VPC: ADD into a Subnet, against veth and iface-id by hand, until ovn-installed",
		Rows:  []measure.Row{{Name: "vpc/add", Metric: vpc.Add, Unit: "ms, p50", Target: measure.RatioAtMost(1.3)}},
		run: onVPCs(func(ctx context.Context, b Bench, rows []measure.Row, s *vpc.Scene) ([]measure.Result, error) {
			if err := s.Create(ctx, vpc.Vpc("add"), vpc.Subnet("add")); err != nil {
				return nil, err
			}
			if err := s.HandNetwork(ctx, "hand"); err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, s.AddPods("add"), s.AddByHand("hand"))
		}),
	}
}

// vpcFirstPing compares a whole VPC with its NAT gateway, from the first object to the first answer, with the same configuration by hand.
func vpcFirstPing() Group {
	return Group{
		Title: "VPC: from the objects of a Vpc, Subnet, gateway and EIP to the first answer, against ovn-nbctl --wait=hv and a gateway by hand",
		Rows:  []measure.Row{{Name: "vpc/first-ping", Metric: vpc.Ping, Unit: "ms", Target: measure.RatioAtMost(1.5)}},
		run: onVPCs(func(ctx context.Context, b Bench, rows []measure.Row, s *vpc.Scene) ([]measure.Result, error) {
			return b.compare(ctx, rows, s.FirstPing, s.FirstPingByHand)
		}),
	}
}

// onVPCs runs a group in a lab with VPCs, which exists only for the group.
func onVPCs(run func(context.Context, Bench, []measure.Row, *vpc.Scene) ([]measure.Result, error)) func(context.Context, Bench, []measure.Row) ([]measure.Result, error) {
	return func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
		s, err := vpc.Open(ctx, b.Stage)
		defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
		if err != nil {
			return nil, err
		}
		return run(ctx, b, rows, s)
	}
}
