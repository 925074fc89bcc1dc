package openflow

import (
	"bufio"
	"bytes"
	"net/netip"
	"testing"
)

// seedFlow returns a flow with one of every nested action.
func seedFlow() *Flow {
	return &Flow{
		Table: 3, Priority: 7, Match: NewMatch(IPSrc(netip.MustParsePrefix("10.0.0.0/8")), TCPDst(80), Reg(1, 2), CTState(CTNew|CTTrk, CTInv)),
		Actions: Actions{
			CT(CTAction{Commit: true, Zone: 5, Table: new(uint8(9)), NAT: SNAT(netip.MustParseAddr("10.0.0.1")), Exec: Actions{SetField(CTMark(1))}}),
			Learn(LearnSpec{Table: 4, Limit: 3, Fields: []LearnField{LearnMatchValue(Whole(FieldEthType), 0x800), LearnOutput(Whole(FieldReg(1)))}}),
			Clone(Output(1)), Controller(ControllerAction{UserData: []byte{1}}), Note([]byte("seed")), GotoTable(8),
		},
	}
}

// FuzzFlowMod: decoding never panics, and a decoded message encodes to bytes that decode to the same message.
func FuzzFlowMod(f *testing.F) {
	f.Add(flowMod(flowAdd, seedFlow()).body)
	f.Add(flowMod(flowDeleteStrict, seedFlow()).body)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, flow, err := decodeFlowMod(b)
		if err != nil {
			return
		}
		_ = flow.Validate()
		_, again, err := decodeFlowMod(flowMod(flowAdd, flow).body)
		if err != nil {
			t.Fatalf("%s does not decode again: %v", flow, err)
		}
		if !again.Equal(flow) || again.String() != flow.String() {
			t.Fatalf("%s\ndecodes again as\n%s", flow, again)
		}
	})
}

// FuzzActions: as FuzzFlowMod for a list of actions alone.
func FuzzActions(f *testing.F) {
	f.Add(seedFlow().Actions[:5].appendWire(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		actions, err := decodeActions(b)
		if err != nil {
			return
		}
		encoded := actions.appendWire(nil)
		again, err := decodeActions(encoded)
		if err != nil || !bytes.Equal(again.appendWire(nil), encoded) || again.String() != actions.String() {
			t.Fatalf("%s decodes again as %s: %v", actions, again, err)
		}
	})
}

// FuzzMatch: as FuzzFlowMod for a match alone.
func FuzzMatch(f *testing.F) {
	f.Add(seedFlow().Match.appendWire(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		match, _, err := decodeMatch(b)
		if err != nil {
			return
		}
		again, rest, err := decodeMatch(match.appendWire(nil))
		if err != nil || len(rest) != 0 || !again.Equal(match) || again.String() != match.String() {
			t.Fatalf("%s decodes again as %s: %v", match, again, err)
		}
	})
}

// FuzzMessage: no decoder panics, whatever a switch sends.
func FuzzMessage(f *testing.F) {
	flow := seedFlow()
	group := &Group{ID: 1, Type: GroupSelect, Buckets: []Bucket{{Weight: 1, Actions: Actions{Output(1)}}}, Selection: &Selection{Method: "hash", Fields: []Field{FieldIPv4Src}}}
	for _, m := range []message{
		helloMessage(), flowMod(flowAdd, flow), groupMod(groupAddOrModify, group), bundleControl(1, bundleOpen),
		multipartReply(1, partFlowDesc, 0, flowDesc(flow)), multipartReply(1, partGroupDesc, 0, groupDesc(group)),
		multipartReply(0, partFlowMonitor, 0, appendFlowUpdate(nil, FlowAdded, flow)), (&Error{Type: 4, Code: 9}).message(),
		niciraMessage(nxtPacketIn2, appendProperty(nil, pinPacket, []byte("packet"))),
	} {
		f.Add(m.appendWire(nil))
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		m, err := readMessage(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		decodeAsync(m)
		_ = decodeError(m).Error()
		_, _ = decodeMod(message{kind: msgGroupMod, body: m.body})
		if len(m.body) < 8 {
			return
		}
		body := m.body[8:]
		_, _ = decodeFlows(body)
		_, _ = decodeGroups(body)
		_, _ = decodePorts(body)
		_, _ = decodeTotals(body)
		_, _ = decodeSwitchDesc(body)
		_ = decodeFlowUpdates(body)
		_ = decodePacketIn(body)
		_ = decodePacketIn2(body)
	})
}
