package nftnl_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/reconcile/enginetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type engine = reconcile.Engine[nftnl.Key, nftnl.Item]

func addr(text string) nftnl.Value         { return nftnl.Addr(netip.MustParseAddr(text)) }
func prefix(text string) nftnl.Value       { return nftnl.Prefix(netip.MustParsePrefix(text)) }
func match(v ...nftnl.Value) []nftnl.Value { return v }

// sample has an item, field, match and statement of every kind.
func sample() map[nftnl.Key]nftnl.Item {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	return nftnl.Items(
		&nftnl.Chain{Name: "forward", Hook: nftnl.HookForward, Priority: -5},
		&nftnl.Chain{Name: "pod-1"},
		&nftnl.Chain{Name: "policy-1"},
		&nftnl.Set{Name: "peers", Fields: []nftnl.Field{nftnl.IPSource, nftnl.L4Proto, nftnl.DestinationPort}, Interval: true},
		&nftnl.Set{Name: "plain", Fields: []nftnl.Field{nftnl.IPSource, nftnl.DestinationPort}},
		&nftnl.Set{Name: "blocks", Fields: []nftnl.Field{nftnl.IPDestination}, Interval: true},
		&nftnl.Set{Name: "six", Fields: []nftnl.Field{nftnl.IP6Source}, Interval: true},
		&nftnl.Set{Name: "ports", Fields: []nftnl.Field{nftnl.InDevice}},
		&nftnl.Set{Name: "pods", Fields: []nftnl.Field{nftnl.IPDestination}, Verdicts: true},
		&nftnl.Set{Name: "pods6", Fields: []nftnl.Field{nftnl.IP6Destination}, Verdicts: true},
		&nftnl.Element{Set: "peers", Match: match(prefix("10.0.0.0/8"), nftnl.Proto(6), nftnl.PortRange(80, 90))},
		&nftnl.Element{Set: "peers", Match: match(addr("192.0.2.1"), nftnl.Proto(17), nftnl.Port(53))},
		&nftnl.Element{Set: "plain", Match: match(addr("192.0.2.1"), nftnl.Port(53))},
		&nftnl.Element{Set: "blocks", Match: match(prefix("10.0.0.0/24"))},
		&nftnl.Element{Set: "blocks", Match: match(prefix("10.0.1.0/24"))}, // adjacent: stays a separate element
		&nftnl.Element{Set: "blocks", Match: match(nftnl.AddrRange(netip.MustParseAddr("10.9.0.3"), netip.MustParseAddr("10.9.0.77")))},
		&nftnl.Element{Set: "blocks", Match: match(addr("0.0.0.0"))},
		&nftnl.Element{Set: "blocks", Match: match(prefix("255.255.255.0/24"))},
		&nftnl.Element{Set: "six", Match: match(prefix("fd00::/64"))},
		&nftnl.Element{Set: "ports", Match: match(nftnl.Name("veth12"))},
		&nftnl.Element{Set: "pods", Match: match(addr("10.1.0.5")), Verdict: nftnl.Goto("pod-1")},
		&nftnl.Element{Set: "pods", Match: match(addr("10.1.0.6")), Verdict: nftnl.Accept()},
		&nftnl.Element{Set: "pods6", Match: match(addr("fd00::5")), Verdict: nftnl.Drop()},
		&nftnl.Rules{Chain: "forward", Rules: []nftnl.Rule{
			{Matches: []nftnl.Match{nftnl.AnyBit(nftnl.ConntrackState, nftnl.StateEstablished|nftnl.StateRelated)}, Verdict: nftnl.Accept()},
			{Matches: []nftnl.Match{nftnl.In("ports", nftnl.InDevice)}, Map: "pods", MapFields: []nftnl.Field{nftnl.IPDestination}},
			{Map: "pods6", MapFields: []nftnl.Field{nftnl.IP6Destination}, Owner: "the second family"},
			{Matches: []nftnl.Match{
				nftnl.Is(nftnl.OutDevice, nftnl.Name("cni0")), nftnl.Not(nftnl.AnyBit(nftnl.Mark, 0x40)),
				nftnl.Not(nftnl.In("blocks", nftnl.IPDestination)),
			}, Counter: true, Verdict: nftnl.Drop(), Owner: "unjudged"},
		}},
		&nftnl.Rules{Chain: "pod-1", Rules: []nftnl.Rule{
			{Verdict: nftnl.Jump("policy-1"), Owner: "policy/ns/a"},
			{Verdict: nftnl.Drop()},
		}},
		&nftnl.Rules{Chain: "policy-1", Rules: []nftnl.Rule{
			{
				Matches: []nftnl.Match{nftnl.In("peers", nftnl.IPSource, nftnl.L4Proto, nftnl.DestinationPort)},
				Mark:    0x40, MarkMask: 0xc0, Verdict: nftnl.Accept(),
			},
			{Matches: []nftnl.Match{
				nftnl.In("six", nftnl.IP6Source), nftnl.Is(nftnl.L4Proto, nftnl.Proto(6)),
				nftnl.Is(nftnl.DestinationPort, nftnl.PortRange(1000, 2000)), nftnl.Not(nftnl.Is(nftnl.SourcePort, nftnl.Port(7))),
			}, Verdict: nftnl.Accept()},
			{Matches: []nftnl.Match{nftnl.In("plain", nftnl.IPSource, nftnl.DestinationPort)}, Verdict: nftnl.Return()},
			{Matches: []nftnl.Match{
				nftnl.Is(nftnl.L4Proto, nftnl.Proto(6)), nftnl.Not(nftnl.AnyBit(nftnl.TCPFlags, nftnl.SYN)),
			}, Verdict: nftnl.Drop()},
			{Matches: []nftnl.Match{
				nftnl.Is(nftnl.IP6HopLimit, nftnl.Byte(255)), nftnl.Is(nftnl.L4Proto, nftnl.Proto(58)), nftnl.Is(nftnl.ICMPType, nftnl.Byte(135)),
			}, Verdict: nftnl.Accept()},
			{Matches: []nftnl.Match{nftnl.Not(nftnl.Is(nftnl.IPNetwork, nftnl.Byte(127))), nftnl.In("plain", nftnl.IPSource, nftnl.DestinationPort)}, Verdict: nftnl.Return()},
			{Matches: []nftnl.Match{nftnl.Is(nftnl.EtherSource, nftnl.MAC(mac)), nftnl.Is(nftnl.EtherType, nftnl.Port(0x0800))}, Verdict: nftnl.Return()},
		}},
	)
}

// subject is an engine whose table a test can change as another program would.
type subject struct {
	engine
	forget  func(item nftnl.Item)
	restart func() engine
}

func suite(t *testing.T, start func(t *testing.T) subject) {
	ctx := context.Background()
	t.Run("read back", func(t *testing.T) {
		s := start(t)
		enginetest.Converge(t, s, sample())
		enginetest.Settled(t, s.restart(), sample())
		if err := s.Commit(ctx, nftnl.Change{Set: sample()}); err != nil {
			t.Fatalf("the same again: %v", err)
		}
		enginetest.Settled(t, s, sample())
		enginetest.Converge(t, s, nil)
	})
	t.Run("changes", func(t *testing.T) {
		s := start(t)
		enginetest.Converge(t, s, sample())
		next := sample()
		for _, item := range []nftnl.Item{
			&nftnl.Chain{Name: "forward", Hook: nftnl.HookForward, Priority: 7}, // its rules are kept
			&nftnl.Chain{Name: "new"},
			&nftnl.Element{Set: "pods", Match: match(addr("10.1.0.6")), Verdict: nftnl.Goto("new")},
			&nftnl.Rules{Chain: "policy-1", Rules: []nftnl.Rule{{Verdict: nftnl.Accept(), Owner: "short"}}},
		} {
			next[item.Key()] = item
		}
		for key := range next { // a chain or set is removed with its content and the references to it
			if key.Name == "pod-1" || key.Name == "six" || key.Name == "plain" {
				delete(next, key)
			}
		}
		delete(next, (&nftnl.Element{Set: "pods", Match: match(addr("10.1.0.5"))}).Key())
		delete(next, (&nftnl.Element{Set: "blocks", Match: match(prefix("10.0.0.0/24"))}).Key())
		enginetest.Converge(t, s, next)
		if err := s.Commit(ctx, reconcile.Diff(sample(), next)); err != nil { // without reading
			t.Fatal(err)
		}
		enginetest.Settled(t, s, sample())
	})
	t.Run("refused", func(t *testing.T) {
		s := start(t)
		enginetest.Converge(t, s, sample())
		for _, bad := range []nftnl.Item{
			&nftnl.Rules{Chain: "pod-1", Rules: []nftnl.Rule{{Verdict: nftnl.Jump("missing")}}},
			&nftnl.Rules{Chain: "missing", Rules: []nftnl.Rule{{Verdict: nftnl.Accept()}}},
			&nftnl.Rules{Chain: "pod-1", Rules: []nftnl.Rule{{Matches: []nftnl.Match{nftnl.In("missing", nftnl.IPSource)}}}},
			&nftnl.Element{Set: "pods", Match: match(addr("10.1.0.9")), Verdict: nftnl.Goto("missing")},
		} {
			good := &nftnl.Element{Set: "plain", Match: match(addr("192.0.2.9"), nftnl.Port(9))}
			if err := s.Commit(ctx, nftnl.Change{Set: nftnl.Items(good, bad)}); !errors.Is(err, nftnl.ErrRefused) {
				t.Errorf("%v: %v", bad, err)
			}
			enginetest.Settled(t, s, sample())
		}
		if err := s.Commit(ctx, nftnl.Change{Set: nftnl.Items(&nftnl.Set{Name: "pods", Fields: []nftnl.Field{nftnl.Mark}})}); !errors.Is(err, nftnl.ErrInvalid) {
			t.Errorf("another type: %v", err)
		}
		enginetest.Settled(t, s, sample())
	})
	t.Run("drift", func(t *testing.T) {
		s := start(t)
		enginetest.Converge(t, s, sample())
		for _, lost := range []nftnl.Item{
			&nftnl.Rules{Chain: "policy-1"},
			&nftnl.Element{Set: "pods", Match: match(addr("10.1.0.5"))},
			&nftnl.Element{Set: "peers", Match: match(addr("192.0.2.1"), nftnl.Proto(17), nftnl.Port(53))},
		} {
			s.forget(lost)
			// The deletion of something that does not exist, and an addition, without a read before.
			extra := &nftnl.Element{Set: "plain", Match: match(addr("192.0.2.8"), nftnl.Port(8))}
			if err := s.Commit(ctx, nftnl.Change{Set: nftnl.Items(extra), Delete: nftnl.Items(sample()[lost.Key()])}); err != nil {
				t.Fatal(err)
			}
			enginetest.Converge(t, s, sample())
		}
	})
}

func TestFake(t *testing.T) {
	suite(t, func(*testing.T) subject {
		f := nftnl.NewFake()
		return subject{engine: f, forget: func(item nftnl.Item) { f.Forget(item.Key()) }, restart: func() engine { return f }}
	})
}

func TestInvalid(t *testing.T) {
	for _, item := range []nftnl.Item{
		&nftnl.Chain{Name: "a b"},
		&nftnl.Chain{Name: "a", Hook: "ingress"},
		&nftnl.Set{Name: "a"},
		&nftnl.Set{Name: "a", Fields: []nftnl.Field{99}},
		&nftnl.Set{Name: "a", Fields: []nftnl.Field{nftnl.InDevice}, Interval: true},
		&nftnl.Set{Name: "a", Fields: []nftnl.Field{nftnl.IP6Source, nftnl.IP6Source, nftnl.IP6Source, nftnl.IP6Source, nftnl.Mark}},
		&nftnl.Element{Set: "a"},
		&nftnl.Element{Set: "a", Match: match(nftnl.PortRange(2, 1))},
		&nftnl.Element{Set: "a", Match: match(nftnl.Port(2)), Verdict: nftnl.Jump("")},
		&nftnl.Rules{Chain: "a"},
		&nftnl.Rules{Chain: "a", Rules: []nftnl.Rule{{Verdict: nftnl.Verdict{Kind: "queue"}}}},
		&nftnl.Rules{Chain: "a", Rules: []nftnl.Rule{{Owner: "line\nbreak"}}},
		&nftnl.Rules{Chain: "a", Rules: []nftnl.Rule{{Mark: 3, MarkMask: 1}}},
		&nftnl.Rules{Chain: "a", Rules: []nftnl.Rule{{Matches: []nftnl.Match{nftnl.Is(nftnl.Mark, nftnl.Port(1))}}}},
		&nftnl.Rules{Chain: "a", Rules: []nftnl.Rule{{Matches: []nftnl.Match{nftnl.AnyBit(nftnl.L4Proto, 1)}}}},
		&nftnl.Rules{Chain: "a", Rules: []nftnl.Rule{{Matches: []nftnl.Match{{Fields: []nftnl.Field{nftnl.Mark, nftnl.Mark}}}}}},
	} {
		err := nftnl.NewFake().Commit(t.Context(), nftnl.Change{Set: nftnl.Items(item)})
		if !errors.Is(err, nftnl.ErrInvalid) {
			t.Errorf("%v: %v", item, err)
		}
	}
}

// The items' texts are those of nft(8).
func TestGolden(t *testing.T) {
	var lines []string
	for _, kind := range []nftnl.Kind{nftnl.KindChain, nftnl.KindSet, nftnl.KindRules} {
		for _, name := range []string{"forward", "pod-1", "policy-1", "peers", "blocks", "pods"} {
			if item, ok := sample()[nftnl.Key{Kind: kind, Name: name}]; ok {
				lines = append(lines, item.String())
			}
		}
	}
	want, err := os.ReadFile("testdata/sample.nft")
	if err != nil {
		t.Fatal(err)
	}
	if have := strings.Join(lines, "\n") + "\n"; have != string(want) {
		t.Errorf("testdata/sample.nft should be\n%s", have)
	}
}

// The evaluated fields of random states and packets.
const (
	sets   = 3
	chains = 4
)

// randomState draws a state that the kernel accepts: rules jump only to chains of a higher number.
func randomState(t *rapid.T) map[nftnl.Key]nftnl.Item {
	items := []nftnl.Item{&nftnl.Chain{Name: "c0", Hook: nftnl.HookOutput, Priority: rapid.IntRange(-9, 9).Draw(t, "priority")}}
	for i := 1; i < chains; i++ {
		items = append(items, &nftnl.Chain{Name: fmt.Sprint("c", i)})
	}
	var kinds [sets]*nftnl.Set
	for i := range kinds {
		kinds[i] = &nftnl.Set{Name: fmt.Sprint("s", i), Fields: fieldsOf(i), Interval: i != 1, Verdicts: i == 2}
		items = append(items, kinds[i])
		for n := range rapid.IntRange(0, 4).Draw(t, "elements") {
			items = append(items, randomElement(t, kinds[i], n))
		}
	}
	for i := range chains {
		var rules []nftnl.Rule
		for range rapid.IntRange(0, 4).Draw(t, "rules") {
			rules = append(rules, randomRule(t, i, kinds[:]))
		}
		if len(rules) > 0 {
			items = append(items, &nftnl.Rules{Chain: fmt.Sprint("c", i), Rules: rules})
		}
	}
	return nftnl.Items(items...)
}

func fieldsOf(set int) []nftnl.Field {
	return [][]nftnl.Field{
		{nftnl.DestinationPort}, {nftnl.IPDestination, nftnl.L4Proto}, {nftnl.IPDestination, nftnl.DestinationPort},
	}[set]
}

// randomElement draws an element; n keeps the intervals of a set disjoint.
func randomElement(t *rapid.T, set *nftnl.Set, n int) *nftnl.Element {
	low := uint16(4000 + 10*n)
	ports := nftnl.PortRange(low, low+uint16(rapid.IntRange(0, 9).Draw(t, "width")))
	e := &nftnl.Element{Set: set.Name}
	switch set.Name {
	case "s0":
		e.Match = match(ports)
	case "s1":
		e.Match = match(addr(fmt.Sprint("127.0.0.", n)), nftnl.Proto(17))
	default:
		e.Match = match(prefix(fmt.Sprintf("127.0.0.0/%d", rapid.IntRange(24, 31).Draw(t, "bits"))), ports)
		e.Verdict = randomVerdict(t, chains-1)
	}
	return e
}

func randomVerdict(t *rapid.T, chain int) nftnl.Verdict {
	options := []nftnl.Verdict{nftnl.Accept(), nftnl.Drop(), nftnl.Return()}
	for next := chain + 1; next < chains; next++ {
		options = append(options, nftnl.Jump(fmt.Sprint("c", next)), nftnl.Goto(fmt.Sprint("c", next)))
	}
	return rapid.SampledFrom(options).Draw(t, "verdict")
}

func randomRule(t *rapid.T, chain int, kinds []*nftnl.Set) nftnl.Rule {
	udp := nftnl.Is(nftnl.L4Proto, nftnl.Proto(17))
	options := []nftnl.Match{
		nftnl.Is(nftnl.IPDestination, prefix("127.0.0.2/31")),
		nftnl.Is(nftnl.DestinationPort, nftnl.Port(4001)),
		nftnl.Is(nftnl.OutDevice, nftnl.Name("lo")),
		nftnl.Is(nftnl.IP6Destination, addr("::1")),
		nftnl.Is(nftnl.Mark, nftnl.Bits(2)),
		nftnl.AnyBit(nftnl.Mark, 3),
		nftnl.In("s0", nftnl.DestinationPort),
		nftnl.In("s1", nftnl.IPDestination, nftnl.L4Proto),
	}
	rule := nftnl.Rule{Matches: []nftnl.Match{udp}, Counter: rapid.Bool().Draw(t, "counter"), Owner: rapid.SampledFrom([]string{"", "a", "b/c"}).Draw(t, "owner")}
	for range rapid.IntRange(0, 2).Draw(t, "matches") {
		m := rapid.SampledFrom(options).Draw(t, "match")
		if rapid.Bool().Draw(t, "inverted") {
			m = nftnl.Not(m)
		}
		rule.Matches = append(rule.Matches, m)
	}
	switch rapid.IntRange(0, 3).Draw(t, "statement") {
	case 0:
		rule.Mark, rule.MarkMask = uint32(rapid.IntRange(0, 3).Draw(t, "mark")), 3
	case 1:
		rule.Map, rule.MapFields = "s2", kinds[2].Fields
	default:
		rule.Verdict = randomVerdict(t, chain)
	}
	return rule
}

// A rule's meaning in the fake: goto does not return, jump does.
func TestJudge(t *testing.T) {
	f := nftnl.NewFake()
	enginetest.Converge(t, f, sample())
	packet := func(source, destination string, port uint16, in string) nftnl.Packet {
		return nftnl.Packet{
			nftnl.IPSource: addr(source), nftnl.IPDestination: addr(destination), nftnl.L4Proto: nftnl.Proto(6),
			nftnl.DestinationPort: nftnl.Port(port), nftnl.InDevice: nftnl.Name(in),
		}
	}
	for _, c := range []struct {
		packet nftnl.Packet
		want   nftnl.Verdict
	}{
		{packet("10.2.2.2", "10.1.0.5", 85, "veth12"), nftnl.Accept()},
		{packet("10.2.2.2", "10.1.0.5", 95, "veth12"), nftnl.Drop()},
		{packet("11.2.2.2", "10.1.0.5", 85, "veth12"), nftnl.Drop()},
		{packet("11.2.2.2", "10.1.0.5", 85, "eth0"), nftnl.Accept()},
		{packet("11.2.2.2", "10.1.0.6", 85, "veth12"), nftnl.Accept()},
	} {
		got, after := f.Judge(nftnl.HookForward, c.packet)
		if got != c.want {
			t.Errorf("%v: %v, want %v", c.packet, got, c.want)
		}
		if c.packet[nftnl.DestinationPort] == nftnl.Port(85) && c.packet[nftnl.IPSource] == addr("10.2.2.2") && after[nftnl.Mark] != nftnl.Bits(0x40) {
			t.Errorf("mark %v", after[nftnl.Mark])
		}
	}
}
