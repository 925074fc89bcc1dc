package openflow

import (
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/codectest"
	"weft.dev/weft/internal/openflow/oxm"
)

func drawFlow(t *rapid.T) *Flow {
	f := &Flow{
		Table: uint8(rapid.IntRange(0, 252).Draw(t, "table")), Priority: rapid.Uint16().Draw(t, "priority"), Cookie: rapid.Uint64().Draw(t, "cookie"),
		Match: codectest.Match(t), Actions: codectest.Actions(t, 2),
	}
	if rapid.Bool().Draw(t, "goto") {
		f.Actions = append(f.Actions, action.GotoTable(f.Table+1))
	}
	return f
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFlow(t)
		command, got, err := decodeFlowMod(flowMod(flowAdd, f).Body)
		if err != nil || command != flowAdd {
			t.Fatalf("decode %s: %v", f, err)
		}
		if !got.Equal(f) || got.String() != f.String() || got.Key() != f.Key() {
			t.Fatalf("%s\ndecoded as\n%s", f, got)
		}
		described, rest, err := decodeFlowDesc(EncodeFlowDesc(f))
		if err != nil || len(rest) != 0 || !described.Equal(f) {
			t.Fatalf("%s\ndescribed as\n%v: %v", f, described, err)
		}
		for _, a := range got.Actions {
			if action.IsOpaque(a) {
				t.Fatalf("%s holds what was not understood", got)
			}
		}
	})
}

func TestWhatIsEncodedOfAGroupIsDecoded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &Group{ID: 1 + rapid.Uint32Max(1000).Draw(t, "id"), Type: GroupType(rapid.IntRange(0, 3).Draw(t, "type"))}
		for i := range rapid.IntRange(0, 4).Draw(t, "buckets") {
			b := Bucket{ID: uint32(10 + i), Actions: codectest.Actions(t, 1), WatchPort: rapid.Uint32Max(5).Draw(t, "watch")}
			if g.Type == GroupSelect {
				b.Weight = rapid.Uint16().Draw(t, "weight")
				g.Selection = &Selection{Method: "hash", Param: 5, Fields: []oxm.Field{oxm.FieldIPv4Src, oxm.FieldIPv4Dst}}
			}
			g.Buckets = append(g.Buckets, b)
		}
		command, got, err := decodeGroupMod(groupMod(groupAddOrModify, g).Body)
		if err != nil || command != groupAddOrModify || !got.Equal(g) || got.String() != g.String() {
			t.Fatalf("%s\ndecoded as\n%s: %v", g, got, err)
		}
		described, err := DecodeGroups(EncodeGroupDesc(g))
		if err != nil || len(described) != 1 || !described[0].Equal(g) {
			t.Fatalf("%s\ndescribed as\n%v: %v", g, described, err)
		}
	})
}

func TestErrorsHaveTheirNames(t *testing.T) {
	for want, e := range map[string]Error{
		"OFPBMC_BAD_PREREQ":     {Type: 4, Code: 9},
		"OFPBFC_MSG_FAILED":     {Type: 17, Code: 13},
		"NXBAC_BAD_CONJUNCTION": {Type: 0xffff, Code: 15},
		"OFPBFC code 99":        {Type: 17, Code: 99},
		"error type 77 code 1":  {Type: 77, Code: 1},
	} {
		if got := e.Name(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
