package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weft.dev/weft/internal/nft"
)

// Requirements are the translations and addresses of a gateway that the rules and EIPs of an input require.
type Requirements struct {
	items     map[nft.Key]nft.Item
	addresses map[netip.Addr]bool
	sources   map[source]bool
}

// source is an SNAT rule's prefix, and the address of its EIP.
type source struct {
	prefix  netip.Prefix
	address string
}

// Require returns what the input requires. Only its own address, EIPs and rules are used, so that Require also works for a gateway whose
// complete state cannot be compiled.
func Require(in *Input) *Requirements {
	c := newCompiler(in)
	c.net1()
	c.translations()
	r := &Requirements{items: c.result.State.Items, addresses: map[netip.Addr]bool{}, sources: map[source]bool{}}
	for _, prefix := range c.result.State.Addresses {
		r.addresses[prefix.Addr()] = true // the range is that of an external Subnet, which may be what is wrong
	}
	for _, snat := range in.SNATs {
		if addr, there := c.addresses[snat.EIP]; there {
			r.sources[source{snat.Prefix, addr.String()}] = true
		}
	}
	return r
}

// Element reports whether an element of the table's maps and sets is required: a rule or an EIP requires this translation, whatever rule the
// element was created for.
//
// The parts into which an SNAT rule is split depend on the other rules (sources). A part is required while it is within its rule's prefix.
func (r *Requirements) Element(e *nft.Element) bool {
	switch e.Set {
	case outside:
		addr, err := netip.ParseAddr(strings.Join(e.Match, " "))
		return err == nil && r.addresses[addr]
	case FloatingIn, FloatingOut, Ports:
		required, there := r.items[e.Key()].(*nft.Element)
		return there && slices.Equal(required.Value, e.Value)
	}
	piece, ok := Source(e)
	if !ok || len(e.Value) != 1 {
		return false
	}
	for bits := piece.Bits(); bits >= 0; bits-- {
		if r.sources[source{netip.PrefixFrom(piece.Addr(), bits).Masked(), e.Value[0]}] {
			return true
		}
	}
	return false
}

// Address reports whether the gateway has to have the address outside.
func (r *Requirements) Address(addr netip.Addr) bool {
	return r.addresses[addr]
}

// Hash returns a hash of the requirements, which no State has.
func (r *Requirements) Hash() string {
	hashed := State{Items: r.items, Sysctls: map[string]string{"of": "requirements"}}
	for addr := range r.addresses {
		hashed.Addresses = append(hashed.Addresses, single(addr))
	}
	for of := range r.sources {
		hashed.Sysctls[fmt.Sprint("source ", of.prefix, " ", of.address)] = ""
	}
	return hashed.Hash()
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
