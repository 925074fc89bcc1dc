package ipam

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestFree(t *testing.T) {
	for _, test := range []struct {
		ranges string
		bits   int
		used   []string
		want   uint64
	}{
		{"10.128.0.0/14", 9, nil, 512},
		{"10.128.0.0/14", 9, []string{"10.128.0.0/23", "10.130.2.0/23"}, 510},
		{"10.128.0.0/14", 9, []string{"10.128.0.0/26", "10.128.1.0/24", "10.128.0.0/23"}, 511}, // all inside one subnet
		{"10.128.0.0/14", 9, []string{"10.128.0.0/16", "10.128.4.0/23", "10.129.0.0/23"}, 383},
		{"10.128.0.0/14", 9, []string{"10.0.0.0/8"}, 0},
		{"10.128.0.0/14", 9, []string{"10.128.0.0/14"}, 0},
		{"10.128.0.0/14", 9, []string{"10.132.0.0/23", "10.127.254.0/23", "fd00::/64"}, 512}, // outside the range
		{"10.1.0.0/16", 16, nil, 1},
		{"10.1.0.0/16", 16, []string{"10.1.255.255/32"}, 0},
		{"fd00:1::/48", 64, []string{"fd00:1:0:1::/64", "fd00:1:0:1::1/128", "fd00:1:0:ff00::/56"}, 65536 - 257},
		{"fd00::/8", 64, nil, 1 << 24}, // the maximum that is allocated
		{"fd00::/8", 64, []string{"fd00::/64", "fdff::/64"}, 1<<24 - 1},
		{"fd00::/8", 1, []string{"fd00::/9", "fd80::/9"}, 0},
		{"fd00::/8", 1, []string{"fd00::/127", "fd00::1:0/112", "fd80::/9"}, 1<<24 - 1 - 1<<15},
		{"0.0.0.0/1", 1, []string{"0.0.0.0/31"}, 1<<24 - 1},
	} {
		s := newSubnets(t, Range{pfx(test.ranges), test.bits})
		for _, subnet := range test.used {
			s.Use(pfx(subnet))
		}
		if got := s.Free(); got != test.want {
			t.Errorf("%s with %d host bits, used %v: %d free, want %d", test.ranges, test.bits, test.used, got, test.want)
		}
	}
}

// Allocate can allocate exactly as many subnets as Free returns, whatever is used.
func TestFreeIsWhatAllocateGives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ranges []Range
		for i := range rapid.IntRange(1, 3).Draw(t, "ranges") {
			length := rapid.IntRange(16, 30).Draw(t, "length")
			bits := rapid.IntRange(max(1, 32-length-8), 32-length).Draw(t, "host bits")
			ranges = append(ranges, Range{netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/%d", i, length)), bits})
		}
		s, err := NewNodeSubnets(ranges)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(0, 12).Draw(t, "used") {
			addr := netip.AddrFrom4([4]byte{
				10, rapid.Byte().Draw(t, "b") % 4, rapid.Byte().Draw(t, "c"), rapid.Byte().Draw(t, "d"),
			})
			s.Use(netip.PrefixFrom(addr, rapid.IntRange(14, 32).Draw(t, "used length")))
		}
		free, given := s.Free(), uint64(0)
		for {
			if _, err := s.Allocate(); err != nil {
				break
			}
			given++
		}
		if free != given {
			t.Fatalf("%v: %d free, and %d were given out", ranges, free, given)
		}
		if left := s.Free(); left != 0 {
			t.Fatalf("%v: %d free when none is given out", ranges, left)
		}
	})
}

// If a range has more subnets than can be allocated, each subnet that can be counts once at its own index, and there are no others.
func TestFreeOfRangesThatAreNotHandedOutInFull(t *testing.T) {
	for _, r := range []Range{
		{pfx("0.0.0.0/1"), 1}, {pfx("0.0.0.0/1"), 6}, {pfx("0.0.0.0/3"), 3}, {pfx("0.0.0.0/2"), 5}, {pfx("fd00::/8"), 1}, {pfx("fd00::/32"), 70},
	} {
		n := newNumbering(r)
		if all := n.below(power(n.bits)); all != uint64(n.count()) {
			t.Errorf("%v: %d, want %d", r, all, n.count())
		}
		for i := uint32(0); i < n.count(); i += 9973 { // a prime, so that all residues occur
			at := n.number(n.subnet(i).Addr())
			if n.below(at+1)-n.below(at) != 1 {
				t.Errorf("%v: subnet %d, %s, does not count", r, i, n.subnet(i))
			}
		}
	}
}

func BenchmarkFree(b *testing.B) {
	s, err := NewNodeSubnets([]Range{{pfx("10.0.0.0/8"), 4}})
	if err != nil {
		b.Fatal(err)
	}
	for range 5000 {
		if _, err := s.Allocate(); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		s.Free()
	}
}
