//go:build real

package node_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/testwait"
)

// wire is a packet socket on a pod's eth0.
type wire struct {
	t     *testing.T
	fd    int
	index int
}

func wireOf(t *testing.T, pod ns.NetNS) *wire {
	t.Helper()
	w := &wire{t: t}
	err := pod.Do(func(ns.NetNS) error {
		eth, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		protocol := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(protocol)); err != nil {
			return err
		}
		w.index = eth.Index
		mreq := &unix.PacketMreq{Ifindex: int32(eth.Index), Type: unix.PACKET_MR_PROMISC}
		return errors.Join(
			unix.SetsockoptPacketMreq(w.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, mreq),
			unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
			unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: eth.Index}),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(w.fd) })
	return w
}

func (w *wire) send(frame []byte) {
	w.t.Helper()
	if err := unix.Sendto(w.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.index}); err != nil {
		w.t.Fatal(err)
	}
}

// receives waits for one of two frames, which were sent in this order, and reports whether the first arrived.
func (w *wire) receives(first, last []byte) bool {
	w.t.Helper()
	buffer := make([]byte, 2048)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		n, err := unix.Read(w.fd, buffer)
		switch {
		case err != nil:
		case bytes.HasPrefix(buffer[:n], first):
			return true
		case bytes.HasPrefix(buffer[:n], last):
			return false
		}
	}
	w.t.Fatal("no frame arrives")
	return false
}

// udp returns a frame with a UDP packet of 4 bytes, a text, without checksum.
func udp(text string, to, from net.HardwareAddr, source, destination net.IP) []byte {
	frame := append(append(append([]byte{}, to...), from...), 0x08, 0x00)
	header := append([]byte{0x45, 0, 0, 32, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, append(append([]byte{}, source.To4()...), destination.To4()...)...)
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum+sum>>16))
	return append(append(frame, header...), append([]byte{0x1f, 0x90, 0x1f, 0x90, 0, 12, 0, 0}, text[:4]...)...)
}

// TestBridgeLearnsNothing: a pod cannot take over another's MAC address with frames that bypass all rules, and receives no packets for
// addresses unknown to the bridge; this also holds after a manual change and after a restart.
func TestBridgeLearnsNothing(t *testing.T) {
	s := newStage(t)
	h, stop := serveUntil(t, s)
	spaces, results := map[string]ns.NetNS{}, map[string]*types100.Result{}
	for _, name := range []string{"attacker", "victim", "sender"} {
		spaces[name] = space(t)
		result, err := add(t, h, name, spaces[name])
		if err != nil {
			t.Fatal(err)
		}
		results[name] = result
	}
	mac := func(name string) net.HardwareAddr {
		made, err := net.ParseMAC(results[name].Interfaces[2].Mac)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	ip := func(name string) net.IP { return results[name].IPs[0].Address.IP }
	attacker, victim, sender := wireOf(t, spaces["attacker"]), wireOf(t, spaces["victim"]), wireOf(t, spaces["sender"])
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	attack := func(when, tag string) { // frames of one attack differ from those of others
		t.Helper()
		// LLDP: the bridge processes such frames itself, before its rules (IEEE 802.1Q, table 8-1).
		attacker.send(append(append(append([]byte{}, 0x01, 0x80, 0xc2, 0, 0, 0x0e), mac("victim")...), 0x88, 0xcc, 0, 0))
		attacker.send(udp(tag, broadcast, mac("attacker"), ip("attacker"), net.IPv4bcast)) // sent second: the bridge has learned by then
		own, other := udp(tag, mac("victim"), mac("sender"), ip("sender"), ip("victim")), udp(tag, broadcast, mac("sender"), ip("sender"), net.IPv4bcast)
		sender.send(own)
		sender.send(other)
		if attacker.receives(own, other) {
			t.Errorf("%s: the attacker gets a packet for the victim", when)
		}
		if !victim.receives(own, other) {
			t.Errorf("%s: the victim does not get its packet", when)
		}
		unknown, after := udp(tag, net.HardwareAddr{2, 0, 0, 0, 0, 0x99}, mac("sender"), ip("sender"), ip("victim")), udp(tag, broadcast, mac("sender"), ip("sender"), ip("victim"))
		sender.send(unknown)
		sender.send(after)
		if attacker.receives(unknown, after) {
			t.Errorf("%s: a packet for an unknown address is flooded", when)
		}
	}
	attack("at first", "1st ")
	run := func(args ...string) string {
		t.Helper()
		var out []byte
		err := s.space.Do(func(ns.NetNS) (err error) {
			out, err = exec.Command("bridge", args...).CombinedOutput()
			return err
		})
		if err != nil {
			t.Fatalf("bridge %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	port := func(name string) string { return results[name].Interfaces[1].Name }
	run("link", "set", "dev", port("attacker"), "learning", "on", "flood", "on")
	run("fdb", "del", mac("victim").String(), "dev", port("victim"), "master")
	run("fdb", "add", mac("victim").String(), "dev", port("attacker"), "master", "static")
	stop()
	_, stop = serveUntil(t, s)
	defer stop()
	testwait.Eventually(t, "the ports are repaired", func() error {
		at := run("fdb", "show", "br", "cni0")
		for _, name := range []string{"attacker", "victim"} {
			if !strings.Contains(at, mac(name).String()+" dev "+port(name)+" sticky master cni0 static") {
				return fmt.Errorf("no entry of %s in %s", name, at)
			}
		}
		if flags := run("-d", "link", "show", "dev", port("attacker")); !strings.Contains(flags, "learning off flood off") {
			return errors.New(flags)
		}
		return nil
	})
	attack("after a change by hand and a restart", "2nd ")
}

// TestPortsNotTakenOver: a pod that another plugin has attached to the bridge, and that was not taken over, sends nothing to the agent's
// pods, not even with the address of one of them.
func TestPortsNotTakenOver(t *testing.T) {
	s := newStage(t)
	left := space(t)
	ip := func(in ns.NetNS, args ...string) (shown string) {
		t.Helper()
		err := in.Do(func(ns.NetNS) error {
			out, err := exec.Command("ip", args...).CombinedOutput()
			if err != nil {
				err = fmt.Errorf("ip %v: %w: %s", args, err, out)
			}
			shown = string(out)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return shown
	}
	ip(s.space, "link", "add", "cni0", "up", "type", "bridge")
	ip(left, "link", "add", "eth0", "type", "veth", "peer", "name", "veth1")
	ip(left, "link", "set", "eth0", "up")
	if err := left.Do(func(ns.NetNS) error {
		port, err := netlink.LinkByName("veth1")
		return errors.Join(err, netlink.LinkSetNsFd(port, int(s.space.Fd())))
	}); err != nil {
		t.Fatal(err)
	}
	ip(s.space, "link", "set", "veth1", "master", "cni0", "up")
	testwait.Eventually(t, "the port forwards", func() error {
		if shown := ip(s.space, "-d", "link", "show", "veth1"); !strings.Contains(shown, "state forwarding") {
			return errors.New(shown)
		}
		return nil
	})
	h := serve(t, s)
	wires, macs, addresses := attached(t, h, 0, "robbed", "victim")
	own := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	arp := append(append(append([]byte{}, macs["victim"]...), own...), 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2)
	arp = append(append(append(append(arp, own...), addresses["robbed"].To4()...), macs["victim"]...), addresses["victim"].To4()...)
	attacker := wireOf(t, left)
	for kind, frame := range map[string][]byte{"UDP": udp("left", macs["victim"], own, addresses["robbed"], addresses["victim"]), "ARP": arp} {
		attacker.send(frame)
		last := udp(kind+" ", macs["victim"], macs["robbed"], addresses["robbed"], addresses["victim"])
		wires["robbed"].send(last)
		if wires["victim"].receives(frame, last) {
			t.Errorf("%s with another pod's address arrives", kind)
		}
	}
}

// advertisement returns an IPv6 neighbour advertisement, which assigns the target address to the sender's MAC, without checksum.
func advertisement(to, from net.HardwareAddr, source, destination, target net.IP) []byte {
	frame := append(append(append([]byte{}, to...), from...), 0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, unix.IPPROTO_ICMPV6, 255)
	frame = append(append(frame, source.To16()...), destination.To16()...)
	frame = append(append(frame, 136, 0, 0, 0, 0x60, 0, 0, 0), target.To16()...) // type; solicited and override flags
	return append(append(frame, 2, 1), from...)                                  // the link-layer address
}

// attached adds pods, and returns their interfaces, MAC addresses and addresses of a family: 0 for IPv4, 1 for IPv6.
func attached(t *testing.T, h *lifecycle.Handler, family int, names ...string) (map[string]*wire, map[string]net.HardwareAddr, map[string]net.IP) {
	t.Helper()
	wires, macs, addresses := map[string]*wire{}, map[string]net.HardwareAddr{}, map[string]net.IP{}
	for _, name := range names {
		at := space(t)
		result, err := add(t, h, name, at)
		if err != nil {
			t.Fatal(err)
		}
		if macs[name], err = net.ParseMAC(result.Interfaces[2].Mac); err != nil {
			t.Fatal(err)
		}
		wires[name], addresses[name] = wireOf(t, at), result.IPs[family].Address.IP
	}
	return wires, macs, addresses
}

// TestAdvertisedAddresses: a pod cannot advertise an IPv6 address other than its own.
func TestAdvertisedAddresses(t *testing.T) {
	s := newStage(t)
	h := serve(t, s)
	wires, macs, addresses := attached(t, h, 1, "attacker", "victim", "fooled")
	says := func(by, target string) []byte {
		frame := advertisement(macs["fooled"], macs[by], addresses[by], addresses["fooled"], addresses[target])
		wires[by].send(frame)
		return frame
	}
	foreign, own := says("attacker", "victim"), says("attacker", "attacker")
	if wires["fooled"].receives(foreign, own) {
		t.Error("the advertisement of another pod's address arrives")
	}
}

// TestBridgeMACChanged: the bridge gets its MAC back after a manual change, and a pod that has sent to its gateways meanwhile has that MAC,
// although it sends nothing more.
func TestBridgeMACChanged(t *testing.T) {
	s := newStage(t)
	h := serve(t, s)
	pod := space(t)
	result, err := add(t, h, "pod", pod)
	if err != nil {
		t.Fatal(err)
	}
	const foreign = "02:00:00:00:00:99"
	tool := func(in ns.NetNS, args ...string) string {
		t.Helper()
		var out []byte
		err := in.Do(func(ns.NetNS) (err error) {
			out, err = exec.Command("ip", args...).CombinedOutput()
			return err
		})
		if err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	var mac string
	if err := s.space.Do(func(ns.NetNS) error {
		bridge, err := net.InterfaceByName(result.Interfaces[0].Name)
		if err == nil {
			mac = bridge.HardwareAddr.String()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	known := func(want string) func() error {
		return func() error {
			table := tool(pod, "neigh", "show", "dev", "eth0")
			for _, subnet := range s.state.Subnets {
				if gw := subnet.Addr().Next().String(); !strings.Contains(table, gw+" lladdr "+want) {
					return fmt.Errorf("%s is not at %s: %s", gw, want, table)
				}
			}
			return nil
		}
	}
	tool(s.space, "link", "set", result.Interfaces[0].Name, "address", foreign)
	tool(pod, "neigh", "flush", "dev", "eth0")
	for _, subnet := range s.state.Subnets {
		if err := reaches(t, pod.Path(), subnet.Addr().Next(), true); err != nil {
			t.Fatal(err)
		}
	}
	testwait.Eventually(t, "the pod has the other MAC", known(foreign))
	if _, err := s.links.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	testwait.Eventually(t, "the pod has the bridge's MAC", known(mac))
}

// TestBridgeLinkLocal: the kernel makes no duplicate address detection for the bridge's link-local address, which it has with the first pod. It
// would ask for no neighbour meanwhile, and packets from elsewhere would not reach that pod by IPv6.
func TestBridgeLinkLocal(t *testing.T) {
	s := newStage(t)
	h := serve(t, s)
	result, err := add(t, h, "pod", space(t))
	if err != nil {
		t.Fatal(err)
	}
	err = s.space.Do(func(ns.NetNS) error {
		data, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv6/conf", result.Interfaces[0].Name, "accept_dad"))
		if err == nil && strings.TrimSpace(string(data)) != "0" {
			err = fmt.Errorf("accept_dad of the bridge is %q", data)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
