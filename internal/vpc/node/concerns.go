package node

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

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

// translations are what the elements of a gateway's maps translate to.
type translations struct {
	floating map[netip.Addr]string // by the address outside
	ports    map[forwarded]string
	out      map[netip.Addr]string // of floating IPs, by the address inside
	sources  []translated          // of SNAT rules, sorted; the intervals of a map do not overlap
}

// translated is an interval of sources with the address that they get.
type translated struct {
	from netip.Prefix
	to   string
}

// translationsOf reads the elements of a table. It uses no owners, which are comments. Elements that match nothing are omitted.
func translationsOf(items map[nft.Key]nft.Item) *translations {
	t := &translations{floating: map[netip.Addr]string{}, ports: map[forwarded]string{}, out: map[netip.Addr]string{}}
	for _, item := range items {
		e, ok := item.(*nft.Element)
		if !ok || len(e.Match) == 0 {
			continue
		}
		value := strings.Join(e.Value, " ")
		if from, ok := gateway.Source(e); ok {
			if e.Set == gateway.Sources {
				t.sources = append(t.sources, translated{from, value})
			} else {
				t.out[from.Addr()] = value
			}
			continue
		}
		to, err := netip.ParseAddr(e.Match[0])
		switch {
		case err != nil:
		case e.Set == gateway.FloatingIn && len(e.Match) == 1:
			t.floating[to] = value
		case e.Set == gateway.Ports && len(e.Match) == 3:
			if port := forwardedPort(to, e.Match[1], e.Match[2]); port.to.IsValid() {
				t.ports[port] = value
			}
		}
	}
	slices.SortFunc(t.sources, func(a, b translated) int { return a.from.Compare(b.from) })
	return t
}

// equal reports whether two tables translate alike by equal elements.
func (t *translations) equal(other *translations) bool {
	return maps.Equal(t.floating, other.floating) && maps.Equal(t.ports, other.ports) && maps.Equal(t.out, other.out) &&
		slices.Equal(t.sources, other.sources)
}

// source returns the address with which packets from an address leave; empty: none.
func (t *translations) source(from netip.Addr) string {
	if to, floats := t.out[from]; floats {
		return to
	}
	at, _ := slices.BinarySearchFunc(t.sources, from, func(s translated, a netip.Addr) int {
		if s.from.Addr().Compare(a) <= 0 {
			return -1
		}
		return 1
	})
	if at > 0 && t.sources[at-1].from.Contains(from) {
		return t.sources[at-1].to
	}
	return ""
}

// concerns returns a function that reports whether a gateway's table translates a connection otherwise after a change than before; nil: it
// translates all alike. An SNAT rule that splits the interval of another one concerns only the sources that get another address. The function
// costs about the same for one element and for many, because it is called for each connection of the gateway.
func concerns(before, after map[nft.Key]nft.Item) func(conntrack.Connection) bool {
	was, is := translationsOf(before), translationsOf(after)
	if was.equal(is) {
		return nil
	}
	return func(c conntrack.Connection) bool {
		port := forwarded{c.To, c.Protocol, c.Port}
		return was.floating[c.To] != is.floating[c.To] || was.ports[port] != is.ports[port] ||
			c.From != c.Back && was.source(c.From) != is.source(c.From)
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
