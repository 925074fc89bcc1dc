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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/resolver"
)

// egress tells which namespaces' egress firewalls changed: by their EgressNetworkPolicies, by VNIDs, which tell what shares a
// firewall's fate, and by what names stand for. All are watched only in the modes that have firewalls, and names resolved only for
// namespaces that have pods here.
type egress struct {
	cache    cache.Cache
	vnids    *sharedWatch
	log      *slog.Logger
	wake     chan struct{}
	names    *resolver.Names
	recorder *recorder

	// mu guards what changed.
	mu       sync.Mutex
	policies map[egressfirewall.Key]struct{}
	spaces   map[string]struct{}

	// stepping serialises the steps, and guards what follows.
	stepping sync.Mutex
	index    *egressfirewall.Index
	// synced tell whether each watch has told of everything once; empty while nothing is watched.
	synced  []toolscache.InformerSynced
	watched toolscache.ResourceEventHandlerRegistration
	// known says that the network has been told of everything once; unsettled, that what it was told may not be in effect.
	known, unsettled bool
}

func newEgress(store cache.Cache, vnids *sharedWatch, log *slog.Logger) *egress {
	return &egress{
		cache: store, vnids: vnids, log: log, wake: make(chan struct{}, 1), index: egressfirewall.NewIndex(),
		policies: map[egressfirewall.Key]struct{}{}, spaces: map[string]struct{}{},
	}
}

// resolve says how names are resolved, and who is told of those that cannot be: nobody, if tell is nil.
func (e *egress) resolve(opts *Options, tell *recorder) {
	client := &resolver.Client{ResolvConf: opts.ResolvConf}
	e.recorder = tell
	e.names = resolver.NewNames(resolver.Options{
		Lookup: client.Lookup, Changed: e.signal, File: filepath.Join(opts.StateDir, namesFile), Log: opts.Log,
	})
}

// namesFile keeps, in the state's directory, what names stand for: after a restart the flows are those from before.
const namesFile = "names.json"

// enter sees that everything is watched, and waits until all is known once.
func (e *egress) enter(ctx context.Context) error {
	e.stepping.Lock()
	defer e.stepping.Unlock()
	if len(e.synced) == 0 {
		if err := e.watch(ctx); err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
	}
	waiting, cancel := context.WithTimeout(ctx, policySync)
	defer cancel()
	if !toolscache.WaitForCacheSync(waiting.Done(), e.synced...) {
		return errors.New("waiting for the API server to tell of all EgressNetworkPolicies and NetNamespaces")
	}
	return nil
}

func (e *egress) watch(ctx context.Context) error {
	informer, err := e.cache.GetInformer(ctx, &networkv1.EgressNetworkPolicy{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err //nolint:wrapcheck // the caller does
	}
	policies, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: e.notePolicy, DeleteFunc: e.notePolicy,
		UpdateFunc: func(before, after any) {
			a, ok := before.(*networkv1.EgressNetworkPolicy)
			b, too := after.(*networkv1.EgressNetworkPolicy)
			if !ok || !too || a.UID != b.UID || !reflect.DeepEqual(a.Spec, b.Spec) { // the status is written too
				e.notePolicy(after)
			}
		},
	})
	if err != nil {
		return err //nolint:wrapcheck // the caller does
	}
	e.watched, err = e.vnids.add(ctx, toolscache.ResourceEventHandlerFuncs{
		AddFunc: e.noteSpace, UpdateFunc: func(_, now any) { e.noteSpace(now) }, DeleteFunc: e.noteSpace,
	})
	if err != nil {
		return errors.Join(err, informer.RemoveEventHandler(policies))
	}
	e.synced = []toolscache.InformerSynced{policies.HasSynced, e.watched.HasSynced}
	return nil
}

// leave ends the watches, and forgets what they told.
func (e *egress) leave(ctx context.Context) error {
	e.stepping.Lock()
	defer e.stepping.Unlock()
	if len(e.synced) == 0 {
		return nil
	}
	if e.watched != nil {
		if err := e.vnids.remove(ctx, e.watched); err != nil {
			return err
		}
		e.watched = nil
	}
	if err := e.cache.RemoveInformer(ctx, &networkv1.EgressNetworkPolicy{}); err != nil {
		return fmt.Errorf("ending the watch of EgressNetworkPolicies: %w", err)
	}
	e.synced, e.known = nil, false
	e.take()
	e.index = egressfirewall.NewIndex()
	e.names.Want(nil)
	e.names.Take()
	return nil
}

func (e *egress) notePolicy(object any) {
	if at, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = at.Obj
	}
	if o, ok := object.(*networkv1.EgressNetworkPolicy); ok {
		e.mu.Lock()
		e.policies[egressfirewall.Key{Namespace: o.Namespace, Name: o.Name}] = struct{}{}
		e.mu.Unlock()
		e.signal()
	}
}

func (e *egress) noteSpace(object any) {
	if at, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = at.Obj
	}
	if o, ok := object.(*networkv1.NetNamespace); ok {
		e.mu.Lock()
		e.spaces[o.Name] = struct{}{}
		e.mu.Unlock()
		e.signal()
	}
}

// signal has a step taken soon.
func (e *egress) signal() {
	select {
	case e.wake <- struct{}{}:
	default: // whoever is woken takes this as well
	}
}

func (e *egress) take() (policies map[egressfirewall.Key]struct{}, spaces map[string]struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	policies, spaces = e.policies, e.spaces
	e.policies, e.spaces = map[egressfirewall.Key]struct{}{}, map[string]struct{}{}
	return policies, spaces
}

// step tells the network of what changed since the last, the first time of everything. While nothing is watched it does
// nothing; nor, before the watches have told of everything, unless all is set: then they have.
func (e *egress) step(ctx context.Context, network *overlay.Network, all bool) error {
	e.stepping.Lock()
	defer e.stepping.Unlock()
	if len(e.synced) == 0 || !e.known && !all {
		return nil
	}
	policies, spaces := e.take()
	if err := e.read(ctx, policies, spaces); err != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		maps.Copy(e.policies, policies)
		maps.Copy(e.spaces, spaces)
		return err
	}
	e.names.Want(e.index.Names(network.Inhabited()))
	for _, name := range e.names.Take() {
		e.learn(ctx, name)
	}
	change := overlay.FirewallChange{Firewalls: e.index.Changed()}
	if !e.known {
		change = overlay.FirewallChange{Reset: true, Firewalls: e.index.All()}
	}
	if len(change.Firewalls) == 0 && !change.Reset && !e.unsettled {
		return nil
	}
	for namespace, firewall := range change.Firewalls {
		if firewall != nil && firewall.Closed != "" {
			e.log.Warn("nothing leaves a namespace", "namespace", namespace, "reason", firewall.Closed)
		}
	}
	e.known, e.unsettled = true, true
	if err := network.UpdateFirewalls(ctx, change); err != nil {
		return err
	}
	e.unsettled = false
	return nil
}

// read brings the index in step with objects.
func (e *egress) read(ctx context.Context, policies map[egressfirewall.Key]struct{}, spaces map[string]struct{}) error {
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
		switch {
		case err != nil:
			return err
		case there && object.NetName == object.Name && object.NetID <= networkv1.VNIDMax:
			e.index.SetVNID(name, object.NetID)
		default:
			e.index.DeleteVNID(name)
		}
	}
	return nil
}

func (e *egress) get(ctx context.Context, key client.ObjectKey, into client.Object) (there bool, err error) {
	err = e.cache.Get(ctx, key, into, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %T %s: %w", into, key, err)
	}
	return true, nil
}

// learn takes over what is known of a name, and tells of one that cannot be resolved.
func (e *egress) learn(ctx context.Context, name string) {
	state := e.names.State(name)
	if state.Known {
		e.index.SetAddresses(name, state.Addrs)
	} else {
		e.index.ForgetName(name)
	}
	if state.Err == nil || e.recorder == nil {
		return
	}
	effect := "until it is, a rule that allows it allows nothing, and one that denies it denies all that no rule before it has matched"
	if state.Known {
		effect = "the addresses that it had stay in effect"
	}
	e.log.Warn("a name cannot be resolved", "name", name, "error", state.Err)
	for _, key := range e.index.Users(name) {
		var object networkv1.EgressNetworkPolicy
		if there, err := e.get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, &object); err == nil && there {
			e.recorder.EgressNetworkPolicy(&object, fmt.Sprintf("%v: %s", state.Err, effect))
		}
	}
}

// followEgress keeps egress firewalls in step until ctx ends.
func (a *agent) followEgress(ctx context.Context, network *overlay.Network) error {
	e := a.objects.egress
	return a.keepInStep(ctx, e.wake, "EgressNetworkPolicies", func() error { return e.step(ctx, network, false) })
}

// guardNetwork tells the network of all egress firewalls before a mode comes that has them.
func (a *agent) guardNetwork(ctx context.Context, network *overlay.Network, view *overlay.View) error {
	if !view.Guarded() {
		return nil
	}
	if err := a.objects.egress.enter(ctx); err != nil {
		return err
	}
	return a.objects.egress.step(ctx, network, true)
}
