//go:build real

package host_test

import (
	"context"
	"maps"
	"net/netip"
	"testing"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
)

// The kernel accepts the rules, and lists them without a difference: a restart commits nothing.
func TestRulesSettle(t *testing.T) {
	engine, err := ruleset.NewEngine(ruleset.Options{Netns: nstest.New(t), Tables: host.Tables()})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	c := sample()
	want := c.Rules()
	maps.Copy(want, c.RemoteRules(netip.MustParseAddr("192.0.2.2")))
	maps.Copy(want, host.EgressIP{VNID: 42, Address: netip.MustParseAddr("192.0.2.100"), MAC: pipeline.EgressMAC(42)}.Rules())
	maps.Copy(want, host.EgressIP{VNID: 0x8000, Address: netip.MustParseAddr("192.0.2.101"), MAC: pipeline.EgressMAC(0x8000)}.Rules())
	maps.Copy(want, host.Published(published()))
	ctx := context.Background()
	have, err := engine.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Commit(ctx, reconcile.Diff(want, have)); err != nil {
		t.Fatal(err)
	}
	if have, err = engine.Read(ctx); err != nil {
		t.Fatal(err)
	}
	if change := reconcile.Diff(want, have); !change.Empty() {
		t.Errorf("once committed, it differs: %v", change)
	}
}
