package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/firewalls"
	"weft.dev/weft/internal/overlay/node/watch"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/internal/resolver"
	"weft.dev/weft/internal/steps"
	"weft.dev/weft/internal/watermark"
)

// egressFirewalls updates the network when egress firewalls change. They depend on EgressNetworkPolicies, on VNIDs (namespaces that share a
// VNID affect each other's firewalls), and on the addresses of DNS names. Objects are watched only in modes that have egress firewalls.
// Names are resolved only for namespaces with pods on this node.
type egressFirewalls struct {
	cache  cache.Cache
	vnids  *watch.NetNamespaces
	log    *slog.Logger
	wake   chan struct{}
	names  *resolver.Names
	events Events
	// mark is the resourceVersion observed of EgressNetworkPolicies.
	mark *watermark.Mark

	// gathered are the changes of names, and judged what is not in effect as written.
	gathered gatheredNames
	judged   judgedPolicies

	// synced reports for each watch whether its first list is processed; empty while nothing is watched. handler receives NetNamespaces. Only
	// prepare and end use them.
	synced  []toolscache.DoneChecker
	handler toolscache.ResourceEventHandlerRegistration

	// listed says that the first lists are processed. Until then, steps do nothing.
	listed atomic.Bool

	// mu guards the changes not yet processed.
	mu       sync.Mutex
	policies map[egressfirewall.Key]struct{}
	spaces   map[string]struct{}

	// runs makes one step at a time.
	runs steps.Runs
	firewallState
}

// firewallState is the state of the step in progress. While nothing is watched, it belongs to prepare and end.
type firewallState struct {
	index *egressfirewall.Index
	// residents are the namespaces that have, or recently had, pods on this node.
	residents residents
	// forget starts a step when the next namespace without pods is due to be removed from residents; nil: none is due.
	forget *time.Timer
	// known says that the network has received all firewalls once; unsettled, that the last update may not be in effect.
	known, unsettled bool
}

func newEgressFirewalls(store cache.Cache, vnids *watch.NetNamespaces, log *slog.Logger) *egressFirewalls {
	e := &egressFirewalls{
		cache: store, vnids: vnids, log: log, wake: make(chan struct{}, 1), mark: vnids.Mark(realised.EgressNetworkPolicy),
		policies: map[egressfirewall.Key]struct{}{}, spaces: map[string]struct{}{},
		firewallState: firewallState{index: egressfirewall.NewIndex(), residents: residents{}},
	}
	e.gathered.step = e.signal
	return e
}

// Reasons of the events on EgressNetworkPolicies.
const (
	reasonName         = "NameNotResolved"
	reasonFirewallSize = "TooManyAddresses"
)

// Limits on the work that changes of names cause.
const (
	// gatherNames is the minimum time between two steps for changed names. A step handles all changes until then.
	gatherNames = 500 * time.Millisecond
	// lingerNames is how long names stay resolved after the last pod of their namespace ended, so that the next pod finds them resolved.
	lingerNames = 10 * time.Minute
)

// residents are the namespaces that have pods on this node, with the zero time, and those that recently had, with the time of their
// removal.
type residents map[string]time.Time

// at records the namespaces that have pods now. It returns all residents, and the time of the next removal; zero: none is due.
func (r residents) at(now time.Time, here map[string]struct{}) (all map[string]struct{}, next time.Time) {
	for namespace := range here {
		r[namespace] = time.Time{}
	}
	all = map[string]struct{}{}
	for namespace, until := range r {
		if _, is := here[namespace]; !is {
			if until.IsZero() {
				until = now.Add(lingerNames)
				r[namespace] = until
			}
			if !now.Before(until) {
				delete(r, namespace)
				continue
			}
			if next.IsZero() || until.Before(next) {
				next = until
			}
		}
		all[namespace] = struct{}{}
	}
	return all, next
}

// resolve sets how names are resolved, and what sends the events about names that cannot be resolved. If it is nil, no events are sent.
func (e *egressFirewalls) resolve(opts *Options) {
	client := &resolver.Client{ResolvConf: opts.ResolvConf}
	e.events = opts.Events
	e.names = resolver.NewNames(resolver.Options{
		Lookup: client.Lookup, Changed: e.gathered.changed, File: filepath.Join(opts.StateDir, namesFile), Log: opts.Log,
	})
}

// gatheredNames are changes of names that wait for a common step.
type gatheredNames struct {
	// step triggers a step.
	step func()

	mu sync.Mutex
	// due says that names changed and a step for them is due soon. last is the time of the last such step.
	due  bool
	last time.Time
}

// changed triggers a step for changed names. If the last such step was recent, the next one is delayed and handles all changes until then.
func (g *gatheredNames) changed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.due {
		return
	}
	g.due = true
	time.AfterFunc(time.Until(g.last.Add(gatherNames)), func() {
		g.mu.Lock()
		g.due, g.last = false, time.Now()
		g.mu.Unlock()
		g.step()
	})
}

// judgedPolicies are the policies that concern this node.
type judgedPolicies struct {
	mu sync.Mutex
	// problems are why policies are not in effect as written, by policy.
	problems map[string]string
	// here are the policies of the namespaces that have pods on this node.
	here map[string][]egressfirewall.Key
}

// set replaces the problems and the policies.
func (j *judgedPolicies) set(problems map[string]string, here map[string][]egressfirewall.Key) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.problems, j.here = problems, here
}

// unrealised returns which policies are not in effect as written, with the reasons. If something of a namespace is not programmed, these
// are all its policies.
func (j *judgedPolicies) unrealised(spaces map[string]string) map[string]string {
	j.mu.Lock()
	defer j.mu.Unlock()
	problems := map[string]string{}
	maps.Copy(problems, j.problems)
	for namespace, why := range spaces {
		for _, key := range j.here[namespace] {
			problems[key.String()] = why
		}
	}
	return problems
}

// namesFile is the file in the state directory that stores the addresses of names, so that the flows are the same after a restart.
const namesFile = "names.json"

// prepare gives the network all egress firewalls before a mode begins that has them.
func (e *egressFirewalls) prepare(ctx context.Context, network *overlay.Network, view *overlay.View) error {
	if !view.Guarded() {
		return nil
	}
	if err := e.enter(ctx); err != nil {
		return err
	}
	if err := e.step(ctx, network); errors.Is(err, watch.ErrUnprogrammed) {
		e.signal() // the step is retried; nothing else waits for it
	} else if err != nil {
		return err
	}
	return nil
}

// enter starts the watches if necessary, and waits until their first lists are processed.
func (e *egressFirewalls) enter(ctx context.Context) error {
	if len(e.synced) == 0 {
		if err := e.watch(ctx); err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
	}
	waiting, cancel := context.WithTimeout(ctx, watchSync)
	defer cancel()
	if !toolscache.WaitFor(waiting, "", e.synced...) {
		return errors.New("waiting for the API server to list all EgressNetworkPolicies and NetNamespaces")
	}
	e.listed.Store(true)
	return nil
}

func (e *egressFirewalls) watch(ctx context.Context) error {
	informer, err := e.cache.GetInformer(ctx, &networkv1.EgressNetworkPolicy{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err //nolint:wrapcheck // the caller does
	}
	e.mark.Begin()
	policies, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: e.notePolicy, DeleteFunc: e.notePolicy,
		UpdateFunc: func(before, after any) {
			a, ok := before.(*networkv1.EgressNetworkPolicy)
			b, too := after.(*networkv1.EgressNetworkPolicy)
			if !ok || !too || a.UID != b.UID || !reflect.DeepEqual(a.Spec, b.Spec) { // the status is written too
				e.notePolicy(after)
			} else if at, ok := watch.ChangeOf(after); ok {
				at.Mark(e.mark, false)
			}
		},
	})
	if err != nil {
		return err //nolint:wrapcheck // the caller does
	}
	if e.handler, err = e.vnids.Follow(ctx, e.noteNetNamespace, nil); err != nil {
		return errors.Join(err, informer.RemoveEventHandler(policies))
	}
	e.synced = []toolscache.DoneChecker{policies.HasSyncedChecker(), e.handler.HasSyncedChecker()}
	return nil
}

// end ends the watches once the step in progress has ended, and discards the state derived from them.
func (e *egressFirewalls) end(ctx context.Context, network *overlay.Network) error {
	if len(e.synced) == 0 {
		return nil
	}
	e.listed.Store(false)
	if err := e.step(ctx, network); err != nil { // a step in progress may still read the objects
		return err
	}
	err := e.vnids.Unfollow(ctx, e.handler)
	if again := e.cache.RemoveInformer(ctx, &networkv1.EgressNetworkPolicy{}); again != nil {
		err = errors.Join(err, fmt.Errorf("ending the watch of EgressNetworkPolicies: %w", again))
	}
	e.synced, e.handler, e.known = nil, nil, false
	e.take()
	e.mark.End()
	e.index, e.residents = egressfirewall.NewIndex(), residents{}
	e.names.Want(nil)
	e.names.Take()
	return err
}

func (e *egressFirewalls) notePolicy(object any) {
	if o, ok := informer.LastState(object).(*networkv1.EgressNetworkPolicy); ok {
		at, _ := watch.ChangeOf(object)
		e.mu.Lock()
		e.policies[egressfirewall.Key{Namespace: o.Namespace, Name: o.Name}] = struct{}{}
		at.Mark(e.mark, true)
		e.mu.Unlock()
		e.signal()
	}
}

func (e *egressFirewalls) noteNetNamespace(at watch.Change) {
	e.mu.Lock()
	e.spaces[at.Key] = struct{}{}
	e.mu.Unlock()
	e.signal()
}

// signal triggers a step.
func (e *egressFirewalls) signal() { steps.Wake(e.wake) }

func (e *egressFirewalls) take() (policies map[egressfirewall.Key]struct{}, spaces map[string]struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mark.Take()
	policies, spaces = e.policies, e.spaces
	e.policies, e.spaces = map[egressfirewall.Key]struct{}{}, map[string]struct{}{}
	return policies, spaces
}

// step updates the network with the changes since the last step; the first time, with everything. It does nothing before the watches' first
// lists are processed. One step is made at a time, as steps.Runs describes.
func (e *egressFirewalls) step(ctx context.Context, network *overlay.Network) error {
	return e.runs.Do(ctx, func(ctx context.Context) error {
		if !e.listed.Load() {
			return nil
		}
		err := e.advance(ctx, network)
		e.mark.Done(err)
		return err
	})
}

// advance does the work of step once the first lists are processed.
func (e *egressFirewalls) advance(ctx context.Context, network *overlay.Network) error {
	policies, spaces := e.take()
	if err := e.read(ctx, policies, spaces); err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		maps.Copy(e.policies, policies)
		maps.Copy(e.spaces, spaces)
		return err
	}
	e.want(network)
	for _, name := range e.names.Take() {
		e.learn(ctx, name)
	}
	change := firewalls.Change{Firewalls: e.index.Changed()}
	e.judge()
	if !e.known {
		change = firewalls.Change{Reset: true, Firewalls: e.index.All()}
	}
	if len(change.Firewalls) == 0 && !change.Reset && !e.unsettled {
		return nil
	}
	e.reportClosed(ctx, change.Firewalls)
	e.known, e.unsettled = true, true
	if err := network.Firewalls.Update(ctx, change); err != nil {
		return fmt.Errorf("%w: %w", watch.ErrUnprogrammed, err)
	}
	e.unsettled = false
	return nil
}

// judge records which policies are not in effect as written on this node, and why. Problems that are the same on every node are reported by
// the controller.
func (e *egressFirewalls) judge() {
	problems := map[string]string{}
	here, policies := map[string]struct{}{}, map[string][]egressfirewall.Key{}
	for namespace := range e.residents {
		here[namespace], policies[namespace] = struct{}{}, e.index.Policies(namespace)
		if firewall := e.index.Firewall(namespace); firewall != nil && firewall.TooLarge {
			for _, key := range policies[namespace] {
				problems[key.String()] = "nothing leaves the namespace: " + firewall.Closed
			}
		}
	}
	for _, name := range e.index.Names(here) {
		state := e.names.State(name)
		if state.Known {
			continue
		}
		why := name + " is not resolved yet"
		if state.Err != nil {
			why = state.Err.Error()
		}
		for _, key := range e.index.Users(name) {
			if _, is := here[key.Namespace]; is && problems[key.String()] == "" {
				problems[key.String()] = why + ": a rule that allows it allows nothing, one that denies it denies all that no rule before it matches"
			}
		}
	}
	e.judged.set(problems, policies)
}

// want sets which names are resolved.
func (e *egressFirewalls) want(network *overlay.Network) {
	now := time.Now()
	namespaces, next := e.residents.at(now, network.WithPods())
	e.names.Want(e.index.Names(namespaces))
	if e.forget != nil {
		e.forget.Stop()
	}
	if e.forget = nil; !next.IsZero() {
		e.forget = time.AfterFunc(next.Sub(now), e.signal)
	}
}

// ahead runs a step before anything else processes changed NetNamespaces: namespaces that come to share a VNID are closed before they share
// it. If programming fails, the step is retried; nothing else waits for it.
func (e *egressFirewalls) ahead(ctx context.Context, network *overlay.Network, names map[string]struct{}) {
	e.mu.Lock()
	maps.Copy(e.spaces, names)
	e.mu.Unlock()
	if err := e.step(ctx, network); err != nil {
		e.signal()
	}
}

// read updates the index from the objects.
func (e *egressFirewalls) read(ctx context.Context, policies map[egressfirewall.Key]struct{}, spaces map[string]struct{}) error {
	for key := range policies {
		var object networkv1.EgressNetworkPolicy
		there, err := informer.Read(ctx, e.cache, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, &object)
		switch {
		case err != nil:
			return err
		case there:
			e.index.SetPolicy(egressfirewall.FromObject(&object))
		default:
			e.index.DeletePolicy(key)
		}
	}
	for name := range spaces {
		var object networkv1.NetNamespace
		there, err := informer.Read(ctx, e.cache, client.ObjectKey{Name: name}, &object)
		if err != nil {
			return err
		}
		if vnid, ok := watch.VNIDOf(&object); there && ok {
			e.index.SetVNID(name, vnid)
		} else {
			e.index.DeleteVNID(name)
		}
	}
	return nil
}

// reportClosed reports namespaces whose traffic out of the cluster is all dropped. The controller reports the reason on the policies, except
// for a reason that is known on this node only.
func (e *egressFirewalls) reportClosed(ctx context.Context, firewalls map[string]*egressfirewall.Firewall) {
	for namespace, firewall := range firewalls {
		if firewall == nil || firewall.Closed == "" {
			continue
		}
		e.log.Warn("all traffic out of a namespace is dropped", "namespace", namespace, "reason", firewall.Closed)
		if firewall.TooLarge {
			e.event(ctx, e.index.Policies(namespace), reasonFirewallSize, "nothing leaves the namespace: "+firewall.Closed)
		}
	}
}

// event sends an event for each policy.
func (e *egressFirewalls) event(ctx context.Context, policies []egressfirewall.Key, reason, note string) {
	if e.events == nil {
		return
	}
	for _, key := range policies {
		var object networkv1.EgressNetworkPolicy
		if there, err := informer.Read(ctx, e.cache, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, &object); err == nil && there {
			e.events.EgressNetworkPolicy(&object, reason, note)
		}
	}
}

// learn takes over the addresses of a name from the resolver, and reports a name that cannot be resolved.
func (e *egressFirewalls) learn(ctx context.Context, name string) {
	state := e.names.State(name)
	if state.Known {
		e.index.SetAddresses(name, state.Addrs)
	} else {
		e.index.ForgetName(name)
	}
	if state.Err == nil {
		return
	}
	effect := "until it is, a rule that allows it allows nothing, and one that denies it denies all that no rule before it has matched"
	if state.Known {
		effect = "the addresses that it had stay in effect"
	}
	e.log.Warn("DNS name not resolved", "name", name, "error", state.Err)
	e.event(ctx, e.index.Users(name), reasonName, fmt.Sprintf("%v: %s", state.Err, effect))
}
