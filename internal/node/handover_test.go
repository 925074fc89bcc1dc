package node_test

import (
	"testing"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/ovsdb"
)

// TestHandovers checks that state that may belong to a network without handover is kept, and all other state is not.
func TestHandovers(t *testing.T) {
	h := node.NewHandovers(map[string]node.Care{
		"red":  {Tables: []nft.Table{{Family: nft.FamilyInet, Name: "red"}}, Bridges: []node.Bridge{{Name: "br-red"}}},
		"blue": {Tables: []nft.Table{{Family: nft.FamilyInet, Name: "blue"}}, Bridges: []node.Bridge{{Name: "br-blue"}}},
	})
	asked := 0
	h.OnChange(func() { asked++ })
	rule := func(table string) bool {
		return h.KeepRule(nft.Key{Family: nft.FamilyInet, Table: table, Kind: nft.KindChain, Name: "x"}, nil)
	}
	port := func(bridge string) bool {
		return h.KeepRow(ovsdb.PortKey("p1"), &ovsdb.Port{Name: "p1", Bridge: bridge})
	}
	want := func(when string, red, blue, rest bool) {
		t.Helper()
		if rule("red") != red || rule("blue") != blue || rule("other") {
			t.Errorf("%s: rules kept: red %t, blue %t, other %t", when, rule("red"), rule("blue"), rule("other"))
		}
		if port("br-red") != red || port("br-blue") != blue || port("br-int") != rest {
			t.Errorf("%s: ports kept: red %t, blue %t, br-int %t", when, port("br-red"), port("br-blue"), port("br-int"))
		}
		if h.KeepRow(ovsdb.BridgeKey("br-red"), &ovsdb.Bridge{Name: "br-red"}) != red {
			t.Errorf("%s: bridge kept: %t", when, !red)
		}
		if h.KeepLink(link.Key{}, nil) != rest {
			t.Errorf("%s: links kept: %t", when, !rest)
		}
	}
	want("at first", true, true, true)
	h.Done("red")
	want("red has handed over", false, true, true)
	h.Done("red")
	h.Done("blue")
	want("both have", false, false, false)
	if asked != 2 {
		t.Errorf("loops were asked again %d times", asked)
	}
}
