// Package probe detects the known fault of checksum offload on tunnels, in which packets that the kernel leaves for a device to complete
// arrive with a wrong checksum: a peer answers ICMP, whose checksums the kernel computes itself, but never TCP.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/safchain/ethtool"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Verdict is the result of a test.
type Verdict int

// The verdicts.
const (
	// Silent: the peer does not answer ICMP, so there is no result.
	Silent Verdict = iota
	// Sound: the peer answers TCP.
	Sound
	// Faulty: the peer answers ICMP and never TCP.
	Faulty
)

const (
	// patience is the timeout of an answer: a TCP connection repeats its first packet after 1 and after 3 seconds (RFC 6298).
	patience = 4 * time.Second
	// port is closed on nodes (discard, RFC 863): the connection is refused, which is an answer.
	port = 9
	// kubeProxyMark requests masquerading by kube-proxy: the fault may show only on translated packets.
	kubeProxyMark = 1 << 14
	// protocols of ICMP for package icmp's parser (IANA).
	protocolICMP  = 1
	protocolICMP6 = 58
)

// Test tests the node with a tunnel address.
func Test(ctx context.Context, peer netip.Addr) (Verdict, error) {
	answered, err := echo(ctx, peer)
	if err != nil || !answered {
		return Silent, err
	}
	for _, mark := range []int{0, kubeProxyMark} {
		answered, err := connect(ctx, peer, mark)
		if err != nil {
			return Silent, err
		}
		if !answered {
			return Faulty, nil
		}
	}
	return Sound, nil
}

// echo reports whether a peer answers an ICMP echo request.
func echo(ctx context.Context, peer netip.Addr) (bool, error) {
	network, local, protocol := "ip4:icmp", "0.0.0.0", protocolICMP
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if peer.Is6() {
		network, local, protocol = "ip6:ipv6-icmp", "::", protocolICMP6
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	conn, err := icmp.ListenPacket(network, local)
	if err != nil {
		return false, fmt.Errorf("open a socket for ICMP: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing to lose
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return false, fmt.Errorf("bound the wait for ICMP: %w", err)
	}
	id := os.Getpid() & 0xffff
	text, err := (&icmp.Message{Type: request, Body: &icmp.Echo{ID: id, Seq: 1, Data: []byte("weft")}}).Marshal(nil)
	if err != nil {
		return false, fmt.Errorf("make an ICMP echo request: %w", err)
	}
	if _, err := conn.WriteTo(text, &net.IPAddr{IP: peer.AsSlice()}); err != nil {
		return false, nil //nolint:nilerr // no way to the peer, so no answer
	}
	buffer := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return false, ctx.Err() // none within the timeout
		}
		message, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil || message.Type != reply || from.String() != peer.String() {
			continue
		}
		if body, ok := message.Body.(*icmp.Echo); ok && body.ID == id {
			return true, nil
		}
	}
}

// connect reports whether a peer answers TCP, even by refusing the connection.
func connect(ctx context.Context, peer netip.Addr, mark int) (bool, error) {
	dialer := net.Dialer{Timeout: patience, Control: func(_, _ string, raw syscall.RawConn) error {
		var inside error
		err := raw.Control(func(fd uintptr) { inside = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark) })
		return errors.Join(err, inside)
	}}
	conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(peer, port).String())
	if err == nil {
		return true, conn.Close()
	}
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case errors.As(err, &timeout) && timeout.Timeout():
		return false, nil
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET):
		return true, nil
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return true, nil // a firewall's answer
	}
	return false, fmt.Errorf("connect to %s: %w", peer, err)
}

// feature is "tx-checksum-ip-generic" in ethtool(8): the device completes checksums on transmission.
const feature = "tx-checksum-ip-generic"

// SetOffload turns a device's transmit checksum offload on or off.
func SetOffload(device string, on bool) error {
	handle, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool's socket: %w", err)
	}
	defer handle.Close()
	if err := handle.Change(device, map[string]bool{feature: on}); err != nil {
		return fmt.Errorf("change %s of %s: %w", feature, device, err)
	}
	return nil
}
