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
)

// ownerFirewall owns the rules in others' chains. They fail alone: such a chain may vanish at any time.
const ownerFirewall reconcile.Owner = "host-firewall"

const (
	// firewallRest is how long others' chains are left alone after a look at them. The first change after a rest is
	// answered at once; kube-proxy with iptables, which writes chains anew up to once a second, costs a look each time at most.
	firewallRest = time.Second
	// firewallRetry is when a look that failed is tried again.
	firewallRetry = 10 * time.Second
)

// legacyTables lists the tables of legacy iptables in use, in the network namespace of who reads it.
const legacyTables = "/proc/thread-self/net/ip_tables_names"

// surveyor is the part of the nft engine that looks at others' chains, and at what is in them.
type surveyor interface {
	Survey(ctx context.Context, passages ...nft.Passage) (*nft.Survey, error)
	Read(ctx context.Context) (map[nft.Key]nft.Item, error)
}

// firewall keeps others' firewalls open for Weft's packets: one accepting rule at the top of each base chain that would
// drop all of a kind. Where it must not or cannot, it says so.
type firewall struct {
	engine surveyor
	loop   *reconcile.Loop[nft.Key, nft.Item]
	log    *slog.Logger
	// legacy is legacyTables, and retry is firewallRetry, but in tests.
	legacy string
	retry  time.Duration
	// changed is called after what State returns has changed. Set before anything runs.
	changed func()

	// again tells that a look failed which is to be tried again.
	again chan struct{}

	// looking serialises looks.
	looking sync.Mutex

	// mu guards what follows.
	mu sync.Mutex
	// needs are the passages of each network, and passages those of all.
	needs    map[string][]nft.Passage
	passages []nft.Passage
	survey   *nft.Survey
	jumps    map[nft.Key]nft.Item
	warnings []string
	// rules is what leftoverRules found.
	rules string
	// unseen is why the last look failed; nil after one that did not.
	unseen error
	// told is the warning as it was when changed was called.
	told string
}

func newFirewall(engine surveyor, loop *reconcile.Loop[nft.Key, nft.Item], log *slog.Logger) *firewall {
	return &firewall{engine: engine, loop: loop, log: log, legacy: legacyTables, retry: firewallRetry, changed: func() {}, again: make(chan struct{}, 1)}
}

// need sets what has to pass, and opens it. It is called before the loop starts: rules of a former life stay in place then.
// A look that fails is tried again, and what is open stays open until one succeeds; an error says that nothing is known of that.
func (f *firewall) need(ctx context.Context, passages []nft.Passage) error {
	return f.pass(ctx, overlay.NetworkName, passages)
}

// pass is need for any network: what others need stays open.
func (f *firewall) pass(ctx context.Context, network string, passages []nft.Passage) error {
	f.mu.Lock()
	if f.needs == nil {
		f.needs = map[string][]nft.Passage{}
	}
	f.needs[network] = passages
	var all []nft.Passage
	for _, name := range slices.Sorted(maps.Keys(f.needs)) {
		all = append(all, f.needs[name]...)
	}
	same := slices.Equal(f.passages, all) && f.survey != nil
	f.passages = all
	f.mu.Unlock()
	if same {
		return nil
	}
	why := f.look(ctx)
	if why == nil || ctx.Err() != nil {
		return why
	}
	wakeUp(f.again)
	if err := f.keep(ctx); err != nil {
		return errors.Join(why, err)
	}
	f.log.Warn("reading other programs' nftables chains failed, trying again", "error", why)
	return nil
}

// keep has the rules stay that a former life placed in others' chains, while nothing is known of what they are to be.
func (f *firewall) keep(ctx context.Context) error {
	f.looking.Lock()
	defer f.looking.Unlock()
	f.mu.Lock()
	known := f.survey != nil
	f.mu.Unlock()
	if known {
		return nil // the loop has them
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

// look surveys others' chains and hands the loop what they need.
func (f *firewall) look(ctx context.Context) error {
	f.looking.Lock()
	defer f.looking.Unlock()
	f.mu.Lock()
	passages := f.passages
	f.mu.Unlock()
	if len(passages) == 0 {
		return nil
	}
	survey, err := f.engine.Survey(ctx, passages...)
	if err != nil {
		err = fmt.Errorf("host firewall: reading other programs' chains: %w", err)
		f.mu.Lock()
		f.unseen = err
		f.mu.Unlock()
		f.settled()
		return err
	}
	jumps, warnings := nft.Open(survey.Drops, string(ownerFirewall), "; put such rules into chain "+host.AdminChain+" of table inet weft")
	if blind := f.blind(); blind != "" {
		warnings = append(warnings, blind)
	}
	f.loop.Set(map[reconcile.Owner]map[nft.Key]nft.Item{ownerFirewall: jumps})
	f.mu.Lock()
	told := slices.Equal(f.warnings, warnings)
	f.survey, f.jumps, f.warnings, f.unseen = survey, jumps, warnings, nil
	rules := leftoverRules(survey)
	left := f.rules != rules
	f.rules = rules
	f.mu.Unlock()
	if left {
		f.changed()
	}
	if !told {
		for _, warning := range warnings {
			f.log.Warn("host firewall", "warning", warning)
		}
	}
	f.settled()
	return nil
}

// settled has people told when there is something else to tell than before: after a look, and after the loop's work. It does
// not wait.
func (f *firewall) settled() {
	warning := f.warning()
	f.mu.Lock()
	same := f.told == warning
	f.told = warning
	f.mu.Unlock()
	if !same {
		f.changed()
	}
}

// blind returns what is to be said when there are rules that nft does not show.
func (f *firewall) blind() string {
	text, err := os.ReadFile(f.legacy)
	if err != nil || !slices.Contains(strings.Fields(string(text)), "filter") {
		return ""
	}
	return "legacy iptables is in use beside nftables, and its rules cannot be seen from here: " +
		"look at iptables-legacy -S for what drops packets of tun0, or change to iptables-nft"
}

// leftover returns which rules OpenShift SDN left, in words; "" for none.
func (f *firewall) leftover() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rules
}

// state returns nil when nothing of Weft's is kept from passing, else everything that is, in one error.
func (f *firewall) state() error {
	if warning := f.warning(); warning != "" {
		return errors.New(warning)
	}
	return nil
}

// warning returns what people have to be told, "" for nothing.
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

// follow has everything read again that somebody else changed and that matters, until ctx ends.
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
				return drift.Err // an agent that hears nothing ends, and begins anew
			}
			look, ours := f.hear(&drift)
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

// hear has Weft's own tables read again where a drift may be in them, and reports whether it calls for a look, and whether
// it touches a chain with a rule of ours.
func (f *firewall) hear(drift *nft.Drift) (look, ours bool) {
	if drift.InCare || drift.All {
		f.loop.Resync()
	}
	look, ours = f.concerns(drift)
	return look || ours, ours
}

// answer looks at others' chains, and has the rules in them read again. What it returns is when to try again, nil for never.
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

// warningMax bounds what a node's condition tells of warnings, in bytes; the log has all.
const warningMax = 1024

// tellReady sets the node's condition: it serves pods, whatever the host's firewalls do, and the condition says what they do.
func (a *agent) tellReady(ctx context.Context, warning string) error {
	if warning == "" {
		return reportReady(ctx, a.clients, a.opts.Node)
	}
	return report(ctx, a.clients, a.opts.Node, corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: reasonReady,
		Message: "Weft's agent serves this node's pods; host firewall: " + warning[:min(len(warning), warningMax)],
	})
}

// concerns reports whether a drift calls for a look, and whether it touches a chain with a rule of ours.
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
