//go:build real

package host_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/overlay/host"
)

// A host port translates an SCTP association to the pod's port, with a correct checksum, and the pod's reply comes from the host port. An
// association to another port is not translated.
func TestHostPortsLeadSCTP(t *testing.T) {
	node, neighbour := nstest.New(t), nstest.New(t)
	want := sample().Rules()
	web := hostport.Published{Pod: "shop/web", Addresses: []netip.Addr{netip.MustParseAddr(podAddress)}, Ports: []cni.HostPort{
		{Port: 8080, Protocol: "sctp", ContainerPort: 80},
		{Port: 8081, Protocol: "sctp", ContainerPort: 81, Address: netip.MustParseAddr(nodeAddress)},
		{Port: 8082, Protocol: "udp", ContainerPort: 82},
	}}
	maps.Copy(want, host.Published(&web))
	programRules(t, node, want)
	nstest.Do(t, node, func() error { return makeNode(neighbour) })
	nstest.Do(t, neighbour, func() error { return nstest.Up("far", neighbourAddress+"/24") })
	inside, outside := listen(t, node, "switch"), listen(t, neighbour, "far")
	nstest.Do(t, neighbour, func() error {
		return associate(8082) // if it were translated, it would be received before the next packets
	})
	for host, port := range map[uint16]uint16{8080: 80, 8081: 81} {
		nstest.Do(t, neighbour, func() error { return associate(host) })
		packet := receive(t, inside)
		is(t, packet, endpoint(neighbourAddress, clientPort), endpoint(podAddress, port))
		nstest.Do(t, node, func() error { return accept(packet) })
		answer := receive(t, outside)
		for answer[sctpAt+commonHeader] != initAck { // sent by the neighbour itself
			answer = receive(t, outside)
		}
		is(t, answer, endpoint(nodeAddress, host), endpoint(neighbourAddress, clientPort))
	}
}

func endpoint(address string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(address), port)
}

// is compares a packet's source and destination, and checks its checksum.
func is(t *testing.T, packet []byte, from, to netip.AddrPort) {
	t.Helper()
	at := func(address, port []byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(address)), binary.BigEndian.Uint16(port))
	}
	sctp := packet[sctpAt:]
	if is := at(packet[12:], sctp); is != from {
		t.Errorf("from %s, want %s", is, from)
	}
	if is := at(packet[16:], sctp[2:]); is != to {
		t.Errorf("to %s, want %s", is, to)
	}
	if sum := binary.LittleEndian.Uint32(sctp[8:]); sum != checksum(sctp) {
		t.Errorf("to %s: checksum %#x, want %#x", to, sum, checksum(sctp))
	}
}

// SCTP packets: the offset after an IP header without options, the length of the common header, and the first chunk of the reply.
// clientPort is the neighbour's port.
const (
	sctpAt, commonHeader = 20, 12
	initAck              = 2
	clientPort           = 40000
)

// associate sends the first packet of an association (RFC 9260, 3.3.2) to a port of the node.
func associate(port uint16) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return fmt.Errorf("a socket for SCTP: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	packet := chunk(clientPort, port, 0, 1)
	return unix.Sendto(socket, packet, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(nodeAddress).As4()})
}

// checksum returns the checksum of an SCTP packet, ignoring the one in it (RFC 9260, 6.8).
func checksum(packet []byte) uint32 {
	bare := append([]byte(nil), packet...)
	clear(bare[8:12])
	return crc32.Checksum(bare, crc32.MakeTable(crc32.Castagnoli))
}

// chunk returns a packet with the first chunk of either side (RFC 9260, 3.3.2 and 3.3.3), whose own tag is 1.
func chunk(from, to uint16, tag uint32, kind byte) []byte {
	packet := binary.BigEndian.AppendUint16(nil, from)
	packet = binary.BigEndian.AppendUint16(packet, to)
	packet = binary.BigEndian.AppendUint32(packet, tag)
	packet = append(packet, 0, 0, 0, 0)                         // the checksum
	packet = append(packet, kind, 0, 0, 20, 0, 0, 0, 1)         // 20 bytes, its tag
	packet = append(packet, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1) // window, streams, first number
	binary.LittleEndian.PutUint32(packet[8:], checksum(packet))
	return packet
}

// accept sends the pod's reply to the first packet of an association through the switch's device.
func accept(first []byte) error {
	tun, err := net.InterfaceByName(host.Tun)
	if err != nil {
		return err
	}
	port, err := net.InterfaceByName("switch")
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	sctp := chunk(binary.BigEndian.Uint16(first[sctpAt+2:]), binary.BigEndian.Uint16(first[sctpAt:]), 1, initAck)
	packet := append(append([]byte(nil), first[:sctpAt]...), sctp...)
	copy(packet[12:], first[16:20])
	copy(packet[16:], first[12:16]) // does not change the header's checksum
	to := &unix.SockaddrLinklayer{Protocol: ipv4(), Ifindex: port.Index, Halen: uint8(len(tun.HardwareAddr))}
	copy(to.Addr[:], tun.HardwareAddr)
	return unix.Sendto(socket, packet, 0, to)
}

// ipv4 is the number of IPv4 on a link, in network byte order.
func ipv4() uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
}

// listen returns a socket that receives packets on a device of a namespace. It is closed with the test.
func listen(t *testing.T, space, device string) (socket int) {
	t.Helper()
	nstest.Do(t, space, func() error {
		index, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		if socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(ipv4())); err != nil {
			return err
		}
		patience := unix.NsecToTimeval((10 * time.Second).Nanoseconds())
		return errors.Join(
			unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: ipv4(), Ifindex: index.Index}),
			unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience))
	})
	t.Cleanup(func() { _ = unix.Close(socket) })
	return socket
}

// receive returns the next SCTP packet.
func receive(t *testing.T, socket int) []byte {
	t.Helper()
	buffer := make([]byte, 2048)
	for {
		n, err := unix.Read(socket, buffer)
		if err != nil {
			t.Fatal(err)
		}
		if n > sctpAt+commonHeader && buffer[9] == unix.IPPROTO_SCTP {
			return buffer[:n]
		}
	}
}
