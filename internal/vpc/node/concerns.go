package node

import (
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/conntrack"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/vpc/gateway"
)

// forwarded is a port of an outside address.
type forwarded struct {
	to       netip.Addr
	protocol uint8
	port     uint16
}

// concerns returns a function that reports whether one of the elements of a gateway's maps decides, or decided, how a connection is
// translated. It costs about the same for one element and for many, because it is called for each connection of the gateway.
func concerns(elements []*nft.Element) func(conntrack.Connection) bool {
	floating, ports, sources := map[netip.Addr]bool{}, map[forwarded]bool{}, map[netip.Addr]bool{}
	var ranges []netip.Prefix
	for _, e := range elements {
		if prefix, ok := gateway.Source(e); ok {
			if sources[prefix.Addr()] = sources[prefix.Addr()] || prefix.IsSingleIP(); !prefix.IsSingleIP() {
				ranges = append(ranges, prefix)
			}
			continue
		}
		if len(e.Match) == 0 {
			continue
		}
		to, err := netip.ParseAddr(e.Match[0])
		switch {
		case err != nil:
		case e.Set == gateway.FloatingIn && len(e.Match) == 1:
			floating[to] = true
		case e.Set == gateway.Ports && len(e.Match) == 3:
			ports[forwardedPort(to, e.Match[1], e.Match[2])] = true
		}
	}
	return func(c conntrack.Connection) bool {
		if floating[c.To] || ports[forwarded{c.To, c.Protocol, c.Port}] {
			return true
		}
		return c.From != c.Back && (sources[c.From] || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(c.From) }))
	}
}

// forwardedPort returns the port that an element of gateway.Ports matches; if it matches none, one without an address.
func forwardedPort(to netip.Addr, protocol, port string) forwarded {
	number, err := strconv.ParseUint(port, 10, 16)
	protocolNumber, known := map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}[protocol]
	if err != nil || !known {
		return forwarded{}
	}
	return forwarded{to, protocolNumber, uint16(number)}
}
