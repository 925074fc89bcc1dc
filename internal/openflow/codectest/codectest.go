// Package codectest draws random matches and actions for the tests of OpenFlow's codec.
package codectest

import (
	"net/netip"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

// Match draws a match that satisfies every requirement of its fields.
func Match(t *rapid.T) oxm.Match {
	var m oxm.Match
	for _, f := range oxm.Fields() {
		if !rapid.Bool().Draw(t, "take") || f == oxm.FieldEthType || f == oxm.FieldIPProto || f == oxm.FieldICMPv6Type {
			continue
		}
		value, mask := drawValue(t, f), wire.Ones(f.Bits())
		if f.Maskable() && rapid.Bool().Draw(t, "masked") {
			mask = drawValue(t, f)
		}
		next := m.With(oxm.Wide(f, value, mask))
		if next.Validate() == nil {
			m = next
		}
	}
	return m
}

func drawValue(t *rapid.T, f oxm.Field) wire.U128 {
	v := wire.U128{Hi: rapid.Uint64().Draw(t, "hi"), Lo: rapid.Uint64().Draw(t, "lo")}
	return v.And(wire.Ones(f.Bits()))
}

// drawField draws a field of at least that many bits.
func drawField(t *rapid.T, bits uint16) oxm.Field {
	all := oxm.Fields()
	n := rapid.IntRange(1, len(all)).Filter(func(n int) bool { return all[n-1].Bits() >= bits }).Draw(t, "field")
	return all[n-1]
}

// Subfield draws a range of that many bits.
func Subfield(t *rapid.T, bits uint16) oxm.Subfield {
	f := drawField(t, bits)
	return oxm.Subfield{Field: f, Offset: uint16(rapid.IntRange(0, int(f.Bits()-bits)).Draw(t, "offset")), Bits: bits}
}

// Actions draws a list of actions; depth is how deep they may be nested.
func Actions(t *rapid.T, depth int) action.Actions {
	var actions action.Actions
	for range rapid.IntRange(0, 4).Draw(t, "actions") {
		actions = append(actions, Action(t, depth))
	}
	return actions
}

// Action draws an action; depth is how deep others may be nested in it.
func Action(t *rapid.T, depth int) action.Action {
	n := rapid.Uint32().Draw(t, "n")
	small := uint16(rapid.IntRange(1, 32).Draw(t, "bits"))
	kinds := 18
	if depth == 0 {
		kinds = 16
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return action.Output(n % 0xff00)
	case 1:
		return action.OutputReg(Subfield(t, min(small, 16)))
	case 2:
		return action.GroupAction(n)
	case 3:
		return action.Resubmit(uint32(uint16(n)&0x7fff), uint8(n>>16))
	case 4:
		all := oxm.Fields()
		f := all[rapid.IntRange(1, len(all)).Draw(t, "field")-1]
		mask := wire.Ones(f.Bits())
		if f.Maskable() {
			mask = drawValue(t, f).Or(wire.U64(1))
		}
		return action.SetField(oxm.Wide(f, drawValue(t, f), mask))
	case 5:
		return action.Move(Subfield(t, small), Subfield(t, small))
	case 6:
		return action.Conjunction(n, 1, 2)
	case 7:
		return action.Note(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "note"))
	case 8:
		return action.Controller(action.ControllerAction{MaxLen: uint16(n), ID: uint16(n >> 16), Reason: uint8(n % 5), UserData: rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "userdata"), Pause: n%2 == 0})
	case 9:
		return drawLearn(t, n)
	case 10:
		return action.CheckPktLarger(uint16(n), oxm.FieldReg(int(n%16)), uint16(n%32))
	case 11:
		return action.DecTTL()
	case 12:
		return action.CTClear()
	case 13:
		return action.PushVLAN(oxm.EthTypeVLAN)
	case 14:
		return action.PopVLAN()
	case 15:
		return action.Meter(n)
	case 16:
		return action.Clone(Actions(t, depth-1)...)
	default:
		return drawCT(t, n)
	}
}

func drawLearn(t *rapid.T, n uint32) action.Action {
	spec := action.LearnSpec{Table: uint8(n), Priority: uint16(n), Cookie: uint64(n), IdleTimeout: uint16(n >> 8), SendFlowRemoved: n%2 == 0, Limit: n % 3}
	if n%5 == 0 {
		spec.Result = &oxm.Subfield{Field: oxm.FieldReg(1), Offset: 3, Bits: 1}
	}
	for range rapid.IntRange(0, 3).Draw(t, "specs") {
		bits := uint16(rapid.IntRange(1, 32).Draw(t, "bits"))
		dst, src := Subfield(t, bits), Subfield(t, bits)
		value := uint64(n) & wire.Ones(bits).Lo
		spec.Fields = append(spec.Fields, rapid.SampledFrom([]action.LearnField{
			action.LearnMatch(dst, src), action.LearnMatchValue(dst, value), action.LearnLoad(dst, src), action.LearnLoadValue(dst, value), action.LearnOutput(src),
		}).Draw(t, "spec"))
	}
	return action.Learn(spec)
}

func drawCT(t *rapid.T, n uint32) action.Action {
	a := action.CTAction{Commit: n%2 == 0, Force: n%4 == 0, Zone: uint16(n), ALG: uint16(n % 30)}
	if n%3 == 0 {
		a.Table = new(uint8(n % 250))
	}
	if n%7 == 0 {
		a.Zone, a.ZoneField = 0, &oxm.Subfield{Field: oxm.FieldReg(2), Bits: 16}
	}
	nats := []*action.NAT{
		nil,
		{},
		action.SNAT(netip.MustParseAddr("10.0.0.1")), action.DNAT(netip.MustParseAddr("2001:db8::1"), 80),
		{Kind: action.NATSource, Min: netip.MustParseAddr("10.0.0.1"), Max: netip.MustParseAddr("10.0.0.9"), PortMin: 1, PortMax: 9, Random: true},
	}
	a.NAT = rapid.SampledFrom(nats).Draw(t, "nat")
	if n%2 == 0 {
		a.Exec = action.Actions{action.SetField(oxm.CTMark(n)), action.SetField(oxm.CTLabelMasked([2]uint64{0, uint64(n)}, [2]uint64{0, 0xffff}))}
	}
	return action.CT(a)
}
