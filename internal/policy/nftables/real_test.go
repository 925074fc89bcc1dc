//go:build real

package nftables_test

import (
	"context"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/reconcile"
)

// The kernel accepts the compiled items of any policies, in any order of worlds, and they are read back unchanged.
func TestRealTable(t *testing.T) {
	space := ovstest.NewNetNS(t)
	engine, err := nftnl.NewEngine(nftnl.Options{Netns: fmt.Sprintf("/proc/self/fd/%d", space.Fd()), Family: nftnl.FamilyInet, Table: "weft_policy"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	rapid.Check(t, func(r *rapid.T) {
		desired := compile(r, drawWorld(r))
		have, err := engine.Read(context.Background())
		if err != nil {
			r.Fatal(err)
		}
		if err := engine.Commit(context.Background(), reconcile.Diff(desired, have)); err != nil {
			r.Fatal(err)
		}
		if have, err = engine.Read(context.Background()); err != nil {
			r.Fatal(err)
		}
		if change := reconcile.Diff(desired, have); !change.Empty() {
			r.Fatalf("not in effect: %v, and too much: %v", change.Set, change.Delete)
		}
	})
}
