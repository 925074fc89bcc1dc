package ipam

import (
	"maps"
	"net/netip"
	"slices"
)

// prefixSet is a multiset of prefixes that can be searched for overlaps.
type prefixSet struct {
	holders map[netip.Prefix]int
	sorted  []netip.Prefix // the keys of holders, sorted by address, then length
	lengths [129]int       // the number of keys of each prefix length
}

func newPrefixSet() prefixSet { return prefixSet{holders: map[netip.Prefix]int{}} }

func (s *prefixSet) clone() prefixSet {
	return prefixSet{holders: maps.Clone(s.holders), sorted: slices.Clone(s.sorted), lengths: s.lengths}
}

func (s *prefixSet) len() int { return len(s.sorted) }

func (s *prefixSet) add(p netip.Prefix) {
	s.holders[p]++
	if s.holders[p] > 1 {
		return
	}
	at, _ := slices.BinarySearchFunc(s.sorted, p, netip.Prefix.Compare)
	s.sorted = slices.Insert(s.sorted, at, p)
	s.lengths[p.Bits()]++
}

func (s *prefixSet) remove(p netip.Prefix) bool {
	switch s.holders[p] {
	case 0:
		return false
	case 1:
		delete(s.holders, p)
		at, _ := slices.BinarySearchFunc(s.sorted, p, netip.Prefix.Compare)
		s.sorted = slices.Delete(s.sorted, at, at+1)
		s.lengths[p.Bits()]--
	default:
		s.holders[p]--
	}
	return true
}

// overlaps reports whether any member overlaps p.
func (s *prefixSet) overlaps(p netip.Prefix) bool {
	at := s.firstFrom(p)
	if at < len(s.sorted) && p.Contains(s.sorted[at].Addr()) {
		return true // this member is p, or is inside p, or contains p and has the same address
	}
	return s.parent(p, func(netip.Prefix) bool { return true })
}

// overlapping returns all members that overlap p, sorted.
func (s *prefixSet) overlapping(p netip.Prefix) []netip.Prefix {
	var found []netip.Prefix
	s.parent(p, func(parent netip.Prefix) bool { found = append(found, parent); return false })
	for _, member := range s.sorted[s.firstFrom(p):] {
		if !p.Contains(member.Addr()) {
			break
		}
		if member.Bits() >= p.Bits() {
			found = append(found, member)
		}
	}
	slices.SortFunc(found, netip.Prefix.Compare)
	return found
}

// firstFrom returns the index of the first member whose address is p's or higher.
func (s *prefixSet) firstFrom(p netip.Prefix) int {
	at, _ := slices.BinarySearchFunc(s.sorted, p.Addr(), func(member netip.Prefix, addr netip.Addr) int {
		return member.Addr().Compare(addr)
	})
	return at
}

// parent calls visit for the members that strictly contain p, until visit returns true; it reports whether that happened.
func (s *prefixSet) parent(p netip.Prefix, visit func(netip.Prefix) bool) bool {
	for bits := range p.Bits() {
		if s.lengths[bits] == 0 {
			continue
		}
		parent := netip.PrefixFrom(p.Addr(), bits).Masked()
		if s.holders[parent] > 0 && visit(parent) {
			return true
		}
	}
	return false
}
