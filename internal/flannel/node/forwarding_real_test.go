//go:build real

package node_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"weft.dev/weft/internal/testwait"
)

// TestForwarding: a node whose pods have IPv6 addresses forwards IPv6, also after another program has turned that off. Another node's setting
// stays.
func TestForwarding(t *testing.T) {
	const path = "/proc/sys/net/ipv6/conf/all/forwarding"
	for _, six := range []bool{false, true} {
		s := newStage(t)
		want := "1"
		if !six {
			s.state.Networks[1], s.state.Subnets[1], want = netip.Prefix{}, netip.Prefix{}, "0"
		}
		check := func() error {
			return s.space.Do(func(ns.NetNS) error {
				have, err := os.ReadFile(path)
				if err == nil && string(bytes.TrimSpace(have)) != want {
					err = fmt.Errorf("with IPv6 %t: forwarding is %s, want %s", six, have, want)
				}
				return err
			})
		}
		off := func() {
			t.Helper()
			if err := s.space.Do(func(ns.NetNS) error { return os.WriteFile(path, []byte("0"), 0) }); err != nil {
				t.Fatal(err)
			}
		}
		off()
		serve(t, s)
		if err := check(); err != nil {
			t.Error(err)
		}
		off()
		testwait.Eventually(t, "forwarding after it was turned off", check)
	}
}
