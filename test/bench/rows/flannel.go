package rows

import (
	"context"
	"errors"
	"fmt"

	"weft.dev/weft/test/bench/flannel"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
)

// flannelPods compares ADD and DEL on a node of a flannel network with flannel's own plugin, with bridge and host-local. The agent serves
// host ports, of which the other side has none.
func flannelPods() Group {
	return Group{
		Title: "flannel: ADD and DEL by the agent, against flannel's plugin with bridge and host-local, both without portmap",
		Rows: []measure.Row{
			{Name: "flannel/add", Metric: addWall, Unit: "ms, p50", Target: measure.RatioAtMost(0.6).Goal(0.45)},
			{Name: "flannel/add-cpu", Metric: addCPU, Unit: "ms of CPU a pod"},
			{Name: "flannel/del", Metric: delAnswered, Unit: "ms, p50", Target: measure.RatioAtMost(0.8)},
		},
		run: onFlannel(false, func(ctx context.Context, b Bench, rows []measure.Row, f *stage.Flannel) ([]measure.Result, error) {
			return b.compare(ctx, rows, addAndDelete(f.Ours[0]), addAndDelete(f.Peers[0]))
		}),
	}
}

// flannelPortmap compares the same with the list of plugins of flannel's manifest, where portmap runs on both sides.
func flannelPortmap() Group {
	return Group{
		Title: "flannel: ADD and DEL with the manifest's list of plugins, in which portmap follows on both sides",
		Rows: []measure.Row{
			{Name: "flannel/portmap/add", Metric: addWall, Unit: "ms, p50"},
			{Name: "flannel/portmap/del", Metric: delAnswered, Unit: "ms, p50"},
		},
		run: onFlannel(true, func(ctx context.Context, b Bench, rows []measure.Row, f *stage.Flannel) ([]measure.Result, error) {
			return b.compare(ctx, rows, addAndDelete(f.Ours[0]), addAndDelete(f.Peers[0]))
		}),
	}
}

// flannelBurst compares how many pods per second start on one node if many are requested at once.
func flannelBurst() Group {
	return Group{
		Title: fmt.Sprintf("flannel: %d ADDs at the same time, without portmap", burstPods),
		Rows: []measure.Row{
			{Name: "flannel/burst", Metric: podsPerSecond, Unit: "pods/s (more is better)", Target: measure.RatioAtLeast(1.5)},
		},
		run: onFlannel(false, func(ctx context.Context, b Bench, rows []measure.Row, f *stage.Flannel) ([]measure.Result, error) {
			return b.compare(ctx, rows, addTogether(f.Ours[:1]), addTogether(f.Peers[:1]))
		}),
	}
}

// onFlannel runs a group on nodes with Weft's agent and nodes with flanneld, which exist only for the group, with portmap in the list of
// plugins or without it.
func onFlannel(portmap bool, run func(context.Context, Bench, []measure.Row, *stage.Flannel) ([]measure.Result, error)) func(context.Context, Bench, []measure.Row) ([]measure.Result, error) {
	return func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
		f, err := b.Stage.Flannel(ctx, portmap)
		defer func() { err = errors.Join(err, b.Stage.StrikeLab(context.WithoutCancel(ctx), stage.KindFlannel)) }()
		if err != nil {
			return nil, err
		}
		return run(ctx, b, rows, f)
	}
}

// flannelTraffic compares the cost of packets between pods, across nodes and on one node.
func flannelTraffic() Group {
	return Group{
		Title: "flannel: packets between pods, against flanneld with its plugin and br_netfilter",
		Rows: []measure.Row{
			{Name: "flannel/throughput/nodes", Metric: flannel.ThroughputNodes, Unit: "MB/s (more is better)", Target: measure.RatioAtLeast(0.98)},
			{Name: "flannel/throughput/node", Metric: flannel.ThroughputNode, Unit: "MB/s (more is better)", Target: measure.RatioAtLeast(0.98)},
			{Name: "flannel/latency/nodes", Metric: flannel.LatencyNodes, Unit: "us, p50", Target: measure.RatioAtMost(1.02)},
			{Name: "flannel/latency/node", Metric: flannel.LatencyNode, Unit: "us, p50", Target: measure.RatioAtMost(1.02)},
			{Name: "flannel/round-trip/nodes", Metric: flannel.RoundTripNodes, Unit: "us, p50"},
			{Name: "flannel/round-trip/node", Metric: flannel.RoundTripNode, Unit: "us, p50"},
			{Name: "flannel/packet-cpu/nodes", Metric: flannel.PacketNodes, Unit: "ns of CPU a packet", Target: measure.RatioAtMost(1.02)},
			{Name: "flannel/packet-cpu/node", Metric: flannel.PacketNode, Unit: "ns of CPU a packet", Target: measure.RatioAtMost(1.02)},
			{Name: "flannel/transfer-cpu/nodes", Metric: flannel.TransferNodes, Unit: "ms of CPU for 1 GB"},
			{Name: "flannel/transfer-cpu/node", Metric: flannel.TransferNode, Unit: "ms of CPU for 1 GB"},
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
			return b.compare(ctx, rows, ours.Measure, peers.Measure)
		}),
	}
}
