package flanneltest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// Unfinished runs a program between the node and the underlay that copies frames with packet sockets, as userspace switches do. It copies
// frames without the parts that the kernel leaves to a device: TCP inside tunnels has wrong checksums. It repairs TCP outside tunnels, so
// that the node reaches its store.
func (n *Node) Unfinished() {
	u := n.u
	u.t.Helper()
	near, far, port := fmt.Sprintf("v%d", n.Number), fmt.Sprintf("x%d", n.Number), fmt.Sprintf("y%d", n.Number)
	for _, args := range []string{
		"link set " + near + " nomaster promisc on", "link add " + far + " type veth peer name " + port, "link set " + port + " master br0 up",
		"link set " + far + " up promisc on",
	} {
		u.Space.IP(args)
	}
	for _, device := range []string{near, far} { // the underlay's own stack answers for its addresses only on the bridge
		if _, err := u.Space.Run("sysctl", "-qw", "net.ipv4.conf."+device+".arp_ignore=8", "net.ipv6.conf."+device+".disable_ipv6=1"); err != nil {
			u.t.Fatal(err)
		}
	}
	for s, device := range map[*Space]string{u.Space: port, n.Space: "eth0"} {
		if _, err := s.Run("ethtool", "-K", device, "tso", "off", "gso", "off", "gro", "off"); err != nil {
			u.t.Fatal(err)
		}
	}
	var sockets [2]int
	err := within(u.Space.Path(), func() (err error) {
		for i, device := range []string{near, far} {
			if sockets[i], err = packetSocket(device); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		u.t.Fatal(err)
	}
	stop := make(chan struct{})
	var copies sync.WaitGroup
	for i := range sockets {
		copies.Go(func() { copyFrames(sockets[i], sockets[1-i], stop) })
	}
	u.t.Cleanup(func() {
		close(stop)
		copies.Wait()
		for _, fd := range sockets {
			_ = unix.Close(fd) // nothing is buffered
		}
	})
}

// packetSocket opens a socket for all frames that a device receives, not those that it sends. A read times out after a tenth of a second.
func packetSocket(device string) (int, error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return 0, err
	}
	protocol := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol))
	if err != nil {
		return 0, err
	}
	const tenth = 100_000
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return 0, err
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: tenth}); err != nil {
		return 0, err
	}
	return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index})
}

func copyFrames(from, to int, stop <-chan struct{}) {
	buffer := make([]byte, 1<<16)
	for {
		select {
		case <-stop:
			return
		default:
		}
		size, err := unix.Read(from, buffer)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN) {
			continue // timeout, or the device was down, which is reported once
		}
		if err != nil {
			return // the device was removed
		}
		_, _ = unix.Write(to, repaired(buffer[:size])) // a lost frame is sent again
	}
}

// repaired returns a frame with the right checksum if it is TCP in IPv4, and any other frame unchanged.
func repaired(frame []byte) []byte {
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	ether, isEther := packet.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
	ip, isIP := packet.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	all := packet.Layers()
	const third = 2
	if !isEther || !isIP || len(all) <= third {
		return frame
	}
	tcp, isTCP := all[third].(*layers.TCP) // not TCP inside a tunnel
	if !isTCP || tcp.SetNetworkLayerForChecksum(ip) != nil {
		return frame
	}
	out := gopacket.NewSerializeBuffer()
	if gopacket.SerializeLayers(out, gopacket.SerializeOptions{ComputeChecksums: true}, ether, ip, tcp, gopacket.Payload(tcp.Payload)) != nil {
		return frame
	}
	return out.Bytes()
}

// Connects checks that TCP connections from one namespace to an address of another succeed.
func Connects(from, to *Space, address string) error {
	target := net.JoinHostPort(address, sourcePort)
	var listener net.Listener
	if err := within(to.Path(), func() (err error) {
		listener, err = net.Listen("tcp", target) //nolint:noctx // opens at once
		return err
	}); err != nil {
		return err
	}
	defer listener.Close()
	return within(from.Path(), func() error {
		dialer := net.Dialer{Timeout: connectPatience}
		conn, err := dialer.Dial("tcp", target) //nolint:noctx // ends in time
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}
