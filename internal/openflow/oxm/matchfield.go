package oxm

import (
	"net"
	"net/netip"

	"weft.dev/weft/internal/openflow/wire"
)

// CTFlag is a set of connection states, as conntrack reports them to the flow table (ovs-fields(7), ct_state).
type CTFlag uint32

// The states of a packet's connection.
const (
	CTNew CTFlag = 1 << iota
	CTEst
	CTRel
	CTRpl
	CTInv
	CTTrk
	CTSNAT
	CTDNAT

	ctAll CTFlag = 1<<8 - 1
)

// ICMPv6 types of neighbour discovery (RFC 4861).
const (
	NDRouterSolicit = 133
	NDRouterAdvert  = 134
	NDSolicit       = 135
	NDAdvert        = 136
	NDRedirect      = 137
)

// ARP operations (RFC 826).
const (
	ARPRequest = 1
	ARPReply   = 2
)

// Frag selects packets by IP fragmentation.
type Frag uint8

// The kinds of fragments (ovs-fields(7), nw_frag).
const (
	FragNo Frag = iota
	FragYes
	FragFirst
	FragLater
	FragNotLater
)

// exact matches one value of a field. A value too large for the field makes the condition invalid, which Validate reports: a truncated
// value would select other packets than intended.
func exact(f Field, v uint64) MatchField {
	if !wire.U64(v).AndNot(f.info().fullMask()).IsZero() {
		return MatchField{}
	}
	return MatchField{f, wire.U64(v), f.info().fullMask()}
}

func masked(f Field, v, mask uint64) MatchField {
	if !wire.U64(mask).AndNot(f.info().fullMask()).IsZero() {
		return MatchField{}
	}
	return MatchField{f, wire.U64(v), wire.U64(mask)}
}

// Exact matches one value of a field of at most 64 bits.
func Exact(f Field, v uint64) MatchField { return exact(f, v) }

// Masked matches the mask's bits of a field of at most 64 bits.
func Masked(f Field, v, mask uint64) MatchField { return masked(f, v, mask) }

// Wide matches the mask's bits of a field of any width. Bits of the mask beyond the field have no meaning.
func Wide(f Field, v, mask wire.U128) MatchField { return MatchField{f, v, mask} }

// InPort selects packets that came in by an OpenFlow port.
func InPort(port uint32) MatchField { return exact(FieldInPort, uint64(port)) }

// EthType selects the Ethernet type.
func EthType(t uint16) MatchField { return exact(FieldEthType, uint64(t)) }

// EthSrc selects the source address. An address that is not 48 bits long makes the match invalid, as does every value that does not fit
// its field.
func EthSrc(a net.HardwareAddr) MatchField { return mac(FieldEthSrc, a, nil) }

// EthSrcMasked selects the mask's bits of the source address.
func EthSrcMasked(a, mask net.HardwareAddr) MatchField { return mac(FieldEthSrc, a, mask) }

// EthDst selects the destination address.
func EthDst(a net.HardwareAddr) MatchField { return mac(FieldEthDst, a, nil) }

// EthDstMasked selects the mask's bits of the destination address.
func EthDstMasked(a, mask net.HardwareAddr) MatchField { return mac(FieldEthDst, a, mask) }

func mac(f Field, a, mask net.HardwareAddr) MatchField {
	if len(a) != 6 || (mask != nil && len(mask) != 6) {
		return MatchField{}
	}
	m := wire.Ones(48)
	if mask != nil {
		m = wire.GetU128(mask)
	}
	return MatchField{f, wire.GetU128(a).And(m), m}
}

// VLANVID selects packets with a tag of this VLAN.
func VLANVID(vid uint16) MatchField {
	if vid >= vlanPresent {
		return MatchField{}
	}
	return exact(FieldVLANVID, uint64(vid)|vlanPresent)
}

// vlanPresent is the bit of a VLAN field that is set if there is a tag (OFPVID_PRESENT).
const vlanPresent = 0x1000

// VLANAny selects packets with any VLAN tag.
func VLANAny() MatchField { return masked(FieldVLANVID, vlanPresent, vlanPresent) }

// VLANNone selects packets without a VLAN tag.
func VLANNone() MatchField { return exact(FieldVLANVID, 0) }

// VLANPCP selects the tag's priority.
func VLANPCP(pcp uint8) MatchField { return exact(FieldVLANPCP, uint64(pcp)) }

// VLANTCI selects bits of the tag as a whole: priority, presence, VLAN.
func VLANTCI(tci, mask uint16) MatchField { return masked(FieldVLANTCI, uint64(tci), uint64(mask)) }

// MPLSLabel selects the outermost label.
func MPLSLabel(label uint32) MatchField { return exact(FieldMPLSLabel, uint64(label)) }

// IPProto selects the IP protocol. It needs an eth_type.
func IPProto(p uint8) MatchField { return exact(FieldIPProto, uint64(p)) }

// IPDSCP selects the differentiated services code point, 0 to 63.
func IPDSCP(v uint8) MatchField { return exact(FieldIPDSCP, uint64(v)) }

// IPECN selects the congestion bits.
func IPECN(v uint8) MatchField { return exact(FieldIPECN, uint64(v)) }

// IPTTL selects the time to live or the hop limit.
func IPTTL(v uint8) MatchField { return exact(FieldIPTTL, uint64(v)) }

// IPFrag selects by fragmentation.
func IPFrag(kind Frag) MatchField {
	const anyFrag, later = 1, 2
	switch kind {
	case FragYes:
		return masked(FieldIPFrag, anyFrag, anyFrag)
	case FragFirst:
		return masked(FieldIPFrag, anyFrag, anyFrag|later)
	case FragLater:
		return masked(FieldIPFrag, anyFrag|later, anyFrag|later)
	case FragNotLater:
		return masked(FieldIPFrag, 0, later)
	default:
		return masked(FieldIPFrag, 0, anyFrag|later)
	}
}

// IPSrc selects sources in a prefix, IPv4 or IPv6, and adds the eth_type. A prefix of length 0 selects the whole family.
func IPSrc(p netip.Prefix) MatchField { return byFamily(FieldIPv4Src, FieldIPv6Src, p) }

// IPDst selects destinations in a prefix, as IPSrc.
func IPDst(p netip.Prefix) MatchField { return byFamily(FieldIPv4Dst, FieldIPv6Dst, p) }

func byFamily(v4, v6 Field, p netip.Prefix) MatchField {
	if p.Addr().Is4() {
		return prefix(v4, p)
	}
	return prefix(v6, p)
}

func prefix(f Field, p netip.Prefix) MatchField {
	if !p.IsValid() || p.Addr().BitLen() != int(f.Bits()) {
		return MatchField{}
	}
	m := wire.PrefixMask(p.Bits(), f.Bits())
	return MatchField{f, wire.FromAddr(p.Addr()).And(m), m}
}

func address(f Field, a netip.Addr) MatchField {
	return prefix(f, netip.PrefixFrom(a, a.BitLen()))
}

// ARP selects ARP packets.
func ARP() MatchField { return EthType(EthTypeARP) }

// ARPOp selects the operation.
func ARPOp(op uint16) MatchField { return exact(FieldARPOp, uint64(op)) }

// ARPSPA selects the sender's IPv4 address.
func ARPSPA(p netip.Prefix) MatchField { return prefix(FieldARPSPA, p) }

// ARPTPA selects the target's IPv4 address.
func ARPTPA(p netip.Prefix) MatchField { return prefix(FieldARPTPA, p) }

// ARPSHA selects the sender's Ethernet address in the ARP packet.
func ARPSHA(a net.HardwareAddr) MatchField { return mac(FieldARPSHA, a, nil) }

// ARPSHAMasked selects the mask's bits of the sender's Ethernet address.
func ARPSHAMasked(a, mask net.HardwareAddr) MatchField { return mac(FieldARPSHA, a, mask) }

// ARPTHA selects the target's Ethernet address in the ARP packet.
func ARPTHA(a net.HardwareAddr) MatchField { return mac(FieldARPTHA, a, nil) }

// TCPSrc selects the source port of TCP. Like every transport field it adds ip_proto, and needs an eth_type.
func TCPSrc(p uint16) MatchField { return exact(FieldTCPSrc, uint64(p)) }

// TCPSrcMasked selects the mask's bits of the source port.
func TCPSrcMasked(p, mask uint16) MatchField { return masked(FieldTCPSrc, uint64(p), uint64(mask)) }

// TCPDst selects the destination port of TCP.
func TCPDst(p uint16) MatchField { return exact(FieldTCPDst, uint64(p)) }

// TCPDstMasked selects the mask's bits of the destination port.
func TCPDstMasked(p, mask uint16) MatchField { return masked(FieldTCPDst, uint64(p), uint64(mask)) }

// TCPFlags selects bits of the TCP flags; FIN is the lowest bit.
func TCPFlags(flags, mask uint16) MatchField {
	return masked(FieldTCPFlags, uint64(flags), uint64(mask))
}

// UDPSrc selects the source port of UDP.
func UDPSrc(p uint16) MatchField { return exact(FieldUDPSrc, uint64(p)) }

// UDPSrcMasked selects the mask's bits of the source port.
func UDPSrcMasked(p, mask uint16) MatchField { return masked(FieldUDPSrc, uint64(p), uint64(mask)) }

// UDPDst selects the destination port of UDP.
func UDPDst(p uint16) MatchField { return exact(FieldUDPDst, uint64(p)) }

// UDPDstMasked selects the mask's bits of the destination port.
func UDPDstMasked(p, mask uint16) MatchField { return masked(FieldUDPDst, uint64(p), uint64(mask)) }

// SCTPSrc selects the source port of SCTP.
func SCTPSrc(p uint16) MatchField { return exact(FieldSCTPSrc, uint64(p)) }

// SCTPSrcMasked selects the mask's bits of the source port.
func SCTPSrcMasked(p, mask uint16) MatchField { return masked(FieldSCTPSrc, uint64(p), uint64(mask)) }

// SCTPDst selects the destination port of SCTP.
func SCTPDst(p uint16) MatchField { return exact(FieldSCTPDst, uint64(p)) }

// SCTPDstMasked selects the mask's bits of the destination port.
func SCTPDstMasked(p, mask uint16) MatchField { return masked(FieldSCTPDst, uint64(p), uint64(mask)) }

// ICMPType selects the type of ICMP for IPv4. It adds eth_type and ip_proto.
func ICMPType(t uint8) MatchField { return exact(FieldICMPType, uint64(t)) }

// ICMPCode selects the code of ICMP for IPv4.
func ICMPCode(c uint8) MatchField { return exact(FieldICMPCode, uint64(c)) }

// ICMPv6Type selects the type of ICMPv6. It adds eth_type and ip_proto.
func ICMPv6Type(t uint8) MatchField { return exact(FieldICMPv6Type, uint64(t)) }

// ICMPv6Code selects the code of ICMPv6.
func ICMPv6Code(c uint8) MatchField { return exact(FieldICMPv6Code, uint64(c)) }

// NDTarget selects the target of a neighbour solicitation or advertisement. It needs the icmpv6_type.
func NDTarget(p netip.Prefix) MatchField { return prefix(FieldNDTarget, p) }

// NDSLL selects the source link-layer option of a solicitation. It adds the icmpv6_type.
func NDSLL(a net.HardwareAddr) MatchField { return mac(FieldNDSLL, a, nil) }

// NDTLL selects the target link-layer option of an advertisement. It adds the icmpv6_type.
func NDTLL(a net.HardwareAddr) MatchField { return mac(FieldNDTLL, a, nil) }

// TunID selects the tunnel key: a VNI.
func TunID(id uint64) MatchField { return exact(FieldTunID, id) }

// TunIDMasked selects the mask's bits of the tunnel key.
func TunIDMasked(id, mask uint64) MatchField { return masked(FieldTunID, id, mask) }

// TunSrc selects the outer source address of a tunnelled packet, IPv4 or IPv6.
func TunSrc(a netip.Addr) MatchField {
	if a.Is4() {
		return address(FieldTunSrc, a)
	}
	return address(FieldTunIPv6Src, a)
}

// TunDst selects the outer destination address of a tunnelled packet, IPv4 or IPv6. In a set-field action it sets that address.
func TunDst(a netip.Addr) MatchField {
	if a.Is4() {
		return address(FieldTunDst, a)
	}
	return address(FieldTunIPv6Dst, a)
}

// Reg selects register n, 0 to 15.
func Reg(n int, v uint32) MatchField { return exact(FieldReg(n), uint64(v)) }

// RegMasked selects the mask's bits of register n.
func RegMasked(n int, v, mask uint32) MatchField {
	return masked(FieldReg(n), uint64(v), uint64(mask))
}

// XXReg selects the 128-bit register n, 0 to 3. The value is an IPv6 prefix, because these registers mostly have IPv6 addresses.
func XXReg(n int, p netip.Prefix) MatchField { return prefix(FieldXXReg(n), p) }

// CTState selects packets whose connection has all states in set and none in clear.
func CTState(set, clear CTFlag) MatchField {
	return masked(FieldCTState, uint64(set), uint64(set|clear))
}

// CTZone selects the zone that the packet was last tracked in.
func CTZone(zone uint16) MatchField { return exact(FieldCTZone, uint64(zone)) }

// CTMark selects the connection's mark.
func CTMark(v uint32) MatchField { return exact(FieldCTMark, uint64(v)) }

// CTMarkMasked selects the mask's bits of the connection's mark.
func CTMarkMasked(v, mask uint32) MatchField { return masked(FieldCTMark, uint64(v), uint64(mask)) }

// CTLabel selects the connection's label; hi and lo are its two halves.
func CTLabel(hi, lo uint64) MatchField {
	return Wide(FieldCTLabel, wire.U128{Hi: hi, Lo: lo}, wire.Ones(128))
}

// CTLabelMasked selects the mask's bits of the connection's label; each pair is the high and the low half.
func CTLabelMasked(v, mask [2]uint64) MatchField {
	return Wide(FieldCTLabel, wire.U128{Hi: v[0], Lo: v[1]}, wire.U128{Hi: mask[0], Lo: mask[1]})
}

// CTNwSrc selects the original source of the connection, before translation. Needs CTState with CTTrk set.
func CTNwSrc(p netip.Prefix) MatchField { return byFamily(FieldCTNwSrc, FieldCTIPv6Src, p) }

// CTNwDst selects the original destination of the connection.
func CTNwDst(p netip.Prefix) MatchField { return byFamily(FieldCTNwDst, FieldCTIPv6Dst, p) }

// CTNwProto selects the original protocol of the connection.
func CTNwProto(p uint8) MatchField { return exact(FieldCTNwProto, uint64(p)) }

// CTTpSrc selects the original source port of the connection. Needs CTNwProto.
func CTTpSrc(p uint16) MatchField { return exact(FieldCTTpSrc, uint64(p)) }

// CTTpDst selects the original destination port of the connection. Needs CTNwProto.
func CTTpDst(p uint16) MatchField { return exact(FieldCTTpDst, uint64(p)) }

// PktMark selects the packet's mark, which is also netfilter's mark in the kernel.
func PktMark(v uint32) MatchField { return exact(FieldPktMark, uint64(v)) }

// PktMarkMasked selects the mask's bits of the packet's mark.
func PktMarkMasked(v, mask uint32) MatchField { return masked(FieldPktMark, uint64(v), uint64(mask)) }

// ConjID selects packets for which all clauses of a conjunction matched.
func ConjID(id uint32) MatchField { return exact(FieldConjID, uint64(id)) }

// Metadata selects the pipeline's 64-bit metadata.
func Metadata(v uint64) MatchField { return exact(FieldMetadata, v) }

// MetadataMasked selects the mask's bits of the metadata.
func MetadataMasked(v, mask uint64) MatchField { return masked(FieldMetadata, v, mask) }
