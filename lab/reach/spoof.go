package reach

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weft.dev/weft/test/traffic"
)

// device is a pod's interface.
const device = "eth0"

// arrival is how long the test waits for a frame that must not arrive, once one that was sent after it has arrived.
const arrival = 300 * time.Millisecond

var errControl = errors.New("an honest frame of the same sender does not arrive: spoofing cannot be judged")

// Spoof sends frames with another source from one pod to another of its network, and then an honest one.
func Spoof(from, to Pod, other netip.Addr, otherMAC net.HardwareAddr) ([]Row, error) {
	raw, err := traffic.OpenRaw(from.Netns, device)
	if err != nil {
		return nil, fmt.Errorf("spoof from %s: %w", from.Name, err)
	}
	defer func() { _ = raw.Close() }()
	sniffer, err := traffic.NewSniffer(to.Netns, device, true)
	if err != nil {
		return nil, fmt.Errorf("sniff at %s: %w", to.Name, err)
	}
	defer func() { _ = sniffer.Close() }()
	frames := []struct {
		name, marker string
		source       netip.Addr
		mac          net.HardwareAddr
	}{
		{"with another pod's address", "weft spoofed address", other, from.MAC},
		{"with another pod's MAC and address", "weft spoofed MAC address", other, otherMAC},
		{"in its own name", "weft honest", from.IP, from.MAC},
	}
	rows := make([]Row, 0, len(frames))
	for _, f := range frames {
		frame, err := datagram(f.mac, to.MAC, f.source, to.IP, f.marker)
		if err != nil {
			return nil, err
		}
		if err := raw.Send(frame); err != nil {
			return nil, fmt.Errorf("spoof from %s: %w", from.Name, err)
		}
		rows = append(rows, Row{Name: "a frame " + f.name, From: from.Name, To: to.Name})
	}
	// Frames of one sender arrive in order, but for those that the switch holds up because it has not seen their like: once the last one has
	// arrived, the others follow within milliseconds, or never will.
	honest := &rows[len(rows)-1]
	honest.Want = from.IP
	if _, arrived := sniffer.Await([]byte(frames[len(frames)-1].marker), time.Minute); !arrived {
		return nil, fmt.Errorf("%s to %s: %w", from.Name, to.Name, errControl)
	}
	honest.Seen = from.IP
	for i, f := range frames[:len(frames)-1] {
		if _, arrived := sniffer.Await([]byte(f.marker), arrival); arrived {
			rows[i].Seen = f.source
		}
	}
	return rows, nil
}

func datagram(sourceMAC, destinationMAC net.HardwareAddr, source, destination netip.Addr, payload string) ([]byte, error) {
	ethernet := &layers.Ethernet{SrcMAC: sourceMAC, DstMAC: destinationMAC, EthernetType: layers.EthernetTypeIPv4}
	udp := &layers.UDP{SrcPort: 4000, DstPort: 4000}
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: source.AsSlice(), DstIP: destination.AsSlice()}
	if source.Is6() {
		ethernet.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP, SrcIP: source.AsSlice(), DstIP: destination.AsSlice()}
	}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		return nil, fmt.Errorf("make a frame: %w", err)
	}
	buffer := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ethernet, ip, udp, gopacket.Payload(payload))
	if err != nil {
		return nil, fmt.Errorf("make a frame: %w", err)
	}
	return buffer.Bytes(), nil
}
