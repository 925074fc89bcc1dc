package node

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/link/conntrack"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/vpc/gateway"
)

// The connections that changed elements concern are those that a look at each element finds.
func TestConcerns(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		address := func(label string) netip.Addr {
			return netip.AddrFrom4([4]byte{10, 0, 0, rapid.ByteRange(0, 9).Draw(r, label)})
		}
		elements := make([]*nft.Element, 0, 6)
		for range rapid.IntRange(0, 6).Draw(r, "elements") {
			switch at := address("of an element"); rapid.IntRange(0, 5).Draw(r, "map") {
			case 0:
				elements = append(elements, &nft.Element{Set: gateway.FloatingIn, Match: []string{at.String()}})
			case 1:
				elements = append(elements, &nft.Element{Set: gateway.FloatingOut, Match: []string{at.String()}})
			case 2:
				prefix := netip.PrefixFrom(at, rapid.IntRange(28, 31).Draw(r, "bits")).Masked()
				elements = append(elements, &nft.Element{Set: gateway.Sources, Match: []string{prefix.String()}})
			case 3:
				elements = append(elements, &nft.Element{Set: gateway.Ports, Match: []string{
					at.String(), rapid.SampledFrom([]string{"tcp", "udp", "sctp"}).Draw(r, "protocol"), fmt.Sprint(rapid.IntRange(1, 2).Draw(r, "port")),
				}})
			case 4:
				elements = append(elements, &nft.Element{Set: gateway.Sources, Match: []string{at.String()}})
			default: // of no rule, or not readable
				elements = append(elements, &nft.Element{Set: "outside_addresses", Match: []string{at.String()}}, &nft.Element{Set: gateway.FloatingIn}, &nft.Element{Set: gateway.FloatingIn, Match: []string{"?"}})
			}
		}
		c := conntrack.Connection{
			Protocol: rapid.SampledFrom([]uint8{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP}).Draw(r, "connection's protocol"), From: address("from"), To: address("to"),
			Port: uint16(rapid.IntRange(1, 2).Draw(r, "connection's port")), By: address("by"), Back: address("back"),
		}
		want := false
		for _, e := range elements {
			switch {
			case len(e.Match) == 0:
			case e.Set == gateway.FloatingIn:
				want = want || e.Match[0] == c.To.String()
			case e.Set == gateway.Ports:
				protocol := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[c.Protocol]
				want = want || e.Match[0] == c.To.String() && e.Match[1] == protocol && e.Match[2] == fmt.Sprint(c.Port)
			case e.Set == gateway.FloatingOut || e.Set == gateway.Sources:
				prefix, err := netip.ParsePrefix(e.Match[0])
				if err != nil {
					prefix = netip.PrefixFrom(netip.MustParseAddr(e.Match[0]), 32)
				}
				want = want || prefix.Contains(c.From) && c.From != c.Back
			}
		}
		if have := concerns(elements)(c); have != want {
			r.Fatalf("%v concern %+v: %t, want %t", elements, c, have, want)
		}
	})
}
