package cluster

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/realised"
)

const nameRealised = "realised"

// realisedReconciler writes on EgressNetworkPolicies on how many nodes they are in effect, from the agents' reports. Each write is an event
// for all agents, and each node that starts or stops concerns all policies. So it waits until brief states have passed.
type realisedReconciler struct {
	client  client.Client
	metrics *metrics.Controller
	now     func() time.Time
	// rests are its delays.
	rests rests
	// known are the policies, by UID.
	known map[types.UID]*followed
}

// rests are the delays before a state of nodes is written.
type rests struct {
	// gather is how long changes are gathered.
	gather time.Duration
	// fresh is the delay before nodes are reported as behind a policy that is new or has changed; behind is the delay for nodes that had
	// followed it.
	fresh, behind time.Duration
	// words is the least time between writes that change only the message.
	words time.Duration
}

func defaultRests() rests {
	return rests{gather: time.Second, fresh: 5 * time.Second, behind: 30 * time.Second, words: time.Minute}
}

// followed is the state of a policy.
type followed struct {
	// generation is that of its spec; version is the first version seen with it.
	generation int64
	version    uint64
	// since is when nodes were first seen to be behind, zero if none is; wrote is the time of the last write of its status.
	since, wrote time.Time
}

func (r *realisedReconciler) setUp(tools cluster.Tools) error {
	c, err := controller.NewTyped(nameRealised, tools.Manager, cluster.Options(nameRealised, r.metrics, r))
	if err != nil {
		return fmt.Errorf("make the controller: %w", err)
	}
	policies := predicate.TypedFuncs[*networkv1.EgressNetworkPolicy]{UpdateFunc: func(e event.TypedUpdateEvent[*networkv1.EgressNetworkPolicy]) bool {
		return resynced(e.ObjectOld, e.ObjectNew) || e.ObjectOld.UID != e.ObjectNew.UID || e.ObjectOld.Generation != e.ObjectNew.Generation
	}}
	hosts := predicate.TypedFuncs[*networkv1.HostSubnet]{UpdateFunc: func(e event.TypedUpdateEvent[*networkv1.HostSubnet]) bool {
		return resynced(e.ObjectOld, e.ObjectNew) || !reflect.DeepEqual(says(e.ObjectOld), says(e.ObjectNew))
	}}
	nodes := predicate.TypedFuncs[*corev1.Node]{UpdateFunc: func(e event.TypedUpdateEvent[*corev1.Node]) bool {
		return realised.Ready(e.ObjectOld) != realised.Ready(e.ObjectNew)
	}}
	return errors.Join(
		c.Watch(tools.Reading("egressnetworkpolicies",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.EgressNetworkPolicy{}, enqueueAfter[*networkv1.EgressNetworkPolicy](r.rests.gather), policies))),
		c.Watch(tools.Reading("hostsubnets",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.HostSubnet{}, enqueueAfter[*networkv1.HostSubnet](r.rests.gather), hosts))),
		c.Watch(tools.Reading("nodes", source.TypedKind(tools.Manager.GetCache(), &corev1.Node{}, enqueueAfter[*corev1.Node](r.rests.gather), nodes))),
		c.Watch(tools.Reading("clusternetworks",
			source.TypedKind(tools.Manager.GetCache(), &networkv1.ClusterNetwork{}, enqueueAfter[*networkv1.ClusterNetwork](r.rests.gather)))),
	)
}

// resynced reports whether an update is a resync: everything is checked again.
func resynced(old, now client.Object) bool {
	return old.GetResourceVersion() == now.GetResourceVersion()
}

// says returns the fields of a HostSubnet that a verdict depends on.
func says(hs *networkv1.HostSubnet) any {
	said := []any{hs.Annotations[networkv1.AnnotationNodeUID]}
	for i := range hs.Status.Realised {
		if hs.Status.Realised[i].Kind == string(realised.EgressNetworkPolicy) {
			said = append(said, hs.Status.Realised[i])
		}
	}
	for _, kind := range []string{networkv1.ConditionReady, networkv1.ConditionEnginesInStep} {
		if c := meta.FindStatusCondition(hs.Status.Conditions, kind); c != nil {
			said = append(said, c.Status, c.Reason, c.Message)
		}
	}
	return said
}

// enqueueAfter queues a plan after a delay, for any object, so that it covers all changes until then.
func enqueueAfter[T client.Object](rest time.Duration) handler.TypedEventHandler[T, cluster.Everything] {
	add := func(queue workqueue.TypedRateLimitingInterface[cluster.Everything]) {
		queue.AddAfter(cluster.Everything{}, rest)
	}
	return handler.TypedFuncs[T, cluster.Everything]{
		CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[T], q workqueue.TypedRateLimitingInterface[cluster.Everything]) {
			add(q)
		},
		UpdateFunc: func(_ context.Context, _ event.TypedUpdateEvent[T], q workqueue.TypedRateLimitingInterface[cluster.Everything]) {
			add(q)
		},
		DeleteFunc: func(_ context.Context, _ event.TypedDeleteEvent[T], q workqueue.TypedRateLimitingInterface[cluster.Everything]) {
			add(q)
		},
	}
}

// Reconcile checks all policies, and writes each status that differs and is due.
func (r *realisedReconciler) Reconcile(ctx context.Context, _ cluster.Everything) (reconcile.Result, error) {
	config, err := readConfig(ctx, r.client)
	if err != nil {
		return reconcile.Result{}, err
	}
	if config == nil {
		return reconcile.Result{}, nil
	}
	var policies networkv1.EgressNetworkPolicyList
	var hosts networkv1.HostSubnetList
	var nodes corev1.NodeList
	if err := errors.Join(r.client.List(ctx, &policies), r.client.List(ctx, &hosts), r.client.List(ctx, &nodes)); err != nil {
		return reconcile.Result{}, fmt.Errorf("read EgressNetworkPolicies, HostSubnets and Nodes from the cache: %w", err)
	}
	away := map[string]bool{}
	for i := range nodes.Items {
		away[nodes.Items[i].Name] = !realised.Ready(&nodes.Items[i])
	}
	known := map[types.UID]*followed{}
	var errs []error
	next := time.Duration(0)
	for i := range policies.Items {
		p := &policies.Items[i]
		if !config.Mode.HasVNIDs() { // nodes follow no policies
			errs = append(errs, r.withdraw(ctx, p))
			continue
		}
		known[p.UID] = r.follow(p)
		rest, err := r.updateStatus(ctx, p, known[p.UID], r.count(p, known[p.UID], hosts.Items, away))
		errs = append(errs, err)
		if rest > 0 && (next == 0 || rest < next) {
			next = rest
		}
	}
	r.known = known
	result, err := cluster.Settle(errs...)
	if err == nil && next > 0 && (result.RequeueAfter == 0 || next < result.RequeueAfter) {
		result.RequeueAfter = next
	}
	return result, err
}

// follow returns the state of a policy. For a spec that was not seen before, its version is the present one.
func (r *realisedReconciler) follow(p *networkv1.EgressNetworkPolicy) *followed {
	if f := r.known[p.UID]; f != nil && f.generation == p.Generation {
		return f
	}
	version, known := realised.Since(p)
	if !known {
		version, _ = realised.Version(p.ResourceVersion) // 0: not a number; every node has reached it
	}
	f := &followed{generation: p.Generation, version: version}
	if was := r.known[p.UID]; was != nil {
		f.wrote = was.wrote
	}
	return f
}

// count collects the verdicts of all nodes.
func (r *realisedReconciler) count(p *networkv1.EgressNetworkPolicy, f *followed, hosts []networkv1.HostSubnet, away map[string]bool) realised.Count {
	subject := realised.Subject{Kind: realised.EgressNetworkPolicy, Name: p.Namespace + "/" + p.Name, Version: f.version}
	tally := realised.NewTally(func(hs *networkv1.HostSubnet) realised.Verdict {
		verdict := subject.Judge(hs)
		if !verdict.Realised && !verdict.Failing && away[hs.Name] {
			verdict.Reason = realised.NotReady(verdict.Reason)
		}
		return verdict
	})
	for i := range hosts {
		tally.Take(&hosts[i])
	}
	return tally.Count()
}

// updateStatus writes a policy's status if it differs and is due, and otherwise returns after what time to check again.
func (r *realisedReconciler) updateStatus(ctx context.Context, p *networkv1.EgressNetworkPolicy, f *followed, count realised.Count) (time.Duration, error) {
	now := r.now()
	failing := slices.ContainsFunc(count.Not, func(n realised.Node) bool { return n.Failing })
	want := condition(networkv1.ConditionRealised, networkv1.ReasonRealised, count.Summary(), true)
	switch {
	case failing:
		want.Reason, want.Holds = networkv1.ReasonNotRealised, false
	case !count.All():
		want.Reason, want.Holds = networkv1.ReasonBehind, false
	}
	if want.Holds || failing {
		f.since = time.Time{}
	} else if f.since.IsZero() {
		f.since = now
	}
	has := meta.FindStatusCondition(p.Status.Conditions, networkv1.ConditionRealised)
	asked := networkv1.EgressNetworkPolicyAsked{Generation: p.Generation, Version: strconv.FormatUint(f.version, 10)}
	conditions := slices.Clone(p.Status.Conditions)
	if !cluster.SetConditions(&conditions, p.Generation, want) && asked == p.Status.Asked {
		return 0, nil
	}
	if rest := r.rest(f, has, want, p.Generation, now); rest > 0 {
		return rest, nil
	}
	changed := p.DeepCopy()
	changed.Status.Asked, changed.Status.Conditions = asked, conditions
	if err := r.client.Status().Update(ctx, changed); err != nil {
		return 0, fmt.Errorf("update the status of EgressNetworkPolicy %s/%s: %w", p.Namespace, p.Name, err)
	}
	f.wrote = now
	return 0, nil
}

// rest returns how long to wait before the present condition is replaced.
func (r *realisedReconciler) rest(f *followed, has *metav1.Condition, want cluster.Condition, generation int64, now time.Time) time.Duration {
	fresh := has == nil || has.ObservedGeneration != generation
	switch {
	case want.Reason == networkv1.ReasonBehind && fresh:
		return f.since.Add(r.rests.fresh).Sub(now)
	case want.Reason == networkv1.ReasonBehind && has.Status == metav1.ConditionTrue:
		return f.since.Add(r.rests.behind).Sub(now)
	case !fresh && has.Reason == want.Reason:
		return f.wrote.Add(r.rests.words).Sub(now)
	}
	return 0
}

// withdraw removes the condition if nodes follow no policies.
func (r *realisedReconciler) withdraw(ctx context.Context, p *networkv1.EgressNetworkPolicy) error {
	if meta.FindStatusCondition(p.Status.Conditions, networkv1.ConditionRealised) == nil && p.Status.Asked.Version == "" {
		return nil
	}
	p = p.DeepCopy()
	meta.RemoveStatusCondition(&p.Status.Conditions, networkv1.ConditionRealised)
	p.Status.Asked = networkv1.EgressNetworkPolicyAsked{}
	if err := r.client.Status().Update(ctx, p); err != nil {
		return fmt.Errorf("update the status of EgressNetworkPolicy %s/%s: %w", p.Namespace, p.Name, err)
	}
	return nil
}
