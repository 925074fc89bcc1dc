package overlay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
)

// PolicyPod is a pod as policies see it.
type PolicyPod struct {
	policy.Pod
	// UIDs are what a runtime may know it by: its own, and that of the static pod of which it is the API's copy.
	UIDs []string
}

// PolicyChange is what changed of what NetworkPolicies depend on. A nil value says that the object is gone.
type PolicyChange struct {
	// Reset forgets everything that was told before.
	Reset      bool
	Policies   map[policy.Key]*policy.Policy
	Pods       map[policy.Key]*PolicyPod
	Namespaces map[string]*policy.Namespace
	// Problems are what of Policies cannot be understood.
	Problems map[policy.Key]error
}

// isolationTimeout bounds how long an ADD waits until it is known how its pod is isolated. The pod was in the API server
// before the runtime heard of it.
const isolationTimeout = 20 * time.Second

// UpdatePolicies brings isolation in step with a change. Until the network is in the mode that isolates by NetworkPolicies it
// only takes note: all objects have to be told by the Update that brings the mode, because a pod that was not told of is
// closed then. An Update that brings another mode forgets them all.
func (n *Network) UpdatePolicies(ctx context.Context, change PolicyChange) error {
	if handed := n.index(change); len(handed) > 0 {
		if err := n.inEffect(ctx, handed); err != nil {
			return named("NetworkPolicies", err)
		}
	}
	n.tellProblems()
	return n.purge(ctx)
}

// applied waits until what was handed over for owners was tried, and returns what keeps it from being in effect.
func (n *Network) applied(ctx context.Context, handed iter.Seq[reconcile.Owner]) error {
	err := n.engines.Flows.Apply(ctx, nil) // the next pass takes all that was handed over
	for o := range handed {
		err = errors.Join(err, n.engines.Flows.Failure(o))
	}
	return err
}

// inEffect waits until what was handed over for these owners is in effect.
func (n *Network) inEffect(ctx context.Context, handed []reconcile.Owner) error {
	if err := n.applied(ctx, slices.Values(handed)); err != nil {
		return err
	}
	n.opening.Lock()
	defer n.opening.Unlock()
	for _, o := range handed {
		delete(n.policies.handed, o)
	}
	return nil
}

// policies are what is known of NetworkPolicies, and of whom they isolate. Network.opening guards them.
type policies struct {
	node    string
	index   *policy.Index
	pods    map[policy.Key]*PolicyPod
	objects map[policy.Key]struct{}
	// byNode are the pods by the names of their nodes, and ranges what the HostSubnets of other nodes say of their addresses.
	byNode map[string]map[policy.Key]struct{}
	ranges map[string][]netip.Prefix
	// attached are the node's open ports, by pod.
	attached map[policy.Key]map[attach.Key]attach.Record
	// lent says that index and pods are another's to change, for as long: attachments are fed when they are back.
	lent bool
	// nodes are those that the index knows, by their addresses.
	nodes map[policy.Key][]netip.Addr
	// rules are the flows that allow; nil in other modes, and before the first Update.
	rules *pipeline.Conjunctions
	// stale are pods whose own flows may be others.
	stale map[policy.Key]struct{}
	// told is closed, and made anew, when a pod is told of.
	told chan struct{}
	// shown is how the flows that were handed over for an attachment say that its pod is isolated.
	shown map[attach.Key]openness
	// purge says that the datapath is to be purged once what was handed over is committed: something that was allowed may be so
	// no more. later says that it is to be purged soon.
	purge, later bool
	// doubts are the policies that may not be realised as they say.
	doubts map[policy.Key]*doubt
	// handed are the owners whose flows were handed over, and may not be in effect.
	handed map[reconcile.Owner]struct{}
}

func newPolicies(node string) policies {
	return policies{
		node: node, index: policy.New(node), pods: map[policy.Key]*PolicyPod{}, objects: map[policy.Key]struct{}{},
		attached: map[policy.Key]map[attach.Key]attach.Record{}, stale: map[policy.Key]struct{}{}, told: make(chan struct{}),
		handed: map[reconcile.Owner]struct{}{}, shown: map[attach.Key]openness{}, doubts: map[policy.Key]*doubt{},
		byNode: map[string]map[policy.Key]struct{}{},
	}
}

// openness is what an attachment's flows say of its pod.
type openness struct {
	// known says that it is known how the pod is isolated: the port is open.
	known     bool
	isolation policy.Isolation
}

// narrower reports whether one lets less through than another.
func (o openness) narrower(than openness) bool {
	return than.known && (!o.known || o.isolation.Narrower(than.isolation))
}

// ByPolicies reports whether the view's network isolates by NetworkPolicies: UpdatePolicies is then to tell of them first.
func (v *View) ByPolicies() bool { return v.Cluster.Mode == clusternetwork.ModeNetworkPolicy }

// judges reports whether the switch judges who may send to whom.
func (s *settings) judges() bool { return s.policies() || s.isolates() }

func (s *settings) policies() bool { return s.pipeline.Mode == pipeline.ModeNetworkPolicy }

func compareKeys(a, b policy.Key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

func podKey(rec *attach.Record) policy.Key {
	return policy.Key{Namespace: rec.PodNamespace, Name: rec.PodName}
}

// is reports whether the pod is the one that an attachment is of: of two with one name, one after the other, only one is.
func (p *PolicyPod) is(rec *attach.Record) bool {
	return p != nil && (rec.PodUID == "" || slices.Contains(p.UIDs, rec.PodUID))
}

// gone reports whether the pod is there no more, or has ended: nobody sends for it.
func (p *PolicyPod) gone() bool { return p == nil || p.Ended }

// update takes a change over.
func (x *policies) update(change PolicyChange) {
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
	x.narrow(false)
	for key, pod := range change.Pods {
		x.remember(key, pod)
		x.feed(key)
		x.narrow(pod.gone())
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
	x.narrow(false)
	if len(change.Pods) > 0 {
		close(x.told)
		x.told = make(chan struct{})
	}
}

// reset forgets all objects. Who waits for one goes on waiting.
func (x *policies) reset() {
	if x.rules != nil {
		x.rules.Clear()
	}
	for key := range x.attached {
		x.stale[key] = struct{}{}
	}
	fresh := newPolicies(x.node)
	x.index, x.pods, x.byNode, x.objects, x.doubts = fresh.index, fresh.pods, fresh.byNode, fresh.objects, fresh.doubts
	x.setNodes(x.nodes)
}

// feed tells the index of a pod as it is: a pod of this node has the addresses that this node gave it, and a pod of another node those of
// its status that lie in that node's HostSubnet.
func (x *policies) feed(key policy.Key) {
	if x.lent {
		return
	}
	object := x.pods[key]
	if object == nil {
		x.stale[key] = struct{}{}
		x.follow(x.index.DeletePod(key))
		return
	}
	pod := object.Pod
	own := map[netip.Addr]struct{}{}
	for _, rec := range x.attached[key] {
		if object.is(&rec) {
			for _, address := range rec.Addresses {
				own[address.Addr()] = struct{}{}
			}
		}
	}
	if len(own) > 0 {
		pod.Node = x.node
	}
	if pod.Node == x.node {
		x.stale[key] = struct{}{}
		pod.Addresses = slices.SortedFunc(maps.Keys(own), netip.Addr.Compare)
	} else {
		pod.Addresses = x.placed(&pod)
	}
	x.follow(x.index.SetPod(pod))
}

// follow brings what is compiled in step with an effect.
func (x *policies) follow(effect policy.Effect) {
	for _, key := range effect.Pods {
		x.stale[key] = struct{}{}
	}
	if x.rules != nil {
		x.rules.Apply(effect, x.index)
	}
}

// attach notes that a port is open, or about to be.
func (x *policies) attach(rec *attach.Record) {
	key := podKey(rec)
	if x.attached[key] == nil {
		x.attached[key] = map[attach.Key]attach.Record{}
	}
	x.attached[key][rec.Key()] = *rec
	x.feed(key)
}

// detach notes that a port is closed.
func (x *policies) detach(rec *attach.Record) {
	key := podKey(rec)
	delete(x.attached[key], rec.Key())
	if len(x.attached[key]) == 0 {
		delete(x.attached, key)
	}
	x.feed(key)
}

// isolation returns how an attachment's pod is isolated; not ok: that is not known, and the port stays closed.
func (x *policies) isolation(rec *attach.Record) (policy.Isolation, bool) {
	key := podKey(rec)
	if x.lent || !x.pods[key].is(rec) {
		return policy.Isolation{}, false
	}
	return x.index.Isolation(key)
}

// adapt makes what is compiled fit new settings, and returns the fragments of all owners that there are, or were.
func (x *policies) adapt(s *settings) map[reconcile.Owner]map[openflow.Key]openflow.Entry {
	fragments := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
	if x.rules != nil && (!s.policies() || x.rules.Subnet() != s.view.Local.Subnet) {
		x.rules.Clear()
		fragments = x.rules.Changed(&s.pipeline)
		x.rules = nil
	}
	if !s.policies() {
		x.setNodes(nil)
		x.ranges = nil
		if len(x.pods)+len(x.objects) > 0 {
			x.reset()
		}
		return fragments
	}
	if x.rules == nil { // the subnet is another: all else compiles beside
		x.compile(&s.view)
	} else {
		x.place(podRanges(s.view.Remotes))
	}
	x.setNodes(nodesOf(&s.view.Local, s.view.Remotes))
	x.rules.Refresh()
	maps.Copy(fragments, x.rules.Changed(&s.pipeline))
	return fragments
}

// podFlows returns the flows of an attachment; none while it is not known how its pod is isolated. The caller holds opening.
func (n *Network) podFlows(s *settings, rec *attach.Record) map[openflow.Key]openflow.Entry {
	if !s.policies() {
		delete(n.policies.shown, rec.Key())
		return s.podFlows(rec)
	}
	isolation, known := n.policies.isolation(rec)
	n.policies.shown[rec.Key()] = openness{known, isolation}
	if !known {
		return nil
	}
	p, open := s.pod(rec)
	if !open {
		return nil
	}
	p.Isolation = isolation
	return s.pipeline.Pod(p)
}

// handOver hands what changed of policies to the switch's loop, all in one, and reports whether anything was. What is as it was
// handed over before is not handed over again. The caller holds opening.
func (n *Network) handOver() bool {
	s, x := n.settings.Load(), &n.policies
	if s == nil || !s.policies() || x.rules == nil {
		return false
	}
	fragments := x.rules.Changed(&s.pipeline)
	for key := range x.stale {
		for at := range x.attached[key] {
			rec, live := n.live[at]
			if !live {
				continue
			}
			isolation, known := x.isolation(&rec)
			was, shown := x.shown[at]
			if now := (openness{known, isolation}); !shown || was != now {
				x.later = x.later || now.narrower(was)
				x.purge = x.purge || now.narrower(was) && !x.pods[key].gone()
				fragments[owner(at)] = n.podFlows(s, &rec)
			}
		}
	}
	x.stale = map[policy.Key]struct{}{}
	if len(fragments) > 0 {
		n.engines.Flows.Set(fragments)
	}
	for o := range fragments {
		x.handed[o] = struct{}{}
	}
	return len(fragments) > 0
}

// programIsolated programs the flows of an attachment once it is known how its pod is isolated, together with the rules that
// name its address.
func (n *Network) programIsolated(ctx context.Context, rec *attach.Record) error {
	waiting, cancel := context.WithTimeout(ctx, isolationTimeout)
	defer cancel()
	for {
		n.opening.Lock()
		_, known := n.policies.isolation(rec)
		told := n.policies.told
		n.policies.stale[podKey(rec)] = struct{}{}
		delete(n.policies.shown, rec.Key()) // this ADD may have handed over others itself, of an earlier View
		n.handOver()
		n.policies.narrow(true)
		n.purgeSoon()
		n.opening.Unlock()
		if known {
			break
		}
		select {
		case <-told:
		case <-waiting.Done():
			if errors.Is(ctx.Err(), context.Canceled) { // nobody waits any more, or another part of the ADD has failed
				return fmt.Errorf("waiting for the pod's labels: %w", ctx.Err())
			}
			return cni.Errorf(cni.CodeTryAgainLater, "the API server has told nothing of pod %s/%s (UID %s), or that it has ended: without its labels it is not known how it is isolated: try again later",
				rec.PodNamespace, rec.PodName, rec.PodUID)
		}
	}
	if err := n.engines.Flows.Apply(ctx, nil); err != nil {
		return err
	}
	if err := n.engines.Flows.Failure(owner(rec.Key())); err != nil {
		return fmt.Errorf("flows: %w", err)
	}
	n.tellProblems()
	return nil
}

// inheritNothing has the switch forget the connections of whoever had an attachment's addresses before: who goes on sending in one would
// count as answering. The port is not open yet, so that none comes anew.
func (n *Network) inheritNothing(ctx context.Context, s *settings, rec *attach.Record) error {
	if !s.policies() || rec.State == attach.Attached { // a pod that is attached keeps its own
		return nil
	}
	var flushes []openflow.CTFlush
	for _, address := range rec.Addresses {
		flushes = append(flushes, s.pipeline.FlushPod(address.Addr())...)
	}
	return named("connections of who had the address before", n.engines.Connections.Flush(ctx, flushes))
}
