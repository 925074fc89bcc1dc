//go:build real

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/ovn/ovntest"
)

// datagrams opens a UDP socket in a namespace.
func datagrams(t *testing.T, space ns.NetNS, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	must(t, space.Do(func(ns.NetNS) (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// received returns the next datagram; "" if there is none for some time.
func received(t *testing.T, conn *net.UDPConn, wait time.Duration) string {
	t.Helper()
	must(t, conn.SetReadDeadline(time.Now().Add(wait)))
	text := make([]byte, 100)
	n, err := conn.Read(text)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return string(text[:n])
}

// A pod inherits no connection of the pod that had its port, address and conntrack zone before: the host, to which pods send nothing but
// answers, gets none from it.
func TestConnectionsAreNotInherited(t *testing.T) {
	s := newSite(t, 1)
	s.port(s.network("teal"), 0, 7, 1)
	s.serve()
	n := s.nodes[0]
	at := netip.AddrPortFrom(pipeline.HostAddress(), 5000)
	first, address := n.add(t, "teal", "a")
	host, pod := datagrams(t, n.NetNS, at), netip.AddrPortFrom(netip.MustParseAddr(address), 6000)
	former := datagrams(t, first.NetNS, pod)
	eventually(t, "the host's datagram is answered", func() error {
		if _, err := host.WriteToUDPAddrPort([]byte("question"), pod); err != nil {
			return err
		}
		if got := received(t, former, time.Second); got == "" {
			return errors.New("the pod has got nothing")
		}
		if _, err := former.WriteToUDPAddrPort([]byte("answer"), at); err != nil {
			return err
		}
		if got := received(t, host, time.Second); got != "answer" {
			return fmt.Errorf("the host has got %q", got)
		}
		return nil
	})
	n.del(t, "teal", "a")
	for received(t, host, 100*time.Millisecond) != "" { // answers to repeated questions
	}

	second := ovntest.NewPod(t)
	eventually(t, "the next pod has the port", func() error { // an ADD that began before the former one was removed is repeated, as by a runtime
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		result, err := n.handler.Add(ctx, n.request(cni.CommandAdd, "teal", "b", second.ProcPath()))
		if err == nil && result.IPs[0].Address.IP.String() != address {
			t.Fatalf("the second pod has %s, the first had %s", result.IPs[0].Address.IP, address)
		}
		return err
	})
	eventually(t, "the host reaches the next pod", func() error {
		_, err := ovntest.Try(n.NetNS, "ping", "-n", "-q", "-c", "1", "-W", "1", address)
		return err
	})
	later := datagrams(t, second.NetNS, pod)
	for range 3 {
		_, err := later.WriteToUDPAddrPort([]byte("inherited"), at)
		must(t, err)
	}
	if got := received(t, host, time.Second*ovstest.Slowness); got != "" {
		t.Errorf("the host gets %q in a connection of the former pod\n%s", got, n.AppCtl("dpctl/dump-conntrack"))
	}
}
