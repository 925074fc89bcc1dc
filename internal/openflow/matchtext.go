package openflow

import (
	"net/netip"
	"slices"
	"strconv"
)

// String prints the match as ovs-ofctl does, without the priority. The empty text matches everything.
func (m Match) String() string { return string(m.appendText(nil)) }

// rankKeyword is the position of the protocol's short name (tcp, arp, ip): after conntrack, before the registers.
const rankKeyword = 20

func (m Match) appendText(b []byte) []byte {
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
		b = append(appendBytesHex(append(b, "oxm:"...), []byte(raw)), ',')
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
	present := vid.mask.lo&vlanPresent != 0 && vid.value.lo&vlanPresent != 0
	vidMask := vid.mask.lo &^ vlanPresent
	if present && (vidMask == 0 || vidMask == 0xfff) && (vidMask != 0 || hasPCP) {
		if vidMask != 0 {
			b = strconv.AppendUint(append(b, "dl_vlan="...), vid.value.lo&0xfff, 10)
		}
		if hasPCP {
			if vidMask != 0 {
				b = append(b, ',')
			}
			b = strconv.AppendUint(append(b, "dl_vlan_pcp="...), pcp.value.lo, 10)
		}
		return b
	}
	tci, mask := vid.value.lo|pcp.value.lo<<13, vid.mask.lo|pcp.mask.lo<<13
	b = appendHexPadded(append(b, "vlan_tci=0x"...), tci, 4)
	if mask != 0xffff {
		b = appendHexPadded(append(b, "/0x"...), mask, 4)
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
		return appendHexPadded(append(b, "0x"...), m.value.lo, 4)
	case m.field == FieldIPv6Label:
		b = appendHexPadded(append(b, "0x"...), m.value.lo, 5)
		if !m.exact() {
			b = appendHexPadded(append(b, "/0x"...), m.mask.lo, 5)
		}
		return b
	case m.field == FieldIPDSCP:
		return strconv.AppendUint(b, m.value.lo<<2, 10)
	case m.field == FieldCTZone:
		return strconv.AppendUint(b, m.value.lo, 10)
	case m.field == FieldTunFlags:
		// A match prints the sign, as if it left other flags open: the field has more bits inside the switch.
		return appendFlags(b, m, u128{}, []string{"oam"})
	case info.format == formatDecimal && !m.exact():
		// Zero is printed as 0x0 here, unlike in a register's match.
		b = strconv.AppendUint(append(b, "0x"...), m.value.lo, 16)
		return strconv.AppendUint(append(b, "/0x"...), m.mask.lo, 16)
	default:
		return m.appendValue(b)
	}
}

// appendValue prints value/mask by the field's format.
func (m MatchField) appendValue(b []byte) []byte {
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
			return appendPort(b, widenPort(uint16(m.value.lo))) //nolint:gosec // a 16-bit field
		}
		return appendPort(b, uint32(m.value.lo)) //nolint:gosec // a 32-bit field
	case formatCTState:
		return appendFlags(b, m, u64(uint64(ctAll)), ctNames())
	case formatTCPFlags:
		return appendFlags(b, m, info.fullMask(), tcpFlagNames())
	case formatTunFlags:
		return appendFlags(b, m, info.fullMask(), []string{"oam"})
	case formatFrag:
		return append(b, fragName(m)...)
	case formatDecimal:
		b = strconv.AppendUint(b, m.value.lo, 10)
	case formatHex:
		b = m.value.appendHex(b)
	}
	if !m.exact() {
		b = m.mask.appendHex(append(b, '/'))
	}
	return b
}

func appendMAC(b []byte, v u128) []byte {
	for i := 5; i >= 0; i-- {
		b = appendHexPadded(b, v.lo>>(8*i)&0xff, 2)
		if i > 0 {
			b = append(b, ':')
		}
	}
	return b
}

func (m MatchField) appendAddress(b []byte) []byte {
	show := func(v u128) []byte {
		if m.field.Bits() == 32 {
			return v.ip4().AppendTo(b)
		}
		return appendIP(b, v.ip6())
	}
	b = show(m.value)
	if m.exact() {
		return b
	}
	b = append(b, '/')
	if n, ok := m.mask.prefixLen(m.field.Bits()); ok {
		return strconv.AppendInt(b, int64(n), 10)
	}
	return show(m.mask)
}

// appendIP prints an address as inet_ntop(3) does: unlike netip it shows the last four bytes of an IPv4-compatible
// address (RFC 4291, 2.5.5.1) in decimal.
func appendIP(b []byte, a netip.Addr) []byte {
	if a.Is6() {
		v := u128FromAddr(a)
		if v.hi == 0 && v.lo>>32 == 0 && v.lo>>16 != 0 {
			return v.ip4().AppendTo(append(b, "::"...))
		}
	}
	return a.AppendTo(b)
}

func ctNames() []string {
	return []string{"new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"}
}

func tcpFlagNames() []string {
	return []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns", "[200]", "[400]", "[800]"}
}

// appendFlags prints a|b if the mask covers all flags, else +a-b.
func appendFlags(b []byte, m MatchField, all u128, names []string) []byte {
	value, mask := m.value.lo, m.mask.lo
	if mask == all.lo {
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
	switch [2]uint64{m.value.lo, m.mask.lo} {
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

// appendBytesHex prints bytes as ovs-ofctl does userdata and notes: pairs of digits with dots between.
func appendBytesHex(b, data []byte) []byte {
	for i, v := range data {
		if i > 0 {
			b = append(b, '.')
		}
		b = appendHexPadded(b, uint64(v), 2)
	}
	return b
}
