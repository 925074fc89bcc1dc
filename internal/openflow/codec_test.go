package openflow

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var sampleMAC = net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 5} //nolint:gochecknoglobals // a constant

// drawMatch draws a match that satisfies every requirement of its fields.
func drawMatch(t *rapid.T) Match {
	var m Match
	for f := fieldNone + 1; f < fieldCount; f++ {
		if !rapid.Bool().Draw(t, "take") || f == FieldEthType || f == FieldIPProto || f == FieldICMPv6Type {
			continue
		}
		info := f.info()
		draw := MatchField{f, drawValue(t, info), info.fullMask()}
		if info.maskable && rapid.Bool().Draw(t, "masked") {
			draw.mask = drawValue(t, info)
		}
		next := m.With(draw)
		if next.Validate() == nil {
			m = next
		}
	}
	return m
}

func drawValue(t *rapid.T, info *fieldInfo) u128 {
	v := u128{rapid.Uint64().Draw(t, "hi"), rapid.Uint64().Draw(t, "lo")}
	return v.and(info.fullMask())
}

func drawSubfield(t *rapid.T, bits uint16) Subfield {
	f := Field(rapid.IntRange(int(fieldNone)+1, int(fieldCount)-1).Filter(func(f int) bool { return Field(f).Bits() >= bits }).Draw(t, "field"))
	return Subfield{f, uint16(rapid.IntRange(0, int(f.Bits()-bits)).Draw(t, "offset")), bits}
}

func drawActions(t *rapid.T, depth int) Actions {
	var actions Actions
	for range rapid.IntRange(0, 4).Draw(t, "actions") {
		actions = append(actions, drawAction(t, depth))
	}
	return actions
}

func drawAction(t *rapid.T, depth int) Action {
	n := rapid.Uint32().Draw(t, "n")
	small := uint16(rapid.IntRange(1, 32).Draw(t, "bits"))
	kinds := 18
	if depth == 0 {
		kinds = 16
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return Output(n % 0xff00)
	case 1:
		return OutputReg(drawSubfield(t, min(small, 16)))
	case 2:
		return GroupAction(n)
	case 3:
		return Resubmit(uint32(uint16(n)&0x7fff), uint8(n>>16))
	case 4:
		f := Field(rapid.IntRange(int(fieldNone)+1, int(fieldCount)-1).Draw(t, "field"))
		mask := onesU128(f.Bits())
		if f.info().maskable {
			mask = drawValue(t, f.info()).or(u64(1))
		}
		return SetField(MatchField{f, drawValue(t, f.info()), mask})
	case 5:
		return Move(drawSubfield(t, small), drawSubfield(t, small))
	case 6:
		return Conjunction(n, 1, 2)
	case 7:
		return Note(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "note"))
	case 8:
		return Controller(ControllerAction{MaxLen: uint16(n), ID: uint16(n >> 16), Reason: uint8(n % 5), UserData: rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "userdata"), Pause: n%2 == 0})
	case 9:
		return drawLearn(t, n)
	case 10:
		return CheckPktLarger(uint16(n), FieldReg(int(n%16)), uint16(n%32))
	case 11:
		return DecTTL()
	case 12:
		return CTClear()
	case 13:
		return PushVLAN(EthTypeVLAN)
	case 14:
		return PopVLAN()
	case 15:
		return Meter(n)
	case 16:
		return Clone(drawActions(t, depth-1)...)
	default:
		return drawCT(t, n)
	}
}

func drawLearn(t *rapid.T, n uint32) Action {
	spec := LearnSpec{Table: uint8(n), Priority: uint16(n), Cookie: uint64(n), IdleTimeout: uint16(n >> 8), SendFlowRemoved: n%2 == 0, Limit: n % 3}
	if n%5 == 0 {
		spec.Result = &Subfield{FieldReg(1), 3, 1}
	}
	for range rapid.IntRange(0, 3).Draw(t, "specs") {
		bits := uint16(rapid.IntRange(1, 32).Draw(t, "bits"))
		dst, src := drawSubfield(t, bits), drawSubfield(t, bits)
		value := uint64(n) & onesU128(bits).lo
		spec.Fields = append(spec.Fields, rapid.SampledFrom([]LearnField{
			LearnMatch(dst, src), LearnMatchValue(dst, value), LearnLoad(dst, src), LearnLoadValue(dst, value), LearnOutput(src),
		}).Draw(t, "spec"))
	}
	return Learn(spec)
}

func drawCT(t *rapid.T, n uint32) Action {
	a := CTAction{Commit: n%2 == 0, Force: n%4 == 0, Zone: uint16(n), ALG: uint16(n % 30)}
	if n%3 == 0 {
		a.Table = new(uint8(n % 250))
	}
	if n%7 == 0 {
		a.Zone, a.ZoneField = 0, &Subfield{FieldReg(2), 0, 16}
	}
	nats := []*NAT{
		nil,
		{},
		SNAT(netip.MustParseAddr("10.0.0.1")), DNAT(netip.MustParseAddr("2001:db8::1"), 80),
		{Kind: NATSource, Min: netip.MustParseAddr("10.0.0.1"), Max: netip.MustParseAddr("10.0.0.9"), PortMin: 1, PortMax: 9, Random: true},
	}
	a.NAT = rapid.SampledFrom(nats).Draw(t, "nat")
	if n%2 == 0 {
		a.Exec = Actions{SetField(CTMark(n)), SetField(CTLabelMasked([2]uint64{0, uint64(n)}, [2]uint64{0, 0xffff}))}
	}
	return CT(a)
}

func drawFlow(t *rapid.T) *Flow {
	f := &Flow{
		Table: uint8(rapid.IntRange(0, 252).Draw(t, "table")), Priority: rapid.Uint16().Draw(t, "priority"), Cookie: rapid.Uint64().Draw(t, "cookie"),
		Match: drawMatch(t), Actions: drawActions(t, 2),
	}
	if rapid.Bool().Draw(t, "goto") {
		f.Actions = append(f.Actions, GotoTable(f.Table+1))
	}
	return f
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFlow(t)
		command, got, err := decodeFlowMod(flowMod(flowAdd, f).body)
		if err != nil || command != flowAdd {
			t.Fatalf("decode %s: %v", f, err)
		}
		if !got.Equal(f) || got.String() != f.String() || got.Key() != f.Key() {
			t.Fatalf("%s\ndecoded as\n%s", f, got)
		}
		described, rest, err := decodeFlowDesc(flowDesc(f))
		if err != nil || len(rest) != 0 || !described.Equal(f) {
			t.Fatalf("%s\ndescribed as\n%v: %v", f, described, err)
		}
		for _, a := range got.Actions {
			switch a.(type) {
			case opaque, opaqueInstruction:
				t.Fatalf("%s holds what was not understood", got)
			}
		}
	})
}

func TestWhatIsEncodedOfAGroupIsDecoded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &Group{ID: 1 + rapid.Uint32Max(1000).Draw(t, "id"), Type: GroupType(rapid.IntRange(0, 3).Draw(t, "type"))}
		for i := range rapid.IntRange(0, 4).Draw(t, "buckets") {
			b := Bucket{ID: uint32(10 + i), Actions: drawActions(t, 1), WatchPort: rapid.Uint32Max(5).Draw(t, "watch")}
			if g.Type == GroupSelect {
				b.Weight = rapid.Uint16().Draw(t, "weight")
				g.Selection = &Selection{Method: "hash", Param: 5, Fields: []Field{FieldIPv4Src, FieldIPv4Dst}}
			}
			g.Buckets = append(g.Buckets, b)
		}
		command, got, err := decodeGroupMod(groupMod(groupAddOrModify, g).body)
		if err != nil || command != groupAddOrModify || !got.Equal(g) || got.String() != g.String() {
			t.Fatalf("%s\ndecoded as\n%s: %v", g, got, err)
		}
		described, err := decodeGroups(groupDesc(g))
		if err != nil || len(described) != 1 || !described[0].Equal(g) {
			t.Fatalf("%s\ndescribed as\n%v: %v", g, described, err)
		}
	})
}

func TestAMatchIsCanonical(t *testing.T) {
	prefix := netip.MustParsePrefix("10.1.0.0/16")
	for name, pair := range map[string][2]Match{
		"order":                 {NewMatch(InPort(1), EthSrc(sampleMAC)), NewMatch(EthSrc(sampleMAC), InPort(1))},
		"bits beyond the mask":  {NewMatch(RegMasked(0, 0xff, 0x0f)), NewMatch(RegMasked(0, 0x0f, 0x0f))},
		"a register in halves":  {NewMatch(RegMasked(1, 0x1200, 0xff00), RegMasked(1, 0x34, 0xff)), NewMatch(RegMasked(1, 0x1234, 0xffff))},
		"a wide register":       {NewMatch(Exact(FieldXReg0+1, 0x100000002)), NewMatch(Reg(2, 1), Reg(3, 2))},
		"what a prefix implies": {NewMatch(IPSrc(prefix)), NewMatch(EthType(EthTypeIPv4), IPSrc(prefix))},
		"an empty prefix":       {NewMatch(IPSrc(netip.MustParsePrefix("0.0.0.0/0"))), NewMatch(EthType(EthTypeIPv4))},
		"a prefix's host bits":  {NewMatch(IPDst(netip.MustParsePrefix("10.1.2.3/16"))), NewMatch(IPDst(prefix))},
		"a tag's priority":      {NewMatch(VLANPCP(3)), NewMatch(VLANAny(), VLANPCP(3))},
		"a tag as a whole":      {NewMatch(VLANTCI(0x7005, 0xffff)), NewMatch(VLANVID(5), VLANPCP(3))},
		"no tag as a whole":     {NewMatch(VLANTCI(0, 0xffff)), NewMatch(VLANNone())},
		"type of service":       {NewMatch(EthType(EthTypeIPv4), Exact(FieldIPTOS, 0x28)), NewMatch(EthType(EthTypeIPv4), IPDSCP(10))},
	} {
		a, b := pair[0], pair[1]
		if !a.Equal(b) || a.String() != b.String() || !bytes.Equal(a.appendWire(nil), b.appendWire(nil)) {
			t.Errorf("%s: %q and %q differ", name, a, b)
		}
	}
}

func TestWhatIsNotKnownIsKeptAsItIs(t *testing.T) {
	raw := []byte{0xff, 0xff, 0, 24, 0, 0, 0x23, 0x20, 0x7f, 0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}
	actions, err := decodeActions(raw)
	if err != nil || len(actions) != 1 || !bytes.Equal(actions.appendWire(nil), raw) {
		t.Errorf("%v, %v", actions, err)
	}
	instruction := []byte{0xff, 0xff, 0, 16, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8}
	actions, err = decodeInstructions(instruction)
	if err != nil || !bytes.Equal(actions.appendInstructions(nil), instruction) {
		t.Errorf("%v, %v", actions, err)
	}
	oxm := []byte{0, 1, 0, 12, 0x12, 0x34, 0x56, 4, 1, 2, 3, 4, 0, 0, 0, 0}
	match, _, err := decodeMatch(oxm)
	if err != nil || !bytes.Equal(match.appendWire(nil), oxm) || match.String() == "" {
		t.Errorf("%v, %v", match, err)
	}
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

func TestMonitorReportsBecomeDrift(t *testing.T) {
	mine, learned := &Flow{Table: 1, Priority: 2}, &Flow{Table: 24, IdleTimeout: 5}
	var b []byte
	b = appendFlowUpdate(b, FlowModified, mine)
	b = appendFlowUpdate(b, FlowAdded, learned)
	b = append(b, 0, 8, 0, byte(FlowOwn), 0, 0, 0, 9)
	updates := decodeFlowUpdates(b)
	if len(updates) != 3 || updates[2].XID != 9 {
		t.Fatalf("%+v", updates)
	}
	if event := drift(updates); len(event.Drift) != 1 || event.Drift[0] != mine.Key() || event.Unclear {
		t.Errorf("%+v", event)
	}
	updates = decodeFlowUpdates([]byte{0, 8, 0, byte(MonitorPaused), 0, 0, 0, 0, 0, 8, 0, byte(MonitorResumed), 0, 0, 0, 0})
	if len(updates) != 2 || !drift(updates).Unclear {
		t.Errorf("%+v: a pause leaves it unclear what changed", updates)
	}
}

// A message of a flow monitor of which a report cannot be decoded is not lost: its other reports count, and everything is read again.
func TestAReportThatCannotBeDecodedIsUnclear(t *testing.T) {
	foreign := &Flow{Table: 0, Priority: 60000}
	report := appendFlowUpdate(nil, FlowAdded, foreign)
	for name, garbage := range map[string][]byte{
		"event": {0, 8, 0, 77, 0, 0, 0, 0}, "length": {0, 9, 0, 0, 0, 0, 0, 0}, "short": {0, 8}, "match": append(slices.Clone(report[:24]), 0, 9, 0, 0, 0, 0, 0, 0),
	} {
		body := append(binary.BigEndian.AppendUint16(nil, partFlowMonitor), 0, 0, 0, 0, 0, 0)
		e := NewEngine(Config{})
		e.onAsync(decodeAsync(message{kind: msgMultipartReply, body: append(append(body, report...), garbage...)}))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		event, err := e.Next(ctx)
		cancel()
		if err != nil || !event.Unclear || len(event.Drift) != 1 || event.Drift[0] != foreign.Key() {
			t.Errorf("%s: %+v, %v", name, event, err)
		}
	}
}

func TestAChangeIsPutInAnOrderWithoutHoles(t *testing.T) {
	flow := func(table uint8, actions ...Action) *Flow { return &Flow{Table: table, Actions: actions} }
	group, old := &Group{ID: 1, Type: GroupAll}, &Group{ID: 2, Type: GroupAll}
	last := flow(253)
	change := Change{Set: map[Key]Entry{}, Delete: map[Key]Entry{}}
	at := func(priority uint16) *Flow { return &Flow{Table: 100, Priority: priority} }
	for _, e := range []Entry{flow(0, GotoTable(20)), flow(20, GroupAction(1)), group, last, at(1), at(3)} {
		change.Set[e.Key()] = e
	}
	for _, e := range []Entry{flow(30, GroupAction(2)), flow(10), old, at(4), at(2)} {
		change.Delete[e.Key()] = e
	}
	mods, err := plan(change, func(k Key) bool { return k.Table == 253 })
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mods {
		sign := "+"
		if m.Delete {
			sign = "-"
		}
		got = append(got, sign+m.Entry.Key().String())
	}
	want := []string{
		"+group_id=1", "+table=100,priority=3", "+table=100,priority=1", "+table=20,priority=0", "+table=0,priority=0",
		"-table=10,priority=0", "-table=30,priority=0", "-table=100,priority=2", "-table=100,priority=4", "-group_id=2", "+table=253,priority=0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
