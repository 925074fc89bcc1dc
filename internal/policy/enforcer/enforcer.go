package enforcer

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
)

// Pod is a pod as policies see it.
type Pod struct {
	policy.Pod
	// UIDs are the UIDs by which a runtime may know the pod: its own, and that of the static pod that it mirrors.
	UIDs []string
}

// Change is what changed of the objects that NetworkPolicies depend on. A nil value means that the object is gone.
type Change struct {
	// Reset discards all objects of earlier changes.
	Reset      bool
	Policies   map[policy.Key]*policy.Policy
	Pods       map[policy.Key]*Pod
	Namespaces map[string]*policy.Namespace
	// Problems are the reasons for which some of Policies are invalid.
	Problems map[policy.Key]error
}

// Compiler keeps what one engine needs of policies. The Enforcer calls it with its lock held.
type Compiler interface {
	// Apply takes over the effect of one change of the index. The index is as it is right after that change.
	Apply(effect policy.Effect, index *policy.Index)
	// Commit hands over to the engine, in one change and without waiting, what changed since the last Commit, together with the
	// fragments of open attachments whose Decision changed. closed were detached since the last Commit. It returns the owners of
	// what it handed over.
	Commit(index *policy.Index, open []Attachment, closed []attach.Record) []reconcile.Owner
	// Narrowed reports whether something that was allowed may no longer be allowed, since it was last called.
	Narrowed() bool
	// Clear gives up all that was compiled from the index.
	Clear()
}

// Attachment is an attachment of the node with what was decided about its pod.
type Attachment struct {
	attach.Record
	Decision
}

// Decision is what an attachment's fragment depends on.
type Decision struct {
	// Known says that the isolation of the pod is known. Otherwise the attachment is closed.
	Known     bool
	Isolation policy.Isolation
	// Policies name the policies that isolate the pod; only with Options.PerPolicy.
	Policies string
}

// narrower reports whether a decision allows less than another.
func (d Decision) narrower(than Decision) bool {
	return than.Known && (!d.Known || d.Isolation.Narrower(than.Isolation) || d.Policies != than.Policies)
}

// Options of an Enforcer.
type Options struct {
	// Node is the node's name, as pods name it.
	Node string
	// Lock guards the Enforcer; nil: a lock of its own.
	Lock sync.Locker
	// Revocations is notified of what is revoked. Required, with the same lock.
	Revocations *Revocations
	// PerPolicy says that the fragment of an attachment depends on which policies isolate its pod, not only on its isolation.
	PerPolicy bool
	// Families are those of the network, and SCTP says that its engine tracks the ports of SCTP (TracksSCTP changes it): policies that
	// need more are Problems.
	Families Families
	SCTP     bool
	// Problems is called with what a NetworkPolicy that isolates a pod of this node says that is not enforced here, once for each
	// change of the policy. It must not wait. Nil: nothing is reported.
	Problems func(key policy.Key, problems []error)
}

// Families are the address families of a network.
type Families struct{ IPv4, IPv6 bool }

// Enforcer keeps what NetworkPolicies mean for the pods of one node. New returns one.
type Enforcer struct {
	opts Options
	lock sync.Locker
	// indexing serialises what changes the index, except for attachments. It is held across long work, and taken before lock.
	indexing sync.Mutex
	// state is guarded by lock.
	state
	// enforcing says that changes are handed over, and closed are attachments that were detached since.
	enforcing bool
	closed    []attach.Record
	// sctp says that the engine tracks the ports of SCTP.
	sctp bool
}

// state is what is known of policies and of the pods that they isolate.
type state struct {
	node      string
	perPolicy bool
	families  Families
	revoked   *Revocations
	index     *policy.Index
	pods      map[policy.Key]*Pod
	objects   map[policy.Key]struct{}
	// byNode are the pods by the names of their nodes, and ranges the ranges of the pods of other nodes.
	byNode map[string]map[policy.Key]struct{}
	ranges map[string][]netip.Prefix
	// attached are the node's open attachments, by pod.
	attached map[policy.Key]map[attach.Key]attach.Record
	// lent says that index and pods are being changed without the lock: attachments are fed afterwards.
	lent bool
	// nodes are the nodes that the index knows, by their addresses.
	nodes map[policy.Key][]netip.Addr
	// compiler is nil while the network does not isolate by policies.
	compiler Compiler
	// stale are pods whose attachments' decisions may have changed.
	stale map[policy.Key]struct{}
	// told is closed, and made anew, when pods change.
	told chan struct{}
	// shown are the decisions in the fragments that were handed over.
	shown map[attach.Key]Decision
	// doubts are the policies that may not be enforced as they say.
	doubts map[policy.Key]*doubt
}

// New returns an Enforcer without objects and attachments.
func New(opts Options) *Enforcer {
	e := &Enforcer{opts: opts, lock: opts.Lock, sctp: opts.SCTP}
	if e.lock == nil {
		e.lock = &sync.Mutex{}
	}
	e.state = newState(e.opts)
	return e
}

func newState(opts Options) state {
	return state{
		node: opts.Node, perPolicy: opts.PerPolicy, families: opts.Families, revoked: opts.Revocations,
		index: policy.New(opts.Node), pods: map[policy.Key]*Pod{}, objects: map[policy.Key]struct{}{},
		attached: map[policy.Key]map[attach.Key]attach.Record{}, stale: map[policy.Key]struct{}{}, told: make(chan struct{}),
		shown: map[attach.Key]Decision{}, doubts: map[policy.Key]*doubt{}, byNode: map[string]map[policy.Key]struct{}{},
	}
}

// Update takes a change of the objects over, and returns once its effect is in effect, revocations included. Before Compile it only
// takes note: all objects have to be in changes before the network begins to isolate by policies, because pods that are not known are
// closed then. What is refused keeps nothing else from being in effect or revoked.
func (e *Enforcer) Update(ctx context.Context, change Change) error {
	err := e.opts.Revocations.effective(ctx, e.take(change))
	e.ReportProblems()
	return err
}

// take indexes a change, hands over what differs, and returns the owners whose fragments may not be in effect yet.
func (e *Enforcer) take(change Change) []reconcile.Owner {
	e.indexing.Lock()
	defer e.indexing.Unlock()
	beside := e.indexAll(change)
	e.lock.Lock()
	defer e.lock.Unlock()
	if beside != nil {
		e.takeOver(beside)
	} else {
		e.update(change)
	}
	if e.HandOver() {
		e.revoked.changed()
	}
	return slices.Collect(maps.Keys(e.revoked.handed))
}

// indexAll indexes a change without the lock, if it has all objects and nothing is compiled from earlier ones; else it returns nil. The
// caller holds indexing.
func (e *Enforcer) indexAll(change Change) *state {
	e.lock.Lock()
	compiled := e.compiler != nil
	e.lock.Unlock()
	if !change.Reset || compiled {
		return nil
	}
	beside := newState(e.opts)
	beside.update(change)
	return &beside
}

// takeOver takes over what was indexed beside. The attachments are fed again; nodes are not known before Compile.
func (x *state) takeOver(beside *state) {
	x.index, x.pods, x.byNode, x.objects, x.doubts = beside.index, beside.pods, beside.byNode, beside.objects, beside.doubts
	x.feedAttached()
	close(x.told)
	x.told = make(chan struct{})
}

// Compile compiles all policies, unless that is done; ranges are the ranges of the pods of other nodes, by the nodes' names. Meanwhile
// no pod's isolation is known. It takes the lock.
func (e *Enforcer) Compile(compiler Compiler, ranges map[string][]netip.Prefix) {
	e.indexing.Lock()
	defer e.indexing.Unlock()
	e.lock.Lock()
	if e.compiler != nil {
		e.lock.Unlock()
		return
	}
	e.lent = true
	beside := newState(e.opts)
	beside.index, beside.pods, beside.objects = e.index, e.pods, e.objects
	for key, records := range e.attached {
		beside.attached[key] = maps.Clone(records)
	}
	e.lock.Unlock()
	beside.compile(compiler, ranges)
	e.lock.Lock()
	defer e.lock.Unlock()
	e.lent, e.compiler, e.ranges = false, compiler, beside.ranges
	for key := range beside.attached { // the index knows addresses of those that were detached meanwhile
		if _, still := e.attached[key]; !still {
			e.feed(key)
		}
	}
	e.feedAttached()
}

// Recompile replaces the compiler: what the former one compiled is cleared, and has to be committed by the caller. The caller holds the
// lock.
func (e *Enforcer) Recompile(compiler Compiler, ranges map[string][]netip.Prefix) {
	e.compile(compiler, ranges)
}

func (x *state) compile(compiler Compiler, ranges map[string][]netip.Prefix) {
	x.ranges = ranges
	// The index gets the pods' addresses first: which of them count depends on the ranges.
	for _, key := range slices.SortedFunc(maps.Keys(x.pods), compareKeys) {
		x.feed(key)
	}
	x.compiler = compiler
	// In order, so that numbers that the compiler gives are the same in each life.
	x.compiler.Apply(policy.Effect{Policies: slices.SortedFunc(maps.Keys(x.objects), compareKeys)}, x.index)
}

// Retire clears what is compiled and forgets the compiler; the caller commits what Clear changed. The caller holds the lock.
func (e *Enforcer) Retire() {
	if e.compiler != nil {
		e.compiler.Clear()
		e.compiler = nil
	}
}

// Forget discards all objects, nodes and ranges: the network does not isolate by policies any more. The caller holds the lock.
func (e *Enforcer) Forget() {
	e.SetNodes(nil)
	e.ranges = nil
	if len(e.pods)+len(e.objects) > 0 {
		e.reset()
	}
}

// Compiler returns the compiler, nil while nothing is compiled. The caller holds the lock.
func (e *Enforcer) Compiler() Compiler { return e.compiler }

// Enforce sets whether changes are handed over to the compiler's engine. The caller holds the lock.
func (e *Enforcer) Enforce(on bool) { e.enforcing = on }

// update takes a change over.
func (x *state) update(change Change) {
	if change.Reset {
		x.reset()
	}
	for name, namespace := range change.Namespaces {
		if namespace == nil {
			x.follow(x.index.DeleteNamespace(name))
		} else {
			x.follow(x.index.SetNamespace(*namespace))
		}
	}
	x.Narrow(false)
	for key, pod := range change.Pods {
		x.remember(key, pod)
		x.feed(key)
		x.Narrow(pod.gone())
	}
	for key, object := range change.Policies {
		x.doubt(key, object, change.Problems[key])
		if object == nil {
			delete(x.objects, key)
			x.follow(x.index.DeletePolicy(key))
		} else {
			x.objects[key] = struct{}{}
			x.follow(x.index.SetPolicy(*object))
		}
	}
	x.Narrow(false)
	if len(change.Pods) > 0 {
		close(x.told)
		x.told = make(chan struct{})
	}
}

// reset discards all objects. An ADD that waits for a pod goes on waiting.
func (x *state) reset() {
	if x.compiler != nil {
		x.compiler.Clear()
	}
	for key := range x.attached {
		x.stale[key] = struct{}{}
	}
	fresh := newState(Options{Node: x.node})
	x.index, x.pods, x.byNode, x.objects, x.doubts = fresh.index, fresh.pods, fresh.byNode, fresh.objects, fresh.doubts
	x.SetNodes(x.nodes)
}

// follow brings what is compiled in step with an effect.
func (x *state) follow(effect policy.Effect) {
	for _, key := range effect.Pods {
		x.stale[key] = struct{}{}
	}
	if x.perPolicy && len(effect.Policies) > 0 {
		x.touch(effect.Policies)
	}
	if x.compiler != nil {
		x.compiler.Apply(effect, x.index)
	}
}

// touch has the decisions looked at of the pods that policies may isolate.
func (x *state) touch(policies []policy.Key) {
	namespaces := map[string]struct{}{}
	for _, key := range policies {
		namespaces[key.Namespace] = struct{}{}
	}
	for key := range x.attached {
		if _, is := namespaces[key.Namespace]; is {
			x.stale[key] = struct{}{}
		}
	}
}

func compareKeys(a, b policy.Key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}
