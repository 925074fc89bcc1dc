//go:build lab

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// serviceLoad is datagrams to a Service from a pod on each node, and a long transfer.
type serviceLoad struct {
	streams []*traffic.Stream
}

func (s *serviceScene) load(t *testing.T, to netip.AddrPort) *serviceLoad {
	t.Helper()
	l := &serviceLoad{}
	for _, from := range []string{s.near.Netns, s.near.Netns, s.far.Netns, s.far.Netns} {
		stream, err := traffic.NewStream(from, to, *pairRate)
		if err != nil {
			t.Fatal(err)
		}
		l.streams = append(l.streams, stream)
	}
	return l
}

// stop returns the numbers of sent and lost datagrams.
func (l *serviceLoad) stop() (sent, lost uint64, err error) {
	for _, stream := range l.streams {
		tally, failed := stream.Stop()
		if sent, lost = sent+tally.Sent, lost+tally.Lost; failed != nil {
			err = failed
		}
	}
	return sent, lost, err
}

// Restarting the agent does not affect traffic to Services: no datagram is lost, no flow is written, and an existing connection
// continues. Flows that the switch learned about clients are its own.
func TestAgentRestartsUnderServices(t *testing.T) {
	s := newServiceScene(t, "srestart")
	echo(t, s.here.Netns, s.here.IPs[0])
	echo(t, s.there.Netns, s.there.IPs[0])
	made := s.service(t, "srestart", nil)
	s.endpoints(t, "srestart", "srestart", endpointPorts(echoPort), at(s.here), at(s.there))
	tcp := port(s.simple(t, "srestart-tcp", sticky(600), at(s.here), at(s.there)), 80)
	vip := port(netip.MustParseAddr(made.Spec.ClusterIP), 80)
	for _, from := range []string{s.near.Netns, s.far.Netns} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := traffic.Ping(ctx, from, vip); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the Service with affinity served", func(ctx context.Context) error {
		_, err := traffic.Ask(ctx, s.near.Netns, "tcp", tcp)
		return err
	})
	kept, err := traffic.Dial(t.Context(), s.near.Netns, "tcp", tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kept.Close() }()
	before, err := kept.Ask()
	if err != nil {
		t.Fatal(err)
	}

	control := s.load(t, vip)
	length := window(5 * time.Second)
	select {
	case <-time.After(length): // the duration of the traffic
	case <-t.Context().Done():
	}
	sent, lost, err := control.stop()
	if lost > 0 || err != nil {
		t.Fatalf("machine too busy: %d of %d datagrams lost without a restart: %v", lost, sent, err)
	}
	t.Logf("control: %d datagrams in %s, none lost", sent, length)

	n1, n2 := s.cluster.Node(1), s.cluster.Node(2)
	watches := map[string]*probe.FlowWatch{n1.Name: watchFlows(t, n1), n2.Name: watchFlows(t, n2)}
	during := s.load(t, vip)
	const restarts = 6
	for i := range restarts {
		node := s.cluster.Node(1 + i%2)
		kill(t, s.cluster, node.Name+"/weft-agent", []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i/2%2])
		await(t, node.Name+" ready", func(ctx context.Context) error { return ready(ctx, node) })
		if after, err := kept.Ask(); err != nil || after != before {
			t.Errorf("a connection made before restart %d: %s, %v; was %s", i, after, err, before)
		}
		if count := tally(t, s.near.Netns, "tcp", tcp, 3); count[before] != 3 {
			t.Errorf("affinity after restart %d: %v, was %s", i, count, before)
		}
	}
	sent, lost, err = during.stop()
	if lost > 0 || err != nil {
		t.Errorf("%d of %d datagrams lost over %d restarts: %v", lost, sent, restarts, err)
	}
	t.Logf("%d restarts: %d datagrams, %d lost", restarts, sent, lost)
	for name, watch := range watches {
		if err := watch.Check(t.Context(), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if added, changed, removed := watch.Counts(); added+changed+removed > 0 {
			t.Errorf("%s: %s, although no object changed", name, watch)
		}
	}
}

// A client that always sends from one port does not stay with a removed endpoint.
func TestServiceEndpointGoesUnderUDP(t *testing.T) {
	s := newServiceScene(t, "udpgone")
	vip := port(s.simple(t, "udpgone", nil, at(s.here)), 80)
	settles(t, s.near.Netns, vip, "here")
	for _, from := range []struct{ name, netns string }{{"near", s.near.Netns}, {"far", s.far.Netns}} {
		s.endpoints(t, "udpgone", "udpgone", endpointPorts(sourcePort), at(s.here))
		settles(t, from.netns, vip, "here")
		conn, err := traffic.Dial(t.Context(), from.netns, "udp", vip)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if answer, err := conn.Ask(); err != nil || answer.Name != "here" {
			t.Fatalf("%s, %v", answer, err)
		}
		moved := func(names ...string) func(context.Context) error {
			return func(context.Context) error {
				answer, err := conn.Ask()
				if err == nil && (answer.Name != names[0]) {
					err = fmt.Errorf("%s answers", answer)
				}
				return err
			}
		}
		s.endpoints(t, "udpgone", "udpgone", endpointPorts(sourcePort), at(s.there))
		took := await(t, from.name+": the same socket reaches the remaining endpoint", moved("there"))
		t.Logf("%s: moved %s after the object was written", from.name, took.Round(time.Millisecond))
		// The Service loses all endpoints and gets one again: a refusal is not permanent.
		s.endpoints(t, "udpgone", "udpgone", endpointPorts(sourcePort))
		refused(t, from.netns, vip, "tcp", "udp")
		_, _ = conn.Ask() // it is refused
		s.endpoints(t, "udpgone", "udpgone", endpointPorts(sourcePort), at(s.there))
		await(t, from.name+": the same socket reaches a new endpoint", moved("there"))
	}
}

// While the API server is away, Services keep working.
func TestServicesWithoutAPIServer(t *testing.T) {
	s := newServiceScene(t, "sapi")
	vip := port(s.simple(t, "sapi", nil, at(s.here), at(s.there)), 80)
	settles(t, s.near.Netns, vip, "here", "there")
	watch := watchFlows(t, s.cluster.Node(1))
	back := apiAway(t, s.cluster)
	for range 3 {
		settles(t, s.near.Netns, vip, "here", "there")
		settles(t, s.far.Netns, vip, "here", "there")
	}
	if err := watch.Check(t.Context(), nil); err != nil {
		t.Error(err)
	}
	back()
	s.endpoints(t, "sapi", "sapi", endpointPorts(sourcePort), at(s.there))
	settles(t, s.near.Netns, vip, "there")
}
