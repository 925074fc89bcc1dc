//go:build real

package host_test

import (
	"maps"
	"net/netip"
	"testing"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile/enginetest"
)

// The kernel accepts the rules, and lists them without a difference: a restart commits nothing.
func TestRulesSettle(t *testing.T) {
	engine, err := ruleset.NewEngine(ruleset.Options{Netns: nstest.New(t), Tables: host.Tables()})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	c := sample()
	c.ClosedPorts = []uint16{6081}
	want := c.Rules()
	maps.Copy(want, c.RemoteRules(netip.MustParseAddr("192.0.2.2")))
	maps.Copy(want, host.EgressIP{VNID: 42, Address: netip.MustParseAddr("192.0.2.100"), MAC: pipeline.EgressMAC(42)}.Rules())
	maps.Copy(want, host.EgressIP{VNID: 0x8000, Address: netip.MustParseAddr("192.0.2.101"), MAC: pipeline.EgressMAC(0x8000)}.Rules())
	maps.Copy(want, host.Published(published()))
	enginetest.Converge(t, engine, want)
}
