//go:build real

package pipeline_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/service"
)

// quoted returns a UDP packet as an ICMP error quotes it: the IP header and the UDP header.
func quoted(from, to netip.AddrPort) []byte {
	const version, length, udp, ttl = 0x45, 28, 17, 64
	b := []byte{version, 0, 0, length, 0, 1, 0, 0, ttl, udp, 0, 0}
	b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	return append(b, 0, 8, 0, 0)
}

// unreachable sends from a pod the ICMP error "port unreachable" about a packet from the error's receiver.
func (n *serviceNode) unreachable(pod string, from, to netip.AddrPort) {
	n.t.Helper()
	const destinationUnreachable, port = 3, 3
	b := append([]byte{destinationUnreachable, port, 0, 0, 0, 0, 0, 0}, quoted(from, to)...)
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	err := n.pods[pod].space.Do(func(ns.NetNS) error {
		conn, err := net.Dial("ip4:icmp", from.Addr().String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = conn.Write(b)
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

// unreachableSeen reports whether a connected UDP socket receives the error "port unreachable" within a time.
func unreachableSeen(t *testing.T, conn net.Conn, within time.Duration) bool {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Read(make([]byte, 1))
	return errors.Is(err, syscall.ECONNREFUSED)
}

// Of all pods, only the peer of a connection can send an ICMP error into it: directly, and if a Service on the same node translates.
func TestICMPErrorsFromDeniedPods(t *testing.T) {
	n := byPoliciesOf(t, 3)
	n.apply(vip("dns", "172.30.0.9", service.UDP, 53, "10.128.0.6:7946"))
	endpoint := netip.MustParseAddrPort("10.128.0.6:7946")
	server := n.listen(t, "b", endpoint.String())
	for _, to := range []string{"10.128.0.6:7946", "172.30.0.9:53"} {
		conn, err := n.dial("a", "udp", to)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := server.ReadFrom(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		client := netip.MustParseAddrPort(conn.LocalAddr().String())
		n.unreachable("c", client, endpoint)
		if unreachableSeen(t, conn, long) {
			t.Errorf("%s: a third pod ends the client's connection", to)
		}
		n.unreachable("b", client, endpoint)
		if !unreachableSeen(t, conn, soon) {
			t.Errorf("%s: the endpoint's own error does not arrive", to)
		}
		_ = conn.Close()
	}
	// A port without a listener: the endpoint's kernel sends the error.
	conn, err := n.dial("a", "udp", "10.128.0.6:7947")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if !unreachableSeen(t, conn, soon) {
		t.Error("the client does not learn that nothing listens")
	}
}
