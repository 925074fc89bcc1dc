package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// FlushTo flushes the connections to the given ports of one protocol (unix.IPPROTO_UDP). A port with an address matches connections to that
// address; with 0.0.0.0 or ::, to any of the namespace's own addresses of that family; without one, to any of them. Connections to addresses
// that are not the namespace's own are never flushed.
func (c *Table) FlushTo(protocol uint8, ports ...netip.AddrPort) error {
	if len(ports) == 0 {
		return nil
	}
	own, err := c.Own()
	for _, family := range familiesOf(ports) {
		if err != nil {
			break
		}
		_, _, err = c.flush(toPorts(family, protocol, ports), func(t *connection) bool {
			return t.protocol == protocol && (own[t.to] || t.to.IsLoopback()) && slices.ContainsFunc(ports, func(port netip.AddrPort) bool {
				return port.Port() == t.port && includes(port.Addr(), t.to)
			})
		})
	}
	if err != nil {
		return fmt.Errorf("conntrack flush of ports %v of protocol %d: %w", ports, protocol, err)
	}
	return nil
}

// familiesOf returns the families in which the ports can have connections.
func familiesOf(ports []netip.AddrPort) []uint8 {
	var families []uint8
	if slices.ContainsFunc(ports, func(p netip.AddrPort) bool { return !p.Addr().Is6() }) {
		families = append(families, unix.AF_INET)
	}
	if slices.ContainsFunc(ports, func(p netip.AddrPort) bool { return !p.Addr().Is4() }) {
		families = append(families, unix.AF_INET6)
	}
	return families
}

// includes reports whether an address is one of those that another one stands for: itself, all of its family, or all.
func includes(of, address netip.Addr) bool {
	return !of.IsValid() || of == address || of.IsUnspecified() && of.Is4() == address.Is4()
}

// FlushTranslatedTo flushes the connections that are translated to one of the addresses, from another destination. All addresses take one walk
// through the table.
func (c *Table) FlushTranslatedTo(addresses ...netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	_, _, err := c.flush(ledTo(addresses), func(t *connection) bool { return t.by != t.to && slices.Contains(addresses, t.by) })
	if err != nil {
		return fmt.Errorf("conntrack flush of connections translated to %v: %w", addresses, err)
	}
	return nil
}

// Constants of connection tracking that the netlink package lacks (nfnetlink_conntrack.h, and nf_internals.h for the flags).
const (
	ctaZone             = 18
	ctaFilter           = 25
	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
	ctFilterIPSrc       = 1 << 0
	ctFilterProtocol    = 1 << 3
	ctFilterDstPort     = 1 << 5
)

// narrow restricts a dump of the table: to a family, 0 for all, and to what the attributes match. With attributes the kernel needs a family.
type narrow struct {
	family     uint8
	attributes []*nl.RtAttr
}

// toPorts restricts a dump of the table to connections to ports; ledTo restricts it to connections that are translated to addresses. The
// kernel compares with one port or address: with several, the dump is not restricted by them. A kernel before 5.8 always returns all
// connections, so the results have to be compared again.
func toPorts(family, protocol uint8, ports []netip.AddrPort) narrow {
	port, flags := ports[0].Port(), uint32(ctFilterProtocol)
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	proto := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{protocol})
	if !slices.ContainsFunc(ports, func(p netip.AddrPort) bool { return p.Port() != port }) {
		flags |= ctFilterDstPort
		proto.AddRtAttr(nl.CTA_PROTO_DST_PORT, nl.BEUint16Attr(port))
	}
	return narrow{family: family, attributes: filtered(tuple, ctaFilterOrigFlags, flags)}
}

func ledTo(addresses []netip.Addr) narrow {
	if len(addresses) > 1 {
		return narrow{}
	}
	if addresses[0].Is6() {
		return narrow{family: unix.AF_INET6} // with an IPv6 address, kernel 6.18 returns the connections that do not match
	}
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_REPLY, nil)
	tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(nl.CTA_IP_V4_SRC, addresses[0].AsSlice())
	return narrow{family: unix.AF_INET, attributes: filtered(tuple, ctaFilterReplyFlags, ctFilterIPSrc)}
}

// filtered returns a tuple with the flags that select the fields to compare.
func filtered(tuple *nl.RtAttr, kind int, flags uint32) []*nl.RtAttr {
	filter := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
	filter.AddRtAttr(kind, nl.Uint32Attr(flags))
	return []*nl.RtAttr{tuple, filter}
}

// connection has what is compared: its protocol, the addresses of its first packet (from, to) and of the answers (by, back), and its zone.
type connection struct {
	protocol uint8
	from, to netip.Addr
	by, back netip.Addr
	port     uint16 // of to
	byPort   uint16 // of by
	zone     uint16
}

// parseConnection reads a message of the kernel. Fields that are missing in it stay empty.
func parseConnection(attributes []byte) connection {
	var c connection
	c.from, c.to = addresses(attributes, nl.CTA_TUPLE_ORIG)
	c.by, c.back = addresses(attributes, nl.CTA_TUPLE_REPLY)
	if protocol := attribute(attributes, nl.CTA_TUPLE_ORIG, nl.CTA_TUPLE_PROTO, nl.CTA_PROTO_NUM); len(protocol) == 1 {
		c.protocol = protocol[0]
	}
	if port := attribute(attributes, nl.CTA_TUPLE_ORIG, nl.CTA_TUPLE_PROTO, nl.CTA_PROTO_DST_PORT); len(port) == 2 {
		c.port = binary.BigEndian.Uint16(port)
	}
	if port := attribute(attributes, nl.CTA_TUPLE_REPLY, nl.CTA_TUPLE_PROTO, nl.CTA_PROTO_SRC_PORT); len(port) == 2 {
		c.byPort = binary.BigEndian.Uint16(port)
	}
	if zone := attribute(attributes, ctaZone); len(zone) == 2 {
		c.zone = binary.BigEndian.Uint16(zone)
	}
	return c
}

// addresses returns the source and the destination of a tuple, IPv4 or IPv6.
func addresses(attributes []byte, tuple uint16) (source, destination netip.Addr) {
	of := attribute(attributes, tuple, nl.CTA_TUPLE_IP)
	either := func(kind4, kind6 uint16) netip.Addr {
		data := attribute(of, kind4)
		if data == nil {
			data = attribute(of, kind6)
		}
		addr, _ := netip.AddrFromSlice(data)
		return addr
	}
	return either(nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC), either(nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST)
}

// attribute returns the payload of the attribute at path, a sequence of nested types; nil if there is none.
func attribute(attributes []byte, path ...uint16) []byte {
	for len(attributes) >= nl.SizeofNfattr {
		size, kind := int(binary.NativeEndian.Uint16(attributes)), binary.NativeEndian.Uint16(attributes[2:])&nl.NLA_TYPE_MASK
		if size < nl.SizeofNfattr || size > len(attributes) {
			return nil
		}
		if kind == path[0] {
			payload := attributes[nl.SizeofNfattr:size]
			if len(path) == 1 {
				return payload
			}
			return attribute(payload, path[1:]...)
		}
		attributes = attributes[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(attributes)):]
	}
	return nil
}

// Connection is a connection of a network namespace, as connection tracking records it.
type Connection struct {
	// Protocol is the IP protocol's number.
	Protocol uint8
	// From and To are the addresses of its first packet, and Port the destination port.
	From, To netip.Addr
	Port     uint16
	// By is the source address of the answers, and Back their destination: they differ from To and From if the connection is translated.
	By, Back netip.Addr
}

// FlushMatching flushes the connections of this network namespace that match.
func FlushMatching(match func(Connection) bool) error {
	tracked, err := New("")
	if err == nil {
		defer tracked.Close()
		_, _, err = tracked.flush(narrow{family: unix.AF_INET}, func(c *connection) bool {
			return match(Connection{Protocol: c.protocol, From: c.from, To: c.to, Port: c.port, By: c.by, Back: c.back})
		})
	}
	if err != nil {
		return fmt.Errorf("conntrack flush: %w", err)
	}
	return nil
}

// FlushSourceNAT flushes the connections of this network namespace whose source is translated to one of the addresses: their next packets
// are handled like new connections, by the current rules.
func FlushSourceNAT(addresses ...netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, translatedTo(addresses))
	if err != nil {
		return fmt.Errorf("conntrack flush of %v: %w", addresses, err)
	}
	return nil
}

// translatedTo matches connections whose answers are sent to one of the addresses.
type translatedTo []netip.Addr
