package vpcmatrix

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weft.dev/weft/test/traffic"
)

// device is a pod's interface.
const device = "eth0"

// arrival is how long a frame may take.
const arrival = 2 * time.Second

var errControl = errors.New("an honest frame of the same sender does not arrive: spoofing cannot be judged")

// spoof sends from vpc1-pod to vpc1-other a frame with another pod's address, one with another MAC address as well, and then an honest one.
func spoof(pods map[string]pod) ([]Row, error) {
	from, to := pods[first], pods[floating]
	raw, err := traffic.OpenRaw(from.netns, device)
	if err != nil {
		return nil, fmt.Errorf("spoof from %s: %w", first, err)
	}
	defer func() { _ = raw.Close() }()
	sniffer, err := traffic.NewSniffer(to.netns, device, true)
	if err != nil {
		return nil, fmt.Errorf("sniff at %s: %w", floating, err)
	}
	defer func() { _ = sniffer.Close() }()
	other := netip.AddrFrom4([4]byte{10, 0, 1, 77})
	foreign := []byte{0x0a, 0x58, 10, 0, 1, 77}
	frames := []struct {
		name, marker string
		source       netip.Addr
		mac          []byte
	}{
		{"with another pod's address", "weft spoofed address", other, from.mac},
		{"with another pod's MAC and address", "weft spoofed MAC address", other, foreign},
		{"in its own name", "weft honest", from.ip, from.mac},
	}
	rows := make([]Row, 0, len(frames))
	for _, f := range frames {
		frame, err := udp(f.mac, to.mac, f.source, to.ip, f.marker)
		if err != nil {
			return nil, err
		}
		if err := raw.Send(frame); err != nil {
			return nil, fmt.Errorf("spoof from %s: %w", first, err)
		}
		rows = append(rows, Row{Name: "a frame " + f.name, From: first, To: floating})
	}
	// Frames of one sender arrive in their order: once the last one is there, the others are or never will be.
	honest := &rows[len(rows)-1]
	honest.Want = from.ip
	if _, arrived := sniffer.Await([]byte(frames[len(frames)-1].marker), time.Minute); !arrived {
		return nil, fmt.Errorf("%s to %s: %w", first, floating, errControl)
	}
	honest.Seen = from.ip
	for i, f := range frames[:len(frames)-1] {
		if _, arrived := sniffer.Await([]byte(f.marker), arrival); arrived {
			rows[i].Seen = f.source
		}
	}
	return rows, nil
}

func udp(sourceMAC, destinationMAC []byte, source, destination netip.Addr, payload string) ([]byte, error) {
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: source.AsSlice(), DstIP: destination.AsSlice()}
	datagram := &layers.UDP{SrcPort: 4000, DstPort: 4000}
	if err := datagram.SetNetworkLayerForChecksum(ip); err != nil {
		return nil, fmt.Errorf("make a frame: %w", err)
	}
	buffer := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: sourceMAC, DstMAC: destinationMAC, EthernetType: layers.EthernetTypeIPv4}, ip, datagram, gopacket.Payload(payload))
	if err != nil {
		return nil, fmt.Errorf("make a frame: %w", err)
	}
	return buffer.Bytes(), nil
}
