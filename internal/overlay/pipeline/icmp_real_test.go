//go:build real

package pipeline_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/internal/transport"
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

// icmpError is an ICMP error of type 3, destination unreachable (RFC 792), and the error that a connected UDP socket returns for it.
type icmpError struct {
	code byte
	mtu  uint16 // of the next hop, with code 4 (RFC 1191, 4)
	seen syscall.Errno
}

// Errors that end a UDP socket's connection, or lower its path MTU.
func portUnreachable() icmpError { return icmpError{code: 3, seen: syscall.ECONNREFUSED} }

func fragmentationNeeded(mtu uint16) icmpError {
	return icmpError{code: 4, mtu: mtu, seen: syscall.EMSGSIZE}
}

// send sends from a namespace the error about a packet from the error's receiver.
func (e icmpError) send(t *testing.T, space ns.NetNS, from, to netip.AddrPort) {
	t.Helper()
	const destinationUnreachable = 3
	b := append([]byte{destinationUnreachable, e.code, 0, 0, 0, 0, byte(e.mtu >> 8), byte(e.mtu)}, quoted(from, to)...)
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	err := space.Do(func(ns.NetNS) error {
		conn, err := net.Dial("ip4:icmp", from.Addr().String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = conn.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// arrives reports whether a connected UDP socket receives the error within a time.
func (e icmpError) arrives(t *testing.T, conn net.Conn, within time.Duration) bool {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Read(make([]byte, 1))
	return errors.Is(err, e.seen)
}

// pathMTU returns the path MTU of a connected socket.
func pathMTU(t *testing.T, conn net.Conn) int {
	t.Helper()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var mtu int
	var failed error
	if err := errors.Join(raw.Control(func(fd uintptr) { mtu, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU) }), failed); err != nil {
		t.Fatal(err)
	}
	return mtu
}

// Of all pods, only the peer of a connection can send an ICMP error into it: directly, and if a Service on the same node translates.
func TestICMPErrorsFromDeniedPods(t *testing.T) {
	n := byPoliciesOf(t, 3)
	n.apply(vip("dns", "172.30.0.9", transport.UDP, 53, "10.128.0.6:7946"))
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
		portUnreachable().send(t, n.pods["c"].space, client, endpoint)
		if portUnreachable().arrives(t, conn, long) {
			t.Errorf("%s: a third pod ends the client's connection", to)
		}
		portUnreachable().send(t, n.pods["b"].space, client, endpoint)
		if !portUnreachable().arrives(t, conn, soon) {
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
	if !portUnreachable().arrives(t, conn, soon) {
		t.Error("the client does not learn that nothing listens")
	}
}

// narrow is the MTU in the errors: the smallest that every host accepts (RFC 791, 3.2).
const narrow = 576

// A pod that the client's policies keep out does not lower the path MTU of the client's connection, whatever it quotes. The peer of the
// connection does, directly, and if a Service on the same node translates.
func TestFragmentationNeededFromDeniedPods(t *testing.T) {
	n := byPoliciesOf(t, 3)
	n.isolate("a", policy.Isolation{Ingress: true})
	n.apply(vip("dns", "172.30.0.9", transport.UDP, 53, "10.128.0.6:7946"))
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
		client, before := netip.MustParseAddrPort(conn.LocalAddr().String()), pathMTU(t, conn)
		for _, quoted := range []netip.AddrPort{endpoint, netip.MustParseAddrPort(to)} {
			fragmentationNeeded(narrow).send(t, n.pods["c"].space, client, quoted)
			if fragmentationNeeded(narrow).arrives(t, conn, long) {
				t.Errorf("%s: a third pod's error about %s arrives", to, quoted)
			}
			if mtu := pathMTU(t, conn); mtu != before {
				t.Errorf("%s: a third pod's error about %s lowers the path MTU to %d, from %d", to, quoted, mtu, before)
			}
		}
		fragmentationNeeded(narrow).send(t, n.pods["b"].space, client, endpoint)
		if !fragmentationNeeded(narrow).arrives(t, conn, soon) {
			t.Errorf("%s: the endpoint's own error does not arrive", to)
		}
		if mtu := pathMTU(t, conn); mtu != narrow {
			t.Errorf("%s: the path MTU is %d after the endpoint's own error, want %d", to, mtu, narrow)
		}
		_ = conn.Close()
	}
}

// A router outside lowers the path MTU of a pod's connection to outside, also if policies isolate the pod. A pod that they keep out does
// not.
func TestFragmentationNeededFromRoutersOutside(t *testing.T) {
	n := byPoliciesOf(t, 3)
	n.isolate("a", policy.Isolation{Ingress: true})
	router, link := ovstest.NewNetNS(t), n.Name("o")
	err := n.NetNS.Do(func(ns.NetNS) error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: link}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(router.Fd()))})
	})
	if err != nil {
		t.Fatal(err)
	}
	n.in(n.NetNS, "ip", "addr", "add", "198.51.100.2/24", "dev", link)
	n.in(n.NetNS, "ip", "link", "set", link, "up")
	n.in(n.NetNS, "ip", "route", "add", "203.0.113.0/24", "via", "198.51.100.1")
	n.in(router, "ip", "addr", "add", "198.51.100.1/24", "dev", "eth0")
	n.in(router, "ip", "link", "set", "eth0", "up")
	n.in(router, "ip", "route", "add", "10.128.0.0/14", "via", "198.51.100.2")
	n.in(router, "ip", "route", "add", "blackhole", "203.0.113.0/24")
	server := netip.MustParseAddrPort("203.0.113.5:53")
	conn, err := n.dial("a", "udp", server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the connection is known", func() bool {
		return strings.Contains(n.AppCtl("dpctl/dump-conntrack"), "dst=203.0.113.5")
	})
	client, before := netip.MustParseAddrPort(conn.LocalAddr().String()), pathMTU(t, conn)
	fragmentationNeeded(narrow).send(t, n.pods["c"].space, client, server)
	if fragmentationNeeded(narrow).arrives(t, conn, long) || pathMTU(t, conn) != before {
		t.Errorf("a third pod's error arrives; the path MTU is %d, and was %d", pathMTU(t, conn), before)
	}
	fragmentationNeeded(narrow).send(t, router, client, server)
	if !fragmentationNeeded(narrow).arrives(t, conn, soon) {
		t.Error("the router's error does not arrive")
	}
	if mtu := pathMTU(t, conn); mtu != narrow {
		t.Errorf("the path MTU is %d after the router's error, want %d", mtu, narrow)
	}
}
