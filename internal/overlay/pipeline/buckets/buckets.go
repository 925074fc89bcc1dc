// Package buckets chooses the endpoints of a Service that a node uses, and the numbers and weights of their buckets in a group. It is pure.
package buckets

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math/bits"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/service"
)

// HashValues is the maximum number of hash values that the switch divides among the buckets of a group (MAX_SELECT_GROUP_HASH_VALUES of
// ofproto-dpif.h).
const HashValues = 256

// Fine is the number of the bucket that only makes the shares finer. IDs returns no such number.
const Fine = 1

// Weight returns the weight of each of n endpoints. The switch divides 2^k hash values among the buckets: at least 16, at least the sum
// of all weights in units of the least, and at most 256 (ofproto-dpif logs it on level DBG for a group). With weights of 1, ten endpoints
// would have 1 or 2 of 16 values. Weights of 8 limit the difference to an eighth; many endpoints get the greatest weight that has room. If
// n is a power of two, nothing is left over. Over HashValues, the group uses another hash, which is even.
func Weight(n int) uint16 {
	const fine = 8
	if bits.OnesCount(uint(n)) == 1 {
		return 1
	}
	return uint16(max(1, min(fine, HashValues/max(1, n)))) //nolint:gosec // 1 to 8
}

// Share returns the endpoints that a node uses: all, or, if they are more than most, the node's part, which changes little when the
// endpoints change.
func Share(node netip.Addr, endpoints []service.Endpoint, most int) []service.Endpoint {
	if len(endpoints) <= most {
		return endpoints
	}
	rank := make(map[netip.AddrPort]uint64, len(endpoints))
	for _, e := range endpoints {
		sum := sha256.Sum256([]byte(node.String() + " " + e.Addr.String()))
		rank[e.Addr] = binary.BigEndian.Uint64(sum[:])
	}
	byRank := slices.SortedFunc(maps.Keys(rank), func(x, y netip.AddrPort) int {
		if rank[x] < rank[y] {
			return -1
		}
		return 1
	})
	for _, out := range byRank[most:] {
		delete(rank, out)
	}
	return slices.DeleteFunc(slices.Clone(endpoints), func(e service.Endpoint) bool { _, in := rank[e.Addr]; return !in })
}

// IDs numbers endpoints by their addresses and not by their positions. An endpoint keeps its number when others are added or removed,
// so a hash keeps selecting it for the same clients. Numbers that collide are resolved in the endpoints' order.
func IDs(endpoints []service.Endpoint) []uint32 {
	const lowest, numbers = Fine + 1, 0xff000000
	taken := make(map[uint32]bool, len(endpoints))
	ids := make([]uint32, 0, len(endpoints))
	for _, e := range endpoints {
		sum := sha256.Sum256([]byte(e.Addr.String()))
		id := lowest + binary.BigEndian.Uint32(sum[:])%numbers
		for taken[id] {
			id = lowest + (id-lowest+1)%numbers
		}
		taken[id] = true
		ids = append(ids, id)
	}
	return ids
}
