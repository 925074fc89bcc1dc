//go:build real

package nftables_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/reconcile/enginetest"
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
		enginetest.Converge(r, engine, compile(r, drawWorld(r)))
	})
}
