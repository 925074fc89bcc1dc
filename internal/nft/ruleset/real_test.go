//go:build real

package ruleset_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nfttest"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/reconcile"
)

func newEngine(t testing.TB, netns string, foreign bool) *ruleset.Engine {
	t.Helper()
	table := nft.Table{Family: nft.FamilyInet, Name: nfttest.Table}
	engine, err := ruleset.NewEngine(ruleset.Options{
		Netns: netns, Tables: []nft.Table{table}, Foreign: foreign, Unmanaged: []nft.Chain{nfttest.Unmanaged()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	return engine
}

// command runs a program in the namespace with words on its standard input.
func command(t testing.TB, netns, input, name string, args ...string) string {
	t.Helper()
	var out []byte
	nstest.Do(t, netns, func() error {
		program := exec.Command(name, args...)
		program.Stdin = strings.NewReader(input)
		var err error
		out, err = program.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
		}
		return nil
	})
	return string(out)
}

func script(t testing.TB, netns string, lines ...string) {
	t.Helper()
	command(t, netns, strings.Join(lines, "\n")+"\n", "nft", "-f", "-")
}

// handle finds a rule's handle by a part of its text.
func handle(t testing.TB, netns, chain, part string) string {
	t.Helper()
	for line := range strings.Lines(command(t, netns, "", "nft", "-a", "list", "chain", "inet", nfttest.Table, chain)) {
		if text, number, ok := strings.Cut(strings.TrimSpace(line), " # handle "); ok && strings.Contains(text, part) {
			return number
		}
	}
	t.Fatalf("no rule %q in %s", part, chain)
	return ""
}

func tamperReal(t *testing.T, netns string, tamper nfttest.Tamper) {
	t.Helper()
	table := "inet " + nfttest.Table
	switch tamper {
	case nfttest.RuleEdited:
		number := handle(t, netns, "forward", "@pods")
		script(t, netns, "replace rule "+table+" forward handle "+number+` ip saddr @nets counter accept comment "pods"`)
	case nfttest.RuleInserted:
		script(t, netns, "insert rule "+table+" forward accept")
	case nfttest.RuleAppended:
		script(t, netns, "add rule "+table+" helper accept")
	case nfttest.RuleRemoved:
		script(t, netns, "delete rule "+table+" forward handle "+handle(t, netns, "forward", "established"))
	case nfttest.ChainFlushed:
		script(t, netns, "flush chain "+table+" forward")
	case nfttest.TableFlushed:
		script(t, netns, "flush table "+table)
	case nfttest.TableDeleted:
		script(t, netns, "delete table "+table)
	case nfttest.ElementAdded:
		script(t, netns, "add element "+table+" pods { 10.9.9.9 }")
	case nfttest.ElementRemoved:
		script(t, netns, "delete element "+table+" pods { 10.128.0.2 }")
	case nfttest.PolicyChanged:
		script(t, netns, "add chain "+table+" forward { policy drop; }")
	case nfttest.ChainAdded:
		script(t, netns, "add chain "+table+" stray")
	case nfttest.TableDormant:
		script(t, netns, "add table "+table+" { flags dormant; }")
	case nfttest.MapValueChanged:
		script(t, netns, "delete element "+table+" verdicts { 10.128.0.2 }",
			"add element "+table+` verdicts { 10.128.0.2 comment "policy/b" : accept }`)
	}
}

func TestRealConforms(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	nfttest.Run(t, func(t *testing.T) nfttest.Subject {
		netns := nstest.New(t)
		return nfttest.Subject{
			Engine:  newEngine(t, netns, false),
			Restart: func() reconcile.Engine[nft.Key, nft.Item] { return newEngine(t, netns, false) },
			Tamper:  func(t *testing.T, tamper nfttest.Tamper) { tamperReal(t, netns, tamper) },
			Administer: func(t *testing.T) {
				table := "inet " + nfttest.Table
				script(t, netns, "add set "+table+" admin-addrs { type ipv4_addr; }", "add element "+table+" admin-addrs { 192.0.2.5 }",
					"add rule "+table+` admin ip daddr @admin-addrs counter drop comment "the administrator's"`)
			},
			Administered: func(t *testing.T) bool {
				listing := command(t, netns, "", "nft", "list", "ruleset")
				return strings.Contains(listing, `drop comment "the administrator's"`) && strings.Contains(listing, "elements = { 192.0.2.5 }")
			},
		}
	})
}

// A set that the administrator's rules use, and that does not have the unmanaged chain's name as prefix, does not keep other items from
// being removed.
func TestRealStrayInUse(t *testing.T) {
	netns := nstest.New(t)
	engine := newEngine(t, netns, false)
	state := nfttest.State()
	admin := nfttest.Unmanaged()
	state[admin.Key()] = &admin
	apply(t, engine, state)
	table := "inet " + nfttest.Table
	script(t, netns, "add set "+table+" mine { type ipv4_addr; }", "add chain "+table+" stray", "add rule "+table+" admin ip daddr @mine drop")
	actual, err := engine.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var partial *reconcile.PartialError[nft.Key]
	err = engine.Commit(context.Background(), reconcile.Diff(state, actual))
	if !errors.As(err, &partial) || len(partial.Failed) != 1 {
		t.Fatalf("got %v", err)
	}
	listing := command(t, netns, "", "nft", "list", "table", "inet", nfttest.Table)
	if strings.Contains(listing, "stray") || !strings.Contains(listing, "@mine drop") {
		t.Errorf("left is\n%s", listing)
	}
}

// An error names the item that nft rejected.
func TestRealErrorNamesItem(t *testing.T) {
	engine := newEngine(t, nstest.New(t), false)
	state := nfttest.State()
	bad := &nft.ChainRules{
		Family: nft.FamilyInet, Table: nfttest.Table, Chain: "early", Rules: []nft.Rule{{Text: "accept"}, {Text: "no such words"}},
	}
	state[bad.Key()] = bad
	err := engine.Commit(context.Background(), reconcile.Change[nft.Key, nft.Item]{Set: state})
	if !errors.Is(err, nft.ErrRefused) || !strings.Contains(err.Error(), bad.Key().String()) {
		t.Fatalf("got %v", err)
	}
}

// Another program adds a rule while the engine commits: before, between or after the write and the record. The rule is removed or detected,
// never taken for the engine's own.
func TestRealConcurrentWriter(t *testing.T) {
	netns := nstest.New(t)
	engine := newEngine(t, netns, false)
	ctx := context.Background()
	if err := engine.Commit(ctx, reconcile.Change[nft.Key, nft.Item]{Set: nfttest.State()}); err != nil {
		t.Fatal(err)
	}
	key := nft.Key{Family: nft.FamilyInet, Table: nfttest.Table, Kind: nft.KindRules, Name: "helper"}
	noticed := 0
	for range 25 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			script(t, netns, "add rule inet "+nfttest.Table+" helper ip daddr 192.0.2.77 drop")
		}()
		if err := engine.Commit(ctx, reconcile.Change[nft.Key, nft.Item]{Set: nfttest.Items(nfttest.State()[key])}); err != nil {
			t.Fatal(err)
		}
		<-done
		actual, err := engine.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		present := strings.Contains(command(t, netns, "", "nft", "list", "chain", "inet", nfttest.Table, "helper"), "192.0.2.77")
		clean := nfttest.State()[key].Equal(actual[key])
		if present && clean {
			t.Fatal("a foreign rule was not reported")
		}
		if !clean {
			noticed++
		}
	}
	t.Logf("noticed in %d of 25 runs, overwritten in the others", noticed)
}

// Another program has made the table dormant and deleted a base chain of it. The kernel refuses to add one in the transaction that clears the
// flag.
func TestRealDormantTableWithoutChain(t *testing.T) {
	netns := nstest.New(t)
	engine := newEngine(t, netns, false)
	apply(t, engine, nfttest.State())
	table := "inet " + nfttest.Table
	script(t, netns, "add table "+table+" { flags dormant; }", "flush chain "+table+" early", "delete chain "+table+" early")
	apply(t, engine, nfttest.State())
	apply(t, newEngine(t, netns, false), nfttest.State())
}

// Another program deletes the table and restores it from a listing in which a set within a rule has another element. The rules have the handles
// that they had.
func TestRealRestoredTable(t *testing.T) {
	netns := nstest.New(t)
	engine := newEngine(t, netns, false)
	apply(t, engine, nfttest.State())
	const set, other = "10.0.0.0/30, 192.0.2.1 }", "10.0.0.0/30, 192.0.2.77 }"
	listing := command(t, netns, "", "nft", "list", "table", "inet", nfttest.Table)
	if strings.Count(listing, set) != 1 {
		t.Fatalf("not once %s in\n%s", set, listing)
	}
	script(t, netns, "delete table inet "+nfttest.Table, strings.Replace(listing, set, other, 1))
	apply(t, engine, nfttest.State())
	if listing = command(t, netns, "", "nft", "list", "table", "inet", nfttest.Table); strings.Contains(listing, other) {
		t.Errorf("the other element is still there:\n%s", listing)
	}
}

// Another program adds a rule after the last Read to a chain whose priority changes. The chain is created again with the rules that it has, and
// they are not taken for the engine's own.
func TestRealAlteredChainIsCreatedAgain(t *testing.T) {
	netns := nstest.New(t)
	engine := newEngine(t, netns, false)
	apply(t, engine, nfttest.State())
	script(t, netns, "insert rule inet "+nfttest.Table+" forward accept")
	desired := nfttest.State()
	chain := &nft.Chain{Family: nft.FamilyInet, Table: nfttest.Table, Name: "forward", Type: nft.TypeFilter, Hook: nft.HookForward, Priority: 5}
	desired[chain.Key()] = chain
	if err := engine.Commit(t.Context(), reconcile.Change[nft.Key, nft.Item]{Set: nfttest.Items(chain)}); err != nil {
		t.Fatal(err)
	}
	actual, err := newEngine(t, netns, false).Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rules := chain.Key().Sibling(nft.KindRules, "forward")
	if actual[rules].Equal(desired[rules]) {
		t.Errorf("the other program's rule is not reported:\n%s", command(t, netns, "", "nft", "list", "chain", "inet", nfttest.Table, "forward"))
	}
	apply(t, engine, desired)
}

// Another program deletes the table after the last Read. Rules that are deleted do not exist any more, which is no failure.
func TestRealRulesOfDeletedTable(t *testing.T) {
	netns := nstest.New(t)
	engine := newEngine(t, netns, false)
	apply(t, engine, nfttest.State())
	script(t, netns, "delete table inet "+nfttest.Table)
	early := nft.Key{Family: nft.FamilyInet, Table: nfttest.Table, Kind: nft.KindRules, Name: "early"}
	gone := nfttest.Items(nfttest.State()[early], nfttest.State()[early.Sibling(nft.KindChain, "early")])
	if err := engine.Commit(t.Context(), reconcile.Change[nft.Key, nft.Item]{Delete: gone}); err != nil {
		t.Error(err)
	}
	apply(t, engine, nfttest.State())
}

// Other programs' changes of the managed tables are reported; the engine's own changes and those of other tables are not.
func TestRealMonitor(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	netns := nstest.New(t)
	engine := newEngine(t, netns, false)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	drifts, err := engine.Monitor(ctx)
	if err != nil {
		t.Fatal(err)
	}
	next := func() (nft.Drift, bool) {
		select {
		case drift, ok := <-drifts:
			return drift, ok
		case <-time.After(10 * time.Second):
			t.Fatal("no drift was reported")
			return nft.Drift{}, false
		}
	}
	if drift, _ := next(); !drift.All {
		t.Fatalf("first %+v", drift)
	}
	if err := engine.Commit(ctx, reconcile.Change[nft.Key, nft.Item]{Set: nfttest.State()}); err != nil {
		t.Fatal(err)
	}
	script(t, netns, "add table inet other")
	script(t, netns, "add rule inet "+nfttest.Table+" helper accept")
	drift, _ := next()
	if drift.Family != nft.FamilyInet || drift.Table != nfttest.Table || !drift.InCare || drift.Hooks || !slices.Equal(drift.Chains, []string{"helper"}) {
		t.Fatalf("after a foreign change: %+v", drift)
	}
	script(t, netns, "delete table inet "+nfttest.Table)
	if drift, _ := next(); drift.Table != nfttest.Table {
		t.Fatalf("after the table's deletion: %+v", drift)
	}
	cancel()
	for range drifts { // until it is closed
	}
}

// In a pod, the engine's pids are not those that the kernel would report.
func TestRealMonitorInPod(t *testing.T) {
	test := exec.Command("/proc/self/exe", "-test.run=^TestRealMonitor$", "-test.count=1", "-test.v")
	test.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if out, err := test.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestRealMonitor") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// traffic is what a node needs.
func traffic() []nft.Traffic {
	return []nft.Traffic{
		{Family: nft.FamilyIPv4, Hook: nft.HookForward, InDevice: "tun0"},
		{Family: nft.FamilyIPv4, Hook: nft.HookForward, OutDevice: "tun0"},
		{Family: nft.FamilyIPv4, Hook: nft.HookInput, InDevice: "tun0"},
		{Family: nft.FamilyIPv4, Hook: nft.HookInput, UDPPort: 4789},
		{Family: nft.FamilyIPv4, Hook: nft.HookIngress, InDevice: "tun0"},
	}
}

func survey(t *testing.T, engine *ruleset.Engine) []nft.ForeignDrop {
	t.Helper()
	found, err := engine.Survey(context.Background(), traffic()...)
	if err != nil {
		t.Fatal(err)
	}
	return found.Drops
}

// surveyed returns the drops as sorted texts.
func surveyed(t *testing.T, engine *ruleset.Engine) []string {
	t.Helper()
	var lines []string
	for _, drop := range survey(t, engine) {
		line := drop.String()
		for _, note := range []struct {
			words string
			is    bool
		}{{", conditional", drop.Conditional}, {", named", drop.Named && !drop.Conditional}, {", not to be opened", !drop.Openable}} {
			if note.is {
				line += note.words
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}

// opened returns the jumps past everything that drops unconditionally.
func opened(t *testing.T, engine *ruleset.Engine) map[nft.Key]nft.Item {
	t.Helper()
	desired := map[nft.Key]nft.Item{}
	for _, drop := range survey(t, engine) {
		if !drop.Conditional && !drop.Named && drop.Openable {
			jump := drop.Jump("cluster")
			desired[jump.Key()] = jump
		}
	}
	return desired
}

func TestRealForeignIPTables(t *testing.T) {
	netns := nstest.New(t)
	ctx := context.Background()
	iptables := func(args ...string) string { return command(t, netns, "", "iptables-nft", args...) }
	for _, rule := range []string{
		"-P FORWARD DROP", "-N DOCKER-USER", "-A DOCKER-USER -j RETURN", "-A FORWARD -j DOCKER-USER",
		"-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT", "-A FORWARD -i eth0 -m conntrack --ctstate INVALID -j REJECT",
		"-A INPUT -i eth0 -j DROP",
	} {
		iptables(strings.Fields(rule)...)
	}
	before := iptables("-S")
	engine := newEngine(t, netns, true)
	text := strings.Join(surveyed(t, engine), "\n")
	want := `chain FORWARD of table ip filter (hook forward) drops packets from tun0: policy drop
chain FORWARD of table ip filter (hook forward) drops packets to tun0: iifname "eth0" ct state invalid counter reject, conditional
chain FORWARD of table ip filter (hook forward) drops packets to tun0: policy drop
chain INPUT of table ip filter (hook input) drops packets to UDP port 4789: iifname "eth0" counter drop, conditional`
	if text != want {
		t.Fatalf("drops:\n%s", text)
	}
	desired := opened(t, engine)
	apply(t, engine, desired)
	rules := iptables("-S", "FORWARD")
	for _, want := range []string{
		`-A FORWARD -i tun0 -m comment --comment "weft.dev cluster" -j ACCEPT`, `-A FORWARD -o tun0 -m comment --comment "weft.dev cluster" -j ACCEPT`,
	} {
		if strings.Count(rules, want) != 1 {
			t.Errorf("%q is not once in\n%s", want, rules)
		}
	}
	if after := strings.Join(surveyed(t, engine), "\n"); after != want {
		t.Fatalf("once open, the rules behind it read:\n%s", after)
	}
	// Other programs add a rule above, remove ours, or duplicate it by saving and restoring.
	for _, tamper := range []string{"-I FORWARD -j DOCKER-USER", "-D FORWARD 2", "-F FORWARD"} {
		iptables(strings.Fields(tamper)...)
		if actual, err := newEngine(t, netns, true).Read(ctx); err != nil || reconcile.Diff(desired, actual).Empty() {
			t.Fatalf("%s was not noticed: %v", tamper, err)
		}
		apply(t, engine, desired)
	}
	script(t, netns, `add rule ip filter FORWARD iifname "tun0" counter accept comment "weft.dev cluster"`)
	apply(t, engine, desired)
	if err := engine.Commit(ctx, reconcile.Change[nft.Key, nft.Item]{Delete: desired}); err != nil {
		t.Fatal(err)
	}
	if after := iptables("-S"); strings.Contains(after, "weft") || !strings.Contains(before, "DOCKER-USER") {
		t.Fatalf("after removal:\n%s", after)
	}
}

func apply(t *testing.T, engine *ruleset.Engine, desired map[nft.Key]nft.Item) {
	t.Helper()
	actual, err := engine.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Commit(context.Background(), reconcile.Diff(desired, actual)); err != nil {
		t.Fatal(err)
	}
	if actual, err = engine.Read(context.Background()); err != nil {
		t.Fatal(err)
	}
	if change := reconcile.Diff(desired, actual); !change.Empty() {
		t.Fatalf("not settled: %v", change)
	}
}

// firewalld's shape: a chain that accepts what is established, dispatches by zone, and rejects the rest.
func TestRealForeignFirewalld(t *testing.T) {
	netns := nstest.New(t)
	script(t, netns, `table inet firewalld {
 chain filter_FORWARD { type filter hook forward priority filter + 10; policy accept;
  ct state { established, related } accept
  ct status dnat accept
  iifname "lo" accept
  ct state invalid drop
  jump filter_FORWARD_ZONES
  reject with icmpx admin-prohibited
 }
 chain filter_FORWARD_ZONES { iifname "eth0" goto filter_FWD_public
  goto filter_FWD_public
 }
 chain filter_FWD_public {
  jump filter_FWD_public_deny
 }
 chain filter_FWD_public_deny { }
 chain filter_INPUT { type filter hook input priority filter + 10; policy accept;
  iifname "eth*" drop
  iifname "tun*" tcp dport 22 drop
 }
}`)
	engine := newEngine(t, netns, true)
	got := strings.Join(surveyed(t, engine), "\n")
	const forward, input = "chain filter_FORWARD of table inet firewalld (hook forward) drops packets ", "chain filter_INPUT of table inet firewalld (hook input) drops packets "
	want := forward + `from tun0: ct state invalid drop, conditional
` + forward + `from tun0: reject with icmpx admin-prohibited
` + forward + `to tun0: ct state invalid drop, conditional
` + forward + `to tun0: reject with icmpx admin-prohibited
` + input + `from tun0: iifname "tun*" tcp dport 22 drop, conditional
` + input + `to UDP port 4789: iifname "eth*" drop, conditional
` + input + `to UDP port 4789: iifname "tun*" tcp dport 22 drop, conditional`
	if got != want {
		t.Errorf("drops:\n%s\nwant:\n%s", got, want)
	}
	apply(t, engine, opened(t, engine))
	missing := &nft.ForeignJump{Family: nft.FamilyInet, Table: "firewalld", Chain: "nochain", InDevice: "tun0"}
	err := engine.Commit(context.Background(), reconcile.Change[nft.Key, nft.Item]{Set: nfttest.Items(missing)})
	if !errors.Is(err, nft.ErrMissing) || !strings.Contains(err.Error(), "firewalld nochain") {
		t.Errorf("a chain that does not exist: %v", err)
	}
}

// Ingress chains matter only on their devices.
func TestRealForeignIngress(t *testing.T) {
	netns := nstest.New(t)
	for _, name := range []string{"tun0", "eth1", "eth2"} {
		command(t, netns, "", "ip", "link", "add", name, "type", "veth", "peer", "name", "far-"+name)
	}
	script(t, netns, `table netdev other {
 chain here { type filter hook ingress devices = { eth1, tun0 } priority 0; policy accept;
  ip saddr 192.0.2.1 drop
 }
 chain there { type filter hook ingress device "eth2" priority 0; policy drop; }
}
table inet other {
 chain here { type filter hook ingress device "tun0" priority 0; policy drop; }
}`)
	got := strings.Join(surveyed(t, newEngine(t, netns, true)), "\n")
	want := `chain here of table inet other (hook ingress) drops packets from tun0: policy drop, not to be opened
chain here of table netdev other (hook ingress) drops packets from tun0: ip saddr 192.0.2.1 drop, conditional, not to be opened`
	if got != want {
		t.Errorf("drops:\n%s\nwant:\n%s", got, want)
	}
}

func BenchmarkElementAdd(b *testing.B) {
	for _, size := range []int{0, 11000} {
		b.Run(fmt.Sprintf("one to %d", size), func(b *testing.B) {
			engine := newEngine(b, nstest.New(b), false)
			element := func(n int) *nft.Element {
				return &nft.Element{
					Family: nft.FamilyInet, Table: nfttest.Table, Set: "pods", Match: []string{fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255)},
					Owner: "attachment",
				}
			}
			state := nfttest.State()
			for n := range size {
				state[element(n+1).Key()] = element(n + 1)
			}
			if err := engine.Commit(context.Background(), reconcile.Change[nft.Key, nft.Item]{Set: state}); err != nil {
				b.Fatal(err)
			}
			n := size + 1
			for b.Loop() {
				n++
				change := reconcile.Change[nft.Key, nft.Item]{Set: nfttest.Items(element(n))}
				if err := engine.Commit(context.Background(), change); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
