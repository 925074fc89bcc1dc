package hostile

import (
	"fmt"
	"net"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// packet is what follows the Ethernet header.
type packet struct {
	class, name string
	layers      []gopacket.SerializableLayer
}

// apart sends the attacker's own packets to the ends that it may not reach, on every path that a frame can take. The packets are valid,
// or of kinds that a stateless filter passes.
func (m *maker) apart() {
	s := &m.scene
	for at, victim := range map[string]End{"the neighbour": s.Neighbour, "the remote pod": s.Remote} {
		for by, mac := range map[string]net.HardwareAddr{"straight": victim.MAC, "by the gateway": s.Gateway.MAC, "by the host veth": s.HostEnd} {
			for _, p := range append(s.ordinary(victim), s.unusual(victim)...) {
				eth := ethernet(s.Attacker.MAC, mac, layers.EthernetTypeIPv4)
				m.add(p.class, fmt.Sprintf("%s, %s, to %s", p.name, by, at), append([]gopacket.SerializableLayer{eth}, p.layers...)...)
				m.frames[len(m.frames)-1].Between = victim.IP == s.Remote.IP
			}
		}
	}
}

// ordinary returns packets as programs send them, and replies without a request.
func (s *Scene) ordinary(to End) []packet {
	const class = "own address to an isolated pod"
	header := func(protocol layers.IPProtocol) *layers.IPv4 { return ipv4(s.Attacker.IP, to.IP, protocol) }
	var packets []packet
	for _, ports := range [][2]uint16{{4000, 9}, {4000, 53}, {53, 4000}, {67, 68}, {4000, s.VXLANPort}} {
		packets = append(packets, packet{class + ": UDP", fmt.Sprintf("from port %d to %d", ports[0], ports[1]), []gopacket.SerializableLayer{
			header(layers.IPProtocolUDP), udp(ports[0], ports[1]),
		}})
	}
	for name, tcp := range map[string]*layers.TCP{
		"SYN": {SYN: true}, "SYN, ACK": {SYN: true, ACK: true}, "ACK": {ACK: true}, "RST": {RST: true}, "FIN, ACK": {FIN: true, ACK: true}, "no flag": {},
		"all flags": {FIN: true, SYN: true, RST: true, PSH: true, ACK: true, URG: true, ECE: true, CWR: true, NS: true},
	} {
		tcp.SrcPort, tcp.DstPort, tcp.Seq, tcp.Ack, tcp.Window = 80, 4000, 1, 1, 1000
		packets = append(packets, packet{class + ": TCP", name, []gopacket.SerializableLayer{header(layers.IPProtocolTCP), tcp}})
	}
	for name, kind := range map[string]uint8{
		"echo request": layers.ICMPv4TypeEchoRequest, "echo reply": layers.ICMPv4TypeEchoReply, "unreachable": layers.ICMPv4TypeDestinationUnreachable,
		"time exceeded": layers.ICMPv4TypeTimeExceeded, "timestamp": layers.ICMPv4TypeTimestampRequest,
	} {
		packets = append(packets, packet{class + ": ICMP", name, []gopacket.SerializableLayer{
			header(layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, 0), Id: 1, Seq: 1},
		}})
	}
	return packets
}

// unusual returns packets that filters may misclassify.
func (s *Scene) unusual(to End) []packet {
	const class = "own address to an isolated pod"
	header := func(protocol layers.IPProtocol) *layers.IPv4 { return ipv4(s.Attacker.IP, to.IP, protocol) }
	var packets []packet
	for _, protocol := range []layers.IPProtocol{
		0, layers.IPProtocolIPv4, layers.IPProtocolIPv6, layers.IPProtocolGRE, layers.IPProtocolESP, layers.IPProtocolAH, layers.IPProtocolSCTP, layers.IPProtocolUDPLite, 88, 255,
	} {
		packets = append(packets, packet{class + ": other protocols", fmt.Sprintf("protocol %d", protocol), []gopacket.SerializableLayer{header(protocol)}})
	}
	first, later, last := header(layers.IPProtocolUDP), header(layers.IPProtocolUDP), header(layers.IPProtocolTCP)
	first.Flags, first.Id, later.FragOffset, later.Id, last.FragOffset, last.Id = layers.IPv4MoreFragments, 7, 100, 8, 1, 9
	packets = append(packets,
		packet{class + ": fragments", "a first fragment", []gopacket.SerializableLayer{first, udp(4000, 9)}},
		packet{class + ": fragments", "a later fragment", []gopacket.SerializableLayer{later}},
		packet{class + ": fragments", "a fragment that would overwrite a TCP header", []gopacket.SerializableLayer{last}})
	routed, recorded := header(layers.IPProtocolUDP), header(layers.IPProtocolUDP)
	const looseRoute, recordRoute, length = 131, 7, 7
	by := s.Neighbour.IP.As4()
	routed.Options = []layers.IPv4Option{{OptionType: looseRoute, OptionLength: length, OptionData: append([]byte{4}, by[:]...)}}
	recorded.Options = []layers.IPv4Option{{OptionType: recordRoute, OptionLength: length, OptionData: []byte{4, 0, 0, 0, 0}}}
	return append(packets,
		packet{class + ": IP options", "loose source route", []gopacket.SerializableLayer{routed, udp(4000, 9)}},
		packet{class + ": IP options", "record route", []gopacket.SerializableLayer{recorded, udp(4000, 9)}})
}
