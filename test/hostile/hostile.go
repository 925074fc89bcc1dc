// Package hostile makes the packets of a malicious pod: with others' addresses, past the switch, into the tunnel, with addresses of
// infrastructure. None of them may arrive anywhere.
package hostile

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"regexp"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// End is a sender or receiver with its addresses.
type End struct {
	MAC net.HardwareAddr
	IP  netip.Addr
}

// Scene is the surroundings of the attack: the attacker's pod and all the ends that it may try to deceive.
type Scene struct {
	// Attacker is the pod that sends. Neighbour is a pod on its node, Remote a pod on another node.
	Attacker, Neighbour, Remote End
	// Gateway is tun0 of the attacker's node.
	Gateway End
	// HostEnd is the MAC address of the attacker's host veth.
	HostEnd net.HardwareAddr
	// Node and OtherNode are the nodes' own addresses.
	Node, OtherNode netip.Addr
	// Service is an address in the Services' range.
	Service netip.Addr
	// VXLANPort is the tunnels' port.
	VXLANPort uint16
	// Apart says that the attacker may not reach the neighbour and the remote pod: they are other tenants', or isolated by policies.
	Apart bool
	// Further are more ends, where the attacker may reach nothing; nil: none.
	Further *Further
}

// ClassTunnelled is the class of tunnel packets that a pod sends. They are ordinary packets if the tunnels use another port.
const ClassTunnelled = "tunnel packets from a pod"

// Frame is a packet to send.
type Frame struct {
	// Name describes the packet, Class the kind of attack.
	Class, Name string
	// Data is the frame.
	Data []byte
	// Marker is the text by which a sniffer recognises the packet, wherever it arrives and however it is encapsulated.
	Marker []byte
	// ToHost says that the frame is a fragment, which the switch cannot judge: it may arrive at the gateway's interface, where the host
	// reassembles it, and no further.
	ToHost bool
	// Between says that the packet has the attacker's own address and is sent to another node, which must drop it: it may be seen between the
	// nodes.
	Between bool
}

// maker builds frames and numbers their markers.
type maker struct {
	scene  Scene
	frames []Frame
	err    error
}

// Frames returns all packets for a scene.
func Frames(scene Scene) ([]Frame, error) {
	m := &maker{scene: scene}
	m.spoofedIP()
	m.spoofedMAC()
	m.spoofedARP()
	m.aroundTheSwitch()
	m.tunnel()
	m.infrastructure()
	m.oddFrames()
	m.oddPackets()
	if scene.Apart {
		m.apart()
	}
	if scene.Further != nil {
		m.further()
	}
	return m.frames, m.err
}

func (m *maker) marker() []byte { return fmt.Appendf(nil, "hostile-%04d-frame", len(m.frames)) }

var markers = regexp.MustCompile(`hostile-\d{4}-frame`) //nolint:gochecknoglobals // a constant

// Markers returns the markers of Frames that a received frame contains.
func Markers(received []byte) []string {
	if !bytes.Contains(received, []byte("hostile-")) { // in most frames, and much faster
		return nil
	}
	var found []string
	for _, marker := range markers.FindAll(received, -1) {
		found = append(found, string(marker))
	}
	return found
}

// add serialises layers with a marker as their payload.
func (m *maker) add(class, name string, parts ...gopacket.SerializableLayer) {
	marker := m.marker()
	m.addMarked(class, name, marker, append(parts, gopacket.Payload(marker))...)
}

func (m *maker) addMarked(class, name string, marker []byte, parts ...gopacket.SerializableLayer) {
	var network gopacket.NetworkLayer
	for _, part := range parts {
		switch l := part.(type) {
		case *layers.IPv4:
			network = l
		case *layers.IPv6:
			network = l
		case *layers.UDP:
			m.note(l.SetNetworkLayerForChecksum(network))
		case *layers.TCP:
			m.note(l.SetNetworkLayerForChecksum(network))
		case *layers.ICMPv6:
			m.note(l.SetNetworkLayerForChecksum(network))
		}
	}
	buffer := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buffer, options, parts...); err != nil {
		m.note(fmt.Errorf("%s: %s: %w", class, name, err))
		return
	}
	m.frames = append(m.frames, Frame{Class: class, Name: name, Data: buffer.Bytes(), Marker: marker})
}

func (m *maker) note(err error) {
	if m.err == nil {
		m.err = err
	}
}

func ethernet(from, to net.HardwareAddr, kind layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: kind}
}

func ipv4(from, to netip.Addr, protocol layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Protocol: protocol, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
}

func udp(from, to uint16) *layers.UDP {
	return &layers.UDP{SrcPort: layers.UDPPort(from), DstPort: layers.UDPPort(to)}
}

// targets returns the ends that the attacker tries to reach.
func (s *Scene) targets() map[string]End {
	return map[string]End{
		"the neighbour": s.Neighbour, "the remote pod": s.Remote, "the gateway": s.Gateway,
	}
}

// identities returns the addresses that the attacker may pretend to have.
func (s *Scene) identities() map[string]netip.Addr {
	return map[string]netip.Addr{
		"the neighbour": s.Neighbour.IP, "the remote pod": s.Remote.IP, "the gateway": s.Gateway.IP, "the node": s.Node,
		"the other node": s.OtherNode, "a Service": s.Service, "0.0.0.0": netip.IPv4Unspecified(),
		"the loopback": netip.MustParseAddr("127.0.0.1"), "broadcast": netip.MustParseAddr("255.255.255.255"),
		"multicast": netip.MustParseAddr("224.0.0.1"), "outside": netip.MustParseAddr("198.51.100.10"),
	}
}

func (m *maker) spoofedIP() {
	a := m.scene.Attacker
	for as, ip := range m.scene.identities() {
		for to, target := range m.scene.targets() {
			if ip == target.IP {
				continue
			}
			eth := ethernet(a.MAC, m.frameTo(target), layers.EthernetTypeIPv4)
			m.add("spoofed IPv4 source", fmt.Sprintf("UDP as %s to %s", as, to), eth, ipv4(ip, target.IP, layers.IPProtocolUDP), udp(4000, 9))
			m.add("spoofed IPv4 source", fmt.Sprintf("TCP as %s to %s", as, to), eth, ipv4(ip, target.IP, layers.IPProtocolTCP),
				&layers.TCP{SrcPort: 4000, DstPort: 80, SYN: true, Window: 1000})
			m.add("spoofed IPv4 source", fmt.Sprintf("ICMP as %s to %s", as, to), eth, ipv4(ip, target.IP, layers.IPProtocolICMPv4),
				&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 1, Seq: 1})
		}
	}
}

// frameTo returns the MAC address that a correct pod sends to: everything in the cluster is on-link.
func (m *maker) frameTo(target End) net.HardwareAddr { return target.MAC }

func (m *maker) spoofedMAC() {
	s := &m.scene
	for as, mac := range map[string]net.HardwareAddr{
		"the neighbour": s.Neighbour.MAC, "the remote pod": s.Remote.MAC, "the gateway": s.Gateway.MAC, "the host veth": s.HostEnd,
		"all zeros": {0, 0, 0, 0, 0, 0}, "broadcast": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "a group": {1, 0, 0x5e, 0, 0, 1},
	} {
		for to, target := range s.targets() {
			m.add("spoofed MAC source", fmt.Sprintf("UDP from the MAC of %s to %s", as, to),
				ethernet(mac, target.MAC, layers.EthernetTypeIPv4), ipv4(s.Attacker.IP, target.IP, layers.IPProtocolUDP), udp(4000, 9))
		}
	}
}

// arp returns an ARP packet. It has no payload: the marker follows as padding of the frame, which is forwarded with it.
func arp(operation uint16, sender, target End) *layers.ARP {
	return &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4,
		Operation: operation, SourceHwAddress: sender.MAC, SourceProtAddress: sender.IP.AsSlice(),
		DstHwAddress: target.MAC, DstProtAddress: target.IP.AsSlice(),
	}
}

func (m *maker) spoofedARP() {
	s := &m.scene
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	unknown := net.HardwareAddr{0, 0, 0, 0, 0, 0}
	for as, ip := range s.identities() {
		for to, target := range s.targets() {
			if ip == target.IP {
				continue
			}
			m.add("spoofed ARP sender address", fmt.Sprintf("reply as %s to %s", as, to),
				ethernet(s.Attacker.MAC, target.MAC, layers.EthernetTypeARP), arp(layers.ARPReply, End{s.Attacker.MAC, ip}, target))
			m.add("spoofed ARP sender address", fmt.Sprintf("request as %s to %s", as, to),
				ethernet(s.Attacker.MAC, broadcast, layers.EthernetTypeARP), arp(layers.ARPRequest, End{s.Attacker.MAC, ip}, End{unknown, target.IP}))
			m.add("gratuitous ARP", fmt.Sprintf("announcing %s to %s", as, to),
				ethernet(s.Attacker.MAC, target.MAC, layers.EthernetTypeARP), arp(layers.ARPRequest, End{s.Attacker.MAC, ip}, End{unknown, ip}))
		}
	}
	for to, target := range s.targets() {
		m.add("spoofed ARP sender MAC", "own address, the neighbour's MAC, to "+to,
			ethernet(s.Attacker.MAC, target.MAC, layers.EthernetTypeARP), arp(layers.ARPReply, End{s.Neighbour.MAC, s.Attacker.IP}, target))
		m.add("spoofed ARP frame", "own address in a frame with the neighbour's MAC, to "+to,
			ethernet(s.Neighbour.MAC, target.MAC, layers.EthernetTypeARP), arp(layers.ARPReply, s.Attacker, target))
	}
}

// aroundTheSwitch sends to the host veth's MAC address, where the node's kernel may accept the frame without the switch.
func (m *maker) aroundTheSwitch() {
	s := &m.scene
	for as, ip := range map[string]netip.Addr{"itself": s.Attacker.IP, "the neighbour": s.Neighbour.IP, "outside": netip.MustParseAddr("198.51.100.10")} {
		for to, target := range map[string]netip.Addr{
			"the neighbour": s.Neighbour.IP, "the remote pod": s.Remote.IP, "the other node": s.OtherNode,
			"the loopback": netip.MustParseAddr("127.0.0.1"),
		} {
			if ip == s.Attacker.IP && to != "the loopback" {
				continue // through the switch, which also gets it, that is an honest packet
			}
			m.add("to the host veth", fmt.Sprintf("UDP as %s to %s", as, to),
				ethernet(s.Attacker.MAC, s.HostEnd, layers.EthernetTypeIPv4), ipv4(ip, target, layers.IPProtocolUDP), udp(4000, 9))
		}
	}
}

func (m *maker) tunnel() {
	s := &m.scene
	inner := []gopacket.SerializableLayer{
		ethernet(s.Attacker.MAC, s.Remote.MAC, layers.EthernetTypeIPv4), ipv4(s.Neighbour.IP, s.Remote.IP, layers.IPProtocolUDP), udp(4000, 9),
	}
	for to, node := range map[string]netip.Addr{"its node": s.Node, "the other node": s.OtherNode, "the gateway": s.Gateway.IP, "a Service": s.Service} {
		for vni := range uint32(3) {
			parts := []gopacket.SerializableLayer{
				ethernet(s.Attacker.MAC, s.Gateway.MAC, layers.EthernetTypeIPv4), ipv4(s.Attacker.IP, node, layers.IPProtocolUDP),
				udp(50000, s.VXLANPort), &layers.VXLAN{ValidIDFlag: true, VNI: vni * 1000},
			}
			m.add(ClassTunnelled, fmt.Sprintf("VNI %d to %s", vni*1000, to), append(parts, inner...)...)
		}
	}
	m.tunnelFragments()
}

// tunnelFragments sends tunnel packets in two fragments. The first ends after the tunnel's header.
func (m *maker) tunnelFragments() {
	s := &m.scene
	for i, node := range []netip.Addr{s.OtherNode, s.Node, s.Gateway.IP} {
		eth := ethernet(s.Attacker.MAC, s.Gateway.MAC, layers.EthernetTypeIPv4)
		first, second := ipv4(s.Attacker.IP, node, layers.IPProtocolUDP), ipv4(s.Attacker.IP, node, layers.IPProtocolUDP)
		first.Flags, first.Id, second.Id = layers.IPv4MoreFragments, uint16(1000+i), uint16(1000+i)
		// UDP and VXLAN headers, and the marker, padded to a multiple of 8.
		marker := m.marker()
		pad := make([]byte, (8-len(marker)%8)%8)
		second.FragOffset = uint16(8+8+len(marker)+len(pad)) / 8
		m.addMarked(ClassTunnelled, "the first fragment of a packet to "+node.String(), marker, eth,
			first, udp(50000, s.VXLANPort), &layers.VXLAN{ValidIDFlag: true}, gopacket.Payload(append(marker, pad...)))
		m.frames[len(m.frames)-1].ToHost = true
		m.add(ClassTunnelled, "the second fragment of a packet to "+node.String(), eth, second)
		m.frames[len(m.frames)-1].ToHost = true
	}
}

func (m *maker) infrastructure() {
	s := &m.scene
	for to, target := range s.targets() {
		if to == "the gateway" {
			continue
		}
		eth := ethernet(s.Attacker.MAC, target.MAC, layers.EthernetTypeIPv4)
		m.add("DHCP server", "an offer to "+to, eth, ipv4(s.Attacker.IP, target.IP, layers.IPProtocolUDP), udp(67, 68))
		m.add("ICMP redirect", "to "+to, eth, ipv4(s.Attacker.IP, target.IP, layers.IPProtocolICMPv4),
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeRedirect, 1)})
		six := &layers.IPv6{
			Version: 6, HopLimit: 255, NextHeader: layers.IPProtocolICMPv6,
			SrcIP: net.ParseIP("fe80::1"), DstIP: net.ParseIP("ff02::1"),
		}
		m.add("router advertisement", "to "+to, ethernet(s.Attacker.MAC, target.MAC, layers.EthernetTypeIPv6), six,
			&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeRouterAdvertisement, 0)})
		m.add("IPv6 in an IPv4 network", "UDP to "+to, ethernet(s.Attacker.MAC, target.MAC, layers.EthernetTypeIPv6),
			&layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: net.ParseIP("fd00::1"), DstIP: net.ParseIP("fd00::2")},
			udp(4000, 9))
	}
	for name, group := range map[string]net.HardwareAddr{
		"spanning tree": {1, 0x80, 0xc2, 0, 0, 0}, "pause": {1, 0x80, 0xc2, 0, 0, 1}, "LLDP": {1, 0x80, 0xc2, 0, 0, 0xe},
	} {
		m.add("protocols between switches", name, ethernet(s.Attacker.MAC, group, layers.EthernetTypeLinkLayerDiscovery))
	}
}

func (m *maker) oddFrames() {
	s := &m.scene
	for to, target := range s.targets() {
		inner := ipv4(s.Attacker.IP, target.IP, layers.IPProtocolUDP)
		m.add("VLAN tag", "802.1Q to "+to, ethernet(s.Attacker.MAC, target.MAC, layers.EthernetTypeDot1Q),
			&layers.Dot1Q{VLANIdentifier: 5, Type: layers.EthernetTypeIPv4}, inner, udp(4000, 9))
		m.add("VLAN tag", "priority tag to "+to, ethernet(s.Attacker.MAC, target.MAC, layers.EthernetTypeDot1Q),
			&layers.Dot1Q{VLANIdentifier: 0, Priority: 7, Type: layers.EthernetTypeIPv4}, inner, udp(4000, 9))
		m.add("double VLAN tag", "QinQ to "+to, ethernet(s.Attacker.MAC, target.MAC, layers.EthernetTypeQinQ),
			&layers.Dot1Q{VLANIdentifier: 5, Type: layers.EthernetTypeDot1Q},
			&layers.Dot1Q{VLANIdentifier: 6, Type: layers.EthernetTypeIPv4}, inner, udp(4000, 9))
		m.add("MPLS", "a label to "+to, ethernet(s.Attacker.MAC, target.MAC, layers.EthernetTypeMPLSUnicast),
			&layers.MPLS{Label: 100, StackBottom: true, TTL: 64}, inner, udp(4000, 9))
		for _, kind := range []layers.EthernetType{0x88b5, 0x8863, 0x894f, 0x0806 + 1, 0xffff} {
			m.add("unknown EtherType", fmt.Sprintf("%#04x to %s", uint16(kind), to), ethernet(s.Attacker.MAC, target.MAC, kind))
		}
		group := net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}
		m.add("unicast packet in a group's frame", "multicast frame to "+to, ethernet(s.Attacker.MAC, group, layers.EthernetTypeIPv4), inner, udp(4000, 9))
		broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		m.add("unicast packet in a group's frame", "broadcast frame to "+to, ethernet(s.Attacker.MAC, broadcast, layers.EthernetTypeIPv4), inner, udp(4000, 9))
	}
}

func (m *maker) oddPackets() {
	s := &m.scene
	for to, target := range s.targets() {
		eth := ethernet(s.Attacker.MAC, target.MAC, layers.EthernetTypeIPv4)
		for _, protocol := range []layers.IPProtocol{0, 255, layers.IPProtocolIGMP, layers.IPProtocolOSPF} {
			m.add("unusual protocol with another's address", fmt.Sprintf("protocol %d as the neighbour to %s", protocol, to), eth,
				ipv4(s.otherThan(target), target.IP, protocol))
		}
		later := ipv4(s.otherThan(target), target.IP, layers.IPProtocolUDP)
		later.FragOffset = 100
		m.add("fragment with another's address", "a later fragment to "+to, eth, later)
		first := ipv4(s.otherThan(target), target.IP, layers.IPProtocolUDP)
		first.Flags = layers.IPv4MoreFragments
		m.add("fragment with another's address", "a first fragment to "+to, eth, first, udp(4000, 9))
		padded := ipv4(s.otherThan(target), target.IP, layers.IPProtocolUDP)
		m.add("padded packet with another's address", "with 1,300 bytes of padding to "+to, eth, padded, udp(4000, 9), gopacket.Payload(make([]byte, 1300)))
	}
	for name, to := range map[string]string{
		"all hosts": "224.0.0.1", "a group": "239.1.2.3", "broadcast": "255.255.255.255", "this network": "0.0.0.1", "the loopback": "127.0.0.1",
	} {
		group := net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}
		for frame, mac := range map[string]net.HardwareAddr{"group": group, "gateway": s.Gateway.MAC, "neighbour": s.Neighbour.MAC} {
			m.add("destination that is no unicast address of a host", fmt.Sprintf("to %s in a frame to the %s", name, frame),
				ethernet(s.Attacker.MAC, mac, layers.EthernetTypeIPv4), ipv4(s.Attacker.IP, netip.MustParseAddr(to), layers.IPProtocolUDP), udp(4000, 9))
		}
	}
}

// otherThan returns an address that the attacker may not use, and that is not the target's.
func (s *Scene) otherThan(target End) netip.Addr {
	if target.IP == s.Neighbour.IP {
		return s.Remote.IP
	}
	return s.Neighbour.IP
}
