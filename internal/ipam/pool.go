package ipam

import (
	"fmt"
	"net/netip"
)

// Pool picks pod addresses from a node's subnet, round robin: each pick starts after the last one. So an address that was just released is
// not used again at once, and old connections and neighbour caches have time to expire.
//
// It never picks the network address, the gateway (the address after it) and, for IPv4, the broadcast address: a /23 has 509 addresses for
// pods.
type Pool struct {
	subnet      netip.Prefix
	first, end  netip.Addr // the addresses for pods, both included
	last        netip.Addr // the address picked last
	capacity    uint64
	exhaustible bool // whether capacity is exact
}

// NewPool returns a pool of the subnet. It fails if the subnet is not in canonical form or has no address for a pod.
func NewPool(subnet netip.Prefix) (*Pool, error) {
	if !subnet.IsValid() || subnet != subnet.Masked() {
		return nil, fmt.Errorf("pod subnet %s: not a range in canonical form", subnet)
	}
	hostBits := subnet.Addr().BitLen() - subnet.Bits()
	if hostBits < 2 {
		return nil, fmt.Errorf("pod subnet %s: too small for pods: it has the network, gateway and broadcast addresses only", subnet)
	}
	end := lastAddr(subnet)
	reserved := uint64(2)
	if subnet.Addr().Is4() {
		end, reserved = end.Prev(), 3
	}
	p := &Pool{subnet: subnet, first: subnet.Addr().Next().Next(), end: end}
	p.last = p.end
	if hostBits < 64 {
		p.capacity, p.exhaustible = uint64(1)<<hostBits-reserved, true
	}
	return p, nil
}

// Subnet returns the subnet of the pool.
func (p *Pool) Subnet() netip.Prefix { return p.subnet }

// Gateway returns the node's own address in the subnet, the first after the network address.
func (p *Pool) Gateway() netip.Addr { return p.subnet.Addr().Next() }

// Contains reports whether the address can be a pod's: it is in the subnet and not reserved.
func (p *Pool) Contains(addr netip.Addr) bool {
	return addr.Is4() == p.first.Is4() && p.first.Compare(addr) <= 0 && addr.Compare(p.end) <= 0
}

// Capacity returns the number of addresses for pods; 2^64-1 means that the number does not fit.
func (p *Pool) Capacity() uint64 {
	if !p.exhaustible {
		return ^uint64(0)
	}
	return p.capacity
}

// Resume lets the next pick start after the given address, for example after a restart with the address picked last. An address that is not
// in the pool changes nothing.
func (p *Pool) Resume(last netip.Addr) {
	if p.Contains(last) {
		p.last = last
	}
}

// Pick returns the next address for which inUse returns false. It stores only its position: until the caller has an attachment with the
// address, so that inUse returns true for it, another Pick may return it again. It fails with ErrExhausted.
func (p *Pool) Pick(inUse func(netip.Addr) bool) (netip.Addr, error) {
	addr := p.last
	for tried := uint64(0); tried < p.Capacity(); tried++ {
		if addr = addr.Next(); !p.Contains(addr) {
			addr = p.first
		}
		if !inUse(addr) {
			p.last = addr
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%w: all %d pod addresses of subnet %s are used", ErrExhausted, p.capacity, p.subnet)
}

// lastAddr returns the highest address of the prefix.
func lastAddr(prefix netip.Prefix) netip.Addr {
	raw := prefix.Masked().Addr().AsSlice()
	for bit := prefix.Bits(); bit < len(raw)*8; bit++ {
		raw[bit/8] |= 1 << (7 - bit%8)
	}
	addr, _ := netip.AddrFromSlice(raw)
	return addr
}
