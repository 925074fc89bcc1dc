//go:build real

package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/test/hostile"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// member is a pod of the attack.
type member struct {
	*ovntest.Pod
	name, uuid string
	end        hostile.End
	// node is the pod's node, and veth its interface there.
	node *served
	veth string
	raw  *traffic.Raw
}

// attack has the pods of two tenants with equal addresses. Victims are red, and so is all that must receive nothing:
//
//	node 1: attacker (blue), mate (blue), victim (red)
//	node 2: far (blue), with the victim's address; remote (red), with the mate's address; twin (red), with the attacker's address
type attack struct {
	*site
	attacker, mate, far, victim, remote, twin *member
	// api and dns are the Services that the nodes serve.
	api, dns hostile.Opening
	// foreign is the address of a Service of the victim's network, at port 80.
	foreign netip.Addr
	// unsecured says that Neutron does not check the attacker's addresses: its port is without port security.
	unsecured bool
}

const (
	routerAddress, routerMAC = "10.244.0.1", "fa:16:3e:00:00:01"
	// nodeService and metadata are addresses of the first node itself: one of the network, and a link-local one, as of a cloud's metadata.
	nodeService, metadata = "192.0.2.1", "169.254.169.254"
	tunnelPort            = 6081
)

func mac(text string) net.HardwareAddr {
	parsed, err := net.ParseMAC(text)
	if err != nil {
		panic(err)
	}
	return parsed
}

// pathOf is a namespace's path for other goroutines.
func pathOf(space ns.NetNS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), space.Fd()) }

func newAttack(t *testing.T) *attack {
	t.Helper()
	a := &attack{site: newSite(t, 2)}
	blue, red := a.network("blue"), a.network("red")
	roles := map[string]**member{}
	for _, p := range []struct {
		port portOf
		node int
		as   **member
	}{
		{a.port(blue, 0, 1, 1), 0, &a.attacker},
		{a.port(red, 0, 2, 2), 0, &a.victim},
		{a.port(blue, 0, 1, 3), 0, &a.mate},
		{a.port(red, 1, 2, 1), 1, &a.twin},
		{a.port(blue, 1, 1, 2), 1, &a.far},
		{a.port(red, 1, 2, 3), 1, &a.remote},
	} {
		roles[p.port.network.Name+p.port.address()] = p.as
		*p.as = &member{uuid: p.port.uuid(), end: hostile.End{MAC: mac(p.port.mac()), IP: netip.MustParseAddr(p.port.address())}}
	}
	a.serve()
	for i, tenants := range [][]string{{"blue", "blue", "red"}, {"blue", "red", "red"}} {
		for k, tenant := range tenants {
			pod, result := a.nodes[i].attach(t, tenant, fmt.Sprintf("%s-%d-%d", tenant, i, k), "uid")
			m := *roles[tenant+result.IPs[0].Address.IP.String()] // whichever of the tenant's ports it has
			m.Pod, m.node, m.veth = pod, a.nodes[i], result.Interfaces[0].Name
			raw, err := traffic.OpenRaw(pod.ProcPath(), "eth0")
			must(t, err)
			t.Cleanup(func() { _ = raw.Close() })
			m.raw = raw
		}
	}
	for as, m := range map[string]*member{"attacker": a.attacker, "mate": a.mate, "far": a.far, "victim": a.victim, "remote": a.remote, "twin": a.twin} {
		m.name, m.Device = as, as
	}
	a.services(t)
	a.meet(t)
	return a
}

// services gives the first node addresses of its own, and lets it serve the API server's Service and the cluster's DNS. kube-proxy is replaced
// by a rule for each.
func (a *attack) services(t *testing.T) {
	t.Helper()
	c, node := api(t), a.nodes[0].NetNS
	var kubernetes corev1.Service
	must(t, c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "kubernetes"}, &kubernetes))
	dns := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}}},
	}
	must(t, c.Create(t.Context(), dns))
	t.Cleanup(func() { _ = c.Delete(context.Background(), dns) })
	a.api = hostile.Opening{IP: netip.MustParseAddr(kubernetes.Spec.ClusterIP), Protocol: layers.IPProtocolTCP, Port: 443}
	a.dns = hostile.Opening{IP: netip.MustParseAddr(dns.Spec.ClusterIP), Protocol: layers.IPProtocolUDP, Port: 53}
	for i, n := range a.nodes {
		ovntest.Run(t, n.NetNS, "ip", "link", "set", "lo", "up")
		ovntest.Run(t, n.NetNS, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
		answers(t, n.NetNS, nodeAddress(i).String()+":7443", "node")
	}
	for _, own := range []string{nodeService, metadata} {
		ovntest.Run(t, node, "ip", "addr", "add", own+"/32", "dev", "lo")
	}
	ovntest.Run(t, node, "nft", "add", "table", "ip", "proxy")
	ovntest.Run(t, node, "nft", "add chain ip proxy pre { type nat hook prerouting priority -100; }")
	ovntest.Run(t, node, "nft", "add rule ip proxy pre ip daddr "+a.api.IP.String()+" tcp dport 443 dnat to "+nodeService+":7443")
	ovntest.Run(t, node, "nft", "add rule ip proxy pre ip daddr "+a.dns.IP.String()+" udp dport 53 dnat to "+nodeService+":5353")
	answers(t, node, nodeService+":7443", "api")
	named(t, node, nodeService+":5353", "dns")
}

func nodeAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 31, 0, byte(1 + i)}) }

// meet checks that all reach those that they must reach.
func (a *attack) meet(t *testing.T) {
	t.Helper()
	for _, way := range [][2]*member{
		{a.attacker, a.mate}, {a.attacker, a.far}, {a.victim, a.remote}, {a.victim, a.twin}, {a.remote, a.victim}, {a.remote, a.twin}, {a.twin, a.victim},
	} {
		reaches(t, way[0].Pod, way[1].end.IP.String())
	}
	for _, m := range []*member{a.attacker, a.victim, a.remote, a.twin} {
		must(t, m.node.pings(m.end.IP.String()))
	}
	eventually(t, "the Services that the node serves", func() error {
		answer, err := asks(a.attacker.NetNS, netip.AddrPortFrom(a.api.IP, a.api.Port).String(), false)
		if err != nil || answer != "api" {
			return fmt.Errorf("the API server answers %q: %w", answer, err)
		}
		if answer := ovntest.Ask(t, a.attacker.NetNS, "udp4", netip.AddrPortFrom(a.dns.IP, a.dns.Port).String()); answer != "dns" {
			return fmt.Errorf("DNS answers %q", answer)
		}
		return nil
	})
}

// scene is what the hostile packets are made for. The victim and the remote pod are red, and blue pods have their addresses.
func (a *attack) scene(t *testing.T) hostile.Scene {
	t.Helper()
	attackersEnd := mac(linkAddress(t, a.nodes[0].NetNS, a.attacker.veth))
	s := hostile.Scene{
		Attacker: a.attacker.end, Neighbour: a.victim.end, Remote: a.remote.end, Apart: true,
		Gateway: hostile.End{MAC: pipeline.HostMAC(), IP: pipeline.HostAddress()}, HostEnd: attackersEnd,
		Node: nodeAddress(0), OtherNode: nodeAddress(1), Service: a.api.IP, VXLANPort: 4789,
		Further: &hostile.Further{
			Addresses: map[string]netip.Addr{
				"the host": pipeline.HostAddress(), "the outside": pipeline.OutsideAddress(), "metadata": netip.MustParseAddr(metadata),
				"the node's Service": netip.MustParseAddr(nodeService), "the node": nodeAddress(0), "the other node": nodeAddress(1),
				"the victim": a.victim.end.IP, "the router": netip.MustParseAddr(routerAddress),
			},
			Ways: map[string]net.HardwareAddr{
				"the host": pipeline.HostMAC(), "the router": mac(routerMAC), "pods' MAC": pipeline.PodsMAC(), "the host veth": attackersEnd,
				"the node": mac(linkAddress(t, a.nodes[0].NetNS, "br-phy")), "the victim": a.victim.end.MAC, "all": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
			},
			Openings: map[string]hostile.Opening{"the API server": a.api, "DNS": a.dns},
		},
	}
	if a.foreign.IsValid() {
		s.Further.Addresses["the victim's Service"] = a.foreign
	}
	return s
}

// track gives both networks a Service, and so lets the switch track their pods' connections.
func (a *attack) track(t *testing.T) {
	t.Helper()
	port := corev1.ServicePort{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}
	for namespace, of := range map[string]struct{ from, to *member }{"blue": {a.attacker, a.mate}, "red": {a.remote, a.victim}} {
		web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{port}}}
		must(t, api(t).Create(t.Context(), web))
		t.Cleanup(func() { _ = api(t).Delete(context.Background(), web) })
		endpoints(t, namespace, "web", port, of.to.end.IP.String())
		answers(t, of.to.NetNS, ":8080", of.to.name)
		eventually(t, "the Service of "+namespace, func() error {
			answer, err := asks(of.from.NetNS, net.JoinHostPort(web.Spec.ClusterIP, "80"), false)
			if err != nil || answer != of.to.name {
				return fmt.Errorf("the answer is %q: %w", answer, err)
			}
			return nil
		})
		if namespace == "red" {
			a.foreign = netip.MustParseAddr(web.Spec.ClusterIP)
		}
	}
}

func linkAddress(t *testing.T, space ns.NetNS, device string) string {
	t.Helper()
	fields := strings.Fields(ovntest.Run(t, space, "ip", "-o", "link", "show", "dev", device))
	at := slices.Index(fields, "link/ether")
	if at < 0 {
		t.Fatalf("%s has no MAC address: %v", device, fields)
	}
	return fields[at+1]
}

// ofThisTest reports whether a frame is of this test.
func ofThisTest(frame []byte) bool {
	return bytes.Contains(frame, []byte("hostile-")) || bytes.Contains(frame, []byte("honest-"))
}

// received4 reports whether an IPv4 packet is for a socket, and no tunnel's.
func received4(packet []byte) bool {
	header := int(packet[0]&0xf) * 4
	return packet[9] != unix.IPPROTO_UDP || ofThisTest(packet) && binary.BigEndian.Uint16(packet[header+2:]) != tunnelPort
}

// listen starts sniffers in all pods but the attacker, on each interface of the nodes that is up except the host veths of blue pods, and in the
// nodes' sockets.
func (a *attack) listen(t *testing.T) probe.Sniffers {
	t.Helper()
	sniffers := probe.Sniffers{}
	add := func(name string, sniffer *traffic.Sniffer, err error) {
		t.Helper()
		must(t, err)
		sniffers[name] = sniffer
		t.Cleanup(func() { _ = sniffer.Close() })
	}
	for _, m := range []*member{a.mate, a.far, a.victim, a.remote, a.twin} {
		sniffer, err := traffic.Listen(m.ProcPath(), traffic.Capture{Device: "eth0", Incoming: true, Keep: ofThisTest})
		add(m.name, sniffer, err)
	}
	for _, n := range a.nodes {
		devices := a.devices(t, n)
		kernel := slices.Contains(devices, kernelTunnel)
		for _, device := range devices {
			keep := ofThisTest
			if device == "eth0" || kernel && device == "br-phy" {
				sniffer, err := traffic.Listen(pathOf(n.NetNS), traffic.Capture{Device: device, Keep: func(frame []byte) bool { return ofThisTest(frame) && tunnelled(frame) }})
				add(n.name+" "+device+" tunnel", sniffer, err)
				keep = func(frame []byte) bool { return ofThisTest(frame) && !tunnelled(frame) }
			}
			sniffer, err := traffic.Listen(pathOf(n.NetNS), traffic.Capture{Device: device, Keep: keep})
			add(n.name+" "+device, sniffer, err)
		}
		for name, protocol := range map[string]int{"UDP": unix.IPPROTO_UDP, "TCP": unix.IPPROTO_TCP, "ICMP": unix.IPPROTO_ICMP} {
			sniffer, err := traffic.NewInbox(pathOf(n.NetNS), protocol, received4)
			add(n.name+" "+name, sniffer, err)
		}
	}
	return sniffers
}

// devices are the interfaces of a node that may receive nothing of the attacker's, and those between the nodes.
func (a *attack) devices(t *testing.T, n *served) []string {
	t.Helper()
	var devices []string
	for line := range strings.SplitSeq(ovntest.Run(t, n.NetNS, "ip", "-o", "link", "show", "up"), "\n") {
		name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
		name = strings.TrimSuffix(name, ":")
		blue := slices.ContainsFunc([]*member{a.attacker, a.mate, a.far}, func(m *member) bool { return m.node == n && m.veth == name })
		if !blue && name != "lo" { // packets between a node's own sockets
			devices = append(devices, name)
		}
	}
	return devices
}

// kernelTunnel is the interface of Geneve with the kernel's datapath.
const kernelTunnel = "genev_sys_6081"

// between are the sniffers on the way from node to node.
var between = []string{"eth0 tunnel", "br-phy tunnel", kernelTunnel} //nolint:gochecknoglobals // a constant

// tunnelled reports whether a frame is in the tunnel between the nodes.
func tunnelled(frame []byte) bool {
	const header = 14
	return binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IP && frame[header+9] == unix.IPPROTO_UDP &&
		binary.BigEndian.Uint16(frame[header+int(frame[header]&0xf)*4+2:]) == tunnelPort
}

// honest returns packets that must arrive, at every place where a sniffer is.
func (a *attack) honest(t *testing.T, sniffers probe.Sniffers) []probe.Honest {
	t.Helper()
	within := func(name string, from, to *member) probe.Honest {
		h := probe.Honest{Name: name, From: from.raw, Source: from.end, Via: to.end.MAC, To: to.end.IP, At: []string{to.name}}
		if to == a.victim || to == a.remote || to == a.twin {
			h.At = append(h.At, to.node.name+" "+to.veth)
		}
		return h
	}
	one, two := a.nodes[0], a.nodes[1]
	across := within("across", a.victim, a.remote)
	for _, n := range a.nodes {
		across.At = append(across.At, n.name+" eth0 tunnel")
		if _, kernel := sniffers[n.name+" "+kernelTunnel]; kernel {
			across.At = append(across.At, n.name+" "+kernelTunnel, n.name+" br-phy tunnel")
		}
	}
	list := []probe.Honest{
		across, within("back", a.remote, a.victim), within("twin", a.remote, a.twin), within("mate", a.attacker, a.mate), within("far", a.attacker, a.far),
		{Name: "dns", From: a.attacker.raw, Source: a.attacker.end, Via: pipeline.HostMAC(), To: a.dns.IP, Port: a.dns.Port, At: []string{one.name + " " + host.Device, one.name + " UDP"}},
	}
	for i, from := range a.nodes {
		to, name := a.nodes[1-i], from.name+"-to-node"
		list = append(list, probe.Honest{
			Name: name, From: a.device(t, from, "br-phy"), Source: hostile.End{MAC: mac(linkAddress(t, from.NetNS, "br-phy")), IP: nodeAddress(i)},
			Via: mac(linkAddress(t, to.NetNS, "br-phy")), To: nodeAddress(1 - i), At: []string{from.name + " br-phy", from.name + " eth0", to.name + " eth0", to.name + " br-phy", to.name + " UDP"},
		})
	}
	return append(list, probe.Honest{
		Name: "host", From: a.device(t, two, host.Device), Source: hostile.End{MAC: pipeline.HostMAC(), IP: pipeline.HostAddress()},
		Via: pipeline.PodsMAC(), To: a.remote.end.IP, At: []string{two.name + " " + host.Device, a.remote.name},
	})
}

// device opens an interface of a node.
func (a *attack) device(t *testing.T, n *served, name string) *traffic.Raw {
	t.Helper()
	raw, err := traffic.OpenRaw(pathOf(n.NetNS), name)
	must(t, err)
	t.Cleanup(func() { _ = raw.Close() })
	return raw
}

// witnesses fails the test for each sniffer that no honest packet has shown to work. TCP and ICMP are those of the nodes' sockets.
func (a *attack) witnesses(t *testing.T, sniffers probe.Sniffers, honest []probe.Honest) {
	t.Helper()
	for i, from := range a.nodes {
		to := a.nodes[1-i]
		if answer, err := asks(from.NetNS, nodeAddress(1-i).String()+":7443", true); err != nil || answer != "node" {
			t.Errorf("%s answers %s %q: %v", to.name, from.name, answer, err)
		}
		must(t, from.pings(nodeAddress(1-i).String()))
	}
	for name, sniffer := range sniffers {
		protocol := strings.HasSuffix(name, " TCP") || strings.HasSuffix(name, " ICMP")
		seen := protocol && len(sniffer.Frames()) > 0
		if !seen && !slices.ContainsFunc(honest, func(h probe.Honest) bool { return slices.Contains(h.At, name) }) {
			t.Errorf("nothing shows that a packet at %s would be seen", name)
		}
	}
}

// own reports whether a frame has the attacker's own addresses only.
func (a *attack) own(frame []byte) bool {
	const header = 14
	kind, body, me := binary.BigEndian.Uint16(frame[12:]), frame[header:], a.attacker.end
	if !bytes.Equal(frame[6:12], me.MAC) {
		return false
	}
	switch kind {
	case unix.ETH_P_IP:
		return bytes.Equal(body[12:16], me.IP.AsSlice())
	case unix.ETH_P_ARP:
		return bytes.Equal(body[8:14], me.MAC) && bytes.Equal(body[14:18], me.IP.AsSlice())
	case unix.ETH_P_IPV6: // the port has no IPv6 address
		return false
	}
	return true
}

// asHost reports whether a frame is in the host's name.
func (a *attack) asHost(frame []byte) bool {
	const header = 14
	kind, body := binary.BigEndian.Uint16(frame[12:]), frame[header:]
	var from []byte
	switch kind {
	case unix.ETH_P_IP:
		from = body[12:16]
	case unix.ETH_P_ARP:
		from = body[14:18]
	}
	ip, _ := netip.AddrFromSlice(from)
	return pipeline.HostAddresses().Contains(ip) || bytes.Equal(frame[6:12], pipeline.HostMAC())
}

// allowed reports whether a frame may arrive at a sniffer: with the attacker's own addresses at blue pods, and on the way to them. Without port
// security the attacker may also use others' addresses there, but not the host's. Frames with VLAN tags arrive nowhere.
func (a *attack) allowed(f *hostile.Frame, at string) bool {
	_, device, _ := strings.Cut(at, " ")
	way, blue := slices.Contains(between, device), at == a.mate.name || at == a.far.name
	switch kind := binary.BigEndian.Uint16(f.Data[12:]); {
	case kind == unix.ETH_P_8021Q || kind == unix.ETH_P_8021AD:
		return false
	case a.own(f.Data):
		return way || blue
	case a.unsecured && a.asHost(f.Data):
		return way && bytes.Equal(f.Data[6:12], pipeline.HostMAC()) // dropped where it arrives
	default:
		return a.unsecured && (way || blue)
	}
}

// run sends all packets, and judges what arrives where.
func (a *attack) run(t *testing.T) {
	t.Helper()
	sniffers := a.listen(t)
	x := probe.Attack{Scene: a.scene(t), Raw: a.attacker.raw, Sniffers: sniffers, Honest: a.honest(t, sniffers), Allowed: a.allowed}
	frames, err := x.Run()
	if err != nil {
		t.Error(err)
	}
	a.witnesses(t, sniffers, x.Honest)
	classes, blue := probe.Classes(frames), 0
	for i := range frames {
		if len(x.Sniffers.Receivers(frames[i].Marker)) > 0 {
			blue++
		}
	}
	t.Logf("%d hostile frames of %d classes to %d sniffers; %d arrive, all at blue pods", len(frames), len(classes), len(sniffers), blue)
	least := 200
	if a.unsecured {
		least = 400
	}
	if len(frames) < 2000 || len(classes) < 25 || blue < least {
		t.Errorf("%d frames of %d classes, %d of them at blue pods: want at least 2000, 25 and %d", len(frames), len(classes), blue, least)
	}
	err = probe.Poisoned(map[string]string{"victim": a.victim.ProcPath(), "remote": a.remote.ProcPath(), "twin": a.twin.ProcPath()},
		func(ip netip.Addr) bool { return a.macOf(ip) != nil }, a.macOf)
	err = errors.Join(err, probe.Poisoned(map[string]string{"node 1": pathOf(a.nodes[0].NetNS), "node 2": pathOf(a.nodes[1].NetNS)},
		netip.MustParsePrefix("10.244.0.0/16").Contains, func(netip.Addr) net.HardwareAddr { return pipeline.PodsMAC() }))
	if err != nil {
		t.Error(err)
	}
	for _, m := range []*member{a.attacker, a.mate, a.far} { // without port security, a pod may deceive those of its own network
		ovntest.Run(t, m.NetNS, "ip", "neigh", "flush", "dev", "eth0")
	}
	a.meet(t)
}

// macOf is the MAC address of a red pod; nil: no red pod has the address.
func (a *attack) macOf(ip netip.Addr) net.HardwareAddr {
	for _, m := range []*member{a.victim, a.remote, a.twin} {
		if m.end.IP == ip {
			return m.end.MAC
		}
	}
	return nil
}

// A hostile pod's packets arrive nowhere but at the pods of its own network, and there with its own addresses only: not at another tenant's
// pods, whether or not pods of its network have their addresses, not at the nodes, and not between the nodes. Without port security in Neutron
// it may use others' addresses in its own network, except for the host's; then the networks also have Services. The API server and DNS are open to its own address, as long as their
// Services exist. In connections between the host and other pods it sends nothing.
func TestHostilePod(t *testing.T) {
	a := newAttack(t)
	t.Run("with port security", a.run)
	t.Run("answers of others", a.answersOfOthers)
	a.track(t)
	t.Run("without port security", func(t *testing.T) {
		a.unsecured = true
		a.Nbctl("lsp-set-port-security", a.attacker.uuid)
		a.Sync()
		a.run(t)
		a.answersOfOthers(t)
	})
	t.Run("a machine in the host's name", a.machine)
	t.Run("Services without kube-proxy", a.unproxied)
	t.Run("a Service that is gone", a.serviceGone)
}

// machine sends in the host's name from a machine on Neutron's network, whose packets no pod's bridge has passed. Port security does not check
// them.
func (a *attack) machine(t *testing.T) {
	const port = "machine"
	end := hostile.End{MAC: mac("fa:16:3e:00:00:77"), IP: netip.MustParseAddr("10.244.7.7")}
	a.Nbctl("lsp-add", "blue", port, "--", "lsp-set-addresses", port, end.MAC.String()+" "+end.IP.String())
	pod := a.Chassis[1].AddPod(t, port, end.MAC.String(), end.IP.String()+"/16", "")
	for _, blue := range []*member{a.mate, a.far} {
		reaches(t, pod, blue.end.IP.String())
	}
	raw, err := traffic.OpenRaw(pod.ProcPath(), "eth0")
	must(t, err)
	t.Cleanup(func() { _ = raw.Close() })
	scene := a.scene(t)
	scene.Attacker, scene.Neighbour, scene.Remote = end, a.far.end, a.mate.end // to the pods of its network
	frames, err := hostile.Frames(scene)
	must(t, err)
	sniffers := a.listen(t)
	sent, burst := 0, 50 // no more at once than queues hold
	control := func() {
		for _, blue := range []*member{a.mate, a.far} {
			control, err := hostile.Honest(fmt.Sprintf("machine-to-%s-%d", blue.name, sent), end, blue.end.MAC, netip.AddrPortFrom(blue.end.IP, 9))
			must(t, err)
			must(t, raw.Send(control.Data))
			if _, ok := sniffers[blue.name].Await(control.Marker, patience); !ok {
				t.Errorf("the machine's own packet does not arrive at %s", blue.name)
			}
		}
	}
	for i := range frames {
		if a.asHost(frames[i].Data) {
			sent++
			must(t, raw.Send(frames[i].Data))
			if sent%burst == 0 {
				control()
			}
		}
	}
	control()
	for i := range frames {
		by := slices.DeleteFunc(sniffers.Receivers(frames[i].Marker), func(at string) bool {
			_, device, _ := strings.Cut(at, " ")
			return slices.Contains(between, device) || device == pod.Device
		})
		if a.asHost(frames[i].Data) && len(by) > 0 {
			t.Errorf("%s: %s: received at %v", frames[i].Class, frames[i].Name, by)
		}
	}
	t.Logf("%d frames in the host's name", sent)
	if sent < burst {
		t.Errorf("%d frames in the host's name, want at least %d", sent, burst)
	}
}

// unproxied sends to the Services that the node serves while nothing translates them: the node neither forwards the packets nor takes them as its
// own, also if it has the Service's address, as with kube-proxy in mode IPVS.
func (a *attack) unproxied(t *testing.T) {
	n := a.nodes[0]
	ovntest.Run(t, n.NetNS, "ip", "route", "add", "default", "via", nodeAddress(1).String())
	sniffers := a.listen(t)
	ask := func(marker string) { // by a socket, and so in a new connection
		must(t, a.attacker.Do(func(ns.NetNS) error {
			conn, err := net.Dial("udp4", netip.AddrPortFrom(a.dns.IP, a.dns.Port).String())
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			_, err = conn.Write([]byte(marker))
			return err
		}))
	}
	arrives := func(marker, place string) {
		if _, ok := sniffers[place].Await([]byte(marker), patience); !ok {
			t.Errorf("%s does not arrive at %s", marker, place)
		}
	}
	inside := n.name + " " + host.Device
	rule := ovntest.Run(t, n.NetNS, "nft", "list", "chain", "ip", "proxy", "pre")
	ovntest.Run(t, n.NetNS, "nft", "flush", "chain", "ip", "proxy", "pre")
	ask("honest-not-translated")
	arrives("honest-not-translated", inside)
	ovntest.Run(t, n.NetNS, "ip", "addr", "add", a.dns.IP.String()+"/32", "dev", "lo")
	named(t, n.NetNS, netip.AddrPortFrom(a.dns.IP, a.dns.Port).String(), "the node")
	ask("honest-to-the-node")
	arrives("honest-to-the-node", inside)
	ovntest.Run(t, n.NetNS, "ip", "addr", "del", a.dns.IP.String()+"/32", "dev", "lo")
	ovntest.Run(t, n.NetNS, "nft", rule)
	ask("honest-translated")
	arrives("honest-translated", n.name+" UDP")
	control, err := hostile.Honest("to-the-default-route", hostile.End{MAC: mac(linkAddress(t, n.NetNS, "br-phy")), IP: nodeAddress(0)},
		mac(linkAddress(t, a.nodes[1].NetNS, "br-phy")), netip.AddrPortFrom(nodeAddress(1), 9))
	must(t, err)
	must(t, a.device(t, n, "br-phy").Send(control.Data))
	arrives(string(control.Marker), a.nodes[1].name+" UDP")
	for _, marker := range []string{"honest-not-translated", "honest-to-the-node"} {
		if by := sniffers.Receivers([]byte(marker)); !slices.Equal(by, []string{inside}) {
			t.Errorf("%s arrives at %v", marker, by)
		}
	}
}

// answersOfOthers sends in the victim's connection with the host. The victim itself can.
func (a *attack) answersOfOthers(t *testing.T) {
	const port = 5000
	n := a.nodes[0]
	at := netip.AddrPortFrom(pipeline.HostAddress(), port)
	opens := datagrams(t, n.NetNS, at)
	_, err := opens.WriteToUDPAddrPort([]byte("question"), netip.AddrPortFrom(a.victim.end.IP, 4000)) // the source port of honest packets
	must(t, err)
	sniffers := a.listen(t)
	var sent []hostile.Frame
	for name, from := range map[string]hostile.End{
		"as-the-victim": a.victim.end, "with-its-address": {MAC: a.attacker.end.MAC, IP: a.victim.end.IP}, "with-its-mac": {MAC: a.victim.end.MAC, IP: a.attacker.end.IP}, "own": a.attacker.end,
	} {
		for to, via := range map[string]net.HardwareAddr{"host": pipeline.HostMAC(), "pods": pipeline.PodsMAC(), "router": mac(routerMAC)} {
			frame, err := hostile.Honest(name+"-to-"+to, from, via, at)
			must(t, err)
			must(t, a.attacker.raw.Send(frame.Data))
			sent = append(sent, frame)
		}
	}
	control, err := hostile.Honest("victim-itself", a.victim.end, pipeline.HostMAC(), at)
	must(t, err)
	must(t, a.victim.raw.Send(control.Data))
	for _, place := range []string{n.name + " " + host.Device, n.name + " UDP"} {
		if _, ok := sniffers[place].Await(control.Marker, patience); !ok {
			t.Errorf("the victim's own answer does not arrive at %s\n%s", place, n.AppCtl("dpctl/dump-conntrack"))
		}
	}
	for i := range sent {
		if by := slices.DeleteFunc(sniffers.Receivers(sent[i].Marker), func(at string) bool { return a.allowed(&sent[i], at) }); len(by) > 0 {
			t.Errorf("%s arrives at %v", sent[i].Marker, by)
		}
	}
}

// serviceGone deletes the Service of DNS while a connection to it is open. What follows in the connection does not arrive at the node, although
// kube-proxy here still translates it.
func (a *attack) serviceGone(t *testing.T) {
	n := a.nodes[0]
	question := func(name string) hostile.Frame {
		frame, err := hostile.Honest(name, a.attacker.end, pipeline.HostMAC(), netip.AddrPortFrom(a.dns.IP, a.dns.Port))
		must(t, err)
		must(t, a.attacker.raw.Send(frame.Data))
		return frame
	}
	sniffers := a.listen(t)
	places := []string{n.name + " " + host.Device, n.name + " UDP"}
	open := question("open")
	for _, place := range places {
		if _, ok := sniffers[place].Await(open.Marker, patience); !ok {
			t.Fatalf("a question to DNS does not arrive at %s", place)
		}
	}
	must(t, api(t).Delete(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"}}))
	address := a.dns.IP.String()
	eventually(t, "the flow is gone", func() error {
		if flows := n.flowsOf(); strings.Contains(flows, address) {
			return errors.New(flows)
		}
		n.AppCtl("revalidator/wait")
		return nil
	})
	var late []hostile.Frame
	for i := range 5 {
		late = append(late, question(fmt.Sprintf("late-%d", i)))
	}
	if answer := ovntest.Silent(t, a.attacker.NetNS, "udp4", netip.AddrPortFrom(a.dns.IP, a.dns.Port).String()); answer != "" {
		t.Errorf("DNS answers %q after its Service is gone", answer)
	}
	if answer, err := asks(a.attacker.NetNS, netip.AddrPortFrom(a.api.IP, a.api.Port).String(), true); err != nil || answer != "api" {
		t.Errorf("the API server answers %q: %v", answer, err) // on the same way, and later
	}
	for _, frame := range late {
		if by := slices.DeleteFunc(sniffers.Receivers(frame.Marker), func(at string) bool { return a.allowed(&frame, at) }); len(by) > 0 {
			t.Errorf("%s arrives at %v", frame.Marker, by)
		}
	}
}
