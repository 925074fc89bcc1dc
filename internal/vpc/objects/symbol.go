package objects

// kind is the kind of constant that a symbol of OVN's language is compared with.
type kind int

const (
	predicate kind = iota // compared with nothing
	number
	ip4Address
	ip6Address
	macAddress
	portName
)

// symbol is a field or a predicate of OVN's language, as OVN's lib/logical-fields.c defines it.
type symbol struct {
	kind kind
	bits int
	// nominal: the field is tested for equality only, because OpenFlow matches it without a mask; of a predicate, that it stands for such
	// a test. The other symbols can be negated; those that are numbers have an order.
	nominal bool
	// prerequisite is the predicate that OVN adds to a comparison; empty: none.
	prerequisite string
}

// ordered reports whether the operator compares by order.
func (symbol) ordered(operator string) bool {
	return operator == "<" || operator == "<=" || operator == ">" || operator == ">="
}

// inverse returns the operator under a !.
func inverse(operator string) string {
	switch operator {
	case "==":
		return "!="
	case "!=":
		return "=="
	case "<":
		return ">="
	case "<=":
		return ">"
	case ">":
		return "<="
	default:
		return "<"
	}
}

// symbolOf returns what a name means in OVN's language, of the names that matches may use.
func symbolOf(name string) (symbol, bool) {
	switch name {
	case "ip", "ip4", "ip6", "icmp", "icmp4", "icmp6", "tcp", "udp", "sctp", "arp", "nd", "nd_ns", "nd_na", "igmp":
		return symbol{kind: predicate, nominal: true}, true
	case "eth.bcast", "eth.mcast", "ip4.mcast", "ip6.mcast", "ip.is_frag", "ip.later_frag", "ip.first_frag", "vlan.present",
		"ct.trk", "ct.new", "ct.est", "ct.rel", "ct.rpl", "ct.inv":
		return symbol{kind: predicate}, true
	case "inport", "outport":
		return symbol{kind: portName, nominal: true}, true
	case "eth.src", "eth.dst":
		return symbol{kind: macAddress, bits: 48}, true
	case "eth.type":
		return symbol{kind: number, bits: 16, nominal: true}, true
	case "vlan.vid":
		return symbol{kind: number, bits: 12, prerequisite: "vlan.present"}, true
	case "vlan.pcp":
		return symbol{kind: number, bits: 3, prerequisite: "vlan.present"}, true
	case "ip4.src", "ip4.dst":
		return symbol{kind: ip4Address, bits: 32, prerequisite: "ip4"}, true
	case "ip6.src", "ip6.dst":
		return symbol{kind: ip6Address, bits: 128, prerequisite: "ip6"}, true
	case "ip.proto", "ip.ttl":
		return symbol{kind: number, bits: 8, nominal: true, prerequisite: "ip"}, true
	case "ip.dscp":
		return symbol{kind: number, bits: 6, nominal: true, prerequisite: "ip"}, true
	case "ip.ecn":
		return symbol{kind: number, bits: 2, nominal: true, prerequisite: "ip"}, true
	case "arp.op":
		return symbol{kind: number, bits: 16, nominal: true, prerequisite: "arp"}, true
	case "arp.spa", "arp.tpa":
		return symbol{kind: ip4Address, bits: 32, prerequisite: "arp"}, true
	case "arp.sha", "arp.tha":
		return symbol{kind: macAddress, bits: 48, prerequisite: "arp"}, true
	}
	return transportSymbol(name)
}

// transportSymbol is symbolOf for fields of ICMP, neighbour discovery, TCP, UDP and SCTP.
func transportSymbol(name string) (symbol, bool) {
	switch name {
	case "icmp4.type", "icmp4.code":
		return symbol{kind: number, bits: 8, nominal: true, prerequisite: "icmp4"}, true
	case "icmp6.type", "icmp6.code":
		return symbol{kind: number, bits: 8, nominal: true, prerequisite: "icmp6"}, true
	case "nd.target":
		return symbol{kind: ip6Address, bits: 128, prerequisite: "nd"}, true
	case "nd.sll":
		return symbol{kind: macAddress, bits: 48, prerequisite: "nd_ns"}, true
	case "nd.tll":
		return symbol{kind: macAddress, bits: 48, prerequisite: "nd_na"}, true
	case "tcp.src", "tcp.dst":
		return symbol{kind: number, bits: 16, prerequisite: "tcp"}, true
	case "tcp.flags":
		return symbol{kind: number, bits: 12, prerequisite: "tcp"}, true
	case "udp.src", "udp.dst":
		return symbol{kind: number, bits: 16, prerequisite: "udp"}, true
	case "sctp.src", "sctp.dst":
		return symbol{kind: number, bits: 16, prerequisite: "sctp"}, true
	}
	return symbol{}, false
}
