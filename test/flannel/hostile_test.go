//go:build lab

package flannel

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/firstpacket"
	"weft.dev/weft/test/hostile"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// starts is smaller where a landing has no time.
var starts = flag.Int("lab.starts", 1000, "number of isolated pods that start under hostile traffic") //nolint:gochecknoglobals // a flag of the test binary

const vxlanPort = 8472

// stage is the scene of the attacks: three pods, and packet sniffers wherever their packets might arrive.
type stage struct {
	cluster                     *lab.Cluster
	attacker, neighbour, remote *lab.Pod
	scene                       hostile.Scene
	raw                         *traffic.Raw
	sniffers                    probe.Sniffers
}

func end(ip netip.Addr) hostile.End {
	return hostile.End{MAC: plan.MAC([]netip.Prefix{netip.PrefixFrom(ip, ip.BitLen())}), IP: ip}
}

// gatewayOf returns the bridge of a pod's node.
func gatewayOf(p *lab.Pod) hostile.End {
	return end(netip.PrefixFrom(p.IPs[0], 24).Masked().Addr().Next())
}

// newStage adds the pods. victims may reach each other only if apart.
func newStage(ctx context.Context, t *testing.T, c *lab.Cluster, namespace string, apart bool) *stage {
	t.Helper()
	s := &stage{cluster: c, sniffers: probe.Sniffers{}}
	for _, x := range []struct {
		node, name string
		pod        **lab.Pod
	}{{"n1", "attacker", &s.attacker}, {"n1", "neighbour", &s.neighbour}, {"n2", "remote", &s.remote}} {
		labels := map[string]string{"victim": fmt.Sprint(x.name != "attacker")}
		p, err := probe.AddPod(ctx, c, lab.PodSpec{Node: x.node, Namespace: namespace, Name: x.name, Labels: labels})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.DelPod(context.WithoutCancel(ctx), p) })
		*x.pod = p
	}
	mac, hostEnd, err := probe.HostEnd(s.attacker)
	if err != nil {
		t.Fatal(err)
	}
	// Frames to a pod of another node go to the gateway.
	remote := hostile.End{MAC: gatewayOf(s.attacker).MAC, IP: s.remote.IPs[0]}
	s.scene = hostile.Scene{
		Attacker: end(s.attacker.IPs[0]), Neighbour: end(s.neighbour.IPs[0]), Remote: remote, Gateway: gatewayOf(s.attacker), HostEnd: mac,
		Node: c.Node(1).IP, OtherNode: c.Node(2).IP, Service: netip.MustParseAddr("172.30.99.99"), VXLANPort: vxlanPort, Apart: apart,
	}
	if s.raw, err = traffic.OpenRaw(s.attacker.Netns, "eth0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.raw.Close() })
	s.meet(ctx, t) // all pods resolve each other, so that there are neighbour caches to poison
	s.listen(t, hostEnd)
	return s
}

// meet checks that the pods reach those that they may reach.
func (s *stage) meet(ctx context.Context, t *testing.T) {
	t.Helper()
	ways := [][2]*lab.Pod{{s.neighbour, s.remote}, {s.remote, s.neighbour}}
	if !s.scene.Apart {
		ways = append(ways, [2]*lab.Pod{s.attacker, s.neighbour}, [2]*lab.Pod{s.attacker, s.remote}, [2]*lab.Pod{s.neighbour, s.attacker})
	}
	for _, way := range ways {
		testwait.Eventually(t, way[0].Name+" reaches "+way[1].Name, func() error { return ping(ctx, way[0], way[1]) })
	}
	testwait.Eventually(t, "the attacker reaches its gateway", func() error {
		_, err := probe.Output(ctx, s.attacker.Enter("ping", "-n", "-c", "1", "-W", "1", s.scene.Gateway.IP.String())...)
		return err
	})
}

// marked reports whether a frame is of these tests.
func marked(frame []byte) bool {
	return bytes.Contains(frame, []byte("hostile-")) || bytes.Contains(frame, []byte("honest-"))
}

// listen starts sniffers in the victims, on all interfaces of the nodes except the attacker's host veth, in the nodes' sockets, and outside.
func (s *stage) listen(t *testing.T, hostEnd string) {
	t.Helper()
	var own int
	if err := traffic.In(s.cluster.Node(1).Netns, func() error {
		link, err := net.InterfaceByName(hostEnd)
		if err == nil {
			own = link.Index
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	add := func(name string, sniffer *traffic.Sniffer, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		s.sniffers[name] = sniffer
		t.Cleanup(func() { _ = sniffer.Close() })
	}
	for _, p := range []*lab.Pod{s.neighbour, s.remote} {
		sniffer, err := traffic.Listen(p.Netns, traffic.Capture{Device: "eth0", Incoming: true, Keep: marked})
		add(p.Name, sniffer, err)
	}
	for _, n := range s.cluster.Nodes() {
		capture := traffic.Capture{Keep: marked}
		if n.Name == "n1" {
			capture.Except = own
		}
		sniffer, err := traffic.Listen(n.Netns, capture)
		add(n.Name, sniffer, err)
		for name, protocol := range map[string]int{"UDP": unix.IPPROTO_UDP, "TCP": unix.IPPROTO_TCP, "ICMP": unix.IPPROTO_ICMP} {
			sniffer, err := traffic.NewInbox(n.Netns, protocol, marked)
			add(n.Name+"'s "+name+" sockets", sniffer, err)
		}
	}
	outside, err := traffic.Listen(s.cluster.Outside.Netns, traffic.Capture{Device: "eth0", Keep: marked})
	add("outside", outside, err)
}

// honest returns packets that must arrive. raws are the interfaces of the pods.
func (s *stage) honest(raws map[*lab.Pod]*traffic.Raw) []probe.Honest {
	scene, near, far := &s.scene, s.attacker, s.attacker
	if scene.Apart { // the victims reach each other
		near, far = s.remote, s.neighbour
	}
	byNear := scene.Neighbour.MAC
	if scene.Apart {
		byNear = gatewayOf(near).MAC
	}
	a := scene.Attacker
	return []probe.Honest{
		{Name: "neighbour", From: raws[near], Source: end(near.IPs[0]), Via: byNear, To: scene.Neighbour.IP, At: []string{"neighbour", "n1"}},
		{Name: "remote", From: raws[far], Source: end(far.IPs[0]), Via: scene.Gateway.MAC, To: scene.Remote.IP, At: []string{"remote", "n1", "n2"}},
		{Name: "gateway", From: s.raw, Source: a, Via: scene.Gateway.MAC, To: scene.Gateway.IP, At: []string{"n1", "n1's UDP sockets"}},
		{Name: "other-node", From: s.raw, Source: a, Via: scene.Gateway.MAC, To: scene.OtherNode, At: []string{"n1", "n2", "n2's UDP sockets"}},
		{Name: "outside", From: s.raw, Source: a, Via: scene.Gateway.MAC, To: s.cluster.Outside.IP, At: []string{"n1", "outside"}},
	}
}

// own reports whether a frame has the attacker's own addresses, in ARP too.
func (s *stage) own(frame []byte) bool {
	const header, tag = 14, 4
	if !bytes.Equal(frame[6:12], s.scene.Attacker.MAC) {
		return false
	}
	kind, body := binary.BigEndian.Uint16(frame[12:]), frame[header:]
	if kind == unix.ETH_P_8021Q {
		kind, body = binary.BigEndian.Uint16(frame[header+2:]), frame[header+tag:]
	}
	ip := s.scene.Attacker.IP.AsSlice()
	switch kind {
	case unix.ETH_P_IP:
		return bytes.Equal(body[12:16], ip)
	case unix.ETH_P_ARP:
		return bytes.Equal(body[8:14], s.scene.Attacker.MAC) && bytes.Equal(body[14:18], ip)
	}
	return false
}

// toLoopback reports whether an untagged frame is for a loopback address.
func (s *stage) toLoopback(frame []byte) bool {
	const destination, loopback = 30, 127
	return binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IP && frame[destination] == loopback
}

// allowed reports whether a frame may arrive at a sniffer. A pod may send to its node, to other nodes and outside; to other pods unless apart.
// Its node sees tunnel packets on the bridge, and drops them. The fragments are of a packet with a wrong checksum: it is not tracked, so it
// leaves with the pod's address, with which the other node drops it.
func (s *stage) allowed(f *hostile.Frame, sniffer string) bool {
	victim := sniffer == s.neighbour.Name || sniffer == s.remote.Name
	switch {
	case f.Class == hostile.ClassTunnelled:
		return sniffer == "n1" || f.ToHost && sniffer == "n2"
	case s.own(f.Data) && s.toLoopback(f.Data):
		return sniffer == "n1"
	case !s.own(f.Data):
		return false
	case victim:
		return !s.scene.Apart
	default:
		return true
	}
}

// attack sends all hostile frames, and checks that none arrives where it must not.
func (s *stage) attack(ctx context.Context, t *testing.T) {
	t.Helper()
	raws := map[*lab.Pod]*traffic.Raw{s.attacker: s.raw}
	for _, p := range []*lab.Pod{s.neighbour, s.remote} {
		raw, err := traffic.OpenRaw(p.Netns, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = raw.Close() }()
		raws[p] = raw
	}
	attack := probe.Attack{Scene: s.scene, Raw: s.raw, Sniffers: s.sniffers, Honest: s.honest(raws), Allowed: s.allowed}
	frames, err := attack.Run()
	if err != nil {
		t.Error(err)
	}
	foreign, classes := 0, probe.Classes(frames)
	for i := range frames {
		if !s.own(frames[i].Data) {
			foreign++
		}
	}
	if len(classes) < 15 || foreign < 200 {
		t.Errorf("%d classes, %d frames with addresses that are not the attacker's: want at least 15 and 200", len(classes), foreign)
	}
	s.unharmed(ctx, t)
	t.Logf("%d hostile frames of %d classes, %d of them with others' addresses", len(frames), len(classes), foreign)
}

// unharmed checks that no neighbour cache is poisoned, and that all still reach each other.
func (s *stage) unharmed(ctx context.Context, t *testing.T) {
	t.Helper()
	err := probe.Poisoned(map[string]string{
		s.neighbour.Name: s.neighbour.Netns, s.remote.Name: s.remote.Netns, "n1": s.cluster.Node(1).Netns, "n2": s.cluster.Node(2).Netns,
	}, func(ip netip.Addr) bool {
		return netip.MustParsePrefix("10.244.0.0/16").Contains(ip) && ip.As4()[3] != 0 // .0: the tunnel device of another node
	}, func(ip netip.Addr) net.HardwareAddr { return end(ip).MAC })
	if err != nil {
		t.Error(err)
	}
	s.meet(ctx, t)
}

// hostilePods: packets of a pod with addresses that are not its own arrive nowhere, and tunnel packets of a pod arrive nowhere. Its own packets
// do not arrive at pods that NetworkPolicies close to it. An isolated pod receives and sends nothing from its first moment on, also while
// agents are killed.
func hostilePods(ctx context.Context, t *testing.T, c *lab.Cluster) {
	t.Helper()
	t.Run("pods", func(t *testing.T) { newStage(ctx, t, c, "default", false).attack(ctx, t) })
	t.Run("policies", func(t *testing.T) {
		k, err := c.Client()
		if err != nil {
			t.Fatal(err)
		}
		s := newStage(ctx, t, c, "apart", false)
		victims := metav1.LabelSelector{MatchLabels: map[string]string{"victim": "true"}}
		_, err = k.NetworkingV1().NetworkPolicies("apart").Create(ctx, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "victims"},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: victims, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &victims}}}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, victim := range []*lab.Pod{s.neighbour, s.remote} {
			testwait.Eventually(t, victim.Name+" is closed to the attacker", func() error {
				if ping(ctx, s.attacker, victim) == nil {
					return errors.New("it answers")
				}
				return nil
			})
		}
		s.scene.Apart = true
		s.attack(ctx, t)
	})
	t.Run("first packets", func(t *testing.T) {
		report, err := firstpacket.Run(ctx, c, *starts)
		t.Log(report.String())
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Leaks) > 0 {
			t.Error(strings.Join(report.Leaks, "\n"))
		}
		if report.Starts < *starts {
			t.Errorf("%d pods started, want %d", report.Starts, *starts)
		}
	})
}
