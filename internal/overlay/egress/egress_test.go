package egress

import (
	"net/netip"
	"slices"
	"testing"
)

// The connections of an address are flushed if a namespace loses it, no matter which project gets it. None are flushed if a project only
// gets another VNID, or another namespace joins it.
func TestEgressIPChangesHands(t *testing.T) {
	type held = map[uint32]netip.Addr
	one, two := netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("192.0.2.101")
	state := func(addresses held, namespaces map[string]uint32) *IPs {
		e := &IPs{Ways: map[uint32]Way{}, Namespaces: namespaces}
		for vnid, address := range addresses {
			e.Ways[vnid] = Way{Address: address}
		}
		return e
	}
	joined := state(held{10: one}, map[string]uint32{"a": 10, "b": 10})
	for _, test := range []struct {
		name          string
		before, after *IPs
		gone          []netip.Addr
	}{
		{"nothing", joined, joined, nil},
		{"another number", joined, state(held{12: one}, map[string]uint32{"a": 12, "b": 12}), nil},
		{"another joins", joined, state(held{10: one}, map[string]uint32{"a": 10, "b": 10, "c": 10}), nil},
		{"one of those that were joined is isolated", joined, state(held{10: one, 11: {}}, map[string]uint32{"a": 10, "b": 11}), []netip.Addr{one}},
		{"one of them wants none any more", joined, state(held{10: one}, map[string]uint32{"a": 10}), []netip.Addr{one}},
		{
			"from one project to another",
			state(held{10: one, 11: {}}, map[string]uint32{"a": 10, "b": 11}),
			state(held{10: {}, 11: one}, map[string]uint32{"a": 10, "b": 11}),
			[]netip.Addr{one},
		},
		{
			"two swap",
			state(held{10: one, 11: two}, map[string]uint32{"a": 10, "b": 11}),
			state(held{10: two, 11: one}, map[string]uint32{"a": 10, "b": 11}),
			[]netip.Addr{one, two},
		},
		{"it is elsewhere", joined, state(held{10: {}}, map[string]uint32{"a": 10, "b": 10}), []netip.Addr{one}},
	} {
		_, gone := moved(test.before, test.after)
		slices.SortFunc(gone, netip.Addr.Compare)
		if !slices.Equal(gone, test.gone) {
			t.Errorf("%s: connections of %v are flushed, want %v", test.name, gone, test.gone)
		}
	}
}
