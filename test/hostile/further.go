package hostile

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Further are more ends and ways of an attack. Of its packets, nothing may arrive at the hosts, and at the neighbour and the remote pod.
type Further struct {
	// Addresses are addresses that the attacker may not use and at which it may reach nothing, by their names: link-local ones, the nodes'.
	Addresses map[string]netip.Addr
	// Ways are the MAC addresses to which frames for them are sent, by their names.
	Ways map[string]net.HardwareAddr
	// Openings are the Services that the attacker may reach, with its own addresses, by their names.
	Openings map[string]Opening
}

// Opening is a Service's address, protocol (TCP or UDP) and port.
type Opening struct {
	IP       netip.Addr
	Protocol layers.IPProtocol
	Port     uint16
}

// broadcastMAC is the MAC address of all.
func broadcastMAC() net.HardwareAddr { return net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} }

// each calls f for each entry, in the order of the names.
func each[V any](of map[string]V, f func(name string, v V)) {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		f(name, of[name])
	}
}

// further adds the packets of scene.Further.
func (m *maker) further() {
	f := m.scene.Further
	each(f.Addresses, func(name string, addr netip.Addr) {
		each(f.Ways, func(way string, mac net.HardwareAddr) {
			m.toAddress(fmt.Sprintf("to %s, in a frame to %s", name, way), addr, mac)
		})
		m.asAddress(name, addr)
	})
	each(f.Openings, func(name string, o Opening) {
		each(f.Ways, func(way string, mac net.HardwareAddr) {
			m.throughOpening(fmt.Sprintf("to %s, in a frame to %s", name, way), o, mac)
		})
		m.asOpening(name, o)
	})
	each(f.Ways, m.extensions)
}

// frame adds an IPv4 packet in a frame of the attacker.
func (m *maker) frame(class, name string, to net.HardwareAddr, parts ...gopacket.SerializableLayer) {
	m.add(class, name, append([]gopacket.SerializableLayer{ethernet(m.scene.Attacker.MAC, to, layers.EthernetTypeIPv4)}, parts...)...)
}

// toAddress sends to an address at which the attacker may reach nothing.
func (m *maker) toAddress(name string, addr netip.Addr, mac net.HardwareAddr) {
	s := &m.scene
	for as, from := range map[string]netip.Addr{"itself": s.Attacker.IP, "the neighbour": s.Neighbour.IP} {
		const class = "to an address of the host"
		m.frame(class, "UDP as "+as+" "+name, mac, ipv4(from, addr, layers.IPProtocolUDP), udp(4000, 9))
		m.frame(class, "a DHCP request as "+as+" "+name, mac, ipv4(from, addr, layers.IPProtocolUDP), udp(68, 67))
		m.frame(class, "SYN as "+as+" "+name, mac, ipv4(from, addr, layers.IPProtocolTCP), &layers.TCP{SrcPort: 4000, DstPort: 80, SYN: true, Window: 1000})
		m.frame(class, "SYN, ACK as "+as+" "+name, mac, ipv4(from, addr, layers.IPProtocolTCP), &layers.TCP{SrcPort: 80, DstPort: 4000, SYN: true, ACK: true, Window: 1000})
		for kind, number := range map[string]uint8{"request": layers.ICMPv4TypeEchoRequest, "reply": layers.ICMPv4TypeEchoReply} {
			m.frame(class, "echo "+kind+" as "+as+" "+name, mac, ipv4(from, addr, layers.IPProtocolICMPv4),
				&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(number, 0), Id: 1, Seq: 1})
		}
		first, later := ipv4(from, addr, layers.IPProtocolUDP), ipv4(from, addr, layers.IPProtocolUDP)
		first.Flags, first.Id, later.FragOffset, later.Id = layers.IPv4MoreFragments, 21, 100, 22
		m.frame(class, "a first fragment as "+as+" "+name, mac, first, udp(4000, 9))
		m.frame(class, "a later fragment as "+as+" "+name, mac, later)
	}
}

// asAddress sends as an address that the attacker may not use.
func (m *maker) asAddress(name string, addr netip.Addr) {
	s := &m.scene
	for to, target := range s.targets() {
		if addr == target.IP {
			continue
		}
		const class = "as an address of the host"
		m.frame(class, fmt.Sprintf("UDP as %s to %s", name, to), target.MAC, ipv4(addr, target.IP, layers.IPProtocolUDP), udp(4000, 9))
		m.frame(class, fmt.Sprintf("a DHCP offer as %s to %s", name, to), target.MAC, ipv4(addr, target.IP, layers.IPProtocolUDP), udp(67, 68))
		m.frame(class, fmt.Sprintf("echo reply as %s to %s", name, to), target.MAC, ipv4(addr, target.IP, layers.IPProtocolICMPv4),
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoReply, 0), Id: 1, Seq: 1})
		own := End{s.Attacker.MAC, addr}
		m.add(class, fmt.Sprintf("ARP reply as %s to %s", name, to), ethernet(s.Attacker.MAC, target.MAC, layers.EthernetTypeARP), arp(layers.ARPReply, own, target))
		m.add(class, fmt.Sprintf("ARP request as %s for %s", name, to), ethernet(s.Attacker.MAC, broadcastMAC(), layers.EthernetTypeARP),
			arp(layers.ARPRequest, own, End{make(net.HardwareAddr, 6), target.IP}))
	}
}

// transport returns the header of an opening's protocol.
func (o *Opening) transport(from, to uint16) gopacket.SerializableLayer {
	if o.Protocol == layers.IPProtocolTCP {
		return &layers.TCP{SrcPort: layers.TCPPort(from), DstPort: layers.TCPPort(to), SYN: true, Window: 1000}
	}
	return udp(from, to)
}

// throughOpening sends to a Service that the attacker may reach, with what it may not use, or what the Service does not have.
func (m *maker) throughOpening(name string, o Opening, mac net.HardwareAddr) {
	s := &m.scene
	own := s.Attacker.IP
	send := func(class, what string, parts ...gopacket.SerializableLayer) {
		m.frame(class, what+" "+name, mac, parts...)
	}
	identities := s.identities()
	maps.Copy(identities, s.Further.Addresses)
	identities["the Service itself"] = o.IP
	each(identities, func(as string, from netip.Addr) {
		send("spoofed source to an open Service", "as "+as, ipv4(from, o.IP, o.Protocol), o.transport(4000, o.Port))
	})
	later := ipv4(s.Neighbour.IP, o.IP, o.Protocol)
	later.FragOffset, later.Id = 1, 23
	send("spoofed source to an open Service", "a later fragment as the neighbour", later)
	first := ipv4(s.Neighbour.IP, o.IP, o.Protocol)
	first.Flags, first.Id = layers.IPv4MoreFragments, 24
	send("spoofed source to an open Service", "a first fragment as the neighbour", first, o.transport(4000, o.Port))
	for as, from := range map[string]net.HardwareAddr{"the neighbour": s.Neighbour.MAC, "the gateway": s.Gateway.MAC, "the host veth": s.HostEnd} {
		m.add("spoofed MAC source to an open Service", "from the MAC of "+as+" "+name, ethernet(from, mac, layers.EthernetTypeIPv4),
			ipv4(own, o.IP, o.Protocol), o.transport(4000, o.Port))
	}
	m.add("VLAN tag", "802.1Q "+name, ethernet(s.Attacker.MAC, mac, layers.EthernetTypeDot1Q), &layers.Dot1Q{VLANIdentifier: 5, Type: layers.EthernetTypeIPv4},
		ipv4(own, o.IP, o.Protocol), o.transport(4000, o.Port))

	const beside = "beside an open Service"
	send(beside, "its port as the source", ipv4(own, o.IP, o.Protocol), o.transport(o.Port, 4000))
	send(beside, "the next port", ipv4(own, o.IP, o.Protocol), o.transport(4000, o.Port+1))
	other := Opening{Protocol: layers.IPProtocolTCP}
	if o.Protocol == layers.IPProtocolTCP {
		other.Protocol = layers.IPProtocolUDP
	}
	send(beside, "another protocol", ipv4(own, o.IP, other.Protocol), other.transport(4000, o.Port))
	send(beside, "UDP-Lite", ipv4(own, o.IP, layers.IPProtocolUDPLite), udp(4000, o.Port))
	send(beside, "echo request", ipv4(own, o.IP, layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 1, Seq: 1})
	mine := ipv4(own, o.IP, o.Protocol)
	mine.FragOffset, mine.Id = 1, 25
	send(beside, "a later fragment", mine)
}

// asOpening sends as a Service that the attacker may reach, as if it answered.
func (m *maker) asOpening(name string, o Opening) {
	for to, target := range m.scene.targets() {
		m.frame("as an open Service", fmt.Sprintf("as %s to %s", name, to), target.MAC, ipv4(o.IP, target.IP, o.Protocol), o.transport(o.Port, 4000))
	}
}

// extensions sends IPv6 packets, with and without extension headers, in frames to a MAC address.
func (m *maker) extensions(way string, mac net.HardwareAddr) {
	const class = "IPv6 extension headers"
	own := net.ParseIP("fe80::1")
	for at, to := range map[string]net.IP{"all nodes": net.ParseIP("ff02::1"), "a neighbour": net.ParseIP("fe80::2"), "outside": net.ParseIP("2001:db8::1")} {
		eth := ethernet(m.scene.Attacker.MAC, mac, layers.EthernetTypeIPv6)
		header := func(next layers.IPProtocol) *layers.IPv6 {
			return &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: next, SrcIP: own, DstIP: to}
		}
		raw := func(next layers.IPProtocol, body ...byte) gopacket.Payload {
			return append([]byte{byte(next)}, body...)
		}
		// Extension headers of 8 bytes: next header, length, and 6 bytes.
		const datagrams, icmp = layers.IPProtocolUDP, layers.IPProtocolICMPv6
		advertisement := gopacket.Payload{134, 0, 0, 0, 64, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}
		neighbour := append(gopacket.Payload{136, 0, 0, 0, 0xe0, 0, 0, 0}, own...)
		for what, parts := range map[string][]gopacket.SerializableLayer{
			"hop-by-hop options":                     {header(layers.IPProtocolIPv6HopByHop), raw(datagrams, 0, 1, 4, 0, 0, 0, 0), udp6()},
			"destination options":                    {header(layers.IPProtocolIPv6Destination), raw(datagrams, 0, 1, 4, 0, 0, 0, 0), udp6()},
			"a routing header of type 0":             {header(layers.IPProtocolIPv6Routing), raw(datagrams, 0, 0, 0, 0, 0, 0, 0), udp6()},
			"an atomic fragment":                     {header(layers.IPProtocolIPv6Fragment), raw(datagrams, 0, 0, 0, 0, 0, 0, 7), udp6()},
			"a first fragment":                       {header(layers.IPProtocolIPv6Fragment), raw(datagrams, 0, 0, 1, 0, 0, 0, 8), udp6()},
			"a later fragment":                       {header(layers.IPProtocolIPv6Fragment), raw(datagrams, 0, 0, 64, 0, 0, 0, 9)},
			"a router advertisement behind options":  {header(layers.IPProtocolIPv6Destination), raw(icmp, 0, 1, 4, 0, 0, 0, 0), advertisement},
			"a router advertisement in a fragment":   {header(layers.IPProtocolIPv6Fragment), raw(icmp, 0, 0, 0, 0, 0, 0, 7), advertisement},
			"a neighbour advertisement":              {header(icmp), neighbour},
			"a neighbour advertisement in fragments": {header(layers.IPProtocolIPv6Fragment), raw(icmp, 0, 0, 1, 0, 0, 0, 10), neighbour},
			"no next header":                         {header(layers.IPProtocolNoNextHeader)},
		} {
			m.add(class, fmt.Sprintf("%s to %s, in a frame to %s", what, at, way), append([]gopacket.SerializableLayer{eth}, parts...)...)
		}
		m.add("DHCP server", fmt.Sprintf("a DHCPv6 advertisement to %s, in a frame to %s", at, way), eth, header(datagrams), udp(547, 546))
	}
}

// udp6 is a UDP header whose checksum is not computed: extension headers are before it.
func udp6() gopacket.Payload { return gopacket.Payload{0x0f, 0xa0, 0, 9, 0, 26, 0, 1} }
