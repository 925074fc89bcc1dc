// Package cluster is the part of the controller for VPCs: it writes the northbound database, assigns addresses to pods (IP objects), and
// reports on Vpc and Subnet what is in effect. Package plan decides what to write.
//
// Rows are written first, objects second. A deposed controller cannot write rows (package ovn, fence), and so assigns no address. An
// address whose row could not be written is not assigned.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	ctrlreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/vpc/cluster/plan"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/northbound"
)

// name is the controller's name in logs and metrics.
const name = "vpc"

// Northbound is the engine of the northbound database.
type Northbound interface {
	reconcile.Engine[ovn.Key, ovn.Row]
	// Lead sets the term of the engine's transactions.
	Lead(ctx context.Context, term uint64) error
	// Settled notifies the engine that the loop has made a pass. It does not wait.
	Settled()
}

// Options are the options of the part.
type Options struct {
	// Northbound is the engine. It is used once the replica leads.
	Northbound Northbound
	// Drift is signalled when the database may differ from what the engine wrote. Nil: never.
	Drift <-chan struct{}
	// Term returns the term of the replica's leadership: a later leader has a higher one.
	Term func(ctx context.Context, live client.Reader) (uint64, error)
	// Loaded is called when a plan of all objects was executed: after the start, and after each resync. It must not block. Nil: not called.
	Loaded func()
	// Inspector is set to the northbound database while the replica leads. Nil: none.
	Inspector *Inspector
}

// Part returns the part of the controller for VPCs.
func Part(options Options) cluster.Part {
	read, write := []string{"get", "list", "watch"}, []string{"get", "list", "watch", "update"}
	const group = kubeovn.GroupName
	return cluster.Part{
		Name:    name,
		Schemes: []func(*runtime.Scheme) error{kubeovn.AddToScheme},
		Objects: []cluster.Object{
			{Group: group, Resource: "vpcs", Verbs: write, Kind: &kubeovn.Vpc{}},
			{Group: group, Resource: "subnets", Verbs: write, Kind: &kubeovn.Subnet{}},
			{Group: group, Resource: "vpc-nat-gateways", Verbs: write, Kind: &kubeovn.VpcNatGateway{}},
			{Group: group, Resource: "iptables-eips", Verbs: write, Kind: &kubeovn.IptablesEIP{}},
			{Group: group, Resource: "iptables-snat-rules", Verbs: read, Kind: &kubeovn.IptablesSnatRule{}},
			{Group: group, Resource: "iptables-dnat-rules", Verbs: read, Kind: &kubeovn.IptablesDnatRule{}},
			{Group: group, Resource: "iptables-fip-rules", Verbs: read, Kind: &kubeovn.IptablesFIPRule{}},
			{Group: group, Resource: "ips", Verbs: []string{"get", "list", "watch", "create", "delete"}, Kind: &kubeovn.IP{}},
			{Group: group, Resource: "vpcs/status", Verbs: []string{"update"}},
			{Group: group, Resource: "subnets/status", Verbs: []string{"update"}},
			{Group: group, Resource: "vpc-nat-gateways/status", Verbs: []string{"update"}},
			{Group: group, Resource: "iptables-eips/status", Verbs: []string{"update"}},
			{Group: group, Resource: "iptables-snat-rules/status", Verbs: []string{"update"}},
			{Group: group, Resource: "iptables-dnat-rules/status", Verbs: []string{"update"}},
			{Group: group, Resource: "iptables-fip-rules/status", Verbs: []string{"update"}},
			{Group: nat.DefinitionGroup, Resource: "network-attachment-definitions", Verbs: read, Kind: nat.Definition(), Keep: nat.TrimDefinition},
			{
				Group: "apps", Resource: "statefulsets", Verbs: []string{"get", "list", "watch", "create", "update", "delete"},
				Kind: &appsv1.StatefulSet{}, Namespace: kubeovn.ConfigNamespace,
			},
			{Resource: "configmaps", Verbs: read, Kind: &corev1.ConfigMap{}, Namespace: kubeovn.ConfigNamespace},
			{Resource: "pods", Verbs: read, Kind: &corev1.Pod{}, Pods: podFields()},
			{Resource: "namespaces", Verbs: read, Kind: &corev1.Namespace{}},
			{Group: "networking.k8s.io", Resource: "networkpolicies", Verbs: read, Kind: &networkingv1.NetworkPolicy{}},
		},
		SetUp: func(tools cluster.Tools) error { return setUp(tools, options) },
	}
}

// podFields are the fields of Pods that a plan reads.
func podFields() *cluster.PodFields {
	return &cluster.PodFields{
		Annotations: []string{
			kubeovn.AnnotationLogicalSwitch, kubeovn.AnnotationIPAddress, kubeovn.AnnotationMACAddress, kubeovn.AnnotationIPPool,
			kubeovn.AnnotationNATGateway, placement.AnnotationNetwork,
		},
		Conditions: []corev1.PodConditionType{nat.Condition, corev1.PodReady, corev1.ContainersReady},
	}
}

func setUp(tools cluster.Tools, options Options) error {
	if options.Loaded == nil {
		options.Loaded = func() {}
	}
	if options.Inspector == nil {
		options.Inspector = &Inspector{}
	}
	r := &reconciler{
		tools: tools, options: options, log: tools.Log.With("network", name), reported: map[string]string{}, closed: map[string]northbound.Closed{}, planner: plan.NewPlanner(),
		loop: reconcile.NewLoop(reconcile.Engine[ovn.Key, ovn.Row](options.Northbound), reconcile.Options[ovn.Key, ovn.Row]{
			Name: "northbound", Log: tools.Log, Settled: options.Northbound.Settled,
		}),
	}
	if err := tools.Manager.Add(leading(r.run)); err != nil {
		return fmt.Errorf("add the loop of the northbound database: %w", err)
	}
	c, err := controller.NewTyped(name, tools.Manager, cluster.Options(name, tools.Metrics, r))
	if err != nil {
		return fmt.Errorf("make the controller %s: %w", name, err)
	}
	return errors.Join(
		watch[*kubeovn.Vpc](r, c, "vpcs", &kubeovn.Vpc{}),
		watch[*kubeovn.Subnet](r, c, "subnets", &kubeovn.Subnet{}),
		watch[*kubeovn.VpcNatGateway](r, c, "vpc-nat-gateways", &kubeovn.VpcNatGateway{}),
		watch[*kubeovn.IP](r, c, "ips", &kubeovn.IP{}),
		watch[*kubeovn.IptablesEIP](r, c, "iptables-eips", &kubeovn.IptablesEIP{}),
		watch[*kubeovn.IptablesSnatRule](r, c, "iptables-snat-rules", &kubeovn.IptablesSnatRule{}),
		watch[*kubeovn.IptablesDnatRule](r, c, "iptables-dnat-rules", &kubeovn.IptablesDnatRule{}),
		watch[*kubeovn.IptablesFIPRule](r, c, "iptables-fip-rules", &kubeovn.IptablesFIPRule{}),
		r.watchDefinitions(c),
		watch[*appsv1.StatefulSet](r, c, "statefulsets", &appsv1.StatefulSet{}),
		watch[*corev1.ConfigMap](r, c, "configmaps", &corev1.ConfigMap{}),
		watch[*corev1.Pod](r, c, "pods", &corev1.Pod{}),
		watch[*networkingv1.NetworkPolicy](r, c, "networkpolicies", &networkingv1.NetworkPolicy{}),
		watch[*corev1.Namespace](r, c, "namespaces", &corev1.Namespace{}),
	)
}

func watch[T client.Object](r *reconciler, c controller.TypedController[cluster.Everything], kind string, object T) error {
	return c.Watch(r.tools.Reading(kind, source.TypedKind(r.tools.Manager.GetCache(), object, heard[T](&r.news))))
}

// leading is a function that runs while the replica leads.
type leading func(context.Context) error

// Start implements manager.Runnable.
func (l leading) Start(ctx context.Context) error { return l(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (leading) NeedLeaderElection() bool { return true }

type reconciler struct {
	tools   cluster.Tools
	options Options
	log     *slog.Logger
	loop    *reconcile.Loop[ovn.Key, ovn.Row]
	planner *plan.Planner
	news    news

	leads   bool
	term    uint64
	loaded  bool // the planner has all objects
	fresh   bool // it has read them, and made no plan since
	started bool // the loop has all rows
	config  map[string]map[string]string
	written map[key]version
	held    error // why a part of the plan was not executed
	// postponed is since when reports are postponed; the zero value: none is. changed is when the watches last reported a change of another
	// program.
	postponed, changed time.Time
	unreported         bool // the last round has postponed reports
	freeing            freeing
	reported           map[string]string // why pods wait, as in their events
	closed             map[string]northbound.Closed
}

// run keeps the northbound database in step while the replica leads.
func (r *reconciler) run(ctx context.Context) error {
	r.options.Inspector.loop.Store(r.loop)
	defer r.options.Inspector.loop.Store(nil)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-r.options.Drift:
				r.loop.Resync()
			}
		}
	}()
	return r.loop.Run(ctx)
}

// Reconcile implements reconcile.TypedReconciler.
func (r *reconciler) Reconcile(ctx context.Context, _ cluster.Everything) (ctrlreconcile.Result, error) {
	return r.settle(r.round(ctx)...)
}

// settle turns the errors of a round into its result. If the round has postponed reports or deletions, another round is due, and its errors are
// only logged: the delay after an error, which grows while an object is refused, would delay those of all others. That round meets the errors
// again.
func (r *reconciler) settle(errs ...error) (ctrlreconcile.Result, error) {
	result, err := cluster.Settle(errs...)
	switch {
	case !r.unreported && !r.freeing.left:
		return result, err //nolint:wrapcheck // the writes say what failed
	case err != nil:
		r.log.Warn("some objects could not be written, trying again", "error", err)
		return ctrlreconcile.Result{RequeueAfter: reportQuiet}, nil
	case result.RequeueAfter == 0:
		result.RequeueAfter = reportQuiet
	}
	return result, nil
}

// round makes a plan from the changes, and executes it. If execution fails, the next plan is made from all objects; if only some objects
// could not be written, only these are planned again.
func (r *reconciler) round(ctx context.Context) (errs []error) {
	r.unreported, r.freeing.left = false, false
	if err := r.lead(ctx); err != nil {
		return []error{err}
	}
	if err := r.learn(ctx); err != nil {
		return []error{err}
	}
	for {
		again, more := r.execute(ctx)
		if errs = append(errs, more...); !again {
			return errs
		}
	}
}

// execute makes one plan and executes it. Another one is due if it has become known that rows are refused, or are not any more: it reports
// this.
func (r *reconciler) execute(ctx context.Context) (again bool, errs []error) {
	var p *plan.Plan
	for behind := true; behind; {
		var err error
		p = r.planner.Plan(metav1.Now())
		if behind, err = r.confirm(ctx, p); behind || err != nil {
			r.planner.Again()
		}
		if err != nil {
			return false, []error{err}
		}
	}
	again, err := r.program(ctx, p)
	if err == nil && p.Assigns() { // even if no row changes, a deposed replica assigns nothing
		err = r.options.Northbound.Lead(ctx, r.term)
	}
	if err != nil {
		r.planner.Again()
		return false, []error{err}
	}
	r.report(p)
	errs = append(r.write(ctx, p), r.held)
	r.held = nil
	if r.fresh {
		r.fresh = false
		r.options.Loaded()
	}
	return again, errs
}

// lead takes the leadership in the northbound database, once.
func (r *reconciler) lead(ctx context.Context) error {
	if r.leads {
		return nil
	}
	term, err := r.options.Term(ctx, r.tools.Live)
	if err != nil {
		return fmt.Errorf("read the term of this replica's leadership: %w", err)
	}
	if err := r.options.Northbound.Lead(ctx, term); err != nil {
		return err //nolint:wrapcheck // the engine says what failed
	}
	r.leads, r.term = true, term
	return nil
}

// program brings the plan's rows into effect, and removes from the plan what depends on rows that could not be written. It reports whether
// other objects than before have such rows. An error means that the result is unknown, or that another replica leads.
func (r *reconciler) program(ctx context.Context, p *plan.Plan) (changed bool, err error) {
	fragments := make(map[reconcile.Owner]map[ovn.Key]ovn.Row, len(p.Fragments))
	for owner, rows := range p.Fragments {
		fragments[reconcile.Owner(owner)] = rows
	}
	bring := r.loop.Apply
	if !r.started {
		bring = r.loop.Start
	}
	r.started = true
	err = bring(ctx, fragments)
	if errors.Is(err, ovn.ErrDeposed) || errors.Is(err, reconcile.ErrUnavailable) || ctx.Err() != nil {
		return false, fmt.Errorf("northbound database: %w", err)
	}
	failed := r.loop.Failures()
	if _, all := failed[reconcile.Unreadable]; err != nil && (all || len(failed) == 0) {
		return false, fmt.Errorf("northbound database: %w", err)
	}
	reasons := make(map[string]string, len(failed))
	for owner, err := range failed {
		r.log.WarnContext(ctx, "rows could not be written", "owner", string(owner), "error", err)
		reasons[string(owner)] = "rows were refused, and are tried again: " + err.Error()
	}
	news := r.planner.Refuse(reasons)
	p.VpcStatus = slices.DeleteFunc(p.VpcStatus, func(v *kubeovn.Vpc) bool { return news["Vpc/"+v.Name+"/"+string(v.UID)] })
	p.SubnetStatus = slices.DeleteFunc(p.SubnetStatus, func(s *kubeovn.Subnet) bool { return news["Subnet/"+s.Name+"/"+string(s.UID)] })
	if err != nil {
		r.withhold(p, failed, err)
	}
	return len(news) > 0, nil
}

// withhold removes from the plan the addresses and finalizers of owners whose rows could not be written, and has them planned again.
func (r *reconciler) withhold(p *plan.Plan, failed map[reconcile.Owner]error, err error) {
	fails := func(kind, name, uid string) bool {
		_, found := failed[reconcile.Owner(kind+"/"+name+"/"+uid)]
		return found
	}
	hold := func(object plan.Object, kind, name, uid string) bool {
		if !fails(kind, name, uid) {
			return false
		}
		r.planner.Retry(object)
		r.held = fmt.Errorf("northbound database: %w", err)
		return true
	}
	p.Create = slices.DeleteFunc(p.Create, func(ip *kubeovn.IP) bool { return hold(ip, "Subnet", ip.Spec.Subnet, ip.Spec.SubnetUID) })
	p.Vpcs = slices.DeleteFunc(p.Vpcs, func(v *kubeovn.Vpc) bool {
		held := hold(v, "Vpc", v.Name, string(v.UID))
		if held {
			r.again(p, v)
		}
		return held
	})
	p.Subnets = slices.DeleteFunc(p.Subnets, func(s *kubeovn.Subnet) bool { return hold(s, "Subnet", s.Name, string(s.UID)) })
}

// report sends an event for each pod that waits for an address, and for each closed pod, if the reason is new.
func (r *reconciler) report(p *plan.Plan) {
	maps.DeleteFunc(r.reported, func(pod, _ string) bool { return p.Waiting[pod] == "" })
	for pod, why := range p.Waiting {
		if r.reported[pod] != why {
			r.reported[pod] = why
			r.warn(pod, "NoAddress", "Address", why)
		}
	}
	maps.DeleteFunc(r.closed, func(pod string, closed northbound.Closed) bool { return p.Closed[pod] != closed })
	for pod, closed := range p.Closed {
		if _, already := r.closed[pod]; already {
			continue
		}
		r.closed[pod] = closed
		directions := "ingress and egress"
		switch {
		case !closed.Egress:
			directions = "ingress"
		case !closed.Ingress:
			directions = "egress"
		}
		r.warn(pod, "Isolated", "NetworkPolicy", "NetworkPolicies isolate the pod for "+directions+
			". Their rules are not served in VPCs: the pod is closed in that direction; delete the policies, or use acls of the Subnet")
	}
}

func (r *reconciler) warn(pod, reason, action, note string) {
	namespace, podName, _ := strings.Cut(pod, "/")
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: podName}}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	r.tools.Events.Eventf(object, nil, corev1.EventTypeWarning, reason, action, "%s", cluster.Note(note))
}
