package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ForgetTo flushes the connections of this network namespace to the given ports of one protocol (unix.IPPROTO_UDP). A port with an address
// matches connections to that address, a port without one matches connections to any of the namespace's own addresses. Connections to
// addresses that are not the namespace's own are never flushed.
func ForgetTo(protocol uint8, ports ...netip.AddrPort) error {
	if len(ports) == 0 {
		return nil
	}
	own, err := ownAddresses()
	if err == nil {
		_, err = forget(toPorts(protocol, ports), func(c *connection) bool {
			return c.protocol == protocol && (own[c.to] || c.to.IsLoopback()) && slices.ContainsFunc(ports, func(port netip.AddrPort) bool {
				return port.Port() == c.port && (!port.Addr().IsValid() || port.Addr() == c.to)
			})
		})
	}
	if err != nil {
		return fmt.Errorf("conntrack flush of ports %v of protocol %d: %w", ports, protocol, err)
	}
	return nil
}

// ForgetLedTo flushes the connections of this network namespace that are translated to one of the addresses, from another destination. All
// addresses take one walk through the table.
func ForgetLedTo(addresses ...netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	_, err := forget(ledTo(addresses), func(c *connection) bool { return c.by != c.to && slices.Contains(addresses, c.by) })
	if err != nil {
		return fmt.Errorf("conntrack flush of connections translated to %v: %w", addresses, err)
	}
	return nil
}

// ownAddresses returns the addresses of all devices of this network namespace.
func ownAddresses() (map[netip.Addr]bool, error) {
	all, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	own := make(map[netip.Addr]bool, len(all))
	for _, address := range all {
		own[toAddr(address.IP)] = true
	}
	return own, err
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

// toPorts restricts a dump of the table to connections to ports; ledTo restricts it to connections that are translated to addresses. The
// kernel compares with one port or address: with several, the dump is not restricted by them. A kernel before 5.8 always returns all
// connections, so the results have to be compared again.
func toPorts(protocol uint8, ports []netip.AddrPort) []*nl.RtAttr {
	port, flags := ports[0].Port(), uint32(ctFilterProtocol)
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, nil)
	proto := tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	proto.AddRtAttr(nl.CTA_PROTO_NUM, []byte{protocol})
	if !slices.ContainsFunc(ports, func(p netip.AddrPort) bool { return p.Port() != port }) {
		flags |= ctFilterDstPort
		proto.AddRtAttr(nl.CTA_PROTO_DST_PORT, nl.BEUint16Attr(port))
	}
	return narrowed(tuple, ctaFilterOrigFlags, flags)
}

func ledTo(addresses []netip.Addr) []*nl.RtAttr {
	if len(addresses) > 1 {
		return nil
	}
	tuple := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_REPLY, nil)
	tuple.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(nl.CTA_IP_V4_SRC, addresses[0].AsSlice())
	return narrowed(tuple, ctaFilterReplyFlags, ctFilterIPSrc)
}

// narrowed returns a tuple with the flags that select the fields to compare.
func narrowed(tuple *nl.RtAttr, kind int, flags uint32) []*nl.RtAttr {
	filter := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
	filter.AddRtAttr(kind, nl.Uint32Attr(flags))
	return []*nl.RtAttr{tuple, filter}
}

// forget flushes the connections that matches selects from a dump restricted by narrow. It leaves connections in zones alone, which belong
// to the switch. It returns how many connections the dump had.
func forget(narrow []*nl.RtAttr, matches func(c *connection) bool) (dumped int, err error) {
	found, err := dump(func() ([][]byte, error) {
		var found [][]byte
		dumped = 0
		request := conntrackRequest(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
		for _, attribute := range narrow {
			request.AddData(attribute)
		}
		err := request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
			dumped++
			attributes := message[min(nl.SizeofNfgenmsg, len(message)):]
			if c := parseConnection(attributes); c.zone == 0 && matches(&c) {
				found = append(found, attributes)
			}
			return true
		})
		return found, err
	})
	errs := []error{err}
	for _, attributes := range found {
		request := conntrackRequest(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		request.AddRawData(attributes)
		if _, err := request.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: it has ended
			errs = append(errs, err)
		}
	}
	return dumped, errors.Join(errs...)
}

func conntrackRequest(operation, flags int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|operation, flags)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	return request
}

// connection has what is compared: its protocol, the addresses of its first packet (from, to) and of the answers (by, back), and its zone.
type connection struct {
	protocol uint8
	from, to netip.Addr
	by, back netip.Addr
	port     uint16 // of to
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
