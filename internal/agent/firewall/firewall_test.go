package firewall

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/testwait"
)

// rules is an engine of nftables: the real one or the Fake.
type rules interface {
	reconcile.Engine[nft.Key, nft.Item]
	Surveyor
}

// counting counts the calls of an engine.
type counting struct {
	rules
	reads, surveys, commits chan struct{}
}

func newCounting(engine rules) *counting {
	const enough = 1000
	return &counting{engine, make(chan struct{}, enough), make(chan struct{}, enough), make(chan struct{}, enough)}
}

func (c *counting) Read(ctx context.Context) (map[nft.Key]nft.Item, error) {
	c.reads <- struct{}{}
	return c.rules.Read(ctx)
}

func (c *counting) Survey(ctx context.Context, traffic ...nft.Traffic) (*nft.Survey, error) {
	c.surveys <- struct{}{}
	return c.rules.Survey(ctx, traffic...)
}

func (c *counting) Commit(ctx context.Context, change reconcile.Change[nft.Key, nft.Item]) error {
	err := c.rules.Commit(ctx, change)
	c.commits <- struct{}{}
	return err
}

// wall is a firewall with its loop, on a node that has its rules.
type wall struct {
	*Firewall
	drifts chan nft.Drift // drifts sent by a test
	config host.Config
	// reported counts the calls of changed.
	reported atomic.Int32
}

func newWall(t *testing.T, engine rules) *wall {
	t.Helper()
	w := &wall{drifts: make(chan nft.Drift), config: sampleHost()}
	loop := reconcile.NewLoop(engine, reconcile.Options[nft.Key, nft.Item]{Name: "nft", Settled: func() { w.Settled() }})
	w.Firewall = New(Options{Engine: engine, Loop: loop, Log: slog.New(slog.DiscardHandler)})
	w.retry, w.changed = time.Millisecond, func() { w.reported.Add(1) }
	w.legacy = filepath.Join(t.TempDir(), "none")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- loop.Run(ctx) }()
	if err := w.Pass(ctx, "overlay", host.Traffic(ovsdb.DatapathSystem, 4789)); err != nil {
		t.Fatal(err)
	}
	if err := loop.Start(ctx, map[reconcile.Owner]map[nft.Key]nft.Item{"cluster": w.config.Rules()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

// follows lets the wall follow the drifts until the test ends.
func (w *wall) follows(t *testing.T, drifts <-chan nft.Drift) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Follow(ctx, drifts) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func jumpsOf(t *testing.T, engine rules) string {
	t.Helper()
	state, err := engine.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for key := range state {
		if key.Kind == nft.KindForeignJump {
			words = append(words, key.String())
		}
	}
	slices.Sort(words)
	return strings.Join(words, "\n")
}

const dockerOpen = `foreign-jump ip filter FORWARD >tun0
foreign-jump ip filter FORWARD tun0>`

func docker() nft.Chain {
	return nft.Chain{
		Family: nft.FamilyIPv4, Table: "filter", Name: "FORWARD", Type: nft.TypeFilter, Hook: nft.HookForward, Policy: nft.PolicyDrop,
	}
}

// Chains of other programs that drop are opened, and restored once they no longer drop. A chain that vanishes does not stop other rules.
func TestFirewallFollows(t *testing.T) {
	fake := nft.NewFake(docker())
	w := newWall(t, fake)
	w.follows(t, w.drifts)
	testwait.Until(t, "the chain is open", func() bool { return jumpsOf(t, fake) == dockerOpen })

	fake.ForgetForeign(new(docker()).Key())
	// The chain is gone and not reported yet. Rules of other owners are still committed.
	w.loop.Resync()
	remote := map[reconcile.Owner]map[nft.Key]nft.Item{"remote": w.config.RemoteRules(sampleRemote())}
	if err := w.loop.Apply(context.Background(), remote); err != nil {
		t.Errorf("rules of another owner: %v", err)
	}
	gone := nft.Drift{Family: nft.FamilyIPv4, Table: "filter", Hooks: true, Chains: []string{"FORWARD"}}
	w.drifts <- gone
	testwait.Until(t, "no rule is desired for a chain that was deleted", func() bool { return w.loop.Failure(Owner) == nil && w.State() == nil })

	fake.PutForeign(docker())
	w.drifts <- gone
	testwait.Until(t, "the chain that came back is open", func() bool { return jumpsOf(t, fake) == dockerOpen })
	open := docker()
	open.Policy = nft.PolicyAccept
	fake.PutForeign(open)
	w.drifts <- gone
	testwait.Until(t, "a chain that accepts has no rule of ours", func() bool { return jumpsOf(t, fake) == "" })
}

// A chain that cannot be opened is reported.
func TestFirewallReportsChains(t *testing.T) {
	chain := docker()
	chain.Hook, chain.Name = nft.HookPrerouting, "early"
	fake := nft.NewFake(chain)
	w := newWall(t, fake)
	before := w.reported.Load()
	if err := w.State(); err == nil || !strings.Contains(err.Error(), "chain early of table ip filter") || !strings.Contains(err.Error(), "policy drop") {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(w.legacy, []byte("nat\nfilter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fake.ForgetForeign(chain.Key())
	if err := w.look(context.Background()); err != nil {
		t.Fatal(err)
	}
	if warning := w.Warning(); !strings.Contains(warning, "iptables-legacy -S") || strings.Contains(warning, "early") || w.reported.Load() != before+1 {
		t.Errorf("got %q, reported %d times", warning, w.reported.Load()-before)
	}
}

func TestJudge(t *testing.T) {
	in := nft.Traffic{Family: nft.FamilyIPv4, Hook: nft.HookForward, InDevice: "tun0"}
	drop := func(change func(*nft.ForeignDrop)) nft.ForeignDrop {
		d := nft.ForeignDrop{Family: "inet", Table: "fw", Chain: "c", In: "c", Hook: in.Hook, Traffic: in, Rule: "drop", Openable: true}
		change(&d)
		return d
	}
	plain := drop(func(*nft.ForeignDrop) {})
	some := drop(func(d *nft.ForeignDrop) { d.Conditional = true })
	someOfOurs := drop(func(d *nft.ForeignDrop) { d.Conditional, d.Named = true, true })
	meant := drop(func(d *nft.ForeignDrop) { d.Named = true })
	shut := drop(func(d *nft.ForeignDrop) { d.Openable = false })
	for name, c := range map[string]struct {
		drops        []nft.ForeignDrop
		opens, warns bool
	}{
		"nothing":                     {},
		"a policy":                    {[]nft.ForeignDrop{plain}, true, false},
		"targeted, as kube-proxy's":   {[]nft.ForeignDrop{some}, false, false},
		"targeted, then all":          {[]nft.ForeignDrop{some, plain}, true, false},
		"by name, then all":           {[]nft.ForeignDrop{someOfOurs, plain}, true, true},
		"all by name":                 {[]nft.ForeignDrop{meant}, false, true},
		"all by name, then all":       {[]nft.ForeignDrop{meant, plain}, false, true},
		"where no rule can be placed": {[]nft.ForeignDrop{shut}, false, true},
	} {
		jumps, warnings := nft.Open(c.drops, string(Owner), "")
		if len(jumps) == 1 != c.opens || len(warnings) > 0 != c.warns {
			t.Errorf("%s: jumps %v, warnings %v", name, jumps, warnings)
		}
	}
}

// A hundred changes of chains that Weft's packets do not traverse cause no read and no survey. In chains that they do traverse, a storm
// causes about one survey a second.
func TestFirewallStorm(t *testing.T) {
	engine := newCounting(nft.NewFake(docker()))
	w := newWall(t, engine)
	w.follows(t, w.drifts)
	reads, surveys := len(engine.reads), len(engine.surveys)
	for range 100 {
		w.drifts <- nft.Drift{Family: nft.FamilyIPv4, Table: "nat", Chains: []string{"KUBE-SERVICES", "KUBE-SVC-X"}}
		w.drifts <- nft.Drift{Family: nft.FamilyIPv4, Table: "filter", Chains: []string{"KUBE-SVC-X"}}
	}
	if got := len(engine.reads) - reads; got != 0 {
		t.Errorf("%d readings", got)
	}
	if got := len(engine.surveys) - surveys; got != 0 {
		t.Errorf("%d looks", got)
	}
	begin := time.Now()
	for range 100 {
		w.drifts <- nft.Drift{Family: nft.FamilyIPv4, Table: "filter", Chains: []string{"FORWARD"}}
	}
	testwait.Until(t, "a survey", func() bool { return len(engine.surveys) > surveys })
	most := 2 + int(time.Since(begin)/firewallRest)
	if got := len(engine.surveys) - surveys; got > most {
		t.Errorf("%d surveys, want at most %d", got, most)
	}
}

// An agent that restarts removes nothing in between.
func TestFirewallRestart(t *testing.T) {
	engine := newCounting(nft.NewFake(docker()))
	newWall(t, engine)
	before := len(engine.commits)
	newWall(t, engine)
	if after := len(engine.commits); after != before || jumpsOf(t, engine) != dockerOpen {
		t.Errorf("%d commits, jumps %s", after-before, jumpsOf(t, engine))
	}
}

func sampleRemote() netip.Addr { return netip.MustParseAddr("192.0.2.2") }

func sampleHost() host.Config {
	return host.Config{
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")}, ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"),
		LocalSubnet: netip.MustParsePrefix("10.128.0.0/23"), Gateway: netip.MustParseAddr("10.128.0.1"), NodeIP: netip.MustParseAddr("192.0.2.1"),
	}
}

// If the watch of other programs' rules fails, follow returns the error. It does not continue without the watch.
func TestFirewallWithoutEvents(t *testing.T) {
	w := newWall(t, nft.NewFake())
	drifts := make(chan nft.Drift, 1)
	drifts <- nft.Drift{All: true, Err: os.ErrClosed}
	if err := w.Follow(context.Background(), drifts); !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// blindfold is an engine whose surveys fail while on is set.
type blindfold struct {
	rules
	on atomic.Bool
}

func (b *blindfold) Survey(ctx context.Context, traffic ...nft.Traffic) (*nft.Survey, error) {
	if b.on.Load() {
		return nil, errors.New("nft: out of memory")
	}
	return b.rules.Survey(ctx, traffic...)
}

// An agent that cannot survey other programs' chains when it starts keeps open what is open, reports the failure, and retries by itself.
func TestFirewallWithFailedSurvey(t *testing.T) {
	fake := nft.NewFake(docker())
	newWall(t, fake)
	testwait.Until(t, "the chain is open", func() bool { return jumpsOf(t, fake) == dockerOpen })
	engine := &blindfold{rules: fake}
	engine.on.Store(true)
	w := newWall(t, engine)
	if got := jumpsOf(t, fake); got != dockerOpen {
		t.Errorf("after a start with a failed survey: %s", got)
	}
	if warning := w.Warning(); !strings.Contains(warning, "out of memory") {
		t.Errorf("reported: %q", warning)
	}
	w.follows(t, w.drifts)
	engine.on.Store(false)
	testwait.Until(t, "no warning", func() bool { return w.Warning() == "" })
	if got := jumpsOf(t, fake); got != dockerOpen {
		t.Errorf("after the survey: %s", got)
	}
}

// A failure to open a chain is also reported, and changed is called, so that the node's condition can show it.
func TestFirewallReportsFailures(t *testing.T) {
	fake := nft.NewFake(docker())
	w := newWall(t, fake)
	testwait.Until(t, "the chain is open", func() bool { return jumpsOf(t, fake) == dockerOpen })
	before := w.reported.Load()
	fake.ForgetForeign(new(docker()).Key())
	w.loop.Resync()
	testwait.Until(t, "a report of the failure", func() bool { return w.reported.Load() > before })
	if warning := w.Warning(); !strings.Contains(warning, "FORWARD") {
		t.Errorf("reported: %q", warning)
	}
}
