package openflow

import (
	"bufio"
	"bytes"
	"net/netip"
	"testing"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

// seedFlow returns a flow with one of every nested action.
func seedFlow() *Flow {
	return &Flow{
		Table: 3, Priority: 7, Match: oxm.NewMatch(oxm.IPSrc(netip.MustParsePrefix("10.0.0.0/8")), oxm.TCPDst(80), oxm.Reg(1, 2), oxm.CTState(oxm.CTNew|oxm.CTTrk, oxm.CTInv)),
		Actions: action.Actions{
			action.CT(action.CTAction{Commit: true, Zone: 5, Table: new(uint8(9)), NAT: action.SNAT(netip.MustParseAddr("10.0.0.1")), Exec: action.Actions{action.SetField(oxm.CTMark(1))}}),
			action.Learn(action.LearnSpec{Table: 4, Limit: 3, Fields: []action.LearnField{action.LearnMatchValue(oxm.Whole(oxm.FieldEthType), 0x800), action.LearnOutput(oxm.Whole(oxm.FieldReg(1)))}}),
			action.Clone(action.Output(1)), action.Controller(action.ControllerAction{UserData: []byte{1}}), action.Note([]byte("seed")), action.GotoTable(8),
		},
	}
}

// FuzzFlowMod: decoding never panics, and a decoded message encodes to bytes that decode to the same message.
func FuzzFlowMod(f *testing.F) {
	f.Add(flowMod(flowAdd, seedFlow()).Body)
	f.Add(flowMod(flowDeleteStrict, seedFlow()).Body)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, flow, err := decodeFlowMod(b)
		if err != nil {
			return
		}
		_ = flow.Validate()
		_, again, err := decodeFlowMod(flowMod(flowAdd, flow).Body)
		if err != nil {
			t.Fatalf("%s does not decode again: %v", flow, err)
		}
		if !again.Equal(flow) || again.String() != flow.String() {
			t.Fatalf("%s\ndecodes again as\n%s", flow, again)
		}
	})
}

// FuzzMessage: no decoder panics, whatever a switch sends.
func FuzzMessage(f *testing.F) {
	flow := seedFlow()
	group := &Group{ID: 1, Type: GroupSelect, Buckets: []Bucket{{Weight: 1, Actions: action.Actions{action.Output(1)}}}, Selection: &Selection{Method: "hash", Fields: []oxm.Field{oxm.FieldIPv4Src}}}
	for _, m := range []Message{
		Hello(), flowMod(flowAdd, flow), groupMod(groupAddOrModify, group), BundleControl(1, BundleOpen),
		MultipartReply(1, PartFlowDesc, 0, EncodeFlowDesc(flow)), MultipartReply(1, PartGroupDesc, 0, EncodeGroupDesc(group)),
		MultipartReply(0, PartFlowMonitor, 0, EncodeFlowUpdate(nil, FlowAdded, flow)), (&Error{Type: 4, Code: 9}).Message(),
		niciraMessage(nxtPacketIn2, wire.AppendProperty(nil, pinPacket, []byte("packet"))),
	} {
		f.Add(m.AppendWire(nil))
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		m, err := ReadMessage(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		DecodeAsync(m)
		_ = DecodeError(m).Error()
		_, _ = DecodeMod(Message{Kind: MsgGroupMod, Body: m.Body})
		if len(m.Body) < 8 {
			return
		}
		body := m.Body[8:]
		_, _ = DecodeFlows(body)
		_, _ = DecodeGroups(body)
		_, _ = DecodePorts(body)
		_, _ = DecodeTotals(body)
		_, _ = DecodeSwitchDesc(body)
		_ = decodeFlowUpdates(body)
		_ = decodePacketIn(body)
		_ = decodePacketIn2(body)
	})
}
