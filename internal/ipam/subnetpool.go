package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
)

var (
	// ErrTaken is wrapped by the error for an address that is in use.
	ErrTaken = errors.New("address is in use")
	// ErrOutside is wrapped by the error for an address that no host of the subnet can have.
	ErrOutside = errors.New("address is not one for a host of the subnet")
)

// SubnetPool has the addresses of one IPv4 subnet of a VPC, and their owners. Before addresses are assigned, it is rebuilt from the objects
// that hold addresses (Use). Counts and ranges for the Subnet's status come from the same sets.
//
// Next assigns addresses in order, each after the last one, so that a released address is assigned again only after a wrap-around. Excluded
// addresses are assigned only on explicit request; they count neither as available nor as in use.
type SubnetPool struct {
	prefix   netip.Prefix
	gateway  netip.Addr
	excluded *netipx.IPSet // the gateway, the first and last address, and the user's exclusions
	size     int64         // number of addresses that Next may assign
	used     map[netip.Addr]string
	counted  int64 // used addresses that are not excluded
	last     netip.Addr
}

// NewSubnetPool returns the pool of a subnet with a prefix length from 8 to 30.
func NewSubnetPool(prefix netip.Prefix, gateway netip.Addr, excludes []netipx.IPRange) (*SubnetPool, error) {
	if !prefix.Addr().Is4() || prefix != prefix.Masked() || prefix.Bits() < 8 || prefix.Bits() > 30 {
		return nil, fmt.Errorf("subnet %s: not an IPv4 range in canonical form between /8 and /30", prefix)
	}
	var b, rest netipx.IPSetBuilder
	for _, r := range excludes {
		b.AddRange(r)
	}
	b.Add(gateway)
	b.Add(prefix.Addr())
	b.Add(netipx.PrefixLastIP(prefix))
	excluded, err := b.IPSet()
	if err != nil {
		return nil, fmt.Errorf("subnet %s: excluded addresses: %w", prefix, err)
	}
	rest.AddPrefix(prefix)
	rest.RemoveSet(excluded)
	free, err := rest.IPSet()
	if err != nil {
		return nil, fmt.Errorf("subnet %s: free addresses: %w", prefix, err)
	}
	return &SubnetPool{
		prefix: prefix, gateway: gateway, excluded: excluded, size: count(free), used: map[netip.Addr]string{}, last: prefix.Addr(),
	}, nil
}

// Use records that the owner has the address. It fails with ErrTaken if another owner has it, and with ErrOutside for addresses that no
// host can have: the gateway, the first and the last address of the subnet, and addresses outside it.
func (p *SubnetPool) Use(addr netip.Addr, owner string) error {
	switch holder, taken := p.used[addr]; {
	case taken && holder == owner:
		return nil
	case taken:
		return fmt.Errorf("%w: %s by %s", ErrTaken, addr, holder)
	case addr == p.gateway:
		return fmt.Errorf("%w: %s is the gateway of %s", ErrOutside, addr, p.prefix)
	case !p.prefix.Contains(addr) || addr == p.prefix.Addr() || addr == netipx.PrefixLastIP(p.prefix):
		return fmt.Errorf("%w: %s is no host's in %s", ErrOutside, addr, p.prefix)
	}
	p.used[addr] = owner
	if !p.excluded.Contains(addr) {
		p.counted++
	}
	return nil
}

// Release removes the owner of an address. An address without an owner, or with another one, is not changed.
func (p *SubnetPool) Release(addr netip.Addr, owner string) {
	if p.used[addr] != owner || owner == "" {
		return
	}
	delete(p.used, addr)
	if !p.excluded.Contains(addr) {
		p.counted--
	}
}

// Owner returns the owner of the address, or "" if there is none.
func (p *SubnetPool) Owner(addr netip.Addr) string { return p.used[addr] }

// Resume lets Next start after the given address. An address outside the subnet changes nothing.
func (p *SubnetPool) Resume(last netip.Addr) {
	if p.prefix.Contains(last) {
		p.last = last
	}
}

// Next assigns the next free address to the owner. It fails with ErrExhausted.
func (p *SubnetPool) Next(owner string) (netip.Addr, error) {
	addr, err := p.Peek()
	if err != nil {
		return addr, err
	}
	p.last = addr
	return addr, p.Use(addr, owner)
}

// Peek returns the address that Next would assign.
func (p *SubnetPool) Peek() (netip.Addr, error) {
	ahead := p.Ahead(1)
	if len(ahead) == 0 {
		return netip.Addr{}, fmt.Errorf("%w: all %d addresses of subnet %s are used", ErrExhausted, p.size, p.prefix)
	}
	return ahead[0], nil
}

// Ahead returns the addresses that the next n calls of Next would assign; fewer if fewer are free.
func (p *SubnetPool) Ahead(n int) []netip.Addr {
	var ahead []netip.Addr
	n = min(n, int(p.Available()))
	for addr := p.after(p.last); len(ahead) < n; addr = p.after(addr) {
		if r, excluded := p.excludedRange(addr); excluded {
			addr = r.To()
			continue
		}
		if _, taken := p.used[addr]; !taken {
			ahead = append(ahead, addr)
		}
	}
	return ahead
}

// Last returns the address that Next assigned last, or that Resume set.
func (p *SubnetPool) Last() netip.Addr { return p.last }

// after returns the next address of the subnet; after the last address, the first one.
func (p *SubnetPool) after(addr netip.Addr) netip.Addr {
	if next := addr.Next(); p.prefix.Contains(next) {
		return next
	}
	return p.prefix.Addr()
}

// excludedRange returns the range of excluded addresses that contains the address.
func (p *SubnetPool) excludedRange(addr netip.Addr) (netipx.IPRange, bool) {
	ranges := p.excluded.Ranges()
	at, found := slices.BinarySearchFunc(ranges, addr, func(r netipx.IPRange, a netip.Addr) int {
		switch {
		case r.To().Less(a):
			return -1
		case a.Less(r.From()):
			return 1
		default:
			return 0
		}
	})
	if !found {
		return netipx.IPRange{}, false
	}
	return ranges[at], true
}

// Available returns the number of addresses that Next can still assign.
func (p *SubnetPool) Available() int64 { return p.size - p.counted }

// Using returns the number of addresses in use, without excluded ones.
func (p *SubnetPool) Using() int64 { return p.counted }

// Ranges returns the available and the used addresses in the form of the status: "10.0.1.2-10.0.1.9,10.0.1.11".
func (p *SubnetPool) Ranges() (available, using string) {
	var free, used netipx.IPSetBuilder
	free.AddPrefix(p.prefix)
	free.RemoveSet(p.excluded)
	for addr := range p.used {
		free.Remove(addr)
		if !p.excluded.Contains(addr) {
			used.Add(addr)
		}
	}
	return rangeText(&free), rangeText(&used)
}

func rangeText(b *netipx.IPSetBuilder) string {
	set, err := b.IPSet()
	if err != nil {
		return "" // valid prefixes and addresses cause no error
	}
	var words []string
	for _, r := range set.Ranges() {
		if r.From() == r.To() {
			words = append(words, r.From().String())
		} else {
			words = append(words, r.From().String()+"-"+r.To().String())
		}
	}
	return strings.Join(words, ",")
}

// count returns the number of IPv4 addresses in a set.
func count(set *netipx.IPSet) int64 {
	var n int64
	for _, prefix := range set.Prefixes() {
		n += int64(1) << (32 - prefix.Bits())
	}
	return n
}
