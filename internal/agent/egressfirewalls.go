package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/realised"
	"weft.dev/weft/internal/resolver"
	"weft.dev/weft/internal/watermark"
)

// egressFirewalls tells which namespaces' egress firewalls changed: by their EgressNetworkPolicies, by VNIDs, which tell what shares a
// firewall's fate, and by what names stand for. All are watched only in the modes that have firewalls, and names resolved only for
// namespaces that have pods here.
type egressFirewalls struct {
	cache    cache.Cache
	vnids    *netNamespaces
	log      *slog.Logger
	wake     chan struct{}
	names    *resolver.Names
	recorder *recorder
	// mark says how far EgressNetworkPolicies are in effect.
	mark *watermark.Mark

	// mu guards what changed, and what is not as policies say.
	mu       sync.Mutex
	policies map[egressfirewall.Key]struct{}
	spaces   map[string]struct{}
	problems map[string]string
	// here are the policies of the namespaces that have pods here.
	here map[string][]egressfirewall.Key
	// gathering says that names changed, of which a step is taken soon, and gathered when one was last.
	gathering bool
	gathered  time.Time

	// stepping serialises the steps, and guards what follows.
	stepping sync.Mutex
	index    *egressfirewall.Index
	// residents are the namespaces that have pods here, or had lately.
	residents residents
	// forget has the next of those forgotten that have none any more; nil: all have.
	forget *time.Timer
	// synced tell whether each watch has told of everything once; empty while nothing is watched. handler is told of NetNamespaces.
	synced  []toolscache.DoneChecker
	handler toolscache.ResourceEventHandlerRegistration
	// known says that the network has been told of everything once; unsettled, that what it was told may not be in effect.
	known, unsettled bool
}

func newEgressFirewalls(store cache.Cache, vnids *netNamespaces, log *slog.Logger) *egressFirewalls {
	return &egressFirewalls{
		cache: store, vnids: vnids, log: log, wake: make(chan struct{}, 1), index: egressfirewall.NewIndex(), mark: vnids.mark(realised.EgressNetworkPolicy),
		policies: map[egressfirewall.Key]struct{}{}, spaces: map[string]struct{}{}, residents: residents{}, problems: map[string]string{},
	}
}

// Bounds of the work that names make.
const (
	// gatherNames is how long after a step for names that changed the next is taken, with all that change until then.
	gatherNames = 500 * time.Millisecond
	// lingerNames is how long names are resolved on after their namespace's last pod: the next one finds them resolved.
	lingerNames = 10 * time.Minute
)

// residents are namespaces that have pods here, with the zero time, or had lately, with when they are forgotten.
type residents map[string]time.Time

// at takes note of the namespaces that have pods now, and returns those that count, and when one more is forgotten; zero: none is to be.
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

// resolve says how names are resolved, and who is told of those that cannot be: nobody, if tell is nil.
func (e *egressFirewalls) resolve(opts *Options, tell *recorder) {
	client := &resolver.Client{ResolvConf: opts.ResolvConf}
	e.recorder = tell
	e.names = resolver.NewNames(resolver.Options{
		Lookup: client.Lookup, Changed: e.nameChanged, File: filepath.Join(opts.StateDir, namesFile), Log: opts.Log,
	})
}

// nameChanged has a step taken: at once, or, if one was lately, soon, of all that changes until then.
func (e *egressFirewalls) nameChanged() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gathering {
		return
	}
	e.gathering = true
	time.AfterFunc(time.Until(e.gathered.Add(gatherNames)), func() {
		e.mu.Lock()
		e.gathering, e.gathered = false, time.Now()
		e.mu.Unlock()
		e.signal()
	})
}

// namesFile keeps, in the state's directory, what names stand for: after a restart the flows are those from before.
const namesFile = "names.json"

// prepare tells the network of all egress firewalls before a mode comes that has them.
func (e *egressFirewalls) prepare(ctx context.Context, network *overlay.Network, view *overlay.View) error {
	if !view.Guarded() {
		return nil
	}
	if err := e.enter(ctx); err != nil {
		return err
	}
	if err := e.step(ctx, network, true); errors.Is(err, errUnprogrammed) {
		e.signal() // which is tried again, and keeps nothing else
	} else if err != nil {
		return err
	}
	return nil
}

// enter sees that everything is watched, and waits until all is known once.
func (e *egressFirewalls) enter(ctx context.Context) error {
	e.stepping.Lock()
	defer e.stepping.Unlock()
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
			} else if at, ok := passageOf(after); ok {
				at.tell(e.mark, false)
			}
		},
	})
	if err != nil {
		return err //nolint:wrapcheck // the caller does
	}
	if e.handler, err = e.vnids.follow(ctx, e.noteNetNamespace, nil); err != nil {
		return errors.Join(err, informer.RemoveEventHandler(policies))
	}
	e.synced = []toolscache.DoneChecker{policies.HasSyncedChecker(), e.handler.HasSyncedChecker()}
	return nil
}

// end ends the watches, and forgets what they told.
func (e *egressFirewalls) end(ctx context.Context) error {
	e.stepping.Lock()
	defer e.stepping.Unlock()
	if len(e.synced) == 0 {
		return nil
	}
	err := e.vnids.unfollow(ctx, e.handler)
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
	if o, ok := lastState(object).(*networkv1.EgressNetworkPolicy); ok {
		at, _ := passageOf(object)
		e.mu.Lock()
		e.policies[egressfirewall.Key{Namespace: o.Namespace, Name: o.Name}] = struct{}{}
		at.tell(e.mark, true)
		e.mu.Unlock()
		e.signal()
	}
}

func (e *egressFirewalls) noteNetNamespace(at passage) {
	e.mu.Lock()
	e.spaces[at.key] = struct{}{}
	e.mu.Unlock()
	e.signal()
}

// signal has a step taken soon.
func (e *egressFirewalls) signal() { wakeUp(e.wake) }

func (e *egressFirewalls) take() (policies map[egressfirewall.Key]struct{}, spaces map[string]struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mark.Take()
	policies, spaces = e.policies, e.spaces
	e.policies, e.spaces = map[egressfirewall.Key]struct{}{}, map[string]struct{}{}
	return policies, spaces
}

// step tells the network of what changed since the last, the first time of everything. While nothing is watched it does
// nothing; nor, before the watches have told of everything, unless all is set: then they have.
func (e *egressFirewalls) step(ctx context.Context, network *overlay.Network, all bool) error {
	e.stepping.Lock()
	defer e.stepping.Unlock()
	if len(e.synced) == 0 || !e.known && !all {
		return nil
	}
	err := e.advance(ctx, network)
	e.mark.Done(err)
	return err
}

// advance is step once something is watched. The caller holds stepping.
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
	change := overlay.FirewallChange{Firewalls: e.index.Changed()}
	e.judge()
	if !e.known {
		change = overlay.FirewallChange{Reset: true, Firewalls: e.index.All()}
	}
	if len(change.Firewalls) == 0 && !change.Reset && !e.unsettled {
		return nil
	}
	e.tellClosed(ctx, change.Firewalls)
	e.known, e.unsettled = true, true
	if err := network.UpdateFirewalls(ctx, change); err != nil {
		return fmt.Errorf("%w: %w", errUnprogrammed, err)
	}
	e.unsettled = false
	return nil
}

// judge notes which policies are not in effect as they say on this node, and why. What is wrong with them everywhere, the controller
// says.
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
	e.mu.Lock()
	e.problems, e.here = problems, policies
	e.mu.Unlock()
}

// want says which names are resolved.
func (e *egressFirewalls) want(network *overlay.Network) {
	now := time.Now()
	namespaces, next := e.residents.at(now, network.Inhabited())
	e.names.Want(e.index.Names(namespaces))
	if e.forget != nil {
		e.forget.Stop()
	}
	if e.forget = nil; !next.IsZero() {
		e.forget = time.AfterFunc(next.Sub(now), e.signal)
	}
}

// ahead is step before anything else acts on NetNamespaces that changed: those that come to share a VNID are closed before they do. What
// cannot be programmed is tried again, and keeps nobody else.
func (e *egressFirewalls) ahead(ctx context.Context, network *overlay.Network, names map[string]struct{}) {
	e.mu.Lock()
	maps.Copy(e.spaces, names)
	e.mu.Unlock()
	if err := e.step(ctx, network, false); err != nil {
		e.signal()
	}
}

// read brings the index in step with objects.
func (e *egressFirewalls) read(ctx context.Context, policies map[egressfirewall.Key]struct{}, spaces map[string]struct{}) error {
	for key := range policies {
		var object networkv1.EgressNetworkPolicy
		there, err := e.get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, &object)
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
		there, err := e.get(ctx, client.ObjectKey{Name: name}, &object)
		if err != nil {
			return err
		}
		if vnid, ok := vnidOf(&object); there && ok {
			e.index.SetVNID(name, vnid)
		} else {
			e.index.DeleteVNID(name)
		}
	}
	return nil
}

func (e *egressFirewalls) get(ctx context.Context, key client.ObjectKey, into client.Object) (there bool, err error) {
	err = e.cache.Get(ctx, key, into, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %T %s: %w", into, key, err)
	}
	return true, nil
}

// tellClosed tells of namespaces that nothing leaves. Why, the controller says on their policies, but for what only this node knows.
func (e *egressFirewalls) tellClosed(ctx context.Context, firewalls map[string]*egressfirewall.Firewall) {
	for namespace, firewall := range firewalls {
		if firewall == nil || firewall.Closed == "" {
			continue
		}
		e.log.Warn("all traffic out of a namespace is dropped", "namespace", namespace, "reason", firewall.Closed)
		if firewall.TooLarge {
			e.tell(ctx, e.index.Policies(namespace), reasonFirewallSize, "nothing leaves the namespace: "+firewall.Closed)
		}
	}
}

// tell sends an event of policies.
func (e *egressFirewalls) tell(ctx context.Context, policies []egressfirewall.Key, reason, note string) {
	if e.recorder == nil {
		return
	}
	for _, key := range policies {
		var object networkv1.EgressNetworkPolicy
		if there, err := e.get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, &object); err == nil && there {
			e.recorder.EgressNetworkPolicy(&object, reason, note)
		}
	}
}

// learn takes over what is known of a name, and tells of one that cannot be resolved.
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
	e.tell(ctx, e.index.Users(name), reasonName, fmt.Sprintf("%v: %s", state.Err, effect))
}

// followEgressFirewalls keeps egress firewalls in step until ctx ends.
func (a *agent) followEgressFirewalls(ctx context.Context, network *overlay.Network) error {
	e := a.objects.egressFirewalls
	return a.keepInStep(ctx, e.wake, "EgressNetworkPolicies", func() error { return e.step(ctx, network, false) })
}
