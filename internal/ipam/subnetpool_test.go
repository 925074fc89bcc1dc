package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"go4.org/netipx"
	"pgregory.net/rapid"
)

// naive is a pool that searches all addresses.
type naive struct {
	all                []netip.Addr
	gateway, low, high netip.Addr
	excluded           map[netip.Addr]bool
	used               map[netip.Addr]string
	last               int
}

func (n *naive) free(addr netip.Addr) bool {
	_, taken := n.used[addr]
	return !taken && !n.reserved(addr)
}

func (n *naive) reserved(addr netip.Addr) bool {
	return n.excluded[addr] || addr == n.gateway || addr == n.low || addr == n.high
}

func (n *naive) next(owner string) (netip.Addr, bool) {
	for i := 1; i <= len(n.all); i++ {
		at := (n.last + i) % len(n.all)
		if n.free(n.all[at]) {
			n.last, n.used[n.all[at]] = at, owner
			return n.all[at], true
		}
	}
	return netip.Addr{}, false
}

func (n *naive) use(addr netip.Addr, owner string) bool {
	holder, taken := n.used[addr]
	if taken {
		return holder == owner
	}
	if addr == n.gateway || addr == n.low || addr == n.high || addr.Less(n.low) || n.high.Less(addr) {
		return false
	}
	n.used[addr] = owner
	return true
}

// expand returns the addresses in a text of ranges.
func expand(t *rapid.T, text string) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for word := range strings.SplitSeq(text, ",") {
		if word == "" {
			continue
		}
		from, to, isRange := strings.Cut(word, "-")
		if !isRange {
			to = from
		}
		for addr := netip.MustParseAddr(from); ; addr = addr.Next() {
			if all[addr] {
				t.Fatalf("%s is twice in %q", addr, text)
			}
			all[addr] = true
			if addr == netip.MustParseAddr(to) {
				break
			}
		}
	}
	return all
}

// For any uses, releases and assignments, the pool behaves as the naive one, and counts and ranges agree after every step.
func TestSubnetPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefix := netip.PrefixFrom(netip.MustParseAddr("10.0.1.0"), rapid.IntRange(27, 30).Draw(t, "bits"))
		n := &naive{excluded: map[netip.Addr]bool{}, used: map[netip.Addr]string{}}
		for addr := prefix.Addr(); prefix.Contains(addr); addr = addr.Next() {
			n.all = append(n.all, addr)
		}
		n.low, n.high = n.all[0], n.all[len(n.all)-1]
		anyAddr := rapid.SampledFrom(append(n.all, netip.MustParseAddr("10.0.2.1")))
		n.gateway = rapid.SampledFrom(n.all[1:len(n.all)-1]).Draw(t, "gateway")
		var excludes []netipx.IPRange
		for range rapid.IntRange(0, 3).Draw(t, "excludes") {
			from, to := anyAddr.Draw(t, "from"), anyAddr.Draw(t, "to")
			if to.Less(from) {
				from, to = to, from
			}
			excludes = append(excludes, netipx.IPRangeFrom(from, to))
			for addr := from; !to.Less(addr); addr = addr.Next() {
				n.excluded[addr] = true
			}
		}
		p, err := NewSubnetPool(prefix, n.gateway, excludes)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			owner := fmt.Sprint("pod", rapid.IntRange(0, 9).Draw(t, "owner"))
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				want, ok := n.next(owner)
				have, err := p.Next(owner)
				if have != want || (err == nil) != ok || err != nil && !errors.Is(err, ErrExhausted) {
					t.Fatalf("next: %s, %v; want %s", have, err, want)
				}
			case 1:
				addr := anyAddr.Draw(t, "address")
				want, err := n.use(addr, owner), p.Use(addr, owner)
				if (err == nil) != want || err != nil && !errors.Is(err, ErrTaken) && !errors.Is(err, ErrOutside) {
					t.Fatalf("use %s for %s: %v; want %v", addr, owner, err, want)
				}
			case 2:
				addr := anyAddr.Draw(t, "address")
				p.Release(addr, owner)
				if n.used[addr] == owner {
					delete(n.used, addr)
				}
			}
			agree(t, p, n)
		}
	})
}

func agree(t *rapid.T, p *SubnetPool, n *naive) {
	available, using := p.Ranges()
	free, used := expand(t, available), expand(t, using)
	if int64(len(free)) != p.Available() || int64(len(used)) != p.Using() {
		t.Fatalf("%d available in %q, %d in use in %q", p.Available(), available, p.Using(), using)
	}
	for _, addr := range n.all {
		if free[addr] != n.free(addr) || used[addr] != (n.used[addr] != "" && !n.reserved(addr)) || p.Owner(addr) != n.used[addr] {
			t.Fatalf("%s: available %v, in use %v, by %q; want by %q", addr, free[addr], used[addr], p.Owner(addr), n.used[addr])
		}
	}
}

// A pool of a large range is created and used without a pass over all addresses.
func TestSubnetPoolOfALargeRange(t *testing.T) {
	excluded := netipx.IPRangeFrom(netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.200.0.0"))
	p, err := NewSubnetPool(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParseAddr("10.0.0.1"), []netipx.IPRange{excluded})
	if err != nil {
		t.Fatal(err)
	}
	if addr, err := p.Next("a"); err != nil || addr.String() != "10.200.0.1" {
		t.Errorf("%s, %v", addr, err)
	}
	if p.Available() != 1<<24-2-(200<<16)-1 {
		t.Errorf("%d available", p.Available())
	}
}

func TestSubnetPoolRefuses(t *testing.T) {
	for _, prefix := range []string{"10.0.1.1/24", "10.0.0.0/31", "0.0.0.0/0", "fd00::/64"} {
		if _, err := NewSubnetPool(netip.MustParsePrefix(prefix), netip.MustParseAddr("10.0.1.1"), nil); err == nil {
			t.Errorf("%s is accepted", prefix)
		}
	}
}
