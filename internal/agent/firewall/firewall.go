// Package firewall keeps other programs' nftables chains open for Weft's packets, and reports what blocks them.
package firewall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/steps"
)

// Owner owns the rules in other programs' chains. Their failure does not affect other rules, because such a chain may vanish at any
// time.
const Owner reconcile.Owner = "host-firewall"

const (
	// firewallRest is the minimum interval between two surveys of other programs' chains. The first change after a rest causes a survey at
	// once. kube-proxy with iptables writes chains up to once a second, which causes at most one survey each time.
	firewallRest = time.Second
	// firewallRetry is the delay before a failed survey is retried.
	firewallRetry = 10 * time.Second
)

// legacyTables lists the tables of legacy iptables in use, in the reader's network namespace.
const legacyTables = "/proc/thread-self/net/ip_tables_names"

// Surveyor is the part of the nft engine that surveys other programs' chains and reads their contents.
type Surveyor interface {
	Survey(ctx context.Context, traffic ...nft.Traffic) (*nft.Survey, error)
	Read(ctx context.Context) (map[nft.Key]nft.Item, error)
}

// Firewall keeps other programs' firewalls open for Weft's packets: one accepting rule at the top of each base chain that would drop all
// packets of a kind. If a rule is not allowed or not possible there, it returns a warning.
type Firewall struct {
	engine Surveyor
	loop   *reconcile.Loop[nft.Key, nft.Item]
	log    *slog.Logger
	// legacy and retry are legacyTables and firewallRetry, except in tests.
	legacy string
	retry  time.Duration
	// instead is Options.Instead.
	instead map[string]string
	// changed is called after the result of State has changed. It is set before anything runs.
	changed func()

	// again signals that a survey failed and must be retried.
	again chan struct{}

	// looking serialises surveys.
	looking sync.Mutex

	// mu guards the fields below.
	mu sync.Mutex
	// needs are the kinds of traffic of each network, and traffic those of all networks.
	needs    map[string][]nft.Traffic
	traffic  []nft.Traffic
	survey   *nft.Survey
	jumps    map[nft.Key]nft.Item
	warnings []string
	// rules is the result of leftoverRules.
	rules string
	// unseen is the error of the last survey; nil if it succeeded.
	unseen error
	// reported is the warning at the last call of changed.
	reported string
}

// Options are the options of a Firewall.
type Options struct {
	// Engine and Loop are nftables'. Required.
	Engine Surveyor
	Loop   *reconcile.Loop[nft.Key, nft.Item]
	// Instead is, by network, what a warning about a rule of an administrator adds: where such rules have to be. Default: nothing.
	Instead map[string]string
	// Log is the agent's log. Required.
	Log *slog.Logger
}

// New returns a firewall that opens nothing yet.
func New(options Options) *Firewall {
	return &Firewall{
		engine: options.Engine, loop: options.Loop, instead: options.Instead, log: options.Log,
		legacy: legacyTables, retry: firewallRetry, changed: func() {}, again: make(chan struct{}, 1),
	}
}

// OnChange sets the function that is called after the result of State or Leftover has changed. It must not block. It is set before anything
// runs, and by default nothing is called.
func (f *Firewall) OnChange(changed func()) { f.changed = changed }

// Pass sets the packets of a network that must pass, and opens other programs' chains for them. What other networks need stays open. It is
// called before the loop starts, so that rules from before a restart stay in place. A failed survey is retried, and what is open stays open
// until one succeeds. An error means that it is not known what is open.
func (f *Firewall) Pass(ctx context.Context, network string, traffic []nft.Traffic) error {
	f.mu.Lock()
	if f.needs == nil {
		f.needs = map[string][]nft.Traffic{}
	}
	f.needs[network] = traffic
	var all []nft.Traffic
	for _, name := range slices.Sorted(maps.Keys(f.needs)) {
		all = append(all, f.needs[name]...)
	}
	same := slices.Equal(f.traffic, all) && f.survey != nil
	f.traffic = all
	f.mu.Unlock()
	if same {
		return nil
	}
	why := f.look(ctx)
	if why == nil || ctx.Err() != nil {
		return why
	}
	steps.Wake(f.again)
	if err := f.keep(ctx); err != nil {
		return errors.Join(why, err)
	}
	f.log.Warn("reading other programs' nftables chains failed, trying again", "error", why)
	return nil
}

// keep keeps the rules from before a restart in other programs' chains, as long as no survey has determined the needed ones.
func (f *Firewall) keep(ctx context.Context) error {
	f.looking.Lock()
	defer f.looking.Unlock()
	f.mu.Lock()
	known := f.survey != nil
	f.mu.Unlock()
	if known {
		return nil // the loop has them already
	}
	state, err := f.engine.Read(ctx)
	if err != nil {
		return fmt.Errorf("host firewall: %w", err)
	}
	maps.DeleteFunc(state, func(key nft.Key, _ nft.Item) bool { return key.Kind != nft.KindForeignJump })
	f.loop.Set(map[reconcile.Owner]map[nft.Key]nft.Item{Owner: state})
	f.mu.Lock()
	f.jumps = state
	f.mu.Unlock()
	return nil
}

// look surveys other programs' chains, and hands the rules that they need to the loop.
func (f *Firewall) look(ctx context.Context) error {
	f.looking.Lock()
	defer f.looking.Unlock()
	f.mu.Lock()
	traffic, instead := f.traffic, ""
	for _, name := range slices.Sorted(maps.Keys(f.instead)) {
		if len(f.needs[name]) > 0 {
			instead += f.instead[name]
		}
	}
	f.mu.Unlock()
	if len(traffic) == 0 {
		return nil
	}
	survey, err := f.engine.Survey(ctx, traffic...)
	if err != nil {
		err = fmt.Errorf("host firewall: reading other programs' chains: %w", err)
		f.mu.Lock()
		f.unseen = err
		f.mu.Unlock()
		f.Settled()
		return err
	}
	jumps, warnings := nft.Open(survey.Drops, string(Owner), instead)
	if blind := f.blind(); blind != "" {
		warnings = append(warnings, blind)
	}
	f.loop.Set(map[reconcile.Owner]map[nft.Key]nft.Item{Owner: jumps})
	f.mu.Lock()
	unchanged := slices.Equal(f.warnings, warnings)
	f.survey, f.jumps, f.warnings, f.unseen = survey, jumps, warnings, nil
	rules := leftoverRules(survey)
	left := f.rules != rules
	f.rules = rules
	f.mu.Unlock()
	if left {
		f.changed()
	}
	if !unchanged {
		for _, warning := range warnings {
			f.log.Warn("host firewall", "warning", warning)
		}
	}
	f.Settled()
	return nil
}

// Settled calls changed if the warning has changed. It is called after a survey, and after the loop's commits. It does not block.
func (f *Firewall) Settled() {
	warning := f.Warning()
	f.mu.Lock()
	same := f.reported == warning
	f.reported = warning
	f.mu.Unlock()
	if !same {
		f.changed()
	}
}

// blind returns a warning if there may be rules that nft does not show.
func (f *Firewall) blind() string {
	text, err := os.ReadFile(f.legacy)
	if err != nil || !slices.Contains(strings.Fields(string(text)), "filter") {
		return ""
	}
	return "legacy iptables is in use beside nftables, and its rules cannot be seen from here: " +
		"look at iptables-legacy -S for what drops pods' packets, or change to iptables-nft"
}

// Leftover describes the rules that OpenShift SDN left; "" for none.
func (f *Firewall) Leftover() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rules
}

// State returns nil if nothing of Weft's traffic is blocked, else one error with all obstacles.
func (f *Firewall) State() error {
	if warning := f.Warning(); warning != "" {
		return errors.New(warning)
	}
	return nil
}

// Warning returns the warning for users; "" for none.
func (f *Firewall) Warning() string {
	failed := f.loop.Failure(Owner)
	f.mu.Lock()
	defer f.mu.Unlock()
	words := slices.Clone(f.warnings)
	for _, err := range []error{f.unseen, failed} {
		if err != nil {
			words = append(words, err.Error())
		}
	}
	return strings.Join(words, "; ")
}

// Follow rereads what other programs changed, as far as it matters here, until ctx ends.
func (f *Firewall) Follow(ctx context.Context, drifts <-chan nft.Drift) error {
	var due <-chan time.Time
	var looked time.Time
	reread := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case drift, ok := <-drifts:
			if !ok {
				return nil
			}
			if drift.Err != nil {
				return drift.Err // without the watch the agent ends, and is started again
			}
			look, ours := f.take(&drift)
			reread = reread || ours
			if look && due == nil {
				due = time.After(firewallRest - time.Since(looked))
			}
		case <-f.again:
			due = cmp.Or(due, time.After(f.retry))
		case <-due:
			looked = time.Now()
			due = f.answer(ctx, reread)
			reread = false
		}
	}
}

// take rereads Weft's own tables if a drift may be in them. It reports whether the drift requires a survey, and whether it touches a chain
// with a rule of Weft's.
func (f *Firewall) take(drift *nft.Drift) (look, ours bool) {
	if drift.InCare || drift.All {
		f.loop.Resync()
	}
	look, ours = f.concerns(drift)
	return look || ours, ours
}

// answer surveys other programs' chains, and rereads the rules in them if reread is set. It returns when to retry; nil for never.
func (f *Firewall) answer(ctx context.Context, reread bool) <-chan time.Time {
	err := f.look(ctx)
	if reread {
		f.loop.Resync()
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	f.log.Warn("reading other programs' nftables chains failed, trying again", "error", err)
	return time.After(f.retry)
}

// concerns reports whether a drift requires a survey, and whether it touches a chain with a rule of Weft's.
func (f *Firewall) concerns(drift *nft.Drift) (look, ours bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if drift.InCare {
		return false, false
	}
	for item := range maps.Values(f.jumps) {
		jump, ok := item.(*nft.ForeignJump)
		chain := nft.Key{Family: item.Key().Family, Table: item.Key().Table, Kind: nft.KindChain}
		if ok {
			chain.Name = jump.Chain
		}
		ours = ours || drift.Touches(chain)
	}
	return f.survey == nil || f.survey.Concerns(drift), ours
}

// adminChain is the iptables chain for rules of OpenShift SDN's administrators. With iptables-nft, it is in the table ip filter.
const adminChain = "OPENSHIFT-ADMIN-OUTPUT-RULES"

// leftoverRules describes the rules in the chain of OpenShift SDN's administrators; "" if there are none.
func leftoverRules(survey *nft.Survey) string {
	n := survey.Rules(nft.Key{Family: nft.FamilyIPv4, Table: "filter", Kind: nft.KindChain, Name: adminChain})
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("iptables chain %s has rules (%d): Weft does not restore them when the node restarts; put them into chain admin of table inet weft, and remove the chain",
		adminChain, n)
}
