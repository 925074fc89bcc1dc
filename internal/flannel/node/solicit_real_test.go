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

// TestSolicitations: a pod asks by duplicate address detection for its own addresses only. For an address that the bridge is about to use,
// such as its link-local one, the bridge would give it up.
func TestSolicitations(t *testing.T) {
	s := newStage(t)
	h := serve(t, s)
	pod := space(t)
	result, err := add(t, h, "pod", pod)
	if err != nil {
		t.Fatal(err)
	}
	mac, err := net.ParseMAC(result.Interfaces[2].Mac)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := netip.AddrFromSlice(result.IPs[1].Address.IP)
	bridge, eth := packets(t, s.space, "cni0"), packets(t, pod, "eth0")
	targets := []netip.Addr{netip.MustParseAddr("fe80::858:aff:fef4:301"), s.state.Subnets[1].Addr().Next(), own}
	for _, target := range targets {
		if _, err := unix.Write(eth, solicitation(t, mac, target)); err != nil {
			t.Fatal(err)
		}
	}
	var arrived []netip.Addr
	for frame := make([]byte, 2000); !slices.Contains(arrived, own); { // the last one
		size, err := unix.Read(bridge, frame)
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
