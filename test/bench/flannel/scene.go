// Package flannel makes the pods, packets and objects of the benchmark's rows of flannel networks, and measures them.
package flannel

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

// Metrics of packets on a flannel network.
const (
	ThroughputNodes = "throughput-nodes"
	ThroughputNode  = "throughput-node"
	LatencyNodes    = "latency-nodes"
	LatencyNode     = "latency-node"
	RoundTripNodes  = "round-trip-nodes"
	RoundTripNode   = "round-trip-node"
	PacketNodes     = "packet-nodes"
	PacketNode      = "packet-node"
	TransferNodes   = "transfer-nodes"
	TransferNode    = "transfer-node"
)

const (
	// bytesNodes and bytesNode are the sizes of one connection's transfer in a round, between nodes and on one: each takes two to three seconds,
	// so that it does not matter much where the processors' scheduler happens to place sender and receiver.
	bytesNodes, bytesNode = 1 << 30, 4 << 30
	// pings is the number of datagrams in a round, each sent after the answer to the one before.
	pings         = 4000
	transferLimit = time.Minute
	sinkPort      = 7778
	flannelPort   = 7779
)

// Scene is a client pod on the first node, and server pods on the first and the second node.
type Scene struct {
	from    stage.Pod
	to      map[string]netip.Addr // by the pod's location: nodes (the other node), node (the same node)
	netns   map[string]string     // the same pods' namespaces
	closers []func() error
}

// Open adds the pods. Call Close after it, also after an error.
func Open(ctx context.Context, nodes []stage.Node) (*Scene, error) {
	s := &Scene{to: map[string]netip.Addr{}, netns: map[string]string{}}
	err := errors.Join(nodes[0].Expect(ctx, nodes[0].Name+"-from", nodes[0].Name+"-"+LatencyNode), nodes[1].Expect(ctx, nodes[1].Name+"-"+LatencyNodes))
	if err != nil {
		return s, err
	}
	if s.from, err = nodes[0].Add(ctx, nodes[0].Name+"-from"); err != nil {
		return s, err
	}
	for where, node := range map[string]stage.Node{LatencyNodes: nodes[1], LatencyNode: nodes[0]} {
		pod, err := node.Add(ctx, node.Name+"-"+where)
		if err != nil {
			return s, err
		}
		s.to[where], s.netns[where] = pod.IPs[0], pod.Netns
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

// Close ends the servers in the pods.
func (s *Scene) Close() error {
	var errs []error
	for _, closer := range s.closers {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}

// Measure is a round.
func (s *Scene) Measure(ctx context.Context) (measure.Figures, error) {
	figures := measure.Figures{}
	for where, of := range map[string]struct {
		bytes                                   int
		throughput, transfer, packet, roundTrip string
	}{
		LatencyNodes: {bytesNodes, ThroughputNodes, TransferNodes, PacketNodes, RoundTripNodes},
		LatencyNode:  {bytesNode, ThroughputNode, TransferNode, PacketNode, RoundTripNode},
	} {
		to := s.to[where]
		transferred, used, err := transfer(s.from.Netns, netip.AddrPortFrom(to, sinkPort), of.bytes)
		if err != nil {
			return nil, err
		}
		figures[of.throughput] = float64(of.bytes) / 1e6 / transferred.Seconds()
		figures[of.transfer] = float64(used) / float64(time.Millisecond) / float64(of.bytes>>30)
		if figures[where], err = s.latency(ctx, to); err != nil {
			return nil, err
		}
		if figures[of.roundTrip], err = s.roundTrip(to); err != nil {
			return nil, err
		}
		used, err = packetTime(s.from.Netns, s.netns[where], to)
		if err != nil {
			return nil, err
		}
		figures[of.packet] = float64(used.Nanoseconds())
	}
	return figures, nil
}

// latency returns the median time until a datagram is answered that begins a connection, in microseconds.
func (s *Scene) latency(ctx context.Context, to netip.Addr) (float64, error) {
	var took []float64
	for range pings {
		d, err := traffic.Ping(ctx, s.from.Netns, netip.AddrPortFrom(to, flannelPort))
		if err != nil {
			return 0, err
		}
		took = append(took, float64(d)/float64(time.Microsecond))
	}
	return measure.Median(took), nil
}

// roundTrip returns the median time until a datagram of an established connection is answered, in microseconds.
func (s *Scene) roundTrip(to netip.Addr) (float64, error) {
	conn, err := traffic.ListenUDP(s.from.Netns, netip.AddrPort{})
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	err = conn.SetDeadline(time.Now().Add(transferLimit))
	took, data := make([]float64, 0, pings), make([]byte, 1)
	for i := 0; err == nil && i <= pings; i++ {
		began := time.Now()
		if _, err = conn.WriteToUDPAddrPort(data, netip.AddrPortFrom(to, flannelPort)); err == nil {
			_, err = conn.Read(data)
		}
		if i > 0 { // the first one begins the connection
			took = append(took, float64(time.Since(began))/float64(time.Microsecond))
		}
	}
	if err != nil {
		return 0, fmt.Errorf("exchange datagrams with %s: %w", to, err)
	}
	return measure.Median(took), nil
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

// transfer sends that many bytes. It returns the time until all of them had arrived, and the processor time of sender and receiver, which are
// threads of this process: the kernel forwards most packets on them.
func transfer(path string, to netip.AddrPort, bytes int) (took, used time.Duration, err error) {
	var conn net.Conn
	err = traffic.In(path, func() (err error) {
		conn, err = net.DialTimeout("tcp4", to.String(), transferLimit)
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("connect to %s: %w", to, err)
	}
	defer func() { _ = conn.Close() }()
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return 0, 0, fmt.Errorf("connect to %s: %T is no TCP connection", to, conn)
	}
	before, err := stage.OwnMeter().Used()
	if err != nil {
		return 0, 0, err
	}
	began, chunk := time.Now(), make([]byte, 1<<20)
	err = conn.SetDeadline(began.Add(transferLimit))
	for sent := 0; err == nil && sent < bytes; sent += len(chunk) {
		_, err = conn.Write(chunk)
	}
	if err == nil {
		err = tcp.CloseWrite()
	}
	if err == nil {
		_, err = io.ReadFull(conn, chunk[:1])
	}
	if err != nil {
		return 0, 0, fmt.Errorf("send to %s: %w", to, err)
	}
	took = time.Since(began)
	after, err := stage.OwnMeter().Used()
	return took, after - before, err
}
