package ovn_test

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/reconcile"
)

// engine is the part of the real engine and of the Fake that the suite uses.
type engine interface {
	reconcile.Engine[ovn.Key, ovn.Row]
	Lead(ctx context.Context, term uint64) error
}

// bench is a database with as many engines as a test needs.
type bench struct {
	open func(t *testing.T) engine
}

type (
	rows = map[ovn.Key]ovn.Row
	text = map[string]string
)

func key(table ovn.Table, name string) ovn.Key { return ovn.UUID(table, name) }

func router(name string) ovn.Row {
	return ovn.Row{Owner: "Vpc/" + name, Text: text{"name": name}, Map: map[string]map[string]string{"options": {"a": "1"}}}
}

func logicalSwitch(name string) ovn.Row {
	return ovn.Row{Owner: "Subnet/" + name, Text: text{"name": name}}
}

func port(parent ovn.Key, name, address string) ovn.Row {
	return ovn.Row{
		Owner: "IP/" + name, Parent: parent, Text: text{"name": name}, Set: map[string][]string{"addresses": {address}, "port_security": {address}},
	}
}

func route(parent ovn.Key, prefix, hop string) ovn.Row {
	return ovn.Row{Owner: "Vpc/v", Parent: parent, Text: text{"ip_prefix": prefix, "nexthop": hop, "policy": "dst-ip"}}
}

func suite(t *testing.T, start func(t *testing.T) *bench) {
	t.Run("rows", func(t *testing.T) { testRows(t, start(t)) })
	t.Run("failures", func(t *testing.T) { testFailures(t, start(t)) })
	t.Run("replaced rules", func(t *testing.T) { testReplacedRules(t, start(t)) })
	t.Run("fence", func(t *testing.T) { testFence(t, start(t)) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func leading(t *testing.T, b *bench) engine {
	e := b.open(t)
	must(t, e.Lead(t.Context(), 1))
	return e
}

func commit(t *testing.T, e engine, set, remove rows) {
	t.Helper()
	must(t, e.Commit(t.Context(), ovn.Change{Set: set, Delete: remove}))
}

// expect compares what an engine reads with the desired state.
func expect(t *testing.T, e engine, want rows) {
	t.Helper()
	have, err := e.Read(t.Context())
	must(t, err)
	if change := reconcile.Diff(want, have); !change.Empty() {
		t.Errorf("not as desired:\n%s", cmp.Diff(want, have))
	}
}

// Rows are created, changed in place, moved to another parent, and removed, each change in one commit; another engine reads the same.
func testRows(t *testing.T, b *bench) {
	e := leading(t, b)
	r, s1, s2 := key(ovn.Router, "v"), key(ovn.Switch, "s1"), key(ovn.Switch, "s2")
	p, rt, pol, acl := key(ovn.SwitchPort, "p"), key(ovn.Route, "x"), key(ovn.Policy, "y"), key(ovn.ACL, "z")
	rp := key(ovn.RouterPort, "rp")
	want := rows{
		r: router("v"), s1: logicalSwitch("s1"), s2: logicalSwitch("s2"),
		p: port(s1, "p", "0a:58:0a:00:01:05 10.0.1.5"), rt: route(r, "0.0.0.0/0", "10.0.1.254"),
		rp: {Owner: "Vpc/v", Parent: r, Text: text{"name": "v/s1", "mac": "0a:58:0a:00:01:01"}, Set: map[string][]string{"networks": {"10.0.1.1/24"}}},
		pol: {
			Owner: "Vpc/v", Parent: r, Text: text{"match": "ip4", "action": "reroute"}, Number: map[string]int{"priority": 7},
			Set: map[string][]string{"nexthops": {"10.0.1.4", "10.0.1.3"}},
		},
		acl: {Owner: "Subnet/s1", Parent: s1, Text: text{"direction": "to-lport", "match": "ip", "action": "drop"}, Number: map[string]int{"priority": 1000}},
	}
	commit(t, e, want, nil)
	expect(t, e, want)
	commit(t, e, want, nil) // again: no change
	expect(t, b.open(t), want)

	changed := rows{p: port(s2, "p", "0a:58:0a:00:01:06 10.0.1.6"), r: router("v2"), rt: route(r, "10.0.0.0/8", "10.0.1.253")}
	changed[r] = ovn.Row{Owner: "Vpc/other", Text: text{"name": "v2"}}
	commit(t, e, changed, rows{acl: {}, pol: {}})
	maps.Copy(want, changed)
	delete(want, acl)
	delete(want, pol)
	expect(t, e, want)

	// A switch is removed with its ports; removing what does not exist any more succeeds.
	commit(t, e, nil, rows{s2: {}, acl: {}})
	delete(want, s2)
	delete(want, p)
	expect(t, e, want)
	commit(t, e, nil, want)
	expect(t, e, rows{})
	commit(t, e, rows{s2: logicalSwitch("s2"), p: port(s2, "p", "0a:58:0a:00:01:06 10.0.1.6")}, nil) // the same UUIDs are used again
}

// A row that cannot be written fails alone.
func testFailures(t *testing.T, b *bench) {
	e := leading(t, b)
	s := key(ovn.Switch, "s")
	twin, orphan, empty, foreign := key(ovn.SwitchPort, "twin"), key(ovn.SwitchPort, "orphan"), key(ovn.SwitchPort, "empty"), key("NAT", "nat")
	commit(t, e, rows{s: logicalSwitch("s"), key(ovn.SwitchPort, "p"): port(s, "p", "unknown")}, nil)
	good := key(ovn.SwitchPort, "good")
	err := e.Commit(t.Context(), ovn.Change{Set: rows{
		good: port(s, "good", "unknown"), orphan: port(key(ovn.Switch, "none"), "orphan", "unknown"),
		empty: {Parent: s, Text: text{"name": "empty"}}, foreign: {Owner: "x"},
	}})
	var partial *reconcile.PartialError[ovn.Key]
	if !errors.As(err, &partial) || len(partial.Failed) != 3 || !errors.Is(partial.Failed[orphan], ovn.ErrNoParent) ||
		!errors.Is(partial.Failed[empty], ovn.ErrInvalid) || !errors.Is(partial.Failed[foreign], ovn.ErrInvalid) {
		t.Errorf("%v", err)
	}
	if err := e.Commit(t.Context(), ovn.Change{Set: rows{twin: port(s, "p", "unknown")}}); err == nil {
		t.Error("two ports have one name")
	}
	expect(t, e, rows{s: logicalSwitch("s"), key(ovn.SwitchPort, "p"): port(s, "p", "unknown"), good: port(s, "good", "unknown")})
}

// Rules that drop packets stay while a rule of the same owner, which may replace them, cannot be written. Rules that allow are removed, and
// so are the rules of other owners.
func testReplacedRules(t *testing.T, b *bench) {
	e := leading(t, b)
	v, w := key(ovn.Router, "v"), key(ovn.Router, "w")
	rule := func(owner string, parent ovn.Key, action string) ovn.Row {
		return ovn.Row{Owner: owner, Parent: parent, Text: text{"match": "ip4.src == 10.0.1.9", "action": action}, Number: map[string]int{"priority": 7}}
	}
	drop, allow, others := key(ovn.Policy, "drop"), key(ovn.Policy, "allow"), key(ovn.Policy, "others")
	before := rows{
		v: router("v"), w: router("w"), drop: rule("Vpc/v", v, "drop"), allow: rule("Vpc/v", v, "allow"), others: rule("Vpc/w", w, "drop"),
	}
	commit(t, e, before, nil)
	next, gone := key(ovn.Policy, "next"), rows{drop: before[drop], allow: before[allow], others: before[others]}
	err := e.Commit(t.Context(), ovn.Change{Set: rows{next: rule("Vpc/v", key(ovn.Router, "none"), "drop")}, Delete: gone})
	var partial *reconcile.PartialError[ovn.Key]
	if !errors.As(err, &partial) || len(partial.Failed) != 2 || partial.Failed[next] == nil || !errors.Is(partial.Failed[drop], ovn.ErrReplaced) {
		t.Errorf("%v", err)
	}
	expect(t, e, rows{v: before[v], w: before[w], drop: before[drop]})
	commit(t, e, rows{next: rule("Vpc/v", v, "drop")}, rows{drop: before[drop]})
	expect(t, e, rows{v: before[v], w: before[w], next: rule("Vpc/v", v, "drop")})
}

// A deposed engine writes nothing, even if it has not noticed, and cannot lead again with its old term.
func testFence(t *testing.T, b *bench) {
	old, next := b.open(t), b.open(t)
	s := key(ovn.Switch, "s")
	if err := old.Commit(t.Context(), ovn.Change{Set: rows{s: logicalSwitch("s")}}); !errors.Is(err, ovn.ErrNotLeading) {
		t.Errorf("before a term: %v", err)
	}
	must(t, old.Lead(t.Context(), 3))
	commit(t, old, rows{s: logicalSwitch("s")}, nil)
	must(t, next.Lead(t.Context(), 4))
	if err := old.Commit(t.Context(), ovn.Change{Set: rows{s: logicalSwitch("deposed")}}); !errors.Is(err, ovn.ErrDeposed) {
		t.Errorf("deposed: %v", err)
	}
	if err := old.Lead(t.Context(), 3); !errors.Is(err, ovn.ErrDeposed) {
		t.Errorf("leading again: %v", err)
	}
	commit(t, next, rows{key(ovn.Switch, "s2"): logicalSwitch("s2")}, nil)
	expect(t, old, rows{s: logicalSwitch("s"), key(ovn.Switch, "s2"): logicalSwitch("s2")})
}

// The same words result in the same UUID, other words in another.
func TestUUID(t *testing.T) {
	seen := map[ovn.Key]string{}
	for _, words := range [][]string{{"a", "b"}, {"ab"}, {"a", "", "b"}, {"1:a"}, {}, {""}} {
		for _, table := range []ovn.Table{ovn.Switch, ovn.Router} {
			k := ovn.UUID(table, words...)
			if other, twice := seen[k]; twice || k != ovn.UUID(table, words...) || len(k.UUID) != 36 || k.UUID[14] != '5' {
				t.Errorf("%v: %s, like %s", words, k, other)
			}
			seen[k] = k.UUID
		}
	}
	if got := ovn.UUID(ovn.Switch, "a").UUID; got != ovn.UUID(ovn.Switch, "a").UUID {
		t.Error(got)
	}
}

func TestFake(t *testing.T) {
	suite(t, func(*testing.T) *bench {
		database := ovn.NewDatabase()
		return &bench{open: func(*testing.T) engine { return ovn.NewFake(database) }}
	})
}
