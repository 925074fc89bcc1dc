package node

import (
	"net/netip"
	"testing"

	"weft.dev/weft/internal/node"
)

// Routes of a node that are not reported are counted.
func TestTooManyRoutes(t *testing.T) {
	for count, want := range map[int]int{0: 0, mostRanges: 0, mostRanges + 3: 3} {
		n := &reporter{node: &node.Node{Ranges: func(string) ([]netip.Prefix, error) {
			var all []netip.Prefix
			for i := range count {
				all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24))
			}
			return all, nil
		}}}
		texts, left, err := n.ranges()
		if err != nil || left != want || len(texts) != count-want {
			t.Errorf("%d routes: %d reported, %d left: %v", count, len(texts), left, err)
		}
	}
}
