package hostile

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Honest returns a UDP datagram from one end to an address, in a frame for via, with a marker of that name. A sniffer must see it;
// otherwise the absence of hostile packets proves nothing.
func Honest(name string, from End, via net.HardwareAddr, to netip.AddrPort) (Frame, error) {
	m := &maker{}
	marker := fmt.Appendf(nil, "honest-%s-frame", name)
	m.addMarked("honest", name, marker, ethernet(from.MAC, via, layers.EthernetTypeIPv4),
		ipv4(from.IP, to.Addr(), layers.IPProtocolUDP), udp(4000, to.Port()), gopacket.Payload(marker))
	if m.err != nil {
		return Frame{}, m.err
	}
	return m.frames[0], nil
}

// ARPRequest returns an ARP request from an end for an address.
func ARPRequest(from End, address netip.Addr) (Frame, error) {
	m := &maker{}
	m.add("honest", "ARP for "+address.String(), ethernet(from.MAC, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, layers.EthernetTypeARP),
		arp(layers.ARPRequest, from, End{net.HardwareAddr{0, 0, 0, 0, 0, 0}, address}))
	if m.err != nil {
		return Frame{}, m.err
	}
	return m.frames[0], nil
}

// ARPAnswer returns the sender of a frame if it is an ARP reply.
func ARPAnswer(frame []byte) (End, bool) {
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	arp, ok := packet.Layer(layers.LayerTypeARP).(*layers.ARP)
	if !ok || arp.Operation != layers.ARPReply {
		return End{}, false
	}
	ip, ok := netip.AddrFromSlice(arp.SourceProtAddress)
	return End{MAC: net.HardwareAddr(arp.SourceHwAddress), IP: ip}, ok
}

// Tunnelled returns the payload of a tunnel packet to a node, for a UDP socket to send: a VXLAN header and an inner frame. It equals a
// node's own unless it comes from a wrong source address.
func Tunnelled(name string, vni uint32, from, to End) (Frame, error) {
	m := &maker{}
	marker := fmt.Appendf(nil, "tunnel-%s-frame", name)
	m.addMarked("tunnel", name, marker, &layers.VXLAN{ValidIDFlag: true, VNI: vni}, ethernet(from.MAC, to.MAC, layers.EthernetTypeIPv4),
		ipv4(from.IP, to.IP, layers.IPProtocolUDP), udp(4000, 9), gopacket.Payload(marker))
	if m.err != nil {
		return Frame{}, m.err
	}
	return m.frames[0], nil
}
