package ipam

import (
	"fmt"
	"math/rand/v2"
)

// VNIDs allocates virtual network identifiers: the first free one from a random start, with wrap-around. Several namespaces may hold the
// same identifier; it is free again when its last holder has released it.
type VNIDs struct {
	first, last uint32
	random      *rand.Rand
	holders     map[uint32]int
	used        uint32 // the number of identifiers in first..last with a holder
}

// NewVNIDs returns an allocator of first..last, both included. The same random source and the same calls result in the same identifiers.
func NewVNIDs(first, last uint32, random *rand.Rand) *VNIDs {
	return &VNIDs{first: first, last: last, random: random, holders: map[uint32]int{}}
}

// Use adds a holder to an identifier, also to one that is never allocated (such as 0, the global one).
func (v *VNIDs) Use(id uint32) {
	v.holders[id]++
	if v.holders[id] == 1 && v.ranges(id) {
		v.used++
	}
}

// Release removes a holder from an identifier. It reports whether it had one.
func (v *VNIDs) Release(id uint32) bool {
	switch v.holders[id] {
	case 0:
		return false
	case 1:
		delete(v.holders, id)
		if v.ranges(id) {
			v.used--
		}
	default:
		v.holders[id]--
	}
	return true
}

// Holders returns the number of holders of the identifier.
func (v *VNIDs) Holders(id uint32) int { return v.holders[id] }

// Allocate returns an identifier without a holder, and adds one holder. It fails with ErrExhausted.
func (v *VNIDs) Allocate() (uint32, error) {
	count := v.last - v.first + 1
	if v.used >= count {
		return 0, fmt.Errorf("%w: all %d VNIDs from %d to %d are used", ErrExhausted, count, v.first, v.last)
	}
	id := v.first + v.random.Uint32N(count)
	for v.holders[id] > 0 {
		if id++; id > v.last {
			id = v.first
		}
	}
	v.Use(id)
	return id, nil
}

func (v *VNIDs) ranges(id uint32) bool { return v.first <= id && id <= v.last }
