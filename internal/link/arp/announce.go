package arp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// ARP constants for a gratuitous announcement (RFC 826, and RFC 5944, section 4.6).
const (
	arpEthernet = 1
	arpRequest  = 1
	arpReply    = 2
	arpSize     = 28
)

// Announce announces by gratuitous ARP, on the network of a device, that addresses are here now: neighbours and switches update their
// entries. It sends a request and a reply for each address, because not every neighbour accepts both.
func Announce(device string, addresses ...netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return fmt.Errorf("announcing addresses on %s: %w", device, err)
	}
	const macBytes = 6
	if len(dev.HardwareAddr) != macBytes {
		return nil // no network that asks by ARP
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("announcing addresses on %s: opening a packet socket (it takes CAP_NET_RAW): %w", device, err)
	}
	defer unix.Close(socket)
	to := unix.SockaddrLinklayer{Ifindex: dev.Index, Protocol: bigEndian(unix.ETH_P_ARP), Halen: macBytes}
	copy(to.Addr[:], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	var errs []error
	for _, address := range addresses {
		for _, operation := range []uint16{arpRequest, arpReply} {
			if err := unix.Sendto(socket, gratuitous(operation, dev.HardwareAddr, address), 0, &to); err != nil {
				errs = append(errs, fmt.Errorf("announcing %s on %s: %w", address, device, err))
			}
		}
	}
	return errors.Join(errs...)
}

// bigEndian returns a number whose bytes in memory are those of n in network order.
func bigEndian(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// gratuitous is an ARP message that names one address as both sender and target.
func gratuitous(operation uint16, mac net.HardwareAddr, address netip.Addr) []byte {
	target := mac
	if operation == arpRequest {
		target = make(net.HardwareAddr, len(mac))
	}
	b := make([]byte, 0, arpSize)
	b = binary.BigEndian.AppendUint16(b, arpEthernet)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	b = append(b, byte(len(mac)), byte(address.BitLen()/8)) //nolint:gosec // 6 and 4
	b = binary.BigEndian.AppendUint16(b, operation)
	return slices.Concat(b, mac, address.AsSlice(), target, address.AsSlice())
}
