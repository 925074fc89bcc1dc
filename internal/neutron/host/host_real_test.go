//go:build real

package host

import (
	"testing"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/reconcile/enginetest"
)

// The kernel accepts the rules, and lists them without a difference: a restart commits nothing.
func TestRulesSettle(t *testing.T) {
	engine, err := ruleset.NewEngine(ruleset.Options{Netns: nstest.New(t), Tables: Tables()})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	enginetest.Converge(t, engine, sample())
}
