package oxm

import (
	"fmt"
)

// buildFields lays out the registry. Numbers are those of ovs-fields(7); ranks are the order in which
// ovs-ofctl prints a match.
func buildFields() [fieldCount]fieldInfo {
	var t [fieldCount]fieldInfo
	t[fieldNone] = fieldInfo{name: "<unknown>", symbol: "<unknown>"}
	metadataFields(&t)
	linkFields(&t)
	networkFields(&t)
	transportFields(&t)
	conntrackFields(&t)
	registerFields(&t)
	return t
}

func metadataFields(t *[fieldCount]fieldInfo) {
	t[FieldPktMark] = fieldInfo{name: "pkt_mark", symbol: "NXM_NX_PKT_MARK", oxm: nxm1(33), nxm: nxm1(33), bits: 32, bytes: 4, maskable: true, rank: 1}
	t[FieldConjID] = fieldInfo{name: "conj_id", symbol: "NXM_NX_CONJ_ID", oxm: nxm1(37), nxm: nxm1(37), bits: 32, bytes: 4, format: formatDecimal, rank: 3}
	t[FieldTunID] = fieldInfo{name: "tun_id", symbol: "NXM_NX_TUN_ID", oxm: basic(38), nxm: nxm1(16), bits: 64, bytes: 8, maskable: true, rank: 50}
	t[FieldTunSrc] = fieldInfo{name: "tun_src", symbol: "NXM_NX_TUN_IPV4_SRC", oxm: nxm1(31), nxm: nxm1(31), bits: 32, bytes: 4, format: formatIPv4, maskable: true, rank: 51}
	t[FieldTunDst] = fieldInfo{name: "tun_dst", symbol: "NXM_NX_TUN_IPV4_DST", oxm: nxm1(32), nxm: nxm1(32), bits: 32, bytes: 4, format: formatIPv4, maskable: true, rank: 52}
	t[FieldTunIPv6Src] = fieldInfo{name: "tun_ipv6_src", symbol: "NXM_NX_TUN_IPV6_SRC", oxm: nxm1(109), nxm: nxm1(109), bits: 128, bytes: 16, format: formatIPv6, maskable: true, rank: 53}
	t[FieldTunIPv6Dst] = fieldInfo{name: "tun_ipv6_dst", symbol: "NXM_NX_TUN_IPV6_DST", oxm: nxm1(110), nxm: nxm1(110), bits: 128, bytes: 16, format: formatIPv6, maskable: true, rank: 54}
	t[FieldTunFlags] = fieldInfo{name: "tun_flags", symbol: "NXM_NX_TUN_FLAGS", oxm: nxm1(104), nxm: nxm1(104), bits: 1, bytes: 2, format: formatTunFlags, maskable: true, rank: 55}
	t[FieldMetadata] = fieldInfo{name: "metadata", symbol: "OXM_OF_METADATA", oxm: basic(2), nxm: basic(2), bits: 64, bytes: 8, maskable: true, rank: 56}
	t[FieldInPort] = fieldInfo{name: "in_port_oxm", matchName: "in_port", symbol: "OXM_OF_IN_PORT", oxm: basic(0), nxm: basic(0), bits: 32, bytes: 4, format: formatPort, rank: 57}
	t[FieldInPort16] = fieldInfo{name: "in_port", symbol: "NXM_OF_IN_PORT", oxm: nxm0(0), nxm: nxm0(0), bits: 16, bytes: 2, format: formatPort, rank: 57}
}

func linkFields(t *[fieldCount]fieldInfo) {
	t[FieldVLANTCI] = fieldInfo{name: "vlan_tci", symbol: "NXM_OF_VLAN_TCI", oxm: nxm0(4), nxm: nxm0(4), bits: 16, bytes: 2, maskable: true, rank: 58}
	t[FieldVLANVID] = fieldInfo{name: "vlan_vid", symbol: "OXM_OF_VLAN_VID", oxm: basic(6), nxm: basic(6), bits: 13, bytes: 2, format: formatDecimal, maskable: true, rank: 58}
	t[FieldVLANPCP] = fieldInfo{name: "vlan_pcp", symbol: "OXM_OF_VLAN_PCP", oxm: basic(7), nxm: basic(7), bits: 3, bytes: 1, format: formatDecimal, rank: 59}
	t[FieldEthSrc] = fieldInfo{name: "eth_src", matchName: "dl_src", symbol: "NXM_OF_ETH_SRC", oxm: basic(4), nxm: nxm0(2), bits: 48, bytes: 6, format: formatEthernet, maskable: true, rank: 60}
	t[FieldEthDst] = fieldInfo{name: "eth_dst", matchName: "dl_dst", symbol: "NXM_OF_ETH_DST", oxm: basic(3), nxm: nxm0(1), bits: 48, bytes: 6, format: formatEthernet, maskable: true, rank: 61}
	t[FieldEthType] = fieldInfo{name: "eth_type", matchName: "dl_type", symbol: "NXM_OF_ETH_TYPE", oxm: basic(5), nxm: nxm0(3), bits: 16, bytes: 2, rank: 62}
	mpls := needEth(EthTypeMPLS)
	t[FieldMPLSLabel] = fieldInfo{name: "mpls_label", symbol: "OXM_OF_MPLS_LABEL", oxm: basic(34), nxm: basic(34), bits: 20, bytes: 4, format: formatDecimal, rank: 80, needs: mpls}
	t[FieldMPLSTC] = fieldInfo{name: "mpls_tc", symbol: "OXM_OF_MPLS_TC", oxm: basic(35), nxm: basic(35), bits: 3, bytes: 1, format: formatDecimal, rank: 81, needs: mpls}
	t[FieldMPLSTTL] = fieldInfo{name: "mpls_ttl", symbol: "NXM_NX_MPLS_TTL", oxm: nxm1(30), nxm: nxm1(30), bits: 8, bytes: 1, format: formatDecimal, rank: 82, needs: mpls}
	t[FieldMPLSBOS] = fieldInfo{name: "mpls_bos", symbol: "OXM_OF_MPLS_BOS", oxm: basic(36), nxm: basic(36), bits: 1, bytes: 1, format: formatDecimal, rank: 83, needs: mpls}
}

func networkFields(t *[fieldCount]fieldInfo) {
	ip4, ip6, ip, arp := needEth(EthTypeIPv4), needEth(EthTypeIPv6), needAnyIP(), needEth(EthTypeARP, EthTypeRARP)
	t[FieldIPv4Src] = fieldInfo{name: "ip_src", matchName: "nw_src", symbol: "NXM_OF_IP_SRC", oxm: basic(11), nxm: nxm0(7), bits: 32, bytes: 4, format: formatIPv4, maskable: true, rank: 63, needs: ip4}
	t[FieldIPv4Dst] = fieldInfo{name: "ip_dst", matchName: "nw_dst", symbol: "NXM_OF_IP_DST", oxm: basic(12), nxm: nxm0(8), bits: 32, bytes: 4, format: formatIPv4, maskable: true, rank: 64, needs: ip4}
	t[FieldIPv6Src] = fieldInfo{name: "ipv6_src", symbol: "NXM_NX_IPV6_SRC", oxm: basic(26), nxm: nxm1(19), bits: 128, bytes: 16, format: formatIPv6, maskable: true, rank: 63, needs: ip6}
	t[FieldIPv6Dst] = fieldInfo{name: "ipv6_dst", symbol: "NXM_NX_IPV6_DST", oxm: basic(27), nxm: nxm1(20), bits: 128, bytes: 16, format: formatIPv6, maskable: true, rank: 64, needs: ip6}
	t[FieldIPv6Label] = fieldInfo{name: "ipv6_label", symbol: "NXM_NX_IPV6_LABEL", oxm: basic(28), nxm: nxm1(27), bits: 20, bytes: 4, maskable: true, rank: 65, needs: ip6}
	t[FieldARPSPA] = fieldInfo{name: "arp_spa", symbol: "NXM_OF_ARP_SPA", oxm: basic(22), nxm: nxm0(16), bits: 32, bytes: 4, format: formatIPv4, maskable: true, rank: 63, needs: arp}
	t[FieldARPTPA] = fieldInfo{name: "arp_tpa", symbol: "NXM_OF_ARP_TPA", oxm: basic(23), nxm: nxm0(17), bits: 32, bytes: 4, format: formatIPv4, maskable: true, rank: 64, needs: arp}
	t[FieldARPOp] = fieldInfo{name: "arp_op", symbol: "NXM_OF_ARP_OP", oxm: basic(21), nxm: nxm0(15), bits: 16, bytes: 2, format: formatDecimal, rank: 70, needs: arp}
	t[FieldARPSHA] = fieldInfo{name: "arp_sha", symbol: "NXM_NX_ARP_SHA", oxm: basic(24), nxm: nxm1(17), bits: 48, bytes: 6, format: formatEthernet, maskable: true, rank: 71, needs: arp}
	t[FieldARPTHA] = fieldInfo{name: "arp_tha", symbol: "NXM_NX_ARP_THA", oxm: basic(25), nxm: nxm1(18), bits: 48, bytes: 6, format: formatEthernet, maskable: true, rank: 72, needs: arp}
	t[FieldIPProto] = fieldInfo{name: "nw_proto", symbol: "NXM_OF_IP_PROTO", oxm: basic(10), nxm: nxm0(6), bits: 8, bytes: 1, format: formatDecimal, rank: 70, needs: ip}
	t[FieldIPTOS] = fieldInfo{name: "nw_tos", symbol: "NXM_OF_IP_TOS", oxm: nxm0(5), nxm: nxm0(5), bits: 8, bytes: 1, format: formatDecimal, rank: 73, needs: ip}
	t[FieldIPDSCP] = fieldInfo{name: "ip_dscp", matchName: "nw_tos", symbol: "OXM_OF_IP_DSCP", oxm: basic(8), nxm: basic(8), bits: 6, bytes: 1, format: formatDecimal, rank: 73, needs: ip}
	t[FieldIPECN] = fieldInfo{name: "nw_ecn", symbol: "NXM_NX_IP_ECN", oxm: basic(9), nxm: nxm1(28), bits: 2, bytes: 1, format: formatDecimal, rank: 74, needs: ip}
	t[FieldIPTTL] = fieldInfo{name: "nw_ttl", symbol: "NXM_NX_IP_TTL", oxm: nxm1(29), nxm: nxm1(29), bits: 8, bytes: 1, format: formatDecimal, rank: 75, needs: ip}
	t[FieldIPFrag] = fieldInfo{name: "ip_frag", matchName: "nw_frag", symbol: "NXM_NX_IP_FRAG", oxm: nxm1(26), nxm: nxm1(26), bits: 2, bytes: 1, format: formatFrag, maskable: true, rank: 85, needs: ip}
}

func transportFields(t *[fieldCount]fieldInfo) {
	tcp, udp, sctp := needProto(ProtoTCP), needProto(ProtoUDP), needProto(ProtoSCTP)
	icmp := append(needEth(EthTypeIPv4), requirement{FieldIPProto, []uint64{ProtoICMP}, true})
	port := fieldInfo{bits: 16, bytes: 2, format: formatDecimal, maskable: true}
	transport := func(name, matchName, symbol string, ids [2]oxmID, rank uint8, needs []requirement) fieldInfo {
		f := port
		f.name, f.matchName, f.symbol, f.oxm, f.nxm, f.rank, f.needs = name, matchName, symbol, ids[0], ids[1], rank, needs
		return f
	}
	t[FieldTCPSrc] = transport("tcp_src", "tp_src", "NXM_OF_TCP_SRC", [2]oxmID{basic(13), nxm0(9)}, 90, tcp)
	t[FieldTCPDst] = transport("tcp_dst", "tp_dst", "NXM_OF_TCP_DST", [2]oxmID{basic(14), nxm0(10)}, 91, tcp)
	t[FieldTCPFlags] = fieldInfo{name: "tcp_flags", symbol: "NXM_NX_TCP_FLAGS", oxm: basic(42), nxm: nxm1(34), bits: 12, bytes: 2, format: formatTCPFlags, maskable: true, rank: 95, needs: tcp}
	t[FieldUDPSrc] = transport("udp_src", "tp_src", "NXM_OF_UDP_SRC", [2]oxmID{basic(15), nxm0(11)}, 90, udp)
	t[FieldUDPDst] = transport("udp_dst", "tp_dst", "NXM_OF_UDP_DST", [2]oxmID{basic(16), nxm0(12)}, 91, udp)
	t[FieldSCTPSrc] = transport("sctp_src", "tp_src", "OXM_OF_SCTP_SRC", [2]oxmID{basic(17), basic(17)}, 90, sctp)
	t[FieldSCTPDst] = transport("sctp_dst", "tp_dst", "OXM_OF_SCTP_DST", [2]oxmID{basic(18), basic(18)}, 91, sctp)
	t[FieldICMPType] = fieldInfo{name: "icmp_type", symbol: "NXM_OF_ICMP_TYPE", oxm: basic(19), nxm: nxm0(13), bits: 8, bytes: 1, format: formatDecimal, rank: 90, needs: icmp}
	t[FieldICMPCode] = fieldInfo{name: "icmp_code", symbol: "NXM_OF_ICMP_CODE", oxm: basic(20), nxm: nxm0(14), bits: 8, bytes: 1, format: formatDecimal, rank: 91, needs: icmp}
	t[FieldICMPv6Type] = fieldInfo{name: "icmpv6_type", matchName: "icmp_type", symbol: "NXM_NX_ICMPV6_TYPE", oxm: basic(29), nxm: nxm1(21), bits: 8, bytes: 1, format: formatDecimal, rank: 90, needs: needICMPv6()}
	t[FieldICMPv6Code] = fieldInfo{name: "icmpv6_code", matchName: "icmp_code", symbol: "NXM_NX_ICMPV6_CODE", oxm: basic(30), nxm: nxm1(22), bits: 8, bytes: 1, format: formatDecimal, rank: 91, needs: needICMPv6()}
	t[FieldNDTarget] = fieldInfo{name: "nd_target", symbol: "NXM_NX_ND_TARGET", oxm: basic(31), nxm: nxm1(23), bits: 128, bytes: 16, format: formatIPv6, maskable: true, rank: 92, needs: needICMPv6(NDSolicit, NDAdvert)}
	t[FieldNDSLL] = fieldInfo{name: "nd_sll", symbol: "NXM_NX_ND_SLL", oxm: basic(32), nxm: nxm1(24), bits: 48, bytes: 6, format: formatEthernet, maskable: true, rank: 93, needs: needICMPv6(NDSolicit)}
	t[FieldNDTLL] = fieldInfo{name: "nd_tll", symbol: "NXM_NX_ND_TLL", oxm: basic(33), nxm: nxm1(25), bits: 48, bytes: 6, format: formatEthernet, maskable: true, rank: 94, needs: needICMPv6(NDAdvert)}
}

func conntrackFields(t *[fieldCount]fieldInfo) {
	row := func(name, symbol string, num uint8, bits uint16, format fieldFormat, rank uint8) fieldInfo {
		id := nxm1(num)
		return fieldInfo{name: name, symbol: symbol, oxm: id, nxm: id, bits: bits, bytes: int(bits) / 8, format: format, maskable: true, rank: rank}
	}
	t[FieldCTState] = row("ct_state", "NXM_NX_CT_STATE", 105, 32, formatCTState, 5)
	t[FieldCTZone] = row("ct_zone", "NXM_NX_CT_ZONE", 106, 16, formatHex, 6)
	t[FieldCTZone].maskable = false
	t[FieldCTMark] = row("ct_mark", "NXM_NX_CT_MARK", 107, 32, formatHex, 7)
	t[FieldCTLabel] = row("ct_label", "NXM_NX_CT_LABEL", 108, 128, formatHex, 8)
	t[FieldCTNwSrc] = row("ct_nw_src", "NXM_NX_CT_NW_SRC", 120, 32, formatIPv4, 9)
	t[FieldCTIPv6Src] = row("ct_ipv6_src", "NXM_NX_CT_IPV6_SRC", 122, 128, formatIPv6, 10)
	t[FieldCTNwDst] = row("ct_nw_dst", "NXM_NX_CT_NW_DST", 121, 32, formatIPv4, 11)
	t[FieldCTIPv6Dst] = row("ct_ipv6_dst", "NXM_NX_CT_IPV6_DST", 123, 128, formatIPv6, 12)
	t[FieldCTNwProto] = row("ct_nw_proto", "NXM_NX_CT_NW_PROTO", 119, 8, formatDecimal, 13)
	t[FieldCTNwProto].maskable = false
	t[FieldCTTpSrc] = row("ct_tp_src", "NXM_NX_CT_TP_SRC", 124, 16, formatDecimal, 14)
	t[FieldCTTpDst] = row("ct_tp_dst", "NXM_NX_CT_TP_DST", 125, 16, formatDecimal, 15)
}

func registerFields(t *[fieldCount]fieldInfo) {
	for n := range uint8(16) {
		t[FieldReg0+Field(n)] = fieldInfo{name: fmt.Sprintf("reg%d", n), symbol: fmt.Sprintf("NXM_NX_REG%d", n), oxm: nxm1(n), nxm: nxm1(n), bits: 32, bytes: 4, maskable: true, rank: 30 + n}
	}
	for n := range uint8(8) {
		id := oxmID{classPacketRegs, n}
		t[FieldXReg0+Field(n)] = fieldInfo{name: fmt.Sprintf("xreg%d", n), symbol: fmt.Sprintf("OXM_OF_PKT_REG%d", n), oxm: id, nxm: id, bits: 64, bytes: 8, maskable: true, rank: 30}
	}
	for n := range uint8(4) {
		id := nxm1(111 + n)
		t[FieldXXReg0+Field(n)] = fieldInfo{name: fmt.Sprintf("xxreg%d", n), symbol: fmt.Sprintf("NXM_NX_XXREG%d", n), oxm: id, nxm: id, bits: 128, bytes: 16, maskable: true, rank: 30}
	}
}
