package gateways

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan/report"
	"weft.dev/weft/internal/vpc/gateway"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

// Report is what to write to the objects of NAT gateways.
type Report struct {
	// Updates are objects whose finalizers change, and Statuses those whose status changes.
	Updates, Statuses []report.Object
	// Assigning are the objects whose new status assigns an address.
	Assigning []report.Object
	Workloads Workloads
}

// reporter makes a Report.
type reporter struct {
	Report
	judge
	now metav1.Time
	// required are computed when they are needed first, by gateway.
	required map[string]required
}

// Report plans the gateways' workloads, and the status of gateways, EIPs and rules, after the steps Read and Assign.
func (g *Gateways) Report(now metav1.Time) Report {
	g.changed, g.respecified = false, false
	network, listed, o := g.specs.network, g.specs.listed, &g.objects
	if len(network.Gateways)+len(network.EIPs)+len(listed.SNATs)+len(listed.DNATs)+len(listed.FIPs)+len(o.workloads) == 0 {
		return Report{}
	}
	listed.Definitions = o.definitions
	r := reporter{now: now, required: map[string]required{}, judge: judge{
		config: &o.config, compiled: g.compiles.Compile(listed), addresses: &g.addresses, running: runningOf(o.pods), refused: g.refused,
	}}
	for _, name := range slices.Sorted(maps.Keys(r.compiled.Gateways)) {
		r.gateway(r.compiled.Gateways[name], o.workloads[nat.WorkloadName(name)])
	}
	r.Workloads.strays(o)
	states := map[string]eipState{}
	for _, name := range slices.Sorted(maps.Keys(r.compiled.EIPs)) {
		states[name] = r.eip(r.compiled.EIPs[name])
	}
	r.rules(listed, states)
	return r.Report
}

// gateway plans a gateway's workload, status and finalizer. Workload is the existing one, or nil.
func (r *reporter) gateway(g *nat.Gateway, workload *appsv1.StatefulSet) {
	if g.Problem == (nat.Problem{}) {
		g.Problem = r.addresses.refusal(g.Value.Owner())
	}
	r.Workloads.plan(g, workload, r.config)
	pods := r.running[g.Value.Name]
	r.gatewayStatus(g, pods)
	r.finalize(g.Object, pods.pods == 0 && workload == nil)
}

// eip plans an EIP's status and finalizer, and returns its state.
func (r *reporter) eip(e *nat.EIP) eipState {
	g, pods := r.compiled.Gateways[e.Value.Gateway], r.running[e.Value.Gateway]
	state := eipState{running: pods, problem: r.judge.eip(e, g, pods)}
	r.eipStatus(e, g, state.problem)
	if r.addresses.of(e) != "" || report.Held(e.Object) {
		r.finalize(e.Object, e.Object.DeletionTimestamp != nil && len(e.Rules) == 0 && r.released(e, g, pods))
	}
	return state
}

// released reports whether no pod has the EIP's address.
func (r *reporter) released(e *nat.EIP, g *nat.Gateway, pods running) bool {
	switch {
	case pods.pods == 0:
		return true
	case g == nil:
		return false // a pod may outlive its gateway, which may be deleted before it has its finalizer, and keeps the addresses that it has
	case g.Hash != "":
		return !g.Has(e.Value.Name) && pods.within(g.Hash)
	}
	required, there := r.required[g.Value.Name]
	if !there {
		required.Requirements = r.compiled.Required(g.Value.Name)
		required.hash = required.Hash()
		r.required[g.Value.Name] = required
	}
	return !required.Address(e.Value.Addr) && pods.within(required.hash)
}

// required is what a gateway that cannot be compiled requires, with its hash.
type required struct {
	*gateway.Requirements
	hash string
}

func (r *reporter) gatewayStatus(g *nat.Gateway, pods running) {
	object := g.Object.DeepCopy()
	s, spec := &object.Status, &object.Spec
	s.ExternalSubnets, s.Selector = []string{g.Value.External}, append([]string{}, spec.Selector...)
	s.Tolerations, s.Affinity = append([]corev1.Toleration{}, spec.Tolerations...), spec.Affinity
	s.LanIP, s.Hash, s.Replicas = "", g.Hash, 1
	if g.Value.LanIP.IsValid() {
		s.LanIP = g.Value.LanIP.String()
	}
	if address := r.addresses.given[g.Value.Owner()]; address != "" {
		s.IP = address
	} else if g.Value.NoOwn && (pods.pods == 0 || g.Hash != "" && pods.has(g.Hash)) {
		s.IP = "" // no pod has it any more
	}
	problem := r.judge.gateway(g, pods)
	if problem == (nat.Problem{}) {
		problem = behind(g, pods, false)
	}
	conditions := r.conditions(&s.Conditions, object.Generation)
	s.Ready = ready(conditions, problem)
	conditions.Supported(g.Value.Unsupported)
	r.keepStatus(object, object.Status, g.Object.Status)
	if s.IP != g.Object.Status.IP {
		r.Assigning = append(r.Assigning, object)
	}
}

func (r *reporter) eipStatus(e *nat.EIP, g *nat.Gateway, problem nat.Problem) {
	object := e.Object.DeepCopy()
	s := &object.Status
	s.IP, s.Nat = r.addresses.of(e), ""
	if g != nil {
		s.Nat = strings.Join(g.Result.Uses[e.Value.Name], ",")
	}
	conditions := r.conditions(&s.Conditions, object.Generation)
	s.Ready = ready(conditions, problem)
	conditions.Supported(e.Value.Unsupported)
	r.keepStatus(object, object.Status, e.Object.Status)
	if s.IP != e.Object.Status.IP && !e.Value.Wanted.IsValid() { // a requested address is assigned by the finalizer
		r.Assigning = append(r.Assigning, object)
	}
}

// rules plans the status of all rules.
func (r *reporter) rules(listed *nat.Objects, states map[string]eipState) {
	owner := func(kind string, object metav1.Object) string {
		return objects.Meta{Kind: kind, Name: object.GetName(), UID: string(object.GetUID())}.Owner()
	}
	for i := range listed.SNATs {
		before := &listed.SNATs[i]
		object, name := before.DeepCopy(), owner("IptablesSnatRule", before)
		s := &object.Status
		var problem nat.Problem
		problem, s.V4ip, s.NatGwDp = r.rule(&ruleObject{name, object.Spec.EIP, s.V4ip, s.Conditions, object.Generation}, states)
		s.InternalCIDR = object.Spec.InternalCIDR
		conditions := r.conditions(&s.Conditions, object.Generation)
		s.Ready = ready(conditions, problem)
		r.matched(conditions, name, s.NatGwDp, overlapsNone)
		r.keepStatus(object, object.Status, before.Status)
	}
	for i := range listed.FIPs {
		before := &listed.FIPs[i]
		object, name := before.DeepCopy(), owner("IptablesFIPRule", before)
		s := &object.Status
		var problem nat.Problem
		problem, s.V4ip, s.NatGwDp = r.rule(&ruleObject{name, object.Spec.EIP, s.V4ip, s.Conditions, object.Generation}, states)
		s.InternalIP = object.Spec.InternalIP
		conditions := r.conditions(&s.Conditions, object.Generation)
		s.Ready = ready(conditions, problem)
		r.matched(conditions, name, s.NatGwDp, isInNone)
		r.keepStatus(object, object.Status, before.Status)
	}
	for i := range listed.DNATs {
		before := &listed.DNATs[i]
		object, name := before.DeepCopy(), owner("IptablesDnatRule", before)
		s, spec := &object.Status, &object.Spec
		var problem nat.Problem
		problem, s.V4ip, s.NatGwDp = r.rule(&ruleObject{name, spec.EIP, s.V4ip, s.Conditions, object.Generation}, states)
		s.Protocol, s.InternalIP, s.InternalPort, s.ExternalPort = cmp.Or(strings.ToLower(spec.Protocol), "tcp"), spec.InternalIP, spec.InternalPort, spec.ExternalPort
		conditions := r.conditions(&s.Conditions, object.Generation)
		s.Ready = ready(conditions, problem)
		r.matched(conditions, name, s.NatGwDp, isInNone)
		r.keepStatus(object, object.Status, before.Status)
	}
}

// Why a rule matches nothing, with the VPC's name.
const (
	overlapsNone = "spec.internalCIDR overlaps no Subnet of Vpc %s, and no static route leads there, so that no packet matches"
	isInNone     = "spec.internalIp is in no Subnet of Vpc %s, and no static route leads there, so that no packet arrives"
)

// matched sets condition Matched of a rule that is in the state of its gateway, if that is known. unmatched says why a rule matches nothing.
func (r *reporter) matched(conditions report.Conditions, owner, gateway, unmatched string) {
	g := r.compiled.Gateways[gateway]
	if g == nil || g.Hash == "" || g.Result.Problems[owner] != (objects.Problem{}) {
		conditions.Remove(kubeovn.ConditionMatched)
		return
	}
	if !slices.Contains(g.Result.Unmatched, owner) {
		conditions.Set(kubeovn.ConditionMatched, kubeovn.ReasonMatched, "")
		return
	}
	conditions.Set(kubeovn.ConditionMatched, kubeovn.ReasonNoSubnet,
		fmt.Sprintf(unmatched, g.Value.VPC)+"; its Subnets are "+strings.Join(g.Inside(), ", "))
}

// finalize adds an object's finalizer, and removes it when the object is being deleted and nothing of it is left.
func (r *reporter) finalize(object report.Object, free bool) {
	has := report.Held(object)
	changed, ok := object.DeepCopyObject().(report.Object)
	switch {
	case !ok:
		return
	case object.GetDeletionTimestamp() == nil && !has:
		report.Hold(changed)
	case object.GetDeletionTimestamp() != nil && has && free:
		report.Release(changed)
	default:
		return
	}
	r.Updates = append(r.Updates, changed)
}

// conditions returns the conditions of an object, to be set.
func (r *reporter) conditions(list *[]metav1.Condition, generation int64) report.Conditions {
	return report.Conditions{List: list, Generation: generation, Now: r.now}
}

// ready sets condition Ready of an object, and returns whether it is True.
func ready(conditions report.Conditions, problem nat.Problem) bool {
	if problem == (nat.Problem{}) {
		problem.Reason = kubeovn.ReasonReady
	}
	conditions.Ready(problem.Reason, problem.Message)
	return problem.Reason == kubeovn.ReasonReady
}

// keepStatus adds an object whose status has changed to the plan.
func (r *reporter) keepStatus(changed report.Object, now, before any) {
	if !reflect.DeepEqual(now, before) {
		r.Statuses = append(r.Statuses, changed)
	}
}
