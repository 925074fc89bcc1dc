//go:build real

package node

import (
	"context"
	"testing"

	"github.com/containernetworking/plugins/pkg/testutils"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/network/networktest"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/placement"
)

// The network passes the suite of all networks, with ports that the controller has made, on a real switch. br-int has no program.
func TestConformance(t *testing.T) {
	boot, err := attach.ReadBootID()
	must(t, err)
	tag := 0
	networktest.RunConformance(t, func(t *testing.T) networktest.Subject {
		m := &machine{Switch: ovstest.Start(t), name: "conformance", boot: boot}
		m.VSCtl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev")
		ovntest.Run(t, m.NetNS, "ip", "link", "set", "lo", "up")
		tag++
		blue := tenant(t, "default")
		for number := range 16 {
			portOf{network: blue, node: m.name, tag: tag, number: number}.create(t)
		}
		return networktest.Subject{
			Name: Name, At: placement.Decision{Network: Name, Part: blue.Name}, BootID: boot,
			Start: func(ctx context.Context, t *testing.T, records network.Records) (network.Network, network.Runner) {
				made := m.life(ctx, t, records)
				return made, made
			},
			Netns: func(t *testing.T) string {
				made, err := testutils.NewNS()
				must(t, err)
				t.Cleanup(func() { _ = made.Close(); _ = testutils.UnmountNS(made) })
				return made.Path()
			},
			Connected: func(t *testing.T, _ string, rec attach.Record, want bool) {
				t.Helper()
				wait := "1"
				if want {
					wait = "30"
				}
				_, err := ovntest.Try(m.NetNS, "ping", "-n", "-q", "-c", "1", "-W", wait, rec.Addresses[0].Addr().String())
				if (err == nil) != want {
					t.Errorf("the host reaches %s: %v, want %t\n%s", rec.Addresses[0].Addr(), err, want, m.flowsOf())
				}
			},
		}
	})
}
