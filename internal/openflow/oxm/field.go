package oxm

import (
	"fmt"

	"weft.dev/weft/internal/openflow/wire"
)

// Field names a match field: a field of a packet or of its metadata that flows match and actions read and write.
type Field uint8

// The fields, in the order of encoding: a field comes after those it depends on, as OXM requires.
const (
	fieldNone Field = iota
	// FieldInPort is the 32-bit OpenFlow port a packet came in by.
	FieldInPort
	// FieldInPort16 is the same in 16 bits; actions that load or copy a port into a packet's in_port use it.
	FieldInPort16
	FieldConjID
	FieldPktMark
	FieldMetadata
	FieldTunID
	FieldTunSrc
	FieldTunDst
	FieldTunIPv6Src
	FieldTunIPv6Dst
	FieldTunFlags
	FieldEthSrc
	FieldEthDst
	FieldEthType
	FieldVLANTCI
	FieldVLANVID
	FieldVLANPCP
	FieldMPLSLabel
	FieldMPLSTC
	FieldMPLSBOS
	FieldMPLSTTL
	FieldIPv4Src
	FieldIPv4Dst
	FieldIPv6Src
	FieldIPv6Dst
	FieldIPv6Label
	FieldIPProto
	FieldIPTOS
	FieldIPDSCP
	FieldIPECN
	FieldIPTTL
	FieldIPFrag
	FieldARPOp
	FieldARPSPA
	FieldARPTPA
	FieldARPSHA
	FieldARPTHA
	FieldTCPSrc
	FieldTCPDst
	FieldTCPFlags
	FieldUDPSrc
	FieldUDPDst
	FieldSCTPSrc
	FieldSCTPDst
	FieldICMPType
	FieldICMPCode
	FieldICMPv6Type
	FieldICMPv6Code
	FieldNDTarget
	FieldNDSLL
	FieldNDTLL
	FieldCTState
	FieldCTZone
	FieldCTMark
	FieldCTLabel
	FieldCTNwProto
	FieldCTNwSrc
	FieldCTNwDst
	FieldCTIPv6Src
	FieldCTIPv6Dst
	FieldCTTpSrc
	FieldCTTpDst
	// FieldReg0 is the first of sixteen 32-bit registers; FieldReg(n) names the others.
	FieldReg0
	// FieldXReg0 is the first of eight 64-bit registers, pairs of the 32-bit ones: xreg0 is reg0 (high), reg1 (low).
	FieldXReg0 = FieldReg0 + 16
	// FieldXXReg0 is the first of four 128-bit registers: xxreg0 is reg0 (high) to reg3 (low).
	FieldXXReg0 = FieldXReg0 + 8
	fieldCount  = FieldXXReg0 + 4
)

// FieldReg returns register n, 0 to 15. It panics for other numbers, which are programming errors.
func FieldReg(n int) Field {
	if n < 0 || n > 15 {
		panic(fmt.Sprintf("oxm: no register %d", n))
	}
	return FieldReg0 + Field(n)
}

// FieldXXReg returns the 128-bit register n, 0 to 3. It panics for other numbers.
func FieldXXReg(n int) Field {
	if n < 0 || n > 3 {
		panic(fmt.Sprintf("oxm: no 128-bit register %d", n))
	}
	return FieldXXReg0 + Field(n)
}

// String returns the field's name in ovs-fields(7).
func (f Field) String() string { return f.info().name }

// Bits returns the field's width.
func (f Field) Bits() uint16 { return f.info().bits }

// Maskable reports whether a condition may be on some of the field's bits only.
func (f Field) Maskable() bool { return f.info().maskable }

// Fields returns all fields, in the order of encoding.
func Fields() []Field {
	all := make([]Field, 0, fieldCount)
	for f := fieldNone + 1; f < fieldCount; f++ {
		all = append(all, f)
	}
	return all
}

func (f Field) info() *fieldInfo {
	if f >= fieldCount {
		f = fieldNone
	}
	return &fields[f]
}

// OXM classes (OpenFlow 1.5.1, 7.2.3.3; the first two are Nicira's).
const (
	classNXM0         = 0x0000
	classNXM1         = 0x0001
	classBasic        = 0x8000
	classPacketRegs   = 0x8001
	classExperimenter = 0xffff
)

type fieldFormat uint8

const (
	formatHex fieldFormat = iota
	formatDecimal
	formatEthernet
	formatIPv4
	formatIPv6
	formatPort
	formatCTState
	formatTCPFlags
	formatTunFlags
	formatFrag
)

// oxmID is class and number of a field: the part of an OXM header that identifies the field.
type oxmID struct {
	class uint16
	num   uint8
}

func (id oxmID) header(hasMask bool, length int) uint32 {
	h := uint32(id.class)<<16 | uint32(id.num)<<9 | uint32(length) //nolint:gosec // a field is at most 32 bytes with its mask
	if hasMask {
		h |= 1 << 8
	}
	return h
}

// requirement says that a field needs another field with one of the values. A match that lacks that field gets the first value. If
// implied is false, a match must choose the value itself.
type requirement struct {
	field   Field
	values  []uint64
	implied bool
}

// fieldInfo is a row of the registry.
type fieldInfo struct {
	// name is the field's name in actions, and in matches if matchName is empty.
	name, matchName string
	// symbol is what ovs-ofctl calls the field in a subfield.
	symbol string
	// oxm identifies the field in matches and OpenFlow actions, nxm in Nicira's actions, which predate OXM.
	oxm, nxm oxmID
	// bits is the width in use, bytes the width in a message.
	bits     uint16
	bytes    int
	format   fieldFormat
	maskable bool
	// rank is the field's position in a match's text.
	rank  uint8
	needs []requirement
}

func (i *fieldInfo) fullMask() wire.U128 { return wire.Ones(i.bits) }

//nolint:gochecknoglobals // a constant table, built once because registers are rows of a kind
var (
	fields     = buildFields()
	fieldByOXM = indexFields()
)

func indexFields() map[oxmID]Field {
	index := make(map[oxmID]Field, 2*int(fieldCount))
	for f := fieldNone + 1; f < fieldCount; f++ {
		info := &fields[f]
		index[info.oxm] = f
		if _, taken := index[info.nxm]; !taken {
			index[info.nxm] = f
		}
	}
	return index
}

func basic(num uint8) oxmID { return oxmID{classBasic, num} }
func nxm0(num uint8) oxmID  { return oxmID{classNXM0, num} }
func nxm1(num uint8) oxmID  { return oxmID{classNXM1, num} }

// IP protocol numbers (IANA) that fields depend on.
const (
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoICMPv6 = 58
	ProtoSCTP   = 132
)

// Ethernet types (IANA, IEEE 802) that fields depend on.
const (
	EthTypeIPv4 = 0x0800
	EthTypeARP  = 0x0806
	EthTypeVLAN = 0x8100
	EthTypeIPv6 = 0x86dd
	EthTypeMPLS = 0x8847
	EthTypeRARP = 0x8035
	// EthTypeQinQ is the service tag of IEEE 802.1ad.
	EthTypeQinQ = 0x88a8
	EthTypeLLDP = 0x88cc
)

func needEth(types ...uint64) []requirement {
	return []requirement{{FieldEthType, types, true}}
}

func needAnyIP() []requirement {
	return []requirement{{FieldEthType, []uint64{EthTypeIPv4, EthTypeIPv6}, false}}
}

func needProto(proto uint64) []requirement {
	return append(needAnyIP(), requirement{FieldIPProto, []uint64{proto}, true})
}

func needICMPv6(types ...uint64) []requirement {
	r := append(needEth(EthTypeIPv6), requirement{FieldIPProto, []uint64{ProtoICMPv6}, true})
	if len(types) > 0 {
		r = append(r, requirement{FieldICMPv6Type, types, len(types) == 1})
	}
	return r
}
