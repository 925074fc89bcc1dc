// Package siege attacks the soak's lab with hostile packets, and has sniffers wherever these must not arrive.
package siege

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/test/hostile"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/overlay/cast"
	"weft.dev/weft/test/traffic"
)

// hostileRate is the number of hostile packets per second: all of them are sent in a few seconds.
const hostileRate = 500

// Siege is an attacker that sends hostile packets repeatedly, and sniffers wherever these might arrive. The victims' sniffers
// also detect other pods' packets.
type Siege struct {
	cast     *cast.Cast
	scene    hostile.Scene
	raw      *traffic.Raw
	frames   []hostile.Frame
	sniffers map[string]*traffic.Sniffer
	sent     atomic.Int64
	stop     context.CancelFunc
	done     chan struct{}
}

func end(ip netip.Addr) hostile.End { return hostile.End{MAC: pipeline.PodMAC(ip), IP: ip} }

// New begins the siege. End what it returns, also with an error.
func New(ctx context.Context, cs *cast.Cast) (*Siege, error) {
	g := &Siege{cast: cs, sniffers: map[string]*traffic.Sniffer{}, done: make(chan struct{}), stop: func() {}}
	close(g.done)
	attacker, neighbour, remote := cs.Pod("attacker"), cs.Pod("neighbour"), cs.Pod("remote")
	mac, name, err := probe.HostEnd(attacker)
	if err != nil {
		return g, err
	}
	gateway := netip.PrefixFrom(attacker.IPs[0], 23).Masked().Addr().Next()
	g.scene = hostile.Scene{
		Attacker: end(attacker.IPs[0]), Neighbour: end(neighbour.IPs[0]), Remote: end(remote.IPs[0]), Gateway: end(gateway), HostEnd: mac,
		Node: cs.Cluster.Node(1).IP, OtherNode: cs.Cluster.Node(2).IP, Service: netip.MustParseAddr("172.30.99.99"), VXLANPort: 4789,
	}
	frames, err := hostile.Frames(g.scene)
	if err != nil {
		return g, err
	}
	for _, f := range frames {
		if !f.ToHost { // frames that may arrive at tun0
			g.frames = append(g.frames, f)
		}
	}
	if g.raw, err = traffic.OpenRaw(attacker.Netns, "eth0"); err != nil {
		return g, err
	}
	if err := g.listen(name); err != nil {
		return g, err
	}
	ctx, g.stop = context.WithCancel(ctx)
	g.done = make(chan struct{})
	go g.attack(ctx)
	return g, nil
}

// marked reports whether a frame is the attacker's, hostile or honest.
func marked(frame []byte) bool {
	return bytes.Contains(frame, []byte("hostile-")) || bytes.Contains(frame, []byte("honest-"))
}

// strayFor returns a function that reports frames at a pod that are not addressed to it, or are the attacker's.
func strayFor(own hostile.End) func([]byte) bool {
	address := own.IP.AsSlice()
	return func(frame []byte) bool {
		if marked(frame) {
			return true
		}
		if len(frame) < 34 {
			return false
		}
		// A host that learned another MAC address of the pod while a fault had opened the network asks there whether it is still right: the
		// switch delivers ARP by the IP address.
		if binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_ARP && len(frame) >= 42 && bytes.Equal(frame[38:42], address) {
			return false
		}
		group := frame[0]&1 != 0
		if !group && !bytes.Equal(frame[:6], own.MAC) {
			return true
		}
		to := frame[30:34]
		return !group && binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IP && !bytes.Equal(to, address)
	}
}

// listen starts sniffers: in the victims, on all interfaces of the nodes except the attacker's host veth, in the nodes' own sockets, and
// outside.
func (g *Siege) listen(attackersLink string) error {
	cs := g.cast
	var own int
	err := traffic.In(cs.Cluster.Node(1).Netns, func() error {
		link, err := net.InterfaceByName(attackersLink)
		if err == nil {
			own = link.Index
		}
		return err
	})
	if err != nil {
		return err
	}
	sniffers := map[string]func() (*traffic.Sniffer, error){
		"neighbour": func() (*traffic.Sniffer, error) {
			return traffic.Listen(cs.Pod("neighbour").Netns, traffic.Capture{Device: "eth0", Incoming: true, Keep: strayFor(g.scene.Neighbour)})
		},
		"remote": func() (*traffic.Sniffer, error) {
			return traffic.Listen(cs.Pod("remote").Netns, traffic.Capture{Device: "eth0", Incoming: true, Keep: strayFor(g.scene.Remote)})
		},
		"n1": func() (*traffic.Sniffer, error) {
			return traffic.Listen(cs.Cluster.Node(1).Netns, traffic.Capture{Except: own, ExceptPort: cast.EchoPort, Keep: marked})
		},
		"n2": func() (*traffic.Sniffer, error) {
			return traffic.Listen(cs.Cluster.Node(2).Netns, traffic.Capture{ExceptPort: cast.EchoPort, Keep: marked})
		},
		"outside": func() (*traffic.Sniffer, error) {
			return traffic.Listen(cs.Cluster.Outside.Netns, traffic.Capture{ExceptPort: cast.EchoPort, Keep: marked})
		},
	}
	for name, protocol := range map[string]int{"UDP": unix.IPPROTO_UDP, "TCP": unix.IPPROTO_TCP, "ICMP": unix.IPPROTO_ICMP} {
		sniffers["n1's "+name+" sockets"] = func() (*traffic.Sniffer, error) { return traffic.NewInbox(cs.Cluster.Node(1).Netns, protocol, marked) }
	}
	for name, open := range sniffers {
		sniffer, err := open()
		if err != nil {
			return fmt.Errorf("listening at %s: %w", name, err)
		}
		g.sniffers[name] = sniffer
	}
	return nil
}

func (g *Siege) attack(ctx context.Context) {
	defer close(g.done)
	const tick = 10 * time.Millisecond
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for next := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for range hostileRate * int(tick) / int(time.Second) {
			// A frame that the kernel refuses now may be accepted in the next round.
			if err := g.raw.Send(g.frames[next].Data); err == nil {
				g.sent.Add(1)
			}
			next = (next + 1) % len(g.frames)
		}
	}
}

// Sent returns the number of hostile packets sent.
func (g *Siege) Sent() int { return int(g.sent.Load()) }

// Received describes the frames received since the last call that were not honest.
func (g *Siege) Received() []string {
	var found []string
	for name, sniffer := range g.sniffers {
		for _, frame := range sniffer.Take() {
			if bytes.Contains(frame, []byte("honest-")) {
				continue
			}
			if text := describe(name, frame, g.frameOf(frame)); text != "" {
				found = append(found, text)
			}
		}
	}
	return found
}

// victim reports whether a sniffer is in a victim's pod.
func victim(sniffer string) bool { return sniffer == "neighbour" || sniffer == "remote" }

// frameOf returns the hostile frame that was received; nil if it is none of them.
func (g *Siege) frameOf(received []byte) *hostile.Frame {
	for i := range g.frames {
		if marker := g.frames[i].Marker; len(marker) > 0 && bytes.Contains(received, marker) {
			return &g.frames[i]
		}
	}
	return nil
}

// describe returns a description of a received frame, with the name of the hostile frame.
func describe(sniffer string, frame []byte, f *hostile.Frame) string {
	switch {
	case f != nil:
		return fmt.Sprintf("%s: %s: received at %s", f.Class, f.Name, sniffer)
	case !victim(sniffer):
		return "" // a node's own sockets may get packets for the node
	}
	return fmt.Sprintf("not for it, received at %s: %s", sniffer, gopacket.NewPacket(frame, gopacket.DecodersByLayerName["Ethernet"], gopacket.NoCopy))
}

// Honest proves that the sniffers work: they detect the attacker's own packets wherever these pass.
func (g *Siege) Honest(ctx context.Context) error {
	scene := &g.scene
	for _, x := range []struct {
		name     string
		via      net.HardwareAddr
		to       netip.Addr
		sniffers []string
	}{
		{"neighbour", scene.Neighbour.MAC, scene.Neighbour.IP, []string{"neighbour", "n1"}},
		{"remote", scene.Remote.MAC, scene.Remote.IP, []string{"remote", "n1", "n2"}},
		{"gateway", scene.Gateway.MAC, scene.Gateway.IP, []string{"n1", "n1's UDP sockets"}},
		{"outside", scene.Gateway.MAC, g.cast.Cluster.Outside.IP, []string{"n1", "outside"}},
	} {
		frame, err := hostile.Honest(x.name, scene.Attacker, x.via, netip.AddrPortFrom(x.to, 9))
		if err != nil {
			return err
		}
		for _, name := range x.sniffers {
			_, err := probe.Await(ctx, probe.Patience, "an honest packet to the "+x.name+" received at "+name, func(context.Context) error {
				if err := g.raw.Send(frame.Data); err != nil {
					return err
				}
				if _, ok := g.sniffers[name].Await(frame.Marker, 100*time.Millisecond); !ok {
					return errors.New("missing hostile packets prove nothing there")
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// End ends the siege.
func (g *Siege) End() error {
	g.stop()
	<-g.done
	var errs []error
	for _, sniffer := range g.sniffers {
		errs = append(errs, sniffer.Close())
	}
	if g.raw != nil {
		errs = append(errs, g.raw.Close())
	}
	return errors.Join(errs...)
}
