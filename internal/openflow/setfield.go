package openflow

import (
	"encoding/binary"
	"strconv"
)

// Subfield is a range of a field's bits.
type Subfield struct {
	Field Field
	// Offset is the lowest bit; 0 is the field's least significant bit.
	Offset uint16
	// Bits is the number of bits, at least 1.
	Bits uint16
}

// Whole returns all bits of a field.
func Whole(f Field) Subfield { return Subfield{Field: f, Bits: f.Bits()} }

// Bits returns the range of a field from bit low to bit high, both included.
func Bits(f Field, low, high uint16) Subfield { return Subfield{f, low, high - low + 1} }

// RegBits returns the range of register n from bit low to bit high, both included.
func RegBits(n int, low, high uint16) Subfield { return Bits(FieldReg(n), low, high) }

// String prints the range as ovs-ofctl does: NXM_NX_REG0[0..15].
func (s Subfield) String() string { return string(s.appendText(nil)) }

func (s Subfield) appendText(b []byte) []byte {
	b = append(append(b, s.Field.info().symbol...), '[')
	switch {
	case s.Offset == 0 && s.Bits == s.Field.Bits():
	case s.Bits == 1:
		b = strconv.AppendUint(b, uint64(s.Offset), 10)
	default:
		b = strconv.AppendUint(b, uint64(s.Offset), 10)
		b = strconv.AppendUint(append(b, ".."...), uint64(s.Offset)+uint64(s.Bits)-1, 10)
	}
	return append(b, ']')
}

// offsetBits encodes the range as Nicira's actions do.
func (s Subfield) offsetBits() uint16 { return s.Offset<<6 | (s.Bits - 1) }

func (s Subfield) appendNXM(b []byte) []byte {
	info := s.Field.info()
	return binary.BigEndian.AppendUint32(b, info.nxm.header(false, info.bytes))
}

// subfieldOf decodes a field's header and makes the range. ok is false if the field is unknown or the range does not fit it.
func subfieldOf(header uint32, offset, bits uint16) (Subfield, bool) {
	f, ok := fieldByOXM[oxmID{uint16(header >> 16), uint8(header >> 9 & 0x7f)}] //nolint:gosec // parts of a header
	s := Subfield{f, offset, bits}
	return s, ok && header>>16 != classExperimenter && bits > 0 && uint32(offset)+uint32(bits) <= uint32(f.Bits())
}

func subfieldOfPacked(header uint32, packed uint16) (Subfield, bool) {
	return subfieldOf(header, packed>>6, packed&0x3f+1)
}

type setField struct{ to MatchField }

// SetField writes a field: SetField(Reg(0, 7)), SetField(EthDst(mac)). A masked value writes the mask's bits only.
func SetField(to MatchField) Action {
	to.mask = to.mask.and(to.field.info().fullMask())
	to.value = to.value.and(to.mask)
	return setField{to}
}

// Load writes a number to a range of a field. In OpenFlow 1.5 it is a set_field, and prints as one. A number that does not fit the range
// makes the flow invalid.
func Load(dst Subfield, value uint64) Action {
	if !u64(value).andNot(onesU128(dst.Bits)).isZero() {
		return setField{} // Validate reports it
	}
	mask := onesU128(dst.Bits).shl(dst.Offset)
	return SetField(MatchField{dst.Field, u64(value).shl(dst.Offset), mask})
}

func (a setField) String() string { return string(a.appendText(nil)) }

func (a setField) appendText(b []byte) []byte {
	b = a.to.appendValue(append(b, "set_field:"...))
	return append(append(b, "->"...), a.to.field.info().name...)
}

func (a setField) appendWire(b []byte) []byte {
	start := len(b)
	return endAction(a.to.appendOXM(beginAction(b, actSetField)), start)
}

type move struct{ src, dst Subfield }

// Move copies a range of one field to a range of another with the same number of bits.
func Move(src, dst Subfield) Action { return move{src, dst} }

func (a move) String() string { return string(a.appendText(nil)) }

func (a move) appendText(b []byte) []byte {
	b = a.src.appendText(append(b, "move:"...))
	return a.dst.appendText(append(b, "->"...))
}

func (a move) appendWire(b []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(beginAction(b, actCopyField), a.dst.Bits)
	b = binary.BigEndian.AppendUint16(b, a.src.Offset)
	b = append(binary.BigEndian.AppendUint16(b, a.dst.Offset), 0, 0)
	for _, s := range [...]Subfield{a.src, a.dst} {
		b = binary.BigEndian.AppendUint32(b, s.Field.info().oxm.header(false, s.Field.info().bytes))
	}
	return endAction(b, start)
}

type checkPktLarger struct {
	length uint16
	dst    Subfield
}

// CheckPktLarger sets one bit to 1 if the packet is longer than length bytes, else to 0.
func CheckPktLarger(length uint16, dst Field, bit uint16) Action {
	return checkPktLarger{length, Subfield{dst, bit, 1}}
}

func (a checkPktLarger) String() string { return string(a.appendText(nil)) }

func (a checkPktLarger) appendText(b []byte) []byte {
	b = strconv.AppendUint(append(b, "check_pkt_larger("...), uint64(a.length), 10)
	return a.dst.appendText(append(b, ")->"...))
}

func (a checkPktLarger) appendWire(b []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint16(beginNicira(b, nxCheckPktLarger), a.length)
	b = binary.BigEndian.AppendUint16(b, a.dst.Offset)
	return endAction(zeros(a.dst.appendNXM(b), 6), start)
}
