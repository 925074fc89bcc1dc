package nftnl

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Field is a field of a packet that a match compares.
type Field uint8

// The fields, in the words of nft(8). An address field matches only packets of its family, an ARP field only ARP. A port is read from any
// transport header, so a rule or set also needs L4Proto.
const (
	IPSource Field = iota + 1
	IPDestination
	IP6Source
	IP6Destination
	L4Proto
	SourcePort
	DestinationPort
	InDevice
	OutDevice
	Mark
	ConntrackState
	EtherSource
	EtherDestination
	EtherType
	ARPSender
	ARPSenderMAC
	// TCPFlags and ICMPType are the flags and the type in a header of TCP and of ICMP: a rule needs L4Proto before them.
	TCPFlags
	ICMPType
	// InGroup is the group of the incoming device; in family bridge, of the port.
	InGroup
	// IP6HopLimit is the hop limit of an IPv6 header: 255 means that no router has forwarded the packet.
	IP6HopLimit
	// NDTarget is the target of an IPv6 neighbour solicitation or advertisement (RFC 4861): a rule needs L4Proto and ICMPType before it.
	NDTarget
	// IPNetwork is the first byte of an IPv4 packet's destination: a comparison with it costs less than one with a prefix of 8 bits.
	IPNetwork
	// ConntrackDirection is the direction of a packet within its connection. A packet that conntrack does not track has none.
	ConntrackDirection
)

// SYN is the bit of TCPFlags in packets that open a connection.
const SYN = 1 << 1

// Bits of ConntrackState (nf_conntrack_common.h, NF_CT_STATE_BIT).
const (
	StateInvalid     = 1 << 0
	StateEstablished = 1 << 1
	StateRelated     = 1 << 2
	StateNew         = 1 << 3
)

// Values of ConntrackDirection (enum ip_conntrack_dir of nf_conntrack_tuple_common.h).
const (
	DirectionOriginal = 0
	DirectionReply    = 1
)

// Ethernet types that a field implies, and their nfproto numbers.
const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherARP  = 0x0806
	nfIPv4    = 2
	nfIPv6    = 10
)

// fieldInfo describes a field: its name, size, type in a set, and how it is loaded.
type fieldInfo struct {
	name     string
	size     int
	datatype nftables.SetDatatype
	// ether is the ethernet type that the field implies, 0 if none.
	ether uint16
	// load returns the expression that loads the field into a register.
	load func(register uint32) expr.Any
	// native reports that the kernel has the value in the host's byte order.
	native bool
}

func payload(base expr.PayloadBase, offset, length uint32) func(uint32) expr.Any {
	return func(register uint32) expr.Any {
		return &expr.Payload{OperationType: expr.PayloadLoad, DestRegister: register, Base: base, Offset: offset, Len: length}
	}
}

func meta(key expr.MetaKey) func(uint32) expr.Any {
	return func(register uint32) expr.Any { return &expr.Meta{Key: key, Register: register} }
}

// info returns the description of a field. Offsets are those of RFC 791, RFC 8200, RFC 826 and RFC 9293.
func (f Field) info() fieldInfo {
	switch f {
	case IPSource:
		return fieldInfo{"ip saddr", 4, nftables.TypeIPAddr, etherIPv4, payload(expr.PayloadBaseNetworkHeader, 12, 4), false}
	case IPDestination:
		return fieldInfo{"ip daddr", 4, nftables.TypeIPAddr, etherIPv4, payload(expr.PayloadBaseNetworkHeader, 16, 4), false}
	case IPNetwork:
		return fieldInfo{"@nh,128,8", 1, nftables.TypeInetProto, etherIPv4, payload(expr.PayloadBaseNetworkHeader, 16, 1), false}
	case IP6Source:
		return fieldInfo{"ip6 saddr", 16, nftables.TypeIP6Addr, etherIPv6, payload(expr.PayloadBaseNetworkHeader, 8, 16), false}
	case IP6Destination:
		return fieldInfo{"ip6 daddr", 16, nftables.TypeIP6Addr, etherIPv6, payload(expr.PayloadBaseNetworkHeader, 24, 16), false}
	case L4Proto:
		return fieldInfo{"meta l4proto", 1, nftables.TypeInetProto, 0, meta(expr.MetaKeyL4PROTO), false}
	case SourcePort:
		return fieldInfo{"th sport", 2, nftables.TypeInetService, 0, payload(expr.PayloadBaseTransportHeader, 0, 2), false}
	case DestinationPort:
		return fieldInfo{"th dport", 2, nftables.TypeInetService, 0, payload(expr.PayloadBaseTransportHeader, 2, 2), false}
	case InDevice:
		return fieldInfo{"iifname", 16, nftables.TypeIFName, 0, meta(expr.MetaKeyIIFNAME), true}
	case OutDevice:
		return fieldInfo{"oifname", 16, nftables.TypeIFName, 0, meta(expr.MetaKeyOIFNAME), true}
	case Mark:
		return fieldInfo{"meta mark", 4, nftables.TypeMark, 0, meta(expr.MetaKeyMARK), true}
	case ConntrackState:
		load := func(register uint32) expr.Any { return &expr.Ct{Key: expr.CtKeySTATE, Register: register} }
		return fieldInfo{"ct state", 4, nftables.TypeCTState, 0, load, true}
	case ConntrackDirection:
		load := func(register uint32) expr.Any { return &expr.Ct{Key: expr.CtKeyDIRECTION, Register: register} }
		return fieldInfo{"ct direction", 1, nftables.TypeCTDir, 0, load, false}
	case EtherSource:
		return fieldInfo{"ether saddr", 6, nftables.TypeEtherAddr, 0, payload(expr.PayloadBaseLLHeader, 6, 6), false}
	case EtherDestination:
		return fieldInfo{"ether daddr", 6, nftables.TypeEtherAddr, 0, payload(expr.PayloadBaseLLHeader, 0, 6), false}
	case EtherType:
		return fieldInfo{"meta protocol", 2, nftables.TypeEtherType, 0, meta(expr.MetaKeyPROTOCOL), false}
	case ARPSender:
		return fieldInfo{"arp saddr ip", 4, nftables.TypeIPAddr, etherARP, payload(expr.PayloadBaseNetworkHeader, 14, 4), false}
	case ARPSenderMAC:
		return fieldInfo{"arp saddr ether", 6, nftables.TypeEtherAddr, etherARP, payload(expr.PayloadBaseNetworkHeader, 8, 6), false}
	case TCPFlags:
		return fieldInfo{"tcp flags", 1, nftables.TypeTCPFlag, 0, payload(expr.PayloadBaseTransportHeader, 13, 1), false}
	case ICMPType:
		return fieldInfo{"icmp type", 1, nftables.TypeICMPType, 0, payload(expr.PayloadBaseTransportHeader, 0, 1), false}
	case IP6HopLimit:
		return fieldInfo{"ip6 hoplimit", 1, nftables.TypeInetProto, etherIPv6, payload(expr.PayloadBaseNetworkHeader, 7, 1), false}
	case NDTarget:
		return fieldInfo{"nd target", 16, nftables.TypeIP6Addr, etherIPv6, payload(expr.PayloadBaseTransportHeader, 8, 16), false}
	case InGroup:
		return fieldInfo{"iifgroup", 4, nftables.TypeDevGroup, 0, meta(expr.MetaKeyIIFGROUP), true}
	default:
		return fieldInfo{}
	}
}

// String returns the field in the words of nft(8).
func (f Field) String() string {
	if name := f.info().name; name != "" {
		return name
	}
	return fmt.Sprintf("field(%d)", uint8(f))
}

// ranges reports whether intervals of the field follow the order of its bytes.
func (f Field) ranges() bool { return f.info().size > 0 && !f.info().native }

// Value is a value, or an interval of values, of a field. It is comparable.
type Value struct {
	// From and To are the first and the last value, as the kernel's bytes. They are equal for a single value.
	From, To string
}

func single(data []byte) Value { return Value{From: string(data), To: string(data)} }

// Addr is an IPv4 or IPv6 address.
func Addr(address netip.Addr) Value { return single(address.Unmap().AsSlice()) }

// Prefix is the interval of all addresses of a prefix.
func Prefix(prefix netip.Prefix) Value {
	from := prefix.Masked().Addr().AsSlice()
	to := append([]byte(nil), from...)
	for bit := prefix.Bits(); bit < 8*len(to); bit++ {
		to[bit/8] |= 0x80 >> (bit % 8)
	}
	return Value{From: string(from), To: string(to)}
}

// AddrRange is the interval of addresses from one to another.
func AddrRange(from, to netip.Addr) Value { return Value{From: Addr(from).From, To: Addr(to).From} }

// Proto is the number of a transport protocol.
func Proto(number uint8) Value { return single([]byte{number}) }

// Port is a port, or the number of an ethernet type.
func Port(number uint16) Value { return single(binary.BigEndian.AppendUint16(nil, number)) }

// PortRange is the interval of ports from one to another.
func PortRange(from, to uint16) Value { return Value{From: Port(from).From, To: Port(to).From} }

// Name is the name of a device.
func Name(device string) Value {
	data := make([]byte, 16)
	copy(data, device)
	return single(data)
}

// Byte is the value of TCPFlags, ICMPType, IP6HopLimit, IPNetwork or ConntrackDirection.
func Byte(number uint8) Value { return single([]byte{number}) }

// Bits is a packet mark, a conntrack state or a device group.
func Bits(value uint32) Value { return single(binary.NativeEndian.AppendUint32(nil, value)) }

// MAC is an ethernet address.
func MAC(address net.HardwareAddr) Value { return single(address) }

// contains reports whether a single value is in the interval.
func (v Value) contains(one string) bool {
	return v.From <= one && one <= v.To && len(v.From) == len(one)
}

// text returns the value in the words of nft(8).
func (f Field) text(v Value) string {
	if v.From != v.To {
		return f.textOf(v.From) + "-" + f.textOf(v.To)
	}
	return f.textOf(v.From)
}

func (f Field) textOf(data string) string {
	if len(data) != f.info().size {
		return fmt.Sprintf("%x", data)
	}
	switch f {
	case IPSource, IPDestination, IP6Source, IP6Destination, ARPSender, NDTarget:
		address, _ := netip.AddrFromSlice([]byte(data))
		return address.String()
	case L4Proto, ICMPType, TCPFlags, IP6HopLimit, IPNetwork, ConntrackDirection:
		return strconv.Itoa(int(data[0]))
	case SourcePort, DestinationPort:
		return strconv.Itoa(int(binary.BigEndian.Uint16([]byte(data))))
	case InDevice, OutDevice:
		return strings.TrimRight(data, "\x00")
	case Mark, ConntrackState, InGroup:
		return fmt.Sprintf("%#x", binary.NativeEndian.Uint32([]byte(data)))
	case EtherSource, EtherDestination, ARPSenderMAC:
		return net.HardwareAddr(data).String()
	default:
		return fmt.Sprintf("%#x", data)
	}
}
