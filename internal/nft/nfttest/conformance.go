// Package nfttest is the conformance suite of nft's engines: the Fake behaves like the kernel.
package nfttest

import (
	"context"
	"errors"
	"testing"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/reconcile/enginetest"
)

// Unmanaged is a chain of State's table whose rules another program writes: the engine of a Subject has it in its options.
func Unmanaged() nft.Chain { return nft.Chain{Family: nft.FamilyInet, Table: Table, Name: "admin"} }

// Subject is an engine and another program that changes the same tables.
type Subject struct {
	reconcile.Engine[nft.Key, nft.Item]
	// Restart returns the engine of a new process on the same tables.
	Restart func() reconcile.Engine[nft.Key, nft.Item]
	// Tamper applies one of the Tampers to State's table.
	Tamper func(t *testing.T, tamper Tamper)
	// Administer adds a rule with Administered's comment to the chain Unmanaged, and next to it a set admin-addrs with an element.
	Administer func(t *testing.T)
	// Administered reports whether both are as they were added.
	Administered func(t *testing.T) bool
}

// Tamper is a change of State's table by another program.
type Tamper string

// The tampers.
const (
	RuleEdited      Tamper = "edit the second rule of chain forward, keeping its comment"
	RuleInserted    Tamper = "insert a rule before all in chain forward"
	RuleAppended    Tamper = "append a rule to chain helper"
	RuleRemoved     Tamper = "remove the first rule of chain forward"
	ChainFlushed    Tamper = "flush chain forward"
	TableFlushed    Tamper = "flush the table"
	TableDeleted    Tamper = "delete the table"
	ElementAdded    Tamper = "add element 10.9.9.9 to set pods"
	ElementRemoved  Tamper = "remove element 10.128.0.2 from set pods"
	PolicyChanged   Tamper = "change the policy of chain forward to drop"
	ChainAdded      Tamper = "add a chain stray"
	MapValueChanged Tamper = "change the verdict of 10.128.0.2 in map verdicts"
	TableDormant    Tamper = "set the table's flag dormant"
)

// Tampers returns all of them.
func Tampers() []Tamper {
	return []Tamper{
		RuleEdited, RuleInserted, RuleAppended, RuleRemoved, ChainFlushed, TableFlushed, TableDeleted, ElementAdded, ElementRemoved,
		PolicyChanged, ChainAdded, MapValueChanged, TableDormant,
	}
}

// Table is the name of State's table, in family inet.
const Table = "wttable"

// State is a desired state with an item of every kind in Weft's own table.
func State() map[nft.Key]nft.Item {
	const family = nft.FamilyInet
	return Items(
		&nft.Table{Family: family, Name: Table},
		&nft.Chain{Family: family, Table: Table, Name: "forward", Type: nft.TypeFilter, Hook: nft.HookForward, Priority: -5},
		&nft.Chain{Family: family, Table: Table, Name: "helper"},
		&nft.Chain{Family: family, Table: Table, Name: "early", Type: nft.TypeFilter, Hook: nft.HookPrerouting, Priority: -450, Policy: nft.PolicyDrop},
		&nft.Chain{Family: family, Table: Table, Name: "ingress", Type: nft.TypeFilter, Hook: nft.HookIngress, Device: "lo"},
		&nft.Set{Family: family, Table: Table, Name: "pods", Type: "ipv4_addr"},
		&nft.Set{Family: family, Table: Table, Name: "nets", Type: "ipv4_addr", Flags: []nft.SetFlag{nft.FlagInterval}},
		&nft.Set{Family: family, Table: Table, Name: "links", Type: "ifname"},
		&nft.Set{Family: family, Table: Table, Name: "seen", Type: "ipv6_addr", Flags: []nft.SetFlag{nft.FlagDynamic, nft.FlagTimeout}, Size: 1000},
		&nft.Map{Family: family, Table: Table, Name: "verdicts", Type: "ipv4_addr", Value: "verdict"},
		&nft.Map{Family: family, Table: Table, Name: "ports", Type: "ipv4_addr . inet_service", Value: "ipv4_addr . inet_service"},
		&nft.Element{Family: family, Table: Table, Set: "pods", Match: []string{"10.128.0.2"}, Owner: "attachment/a/eth0"},
		&nft.Element{Family: family, Table: Table, Set: "pods", Match: []string{"10.128.0.3"}},
		&nft.Element{Family: family, Table: Table, Set: "nets", Match: []string{"10.128.0.0/14"}, Owner: "clusternetwork"},
		&nft.Element{Family: family, Table: Table, Set: "nets", Match: []string{"192.0.2.3-192.0.2.9"}},
		&nft.Element{Family: family, Table: Table, Set: "links", Match: []string{"tun0"}},
		&nft.Element{Family: family, Table: Table, Set: "verdicts", Match: []string{"10.128.0.2"}, Value: []string{"jump helper"}, Owner: "policy/b"},
		&nft.Element{Family: family, Table: Table, Set: "ports", Match: []string{"192.0.2.1", "80"}, Value: []string{"10.128.0.2", "8080"}},
		&nft.ChainRules{Family: family, Table: Table, Chain: "forward", Rules: []nft.Rule{
			{Text: "ct state established,related accept", Owner: "cluster"},
			{Text: "ip saddr @pods counter accept", Owner: "pods"},
			{Text: "ip daddr vmap @verdicts"},
			{Text: "iifname @links ip daddr { 10.0.0.1, 10.0.0.0/30, 192.0.2.1 } tcp dport 1-65535 log prefix \"weft \" jump helper", Owner: "mixed"},
		}},
		&nft.ChainRules{Family: family, Table: Table, Chain: "helper", Rules: []nft.Rule{{Text: "meta mark set 0x1 return", Owner: "helper"}}},
		&nft.ChainRules{Family: family, Table: Table, Chain: "early", Rules: []nft.Rule{
			{Text: "iifgroup 77 drop", Owner: "group"}, {Text: "iifgroup != 77 accept", Owner: "group"},
		}},
	)
}

// Items keys items.
func Items(items ...nft.Item) map[nft.Key]nft.Item {
	state := map[nft.Key]nft.Item{}
	for _, item := range items {
		state[item.Key()] = item
	}
	return state
}

// Run runs the suite.
func Run(t *testing.T, make func(t *testing.T) Subject) {
	t.Run("commit and read back", func(t *testing.T) { readBack(t, make(t)) })
	t.Run("change and delete", func(t *testing.T) { changes(t, make(t)) })
	t.Run("all or nothing", func(t *testing.T) { atomic(t, make(t)) })
	t.Run("hostile text", func(t *testing.T) { hostile(t, make(t)) })
	t.Run("a foreign chain", func(t *testing.T) { administered(t, make) })
	for _, tamper := range Tampers() {
		t.Run(string(tamper), func(t *testing.T) { tampered(t, make(t), tamper) })
	}
}

func readBack(t *testing.T, s Subject) {
	enginetest.Converge(t, s, State())
	enginetest.Settled(t, s.Restart(), State())
	if err := s.Commit(context.Background(), reconcile.Change[nft.Key, nft.Item]{Set: State()}); err != nil {
		t.Fatalf("the same again: %v", err)
	}
	enginetest.Settled(t, s, State())
}

func changes(t *testing.T, s Subject) {
	enginetest.Converge(t, s, State())
	next := State()
	change := func(item nft.Item) { next[item.Key()] = item }
	const family = nft.FamilyInet
	change(&nft.Chain{Family: family, Table: Table, Name: "forward", Type: nft.TypeFilter, Hook: nft.HookForward, Priority: 5, Policy: nft.PolicyDrop})
	change(&nft.Element{Family: family, Table: Table, Set: "verdicts", Match: []string{"10.128.0.2"}, Value: []string{"drop"}, Owner: "policy/b"})
	change(&nft.Element{Family: family, Table: Table, Set: "pods", Match: []string{"10.128.0.3"}, Owner: "now owned"})
	change(&nft.Set{Family: family, Table: Table, Name: "nets", Type: "ipv4_addr", Flags: []nft.SetFlag{nft.FlagInterval}, Size: 77})
	// A new process knows the rules of the chain that is created again only by their digest.
	restarted := s.Restart()
	enginetest.Converge(t, restarted, next)
	for key := range next {
		if key.Name == "helper" || key.Name == "ports" || key.Kind == nft.KindElement && (key.Name == "ports 192.0.2.1 . 80") {
			delete(next, key)
		}
	}
	change(&nft.ChainRules{Family: family, Table: Table, Chain: "forward", Rules: []nft.Rule{{Text: "ip daddr vmap @verdicts"}}})
	enginetest.Converge(t, restarted, next)
	enginetest.Converge(t, s, nil)
}

func atomic(t *testing.T, s Subject) {
	enginetest.Converge(t, s, State())
	bad := State()
	const family = nft.FamilyInet
	key := nft.Key{Family: family, Table: Table, Kind: nft.KindRules, Name: "helper"}
	bad[key] = &nft.ChainRules{Family: family, Table: Table, Chain: "helper", Rules: []nft.Rule{{Text: "accept"}, {Text: "jump nowhere"}}}
	extra := &nft.Element{Family: family, Table: Table, Set: "pods", Match: []string{"10.128.0.77"}}
	bad[extra.Key()] = extra
	err := s.Commit(context.Background(), reconcile.Diff(bad, State()))
	if !errors.Is(err, nft.ErrRefused) || !errors.Is(err, nft.ErrMissing) {
		t.Fatalf("a jump to nowhere: %v", err)
	}
	enginetest.Settled(t, s, State())
}

// administered: what another program adds to an unmanaged chain survives everything but the removal of its table; after that the chain
// exists again, empty.
func administered(t *testing.T, make func(t *testing.T) Subject) {
	admin := Unmanaged()
	forwardRules := nft.Key{Family: nft.FamilyInet, Table: Table, Kind: nft.KindRules, Name: "forward"}
	desired := func() map[nft.Key]nft.Item {
		state := State()
		state[admin.Key()] = &admin
		before := state[forwardRules].(*nft.ChainRules)
		rules := &nft.ChainRules{Family: before.Family, Table: Table, Chain: before.Chain, Rules: append([]nft.Rule{{Text: "jump admin"}}, before.Rules...)}
		state[forwardRules] = rules
		return state
	}
	for _, tamper := range Tampers() {
		s := make(t)
		enginetest.Converge(t, s, desired())
		s.Administer(t)
		enginetest.Settled(t, s, desired())
		enginetest.Settled(t, s.Restart(), desired())
		if tamper == TableFlushed { // this empties the chain, and is not Weft's doing
			continue
		}
		s.Tamper(t, tamper)
		enginetest.Converge(t, s.Restart(), desired())
		if kept := s.Administered(t); kept != (tamper != TableDeleted) {
			t.Errorf("%s, and repair: the administrator's rules are kept: %v", tamper, kept)
		}
		gone := reconcile.Change[nft.Key, nft.Item]{Set: Items(State()[forwardRules]), Delete: Items(&admin)}
		if err := s.Commit(context.Background(), gone); err != nil {
			t.Errorf("the chain is no longer desired: %v", err)
		}
		if kept := s.Administered(t); kept != (tamper != TableDeleted) {
			t.Errorf("%s, repair, and the chain no longer desired: the administrator's rules are kept: %v", tamper, kept)
		}
	}
	s := make(t)
	enginetest.Converge(t, s, desired())
	rules := &nft.ChainRules{Family: nft.FamilyInet, Table: Table, Chain: admin.Name, Rules: []nft.Rule{{Text: "accept"}}}
	if err := s.Commit(context.Background(), reconcile.Change[nft.Key, nft.Item]{Set: Items(rules)}); err == nil {
		t.Error("rules for the chain are taken")
	}
}

func hostile(t *testing.T, s Subject) {
	const family = nft.FamilyInet
	for _, item := range []nft.Item{
		&nft.Table{Family: family, Name: "a b"},
		&nft.Table{Family: family, Name: "a; flush ruleset"},
		&nft.Element{Family: family, Table: Table, Set: "pods", Match: []string{"10.0.0.1 }\nflush ruleset"}},
		&nft.Element{Family: family, Table: Table, Set: "pods", Match: []string{"10.0.0.1"}, Owner: `x" }; flush ruleset #`},
		&nft.ChainRules{Family: family, Table: Table, Chain: "forward", Rules: []nft.Rule{{Text: "accept\nflush ruleset"}}},
		&nft.ChainRules{Family: family, Table: Table, Chain: "forward", Rules: []nft.Rule{{Text: "accept", Owner: "a\nb"}}},
		&nft.ForeignJump{Family: "ip", Table: "filter", Chain: "FORWARD", InDevice: `a" drop`},
	} {
		if err := s.Commit(context.Background(), reconcile.Change[nft.Key, nft.Item]{Set: Items(item)}); err == nil {
			t.Errorf("taken: %v", item)
		}
	}
}

func tampered(t *testing.T, s Subject, tamper Tamper) {
	enginetest.Converge(t, s, State())
	s.Tamper(t, tamper)
	for _, engine := range []reconcile.Engine[nft.Key, nft.Item]{s.Restart(), s} {
		actual, err := engine.Read(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if reconcile.Diff(State(), actual).Empty() {
			t.Fatal("not noticed")
		}
	}
	enginetest.Converge(t, s, State())
	enginetest.Settled(t, s.Restart(), State())
}
