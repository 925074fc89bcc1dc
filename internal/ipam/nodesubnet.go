package ipam

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
)

// Range is an address range from which nodes get their subnets.
type Range struct {
	// Prefix is the whole range, in canonical form.
	Prefix netip.Prefix
	// HostBits is the number of host bits of one node's subnet: 9 makes /23 subnets of IPv4.
	HostBits int
}

// Validate returns why no subnets can be allocated from the range.
func (r Range) Validate() error {
	if !r.Prefix.IsValid() {
		return errors.New("no range given")
	}
	if r.Prefix != r.Prefix.Masked() {
		return fmt.Errorf("range %s has bits set after its prefix: write %s", r.Prefix, r.Prefix.Masked())
	}
	if most := r.Prefix.Addr().BitLen() - r.Prefix.Bits(); r.HostBits < 1 || r.HostBits > most {
		return fmt.Errorf("subnets with %d host bits do not fit in range %s: 1 to %d do", r.HostBits, r.Prefix, most)
	}
	return nil
}

// maxSubnetBits limits the number of subnets of a range that can be allocated: 2^24, as in OpenShift SDN.
const maxSubnetBits = 24

// numbering is the order in which OpenShift SDN allocates the subnets of a range. If the subnet's number starts inside an octet and ends in
// a higher one, the number is rotated so that all subnets with zeros in the shared octet come first: 10.128.0.0/14 with /23 subnets gives
// 10.128.0.0, 10.129.0.0, 10.130.0.0, 10.131.0.0, 10.128.2.0 and so on.
type numbering struct {
	base                  netip.Addr
	hostBits, bits        int
	leftShift, rightShift int
}

func newNumbering(r Range) numbering {
	length := r.Prefix.Addr().BitLen()
	n := numbering{base: r.Prefix.Addr(), hostBits: r.HostBits, bits: length - r.Prefix.Bits() - r.HostBits}
	if n.bits == 0 || !r.Prefix.Addr().Is4() || r.HostBits%8 == 0 {
		return n
	}
	if lowest, highest := r.HostBits-1, r.HostBits+n.bits-1; lowest/8 != highest/8 {
		n.leftShift = 8 - r.HostBits%8
		n.rightShift = n.bits - n.leftShift
	}
	return n
}

// count returns how many subnets can be allocated.
func (n numbering) count() uint32 { return 1 << min(n.bits, maxSubnetBits) }

// subnet returns the i-th subnet to allocate.
func (n numbering) subnet(i uint32) netip.Prefix {
	number := i
	if n.leftShift > 0 {
		number = (i<<n.leftShift)&(1<<n.bits-1) | (i>>n.rightShift)&(1<<n.leftShift-1)
	}
	return netip.PrefixFrom(plus(n.base, number, n.hostBits), n.base.BitLen()-n.hostBits)
}

// plus returns base OR number<<shift.
func plus(base netip.Addr, number uint32, shift int) netip.Addr {
	raw := base.AsSlice()
	sum := new(big.Int).SetBytes(raw)
	sum.Or(sum, new(big.Int).Lsh(big.NewInt(int64(number)), uint(shift))) //nolint:gosec // Validate bounds shift to 1..128.
	addr, _ := netip.AddrFromSlice(sum.FillBytes(raw))
	return addr
}

// cursor is the state of one range.
type cursor struct {
	Range
	numbering
	next uint32 // the number to try next; may equal count
	full bool   // no subnet was free since the last release
}

// NodeSubnets allocates subnets to nodes in exactly OpenShift SDN's order: from the first range with a free subnet, and in it the next free
// subnet after the one allocated last. A released subnet is allocated again only after a wrap-around, or after the range was exhausted,
// because then the order starts over.
type NodeSubnets struct {
	ranges []*cursor
	used   prefixSet
}

// NewNodeSubnets returns an allocator for the ranges, in order of preference. The error names ranges that are not valid or overlap.
func NewNodeSubnets(ranges []Range) (*NodeSubnets, error) {
	s := &NodeSubnets{used: newPrefixSet()}
	return s, s.SetRanges(ranges)
}

// SetRanges replaces the ranges. Used subnets stay used. A range that existed before keeps its position; one that is new, or has another
// size, starts at its beginning. After an error nothing is changed.
func (s *NodeSubnets) SetRanges(ranges []Range) error {
	var errs []error
	next := make([]*cursor, 0, len(ranges))
	for i, r := range ranges {
		if err := r.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("range %d: %w", i+1, err))
			continue
		}
		for _, other := range next {
			if other.Prefix.Overlaps(r.Prefix) {
				errs = append(errs, fmt.Errorf("range %s overlaps range %s", r.Prefix, other.Prefix))
			}
		}
		c := &cursor{Range: r, numbering: newNumbering(r)}
		for _, old := range s.ranges {
			if old.Range == r {
				c.next = old.next
			}
		}
		next = append(next, c)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.ranges = next
	return nil
}

// Ranges returns the ranges in order of preference.
func (s *NodeSubnets) Ranges() []Range {
	out := make([]Range, len(s.ranges))
	for i, c := range s.ranges {
		out[i] = c.Range
	}
	return out
}

// Use marks a subnet as used. It may have any size, and may be outside the ranges; no subnet that overlaps it is allocated. Use returns the
// used subnets that it overlaps, including itself if it was used already. Each Use needs its own Release.
func (s *NodeSubnets) Use(subnet netip.Prefix) (overlaps []netip.Prefix) {
	subnet = subnet.Masked()
	overlaps = s.used.overlapping(subnet)
	s.used.add(subnet)
	return overlaps
}

// SetUsed replaces all used subnets at once, and does not change the positions in the ranges. It returns the pairs of subnets that overlap,
// each pair once.
func (s *NodeSubnets) SetUsed(subnets []netip.Prefix) (overlaps [][2]netip.Prefix) {
	s.used = newPrefixSet()
	for _, c := range s.ranges {
		c.full = false
	}
	for _, subnet := range subnets {
		for _, other := range s.Use(subnet) {
			overlaps = append(overlaps, [2]netip.Prefix{other, subnet.Masked()})
		}
	}
	return overlaps
}

// Clone returns an allocator in the same state, to try out changes.
func (s *NodeSubnets) Clone() *NodeSubnets {
	clone := &NodeSubnets{used: s.used.clone()}
	for _, c := range s.ranges {
		copied := *c
		clone.ranges = append(clone.ranges, &copied)
	}
	return clone
}

// Overlapping returns the used subnets that overlap the subnet, sorted.
func (s *NodeSubnets) Overlapping(subnet netip.Prefix) []netip.Prefix {
	return s.used.overlapping(subnet.Masked())
}

// Release undoes one Use or Allocate. It reports whether the subnet was used.
func (s *NodeSubnets) Release(subnet netip.Prefix) bool {
	if !s.used.remove(subnet.Masked()) {
		return false
	}
	for _, c := range s.ranges {
		c.full = false
	}
	return true
}

// Contains reports whether the subnet lies within one of the ranges.
func (s *NodeSubnets) Contains(subnet netip.Prefix) bool {
	return slices.ContainsFunc(s.ranges, func(c *cursor) bool {
		return c.Prefix.Bits() <= subnet.Bits() && c.Prefix.Contains(subnet.Addr())
	})
}

// Allocate returns the next free subnet and marks it as used. It fails with ErrExhausted if all subnets of all ranges are used.
func (s *NodeSubnets) Allocate() (netip.Prefix, error) {
	for _, c := range s.ranges {
		if subnet, ok := s.allocateFrom(c); ok {
			return subnet, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("%w: every subnet of the %d cluster network ranges is used (%d subnets are)",
		ErrExhausted, len(s.ranges), s.used.len())
}

// Take marks a subnet that was allocated before as used, if it is free and the ranges still contain it. It does not change the positions in
// the ranges.
func (s *NodeSubnets) Take(subnet netip.Prefix) bool {
	whole := slices.ContainsFunc(s.ranges, func(c *cursor) bool {
		return c.Prefix.Contains(subnet.Addr()) && c.subnetBits() == subnet.Bits() && subnet == subnet.Masked()
	})
	if !whole || len(s.used.overlapping(subnet)) > 0 {
		return false
	}
	s.used.add(subnet)
	return true
}

func (s *NodeSubnets) allocateFrom(c *cursor) (netip.Prefix, bool) {
	if c.full {
		return netip.Prefix{}, false
	}
	count := c.count()
	for i := range count {
		n := (c.next + i) % count
		subnet := c.subnet(n)
		if s.used.overlaps(subnet) {
			continue
		}
		s.used.add(subnet)
		c.next = n + 1
		return subnet, true
	}
	c.next, c.full = 0, true
	return netip.Prefix{}, false
}
