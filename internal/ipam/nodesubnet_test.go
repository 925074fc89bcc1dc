package ipam

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func pfx(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func newSubnets(t *testing.T, ranges ...Range) *NodeSubnets {
	t.Helper()
	s, err := NewNodeSubnets(ranges)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func allocate(t *testing.T, s *NodeSubnets, n int) []string {
	t.Helper()
	var out []string
	for range n {
		subnet, err := s.Allocate()
		if err != nil {
			t.Fatalf("allocation %d: %v", len(out)+1, err)
		}
		out = append(out, subnet.String())
	}
	return out
}

// every returns base, base+step, ... as subnets of the given length.
func every(base string, step, n, bits int) []string {
	var out []string
	addr := netip.MustParseAddr(base)
	for range n {
		out = append(out, netip.PrefixFrom(addr, bits).String())
		raw := addr.As4()
		value := uint32(raw[0])<<24 | uint32(raw[1])<<16 | uint32(raw[2])<<8 | uint32(raw[3])
		value += uint32(step)
		addr = netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)})
	}
	return out
}

// The sequences are those of OpenShift SDN's allocator.
func TestNodeSubnetsOrder(t *testing.T) {
	for _, test := range []struct {
		prefix   string
		hostBits int
		want     []string
		full     bool // want is complete
	}{
		{"10.128.0.0/14", 9, []string{
			"10.128.0.0/23", "10.129.0.0/23", "10.130.0.0/23", "10.131.0.0/23",
			"10.128.2.0/23", "10.129.2.0/23", "10.130.2.0/23", "10.131.2.0/23", "10.128.4.0/23",
		}, false},
		{"10.1.0.0/16", 6, slices.Concat(
			every("10.1.0.0", 256, 256, 26), every("10.1.0.64", 256, 256, 26),
			every("10.1.0.128", 256, 256, 26), every("10.1.0.192", 256, 256, 26)), true},
		{"10.0.0.0/14", 10, []string{
			"10.0.0.0/22", "10.1.0.0/22", "10.2.0.0/22", "10.3.0.0/22",
			"10.0.4.0/22", "10.1.4.0/22", "10.2.4.0/22", "10.3.4.0/22", "10.0.8.0/22",
		}, false},
		{"192.168.0.0/20", 7, slices.Concat(every("192.168.0.0", 256, 16, 25), every("192.168.0.128", 256, 16, 25)), true},
		{"172.16.0.0/12", 12, slices.Concat(every("172.16.0.0", 1<<16, 16, 20), every("172.16.16.0", 1<<16, 16, 20)), false},
		{"10.0.0.0/8", 9, every("10.0.0.0", 1<<16, 256, 23), false},
		{"192.168.0.0/16", 4, slices.Concat(every("192.168.0.0", 256, 256, 28), every("192.168.0.16", 256, 256, 28)), false},
		{"10.1.0.0/16", 8, every("10.1.0.0", 256, 256, 24), true},
		{"10.1.0.0/16", 10, every("10.1.0.0", 1024, 64, 22), true},
		{"10.128.0.0/14", 8, every("10.128.0.0", 256, 1024, 24), true},
		{"192.168.1.0/24", 4, every("192.168.1.0", 16, 16, 28), true},
		{"10.1.0.0/16", 15, every("10.1.0.0", 1<<15, 2, 17), true},
		{"10.1.0.0/16", 16, []string{"10.1.0.0/16"}, true},
		{"fd00:1::/48", 64, []string{"fd00:1::/64", "fd00:1:0:1::/64", "fd00:1:0:2::/64"}, false},
	} {
		s := newSubnets(t, Range{pfx(test.prefix), test.hostBits})
		if diff := cmp.Diff(test.want, allocate(t, s, len(test.want))); diff != "" {
			t.Errorf("%s with %d host bits (-want +got):\n%s", test.prefix, test.hostBits, diff)
		}
		if _, err := s.Allocate(); errors.Is(err, ErrExhausted) != test.full {
			t.Errorf("%s with %d host bits, after %d: %v; want exhausted: %t", test.prefix, test.hostBits, len(test.want), err, test.full)
		}
	}
}

func TestNodeSubnetsReleaseDoesNotRewind(t *testing.T) {
	s := newSubnets(t, Range{pfx("10.128.0.0/14"), 9})
	allocate(t, s, 5)
	if !s.Release(pfx("10.129.0.0/23")) {
		t.Fatal("release of a used subnet says it was not used")
	}
	if s.Release(pfx("10.129.0.0/23")) {
		t.Fatal("second release says it was used")
	}
	if got := allocate(t, s, 1)[0]; got != "10.129.2.0/23" {
		t.Errorf("after release: %s, want 10.129.2.0/23", got)
	}
}

func TestNodeSubnetsWrapAndExhaustion(t *testing.T) {
	s := newSubnets(t, Range{pfx("192.168.1.0/24"), 6})
	allocate(t, s, 3)
	s.Release(pfx("192.168.1.0/26"))
	if diff := cmp.Diff([]string{"192.168.1.192/26", "192.168.1.0/26"}, allocate(t, s, 2)); diff != "" {
		t.Errorf("wrap-around (-want +got):\n%s", diff)
	}
	if _, err := s.Allocate(); !errors.Is(err, ErrExhausted) {
		t.Fatalf("full: %v", err)
	}
	// The exhausted range starts over: the lower of the two comes first, not the one after the last allocation.
	s.Release(pfx("192.168.1.192/26"))
	s.Release(pfx("192.168.1.0/26"))
	if diff := cmp.Diff([]string{"192.168.1.0/26", "192.168.1.192/26"}, allocate(t, s, 2)); diff != "" {
		t.Errorf("after exhaustion (-want +got):\n%s", diff)
	}
}

func TestNodeSubnetsSeveralRangesAndGrowth(t *testing.T) {
	a, b := Range{pfx("10.1.0.0/16"), 15}, Range{pfx("10.2.0.0/16"), 14}
	s := newSubnets(t, a, b)
	if diff := cmp.Diff([]string{"10.1.0.0/17", "10.1.128.0/17", "10.2.0.0/18"}, allocate(t, s, 3)); diff != "" {
		t.Fatalf("first range with room wins (-want +got):\n%s", diff)
	}
	s.Release(pfx("10.1.128.0/17"))
	if got := allocate(t, s, 1)[0]; got != "10.1.128.0/17" {
		t.Errorf("room in the first range again: %s", got)
	}
	allocate(t, s, 3)
	if err := s.SetRanges([]Range{a, b, {pfx("10.3.0.0/16"), 9}}); err != nil {
		t.Fatal(err)
	}
	if got := allocate(t, s, 1)[0]; got != "10.3.0.0/23" {
		t.Errorf("from the appended range: %s", got)
	}
	// A larger range is used where it is free.
	if err := s.SetRanges([]Range{{pfx("10.0.0.0/14"), 15}}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.0.0.0/17", "10.0.128.0/17", "10.3.128.0/17"}, allocate(t, s, 3)); diff != "" {
		t.Errorf("grown (-want +got):\n%s", diff)
	}
	if err := s.SetRanges([]Range{a, {pfx("10.1.128.0/17"), 9}}); err == nil {
		t.Error("overlapping ranges are accepted")
	}
	if !s.Contains(pfx("10.3.0.0/23")) || s.Contains(pfx("10.4.0.0/23")) || s.Contains(pfx("10.0.0.0/8")) {
		t.Error("Contains is wrong, or the ranges changed by a call that failed")
	}
}

func TestNodeSubnetsOverlaps(t *testing.T) {
	s := newSubnets(t, Range{pfx("10.128.0.0/14"), 9})
	if got := s.Use(pfx("10.128.0.0/22")); got != nil {
		t.Errorf("first use overlaps %v", got)
	}
	s.Use(pfx("10.131.0.128/25"))
	s.Use(pfx("192.168.0.0/16"))
	want := []string{"10.129.0.0/23", "10.130.0.0/23", "10.129.2.0/23", "10.130.2.0/23", "10.131.2.0/23", "10.128.4.0/23"}
	if diff := cmp.Diff(want, allocate(t, s, 6)); diff != "" {
		t.Errorf("around other-sized subnets (-want +got):\n%s", diff)
	}
	got := s.Use(pfx("10.128.0.0/21"))
	if diff := cmp.Diff([]netip.Prefix{pfx("10.128.0.0/22"), pfx("10.128.4.0/23")}, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("overlaps (-want +got):\n%s", diff)
	}
	if pairs := s.SetUsed([]netip.Prefix{pfx("10.128.0.0/23"), pfx("10.128.0.0/23"), pfx("10.129.0.0/23")}); len(pairs) != 1 {
		t.Errorf("pairs that overlap: %v", pairs)
	}
	clone := s.Clone()
	first := allocate(t, clone, 2)
	if diff := cmp.Diff(first, allocate(t, s, 2)); diff != "" {
		t.Errorf("a clone's allocations changed the original (-clone +original):\n%s", diff)
	}
}

func TestRangeValidate(t *testing.T) {
	for _, r := range []Range{{}, {pfx("10.1.2.3/16"), 8}, {pfx("10.1.0.0/16"), 0}, {pfx("10.1.0.0/16"), 17}, {pfx("10.1.0.0/16"), -1}} {
		if _, err := NewNodeSubnets([]Range{r}); err == nil {
			t.Errorf("%v is accepted", r)
		}
	}
}

// oracle is the simplest allocator: it lists all subnets in order, and compares with all used ones.
type oracle struct {
	order [][]netip.Prefix
	next  []int
	used  []netip.Prefix
}

// newOracle computes the order from the definition: a subnet's number, which is its bits in the address, is the counter with its low bits
// moved to the top octet if the number extends into a higher octet.
func newOracle(ranges []Range) *oracle {
	o := &oracle{next: make([]int, len(ranges))}
	for _, r := range ranges {
		bits := 32 - r.Prefix.Bits() - r.HostBits
		var order []netip.Prefix
		for i := range 1 << bits {
			number, h := i, r.HostBits
			if bits > 0 && h%8 != 0 && (h-1)/8 != (h+bits-1)/8 {
				low := 8 - h%8 // bits of the number in its lowest octet, which change slowest
				number = i%(1<<(bits-low))<<low | i>>(bits-low)
			}
			order = append(order, netip.PrefixFrom(plus(r.Prefix.Addr(), uint32(number), h), 32-h))
		}
		o.order = append(o.order, order)
	}
	return o
}

func (o *oracle) free(p netip.Prefix) bool { return !slices.ContainsFunc(o.used, p.Overlaps) }

func (o *oracle) allocate() (netip.Prefix, bool) {
	for r, order := range o.order {
		for i := range order {
			at := (o.next[r] + i) % len(order)
			if o.free(order[at]) {
				o.next[r] = at + 1
				o.used = append(o.used, order[at])
				return order[at], true
			}
		}
		o.next[r] = 0
	}
	return netip.Prefix{}, false
}

func (o *oracle) release(p netip.Prefix) bool {
	at := slices.Index(o.used, p)
	if at >= 0 {
		o.used = slices.Delete(o.used, at, at+1)
	}
	return at >= 0
}

func drawPrefix(t *rapid.T, label string) netip.Prefix {
	base := rapid.SampledFrom([]string{"10.0.0.0", "10.0.3.0", "10.0.255.0", "10.1.0.0", "10.1.7.64", "10.2.0.0"}).Draw(t, label)
	return netip.PrefixFrom(netip.MustParseAddr(base), rapid.IntRange(12, 30).Draw(t, label+" bits")).Masked()
}

func TestNodeSubnetsAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ranges []Range
		for _, base := range []string{"10.0.0.0/16", "10.1.0.0/16"} {
			p := pfx(base)
			p = netip.PrefixFrom(p.Addr(), rapid.IntRange(16, 24).Draw(t, "prefix"))
			room := 32 - p.Bits()
			ranges = append(ranges, Range{p, rapid.IntRange(max(1, room-8), room).Draw(t, "host bits")})
		}
		s, err := NewNodeSubnets(ranges)
		if err != nil {
			t.Fatal(err)
		}
		o := newOracle(ranges)
		t.Repeat(map[string]func(*rapid.T){
			"allocate": func(t *rapid.T) {
				got, err := s.Allocate()
				want, ok := o.allocate()
				if got != want || (err == nil) != ok {
					t.Fatalf("allocated %v (%v), want %v", got, err, want)
				}
			},
			"use": func(t *rapid.T) {
				p := drawPrefix(t, "use")
				got := s.Use(p)
				var want []netip.Prefix
				for _, u := range o.used {
					if u.Overlaps(p) && !slices.Contains(want, u) {
						want = append(want, u)
					}
				}
				slices.SortFunc(want, netip.Prefix.Compare)
				if !slices.Equal(got, want) {
					t.Fatalf("use of %v overlaps %v, want %v", p, got, want)
				}
				o.used = append(o.used, p)
			},
			"release": func(t *rapid.T) {
				p := drawPrefix(t, "release")
				if len(o.used) > 0 && rapid.Bool().Draw(t, "used") {
					p = rapid.SampledFrom(o.used).Draw(t, "which")
				}
				if got, want := s.Release(p), o.release(p); got != want {
					t.Fatalf("release of %v: %t, want %t", p, got, want)
				}
			},
		})
	})
}

func FuzzRange(f *testing.F) {
	for _, seed := range []string{"10.128.0.0/14", "10.1.2.3/16", "0.0.0.0/0", "::/0", "fd00::/127", "::ffff:10.0.0.0/104", "10.1.0.0/016", "/", ""} {
		f.Add(seed, 9)
	}
	f.Fuzz(func(t *testing.T, text string, hostBits int) {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return
		}
		s, err := NewNodeSubnets([]Range{{prefix, hostBits}})
		if err != nil {
			return
		}
		for range 3 {
			subnet, err := s.Allocate()
			if err != nil {
				return
			}
			if !s.Contains(subnet) || subnet != subnet.Masked() {
				t.Fatalf("%v does not lie in %v with %d host bits", subnet, prefix, hostBits)
			}
		}
	})
}

func BenchmarkAllocateAmong5000(b *testing.B) {
	s, err := NewNodeSubnets([]Range{{pfx("10.0.0.0/8"), 9}})
	if err != nil {
		b.Fatal(err)
	}
	for range 5000 {
		if _, err := s.Allocate(); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		subnet, err := s.Allocate()
		if err != nil {
			b.Fatal(err)
		}
		s.Release(subnet)
	}
}
