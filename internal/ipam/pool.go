package ipam

import (
	"fmt"
	"net/netip"
)

// Pool picks pod addresses of one node's subnet, round robin: each pick starts after the last, so that an address that
// was just released is not used again at once (its old connections and its neighbours' caches have time to go).
//
// Never picked are the network's address, the gateway (the one after it) and, for IPv4, the broadcast address: a /23
// has 509 for pods.
type Pool struct {
	subnet      netip.Prefix
	first, end  netip.Addr // what pods get: first is included, end is the last one
	last        netip.Addr // the address handed out last
	capacity    uint64
	exhaustible bool // whether capacity is exact
}

// NewPool returns a pool of the subnet. It fails where the subnet is not in canonical form or has no address for a pod.
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

// Subnet returns the range that the pool picks from.
func (p *Pool) Subnet() netip.Prefix { return p.subnet }

// Gateway returns the node's own address in the subnet, the first after the network's.
func (p *Pool) Gateway() netip.Addr { return p.subnet.Addr().Next() }

// Contains reports whether the address may be a pod's: within the subnet, and none of the reserved ones.
func (p *Pool) Contains(addr netip.Addr) bool {
	return addr.Is4() == p.first.Is4() && p.first.Compare(addr) <= 0 && addr.Compare(p.end) <= 0
}

// Capacity returns how many addresses there are for pods; 2^64-1 stands for more than fit.
func (p *Pool) Capacity() uint64 {
	if !p.exhaustible {
		return ^uint64(0)
	}
	return p.capacity
}

// Resume makes the next pick start after the address, as after a restart with the address picked last. An address that
// the pool does not contain changes nothing.
func (p *Pool) Resume(last netip.Addr) {
	if p.Contains(last) {
		p.last = last
	}
}

// Pick returns the next address that inUse does not report as used. It records nothing but its place: until the caller
// has an attachment with the address, and so inUse knows of it, another Pick may come round to it again. It fails with
// ErrExhausted.
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
