package matrix

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/hostile"
	"weft.dev/weft/test/traffic"
)

const (
	podLink   = "eth0"
	vxlanPort = 4789
	// flannelPort is the kernel's VXLAN port, which flannel uses.
	flannelPort = 8472
	// nobodyListens is the destination port of the frames: the discard port.
	nobodyListens = 9
	// markerLength is the length of hostile's markers, and of the controls'.
	markerLength = len("hostile-0000-frame")
	// controlWait is the time limit for an honest frame, for a busy machine: it takes a millisecond.
	controlWait = 30 * time.Second
	// grace is the time for effects of hostile frames, after the honest ones that follow them have arrived.
	grace = 300 * time.Millisecond
)

// tricks are the rows that must fail: each has its classes of hostile frames, and an honest frame which shows that the path works.
var tricks = []struct { //nolint:gochecknoglobals // a constant table
	kind    string
	classes []string
	control control
}{
	{"pod with another's IP address", []string{"spoofed IPv4 source"}, honestPacket},
	{"pod with another's MAC address", []string{"spoofed MAC source"}, honestPacket},
	{"pod's ARP for another's address", []string{
		"spoofed ARP sender address", "gratuitous ARP", "spoofed ARP sender MAC", "spoofed ARP frame",
	}, honestARP},
	{"straight to the host's end of its veth", []string{"to the host veth"}, honestStraight},
	{"pod's own tunnel packets", []string{tunnelClass}, honestPacket},
}

type control int

const (
	honestPacket   control = iota // UDP to the pod elsewhere
	honestARP                     // an ARP reply to the neighbour
	honestStraight                // UDP to the pod elsewhere, in a frame to the host veth: the switch forwards it as well
)

// name describes the control.
func (c control) name() string {
	return [...]string{"UDP in its own name", "ARP in its own name", "UDP in its own name"}[c]
}

// cast is the parties of the tricks. The remote pod may be missing in a lab of one node.
type cast struct {
	attacker, neighbour, remote Party
	scene                       hostile.Scene
	hostLink                    string // the attacker's, on the node
	controls                    []sentControl
	podDevice                   string // the host's link to the pods
	routed                      bool   // pods of other nodes are reached through the gateway
}

type sentControl struct {
	frame  []byte
	marker string
	at     string // the sniffer that must see it
}

// ErrCast reports that there are too few pods for spoofing.
var ErrCast = errors.New("spoofing is tried with two pods on one node and one on another")

// spoof sends packets that a pod must not send, and looks for them everywhere.
func (s *scene) spoof(ctx context.Context, in *realm) ([]Trick, error) {
	c, err := s.choose(in)
	if err != nil {
		return nil, err
	}
	frames, err := hostile.Frames(c.scene)
	if err != nil {
		return nil, fmt.Errorf("make hostile frames: %w", err)
	}
	rows, sent, err := sort(frames, c.attacker)
	if err != nil {
		return nil, err
	}
	sniffers, err := s.sniff(c)
	defer func() {
		for _, sn := range sniffers {
			_ = sn.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	if err := c.send(ctx, sent, sniffers); err != nil {
		return nil, err
	}
	judge(rows, sent, c.controls, c.beyondHost(sent, arrivals(sniffers)))
	return rows, nil
}

// choose finds a pod with a neighbour and one on another node.
func (s *scene) choose(in *realm) (*cast, error) {
	c, pods := &cast{}, in.members(s.pods)
	for _, a := range pods {
		for _, b := range pods {
			if a.Node == b.Node && a.key != b.key && c.attacker.key == "" {
				c.attacker, c.neighbour = a, b
			}
		}
	}
	for _, r := range pods {
		if c.attacker.key != "" && r.Node != c.attacker.Node && c.remote.key == "" {
			c.remote = r
		}
	}
	if c.remote.key == "" {
		return nil, fmt.Errorf("lab %s: %w", s.cluster.Name(), ErrCast)
	}
	return c, s.dress(c, in)
}

// dress sets the addresses of all parties and makes the honest frames.
func (s *scene) dress(c *cast, in *realm) error {
	node, err := s.cluster.NodeNamed(c.attacker.Node)
	if err != nil {
		return err
	}
	other, err := s.cluster.NodeNamed(c.remote.Node)
	if err != nil {
		return err
	}
	c.hostLink = s.records[c.attacker.key].HostInterface
	hostEnd, err := mac(node, c.hostLink)
	if err != nil {
		return err
	}
	gatewayMAC, err := mac(node, in.device)
	if err != nil {
		return err
	}
	end := func(p Party) hostile.End {
		hw, parseErr := net.ParseMAC(s.records[p.key].MAC)
		err = errors.Join(err, parseErr)
		return hostile.End{MAC: hw, IP: p.IP}
	}
	c.scene = hostile.Scene{
		Attacker: end(c.attacker), Neighbour: end(c.neighbour), Remote: end(c.remote),
		Gateway: hostile.End{MAC: gatewayMAC, IP: in.gateways[node.Name]}, HostEnd: hostEnd,
		Node: node.IP, OtherNode: other.IP, Service: plan.New(s.cluster.Config).APIServiceIP, VXLANPort: vxlanPort,
	}
	c.podDevice = in.device
	if in.name == flannelNetwork {
		c.scene.VXLANPort, c.routed = flannelPort, true
	}
	if err != nil {
		return fmt.Errorf("hardware addresses of the pods: %w", err)
	}
	return c.makeControls()
}

// makeControls makes one honest frame for each row.
func (c *cast) makeControls() error {
	sc := c.scene
	for i, t := range tricks {
		marker := fmt.Sprintf("control-%04d-frame", i)
		eth := &layers.Ethernet{SrcMAC: sc.Attacker.MAC, DstMAC: sc.Remote.MAC, EthernetType: layers.EthernetTypeIPv4}
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: sc.Attacker.IP.AsSlice(), DstIP: sc.Remote.IP.AsSlice()}
		udp := &layers.UDP{SrcPort: 4000, DstPort: nobodyListens}
		if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
			return fmt.Errorf("make an honest frame: %w", err)
		}
		at, parts := c.remote.key, []gopacket.SerializableLayer{eth, ip, udp}
		switch t.control {
		case honestPacket:
			if c.routed {
				eth.DstMAC = sc.Gateway.MAC
			}
		case honestStraight:
			eth.DstMAC = sc.HostEnd
		case honestARP:
			eth.DstMAC, eth.EthernetType, at = sc.Neighbour.MAC, layers.EthernetTypeARP, c.neighbour.key
			parts = []gopacket.SerializableLayer{eth, &layers.ARP{
				AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4,
				Operation: layers.ARPReply, SourceHwAddress: sc.Attacker.MAC, SourceProtAddress: sc.Attacker.IP.AsSlice(),
				DstHwAddress: sc.Neighbour.MAC, DstProtAddress: sc.Neighbour.IP.AsSlice(),
			}}
		}
		buffer := gopacket.NewSerializeBuffer()
		options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		if err := gopacket.SerializeLayers(buffer, options, append(parts, gopacket.Payload(marker))...); err != nil {
			return fmt.Errorf("make an honest frame: %w", err)
		}
		c.controls = append(c.controls, sentControl{frame: buffer.Bytes(), marker: marker, at: at})
	}
	return nil
}

// sort makes the rows, and selects the frames of each row: data and marker, with the row's number.
func sort(frames []hostile.Frame, attacker Party) ([]Trick, []numbered, error) {
	rows := make([]Trick, len(tricks))
	var picked []numbered
	for i, t := range tricks {
		rows[i] = Trick{Kind: t.kind, From: attacker, ControlName: t.control.name()}
		for _, f := range frames {
			if slices.Contains(t.classes, f.Class) {
				picked = append(picked, numbered{Frame: f, row: i})
				rows[i].Sent++
			}
		}
		if rows[i].Sent == 0 {
			return nil, nil, fmt.Errorf("%s: there are no frames of the classes %q", t.kind, t.classes)
		}
	}
	return rows, picked, nil
}

type numbered struct {
	hostile.Frame
	row int
}

// sniffer listens on a link, with the link's name for reports.
type sniffer struct {
	*traffic.Sniffer
	at string
}

// sniff starts sniffers at every pod, on every link of the nodes and between them, and outside; but not on the attacker's own link.
func (s *scene) sniff(c *cast) ([]sniffer, error) {
	var list []sniffer
	listen := func(netns, link, at string, incoming bool) error {
		sn, err := traffic.NewSniffer(netns, link, incoming)
		if err != nil {
			return fmt.Errorf("listen at %s: %w", at, err)
		}
		list = append(list, sniffer{Sniffer: sn, at: at})
		return nil
	}
	for _, p := range s.pods {
		if p.key == c.attacker.key {
			continue
		}
		if err := listen(p.netns, podLink, p.key, true); err != nil {
			return list, err
		}
	}
	places := map[string]string{"between the nodes": s.underlay, "outside": s.outside.netns}
	for _, n := range s.cluster.Nodes() {
		places[n.Name] = n.Netns
	}
	for where, netns := range places {
		links, err := linksOf(netns)
		if err != nil {
			return list, fmt.Errorf("links of %s: %w", where, err)
		}
		for _, link := range links {
			if where == c.attacker.Node && link == c.hostLink {
				continue
			}
			if err := listen(netns, link, place(where, link), false); err != nil {
				return list, err
			}
		}
	}
	return list, nil
}

// send sends the hostile frames, then the honest ones, and waits until those have arrived.
func (c *cast) send(ctx context.Context, frames []numbered, sniffers []sniffer) error {
	raw, err := traffic.OpenRaw(c.attacker.netns, podLink)
	if err != nil {
		return fmt.Errorf("open the link of pod %s: %w", c.attacker.Name, err)
	}
	defer func() { _ = raw.Close() }()
	for _, f := range frames {
		if err := raw.Send(f.Data); err != nil {
			return fmt.Errorf("%s: %s: %w", f.Class, f.Name, err)
		}
	}
	for _, h := range c.controls {
		if err := raw.Send(h.frame); err != nil {
			return fmt.Errorf("honest frame: %w", err)
		}
	}
	deadline := time.Now().Add(controlWait)
	for _, h := range c.controls {
		for _, sn := range sniffers {
			if sn.at == h.at {
				sn.Await([]byte(h.marker), time.Until(deadline))
			}
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(grace):
		return nil
	}
}

// tunnelClass is the class of frames that a pod makes as tunnel packets.
const tunnelClass = "tunnel packets from a pod"

// beyondHost removes frames that do not count as arrived: a fragment on the attacker's own host. Not every fragment has the port, so the
// host judges the packet after reassembly, which never completes with one fragment. On a flannel network all tunnel packets reach the
// host's bridge. The host drops them in the bridge's netfilter hooks, because their destination is known only after DNAT.
func (c *cast) beyondHost(frames []numbered, seen map[string][]string) map[string][]string {
	for _, f := range frames {
		if isFragment(f.Data) || c.routed && f.Class == tunnelClass {
			seen[string(f.Marker)] = slices.DeleteFunc(seen[string(f.Marker)], func(at string) bool {
				return at == place(c.attacker.Node, c.podDevice)
			})
		}
	}
	return seen
}

// isFragment reports whether a frame has a part of an IPv4 packet (RFC 791: more fragments, or an offset).
func isFragment(frame []byte) bool {
	const ethernet, flags = 14, 6 // bytes
	return len(frame) >= ethernet+20 && binary.BigEndian.Uint16(frame[12:]) == uint16(layers.EthernetTypeIPv4) &&
		binary.BigEndian.Uint16(frame[ethernet+flags:])&0x3fff != 0
}

// place returns the name of a link for reports.
func place(where, link string) string { return where + ", " + link }

// arrivals returns where each marker was seen.
func arrivals(sniffers []sniffer) map[string][]string {
	seen := map[string][]string{}
	for _, sn := range sniffers {
		for _, frame := range sn.Frames() {
			for _, marker := range markers(frame) {
				if !slices.Contains(seen[marker], sn.at) {
					seen[marker] = append(seen[marker], sn.at)
				}
			}
		}
	}
	return seen
}

// judge fills in each row's results, by where the markers of its frames were seen.
func judge(rows []Trick, sent []numbered, controls []sentControl, seen map[string][]string) {
	const examples = 5
	for _, f := range sent {
		row, places := &rows[f.row], seen[string(f.Marker)]
		if len(places) == 0 {
			continue
		}
		row.Arrived++
		if len(row.Examples) < examples {
			row.Examples = append(row.Examples, fmt.Sprintf("%s: %s: seen at %s", f.Class, f.Name, strings.Join(places, "; ")))
		}
	}
	for i, h := range controls {
		rows[i].Control = slices.Contains(seen[h.marker], h.at)
		rows[i].AsItMust = rows[i].Control && rows[i].Arrived == 0
	}
}

// markers finds the markers in a frame, also in an encapsulated one.
func markers(frame []byte) []string {
	var found []string
	for _, start := range []string{"hostile-", "control-"} {
		rest := frame
		for {
			i := bytes.Index(rest, []byte(start))
			if i < 0 || i+markerLength > len(rest) {
				break
			}
			found = append(found, string(rest[i:i+markerLength]))
			rest = rest[i+markerLength:]
		}
	}
	return found
}

// linksOf lists the links of a namespace, without the loopback.
func linksOf(netns string) ([]string, error) {
	var names []string
	err := ground.Do(netns, func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			if l.Flags&net.FlagLoopback == 0 {
				names = append(names, l.Name)
			}
		}
		return err
	})
	return names, err
}
