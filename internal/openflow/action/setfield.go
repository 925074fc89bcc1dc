package action

import (
	"encoding/binary"
	"strconv"

	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

type setField struct{ to oxm.MatchField }

// SetField writes a field: SetField(Reg(0, 7)), SetField(EthDst(mac)). A masked value writes the mask's bits only.
func SetField(to oxm.MatchField) Action {
	return setField{to.Clipped()}
}

// Load writes a number to a range of a field. In OpenFlow 1.5 it is a set_field, and prints as one. A number that does not fit the range
// makes the flow invalid.
func Load(dst oxm.Subfield, value uint64) Action {
	to, ok := dst.Exact(value)
	if !ok {
		return setField{} // Validate reports it
	}
	return SetField(to)
}

func (a setField) String() string { return string(a.appendText(nil)) }

func (a setField) appendText(b []byte) []byte {
	b = a.to.AppendValue(append(b, "set_field:"...))
	return append(append(b, "->"...), a.to.Field().String()...)
}

func (a setField) appendWire(b []byte) []byte {
	start := len(b)
	return endAction(a.to.AppendOXM(beginAction(b, actSetField)), start)
}

type move struct{ src, dst oxm.Subfield }

// Move copies a range of one field to a range of another with the same number of bits.
func Move(src, dst oxm.Subfield) Action { return move{src, dst} }

func (a move) String() string { return string(a.appendText(nil)) }

func (a move) appendText(b []byte) []byte {
	b = a.src.AppendText(append(b, "move:"...))
	return a.dst.AppendText(append(b, "->"...))
}

func (a move) appendWire(b []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(beginAction(b, actCopyField), a.dst.Bits)
	b = binary.BigEndian.AppendUint16(b, a.src.Offset)
	b = append(binary.BigEndian.AppendUint16(b, a.dst.Offset), 0, 0)
	for _, s := range [...]oxm.Subfield{a.src, a.dst} {
		b = s.AppendHeader(b)
	}
	return endAction(b, start)
}

type checkPktLarger struct {
	length uint16
	dst    oxm.Subfield
}

// CheckPktLarger sets one bit to 1 if the packet is longer than length bytes, else to 0.
func CheckPktLarger(length uint16, dst oxm.Field, bit uint16) Action {
	return checkPktLarger{length, oxm.Subfield{Field: dst, Offset: bit, Bits: 1}}
}

func (a checkPktLarger) String() string { return string(a.appendText(nil)) }

func (a checkPktLarger) appendText(b []byte) []byte {
	b = strconv.AppendUint(append(b, "check_pkt_larger("...), uint64(a.length), 10)
	return a.dst.AppendText(append(b, ")->"...))
}

func (a checkPktLarger) appendWire(b []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(beginNicira(b, nxCheckPktLarger), a.length)
	b = binary.BigEndian.AppendUint16(b, a.dst.Offset)
	return endAction(wire.Zeros(a.dst.AppendNXM(b), 6), start)
}
