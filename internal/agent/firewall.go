package agent

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

	corev1 "k8s.io/api/core/v1"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/steps"
)

// ownerFirewall owns the rules in other programs' chains. Their failure does not affect other rules, because such a chain may vanish at any
// time.
const ownerFirewall reconcile.Owner = "host-firewall"

const (
	// firewallRest is the minimum interval between two surveys of other programs' chains. The first change after a rest causes a survey at
	// once. kube-proxy with iptables writes chains up to once a second, which causes at most one survey each time.
	firewallRest = time.Second
	// firewallRetry is the delay before a failed survey is retried.
	firewallRetry = 10 * time.Second
)

// legacyTables lists the tables of legacy iptables in use, in the reader's network namespace.
const legacyTables = "/proc/thread-self/net/ip_tables_names"

// surveyor is the part of the nft engine that surveys other programs' chains and reads their contents.
type surveyor interface {
	Survey(ctx context.Context, traffic ...nft.Traffic) (*nft.Survey, error)
	Read(ctx context.Context) (map[nft.Key]nft.Item, error)
}

// firewall keeps other programs' firewalls open for Weft's packets: one accepting rule at the top of each base chain that would drop all
// packets of a kind. If a rule is not allowed or not possible there, it returns a warning.
type firewall struct {
	engine surveyor
	loop   *reconcile.Loop[nft.Key, nft.Item]
	log    *slog.Logger
	// legacy and retry are legacyTables and firewallRetry, except in tests.
	legacy string
	retry  time.Duration
	// changed is called after the result of state has changed. It is set before anything runs.
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

func newFirewall(engine surveyor, loop *reconcile.Loop[nft.Key, nft.Item], log *slog.Logger) *firewall {
	return &firewall{engine: engine, loop: loop, log: log, legacy: legacyTables, retry: firewallRetry, changed: func() {}, again: make(chan struct{}, 1)}
}

// need sets the packets that must pass, and opens other programs' chains for them. It is called before the loop starts, so that rules from
// before a restart stay in place. A failed survey is retried, and what is open stays open until one succeeds. An error means that it is not
// known what is open.
func (f *firewall) need(ctx context.Context, traffic []nft.Traffic) error {
	return f.pass(ctx, overlay.NetworkName, traffic)
}

// pass does the same for any network. What other networks need stays open.
func (f *firewall) pass(ctx context.Context, network string, traffic []nft.Traffic) error {
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
func (f *firewall) keep(ctx context.Context) error {
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
	f.loop.Set(map[reconcile.Owner]map[nft.Key]nft.Item{ownerFirewall: state})
	f.mu.Lock()
	f.jumps = state
	f.mu.Unlock()
	return nil
}

// look surveys other programs' chains, and hands the rules that they need to the loop.
func (f *firewall) look(ctx context.Context) error {
	f.looking.Lock()
	defer f.looking.Unlock()
	f.mu.Lock()
	traffic, overlaid := f.traffic, len(f.needs[overlay.NetworkName]) > 0
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
		f.settled()
		return err
	}
	instead := ""
	if overlaid {
		instead = "; put such rules into chain " + host.AdminChain + " of table inet weft"
	}
	jumps, warnings := nft.Open(survey.Drops, string(ownerFirewall), instead)
	if blind := f.blind(); blind != "" {
		warnings = append(warnings, blind)
	}
	f.loop.Set(map[reconcile.Owner]map[nft.Key]nft.Item{ownerFirewall: jumps})
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
	f.settled()
	return nil
}

// settled calls changed if the warning has changed. It is called after a survey, and after the loop's commits. It does not block.
func (f *firewall) settled() {
	warning := f.warning()
	f.mu.Lock()
	same := f.reported == warning
	f.reported = warning
	f.mu.Unlock()
	if !same {
		f.changed()
	}
}

// blind returns a warning if there may be rules that nft does not show.
func (f *firewall) blind() string {
	text, err := os.ReadFile(f.legacy)
	if err != nil || !slices.Contains(strings.Fields(string(text)), "filter") {
		return ""
	}
	return "legacy iptables is in use beside nftables, and its rules cannot be seen from here: " +
		"look at iptables-legacy -S for what drops pods' packets, or change to iptables-nft"
}

// leftover describes the rules that OpenShift SDN left; "" for none.
func (f *firewall) leftover() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rules
}

// state returns nil if nothing of Weft's traffic is blocked, else one error with all obstacles.
func (f *firewall) state() error {
	if warning := f.warning(); warning != "" {
		return errors.New(warning)
	}
	return nil
}

// warning returns the warning for users; "" for none.
func (f *firewall) warning() string {
	failed := f.loop.Failure(ownerFirewall)
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

// follow rereads what other programs changed, as far as it matters here, until ctx ends.
func (f *firewall) follow(ctx context.Context, drifts <-chan nft.Drift) error {
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
func (f *firewall) take(drift *nft.Drift) (look, ours bool) {
	if drift.InCare || drift.All {
		f.loop.Resync()
	}
	look, ours = f.concerns(drift)
	return look || ours, ours
}

// answer surveys other programs' chains, and rereads the rules in them if reread is set. It returns when to retry; nil for never.
func (f *firewall) answer(ctx context.Context, reread bool) <-chan time.Time {
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

// warningMax bounds the warnings in a node's condition, in bytes. The log has all of them.
const warningMax = 1024

// reportReadyNode sets the node's condition to ready. The node serves pods whatever the host's firewalls do; the condition's message has their
// warning.
func (a *agent) reportReadyNode(ctx context.Context, warning string) error {
	if warning == "" {
		return reportReady(ctx, a.clients, a.opts.Node)
	}
	return report(ctx, a.clients, a.opts.Node, corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: reasonReady,
		Message: "Weft's agent serves this node's pods; host firewall: " + warning[:min(len(warning), warningMax)],
	})
}

// concerns reports whether a drift requires a survey, and whether it touches a chain with a rule of Weft's.
func (f *firewall) concerns(drift *nft.Drift) (look, ours bool) {
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
