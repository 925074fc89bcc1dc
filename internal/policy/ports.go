package policy

import (
	"cmp"
	"math/bits"
	"slices"

	"weft.dev/weft/internal/transport"
)

const highestPort = 65535

// portRange is the ports from first to last, both included. The type of the numbers can also hold 65536.
type portRange struct {
	protocol    transport.Protocol
	first, last uint32
}

// services splits ranges into the fewest ports and masks that cover them for each protocol. It first joins ranges that overlap or touch.
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

// split appends the fewest ports with masks that cover the range: each is the largest block that begins at the end of the one before.
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
