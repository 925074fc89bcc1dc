package oxm

import (
	"encoding/binary"
	"fmt"
	"slices"

	"weft.dev/weft/internal/openflow/wire"
)

// MatchField is one condition of a match, or a field with the value that an action sets it to.
type MatchField struct {
	field Field
	value wire.U128
	mask  wire.U128
}

// Field returns the field.
func (m MatchField) Field() Field { return m.field }

// Known reports whether the condition names a field: DecodeField returns one without for a field that it does not support.
func (m MatchField) Known() bool { return m.field != fieldNone }

// IsEmpty reports whether the condition names no field, or no bit of it.
func (m MatchField) IsEmpty() bool { return m.field == fieldNone || m.mask.IsZero() }

// Clipped returns the condition without the bits of value and mask that the field or the mask does not have, as an action writes it.
func (m MatchField) Clipped() MatchField {
	m.mask = m.mask.And(m.field.info().fullMask())
	m.value = m.value.And(m.mask)
	return m
}

func (m MatchField) exact() bool { return m.mask == m.field.info().fullMask() }

// Match is the condition of a flow. The zero value matches every packet. A Match is canonical: two matches that select the same packets
// by the same fields are equal, encode to the same bytes and print the same text.
type Match struct {
	// fields are sorted by field, masks are not zero, values are within masks.
	fields []MatchField
	// opaque are fields that this package cannot decode, with their headers, in the order of the message.
	opaque []string
	// invalid marks a match with an invalid condition: an invalid address, or a value too large for its field. Without the mark, the match
	// would select more packets than intended.
	invalid bool
}

// NewMatch makes a match of all conditions together. It adds the fields that a condition requires if their value is unambiguous: IPSrc of
// an IPv4 prefix adds eth_type; TCPDst adds ip_proto (but not eth_type: TCP runs over IPv4 and IPv6). A field that is given twice gets
// the union of both masks; for a bit in both masks, the later value wins.
func NewMatch(fields ...MatchField) Match {
	var m Match
	for _, f := range fields {
		m.set(f)
	}
	for _, f := range fields {
		m.addRequirements(f.field)
	}
	return m
}

// With returns the match with further conditions, as NewMatch would make it.
func (m Match) With(fields ...MatchField) Match {
	next := Match{fields: slices.Clone(m.fields), opaque: slices.Clone(m.opaque), invalid: m.invalid}
	for _, f := range fields {
		next.set(f)
	}
	for _, f := range fields {
		next.addRequirements(f.field)
	}
	return next
}

// Has reports whether the match has a condition on the field.
func (m Match) Has(f Field) bool {
	_, ok := m.find(f)
	return ok
}

// Fields returns the conditions, in the registry's order.
func (m Match) Fields() []MatchField { return slices.Clone(m.fields) }

// Equal reports whether both select the same packets by the same fields.
func (m Match) Equal(o Match) bool {
	return slices.Equal(m.fields, o.fields) && slices.Equal(m.opaque, o.opaque) && m.invalid == o.invalid
}

func (m Match) find(f Field) (MatchField, bool) {
	i, ok := slices.BinarySearchFunc(m.fields, f, func(e MatchField, f Field) int { return int(e.field) - int(f) })
	if !ok {
		return MatchField{}, false
	}
	return m.fields[i], true
}

// value returns the field's value if the match is exact on the field.
func (m Match) value(f Field) (uint64, bool) {
	e, ok := m.find(f)
	return e.value.Lo, ok && e.exact()
}

func (m *Match) set(f MatchField) {
	if f.field == fieldNone {
		m.invalid = true
	}
	if f.field == fieldNone || f.mask.IsZero() {
		return
	}
	for _, part := range canonicalParts(f) {
		part.mask = part.mask.And(part.field.info().fullMask())
		part.value = part.value.And(part.mask)
		if !part.mask.IsZero() {
			m.merge(part)
		}
	}
}

func (m *Match) merge(f MatchField) {
	i, found := slices.BinarySearchFunc(m.fields, f.field, func(e MatchField, f Field) int { return int(e.field) - int(f) })
	if !found {
		m.fields = slices.Insert(m.fields, i, f)
		return
	}
	have := &m.fields[i]
	have.value = have.value.AndNot(f.mask).Or(f.value)
	have.mask = have.mask.Or(f.mask)
}

// canonicalParts rewrites a condition to its canonical form. Wide registers become 32-bit ones (the switch always reports xregs), the
// 16-bit in_port becomes the 32-bit one, nw_tos becomes dscp, and vlan_tci becomes vid and pcp.
func canonicalParts(f MatchField) []MatchField {
	switch {
	case f.field >= FieldXReg0 && f.field < FieldXXReg0:
		return splitRegs(f, FieldReg0+2*(f.field-FieldXReg0), 2)
	case f.field >= FieldXXReg0 && f.field < fieldCount:
		return splitRegs(f, FieldReg0+4*(f.field-FieldXXReg0), 4)
	case f.field == FieldInPort16:
		return []MatchField{{FieldInPort, wire.U64(uint64(wire.WidenPort(uint16(f.value.Lo)))), wire.Ones(32)}} //nolint:gosec // a 16-bit field
	case f.field == FieldCTState:
		return []MatchField{{f.field, f.value, f.mask.And(wire.U64(uint64(ctAll)))}}
	case f.field == FieldIPTOS:
		return []MatchField{{FieldIPDSCP, f.value.Shr(2), f.mask.Shr(2)}}
	case f.field == FieldVLANTCI && f.value.Lo&vlanPresent == 0: // no tag, and so no priority
		return []MatchField{{FieldVLANVID, f.value, f.mask}}
	case f.field == FieldVLANTCI:
		return []MatchField{
			{FieldVLANVID, f.value, f.mask},
			{FieldVLANPCP, f.value.Shr(13), f.mask.Shr(13)},
		}
	default:
		return []MatchField{f}
	}
}

func splitRegs(f MatchField, first Field, n uint16) []MatchField {
	parts := make([]MatchField, 0, n)
	for i := range n {
		shift := 32 * (n - 1 - i)
		low := wire.Ones(32)
		parts = append(parts, MatchField{first + Field(i), f.value.Shr(shift).And(low), f.mask.Shr(shift).And(low)}) //nolint:gosec // at most 4
	}
	return parts
}

func (m *Match) addRequirements(f Field) {
	if vid, _ := m.find(FieldVLANVID); f == FieldVLANPCP && vid.mask.Lo&vlanPresent == 0 {
		m.merge(VLANAny())
	}
	for _, need := range f.info().needs {
		if !need.implied || m.Has(need.field) {
			continue
		}
		m.merge(MatchField{need.field, wire.U64(need.values[0]), need.field.info().fullMask()})
		m.addRequirements(need.field)
	}
}

// Validate reports what the switch would refuse: a field without the field it depends on, a mask where none is allowed.
func (m Match) Validate() error {
	if m.invalid {
		return fmt.Errorf("match %s: a condition holds no address of the field's kind, or a value too large for it", m)
	}
	if vid, _ := m.find(FieldVLANVID); m.Has(FieldVLANPCP) && vid.value.Lo&vlanPresent == 0 {
		return fmt.Errorf("match %s: vlan_pcp needs a VLAN tag", m)
	}
	for _, f := range m.fields {
		info := f.field.info()
		if !info.maskable && !f.exact() {
			return fmt.Errorf("match %s: %s cannot be masked", m, info.name)
		}
		for _, need := range info.needs {
			have, ok := m.value(need.field)
			if !ok || !slices.Contains(need.values, have) {
				return fmt.Errorf("match %s: %s needs %s", m, info.name, need.field)
			}
		}
	}
	return nil
}

// AppendWire encodes the match as struct ofp_match: type OXM, length, fields, padding to 8 bytes.
func (m Match) AppendWire(b []byte) []byte {
	start := len(b)
	b = append(b, 0, 1, 0, 0)
	for _, f := range m.fields {
		b = f.AppendOXM(b)
	}
	for _, raw := range m.opaque {
		b = append(b, raw...)
	}
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start)) //nolint:gosec // a message is at most 64 KiB
	return wire.Pad(b, start)
}

// AppendOXM appends header, value and, unless the match is exact, mask.
func (m MatchField) AppendOXM(b []byte) []byte {
	info := m.field.info()
	if m.exact() {
		b = binary.BigEndian.AppendUint32(b, info.oxm.header(false, info.bytes))
		return m.value.Put(b, info.bytes)
	}
	b = binary.BigEndian.AppendUint32(b, info.oxm.header(true, 2*info.bytes))
	b = m.value.Put(b, info.bytes)
	return m.mask.Put(b, info.bytes)
}

// DecodeMatch reads a struct ofp_match and returns what follows its padding.
func DecodeMatch(b []byte) (Match, []byte, error) {
	var m Match
	if len(b) < 4 {
		return m, nil, wire.Malformed("match header")
	}
	kind, length := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
	if kind != 1 || length < 4 || wire.RoundUp8(length) > len(b) {
		return m, nil, wire.Malformed("match")
	}
	rest := b[wire.RoundUp8(length):]
	oxms := b[4:length]
	for len(oxms) > 0 {
		f, raw, err := DecodeField(oxms)
		if err != nil {
			return m, nil, fmt.Errorf("match: %w", err)
		}
		oxms = oxms[len(raw):]
		switch {
		case f.field != fieldNone:
			m.set(f)
		case !isDefaultPacketType(raw):
			m.opaque = append(m.opaque, string(raw))
		}
	}
	return m, rest, nil
}

// isDefaultPacketType reports whether raw is OXM_OF_PACKET_TYPE (0,0), Ethernet. The switch puts it before a match without an Ethernet
// condition. On a bridge it has no effect.
func isDefaultPacketType(raw []byte) bool {
	return string(raw) == "\x80\x00\x58\x04\x00\x00\x00\x00"
}

// DecodeField decodes one field. Of an unknown field it returns only the bytes.
func DecodeField(b []byte) (f MatchField, raw []byte, err error) {
	if len(b) < 4 {
		return f, nil, wire.Malformed("field header")
	}
	h := binary.BigEndian.Uint32(b)
	length, hasMask := int(h&0xff), h&0x100 != 0
	if 4+length > len(b) {
		return f, nil, wire.Malformed("field")
	}
	raw = b[:4+length]
	field, ok := fieldByOXM[oxmID{uint16(h >> 16), uint8(h >> 9 & 0x7f)}] //nolint:gosec // parts of a header
	if !ok || h>>16 == classExperimenter {
		return f, raw, nil
	}
	info := field.info()
	want := info.bytes
	if hasMask {
		want *= 2
	}
	if length != want {
		return f, raw, nil
	}
	f = MatchField{field, wire.GetU128(raw[4 : 4+info.bytes]), info.fullMask()}
	if hasMask {
		f.mask = wire.GetU128(raw[4+info.bytes:])
	}
	return f, raw, nil
}

// DecodeFields decodes a list of fields without a header, up to the first malformed field.
func DecodeFields(b []byte) Match {
	var m Match
	for len(b) > 0 {
		f, raw, err := DecodeField(b)
		if err != nil {
			break
		}
		b = b[len(raw):]
		if f.field != fieldNone {
			m.set(f)
		}
	}
	return m
}
