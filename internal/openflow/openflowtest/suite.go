// Package openflowtest holds the suite that every OpenFlow engine passes: the fake, the fake behind a socket, and the
// engine on a real switch.
package openflowtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/reconcile"
)

// Subject is an engine under test, on a switch that is empty when the test begins.
type Subject struct {
	Engine interface {
		reconcile.Engine[openflow.Key, openflow.Entry]
		Next(ctx context.Context) (bridge.Event, error)
	}
	// Disturb makes changes on the switch without the engine.
	Disturb func(t *testing.T, mods ...openflow.Mod)
	// Restart makes the switch lose its flows, and with them the engine's connection.
	Restart func(t *testing.T)
}

// patience is the time limit of every wait.
const patience = 30 * time.Second

// Run runs the suite; start makes a fresh subject for each test.
func Run(t *testing.T, start func(t *testing.T) Subject) {
	tests := []struct {
		name string
		run  func(t *testing.T, ctx context.Context, s Subject)
	}{
		{"what is committed is read back", readsBack},
		{"a second commit of the same is no change", settles},
		{"set replaces, delete removes", replaces},
		{"a refused change leaves nothing behind", refuses},
		{"a malformed change never reaches the switch", validates},
		{"groups come before and go after their flows", groups},
		{"a change larger than a bundle is made whole", large},
		{"flows with a timeout belong to the switch", timeouts},
		{"foreign changes are reported, own changes are not", reportsDrift},
		{"after a restart everything is committed again", restarts},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			s := start(t)
			awaitConnected(t, ctx, s)
			test.run(t, ctx, s)
		})
	}
}

func awaitConnected(t *testing.T, ctx context.Context, s Subject) {
	t.Helper()
	for {
		event, err := s.Engine.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if event.Connected {
			return
		}
	}
}

func state(entries ...openflow.Entry) map[openflow.Key]openflow.Entry {
	m := make(map[openflow.Key]openflow.Entry, len(entries))
	for _, e := range entries {
		m[e.Key()] = e
	}
	return m
}

func reconcileTo(t *testing.T, ctx context.Context, s Subject, desired map[openflow.Key]openflow.Entry) bridge.Change {
	t.Helper()
	actual, err := s.Engine.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	change := reconcile.Diff(desired, actual)
	if err := s.Engine.Commit(ctx, change); err != nil {
		t.Fatal(err)
	}
	return change
}

func wantState(t *testing.T, ctx context.Context, s Subject, desired map[openflow.Key]openflow.Entry) {
	t.Helper()
	actual, err := s.Engine.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if change := reconcile.Diff(desired, actual); !change.Empty() {
		t.Fatalf("the switch holds\n%swant\n%s", openflow.Text(actual), openflow.Text(desired))
	}
}

// Sample is a small pipeline with one of everything that Weft's pipeline uses.
func Sample() map[openflow.Key]openflow.Entry {
	pod, mac := netip.MustParsePrefix("10.128.0.5/32"), net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 5}
	service, zone := netip.MustParsePrefix("172.30.0.10/32"), uint16(65280)
	affinity := action.Learn(action.LearnSpec{Table: 24, Priority: 200, HardTimeout: 300, Cookie: 9, Fields: []action.LearnField{
		action.LearnMatchValue(oxm.Whole(oxm.FieldEthType), oxm.EthTypeIPv4),
		action.LearnMatch(oxm.Whole(oxm.FieldIPv4Src), oxm.Whole(oxm.FieldIPv4Src)),
		action.LearnLoadValue(oxm.Whole(oxm.FieldReg(3)), 7),
	}})
	return state(
		&openflow.Flow{Table: 0, Priority: 100, Cookie: 1, Match: oxm.NewMatch(oxm.InPort(1)), Actions: action.Actions{action.GotoTable(10)}},
		&openflow.Flow{Table: 10, Priority: 100, Match: oxm.NewMatch(oxm.TunSrc(netip.MustParseAddr("192.0.2.1"))), Actions: action.Actions{
			action.Move(oxm.Bits(oxm.FieldTunID, 0, 31), oxm.Whole(oxm.FieldReg(0))), action.GotoTable(30),
		}},
		&openflow.Flow{Table: 20, Priority: 100, Match: oxm.NewMatch(oxm.InPort(5), oxm.EthSrc(mac), oxm.IPSrc(pod)), Actions: action.Actions{
			action.Load(oxm.Whole(oxm.FieldReg(0)), 77), action.GotoTable(21),
		}},
		&openflow.Flow{Table: 20, Priority: 90, Match: oxm.NewMatch(oxm.InPort(5), oxm.ARP(), oxm.ARPSPA(pod), oxm.ARPSHA(mac)), Actions: action.Actions{action.GotoTable(30)}},
		&openflow.Flow{Table: 21, Priority: 10, Match: oxm.NewMatch(oxm.EthType(oxm.EthTypeIPv4)), Actions: action.Actions{
			action.CT(action.CTAction{Zone: zone, NAT: &action.NAT{}, Table: new(uint8(25))}),
		}},
		&openflow.Flow{Table: 25, Priority: 50, Match: oxm.NewMatch(oxm.CTState(oxm.CTNew|oxm.CTTrk, 0), oxm.IPDst(service), oxm.TCPDst(443)), Actions: action.Actions{affinity, action.GroupAction(7)}},
		&openflow.Group{ID: 7, Type: openflow.GroupSelect, Buckets: []openflow.Bucket{
			{Weight: 100, Actions: action.Actions{action.CT(action.CTAction{Commit: true, Zone: zone, Table: new(uint8(27)), NAT: action.DNAT(pod.Addr(), 8443)})}},
			{Weight: 100, Actions: action.Actions{action.CT(action.CTAction{Commit: true, Zone: zone, Table: new(uint8(27)), NAT: action.DNAT(netip.MustParseAddr("10.128.0.6"), 8443)})}},
		}},
		&openflow.Flow{Table: 80, Priority: 50, Match: oxm.NewMatch(oxm.IPSrc(pod), oxm.Reg(1, 77)), Actions: action.Actions{action.Conjunction(4, 1, 2), action.Conjunction(5, 2, 2)}},
		&openflow.Flow{Table: 80, Priority: 50, Match: oxm.NewMatch(oxm.EthType(oxm.EthTypeIPv4), oxm.ConjID(4)), Actions: action.Actions{
			action.CT(action.CTAction{Commit: true, Zone: zone, Exec: action.Actions{action.SetField(oxm.CTMark(4))}}), action.OutputReg(oxm.Whole(oxm.FieldReg(2))),
		}},
		&openflow.Flow{Table: 90, Priority: 1, Match: oxm.NewMatch(oxm.IPDst(netip.MustParsePrefix("10.129.0.0/23"))), Actions: action.Actions{
			action.Move(oxm.Whole(oxm.FieldReg(0)), oxm.Bits(oxm.FieldTunID, 0, 31)), action.SetField(oxm.TunDst(netip.MustParseAddr("192.0.2.2"))), action.Output(1),
		}},
		&openflow.Flow{Table: 253, Priority: 0, Actions: action.Actions{action.Note([]byte("a hash of the state"))}},
	)
}

func readsBack(t *testing.T, ctx context.Context, s Subject) {
	reconcileTo(t, ctx, s, Sample())
	wantState(t, ctx, s, Sample())
}

func settles(t *testing.T, ctx context.Context, s Subject) {
	reconcileTo(t, ctx, s, Sample())
	if change := reconcileTo(t, ctx, s, Sample()); !change.Empty() {
		t.Fatalf("the second change is not empty: set %s", openflow.Text(change.Set))
	}
}

func drop(table uint8, priority uint16, fields ...oxm.MatchField) *openflow.Flow {
	return &openflow.Flow{Table: table, Priority: priority, Match: oxm.NewMatch(fields...)}
}

func replaces(t *testing.T, ctx context.Context, s Subject) {
	a, b := drop(5, 1, oxm.InPort(1)), drop(5, 2, oxm.InPort(2))
	reconcileTo(t, ctx, s, state(a, b))
	changed := &openflow.Flow{Table: 5, Priority: 1, Cookie: 3, Match: a.Match, Actions: action.Actions{action.Output(9)}}
	reconcileTo(t, ctx, s, state(changed))
	wantState(t, ctx, s, state(changed))
}

func refuses(t *testing.T, ctx context.Context, s Subject) {
	reconcileTo(t, ctx, s, state(drop(5, 1)))
	bad := &openflow.Flow{Table: 6, Priority: 7, Actions: action.Actions{action.GroupAction(99)}}
	change := bridge.Change{Set: state(drop(5, 2), bad), Delete: state(drop(5, 1))}
	err := s.Engine.Commit(ctx, change)
	var refusal *openflow.Error
	if !errors.As(err, &refusal) {
		t.Fatalf("committing a flow to a group that is not there: %v", err)
	}
	if refusal.Name() != "OFPBAC_BAD_OUT_GROUP" || refusal.Of != bad.String() {
		t.Errorf("the refusal is %s of %q, want OFPBAC_BAD_OUT_GROUP of %q", refusal.Name(), refusal.Of, bad)
	}
	wantState(t, ctx, s, state(drop(5, 1)))
	reconcileTo(t, ctx, s, state(drop(5, 3)))
	wantState(t, ctx, s, state(drop(5, 3)))
}

func validates(t *testing.T, ctx context.Context, s Subject) {
	for name, entry := range map[string]openflow.Entry{
		"a transport port without an eth_type":      drop(1, 1, oxm.TCPDst(80)),
		"a step back":                               &openflow.Flow{Table: 5, Actions: action.Actions{action.GotoTable(5)}},
		"a conjunction beside an output":            &openflow.Flow{Table: 5, Actions: action.Actions{action.Conjunction(1, 1, 2), action.Output(1)}},
		"a bucket number twice":                     &openflow.Group{ID: 1, Type: openflow.GroupAll, Buckets: []openflow.Bucket{{ID: 3}, {ID: 3}}},
		"an indirect group of two":                  &openflow.Group{ID: 1, Type: openflow.GroupIndirect, Buckets: make([]openflow.Bucket, 2)},
		"a flow with a timeout":                     &openflow.Flow{Table: 1, IdleTimeout: 5},
		"a flow longer than a message":              &openflow.Flow{Table: 1, Actions: slices.Repeat(action.Actions{action.Output(1)}, 5000)},
		"a masked field that allows no mask":        drop(1, 1, oxm.Masked(oxm.FieldConjID, 1, 1)),
		"an instruction in a group's bucket":        &openflow.Group{ID: 1, Type: openflow.GroupAll, Buckets: []openflow.Bucket{{Actions: action.Actions{action.GotoTable(5)}}}},
		"an address that is none":                   drop(1, 1, oxm.EthSrc(nil)),
		"a prefix of no family":                     drop(1, 1, oxm.IPSrc(netip.Prefix{})),
		"a value too large for its field":           drop(1, 1, oxm.VLANVID(5000)),
		"a number too large for its range":          &openflow.Flow{Table: 5, Actions: action.Actions{action.Load(oxm.RegBits(1, 0, 7), 256)}},
		"an address that is none, to be set":        &openflow.Flow{Table: 5, Actions: action.Actions{action.SetField(oxm.TunDst(netip.Addr{}))}},
		"bits beyond their field":                   &openflow.Flow{Table: 5, Actions: action.Actions{action.OutputReg(oxm.Subfield{Field: oxm.FieldReg(2), Offset: 30, Bits: 16})}},
		"the same deep within":                      &openflow.Flow{Table: 5, Actions: action.Actions{action.CT(action.CTAction{Commit: true, Exec: action.Actions{action.Load(oxm.Bits(oxm.FieldCTMark, 0, 3), 16)}})}},
		"neighbour discovery of no message's shape": drop(1, 1, oxm.NDTarget(netip.MustParsePrefix("fe80::1/128"))),
	} {
		if err := s.Engine.Commit(ctx, bridge.Change{Set: state(entry)}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	wantState(t, ctx, s, state())
}

func groups(t *testing.T, ctx context.Context, s Subject) {
	group := func(port uint32) *openflow.Group {
		return &openflow.Group{ID: 7, Type: openflow.GroupAll, Buckets: []openflow.Bucket{{Actions: action.Actions{action.Output(port)}}}}
	}
	user := &openflow.Flow{Table: 3, Priority: 3, Actions: action.Actions{action.GroupAction(7)}}
	reconcileTo(t, ctx, s, state(group(1), user))
	wantState(t, ctx, s, state(group(1), user))
	reconcileTo(t, ctx, s, state(group(2), user))
	wantState(t, ctx, s, state(group(2), user))
	reconcileTo(t, ctx, s, state(drop(3, 3)))
	wantState(t, ctx, s, state(drop(3, 3)))
}

func large(t *testing.T, ctx context.Context, s Subject) {
	desired := state()
	for i := range 3000 {
		f := drop(uint8(i%50), uint16(i))
		desired[f.Key()] = f
	}
	reconcileTo(t, ctx, s, desired)
	wantState(t, ctx, s, desired)
	reconcileTo(t, ctx, s, state())
	wantState(t, ctx, s, state())
}

func timeouts(t *testing.T, ctx context.Context, s Subject) {
	s.Disturb(t, openflow.Mod{Entry: &openflow.Flow{Table: 24, Priority: 5, HardTimeout: 600}})
	wantState(t, ctx, s, state())
}

func reportsDrift(t *testing.T, ctx context.Context, s Subject) {
	own := drop(5, 1)
	reconcileTo(t, ctx, s, state(own))
	strange := drop(6, 6, oxm.InPort(6))
	s.Disturb(t, openflow.Mod{Entry: strange}, openflow.Mod{Entry: own, Delete: true})
	want := map[openflow.Key]bool{strange.Key(): true, own.Key(): true}
	for len(want) > 0 {
		event, err := s.Engine.Next(ctx)
		if err != nil {
			t.Fatalf("%v still not reported: %v", want, err)
		}
		for _, key := range event.Drift {
			if key != strange.Key() && key != own.Key() {
				t.Errorf("%s was reported, but only the engine changed it", key)
			}
			delete(want, key)
		}
	}
	// The repair is the engine's own change, which it does not report.
	reconcileTo(t, ctx, s, state(own))
	wantState(t, ctx, s, state(own))
	marker := drop(7, 7)
	s.Disturb(t, openflow.Mod{Entry: marker})
	event, err := s.Engine.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(event.Drift) != fmt.Sprint([]openflow.Key{marker.Key()}) {
		t.Errorf("%v reported, want only %v", event.Drift, marker.Key())
	}
}

func restarts(t *testing.T, ctx context.Context, s Subject) {
	reconcileTo(t, ctx, s, Sample())
	s.Restart(t)
	awaitConnected(t, ctx, s)
	reconcileTo(t, ctx, s, Sample())
	wantState(t, ctx, s, Sample())
}
