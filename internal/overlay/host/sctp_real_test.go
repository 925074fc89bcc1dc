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
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/reconcile"
)

// An association by SCTP is led to the pod by a host port, at the pod's port and with a checksum that is right; one at another port is not.
func TestHostPortsLeadSCTP(t *testing.T) {
	node, neighbour := nstest.New(t), nstest.New(t)
	engine, err := nft.NewEngine(nft.Options{Netns: node, Tables: host.Tables()})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	want := sample().Rules()
	web := host.Published{Pod: "shop/web", Address: netip.MustParseAddr(podAddress), Ports: []cni.HostPort{
		{Port: 8080, Protocol: "sctp", ContainerPort: 80},
		{Port: 8081, Protocol: "sctp", ContainerPort: 81, Address: netip.MustParseAddr(nodeAddress)},
		{Port: 8082, Protocol: "udp", ContainerPort: 82},
	}}
	maps.Copy(want, web.Rules())
	have, err := engine.Read(t.Context())
	if err == nil {
		err = engine.Commit(t.Context(), reconcile.Diff(want, have))
	}
	if err != nil {
		t.Fatal(err)
	}
	nstest.Do(t, node, func() error { return makeNode(neighbour) })
	nstest.Do(t, neighbour, func() error { return up("far", neighbourAddress+"/24") })
	var ear int
	nstest.Do(t, node, func() error {
		var err error
		ear, err = listen("switch")
		return err
	})
	defer func() { _ = unix.Close(ear) }()
	nstest.Do(t, neighbour, func() error {
		// One comes after the other: what is not led would be heard before the last.
		return errors.Join(associate(8082), associate(8080), associate(8081))
	})
	for _, port := range []uint16{80, 81} {
		packet, err := hear(ear)
		if err != nil {
			t.Fatalf("for port %d: %v", port, err)
		}
		to, sctp := net.IP(packet[16:20]).String(), packet[20:]
		if got := binary.BigEndian.Uint16(sctp[2:]); to != podAddress || got != port {
			t.Errorf("led to %s, port %d; want %s, %d", to, got, podAddress, port)
		}
		if from := net.IP(packet[12:16]).String(); from != neighbourAddress {
			t.Errorf("from %s, want %s", from, neighbourAddress)
		}
		if sum := binary.LittleEndian.Uint32(sctp[8:]); sum != checksum(sctp) {
			t.Errorf("port %d: checksum %#x, want %#x", port, sum, checksum(sctp))
		}
	}
}

// associate sends the first packet of an association (RFC 9260, 3.3.2) to a port of the node.
func associate(port uint16) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return fmt.Errorf("a socket for SCTP: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	packet := binary.BigEndian.AppendUint16(nil, 40000)
	packet = binary.BigEndian.AppendUint16(packet, port)
	packet = append(packet, make([]byte, 8)...)                 // no tag yet, and the checksum
	packet = append(packet, 1, 0, 0, 20, 0, 0, 0, 1)            // INIT, 20 bytes, its tag
	packet = append(packet, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1) // window, streams, first number
	binary.LittleEndian.PutUint32(packet[8:], checksum(packet))
	return unix.Sendto(socket, packet, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(nodeAddress).As4()})
}

// checksum is that of a packet of SCTP, whatever it has (RFC 9260, 6.8).
func checksum(packet []byte) uint32 {
	bare := append([]byte(nil), packet...)
	clear(bare[8:12])
	return crc32.Checksum(bare, crc32.MakeTable(crc32.Castagnoli))
}

// listen returns a socket that hears what a device gets.
func listen(device string) (int, error) {
	ipv4 := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
	index, err := net.InterfaceByName(device)
	if err != nil {
		return 0, err
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(ipv4))
	if err != nil {
		return 0, err
	}
	patience := unix.NsecToTimeval((10 * time.Second).Nanoseconds())
	return socket, errors.Join(
		unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: ipv4, Ifindex: index.Index}),
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience))
}

// hear returns the next packet of SCTP, from its IP header, which has no options.
func hear(socket int) ([]byte, error) {
	const header, common = 20, 12
	buffer := make([]byte, 2048)
	for {
		n, err := unix.Read(socket, buffer)
		if err != nil {
			return nil, err
		}
		if n >= header+common && buffer[9] == unix.IPPROTO_SCTP {
			return buffer[:n], nil
		}
	}
}
