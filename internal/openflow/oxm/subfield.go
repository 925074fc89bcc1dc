package oxm

import (
	"encoding/binary"
	"strconv"

	"weft.dev/weft/internal/openflow/wire"
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
func (s Subfield) String() string { return string(s.AppendText(nil)) }

// AppendText appends the text of String.
func (s Subfield) AppendText(b []byte) []byte {
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

// OffsetBits encodes the range as Nicira's actions do.
func (s Subfield) OffsetBits() uint16 { return s.Offset<<6 | (s.Bits - 1) }

// AppendNXM appends the NXM header of the field, by which Nicira's actions name it.
func (s Subfield) AppendNXM(b []byte) []byte {
	info := s.Field.info()
	return binary.BigEndian.AppendUint32(b, info.nxm.header(false, info.bytes))
}

// DecodeSubfield decodes a field's header and makes the range. ok is false if the field is unknown or the range does not fit it.
func DecodeSubfield(header uint32, offset, bits uint16) (Subfield, bool) {
	f, ok := fieldByOXM[oxmID{uint16(header >> 16), uint8(header >> 9 & 0x7f)}] //nolint:gosec // parts of a header
	s := Subfield{f, offset, bits}
	return s, ok && header>>16 != classExperimenter && bits > 0 && uint32(offset)+uint32(bits) <= uint32(f.Bits())
}

// DecodePackedSubfield decodes a range whose offset and width are packed as OffsetBits packs them.
func DecodePackedSubfield(header uint32, packed uint16) (Subfield, bool) {
	return DecodeSubfield(header, packed>>6, packed&0x3f+1)
}

// AppendHeader appends the OXM header of the field, by which OpenFlow's actions name it.
func (s Subfield) AppendHeader(b []byte) []byte {
	info := s.Field.info()
	return binary.BigEndian.AppendUint32(b, info.oxm.header(false, info.bytes))
}

// Exact returns the condition that the range has a value. ok is false if the value does not fit the range.
func (s Subfield) Exact(value uint64) (m MatchField, ok bool) {
	if !wire.U64(value).AndNot(wire.Ones(s.Bits)).IsZero() {
		return MatchField{}, false
	}
	return MatchField{s.Field, wire.U64(value).Shl(s.Offset), wire.Ones(s.Bits).Shl(s.Offset)}, true
}

// IsValid reports whether the range is within a field.
func (s Subfield) IsValid() bool {
	return s.Field != fieldNone && s.Field < fieldCount && s.Bits != 0 && uint32(s.Offset)+uint32(s.Bits) <= uint32(s.Field.Bits())
}
