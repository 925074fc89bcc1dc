package oxm

import (
	"slices"
	"strconv"

	"weft.dev/weft/internal/openflow/wire"
)

// String prints the match as ovs-ofctl does, without the priority. The empty text matches everything.
func (m Match) String() string { return string(m.AppendText(nil)) }

// rankKeyword is the position of the protocol's short name (tcp, arp, ip): after conntrack, before the registers.
const rankKeyword = 20

// AppendText appends the text of String.
func (m Match) AppendText(b []byte) []byte {
	keyword, saysProto := m.keyword()
	byRank := slices.Clone(m.fields)
	slices.SortStableFunc(byRank, func(a, b MatchField) int { return int(a.field.info().rank) - int(b.field.info().rank) })
	start := len(b)
	for _, f := range byRank {
		if keyword != "" && f.field.info().rank > rankKeyword {
			b = append(append(b, keyword...), ',')
			keyword = ""
		}
		switch {
		case f.field == FieldEthType && m.typeKeyword() != "":
		case f.field == FieldIPProto && saysProto:
		case f.field == FieldVLANPCP && m.Has(FieldVLANVID):
		case f.field == FieldVLANVID || f.field == FieldVLANPCP:
			b = append(m.appendVLAN(b), ',')
		default:
			b = append(f.appendMatch(b), ',')
		}
	}
	if keyword != "" {
		b = append(append(b, keyword...), ',')
	}
	for _, raw := range m.opaque {
		b = append(wire.AppendBytesHex(append(b, "oxm:"...), []byte(raw)), ',')
	}
	if len(b) > start {
		b = b[:len(b)-1]
	}
	return b
}

// typeKeyword is the short name of the Ethernet type, "" if it has none.
func (m Match) typeKeyword() string {
	t, ok := m.value(FieldEthType)
	if !ok {
		return ""
	}
	switch t {
	case EthTypeIPv4:
		return "ip"
	case EthTypeIPv6:
		return "ipv6"
	case EthTypeARP:
		return "arp"
	case EthTypeRARP:
		return "rarp"
	case EthTypeMPLS:
		return "mpls"
	case EthTypeMPLS + 1:
		return "mplsm"
	default:
		return ""
	}
}

// keyword returns the short name of Ethernet type and protocol together, and whether it includes the protocol.
func (m Match) keyword() (string, bool) {
	name := m.typeKeyword()
	proto, ok := m.value(FieldIPProto)
	if !ok || (name != "ip" && name != "ipv6") {
		return name, false
	}
	suffix := ""
	if name == "ipv6" {
		suffix = "6"
	}
	switch {
	case proto == ProtoTCP:
		return "tcp" + suffix, true
	case proto == ProtoUDP:
		return "udp" + suffix, true
	case proto == ProtoSCTP:
		return "sctp" + suffix, true
	case proto == ProtoICMP && suffix == "", proto == ProtoICMPv6 && suffix == "6":
		return "icmp" + suffix, true
	default:
		return name, false
	}
}

// appendVLAN prints the tag: as dl_vlan and dl_vlan_pcp if these can express the match, else as vlan_tci.
func (m Match) appendVLAN(b []byte) []byte {
	vid, _ := m.find(FieldVLANVID)
	pcp, hasPCP := m.find(FieldVLANPCP)
	present := vid.mask.Lo&vlanPresent != 0 && vid.value.Lo&vlanPresent != 0
	vidMask := vid.mask.Lo &^ vlanPresent
	if present && (vidMask == 0 || vidMask == 0xfff) && (vidMask != 0 || hasPCP) {
		if vidMask != 0 {
			b = strconv.AppendUint(append(b, "dl_vlan="...), vid.value.Lo&0xfff, 10)
		}
		if hasPCP {
			if vidMask != 0 {
				b = append(b, ',')
			}
			b = strconv.AppendUint(append(b, "dl_vlan_pcp="...), pcp.value.Lo, 10)
		}
		return b
	}
	tci, mask := vid.value.Lo|pcp.value.Lo<<13, vid.mask.Lo|pcp.mask.Lo<<13
	b = wire.AppendHexPadded(append(b, "vlan_tci=0x"...), tci, 4)
	if mask != 0xffff {
		b = wire.AppendHexPadded(append(b, "/0x"...), mask, 4)
	}
	return b
}

// appendMatch prints name=value/mask in the form of a match, which differs from that of an action for some fields.
func (m MatchField) appendMatch(b []byte) []byte {
	info := m.field.info()
	name := info.matchName
	if name == "" {
		name = info.name
	}
	b = append(append(b, name...), '=')
	switch {
	case m.field == FieldEthType:
		return wire.AppendHexPadded(append(b, "0x"...), m.value.Lo, 4)
	case m.field == FieldIPv6Label:
		b = wire.AppendHexPadded(append(b, "0x"...), m.value.Lo, 5)
		if !m.exact() {
			b = wire.AppendHexPadded(append(b, "/0x"...), m.mask.Lo, 5)
		}
		return b
	case m.field == FieldIPDSCP:
		return strconv.AppendUint(b, m.value.Lo<<2, 10)
	case m.field == FieldCTZone:
		return strconv.AppendUint(b, m.value.Lo, 10)
	case m.field == FieldTunFlags:
		// A match prints the sign, as if it left other flags open: the field has more bits inside the switch.
		return appendFlags(b, m, wire.U128{}, []string{"oam"})
	case info.format == formatDecimal && !m.exact():
		// Zero is printed as 0x0 here, unlike in a register's match.
		b = strconv.AppendUint(append(b, "0x"...), m.value.Lo, 16)
		return strconv.AppendUint(append(b, "/0x"...), m.mask.Lo, 16)
	default:
		return m.AppendValue(b)
	}
}

// AppendValue prints value/mask by the field's format.
func (m MatchField) AppendValue(b []byte) []byte {
	info := m.field.info()
	switch info.format {
	case formatEthernet:
		b = appendMAC(b, m.value)
		if !m.exact() {
			b = appendMAC(append(b, '/'), m.mask)
		}
		return b
	case formatIPv4, formatIPv6:
		return m.appendAddress(b)
	case formatPort:
		if m.field == FieldInPort16 {
			return wire.AppendPort(b, wire.WidenPort(uint16(m.value.Lo))) //nolint:gosec // a 16-bit field
		}
		return wire.AppendPort(b, uint32(m.value.Lo)) //nolint:gosec // a 32-bit field
	case formatCTState:
		return appendFlags(b, m, wire.U64(uint64(ctAll)), ctNames())
	case formatTCPFlags:
		return appendFlags(b, m, info.fullMask(), tcpFlagNames())
	case formatTunFlags:
		return appendFlags(b, m, info.fullMask(), []string{"oam"})
	case formatFrag:
		return append(b, fragName(m)...)
	case formatDecimal:
		b = strconv.AppendUint(b, m.value.Lo, 10)
	case formatHex:
		b = m.value.AppendHex(b)
	}
	if !m.exact() {
		b = m.mask.AppendHex(append(b, '/'))
	}
	return b
}

func appendMAC(b []byte, v wire.U128) []byte {
	for i := 5; i >= 0; i-- {
		b = wire.AppendHexPadded(b, v.Lo>>(8*i)&0xff, 2)
		if i > 0 {
			b = append(b, ':')
		}
	}
	return b
}

func (m MatchField) appendAddress(b []byte) []byte {
	show := func(v wire.U128) []byte {
		if m.field.Bits() == 32 {
			return v.IP4().AppendTo(b)
		}
		return wire.AppendIP(b, v.IP6())
	}
	b = show(m.value)
	if m.exact() {
		return b
	}
	b = append(b, '/')
	if n, ok := m.mask.PrefixLen(m.field.Bits()); ok {
		return strconv.AppendInt(b, int64(n), 10)
	}
	return show(m.mask)
}

func ctNames() []string {
	return []string{"new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"}
}

func tcpFlagNames() []string {
	return []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns", "[200]", "[400]", "[800]"}
}

// appendFlags prints a|b if the mask covers all flags, else +a-b.
func appendFlags(b []byte, m MatchField, all wire.U128, names []string) []byte {
	value, mask := m.value.Lo, m.mask.Lo
	if mask == all.Lo {
		if value == 0 {
			return append(b, '0')
		}
		for i, name := range names {
			if value&(1<<i) != 0 {
				b = append(append(b, name...), '|')
			}
		}
		return b[:len(b)-1]
	}
	for i, name := range names {
		if mask&(1<<i) == 0 {
			continue
		}
		sign := byte('-')
		if value&(1<<i) != 0 {
			sign = '+'
		}
		b = append(append(b, sign), name...)
	}
	return b
}

func fragName(m MatchField) string {
	switch [2]uint64{m.value.Lo, m.mask.Lo} {
	case [2]uint64{0, 3}, [2]uint64{0, 1}:
		return "no"
	case [2]uint64{1, 3}:
		return "first"
	case [2]uint64{3, 3}, [2]uint64{2, 2}:
		return "later"
	case [2]uint64{1, 1}:
		return "yes"
	case [2]uint64{0, 2}:
		return "not_later"
	default:
		return "<error>"
	}
}
