//go:build real

package pipeline_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/internal/transport"
)

// A client of an idled Service is reported about once, no matter how many packets it sends. It is neither rejected nor answered until the
// first endpoint exists; then the packets that it repeats reach the endpoint.
func TestIdledServiceWaits(t *testing.T) {
	n := startNode(t, 2)
	n.serve(n.pods["b"].space, "b", "tcp", ":8080")
	n.serve(n.pods["b"].space, "b", "udp", ":5353")
	reports := n.reports()
	asleep := func(protocol transport.Protocol, port uint16, kind service.Kind) service.VirtualAddress {
		v := vip("asleep", "172.30.0.15", protocol, port)
		v.Verdict, v.Kind = service.Wake, kind
		if kind == service.KindNodePort {
			v.IP = netip.Addr{}
		}
		return v
	}
	idled := []service.VirtualAddress{
		asleep(transport.TCP, 80, service.KindClusterIP), asleep(transport.UDP, 53, service.KindClusterIP), asleep(transport.TCP, 30080, service.KindNodePort),
	}
	n.apply(idled...)
	n.want("a", "tcp", "10.128.0.6:8080", "b sees 10.128.0.5") // packets to other destinations are not reported
	type answer struct {
		text string
		err  error
	}
	answers := map[string]chan answer{"172.30.0.15:80": make(chan answer, 1), "192.0.2.1:30080": make(chan answer, 1)}
	for to, ch := range answers {
		go func() {
			text, err := n.askLong("a", to)
			ch <- answer{text, err}
		}()
	}
	cookie := cookies.Of(service.Owner("ns", "asleep"))
	for range answers {
		if in := await(t, reports); in.Cookie != cookie {
			t.Errorf("reported with the cookie %#x, want the Service's %#x", in.Cookie, cookie)
		}
	}
	conn, err := n.dial("a", "udp", "172.30.0.15:53")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if in := await(t, reports); in.Cookie != cookie {
		t.Errorf("UDP: reported with the cookie %#x, want the Service's %#x", in.Cookie, cookie)
	}
	learned := func() int { return strings.Count(n.OFCtl("dump-flows", n.Mgmt(n.bridge), "table=25"), "actions=drop") }
	testwait.Until(t, "the switch has learned to drop what follows", func() bool { return learned() > 0 })
	// The learned flow lasts ten seconds: on a slow machine a burst may continue after its end.
	testwait.Until(t, "of fifty datagrams that follow one at most is reported", func() bool {
		if _, err := conn.Write([]byte("hello\n")); err != nil {
			t.Fatal(err)
		}
		n.AppCtl("revalidator/wait")
		n.AppCtl("revalidator/wait") // a round that was under way may have passed the flow
		for len(reports) > 0 {       // packets from before the datapath had the flow
			<-reports
		}
		for range 50 {
			if _, err := conn.Write([]byte("hello\n")); err != nil {
				t.Fatal(err)
			}
		}
		// The switch processes packets in order: a reply on another connection means that the fifty have been processed.
		n.want("a", "tcp", "10.128.0.6:8080", "b sees 10.128.0.5")
		return len(reports) <= 1
	})
	after := []service.VirtualAddress{
		vip("asleep", "172.30.0.15", transport.TCP, 80, "10.128.0.6:8080"), vip("asleep", "172.30.0.15", transport.UDP, 53, "10.128.0.6:5353"),
		vip("asleep", "172.30.0.15", transport.TCP, 30080, "10.128.0.6:8080"),
	}
	after[2].Kind, after[2].IP = service.KindNodePort, netip.Addr{}
	n.apply(after...)
	if left := learned(); left > 0 {
		t.Errorf("%d flows that were learned stay", left)
	}
	for to, ch := range answers {
		if got := <-ch; got.err != nil || got.text != "b sees 10.128.0.5" {
			t.Errorf("%s: %q, %v", to, got.text, got.err)
		}
	}
	n.flush(idled, after)
	if got, err := say(conn); err != nil || got != "b sees 10.128.0.5" {
		t.Errorf("UDP: %q, %v", got, err)
	}
}

// askLong sends a request by TCP and waits as long as a client of an idled Service.
func (n *serviceNode) askLong(pod, to string) (string, error) {
	var conn net.Conn
	err := n.pods[pod].space.Do(func(ns.NetNS) (err error) {
		conn, err = (&net.Dialer{Timeout: time.Minute}).Dial("tcp4", to)
		return err
	})
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	return say(conn)
}

// reports connects another engine to the switch, and returns the switch's reports to it.
func (n *serviceNode) reports() chan *openflow.PacketIn {
	n.t.Helper()
	reports := make(chan *openflow.PacketIn, 1000)
	engine := bridge.NewEngine(bridge.Config{Address: n.Mgmt(n.bridge), OnPacket: func(in *openflow.PacketIn) { reports <- in }})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- engine.Run(ctx) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			n.t.Errorf("the engine ended with %v", err)
		}
	})
	if _, err := engine.Conn(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	return reports
}

func await(t *testing.T, reports <-chan *openflow.PacketIn) *openflow.PacketIn {
	t.Helper()
	select {
	case in := <-reports:
		return in
	case <-time.After(time.Minute):
		t.Fatal("nothing was reported")
		return nil
	}
}
