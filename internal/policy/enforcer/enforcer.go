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

// Pod is a pod as policies need it.
type Pod struct {
	policy.Pod
	// UIDs are the UIDs by which a runtime may identify the pod: its own, and that of the static pod that it mirrors.
	UIDs []string
}

// Change is a change of the objects that NetworkPolicies depend on. A nil value means that the object is deleted.
type Change struct {
	// Reset discards all objects of earlier changes.
	Reset      bool
	Policies   map[policy.Key]*policy.Policy
	Pods       map[policy.Key]*Pod
	Namespaces map[string]*policy.Namespace
	// Problems are the errors of those Policies that are invalid.
	Problems map[policy.Key]error
}

// Compiler compiles policies for one engine. The Enforcer calls it with its lock held.
type Compiler interface {
	// Apply applies the effect of one change of the index. It is called right after that change.
	Apply(effect policy.Effect, index *policy.Index)
	// Commit hands over to the engine all changes since the last Commit, in one change and without waiting, together with the fragments of
	// open attachments whose Decision changed. closed are the attachments detached since the last Commit. revoking says that established
	// connections may not be allowed any more: the engine may check their packets until they are removed (RevocationOptions.Made). Commit
	// returns the owners of the fragments that it handed over.
	Commit(index *policy.Index, open []Attachment, closed []attach.Record, revoking bool) []reconcile.Owner
	// Narrowed reports whether a permission may have been revoked since the last call.
	Narrowed() bool
	// Clear drops everything that was compiled from the index.
	Clear()
}

// Attachment is an attachment of the node with the decision about its pod.
type Attachment struct {
	attach.Record
	Decision
}

// Decision is what an attachment's fragment depends on.
type Decision struct {
	// Known says that the isolation of the pod is known. If not, the attachment is closed.
	Known     bool
	Isolation policy.Isolation
	// Policies names the policies that isolate the pod; only with Options.PerPolicy.
	Policies string
}

// narrower reports whether a decision may allow less than another. A pod that stays isolated loses what the policies allow that no longer
// isolate it; another policy only allows more.
func (d Decision) narrower(than Decision) bool {
	return than.Known && (!d.Known || d.Isolation.Narrower(than.Isolation) || (d.Isolation.Ingress || d.Isolation.Egress) && d.lacks(than))
}

// lacks reports whether a decision lacks policies of another.
func (d Decision) lacks(than Decision) bool {
	if d.Policies == than.Policies {
		return false
	}
	have := map[string]struct{}{}
	for name := range strings.FieldsSeq(d.Policies) {
		have[name] = struct{}{}
	}
	for name := range strings.FieldsSeq(than.Policies) {
		if _, is := have[name]; !is {
			return true
		}
	}
	return false
}

// Options of an Enforcer.
type Options struct {
	// Node is the node's name, as in pods' spec.nodeName.
	Node string
	// Lock guards the Enforcer; nil: a lock of its own.
	Lock sync.Locker
	// Revocations is notified of revoked permissions. Required, with the same lock.
	Revocations *Revocations
	// PerPolicy says that an attachment's fragment depends on which policies isolate its pod, not only on whether it is isolated.
	PerPolicy bool
	// Families are the network's address families. SCTP says that its engine tracks the ports of SCTP (TracksSCTP changes that). Policies
	// that need more are reported as Problems.
	Families Families
	SCTP     bool
	// Problems is called with what is not enforced of a NetworkPolicy that isolates a pod of this node, once for each change of the policy.
	// It must not block. Nil: nothing is reported.
	Problems func(key policy.Key, problems []error)
}

// Families are the address families of a network.
type Families struct{ IPv4, IPv6 bool }

// Enforcer keeps the effect of NetworkPolicies on the pods of one node. New returns one.
type Enforcer struct {
	opts Options
	lock sync.Locker
	// indexing serialises changes of the index, except for attachments. It is held during long work, and taken before lock.
	indexing sync.Mutex
	// state is guarded by lock.
	state
	// enforcing says that changes are handed over. closed are the attachments that were detached since the last HandOver.
	enforcing bool
	closed    []attach.Record
	// sctp says that the engine tracks the ports of SCTP.
	sctp bool
}

// state is the state of policies and of the pods that they isolate.
type state struct {
	node      string
	perPolicy bool
	families  Families
	revoked   *Revocations
	index     *policy.Index
	pods      map[policy.Key]*Pod
	objects   map[policy.Key]struct{}
	// byNode are the pods by node name. ranges are the pod ranges of other nodes.
	byNode map[string]map[policy.Key]struct{}
	ranges map[string][]netip.Prefix
	// attached are the node's open attachments, by pod.
	attached map[policy.Key]map[attach.Key]attach.Record
	// lent says that index and pods are being changed without the lock: attachments are added to the index afterwards.
	lent bool
	// nodes are the nodes in the index, with their addresses.
	nodes map[policy.Key][]netip.Addr
	// compiler is nil while the network does not isolate by policies.
	compiler Compiler
	// stale are pods whose attachments' decisions may have changed.
	stale map[policy.Key]struct{}
	// updated is closed and replaced when pods change.
	updated chan struct{}
	// shown are the decisions in the handed-over fragments.
	shown map[attach.Key]Decision
	// suspects are the policies that may not be fully enforced.
	suspects map[policy.Key]*suspect
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
		attached: map[policy.Key]map[attach.Key]attach.Record{}, stale: map[policy.Key]struct{}{}, updated: make(chan struct{}),
		shown: map[attach.Key]Decision{}, suspects: map[policy.Key]*suspect{}, byNode: map[string]map[policy.Key]struct{}{},
	}
}

// Update applies a change, and returns once its effect is in effect, including revocations unless these are apart. Before Compile it only stores the change. All
// objects must be in changes before the network begins to isolate by policies, because from then on unknown pods are closed. An error of
// one fragment does not keep others from being in effect or revoked.
func (e *Enforcer) Update(ctx context.Context, change Change) error {
	err := e.opts.Revocations.effective(ctx, e.take(change))
	e.ReportProblems()
	return err
}

// take indexes a change, hands over the differences, and returns the owners whose fragments may not be in effect yet, for effective.
func (e *Enforcer) take(change Change) map[reconcile.Owner]uint64 {
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
	return e.revoked.unsettled()
}

// indexAll indexes a change without the lock if the change has all objects and nothing is compiled from earlier ones; else it returns
// nil. The caller holds indexing.
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

// takeOver takes the state that was indexed without the lock. Attachments are added to the index again; nodes are not known before
// Compile.
func (x *state) takeOver(beside *state) {
	x.index, x.pods, x.byNode, x.objects, x.suspects = beside.index, beside.pods, beside.byNode, beside.objects, beside.suspects
	x.feedAttached()
	close(x.updated)
	x.updated = make(chan struct{})
}

// Compile compiles all policies, unless that is done already. ranges are the pod ranges of other nodes, by the nodes' names. No pod's
// isolation is known meanwhile. It takes the lock.
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
	for key := range beside.attached { // the index has addresses of attachments that were detached meanwhile
		if _, still := e.attached[key]; !still {
			e.feed(key)
		}
	}
	e.feedAttached()
}

// Recompile replaces the compiler. It clears what the former one compiled, which the caller has to commit. The caller holds the lock.
func (e *Enforcer) Recompile(compiler Compiler, ranges map[string][]netip.Prefix) {
	e.compile(compiler, ranges)
}

func (x *state) compile(compiler Compiler, ranges map[string][]netip.Prefix) {
	x.ranges = ranges
	// The index needs the pods' addresses first: the ranges determine which of them count.
	for _, key := range slices.SortedFunc(maps.Keys(x.pods), compareKeys) {
		x.feed(key)
	}
	x.compiler = compiler
	// In order, so that the compiler gives the same numbers after each restart.
	x.compiler.Apply(policy.Effect{Policies: slices.SortedFunc(maps.Keys(x.objects), compareKeys)}, x.index)
}

// Retire clears what is compiled and drops the compiler. The caller commits the changes of Clear. The caller holds the lock.
func (e *Enforcer) Retire() {
	if e.compiler != nil {
		e.compiler.Clear()
		e.compiler = nil
	}
}

// Forget discards all objects, nodes and ranges: the network no longer isolates by policies. The caller holds the lock.
func (e *Enforcer) Forget() {
	e.SetNodes(nil)
	e.ranges = nil
	if len(e.pods)+len(e.objects) > 0 {
		e.reset()
	}
}

// Compiler returns the compiler; nil while nothing is compiled. The caller holds the lock.
func (e *Enforcer) Compiler() Compiler { return e.compiler }

// Enforce sets whether changes are handed over to the compiler's engine. The caller holds the lock.
func (e *Enforcer) Enforce(on bool) { e.enforcing = on }

// update applies a change.
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
		x.suspect(key, object, change.Problems[key])
		x.touch(key)
		if object == nil {
			delete(x.objects, key)
			x.follow(x.index.DeletePolicy(key))
		} else {
			x.objects[key] = struct{}{}
			x.follow(x.index.SetPolicy(*object))
		}
		x.touch(key)
	}
	x.Narrow(false)
	if len(change.Pods) > 0 {
		close(x.updated)
		x.updated = make(chan struct{})
	}
}

// reset discards all objects. An ADD that waits for a pod continues to wait.
func (x *state) reset() {
	if x.compiler != nil {
		x.compiler.Clear()
	}
	for key := range x.attached {
		x.stale[key] = struct{}{}
	}
	fresh := newState(Options{Node: x.node})
	x.index, x.pods, x.byNode, x.objects, x.suspects = fresh.index, fresh.pods, fresh.byNode, fresh.objects, fresh.suspects
	x.SetNodes(x.nodes)
}

// follow applies an effect to what is compiled.
func (x *state) follow(effect policy.Effect) {
	for _, key := range effect.Pods {
		x.stale[key] = struct{}{}
	}
	if x.compiler != nil {
		x.compiler.Apply(effect, x.index)
	}
}

// touch marks the attached pods that a policy isolates as stale, so that their decisions are checked. It is called before and after a change
// of the policy.
func (x *state) touch(changed policy.Key) {
	if !x.perPolicy {
		return
	}
	for pod := range x.attached {
		if x.index.Isolates(changed, pod) {
			x.stale[pod] = struct{}{}
		}
	}
}

func compareKeys(a, b policy.Key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}
