// Package linktest is the conformance suite of link's engines: the Fake behaves like the kernel.
package linktest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/reconcile/enginetest"
)

// Subject is an engine with a device wtdev in its own namespace, and a second namespace.
type Subject struct {
	reconcile.Engine[link.Key, link.Item]
	// Other is the path of the second namespace.
	Other string
	// Restart returns the engine of a new process that has Other in its options.
	Restart func() reconcile.Engine[link.Key, link.Item]
	// RemoveDevice and AddDevice remove wtdev and create it again, as a switch's restart does.
	RemoveDevice, AddDevice func()
	// RemoveOther removes the second namespace.
	RemoveOther func()
	// Forget removes an item without the engine.
	Forget func(item link.Item)
}

// Device is the name of the device that exists.
const Device = "wtdev"

func prefix(text string) netip.Prefix { return netip.MustParsePrefix(text) }

// State is a desired state with an item of every kind, the pair's other end in the namespace other.
func State(other string) map[link.Key]link.Item {
	gateway := netip.MustParseAddr("10.128.0.9")
	return Items(
		&link.Device{
			Name: Device, Owner: "cluster", MTU: 1400, MAC: net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 1}, Up: true, Group: 77, TxQLen: 500,
			TxOffload: link.Off, Sysctls: link.Sysctls{AcceptRA: link.Off, Forwarding4: link.On, RouteLocalnet: link.On, DisableIPv6: link.Off},
			Addresses: []netip.Prefix{prefix("10.128.0.1/23"), prefix("fd00:10::1/64")}, NoPrefixRoute: true,
		},
		&link.Veth{Name: "wtpair", PeerNetns: other, PeerName: "wtpeer", Owner: "test"},
		&link.Device{Name: "wtpair", Owner: "test", Up: true, Addresses: []netip.Prefix{prefix("192.0.2.1/30")}},
		&link.Device{Netns: other, Name: "wtpeer", Owner: "test", Up: true, Addresses: []netip.Prefix{prefix("192.0.2.2/30")}},
		&link.Address{Device: Device, Address: netip.MustParseAddr("198.51.100.7")},
		&link.Address{Device: Device, Address: netip.MustParseAddr("10.128.0.7")},
		&link.Route{Dst: prefix("10.128.0.0/23"), Device: Device, Source: netip.MustParseAddr("10.128.0.1")},
		&link.Route{Dst: prefix("10.128.0.0/14"), Device: Device, Gateway: gateway, MTU: 1350},
		&link.Route{Dst: prefix("172.30.0.0/16"), Device: Device, Table: 1077, Metric: 10},
		&link.Route{Dst: prefix("10.200.0.0/16"), Blackhole: true},
		&link.Route{Dst: prefix("fd00:10::/64"), Device: Device},
		&link.Route{Dst: prefix("fd00:20::/64"), Device: Device, Gateway: netip.MustParseAddr("fd00:10::9"), Metric: 7},
		&link.Route{Netns: other, Dst: prefix("0.0.0.0/0"), Device: "wtpeer", Gateway: netip.MustParseAddr("192.0.2.1")},
		&link.Neighbour{Device: Device, Address: gateway, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}},
		&link.Rule{Priority: 1077, Source: prefix("10.128.0.0/14"), InDevice: Device, Mark: 0x10, Mask: 0xff, Table: 1077},
		&link.Rule{Priority: 1078, IPv6: true, Table: 1077},
	)
}

// Items keys items.
func Items(items ...link.Item) map[link.Key]link.Item {
	state := map[link.Key]link.Item{}
	for _, item := range items {
		state[item.Key()] = item
	}
	return state
}

// Run runs the suite.
func Run(t *testing.T, make func(t *testing.T) Subject) {
	t.Run("commit and read back", func(t *testing.T) { readBack(t, make(t)) })
	t.Run("change and delete", func(t *testing.T) { changes(t, make(t)) })
	t.Run("roll back", func(t *testing.T) { rollBack(t, make(t)) })
	t.Run("device re-created", func(t *testing.T) { recreated(t, make(t)) })
	t.Run("namespace vanished", func(t *testing.T) { vanished(t, make(t)) })
	t.Run("drift", func(t *testing.T) { drift(t, make(t)) })
	t.Run("bridges", func(t *testing.T) { bridges(t, make(t)) })
	t.Run("entries fail alone", func(t *testing.T) { entries(t, make(t)) })
	t.Run("any sequence", func(t *testing.T) { sequences(t, make(t)) })
}

func readBack(t *testing.T, s Subject) {
	enginetest.Converge(t, s, State(s.Other))
	if err := s.Commit(context.Background(), reconcile.Change[link.Key, link.Item]{Set: State(s.Other)}); err != nil {
		t.Fatalf("the same again: %v", err)
	}
	enginetest.Settled(t, s, State(s.Other))
	// A new process recognizes pairs once they are desired.
	restarted := s.Restart()
	enginetest.Converge(t, restarted, State(s.Other))
}

func changes(t *testing.T, s Subject) {
	enginetest.Converge(t, s, State(s.Other))
	next := State(s.Other)
	set := func(item link.Item) { next[item.Key()] = item }
	set(&link.Device{
		Name: Device, Owner: "cluster", MTU: 1300, Up: true, Addresses: []netip.Prefix{prefix("10.128.0.1/23"), prefix("10.128.0.2/32"), prefix("fd00:10::1/64")},
		NoPrefixRoute: true, TxOffload: link.On,
	})
	set(&link.Route{Dst: prefix("10.128.0.0/14"), Device: Device})
	set(&link.Rule{Priority: 1078, IPv6: true, Table: 1079})
	delete(next, (&link.Route{Dst: prefix("10.200.0.0/16")}).Key())
	delete(next, (&link.Neighbour{Device: Device, Address: netip.MustParseAddr("10.128.0.9")}).Key())
	enginetest.Converge(t, s, next)
	enginetest.Converge(t, s, nil)
}

func rollBack(t *testing.T, s Subject) {
	enginetest.Converge(t, s, State(s.Other))
	bad := State(s.Other)
	device := *bad[link.Key{Kind: link.KindDevice, Name: Device}].(*link.Device)
	device.MTU, device.Group, device.Up, device.Addresses = 1280, 5, false, []netip.Prefix{prefix("10.128.0.1/23"), prefix("198.51.100.1/24"), prefix("fd00:10::1/64")}
	bad[device.Key()] = &device
	unreachable := &link.Route{Dst: prefix("203.0.113.0/24"), Device: Device, Gateway: netip.MustParseAddr("203.0.113.200")}
	bad[unreachable.Key()] = unreachable
	err := s.Commit(context.Background(), reconcile.Diff(bad, State(s.Other)))
	var rollback *link.RollbackError
	if err == nil || errors.As(err, &rollback) {
		t.Fatalf("an unreachable gateway: %v", err)
	}
	enginetest.Settled(t, s, State(s.Other))
	missing := &link.Device{Name: "wtmissing", Up: true}
	if err := s.Commit(context.Background(), reconcile.Change[link.Key, link.Item]{Set: Items(missing)}); !errors.Is(err, link.ErrNoDevice) {
		t.Fatalf("a device that does not exist: %v", err)
	}
	enginetest.Settled(t, s, State(s.Other))
}

func recreated(t *testing.T, s Subject) {
	enginetest.Converge(t, s, State(s.Other))
	s.RemoveDevice()
	actual, err := s.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	change := reconcile.Diff(State(s.Other), actual)
	if err := s.Commit(context.Background(), change); !errors.Is(err, link.ErrNoDevice) {
		t.Fatalf("without the device: %v", err)
	}
	s.AddDevice()
	enginetest.Converge(t, s, State(s.Other))
}

func vanished(t *testing.T, s Subject) {
	enginetest.Converge(t, s, State(s.Other))
	s.RemoveOther()
	device := &link.Device{Netns: s.Other, Name: "wtpeer", Up: true}
	if err := s.Commit(context.Background(), reconcile.Change[link.Key, link.Item]{Set: Items(device)}); !errors.Is(err, link.ErrNoNamespace) {
		t.Fatalf("in a namespace that is gone: %v", err)
	}
	gone := Items(&link.Route{Netns: s.Other, Dst: prefix("0.0.0.0/0"), Device: "wtpeer", Gateway: netip.MustParseAddr("192.0.2.1")})
	if err := s.Commit(context.Background(), reconcile.Change[link.Key, link.Item]{Delete: gone}); err != nil {
		t.Fatalf("deleting from a namespace that is gone: %v", err)
	}
}

func drift(t *testing.T, s Subject) {
	enginetest.Converge(t, s, State(s.Other))
	for _, item := range State(s.Other) {
		if kind := item.Key().Kind; kind == link.KindDevice || kind == link.KindVeth {
			continue
		}
		s.Forget(item)
		actual, err := s.Read(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if _, found := actual[item.Key()]; found {
			t.Errorf("%v is read although it was removed", item)
		}
		enginetest.Converge(t, s, State(s.Other))
	}
}
