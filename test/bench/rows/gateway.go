package rows

import (
	"context"
	"os"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/vpc"
)

// gatewayFloatingIPs compares 50 concurrent EIPs with floating IPs with the same configuration by hand.
func gatewayFloatingIPs() Group {
	return Group{
		Title: "NAT gateway: 50 EIPs with floating IPs until the last one answers, against kubectl apply of as many objects, one nft -f and one ip -batch",
		Rows: []measure.Row{
			{Name: "gateway/fip-50", Metric: vpc.Floating, Unit: "ms", Target: measure.RatioAtMost(2)},
			{Name: "gateway/fip-50/all", Metric: vpc.Floating, Unit: "ms", Target: measure.AtMost(3000), Alone: true},
		},
		run: onVPCs(func(ctx context.Context, b Bench, rows []measure.Row, s *vpc.Scene) ([]measure.Result, error) {
			dir, err := os.MkdirTemp("", "weft-bench")
			if err != nil {
				return nil, err
			}
			defer func() { _ = os.RemoveAll(dir) }()
			ours, peer, err := s.FloatingIPs(ctx, dir)
			if err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, ours, peer)
		}),
	}
}

// gatewayForwarding compares the cost of packets through a gateway with a table made by hand.
func gatewayForwarding() Group {
	return Group{
		Title: "NAT gateway: packets through its table, against a table by hand with the same elements",
		Rows: []measure.Row{
			{Name: "gateway/forwarding/throughput", Metric: vpc.Throughput, Unit: "MB/s (more is better)", Target: measure.RatioAtLeast(0.95)},
			{Name: "gateway/forwarding/cpu", Metric: vpc.PacketCPU, Unit: "ns of CPU a packet", Target: measure.RatioAtMost(1.05)},
		},
		run: func(ctx context.Context, b Bench, rows []measure.Row) ([]measure.Result, error) {
			ours, peer, err := vpc.Forwarding(ctx, b.Stage)
			if err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, ours, peer)
		},
	}
}
