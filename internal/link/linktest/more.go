package linktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/reconcile/enginetest"
)

// fabric is a bridge with two ports, in a namespace.
func fabric(netns string) map[link.Key]link.Item {
	return Items(
		&link.Bridge{Netns: netns, Name: "wtbr", Owner: "fabric", NFCallIPTables: link.On, NFCallIP6Tables: link.On, Promisc: true},
		&link.Device{
			Netns: netns, Name: "wtbr", Owner: "fabric", MTU: 1450, MAC: net.HardwareAddr{0x0a, 0x58, 10, 244, 0, 1}, Up: true,
			Addresses: []netip.Prefix{prefix("10.244.0.1/24")},
		},
		&link.Veth{Netns: netns, Name: "wtbp0", PeerNetns: netns, PeerName: "wtbp1", Owner: "fabric"},
		&link.Device{Netns: netns, Name: "wtbp0", Owner: "fabric", Up: true},
		&link.Device{Netns: netns, Name: "wtbp1", Owner: "fabric", Up: true},
		&link.BridgePort{Netns: netns, Bridge: "wtbr", Device: "wtbp0", Hairpin: true, Isolated: true},
		&link.BridgePort{Netns: netns, Bridge: "wtbr", Device: "wtbp1", MAC: [6]byte{0x0a, 0x58, 10, 244, 0, 2}},
	)
}

func bridges(t *testing.T, s Subject) {
	for _, netns := range []string{"", s.Other} {
		enginetest.Converge(t, s, fabric(netns))
		next := fabric(netns)
		for _, item := range []link.Item{
			&link.Bridge{Netns: netns, Name: "wtbr", Owner: "fabric", NFCallIPTables: link.Off},
			&link.BridgePort{Netns: netns, Bridge: "wtbr", Device: "wtbp0"},
		} {
			next[item.Key()] = item
		}
		delete(next, link.Key{Netns: netns, Kind: link.KindBridgePort, Name: "wtbp1"})
		enginetest.Converge(t, s, next)
		missing := &link.BridgePort{Netns: netns, Bridge: "wtnone", Device: "wtbp0"}
		if err := s.Commit(context.Background(), reconcile.Change[link.Key, link.Item]{Set: Items(missing)}); !errors.Is(err, link.ErrNoDevice) {
			t.Errorf("a bridge that does not exist: %v", err)
		}
		enginetest.Converge(t, s, next)
		enginetest.Converge(t, s, nil)
	}
	adopted := &link.Bridge{Name: Device}
	if err := s.Commit(context.Background(), reconcile.Change[link.Key, link.Item]{Set: Items(adopted)}); !errors.Is(err, link.ErrForeign) {
		t.Errorf("a device of others: %v", err)
	}
}

// ground is what entries need: the device with an address.
func ground() *link.Device {
	return &link.Device{Name: Device, Owner: "cluster", Up: true, Addresses: []netip.Prefix{prefix("10.128.0.1/23"), prefix("fd00:10::1/64")}}
}

// entries checks that in a change of entries only the wrong ones fail, and that they leave nothing.
func entries(t *testing.T, s Subject) {
	desired := Items(ground())
	enginetest.Converge(t, s, desired)
	good := Items(
		&link.Route{Dst: prefix("10.1.0.0/24"), Device: Device, Gateway: netip.MustParseAddr("10.128.0.9")},
		&link.Route{Dst: prefix("10.2.0.0/24"), Device: Device},
		&link.Neighbour{Device: Device, Address: netip.MustParseAddr("10.128.0.9"), MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}},
		&link.Address{Device: Device, Address: netip.MustParseAddr("198.51.100.8")},
	)
	bad := Items(
		&link.Route{Dst: prefix("10.1.1.0/24"), Device: Device, Gateway: netip.MustParseAddr("203.0.113.200")},
		&link.Route{Dst: prefix("10.1.2.0/24"), Device: "wtmissing"},
		&link.Neighbour{Device: "wtmissing", Address: netip.MustParseAddr("10.128.0.9"), MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}},
	)
	all := maps.Clone(good)
	maps.Copy(all, bad)
	err := s.Commit(context.Background(), reconcile.Change[link.Key, link.Item]{Set: all})
	var partial *reconcile.PartialError[link.Key]
	if !errors.As(err, &partial) || len(partial.Failed) != len(bad) {
		t.Fatalf("%d of %d entries should fail: %v", len(bad), len(all), err)
	}
	for key := range bad {
		if partial.Failed[key] == nil {
			t.Errorf("%s did not fail", key)
		}
	}
	maps.Copy(desired, good)
	enginetest.Settled(t, s, desired)
	if err := s.Commit(context.Background(), reconcile.Change[link.Key, link.Item]{Delete: all}); err != nil {
		t.Errorf("deleting, also what is not there: %v", err)
	}
	enginetest.Settled(t, s, Items(ground()))
}

// sequences checks that any sequence of desired states ends with the last one, without reading in between.
func sequences(t *testing.T, s Subject) {
	enginetest.Converge(t, s, Items(ground()))
	last := Items(ground())
	rapid.Check(t, func(r *rapid.T) {
		for range rapid.IntRange(1, 4).Draw(r, "states") {
			next := randomEntries(r)
			if err := s.Commit(context.Background(), reconcile.Diff(next, last)); err != nil {
				r.Fatalf("%v", err)
			}
			last = next
		}
		have, err := s.Read(context.Background())
		if err != nil {
			r.Fatal(err)
		}
		if change := reconcile.Diff(last, have); !change.Empty() {
			r.Fatalf("want %v\nhave %v", last, have)
		}
	})
}

func randomEntries(r *rapid.T) map[link.Key]link.Item {
	items := []link.Item{ground()}
	gateways := []netip.Addr{{}, netip.MustParseAddr("10.128.0.8"), netip.MustParseAddr("10.128.0.9")}
	gateways6 := []netip.Addr{{}, netip.MustParseAddr("fd00:10::8"), netip.MustParseAddr("fd00:10::9")}
	for i := range 6 {
		if !rapid.Bool().Draw(r, "there") {
			continue
		}
		route := &link.Route{Dst: prefix(fmt.Sprintf("10.%d.0.0/16", i)), Device: Device, MTU: rapid.SampledFrom([]int{0, 1300}).Draw(r, "mtu")}
		route.Gateway = rapid.SampledFrom(gateways).Draw(r, "gateway")
		if i > 2 {
			route.Dst, route.Gateway = prefix(fmt.Sprintf("fd00:%d::/64", 100+i)), rapid.SampledFrom(gateways6).Draw(r, "gateway")
		}
		if rapid.IntRange(0, 4).Draw(r, "blackhole") == 0 {
			route = &link.Route{Dst: route.Dst, Blackhole: true}
		}
		neighbour := &link.Neighbour{
			Device: Device, Address: netip.MustParseAddr(fmt.Sprint("10.128.1.", i)), MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(rapid.IntRange(1, 3).Draw(r, "mac"))},
		}
		items = append(items, route, neighbour)
		if rapid.Bool().Draw(r, "address") {
			items = append(items, &link.Address{Device: Device, Address: netip.MustParseAddr(fmt.Sprint("198.51.100.", i))})
		}
	}
	return Items(items...)
}
