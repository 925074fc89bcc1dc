package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	icmpHeader   = 8  // bytes, RFC 792
	ipv4Header   = 20 // bytes, without options
	icmpRequest  = 8
	icmpResponse = 0
)

// PingICMP sends an echo request whose IPv4 packet has size bytes and must not be fragmented, and waits for the reply,
// trying again until the deadline of ctx. A packet that does not fit the way is an error at once (EMSGSIZE), where the
// sender's kernel knows.
func PingICMP(ctx context.Context, path string, to netip.Addr, size int) (time.Duration, error) {
	var conn *net.IPConn
	err := in(path, func() (err error) {
		conn, err = net.ListenIP("ip4:icmp", nil)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ICMP socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := forbidFragments(conn); err != nil {
		return 0, err
	}
	id := uint16(os.Getpid()) ^ uint16(time.Now().UnixNano()) //nolint:gosec // only to tell pings apart
	for n := uint16(0); ; n++ {
		took, err := onceICMP(conn, to, echoRequest(id, n, size-ipv4Header))
		if err == nil {
			return took, nil
		}
		if errors.Is(err, unix.EMSGSIZE) || ctx.Err() != nil {
			return 0, fmt.Errorf("no reply from %s to %d bytes: %w", to, size, errors.Join(err, ctx.Err()))
		}
	}
}

func forbidFragments(conn *net.IPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
	return errors.Join(err, set)
}

// echoRequest is an ICMP message of that many bytes.
func echoRequest(id, sequence uint16, bytes int) []byte {
	message := make([]byte, max(bytes, icmpHeader))
	message[0] = icmpRequest
	binary.BigEndian.PutUint16(message[4:], id)
	binary.BigEndian.PutUint16(message[6:], sequence)
	for i := icmpHeader; i < len(message); i++ {
		message[i] = byte(i)
	}
	binary.BigEndian.PutUint16(message[2:], checksum(message))
	return message
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func onceICMP(conn *net.IPConn, to netip.Addr, request []byte) (time.Duration, error) {
	begin := time.Now()
	if err := conn.SetReadDeadline(begin.Add(pingWait)); err != nil {
		return 0, err
	}
	if _, err := conn.WriteToIP(request, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		if !errors.Is(err, unix.EMSGSIZE) {
			<-time.After(pingWait / 10) // no route yet: the caller's ctx bounds the tries
		}
		return 0, err
	}
	buffer := make([]byte, 65536)
	for {
		n, from, err := conn.ReadFromIP(buffer)
		if err != nil {
			return 0, err
		}
		same := n == len(request) && buffer[0] == icmpResponse && [4]byte(buffer[4:8]) == [4]byte(request[4:8])
		if sender, _ := netip.AddrFromSlice(from.IP); same && sender.Unmap() == to {
			return time.Since(begin), nil
		}
	}
}
