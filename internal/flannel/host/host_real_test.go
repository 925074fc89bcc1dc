//go:build real

package host_test

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"

	"weft.dev/weft/internal/flannel/host"
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
