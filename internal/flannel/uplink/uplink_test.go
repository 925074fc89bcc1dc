package uplink_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/uplink"
)

func addresses(texts ...string) []uplink.Address {
	var out []uplink.Address
	for _, text := range texts {
		out = append(out, uplink.Address{Addr: netip.MustParseAddr(text)})
	}
	return out
}

func node() uplink.Node {
	n := uplink.Node{
		Interfaces: []uplink.Interface{
			{Name: "lo", Index: 1, MTU: 65536, Addresses: addresses("127.0.0.1", "::1")},
			{Name: "eth0", Index: 2, MTU: 1500, Addresses: addresses("fe80::2", "192.0.2.2", "2001:db8::2", "192.0.2.3")},
			{Name: "eth1", Index: 3, MTU: 9000, Addresses: addresses("198.51.100.2", "fe80::3")},
		},
		Default4: []int{2, 3}, Default6: []int{2},
	}
	n.Reach.Index, n.Reach.Source = 3, netip.MustParseAddr("198.51.100.2")
	return n
}

// TestChoose compares the choice with flanneld's (its package ipmatch).
func TestChoose(t *testing.T) {
	v4, v6, dual := uplink.Options{V4: true}, uplink.Options{V6: true}, uplink.Options{V4: true, V6: true}
	with := func(o uplink.Options, edit func(*uplink.Options)) uplink.Options { edit(&o); return o }
	ip := netip.MustParseAddr
	for _, c := range []struct {
		name string
		node uplink.Node
		o    uplink.Options
		want string
	}{
		{"default route", node(), v4, "eth0 1500 192.0.2.2 192.0.2.2 - -"},
		{"default route, IPv6", node(), v6, "eth0 1500 - - 2001:db8::2 2001:db8::2"},
		{"dual", node(), dual, "eth0 1500 192.0.2.2 192.0.2.2 2001:db8::2 2001:db8::2"},
		{"name", node(), with(v4, func(o *uplink.Options) { o.Names = []string{"eth1"} }), "eth1 9000 198.51.100.2 198.51.100.2 - -"},
		{"the first that matches", node(), with(v4, func(o *uplink.Options) { o.Names = []string{"ens5", "eth1"} }), "eth1 9000 198.51.100.2 198.51.100.2 - -"},
		{"address is kept", node(), with(v4, func(o *uplink.Options) { o.Names = []string{"192.0.2.3"} }), "eth0 1500 192.0.2.3 192.0.2.3 - -"},
		{"regex on addresses", node(), with(v4, func(o *uplink.Options) { o.Patterns = []string{`^198\.51\.`} }), "eth1 9000 198.51.100.2 198.51.100.2 - -"},
		{"regex on names", node(), with(v4, func(o *uplink.Options) { o.Patterns = []string{`^nothing$`, `eth1$`} }), "eth1 9000 198.51.100.2 198.51.100.2 - -"},
		{"regex of one family, dual, by name then", node(), with(dual, func(o *uplink.Options) { o.Patterns = []string{`^192\.0|eth0`} }), "eth0 1500 192.0.2.2 192.0.2.2 2001:db8::2 2001:db8::2"},
		{"can reach", node(), with(v4, func(o *uplink.Options) { o.CanReach = ip("203.0.113.1") }), "eth1 9000 198.51.100.2 198.51.100.2 - -"},
		{"public address on an interface", node(), with(v4, func(o *uplink.Options) { o.Public = ip("198.51.100.2") }), "eth1 9000 198.51.100.2 198.51.100.2 - -"},
		{"public address of a gateway", node(), with(v4, func(o *uplink.Options) { o.Public = ip("203.0.113.9") }), "eth0 1500 192.0.2.2 203.0.113.9 - -"},
		{"public address and name", node(), with(v4, func(o *uplink.Options) { o.Public, o.Names = ip("203.0.113.9"), []string{"eth1"} }), "eth1 9000 198.51.100.2 203.0.113.9 - -"},
		{"no such", node(), with(v4, func(o *uplink.Options) { o.Names = []string{"ens5"} }), "--iface=ens5: no interface of that name"},
		{"no IPv6 there", node(), with(dual, func(o *uplink.Options) { o.Names = []string{"lo0", "eth9"} }), "there are lo [127.0.0.1 ::1], eth0"},
		{"bad regex", node(), with(v4, func(o *uplink.Options) { o.Patterns = []string{"("} }), "--iface-regex=(: "},
		{"no default route", uplink.Node{Interfaces: node().Interfaces}, v4, "no IPv4 default route"},
		{"two interfaces", func() uplink.Node { n := node(); n.Default6 = []int{3}; return n }(), dual, "both must be by one interface"},
		{"no family", node(), uplink.Options{}, "neither IPv4 nor IPv6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u, err := uplink.Choose(c.node, c.o)
			got := fmt.Sprint(err)
			if err == nil {
				got = fmt.Sprintf("%s %d %s %s %s %s", u.Name, u.MTU, text(u.Addr), text(u.Public), text(u.Addr6), text(u.Public6))
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
}

func text(addr netip.Addr) string {
	if !addr.IsValid() {
		return "-"
	}
	return addr.String()
}

// TestOrderOfAddresses: global before link-local, permanent before dynamic, other before temporary, no deprecated ones.
func TestOrderOfAddresses(t *testing.T) {
	n := uplink.Node{Default6: []int{2}, Interfaces: []uplink.Interface{{Name: "eth0", Index: 2, MTU: 1500, Addresses: []uplink.Address{
		{Addr: netip.MustParseAddr("fe80::1")},
		{Addr: netip.MustParseAddr("2001:db8::1"), Deprecated: true},
		{Addr: netip.MustParseAddr("2001:db8::2"), Dynamic: true, Temporary: true},
		{Addr: netip.MustParseAddr("2001:db8::3"), Dynamic: true},
		{Addr: netip.MustParseAddr("2001:db8::4")},
	}}}}
	for _, want := range []string{"2001:db8::4", "2001:db8::3", "2001:db8::2", "fe80::1"} {
		u, err := uplink.Choose(n, uplink.Options{V6: true})
		if err != nil || u.Addr6.String() != want {
			t.Fatalf("%v, %v; want %s", u.Addr6, err, want)
		}
		kept := n.Interfaces[0].Addresses[:0:0]
		for _, a := range n.Interfaces[0].Addresses {
			if a.Addr.String() != want {
				kept = append(kept, a)
			}
		}
		n.Interfaces[0].Addresses = kept
	}
	if _, err := uplink.Choose(n, uplink.Options{V6: true}); err == nil {
		t.Error("a deprecated address was chosen")
	}
}

// TestAddressesInUse: an address in use stays the node's while its interface has it and it is not deprecated, whichever are added; a
// link-local one is replaced by the first global one.
func TestAddressesInUse(t *testing.T) {
	shared4, shared6 := netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("2001:db8::100")
	for name, c := range map[string]struct {
		has   []uplink.Address
		inUse []string
		want  string
	}{
		"a permanent address beside one of DHCP": {[]uplink.Address{{Addr: netip.MustParseAddr("192.0.2.2"), Dynamic: true}, {Addr: shared4}}, []string{"192.0.2.2"}, "192.0.2.2"},
		"a newer IPv6 address":                   {append([]uplink.Address{{Addr: shared6}}, addresses("2001:db8::2")...), []string{"2001:db8::2"}, "2001:db8::2"},
		"the address is gone":                    {addresses("192.0.2.100"), []string{"192.0.2.2"}, "192.0.2.100"},
		"it is deprecated": {
			append([]uplink.Address{{Addr: netip.MustParseAddr("2001:db8::2"), Deprecated: true}}, addresses("2001:db8::3")...), []string{"2001:db8::2"}, "2001:db8::3",
		},
		"a global address comes later": {append(addresses("fe80::2"), uplink.Address{Addr: shared6, Dynamic: true}), []string{"fe80::2"}, "2001:db8::100"},
		"none is in use":               {[]uplink.Address{{Addr: netip.MustParseAddr("192.0.2.2"), Dynamic: true}, {Addr: shared4}}, nil, "192.0.2.100"},
	} {
		for _, patterns := range [][]string{nil, {"."}} {
			o := uplink.Options{V4: c.has[0].Addr.Is4(), V6: c.has[0].Addr.Is6(), Patterns: patterns}
			for _, text := range c.inUse {
				o.InUse = append(o.InUse, netip.MustParseAddr(text))
			}
			n := uplink.Node{Default4: []int{2}, Default6: []int{2}, Interfaces: []uplink.Interface{{Name: "eth0", Index: 2, MTU: 1500, Addresses: c.has}}}
			u, err := uplink.Choose(n, o)
			if got := max(text(u.Addr), text(u.Addr6)); err != nil || got != c.want {
				t.Errorf("%s, patterns %v: %s, %v; want %s", name, patterns, got, err, c.want)
			}
		}
	}
}
