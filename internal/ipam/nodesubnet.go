package ipam

import (
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
)

// Range is an address range that nodes take their subnets from.
type Range struct {
	// Prefix is the whole range, in canonical form.
	Prefix netip.Prefix
	// HostBits is the number of host bits of one node's subnet: 9 makes /23 subnets of IPv4.
	HostBits int
}

// Validate reports what keeps subnets from being taken from the range.
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

// maxSubnetBits bounds how many subnets of one range are numbered: 2^24, the bound that OpenShift SDN has.
const maxSubnetBits = 24

// numbering is the order in which OpenShift SDN hands out the subnets of one range. Where the subnet's number starts
// inside an octet and ends in a higher one, the number is rotated so that all subnets with zeros in the shared octet
// come first: 10.128.0.0/14 in /23s gives 10.128.0.0, 10.129.0.0, 10.130.0.0, 10.131.0.0, 10.128.2.0 and so on.
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

// count returns how many subnets are numbered.
func (n numbering) count() uint32 { return 1 << min(n.bits, maxSubnetBits) }

// subnet returns the i-th subnet to hand out.
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
	next uint32 // the number to look at next; may equal count
	full bool   // no subnet was free since the last release
}

// NodeSubnets hands out subnets to nodes in exactly OpenShift SDN's order: the first range with room, within it the
// next free subnet after the one handed out last. A released subnet is handed out again only after a wrap-around, or
// after the range was found exhausted, which starts it over.
type NodeSubnets struct {
	ranges []*cursor
	used   prefixSet
}

// NewNodeSubnets returns an allocator of the ranges, in order of preference. It fails where a range is not valid or
// overlaps another, and names it.
func NewNodeSubnets(ranges []Range) (*NodeSubnets, error) {
	s := &NodeSubnets{used: newPrefixSet()}
	return s, s.SetRanges(ranges)
}

// SetRanges replaces the ranges, also while subnets are used: they stay used. A range that was there before goes on
// where it was; one that is new, or that grew, starts at its beginning. On error nothing changes.
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

// Use marks a subnet as used, also one of another size or outside the ranges: whatever overlaps it is not handed out.
// It returns the used subnets that it overlaps, itself included if it was used already; each Use needs its own Release.
func (s *NodeSubnets) Use(subnet netip.Prefix) (overlaps []netip.Prefix) {
	subnet = subnet.Masked()
	overlaps = s.used.overlapping(subnet)
	s.used.add(subnet)
	return overlaps
}

// SetUsed replaces what is used, in one go and without changing where the ranges go on. It returns the pairs of subnets
// that overlap, each pair once.
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

// Clone returns an allocator in the same state, with which to try things out.
func (s *NodeSubnets) Clone() *NodeSubnets {
	clone := &NodeSubnets{used: s.used.clone()}
	for _, c := range s.ranges {
		copied := *c
		clone.ranges = append(clone.ranges, &copied)
	}
	return clone
}

// Overlapping returns the used subnets that the subnet overlaps, in order.
func (s *NodeSubnets) Overlapping(subnet netip.Prefix) []netip.Prefix {
	return s.used.overlapping(subnet.Masked())
}

// Release takes back one Use or Allocate. It reports whether the subnet was used.
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

// Allocate hands out the next free subnet and marks it as used. It fails with ErrExhausted when no range has room.
func (s *NodeSubnets) Allocate() (netip.Prefix, error) {
	for _, c := range s.ranges {
		if subnet, ok := s.allocateFrom(c); ok {
			return subnet, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("%w: every subnet of the %d cluster network ranges is used (%d subnets are)",
		ErrExhausted, len(s.ranges), s.used.len())
}

// Take hands out a subnet that was handed out before, if it is free and still one of those to hand out. Where the ranges go on does not
// change.
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
