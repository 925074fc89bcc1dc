//go:build lab

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"

	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/ovsnode"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/hostile"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

const vxlanPort = 4789

// stage is the scene of the attacks: three pods, and packet sniffers in all namespaces.
type stage struct {
	cluster                     *lab.Cluster
	attacker, neighbour, remote *lab.Pod
	scene                       hostile.Scene
	remoteGateway               hostile.End
	raw                         *traffic.Raw
	sniffers                    probe.Sniffers
}

func end(ip netip.Addr) hostile.End { return hostile.End{MAC: pipeline.PodMAC(ip), IP: ip} }

func gatewayOf(p *lab.Pod) hostile.End {
	return end(netip.PrefixFrom(p.IPs[0], 23).Masked().Addr().Next())
}

func newStage(t *testing.T) *stage {
	t.Helper()
	c := cluster(t)
	return newStageOf(t, c, addPods(t, c, [2]string{"n1", "attacker"}, [2]string{"n1", "neighbour"}, [2]string{"n2", "remote"}), false)
}

// newStageOf makes a stage of an attacker, its neighbour on the node, and a pod on the other node. apart says that the attacker may not
// reach them; they may reach each other.
func newStageOf(t *testing.T, c *lab.Cluster, pods []*lab.Pod, apart bool) *stage {
	t.Helper()
	s := &stage{cluster: c, attacker: pods[0], neighbour: pods[1], remote: pods[2], sniffers: probe.Sniffers{}}
	s.remoteGateway = gatewayOf(s.remote)
	s.scene = hostile.Scene{
		Attacker: end(s.attacker.IPs[0]), Neighbour: end(s.neighbour.IPs[0]), Remote: end(s.remote.IPs[0]),
		Gateway: gatewayOf(s.attacker), HostEnd: hostEnd(t, s.attacker),
		Node: c.Node(1).IP, OtherNode: c.Node(2).IP, Service: netip.MustParseAddr("172.30.99.99"), VXLANPort: vxlanPort,
		Apart: apart,
	}
	var err error
	if s.raw, err = traffic.OpenRaw(s.attacker.Netns, "eth0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.raw.Close() })
	// All pods resolve each other before the attack, so that there are neighbour caches to poison.
	for _, p := range []*lab.Pod{s.neighbour, s.remote} {
		echo(t, p.Netns, p.IPs[0])
	}
	s.meet(t)
	ping(t, s.cluster.Node(2).Netns, s.remote.IPs[0])
	s.listen(t)
	return s
}

// meet checks that all pods reach those that they may reach.
func (s *stage) meet(t *testing.T) {
	t.Helper()
	for _, p := range []*lab.Pod{s.neighbour, s.remote} {
		if !s.scene.Apart {
			ping(t, s.attacker.Netns, p.IPs[0])
			ping(t, s.cluster.Node(1).Netns, p.IPs[0])
		}
	}
	ping(t, s.cluster.Node(1).Netns, s.neighbour.IPs[0])
	ping(t, s.neighbour.Netns, s.remote.IPs[0])
	ping(t, s.remote.Netns, s.neighbour.IPs[0])
}

// uplink is the device with a node's address: with the userspace datapath, eth0 is a port of a bridge.
func uplink(c *lab.Cluster) string {
	if c.Datapath == plan.DatapathNetdev {
		return ovsnode.Phy
	}
	return "eth0"
}

// hostEnd returns the MAC address of a pod's host veth.
func hostEnd(t *testing.T, p *lab.Pod) net.HardwareAddr {
	t.Helper()
	mac, _, err := probe.HostEnd(p)
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// listen starts sniffers on the victims' interfaces, on the nodes' and the underlay's interfaces, and sockets in the nodes.
func (s *stage) listen(t *testing.T) {
	t.Helper()
	add := func(name string, sniffer *traffic.Sniffer, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		s.sniffers[name] = sniffer
		t.Cleanup(func() { _ = sniffer.Close() })
	}
	for _, p := range []*lab.Pod{s.neighbour, s.remote} {
		sniffer, err := traffic.NewSniffer(p.Netns, "eth0", true)
		add(p.Name+"'s eth0", sniffer, err)
	}
	for _, n := range s.cluster.Nodes() {
		for _, device := range slices.Compact([]string{"tun0", "eth0", uplink(s.cluster)}) {
			sniffer, err := traffic.NewSniffer(n.Netns, device, false)
			add(n.Name+"'s "+device, sniffer, err)
		}
		for name, protocol := range map[string]int{"UDP": unix.IPPROTO_UDP, "TCP": unix.IPPROTO_TCP, "ICMP": unix.IPPROTO_ICMP} {
			sniffer, err := traffic.NewInbox(n.Netns, protocol, nil)
			add(n.Name+"'s "+name+" sockets", sniffer, err)
		}
	}
	outside, err := traffic.NewSniffer(s.cluster.Outside.Netns, "eth0", true)
	add("outside", outside, err)
}

// honest returns packets that must arrive. neighbour and remote are the pods' interfaces.
func (s *stage) honest(neighbour, remote *traffic.Raw) []probe.Honest {
	a, scene, phy := s.scene.Attacker, &s.scene, "'s "+uplink(s.cluster)
	toNeighbour, toRemote, byNeighbour, byRemote := s.raw, s.raw, a, a
	if scene.Apart { // the neighbour and the remote pod may reach each other
		toNeighbour, byNeighbour, toRemote, byRemote = remote, scene.Remote, neighbour, scene.Neighbour
	}
	return []probe.Honest{
		{Name: "neighbour", From: toNeighbour, Source: byNeighbour, Via: scene.Neighbour.MAC, To: scene.Neighbour.IP, At: []string{"neighbour's eth0"}},
		{Name: "remote", From: toRemote, Source: byRemote, Via: scene.Remote.MAC, To: scene.Remote.IP, At: []string{"remote's eth0", "n1's eth0", "n2's eth0"}},
		{Name: "gateway", From: s.raw, Source: a, Via: scene.Gateway.MAC, To: scene.Gateway.IP, At: []string{"n1's tun0", "n1's UDP sockets"}},
		{Name: "node", From: s.raw, Source: a, Via: scene.Gateway.MAC, To: scene.Node, At: []string{"n1's tun0", "n1's UDP sockets"}},
		{Name: "other-node", From: s.raw, Source: a, Via: scene.Gateway.MAC, To: scene.OtherNode, At: []string{"n1's tun0", "n1" + phy, "n2" + phy, "n2's UDP sockets"}},
		{Name: "outside", From: s.raw, Source: a, Via: scene.Gateway.MAC, To: s.cluster.Outside.IP, At: []string{"n1" + phy, "outside"}},
		{Name: "remote-gateway", From: remote, Source: scene.Remote, Via: s.remoteGateway.MAC, To: s.remoteGateway.IP, At: []string{"n2's tun0", "n2's UDP sockets"}},
	}
}

// unharmed checks that no neighbour cache is poisoned, and that all still reach each other.
func (s *stage) unharmed(t *testing.T) {
	t.Helper()
	err := probe.Poisoned(map[string]string{
		"the neighbour": s.neighbour.Netns, "the remote pod": s.remote.Netns, "n1": s.cluster.Node(1).Netns, "n2": s.cluster.Node(2).Netns,
	}, netip.MustParsePrefix("10.128.0.0/14").Contains, pipeline.PodMAC)
	if err != nil {
		t.Error(err)
	}
	s.meet(t)
}

// A packet with a source that is not the pod's own arrives nowhere: not at a pod, not at a node, not on the network in between.
func TestHostilePod(t *testing.T) { newStage(t).attack(t) }

// A pod's packets with sources that are not its own arrive nowhere, and its own packets do not arrive where policies deny them.
func TestPolicyHostile(t *testing.T) {
	s := newPolicyScene(t, "hostile")
	var pods []*lab.Pod
	for _, p := range [][2]string{{"n1", "attacker"}, {"n1", "neighbour"}, {"n2", "remote"}} {
		pods = append(pods, s.pod(t, lab.PodSpec{Node: p[0], Name: p[1], Labels: map[string]string{"victim": fmt.Sprint(p[1] != "attacker")}}))
	}
	victim := map[string]string{"victim": "true"}
	s.policy(t, "hostile", victim, ingress(networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(victim)}}}))
	attacker, neighbour, remote := pods[0], pods[1], pods[2]
	for _, p := range []*lab.Pod{neighbour, remote} {
		startSourceServer(t, p.Netns, p.Name, sourcePort)
	}
	expect(t, "only the victims reach each other",
		attempt{"attacker", attacker.Netns, port(neighbour.IPs[0], sourcePort), false},
		attempt{"attacker", attacker.Netns, port(remote.IPs[0], sourcePort), false},
		attempt{"remote", remote.Netns, port(neighbour.IPs[0], sourcePort), true},
		attempt{"neighbour", neighbour.Netns, port(remote.IPs[0], sourcePort), true})
	newStageOf(t, s.cluster, pods, true).attack(t)
}

// between are the sniffers on the path between nodes: on the kernel's datapath the tunnel ends in a UDP socket.
var between = []string{"n1's eth0", "n2's eth0", "n2's UDP sockets"} //nolint:gochecknoglobals // a constant

// attack sends all hostile frames, and checks that no sniffer receives them.
func (s *stage) attack(t *testing.T) {
	t.Helper()
	var raws []*traffic.Raw
	for _, p := range []*lab.Pod{s.neighbour, s.remote} {
		raw, err := traffic.OpenRaw(p.Netns, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = raw.Close() }()
		raws = append(raws, raw)
	}
	attack := probe.Attack{
		Scene: s.scene, Raw: s.raw, Sniffers: s.sniffers, Honest: s.honest(raws[0], raws[1]),
		Allowed: func(f *hostile.Frame, sniffer string) bool {
			return f.ToHost && sniffer == "n1's tun0" || f.Between && slices.Contains(between, sniffer)
		},
	}
	frames, err := attack.Run()
	if err != nil {
		t.Error(err)
	}
	classes := probe.Classes(frames)
	s.unharmed(t)
	if s.scene.Apart && (len(frames) < 500 || len(classes) < 20) {
		t.Errorf("%d frames of %d classes, want at least 500 of 20", len(frames), len(classes))
	}
	t.Logf("%d hostile frames of %d classes, none received by %d sniffers", len(frames), len(classes), len(s.sniffers))
}

// A pod resolves its gateway by ARP, to the gateway's MAC address. No other address of the node answers ARP, and the host veth never
// does.
func TestNodeAnswersNoARP(t *testing.T) {
	s := newStage(t)
	sniffer, err := traffic.NewSniffer(s.attacker.Netns, "eth0", true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sniffer.Close() }()
	addresses, err := traffic.Addresses(s.cluster.Node(1).Netns)
	if err != nil {
		t.Fatal(err)
	}
	// The gateway last: when it has answered, the others would have answered too.
	addresses = slices.DeleteFunc(addresses, func(a netip.Addr) bool { return a == s.scene.Gateway.IP })
	for _, address := range append(addresses, s.scene.Service, s.cluster.Node(2).IP, s.scene.Gateway.IP) {
		frame, err := hostile.ARPRequest(s.scene.Attacker, address)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.raw.Send(frame.Data); err != nil {
			t.Fatal(err)
		}
	}
	answers := func() (found []hostile.End) {
		for _, frame := range sniffer.Frames() {
			if sender, ok := hostile.ARPAnswer(frame); ok {
				found = append(found, sender)
			}
		}
		return found
	}
	await(t, "the gateway's answer", func(context.Context) error {
		if len(answers()) == 0 {
			return fmt.Errorf("no answer")
		}
		return nil
	})
	for _, sender := range answers() {
		if sender.IP != s.scene.Gateway.IP || !bytes.Equal(sender.MAC, s.scene.Gateway.MAC) {
			t.Errorf("%s answers ARP for %s", sender.MAC, sender.IP)
		}
	}
	t.Logf("ARP requests for %v; answers: %v", addresses, answers())
}

// A host that is not a node cannot send into the tunnel, whatever pod's address it uses: only tunnel packets from nodes are accepted.
func TestHostileHost(t *testing.T) {
	s := newStage(t)
	foreignHost := attachForeignHost(t, s.cluster)
	n2 := s.cluster.Node(2)
	echo(t, n2.Netns, n2.IP)
	ping(t, foreignHost, n2.IP)
	ping(t, s.cluster.Outside.Netns, n2.IP)
	senders := map[string]string{"foreign-host": foreignHost, "outside": s.cluster.Outside.Netns}
	inner := map[string]hostile.End{
		"own": end(netip.MustParseAddr("10.130.0.5")), "as-a-pod": s.scene.Attacker, "as-the-gateway": s.scene.Gateway,
		"as-local-pod": s.scene.Remote, "as-outside": end(s.cluster.Outside.IP), "as-node": end(s.cluster.Node(1).IP),
	}
	targets := map[string]hostile.End{"pod": s.scene.Remote, "gateway": s.remoteGateway, "remote": s.scene.Neighbour, "broadcast": {MAC: net.HardwareAddr{255, 255, 255, 255, 255, 255}, IP: s.scene.Remote.IP}}
	var sent []hostile.Frame
	for by, netns := range senders {
		for as, from := range inner {
			for at, to := range targets {
				f, err := hostile.Tunnelled(fmt.Sprintf("%s-%s-to-%s", by, as, at), 0, from, to)
				if err != nil {
					t.Fatal(err)
				}
				sendUDP(t, netns, netip.AddrPortFrom(n2.IP, vxlanPort), f.Data)
				sent = append(sent, f)
			}
		}
	}
	for _, f := range sent {
		if _, ok := s.sniffers["n2's eth0"].Await(f.Marker, patience); !ok {
			t.Errorf("%s did not arrive at n2's eth0, so its absence behind eth0 proves nothing", f.Name)
		}
	}
	// A packet with a node's address takes the same path, and arrives; so packets sent before it would have arrived.
	control, err := hostile.Tunnelled("control", 0, s.scene.Attacker, s.scene.Remote)
	if err != nil {
		t.Fatal(err)
	}
	sendUDP(t, s.cluster.Node(1).Netns, netip.AddrPortFrom(n2.IP, vxlanPort), control.Data)
	if _, ok := s.sniffers["remote's eth0"].Await(control.Marker, patience); !ok {
		t.Errorf("a node's tunnel packet did not arrive, so the absence of the others proves nothing")
	}
	for _, f := range sent {
		for _, name := range []string{"remote's eth0", "neighbour's eth0", "n2's tun0", "n1's tun0", "n2's UDP sockets"} {
			if _, ok := s.sniffers[name].Find(f.Marker); ok {
				t.Errorf("%s: received at %s", f.Name, name)
			}
		}
	}
	s.unharmed(t)
	t.Logf("%d tunnel packets of two hosts that are no nodes arrived at the node and were dropped there", len(sent))
}

// sendUDP sends one datagram from a namespace.
func sendUDP(t *testing.T, netns string, to netip.AddrPort, data []byte) {
	t.Helper()
	conn, err := traffic.ListenUDP(netns, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	// Without checksum, as tunnels do: an offloaded checksum would be wrong on a virtual interface.
	raw, err := conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) })
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.WriteToUDPAddrPort(data, to); err != nil {
		t.Fatal(err)
	}
}

// attachForeignHost attaches a host that is not a node to the nodes' network, and returns its namespace.
func attachForeignHost(t *testing.T, c *lab.Cluster) string {
	t.Helper()
	path, remove, err := traffic.NewSpace(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	st, err := lab.Inspect(t.Context(), c.Name())
	if err != nil {
		t.Fatal(err)
	}
	space, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(space) }()
	const here, there = "wtforeign", "eth0"
	err = traffic.In(st.UnderlayNS, func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: here, MTU: 1500}, PeerName: there, PeerNamespace: netlink.NsFd(space)}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		bridge, err := netlink.LinkByName("ul0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(veth, bridge); err != nil {
			return err
		}
		return netlink.LinkSetUp(veth)
	})
	if err != nil {
		t.Fatal(err)
	}
	err = traffic.In(path, func() error {
		eth0, err := netlink.LinkByName(there)
		if err != nil {
			return err
		}
		address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(172, 31, 0, 200), Mask: net.CIDRMask(24, 32)}}
		if err := netlink.AddrAdd(eth0, address); err != nil {
			return err
		}
		return netlink.LinkSetUp(eth0)
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}
