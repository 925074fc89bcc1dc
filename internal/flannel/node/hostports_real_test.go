//go:build real

package node_test

import (
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
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/cni"
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
// after a restart of the agent and after another program has removed the rules; a second pod cannot have the port; a DEL ends it.
func TestHostPorts(t *testing.T) {
	s := newStage(t)
	outside := uplink(t, s.space)
	h, stop := serveUntil(t, s)
	pod, other := space(t), space(t)
	tcp, udp := cni.PortMapping{HostPort: 8080, ContainerPort: 80}, cni.PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "udp"}
	one := cni.PortMapping{HostPort: 8081, ContainerPort: 80, HostIP: "2001:db8::1"}
	result, err := publish(t, h, "web", pod, tcp, udp, one)
	if err != nil {
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
	if _, err := publish(t, h, "second", space(t), tcp); cni.AsError(err) == nil || cni.AsError(err).Code != cni.CodeTryAgainLater || !strings.Contains(err.Error(), "default/web") {
		t.Errorf("a second pod with the host port: %v", err)
	}
	stop()
	all("without an agent")
	runNFT(t, s.space, "delete table inet weft-flannel")
	h = serve(t, s)
	eventually(t, "the rules are there again", func() error {
		_, err := asks(outside, "192.0.2.1:8080", time.Second)
		return err
	})
	all("with the next agent")

	// A client that goes on sending while no pod has the port reaches the next one.
	sender := datagrams(t, outside, "udp4 192.0.2.1:8080")
	sends := func() error {
		if err := sender.SetDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return err
		}
		_, _ = sender.Write([]byte("x")) // an ICMP unreachable causes an error of the next write
		_, err := sender.Read(make([]byte, 64))
		return err
	}
	eventually(t, "a datagram is answered", sends)
	if err := h.Del(t.Context(), &cni.Request{Command: cni.CommandDel, ContainerID: "web", IfName: "eth0", Netns: pod.Path(), Args: cni.Args{PodNamespace: "default", PodName: "web"}, NetConf: &cni.NetConf{}}); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"192.0.2.1:8080", "[2001:db8::1]:8081"} {
		if got, err := asks(outside, to, time.Second); err == nil {
			t.Errorf("after DEL, %s answers %q", to, got)
		}
	}
	if err := sends(); err == nil {
		t.Error("after DEL, a datagram is answered")
	}
	next := space(t)
	if _, err := publish(t, h, "next", next, tcp, udp); err != nil {
		t.Fatal(err)
	}
	mirrors(t, next, 80)
	if result.IPs[0].Address.IP == nil {
		t.Fatal("no address")
	}
	eventually(t, "a datagram of the same client is answered by the next pod", sends)
	if got, err := asks(outside, "192.0.2.1:8080", 10*time.Second); err != nil || got != "192.0.2.9" {
		t.Errorf("the next pod sees %q, %v", got, err)
	}
}

// hostPortElements returns the elements of the maps of host ports.
func hostPortElements(t *testing.T, node ns.NetNS) string {
	t.Helper()
	var found []string
	err := node.Do(func(ns.NetNS) error {
		for _, name := range []string{"hostports", "hostports-at", "hostports6", "hostports6-at"} {
			out, err := exec.Command("nft", "list", "map", "inet", "weft-flannel", name).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			if _, elements, has := strings.Cut(string(out), "elements ="); has {
				found = append(found, name+elements)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(found, "\n")
}

// TestHostPortFamilies: a port at 0.0.0.0 is open by IPv4 only and one at :: by IPv6 only, as with the plugin portmap, so two pods may have
// the same port, each by a family.
func TestHostPortFamilies(t *testing.T) {
	s := newStage(t)
	outside := uplink(t, s.space)
	h, stop := serveUntil(t, s)
	four, six := space(t), space(t)
	any4, any6 := cni.PortMapping{HostPort: 8080, ContainerPort: 80, HostIP: "0.0.0.0"}, cni.PortMapping{HostPort: 8080, ContainerPort: 81, HostIP: "::"}
	if _, err := publish(t, h, "four", four, any4); err != nil {
		t.Fatal(err)
	}
	mirrors(t, four, 80)
	mirrors(t, six, 81)
	if got, err := asks(outside, "[2001:db8::1]:8080", 10*time.Second); err == nil {
		t.Errorf("a port at 0.0.0.0 answers %q by IPv6", got)
	}
	if _, err := publish(t, h, "six", six, any6); err != nil {
		t.Fatalf("another pod with the port at ::, %v", err)
	}
	for _, when := range []string{"at first", "with the next agent"} {
		for to, want := range map[string]string{"192.0.2.1:8080": "192.0.2.9", "[2001:db8::1]:8080": "2001:db8::9"} {
			if got, err := asks(outside, to, 10*time.Second); err != nil || got != want {
				t.Errorf("%s: %s answers %q, %v, want %s", when, to, got, err, want)
			}
		}
		if when == "at first" {
			stop()
			runNFT(t, s.space, "delete table inet weft-flannel")
			h = serve(t, s)
		}
	}
	for _, other := range []cni.PortMapping{{HostPort: 8080, ContainerPort: 80}, {HostPort: 8080, ContainerPort: 80, HostIP: "192.0.2.1"}} {
		if _, err := publish(t, h, "other", space(t), other); cni.AsError(err) == nil || cni.AsError(err).Code != cni.CodeTryAgainLater {
			t.Errorf("another pod with the port at %q: %v", other.HostIP, err)
		}
	}
}

// TestHostPortMovesAtOnce: with its first datagram after the ADD, a client that goes on sending reaches the next pod that has the host port,
// although that pod has another address and nothing has ended the connection to the former one: from outside and from the node.
func TestHostPortMovesAtOnce(t *testing.T) {
	s := newStage(t)
	outside := uplink(t, s.space)
	h := serve(t, s)
	udp, first := cni.PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "udp"}, space(t)
	result, err := publish(t, h, "first", first, udp)
	if err != nil {
		t.Fatal(err)
	}
	mirrors(t, first, 80)
	clients := map[string]net.Conn{}
	for _, to := range []string{"udp4 192.0.2.1:8080", "udp6 [2001:db8::1]:8080"} {
		clients["outside to "+to], clients["the node to "+to] = datagrams(t, outside, to), datagrams(t, s.space, to)
	}
	clients["the node to loopback"] = datagrams(t, s.space, "udp4 127.0.0.1:8080")
	sends := func(client net.Conn, within time.Duration) error {
		if err := client.SetDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		_, _ = client.Write([]byte("x")) // an ICMP unreachable causes an error of the next write
		_, err := client.Read(make([]byte, 64))
		return err
	}
	for name, client := range clients {
		eventually(t, name+": a datagram is answered", func() error { return sends(client, 200*time.Millisecond) })
		for late := error(nil); late == nil; { // answers to those before it
			_ = client.SetDeadline(time.Now().Add(50 * time.Millisecond))
			_, late = client.Read(make([]byte, 64))
		}
	}
	del(t, h, "first")
	for name, client := range clients {
		if err := sends(client, 50*time.Millisecond); err == nil {
			t.Errorf("%s: after DEL, a datagram is answered", name)
		}
	}
	next := space(t)
	moved, err := publish(t, h, "next", next, udp)
	if err != nil {
		t.Fatal(err)
	}
	if moved.IPs[0].Address.IP.Equal(result.IPs[0].Address.IP) {
		t.Fatal("the next pod has the former one's address")
	}
	mirrors(t, next, 80)
	for name, client := range clients {
		if err := sends(client, 10*time.Second); err != nil {
			t.Errorf("%s: the first datagram to the next pod: %v", name, err)
		}
	}
}

// TestHostPortsEnd: once a DEL is answered, and after an ADD that failed when host ports may have been published, no rule leads to the pod,
// and the next pod can have the port; and so if the agent ends before it has withdrawn those of a pod whose DEL came.
func TestHostPortsEnd(t *testing.T) {
	s := newStage(t)
	_ = uplink(t, s.space)
	h, stop := serveUntil(t, s)
	tcp, one := cni.PortMapping{HostPort: 8080, ContainerPort: 80}, cni.PortMapping{HostPort: 8081, ContainerPort: 80, HostIP: "2001:db8::1"}
	for i := range 5 {
		name := fmt.Sprintf("web%d", i)
		if _, err := publish(t, h, name, space(t), tcp, one); err != nil {
			t.Fatal(err)
		}
		if found := hostPortElements(t, s.space); strings.Count(found, "8080") != 2 || strings.Count(found, "8081") != 1 {
			t.Errorf("once an ADD is answered: %s", found)
		}
		del(t, h, name)
		if found := hostPortElements(t, s.space); found != "" {
			t.Errorf("once a DEL is answered: %s", found)
		}
	}
	_, err := h.Add(t.Context(), &cni.Request{
		Command: cni.CommandAdd, ContainerID: "fails", IfName: "eth0", Netns: filepath.Join(s.dir, "none"), Args: cni.Args{PodNamespace: "default", PodName: "fails"},
		NetConf: &cni.NetConf{RuntimeConfig: cni.RuntimeConfig{PortMappings: []cni.PortMapping{tcp, one}}},
	})
	if err == nil {
		t.Fatal("an ADD without a namespace succeeds")
	}
	eventually(t, "a failed ADD leaves no host port", func() error {
		if found := hostPortElements(t, s.space); found != "" {
			return errors.New(found)
		}
		return nil
	})
	if _, err := publish(t, h, "crash", space(t), tcp, one); err != nil {
		t.Fatal(err)
	}
	stop()
	store, err := attach.Open(filepath.Join(s.dir, "attachments"))
	if err != nil {
		t.Fatal(err)
	}
	rec, err := store.Get(attach.Key{ContainerID: "crash", IfName: "eth0"})
	rec.State = attach.Closing
	if err := errors.Join(err, store.Put(t.Context(), rec), store.Close()); err != nil {
		t.Fatal(err)
	}
	if found := hostPortElements(t, s.space); !strings.Contains(found, "8080") {
		t.Fatalf("while no agent runs: %s", found)
	}
	h = serve(t, s)
	if found := hostPortElements(t, s.space); found != "" {
		t.Errorf("with the next agent: %s", found)
	}
	if _, err := publish(t, h, "next", space(t), tcp, one); err != nil {
		t.Errorf("the next pod with the port: %v", err)
	}
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
