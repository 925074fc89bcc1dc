package ipam

import (
	"encoding/binary"
	"math"
	"net/netip"
)

// Free returns how many subnets can still be allocated. Its cost depends on the number of used subnets, not on the size of the ranges.
func (s *NodeSubnets) Free() uint64 {
	var free uint64
	for _, c := range s.ranges {
		free += uint64(c.count()) - c.taken(&s.used)
	}
	return free
}

// taken returns how many of the subnets that can be allocated overlap a used one. Each sorted prefix is inside an earlier one or after it,
// so one pass counts no subnet twice.
func (c *cursor) taken(used *prefixSet) uint64 {
	if used.holds(c.Prefix) || used.parent(c.Prefix, func(netip.Prefix) bool { return true }) {
		return uint64(c.count())
	}
	var taken, end uint64
	for _, member := range used.sorted[used.firstFrom(c.Prefix):] {
		if !c.Prefix.Contains(member.Addr()) {
			break
		}
		first := c.number(member.Addr())
		behind := first + 1
		if wider := c.subnetBits() - member.Bits(); wider > 0 {
			behind = sum(first, power(wider))
		}
		if first = max(first, end); behind > first {
			taken += c.below(behind) - c.below(first)
			end = behind
		}
	}
	return taken
}

// holds reports whether p itself is a member.
func (s *prefixSet) holds(p netip.Prefix) bool { return s.holders[p] > 0 }

// subnetBits is the prefix length of a node's subnet.
func (n numbering) subnetBits() int { return n.base.BitLen() - n.hostBits }

// number returns the index of an address among the range's subnets, in the order of addresses, not of allocation. If the index does not
// fit, it is the highest number, which is after all subnets that can be allocated.
func (n numbering) number(addr netip.Addr) uint64 {
	at, base := addr.As16(), n.base.As16()
	high := binary.BigEndian.Uint64(at[:8]) ^ binary.BigEndian.Uint64(base[:8]) // the range's own bits are the same in both
	low := binary.BigEndian.Uint64(at[8:]) ^ binary.BigEndian.Uint64(base[8:])
	if n.hostBits >= 64 {
		return high >> (n.hostBits - 64)
	}
	if high>>n.hostBits > 0 {
		return math.MaxUint64
	}
	return low>>n.hostBits | high<<(64-n.hostBits)
}

// below returns how many of the subnets whose index in the order of addresses is below x can ever be allocated. These are all of them, if
// the range has no more than 2^maxSubnetBits subnets. If it has more, only those with a low rotated number can be allocated: the first
// 2^rotated of each block of 2^leftShift subnets.
func (n numbering) below(x uint64) uint64 {
	rotated := min(max(maxSubnetBits-(n.bits-n.leftShift), 0), n.leftShift) // the bits in the shared octet that are numbered
	block := uint64(1) << n.leftShift
	each := uint64(1) << rotated // in each block
	x = min(x, uint64(n.count())/each*block)
	return x/block*each + min(x%block, each)
}

// power returns 2^n, or the highest number if that does not fit.
func power(n int) uint64 {
	if n >= 64 {
		return math.MaxUint64
	}
	return 1 << n
}

// sum returns a+b, or the highest number if that does not fit.
func sum(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
