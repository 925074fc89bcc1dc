package arp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An address is probed as in RFC 5227, section 2.1.1, three times, but within less than half a second: an address that moves to this node
// is not in use until the probe ends, and hosts of one network answer within milliseconds.
const (
	probes        = 3
	probeInterval = 100 * time.Millisecond
)

// AddressConflict probes an address on a device's network by ARP, and returns the MAC address of the host that has it; nil if no host answers, or
// only the neighbour at one of the known addresses. It takes about 0.3 s.
func AddressConflict(device string, address netip.Addr, known []netip.Addr) (net.HardwareAddr, error) {
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("probing %s on %s: %w", address, device, err)
	}
	const macBytes = 6
	if len(dev.HardwareAddr) != macBytes {
		return nil, nil //nolint:nilnil // no network that asks by ARP
	}
	mac, err := probe(dev, address)
	if err != nil || mac == nil {
		return nil, err
	}
	neighbours, err := netlink.NeighList(dev.Index, unix.AF_INET)
	if err != nil {
		return nil, fmt.Errorf("neighbours on %s: %w", device, err)
	}
	for _, n := range neighbours {
		if ip, ok := netip.AddrFromSlice(n.IP); ok && slices.Contains(known, ip.Unmap()) && bytes.Equal(n.HardwareAddr, mac) {
			return nil, nil //nolint:nilnil // a node that is about to give it up
		}
	}
	return mac, nil
}

// probe sends ARP probes for an address, and returns the MAC address of the first other host that answers for it; nil if none does.
func probe(dev *net.Interface, address netip.Addr) (net.HardwareAddr, error) {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(bigEndian(unix.ETH_P_ARP)))
	if err != nil {
		return nil, fmt.Errorf("probing %s on %s: opening a packet socket (it takes CAP_NET_RAW): %w", address, dev.Name, err)
	}
	defer unix.Close(socket)
	at := unix.SockaddrLinklayer{Ifindex: dev.Index, Protocol: bigEndian(unix.ETH_P_ARP), Halen: uint8(len(dev.HardwareAddr))} //nolint:gosec // 6
	if err := unix.Bind(socket, &at); err != nil {
		return nil, fmt.Errorf("probing %s on %s: %w", address, dev.Name, err)
	}
	to := at
	copy(to.Addr[:], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	for range probes {
		if err := unix.Sendto(socket, question(dev.HardwareAddr, address), 0, &to); err != nil {
			return nil, fmt.Errorf("probing %s on %s: %w", address, dev.Name, err)
		}
		if mac, err := answered(socket, dev, address, time.Now().Add(probeInterval)); err != nil || mac != nil {
			return mac, err
		}
	}
	return nil, nil //nolint:nilnil // none has it
}

// question is an ARP probe: a request without a sender's address, so that it changes no ARP cache.
func question(mac net.HardwareAddr, address netip.Addr) []byte {
	b := make([]byte, 0, arpSize)
	b = binary.BigEndian.AppendUint16(b, arpEthernet)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	b = append(b, byte(len(mac)), byte(address.BitLen()/8)) //nolint:gosec // 6 and 4
	b = binary.BigEndian.AppendUint16(b, arpRequest)
	return slices.Concat(b, mac, netip.IPv4Unspecified().AsSlice(), make([]byte, len(mac)), address.AsSlice())
}

// answered reads ARP messages until another host's has the address as its sender, or until the deadline.
func answered(socket int, dev *net.Interface, address netip.Addr, deadline time.Time) (net.HardwareAddr, error) {
	const senderMAC, senderIP, targetMAC = 8, 14, 18
	b := make([]byte, 128)
	for {
		rest := time.Until(deadline)
		if rest <= 0 {
			return nil, nil //nolint:nilnil // none has answered
		}
		fds := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLIN}} //nolint:gosec // a descriptor
		if _, err := unix.Poll(fds, int(rest.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("probing %s on %s: %w", address, dev.Name, err)
		}
		n, _, err := unix.Recvfrom(socket, b, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("probing %s on %s: %w", address, dev.Name, err)
		}
		if n < arpSize || !bytes.Equal(b[senderIP:targetMAC], address.AsSlice()) || bytes.Equal(b[senderMAC:senderIP], dev.HardwareAddr) {
			continue
		}
		return slices.Clone(b[senderMAC:senderIP]), nil
	}
}
