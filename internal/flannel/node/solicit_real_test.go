//go:build real

package node_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// asker is a pod that sends packets, with sockets at its interface and at the bridge.
type asker struct {
	mac         net.HardwareAddr
	own         netip.Addr // its IPv6 address
	bridge, eth int
}

func newAsker(t *testing.T, s *stage) asker {
	t.Helper()
	pod := space(t)
	result, err := add(t, serve(t, s), "pod", pod)
	if err != nil {
		t.Fatal(err)
	}
	mac, err := net.ParseMAC(result.Interfaces[2].Mac)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := netip.AddrFromSlice(result.IPs[1].Address.IP)
	return asker{mac, own, packets(t, s.space, "cni0"), packets(t, pod, "eth0")}
}

// TestSolicitations: a pod asks by duplicate address detection for its own addresses only. For an address that the bridge is about to use,
// such as its link-local one, the bridge would give it up.
func TestSolicitations(t *testing.T) {
	s := newStage(t)
	a := newAsker(t, s)
	targets := []netip.Addr{netip.MustParseAddr("fe80::858:aff:fef4:301"), s.state.Subnets[1].Addr().Next(), a.own}
	for _, target := range targets {
		if _, err := unix.Write(a.eth, solicitation(t, a.mac, target)); err != nil {
			t.Fatal(err)
		}
	}
	var arrived []netip.Addr
	for frame := make([]byte, 2000); !slices.Contains(arrived, a.own); { // the last one
		size, err := unix.Read(a.bridge, frame)
		if err != nil {
			t.Fatalf("the bridge has got %v: %v", arrived, err)
		}
		const header, length = 14 + 40, 8 + 16
		if source := frame[14+8 : 14+24]; size >= header+length && frame[header] == byte(ipv6.ICMPTypeNeighborSolicitation) && slices.Max(source) == 0 {
			target, _ := netip.AddrFromSlice(frame[header+8 : header+length])
			arrived = append(arrived, target)
		}
	}
	for _, target := range targets[:2] {
		if slices.Contains(arrived, target) {
			t.Errorf("the pod has asked for %s", target)
		}
	}
}

// TestListenerQueries: a pod cannot make the bridge take it for the router that asks for multicast listeners. The bridge would then stop sending
// solicitations for addresses whose pods have not answered it.
func TestListenerQueries(t *testing.T) {
	a := newAsker(t, newStage(t))
	for _, frame := range [][]byte{listenerQuery(t, a.mac), solicitation(t, a.mac, a.own)} {
		if _, err := unix.Write(a.eth, frame); err != nil {
			t.Fatal(err)
		}
	}
	const header, hopByHop = 14 + 40, 8
	for frame := make([]byte, 2000); ; {
		size, err := unix.Read(a.bridge, frame)
		if err != nil {
			t.Fatalf("the bridge has not got the pod's solicitation: %v", err)
		}
		if size > header+hopByHop && frame[14+6] == 0 && frame[header+hopByHop] == byte(ipv6.ICMPTypeMulticastListenerQuery) {
			t.Error("the bridge has got the pod's query")
		}
		if size > header && frame[header] == byte(ipv6.ICMPTypeNeighborSolicitation) && slices.Max(frame[14+8:14+24]) == 0 {
			return // what was sent before it has arrived
		}
	}
}

// listenerQuery is the frame by which a router with a MAC asks for all multicast listeners (RFC 2710, 3).
func listenerQuery(t *testing.T, mac net.HardwareAddr) []byte {
	t.Helper()
	from := net.IP{0xfe, 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]}
	const delay, address = 4, 16
	message := icmp.Message{Type: ipv6.ICMPTypeMulticastListenerQuery, Body: &icmp.RawBody{Data: make([]byte, delay+address)}}
	body, err := message.Marshal(icmp.IPv6PseudoHeader(from, net.IPv6linklocalallnodes))
	if err != nil {
		t.Fatal(err)
	}
	alert := []byte{58, 0, 5, 2, 0, 0, 1, 0} // ICMPv6 follows; the option router alert, padded
	frame := slices.Concat(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, mac, []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(alert) + len(body)), 0, 1})
	return slices.Concat(frame, []byte(from), []byte(net.IPv6linklocalallnodes), alert, body)
}

// packets returns a socket for IPv6 packets of a device, with a time limit for reading.
func packets(t *testing.T, at ns.NetNS, device string) int {
	t.Helper()
	fd := -1
	err := at.Do(func(ns.NetNS) error {
		link, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		protocol := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_IPV6))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol)); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// solicitation is the frame by which a host with a MAC asks whether another one has an address (RFC 4862, 5.4.2).
func solicitation(t *testing.T, mac net.HardwareAddr, target netip.Addr) []byte {
	t.Helper()
	low := target.As16()
	to := netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 12: 0xff, 13: low[13], 14: low[14], 15: low[15]})
	message := icmp.Message{Type: ipv6.ICMPTypeNeighborSolicitation, Body: &icmp.RawBody{Data: append(make([]byte, 4), target.AsSlice()...)}}
	body, err := message.Marshal(icmp.IPv6PseudoHeader(net.IPv6unspecified, to.AsSlice()))
	if err != nil {
		t.Fatal(err)
	}
	frame := slices.Concat(net.HardwareAddr{0x33, 0x33, 0xff, low[13], low[14], low[15]}, mac, []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(body)), 58, 255})
	return slices.Concat(frame, []byte(net.IPv6unspecified), to.AsSlice(), body)
}
