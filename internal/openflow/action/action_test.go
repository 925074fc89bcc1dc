package action

import (
	"bytes"
	"net/netip"
	"testing"

	"weft.dev/weft/internal/openflow/oxm"
)

// seed returns one of every nested action, and others.
func seed() Actions {
	return Actions{
		CT(CTAction{Commit: true, Zone: 5, Table: new(uint8(9)), NAT: SNAT(netip.MustParseAddr("10.0.0.1")), Exec: Actions{SetField(oxm.CTMark(1))}}),
		Learn(LearnSpec{Table: 4, Limit: 3, Fields: []LearnField{LearnMatchValue(oxm.Whole(oxm.FieldEthType), 0x800), LearnOutput(oxm.Whole(oxm.FieldReg(1)))}}),
		Clone(Output(1)), Controller(ControllerAction{UserData: []byte{1}}), Note([]byte("seed")), GotoTable(8),
	}
}

func TestWhatIsNotKnownIsKeptAsItIs(t *testing.T) {
	raw := []byte{0xff, 0xff, 0, 24, 0, 0, 0x23, 0x20, 0x7f, 0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}
	actions, err := Decode(raw)
	if err != nil || len(actions) != 1 || !bytes.Equal(actions.AppendWire(nil), raw) {
		t.Errorf("%v, %v", actions, err)
	}
	instruction := []byte{0xff, 0xff, 0, 16, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8}
	actions, err = DecodeInstructions(instruction)
	if err != nil || !bytes.Equal(actions.AppendInstructions(nil), instruction) {
		t.Errorf("%v, %v", actions, err)
	}
}

// FuzzActions: decoding never panics, and decoded actions encode to bytes that decode to the same actions.
func FuzzActions(f *testing.F) {
	f.Add(seed()[:5].AppendWire(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		actions, err := Decode(b)
		if err != nil {
			return
		}
		encoded := actions.AppendWire(nil)
		again, err := Decode(encoded)
		if err != nil || !bytes.Equal(again.AppendWire(nil), encoded) || again.String() != actions.String() {
			t.Fatalf("%s decodes again as %s: %v", actions, again, err)
		}
	})
}
