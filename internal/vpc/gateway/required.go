package gateway

import (
	"net/netip"

	"weft.dev/weft/internal/nft"
)

// Required returns a function that reports whether the rules of the input require an element of the table's maps: its rule exists and has this
// translation. Only EIPs and rules of the input are used, so that Required also works for a gateway whose complete state cannot be compiled.
//
// The parts into which an SNAT rule is split depend on the other rules (sources). A part is required while it is within its rule's prefix.
func Required(in *Input) func(*nft.Element) bool {
	c := newCompiler(in)
	c.translations()
	type source struct {
		prefix  netip.Prefix
		address string
	}
	sources := map[source]bool{}
	for _, snat := range in.SNATs {
		if addr, there := c.addresses[snat.EIP]; there {
			sources[source{snat.Prefix, addr.String()}] = true
		}
	}
	return func(e *nft.Element) bool {
		switch e.Set {
		case FloatingIn, FloatingOut, Ports:
			item, there := c.result.State.Items[e.Key()]
			return there && item.Equal(e)
		case Sources:
			piece, ok := Source(e)
			if !ok || len(e.Value) != 1 {
				return false
			}
			for bits := piece.Bits(); bits >= 0; bits-- {
				if sources[source{netip.PrefixFrom(piece.Addr(), bits).Masked(), e.Value[0]}] {
					return true
				}
			}
			return false
		}
		return true // belongs to no rule
	}
}

// Source returns the source addresses of an element of Sources or FloatingOut; ok is false for another element.
func Source(e *nft.Element) (p netip.Prefix, ok bool) {
	if e.Set != Sources && e.Set != FloatingOut || len(e.Match) != 1 {
		return netip.Prefix{}, false
	}
	if addr, err := netip.ParseAddr(e.Match[0]); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	p, err := netip.ParsePrefix(e.Match[0])
	return p, err == nil
}
