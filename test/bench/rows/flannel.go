package rows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/traffic"
)

// flannelPods compares ADD and DEL on a node of a flannel network with flannel's own plugin, with bridge, host-local and portmap.
func flannelPods() Group {
	return Group{
		Title: "flannel: ADD and DEL by the agent, against flannel's plugin with bridge and host-local",
		Rows: []measure.Row{
			{Name: "flannel/add", Metric: addWall, Unit: "ms, p50", Target: measure.RatioAtMost(0.6).Goal(0.45)},
			{Name: "flannel/add-cpu", Metric: addCPU, Unit: "ms of CPU a pod"},
			{Name: "flannel/del", Metric: delAnswered, Unit: "ms, p50", Target: measure.RatioAtMost(0.8)},
		},
		run: onFlannel(func(ctx context.Context, b Bench, rows []measure.Row, f *stage.Flannel) ([]measure.Result, error) {
			return b.compare(ctx, rows, addAndDelete(f.Ours[0]), addAndDelete(f.Peers[0]))
		}),
	}
}

// flannelBurst compares how many pods per second start on one node if many are requested at once.
func flannelBurst() Group {
	return Group{
		Title: fmt.Sprintf("flannel: %d ADDs at the same time", burstPods),
		Rows: []measure.Row{
			{Name: "flannel/burst", Metric: podsPerSecond, Unit: "pods/s (more is better)", Target: measure.RatioAtLeast(1.5)},
		},
		run: onFlannel(func(ctx context.Context, b Bench, rows []measure.Row, f *stage.Flannel) ([]measure.Result, error) {
			return b.compare(ctx, rows, addTogether(f.Ours[:1]), addTogether(f.Peers[:1]))
		}),
	}
}

// onFlannel runs a group on nodes with Weft's agent and nodes with flanneld, which exist only for the group.
func onFlannel(run func(context.Context, Bench, []measure.Row, *stage.Flannel) ([]measure.Result, error)) func(context.Context, Bench, []measure.Row) ([]measure.Result, error) {
	return func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
		f, err := b.Stage.Flannel(ctx)
		defer func() { err = errors.Join(err, b.Stage.StrikeLab(context.WithoutCancel(ctx), stage.KindFlannel)) }()
		if err != nil {
			return nil, err
		}
		return run(ctx, b, rows, f)
	}
}

// Metrics of packets on a flannel network.
const (
	throughputNodes = "throughput-nodes"
	throughputNode  = "throughput-node"
	latencyNodes    = "latency-nodes"
	latencyNode     = "latency-node"
)

const (
	// transferBytes is the size of one connection's transfer in a round.
	transferBytes = 512 << 20
	// pings is the number of datagrams in a round, each sent after the answer to the one before.
	pings         = 500
	transferLimit = time.Minute
	sinkPort      = 7778
	flannelPort   = 7779
)

// flannelTraffic compares the cost of packets between pods, across nodes and on one node.
func flannelTraffic() Group {
	return Group{
		Title: "flannel: packets between pods, against flanneld with its plugin and br_netfilter",
		Rows: []measure.Row{
			{Name: "flannel/throughput/nodes", Metric: throughputNodes, Unit: "MB/s (more is better)", Target: measure.RatioAtLeast(0.98)},
			{Name: "flannel/throughput/node", Metric: throughputNode, Unit: "MB/s (more is better)", Target: measure.RatioAtLeast(0.98)},
			{Name: "flannel/latency/nodes", Metric: latencyNodes, Unit: "us, p50", Target: measure.RatioAtMost(1.02)},
			{Name: "flannel/latency/node", Metric: latencyNode, Unit: "us, p50", Target: measure.RatioAtMost(1.02)},
		},
		run: onFlannel(func(ctx context.Context, b Bench, rows []measure.Row, f *stage.Flannel) (results []measure.Result, err error) {
			ours, err := openScene(ctx, f.Ours)
			defer func() { err = errors.Join(err, ours.close()) }()
			if err != nil {
				return nil, err
			}
			peers, err := openScene(ctx, f.Peers)
			defer func() { err = errors.Join(err, peers.close()) }()
			if err != nil {
				return nil, err
			}
			return b.compare(ctx, rows, ours.measure, peers.measure)
		}),
	}
}

// podScene is a client pod on the first node, and server pods on the first and the second node.
type podScene struct {
	from    stage.Pod
	to      map[string]netip.Addr // by the pod's location: nodes (the other node), node (the same node)
	closers []func() error
}

// openScene adds the pods. Call close after it, also after an error.
func openScene(ctx context.Context, nodes []stage.Node) (*podScene, error) {
	s := &podScene{to: map[string]netip.Addr{}}
	err := errors.Join(nodes[0].Expect(ctx, nodes[0].Name+"-from", nodes[0].Name+"-"+latencyNode), nodes[1].Expect(ctx, nodes[1].Name+"-"+latencyNodes))
	if err != nil {
		return s, err
	}
	if s.from, err = nodes[0].Add(ctx, nodes[0].Name+"-from"); err != nil {
		return s, err
	}
	for where, node := range map[string]stage.Node{latencyNodes: nodes[1], latencyNode: nodes[0]} {
		pod, err := node.Add(ctx, node.Name+"-"+where)
		if err != nil {
			return s, err
		}
		s.to[where] = pod.IPs[0]
		sink, err := discard(pod.Netns, netip.AddrPortFrom(pod.IPs[0], sinkPort))
		if err != nil {
			return s, err
		}
		s.closers = append(s.closers, sink.Close)
		echo, err := traffic.NewEcho(pod.Netns, netip.AddrPortFrom(pod.IPs[0], flannelPort))
		if err != nil {
			return s, err
		}
		s.closers = append(s.closers, echo.Close)
	}
	return s, nil
}

func (s *podScene) close() error {
	var errs []error
	for _, closer := range s.closers {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}

// measure is a round.
func (s *podScene) measure(ctx context.Context) (measure.Figures, error) {
	figures := measure.Figures{}
	for where, throughput := range map[string]string{latencyNodes: throughputNodes, latencyNode: throughputNode} {
		to := s.to[where]
		transferred, err := transfer(s.from.Netns, netip.AddrPortFrom(to, sinkPort))
		if err != nil {
			return nil, err
		}
		figures[throughput] = transferBytes / 1e6 / transferred.Seconds()
		var took []float64
		for range pings {
			d, err := traffic.Ping(ctx, s.from.Netns, netip.AddrPortFrom(to, flannelPort))
			if err != nil {
				return nil, err
			}
			took = append(took, microseconds(d))
		}
		figures[where] = measure.Median(took)
	}
	return figures, nil
}

// discard reads the data of connections to an address in a namespace, and answers each when all of it has arrived. traffic.Sink would
// hash the data, which takes longer than the packets.
func discard(path string, at netip.AddrPort) (net.Listener, error) {
	var listener net.Listener
	err := traffic.In(path, func() (err error) {
		listener, err = net.Listen("tcp", at.String()) //nolint:noctx // on this thread, which is in the namespace
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", at, err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the listener is closed
			}
			go func() {
				defer func() { _ = conn.Close() }()
				if _, err := io.Copy(io.Discard, conn); err == nil {
					_, _ = conn.Write([]byte{1}) // without it the sender reports an error
				}
			}()
		}
	}()
	return listener, nil
}

// transfer sends transferBytes, and returns the time until all of them had arrived.
func transfer(path string, to netip.AddrPort) (time.Duration, error) {
	var conn net.Conn
	err := traffic.In(path, func() (err error) {
		conn, err = net.DialTimeout("tcp4", to.String(), transferLimit)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("connect to %s: %w", to, err)
	}
	defer func() { _ = conn.Close() }()
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return 0, fmt.Errorf("connect to %s: %T is no TCP connection", to, conn)
	}
	began, chunk := time.Now(), make([]byte, 1<<20)
	err = conn.SetDeadline(began.Add(transferLimit))
	for sent := 0; err == nil && sent < transferBytes; sent += len(chunk) {
		_, err = conn.Write(chunk)
	}
	if err == nil {
		err = tcp.CloseWrite()
	}
	if err == nil {
		_, err = io.ReadFull(conn, chunk[:1])
	}
	if err != nil {
		return 0, fmt.Errorf("send to %s: %w", to, err)
	}
	return time.Since(began), nil
}
