//go:build real

package host_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"

	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/reconcile"
)

// TestEarlierRelease: one commit replaces the chains of an earlier release, of which chain tunnel was a base chain. Nothing of them remains.
func TestEarlierRelease(t *testing.T) {
	space, err := testutils.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = space.Close()
		_ = testutils.UnmountNS(space)
	})
	c := host.Config{
		Families: [2]host.Family{{
			Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.1.0/24"), Local: netip.MustParseAddr("192.0.2.1"),
		}},
		Masquerade: true, Tunnel: host.Tunnel{Port: 8472}, Pods: host.Pods{Bridge: "cni0", Closed: []uint16{4789}},
	}
	err = space.Do(func(ns.NetNS) error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(`table ip weft-flannel {
			set nodes { type ipv4_addr; elements = { 192.0.2.2 }; }
			chain tunnel { type filter hook prerouting priority -300; udp dport 8472 ip saddr != @nodes fib daddr type != unicast counter drop; }
			chain tunnel-input { type filter hook input priority 0; udp dport 8472 ct status dnat counter drop; }
			chain tunnel-output { type filter hook postrouting priority 99; udp dport 8472 ip daddr @nodes ip saddr != 192.0.2.1 counter drop; }
		}`)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("nft: %s", out)
			return err
		}
		engine, err := ruleset.NewEngine(ruleset.Options{Tables: host.Tables()})
		if err != nil {
			return err
		}
		defer engine.Close()
		have, err := engine.Read(t.Context())
		if err != nil {
			return err
		}
		if err := engine.Commit(t.Context(), reconcile.Diff(c.Rules(), have)); err != nil {
			return err
		}
		if have, err = engine.Read(t.Context()); err != nil {
			return err
		}
		if left := reconcile.Diff(c.Rules(), have); !left.Empty() {
			t.Errorf("to set %v, to delete %v", left.Set, left.Delete)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTunnelBehindNodePort: a pod of another node cannot reach this node's tunnels through a node port of it. The translated packet has the
// other node's address, as the other node masquerades it.
func TestTunnelBehindNodePort(t *testing.T) {
	const local, peer = "192.0.2.1", "192.0.2.2"
	node, other := nstest.New(t), nstest.New(t)
	c := host.Config{
		Families: [2]host.Family{{
			Network: netip.MustParsePrefix("10.5.0.0/16"), Subnet: netip.MustParsePrefix("10.5.1.0/24"), Local: netip.MustParseAddr(local),
		}},
		Masquerade: true, Tunnel: host.Tunnel{Port: 8472}, Pods: host.Pods{Bridge: "cni0", Closed: []uint16{4789}},
	}
	want := c.Rules()
	maps.Copy(want, c.Node([2]netip.Addr{netip.MustParseAddr(peer)}))
	engine, err := ruleset.NewEngine(ruleset.Options{Netns: node, Tables: host.Tables()})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	have, err := engine.Read(t.Context())
	if err == nil {
		err = engine.Commit(t.Context(), reconcile.Diff(want, have))
	}
	if err != nil {
		t.Fatal(err)
	}
	listeners := map[string]net.PacketConn{}
	nstest.Do(t, node, func() error {
		if err := errors.Join(nstest.Veth("eth0", "eth0", other), nstest.Up("eth0", local+"/24")); err != nil {
			return err
		}
		out, err := exec.CommandContext(t.Context(), "nft", fmt.Sprintf(`add table ip proxy
			add chain ip proxy ports { type nat hook prerouting priority dstnat; }
			add rule ip proxy ports udp dport { 34789, 38472, 39999 } dnat to %s:udp dport map { 34789 : 4789, 38472 : 8472, 39999 : 9999 }`, local)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		for _, port := range []string{"4789", "8472", "9999"} {
			if listeners[port], err = net.ListenPacket("udp4", ":"+port); err != nil {
				return err
			}
		}
		return nil
	})
	nstest.Do(t, other, func() error { return nstest.Up("eth0", peer+"/24") })
	say := func(port, words string) { nstest.Say(t, other, local, port, words) }
	for _, port := range []string{"34789", "38472", "39999"} {
		say(port, "by a node port")
	}
	for _, port := range []string{"9999", "4789", "8472"} {
		say(port, "by itself")
		first := map[bool]string{true: "by a node port", false: "by itself"}[port == "9999"]
		data := make([]byte, 64)
		err := listeners[port].SetReadDeadline(time.Now().Add(time.Minute))
		n := 0
		if err == nil {
			n, _, err = listeners[port].ReadFrom(data)
		}
		if err != nil || string(data[:n]) != first {
			t.Errorf("port %s received %q first, %v", port, data[:n], err)
		}
	}
}
