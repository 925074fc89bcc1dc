//go:build real

package node_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/testwait"
)

// runNFT runs nft(8) in a namespace.
func runNFT(t *testing.T, in ns.NetNS, args string) {
	t.Helper()
	err := in.Do(func(ns.NetNS) error {
		out, err := exec.Command("nft", args).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("nft %s: %w: %s", args, err, out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// datagrams returns a connection that sends packets from a namespace to an address. network and address are those of package net.
func datagrams(t *testing.T, from ns.NetNS, to string) net.Conn {
	t.Helper()
	network, address, _ := strings.Cut(to, " ")
	var sender net.Conn
	if err := from.Do(func(ns.NetNS) (err error) {
		sender, err = net.Dial(network, address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sender.Close() })
	return sender
}

// received reports whether a packet with this content has arrived at a listener, or arrives within a while.
func received(t *testing.T, listener net.PacketConn, data string) bool {
	t.Helper()
	const while = 50 * time.Millisecond
	if err := listener.SetReadDeadline(time.Now().Add(while)); err != nil {
		t.Fatal(err)
	}
	for {
		got := make([]byte, 256)
		n, _, err := listener.ReadFrom(got)
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			return false
		}
		if string(got[:n]) == data {
			return true
		}
	}
}

// arrives waits until a packet from a namespace to an address arrives at a listener.
func arrives(t *testing.T, from ns.NetNS, to string, listener net.PacketConn) {
	t.Helper()
	sender, data := datagrams(t, from, to), t.Name()+" "+to // not one of an earlier test
	testwait.Eventually(t, "a packet to "+to+" arrives", func() error {
		_, _ = sender.Write([]byte(data)) // an ICMP unreachable causes an error of the next write
		if !received(t, listener, data) {
			return errors.New("none")
		}
		return nil
	})
}

// TestTunnelsAreClosed: no packet of a pod reaches a tunnel between nodes, of this network, of OVN or of Neutron, not through a host port
// either.
func TestTunnelsAreClosed(t *testing.T) {
	s := newStage(t)
	listen := func(network, address string) net.PacketConn {
		t.Helper()
		var made net.PacketConn
		if err := s.space.Do(func(ns.NetNS) (err error) {
			made, err = net.ListenPacket(network, address)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = made.Close() })
		return made
	}
	vxlan, geneve, other := listen("udp4", ":8472"), listen("udp4", ":6081"), listen("udp4", ":7779")
	neutron := listen("udp4", ":4789")
	ipip, icmp := listen("ip4:4", ""), listen("ip4:143", "")
	// Host ports: what portmap and kube-proxy do.
	runNFT(t, s.space, "add table ip ports; add chain ip ports prerouting { type nat hook prerouting priority dstnat; }; "+
		"add rule ip ports prerouting udp dport 7777 dnat to 10.244.3.1:8472; add rule ip ports prerouting udp dport 7778 dnat to 10.244.3.1:7779")
	for _, c := range []struct {
		name   string
		tunnel host.Tunnel
		want   map[string]bool
	}{
		{"vxlan", host.Tunnel{Port: 8472}, map[string]bool{"8472": false, "6081": false, "4789": false, "7777": false, "7778": true, "ip4:4": true, "ip4:143": true}},
		{"ipip", host.Tunnel{IPIP: true}, map[string]bool{"8472": true, "6081": false, "4789": false, "7777": true, "7778": true, "ip4:4": false, "ip4:143": true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.tunnel = c.tunnel
			h, stop := serveUntil(t, s)
			defer stop()
			pod := space(t)
			if _, err := add(t, h, "pod-"+c.name, pod); err != nil {
				t.Fatal(err)
			}
			for to, want := range c.want {
				at := map[string]net.PacketConn{"8472": vxlan, "6081": geneve, "4789": neutron, "7777": vxlan, "7778": other, "ip4:4": ipip, "ip4:143": icmp}[to]
				target := "udp4 10.244.3.1:" + to
				if strings.HasPrefix(to, "ip4") {
					target = to + " 10.244.3.1"
				}
				if want {
					arrives(t, pod, target, at)
					continue
				}
				sender, data := datagrams(t, pod, target), t.Name()+" from a pod to "+to
				for range 5 {
					_, _ = sender.Write([]byte(data))
					arrives(t, pod, "udp4 10.244.3.1:7779", other) // what was sent before is through
				}
				if received(t, at, data) {
					t.Errorf("a packet to %s arrives", target)
				}
				if to != "7777" { // the listener gets what the node itself sends
					arrives(t, s.space, target, at)
				}
			}
		})
	}
}

// TestUnknownPort: a pod's port whose name is not in the set passes nothing.
func TestUnknownPort(t *testing.T) {
	s := newStage(t)
	h, stop := serveUntil(t, s)
	pod := space(t)
	if _, err := add(t, h, "pod", pod); err != nil {
		t.Fatal(err)
	}
	gw := s.state.Subnets[0].Addr().Next()
	if err := reaches(t, pod.Path(), gw, true); err != nil {
		t.Fatal(err)
	}
	stop() // it would correct the set
	runNFT(t, s.space, "flush set bridge weft-flannel-ports ports")
	if err := pod.Do(func(ns.NetNS) error {
		eth, err := netlink.LinkByName("eth0")
		return errors.Join(err, netlink.LinkSetHardwareAddr(eth, net.HardwareAddr{2, 0, 0, 0, 0, 9}))
	}); err != nil {
		t.Fatal(err)
	}
	if err := reaches(t, pod.Path(), gw, false); err == nil {
		t.Error("with another MAC the pod reaches its node")
	}
}
