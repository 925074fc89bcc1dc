package policy

import (
	"cmp"
	"math/bits"
	"slices"
)

const highestPort = 65535

// portRange is ports from first to last, both in it. Numbers have room for what comes behind the highest port.
type portRange struct {
	protocol    Protocol
	first, last uint32
}

// services splits ranges into ports and masks, as few as say the same for each protocol: what overlaps or touches is
// joined before.
func services(ranges []portRange) []Service {
	slices.SortFunc(ranges, func(a, b portRange) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.first, b.first))
	})
	var list []Service
	for i := 0; i < len(ranges); {
		joined := ranges[i]
		for i++; i < len(ranges) && ranges[i].protocol == joined.protocol && ranges[i].first <= joined.last+1; i++ {
			joined.last = max(joined.last, ranges[i].last)
		}
		list = joined.split(list)
	}
	return list
}

// split appends the fewest ports with masks that are the range: each the largest block that begins where the one before
// has ended.
func (r portRange) split(list []Service) []Service {
	for first := r.first; first <= r.last; {
		size := uint32(highestPort + 1)
		if first > 0 {
			size = 1 << bits.TrailingZeros32(first)
		}
		for size > r.last-first+1 {
			size /= 2
		}
		list = append(list, Service{r.protocol, uint16(first), ^uint16(size - 1)})
		first += size
	}
	return list
}
