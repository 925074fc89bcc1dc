//go:build real

package node_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/network/networktest"
	"weft.dev/weft/internal/testwait"
)

// mirrors answers each connection and each datagram at a port of a namespace with the client's address.
func mirrors(t *testing.T, space ns.NetNS, port int) {
	t.Helper()
	var listener net.Listener
	var datagrams net.PacketConn
	err := space.Do(func(ns.NetNS) error {
		var errs [2]error
		listener, errs[0] = net.Listen("tcp", fmt.Sprintf(":%d", port))
		datagrams, errs[1] = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		return errors.Join(errs[:]...)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(listener.Close(), datagrams.Close()) })
	host := func(a net.Addr) []byte {
		text, _, _ := net.SplitHostPort(a.String())
		return []byte(text)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(host(conn.RemoteAddr()))
			_ = conn.Close()
		}
	}()
	go func() {
		data := make([]byte, 64)
		for {
			_, from, err := datagrams.ReadFrom(data)
			if err != nil {
				return
			}
			_, _ = datagrams.WriteTo(host(from), from)
		}
	}()
}

// asks returns the client's address as the listener at an address sees it.
func asks(from ns.NetNS, to string, within time.Duration) (seen string, err error) {
	err = from.Do(func(ns.NetNS) error {
		conn, err := net.DialTimeout("tcp", to, within)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		data, err := io.ReadAll(conn)
		seen = string(data)
		return err
	})
	return seen, err
}

// uplink connects a node with a neighbour outside, which has routes to the node's pods.
func uplink(t *testing.T, node ns.NetNS) (outside ns.NetNS) {
	t.Helper()
	outside = space(t)
	err := node.Do(func(ns.NetNS) error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: "far", PeerNamespace: netlink.NsFd(int(outside.Fd()))}
		return netlink.LinkAdd(pair)
	})
	if err != nil {
		t.Fatal(err)
	}
	for at, name := range map[ns.NetNS]string{node: "uplink", outside: "far"} {
		host := map[string]int{"uplink": 1, "far": 9}[name]
		err := at.Do(func(ns.NetNS) error {
			for _, line := range []string{
				fmt.Sprintf("addr add 192.0.2.%d/24 dev %s", host, name), fmt.Sprintf("addr add 2001:db8::%d/64 dev %s nodad", host, name),
				"link set lo up", "link set " + name + " up",
			} {
				if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
					return fmt.Errorf("ip %s: %w %s", line, err, out)
				}
			}
			// On a node, the agent and the daemon turn forwarding on.
			return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0), os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return outside
}

func publish(t *testing.T, h *lifecycle.Handler, name string, pod ns.NetNS, ports ...cni.PortMapping) (*types100.Result, error) {
	t.Helper()
	return addWith(t, h, name, pod, cni.RuntimeConfig{PortMappings: ports})
}

// TestHostPorts: host ports lead to the pod from outside, from the node, from another pod and from the pod itself, by IPv4 and IPv6, also
// after a restart of the agent and after another program has removed the rules.
func TestHostPorts(t *testing.T) {
	s := newStage(t)
	outside := uplink(t, s.space)
	h, stop := serveUntil(t, s)
	pod, other := space(t), space(t)
	tcp, udp := cni.PortMapping{HostPort: 8080, ContainerPort: 80}, cni.PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "udp"}
	one := cni.PortMapping{HostPort: 8081, ContainerPort: 80, HostIP: "2001:db8::1"}
	if _, err := publish(t, h, "web", pod, tcp, udp, one); err != nil {
		t.Fatal(err)
	}
	asked, err := add(t, h, "other", other)
	if err != nil {
		t.Fatal(err)
	}
	mirrors(t, pod, 80)
	gateway := func(i int) string { return s.state.Subnets[i].Addr().Next().String() }
	cases := []struct {
		name string
		from ns.NetNS
		to   string
		sees string
	}{
		{"outside", outside, "192.0.2.1:8080", "192.0.2.9"},
		{"outside", outside, "[2001:db8::1]:8080", "2001:db8::9"},
		{"outside, at one address", outside, "[2001:db8::1]:8081", "2001:db8::9"},
		{"node", s.space, "192.0.2.1:8080", "192.0.2.1"},
		{"node", s.space, "127.0.0.1:8080", gateway(0)},
		{"node", s.space, "[2001:db8::1]:8080", "2001:db8::1"},
		{"another pod", other, "192.0.2.1:8080", asked.IPs[0].Address.IP.String()},
		{"another pod", other, gateway(0) + ":8080", asked.IPs[0].Address.IP.String()},
		{"another pod", other, "[2001:db8::1]:8080", asked.IPs[1].Address.IP.String()},
		{"the pod itself", pod, "192.0.2.1:8080", gateway(0)},
		{"the pod itself", pod, "[2001:db8::1]:8080", gateway(1)},
	}
	all := func(when string) {
		t.Helper()
		for _, c := range cases {
			got, err := asks(c.from, c.to, 10*time.Second)
			if want := netip.MustParseAddr(c.sees).String(); err != nil || got != want {
				t.Errorf("%s: from %s to %s: the pod sees %q, %v, want %s", when, c.name, c.to, got, err, want)
			}
		}
	}
	all("at first")
	for _, to := range []string{"192.0.2.1:8081", "192.0.2.1:80", "[2001:db8::1]:80"} {
		if got, err := asks(outside, to, time.Second); err == nil {
			t.Errorf("%s answers %q", to, got)
		}
	}
	stop()
	all("without an agent")
	runNFT(t, s.space, "delete table inet weft-flannel")
	_ = serve(t, s)
	testwait.Eventually(t, "the rules are there again", func() error {
		_, err := asks(outside, "192.0.2.1:8080", time.Second)
		return err
	})
	all("with the next agent")
}

// TestHostPortSuite: the network passes the suite of networks with host ports, by IPv4 and IPv6.
func TestHostPortSuite(t *testing.T) {
	networktest.RunHostPorts(t, func(t *testing.T) networktest.HostPortSubject {
		s := newStage(t)
		return networktest.HostPortSubject{
			Records: filepath.Join(s.dir, "attachments"), Namespace: "default", Table: "weft-flannel",
			Node: s.space, Outside: uplink(t, s.space), Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
			Serve: func(t *testing.T) (networktest.Runtime, func()) { return serveUntil(t, s) },
			Pod:   func(t *testing.T, _ string) (netns, uid string) { return space(t).Path(), "" },
		}
	})
}

// TestHostPortConflictIsReported: a conflict about a host port that the agent finds when it starts is reported on the pod and in the network's
// section, until it ends.
func TestHostPortConflictIsReported(t *testing.T) {
	s := newStage(t)
	var mu sync.Mutex
	var pods []string
	var section weftv1.NodeNetworkSection
	s.conflict = func(rec *attach.Record, why error) {
		mu.Lock()
		defer mu.Unlock()
		pods = append(pods, rec.PodName+": "+why.Error())
	}
	s.report = func(now weftv1.NodeNetworkSection) {
		mu.Lock()
		defer mu.Unlock()
		section = now
	}
	condition := func(want metav1.ConditionStatus, words string) error {
		mu.Lock()
		defer mu.Unlock()
		c := meta.FindStatusCondition(section.Conditions, weftv1.NetworkHostPorts)
		switch {
		case c == nil && want == "", c != nil && c.Status == want && strings.Contains(c.Message, words):
			return nil
		default:
			return fmt.Errorf("condition %+v, want %s %q", c, want, words)
		}
	}
	h, stop := serveUntil(t, s)
	for i, name := range []string{"first", "second"} {
		if _, err := publish(t, h, name, space(t), cni.PortMapping{HostPort: 8080 + i, ContainerPort: 80}); err != nil {
			t.Fatal(err)
		}
	}
	if err := condition("", ""); err != nil {
		t.Error(err)
	}
	stop()
	files, err := filepath.Glob(filepath.Join(s.dir, "attachments-extra", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files { // no agent writes two records with one port
		data, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, bytes.ReplaceAll(data, []byte(":8081"), []byte(":8080")), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	h = serve(t, s)
	const why = "pod default/second cannot have host port 8080/tcp of this node: pod default/first has it"
	testwait.Eventually(t, "the section has the conflict", func() error { return condition(metav1.ConditionFalse, why) })
	mu.Lock()
	if len(pods) != 1 || pods[0] != "second: "+why {
		t.Errorf("reported %q", pods)
	}
	mu.Unlock()
	del(t, h, "first")
	testwait.Eventually(t, "the section has the end of the conflict", func() error { return condition(metav1.ConditionTrue, "") })
}

// TestLoopbackClosedToPods: although packets to 127.0.0.1 from the bridge are routed, a pod reaches no program of the node that listens
// there, whatever the form of its frames: plain, with a tag of a VLAN or of priority, and with two tags.
func TestLoopbackClosedToPods(t *testing.T) {
	s := newStage(t)
	h := serve(t, s)
	pod := space(t)
	result, err := publish(t, h, "hostile", pod, cni.PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "udp"})
	if err != nil {
		t.Fatal(err)
	}
	var listener net.PacketConn
	if err := s.space.Do(func(ns.NetNS) (err error) {
		listener, err = net.ListenPacket("udp4", ":9999")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var bridge net.HardwareAddr
	if err := s.space.Do(func(ns.NetNS) error {
		found, err := netlink.LinkByName("cni0")
		if err == nil {
			bridge = found.Attrs().HardwareAddr
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	own := netip.MustParseAddr(result.IPs[0].Address.IP.String())
	tags := map[string][]byte{
		"plain": nil, "priority": {0x81, 0, 0, 0}, "VLAN 1": {0x81, 0, 0, 1}, "VLAN 7": {0x81, 0, 0, 7}, "service tag": {0x88, 0xa8, 0, 0},
		"two tags": {0x88, 0xa8, 0, 0, 0x81, 0, 0, 0}, "two priority tags": {0x81, 0, 0, 0, 0x81, 0, 0, 0},
	}
	for name, tag := range tags {
		for _, to := range []string{"127.0.0.1", "127.0.0.53", "127.255.255.254"} {
			data := name + " to " + to
			sendFrame(t, pod, bridge, tag, datagram(own, netip.MustParseAddr(to), 9999, data))
			if received(t, listener, data) {
				t.Errorf("%s arrives", data)
			}
		}
		for _, from := range []string{"127.0.0.1", "10.244.3.1"} {
			data := name + " from " + from
			sendFrame(t, pod, bridge, tag, datagram(netip.MustParseAddr(from), netip.MustParseAddr("10.244.3.1"), 9999, data))
			if received(t, listener, data) {
				t.Errorf("%s arrives", data)
			}
		}
	}
	for _, name := range []string{"plain", "priority"} { // such frames do arrive
		data := name + " to the gateway"
		sendFrame(t, pod, bridge, tags[name], datagram(own, netip.MustParseAddr("10.244.3.1"), 9999, data))
		if !received(t, listener, data) {
			t.Errorf("%s does not arrive", data)
		}
	}
}

// datagram returns an IPv4 packet with a UDP datagram without a checksum.
func datagram(from, to netip.Addr, port uint16, data string) []byte {
	const header, udp = 20, 8
	packet := make([]byte, header+udp, header+udp+len(data))
	packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(packet[2:], uint16(header+udp+len(data)))
	copy(packet[12:], from.AsSlice())
	copy(packet[16:], to.AsSlice())
	var sum uint32
	for i := 0; i < header; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(packet[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(packet[10:], ^uint16(sum))
	binary.BigEndian.PutUint16(packet[header:], 40000)
	binary.BigEndian.PutUint16(packet[header+2:], port)
	binary.BigEndian.PutUint16(packet[header+4:], uint16(udp+len(data)))
	return append(packet, data...)
}

// sendFrame sends an IPv4 packet from a pod's interface, with VLAN tags.
func sendFrame(t *testing.T, pod ns.NetNS, to net.HardwareAddr, tags, packet []byte) {
	t.Helper()
	err := pod.Do(func(ns.NetNS) error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(socket) }()
		frame := slices.Concat(to, eth.Attrs().HardwareAddr, tags, []byte{0x08, 0x00}, packet)
		return unix.Sendto(socket, frame, 0, &unix.SockaddrLinklayer{Ifindex: eth.Attrs().Index})
	})
	if err != nil {
		t.Fatal(err)
	}
}
