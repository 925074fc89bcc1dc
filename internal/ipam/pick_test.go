package ipam

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func TestVNIDs(t *testing.T) {
	v := NewVNIDs(10, 13, rand.New(rand.NewPCG(1, 2)))
	v.Use(0) // the global one is never allocated and does not count
	v.Use(12)
	seen := map[uint32]bool{12: true}
	for range 3 {
		id, err := v.Allocate()
		if err != nil || seen[id] || id < 10 || id > 13 {
			t.Fatalf("allocated %d, %v; seen %v", id, err, seen)
		}
		seen[id] = true
	}
	if _, err := v.Allocate(); !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "all 4 VNIDs from 10 to 13") {
		t.Fatalf("full: %v", err)
	}
	v.Use(11) // a second namespace joins
	v.Release(11)
	if _, err := v.Allocate(); !errors.Is(err, ErrExhausted) {
		t.Fatalf("an identifier is free while it has a holder: %v", err)
	}
	v.Release(11)
	if id, err := v.Allocate(); err != nil || id != 11 {
		t.Fatalf("after its last holder: %d, %v", id, err)
	}
	if v.Release(9) || v.Holders(0) != 1 || v.Holders(12) != 1 {
		t.Error("holders are wrong")
	}
}

func TestVNIDsAreDeterministic(t *testing.T) {
	a, b := NewVNIDs(10, 1<<24-1, rand.New(rand.NewPCG(7, 7))), NewVNIDs(10, 1<<24-1, rand.New(rand.NewPCG(7, 7)))
	for range 100 {
		x, _ := a.Allocate()
		y, _ := b.Allocate()
		if x != y || x < 10 || x > 1<<24-1 {
			t.Fatalf("%d and %d", x, y)
		}
	}
}

func TestVNIDsAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := NewVNIDs(10, 17, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)))
		holders := map[uint32]int{}
		id := rapid.Uint32Range(0, 20)
		t.Repeat(map[string]func(*rapid.T){
			"allocate": func(t *rapid.T) {
				free := 0
				for i := uint32(10); i <= 17; i++ {
					if holders[i] == 0 {
						free++
					}
				}
				got, err := v.Allocate()
				if (err == nil) != (free > 0) || err == nil && (holders[got] != 0 || got < 10 || got > 17) {
					t.Fatalf("allocated %d, %v with %d free: %v", got, err, free, holders)
				}
				if err == nil {
					holders[got]++
				}
			},
			"use": func(t *rapid.T) { i := id.Draw(t, "id"); v.Use(i); holders[i]++ },
			"release": func(t *rapid.T) {
				i := id.Draw(t, "id")
				if got := v.Release(i); got != (holders[i] > 0) {
					t.Fatalf("release of %d: %t", i, got)
				}
				holders[i] = max(0, holders[i]-1)
			},
		})
	})
}

func TestPool(t *testing.T) {
	p, err := NewPool(pfx("10.128.0.0/29"))
	if err != nil {
		t.Fatal(err)
	}
	if p.Gateway() != addr("10.128.0.1") || p.Capacity() != 5 || p.Subnet() != pfx("10.128.0.0/29") {
		t.Fatalf("gateway %v, capacity %d", p.Gateway(), p.Capacity())
	}
	used := map[netip.Addr]bool{}
	pick := func(want string) {
		t.Helper()
		got, err := p.Pick(func(a netip.Addr) bool { return used[a] })
		if err != nil || got != addr(want) {
			t.Fatalf("picked %v, %v; want %s", got, err, want)
		}
		used[got] = true
	}
	for _, want := range []string{"10.128.0.2", "10.128.0.3", "10.128.0.4"} {
		pick(want)
	}
	delete(used, addr("10.128.0.3"))
	pick("10.128.0.5") // not the address just released
	pick("10.128.0.6")
	pick("10.128.0.3")
	_, err = p.Pick(func(a netip.Addr) bool { return used[a] })
	if !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "all 5 pod addresses of subnet 10.128.0.0/29") {
		t.Fatalf("full: %v", err)
	}
	delete(used, addr("10.128.0.2"))
	delete(used, addr("10.128.0.5"))
	p.Resume(addr("10.128.0.4"))
	p.Resume(addr("10.128.0.1")) // not for pods: no change
	p.Resume(addr("192.0.2.1"))
	pick("10.128.0.5")
}

func TestPoolSizes(t *testing.T) {
	for text, capacity := range map[string]uint64{
		"10.128.0.0/23": 509, "10.0.0.0/30": 1, "10.0.0.0/8": 1<<24 - 3, "fd00::/120": 254, "fd00::/64": ^uint64(0),
	} {
		p, err := NewPool(pfx(text))
		if err != nil || p.Capacity() != capacity {
			t.Errorf("%s: %d, %v; want %d", text, p.Capacity(), err, capacity)
		}
	}
	for _, text := range []string{"10.0.0.0/31", "10.0.0.0/32", "10.0.0.1/24", "fd00::/127"} {
		if _, err := NewPool(pfx(text)); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
	if _, err := NewPool(netip.Prefix{}); err == nil {
		t.Error("no subnet is accepted")
	}
	p, _ := NewPool(pfx("10.128.0.0/23"))
	for text, want := range map[string]bool{
		"10.128.0.0": false, "10.128.0.1": false, "10.128.0.2": true, "10.128.0.255": true, "10.128.1.0": true,
		"10.128.1.254": true, "10.128.1.255": false, "10.128.2.0": false, "::ffff:10.128.0.2": false, "fd00::2": false,
	} {
		if got := p.Contains(addr(text)); got != want {
			t.Errorf("contains %s: %t", text, got)
		}
	}
}

func TestPoolAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(26, 30).Draw(t, "bits")
		subnet := netip.PrefixFrom(addr("10.1.2.64"), bits).Masked()
		p, err := NewPool(subnet)
		if err != nil {
			t.Fatal(err)
		}
		var usable []netip.Addr // by definition: all but network, gateway, broadcast
		for a := subnet.Addr(); subnet.Contains(a); a = a.Next() {
			usable = append(usable, a)
		}
		usable = usable[2 : len(usable)-1]
		used, at := map[netip.Addr]bool{}, -1
		t.Repeat(map[string]func(*rapid.T){
			"pick": func(t *rapid.T) {
				var want netip.Addr
				for i := range usable {
					if j := (at + 1 + i) % len(usable); !used[usable[j]] {
						want, at = usable[j], j
						break
					}
				}
				got, err := p.Pick(func(a netip.Addr) bool { return used[a] })
				if got != want || (err == nil) != want.IsValid() {
					t.Fatalf("picked %v, %v; want %v", got, err, want)
				}
				if err == nil {
					used[got] = true
				}
			},
			"release": func(t *rapid.T) { delete(used, rapid.SampledFrom(usable).Draw(t, "address")) },
			"restart": func(t *rapid.T) {
				if at >= 0 {
					p, _ = NewPool(subnet)
					p.Resume(usable[at])
				}
			},
		})
	})
}

func TestOfports(t *testing.T) {
	var o Ofports
	used := map[uint32]bool{4: true}
	pick := func() uint32 {
		port, err := o.Pick(func(p uint32) bool { return used[p] })
		if err != nil {
			t.Fatal(err)
		}
		return port
	}
	if a, b := pick(), pick(); a != 3 || b != 5 {
		t.Fatalf("%d, %d; want 3, 5", a, b)
	}
	o.Resume(OfportMax)
	o.Resume(0xfffe) // LOCAL: not for pods
	if got := pick(); got != 3 {
		t.Errorf("after the last: %d", got)
	}
	if _, err := o.Pick(func(uint32) bool { return true }); !errors.Is(err, ErrExhausted) {
		t.Errorf("full: %v", err)
	}
}
