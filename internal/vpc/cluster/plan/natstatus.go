package plan

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan/report"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

// running is what the pods of a gateway report.
type running struct {
	// pods is the number of existing pods, whatever their state.
	pods int
	// hashes are the hashes of what their agents have programmed; empty: nothing yet.
	hashes []string
}

// has reports whether a pod runs, and all existing pods have the state.
func (r running) has(hash string) bool {
	return len(r.hashes) > 0 && !slices.ContainsFunc(r.hashes, func(h string) bool { return h != hash })
}

// some reports whether a pod runs, and all existing pods have a state, of the same objects or older ones.
func (r running) some() bool { return len(r.hashes) > 0 && !slices.Contains(r.hashes, "") }

// stays reports whether an object was Ready with its current generation.
func stays(conditions []metav1.Condition, generation int64) bool {
	ready := meta.FindStatusCondition(conditions, kubeovn.ConditionReady)
	return ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == generation
}

// gateways plans the gateways' workloads, and the status of gateways, EIPs and rules.
func (c *compiler) gateways() {
	if len(c.nat.Gateways)+len(c.nat.EIPs)+len(c.listed.SNATs)+len(c.listed.DNATs)+len(c.listed.FIPs)+len(c.objects.workloads) == 0 {
		return
	}
	c.listed.Definitions = c.objects.definitions
	c.compiled = c.compiles.Compile(c.listed)
	pods := c.gatewayPods()
	for _, name := range slices.Sorted(maps.Keys(c.compiled.Gateways)) {
		g := c.compiled.Gateways[name]
		if g.Problem == (nat.Problem{}) {
			g.Problem = c.refusal(g.Value.Owner())
		}
		c.workload(g)
		c.gatewayStatus(g, pods[name])
		c.finalize(g.Object, pods[name].pods == 0 && !c.hasWorkload(name))
	}
	c.strayWorkloads()
	problems := map[string]eipState{}
	for _, name := range slices.Sorted(maps.Keys(c.compiled.EIPs)) {
		e := c.compiled.EIPs[name]
		g := c.compiled.Gateways[e.Value.Gateway]
		state := eipState{running: pods[e.Value.Gateway], problem: c.eipProblem(e, g, pods[e.Value.Gateway])}
		problems[name] = state
		c.eipStatus(e, g, state.problem)
		gone := g == nil || pods[e.Value.Gateway].pods == 0 || g.Hash != "" && !g.Has(name) && pods[e.Value.Gateway].has(g.Hash)
		if c.addressOf(e) != "" || report.Held(e.Object) {
			c.finalize(e.Object, len(e.Rules) == 0 && gone)
		}
	}
	c.ruleStatuses(problems)
}

// gatewayPods returns what the pods of each gateway report.
func (c *compiler) gatewayPods() map[string]running {
	all := map[string]running{}
	for _, pod := range c.objects.gates {
		if ended(pod) {
			continue
		}
		name := strings.TrimSuffix(strings.TrimPrefix(pod.Name, nat.PodPrefix), "-0")
		r := all[name]
		r.pods++
		hash := ""
		for _, condition := range pod.Status.Conditions {
			if condition.Type == nat.Condition && condition.Status == corev1.ConditionTrue {
				hash = condition.Message
			}
		}
		r.hashes = append(r.hashes, hash)
		all[name] = r
	}
	return all
}

// finalize adds an object's finalizer, and removes it when the object is being deleted and nothing of it is left.
func (c *compiler) finalize(object Object, free bool) {
	has := report.Held(object)
	changed, ok := object.DeepCopyObject().(Object)
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
	c.plan.Updates = append(c.plan.Updates, changed)
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
func (c *compiler) keepStatus(changed Object, now, before any) {
	if !reflect.DeepEqual(now, before) {
		c.plan.Statuses = append(c.plan.Statuses, changed)
	}
}

func (c *compiler) disabled() nat.Problem {
	return nat.Problem{Reason: kubeovn.ReasonDisabled, Message: fmt.Sprintf("NAT gateways are turned off; write enable-vpc-nat-gw: \"true\" in ConfigMap %s/%s",
		kubeovn.ConfigNamespace, kubeovn.NATGatewayConfigMap)}
}

// gatewayProblem returns why a gateway is not in effect.
func (c *compiler) gatewayProblem(g *nat.Gateway, r running) nat.Problem {
	switch {
	case g.Problem != (nat.Problem{}):
		return g.Problem
	case !c.objects.config.Enabled:
		return c.disabled()
	case c.objects.config.Image == "":
		return nat.Problem{Reason: kubeovn.ReasonMissing, Message: fmt.Sprintf("ConfigMap %s/%s names no image; write the gateways' image under the key \"image\"",
			kubeovn.ConfigNamespace, kubeovn.NATConfigMap)}
	case r.pods == 0:
		return nat.Problem{Reason: kubeovn.ReasonPending, Message: fmt.Sprintf("pod %s/%s is not there yet", kubeovn.ConfigNamespace, nat.PodName(g.Value.Name))}
	}
	return nat.Problem{}
}

// behind returns why an object that was not in effect before is not in effect yet: the gateway's pod has another state. A pod changes its
// state as a whole, so that what is in both the old and the new state stays in effect.
func (c *compiler) behind(g *nat.Gateway, r running, stays bool) nat.Problem {
	if r.has(g.Hash) || stays && r.some() {
		return nat.Problem{}
	}
	return nat.Problem{Reason: kubeovn.ReasonPending, Message: fmt.Sprintf("pod %s/%s does not have the state yet", kubeovn.ConfigNamespace, nat.PodName(g.Value.Name))}
}

func (c *compiler) gatewayStatus(g *nat.Gateway, r running) {
	object := g.Object.DeepCopy()
	s, spec := &object.Status, &object.Spec
	s.ExternalSubnets, s.Selector = []string{g.Value.External}, append([]string{}, spec.Selector...)
	s.Tolerations, s.Affinity = append([]corev1.Toleration{}, spec.Tolerations...), spec.Affinity
	s.LanIP, s.Hash, s.Replicas = "", g.Hash, 1
	if g.Value.LanIP.IsValid() {
		s.LanIP = g.Value.LanIP.String()
	}
	if address := c.given[g.Value.Owner()]; address != "" {
		s.IP = address
	}
	problem := c.gatewayProblem(g, r)
	if problem == (nat.Problem{}) {
		problem = c.behind(g, r, false)
	}
	conditions := c.conditions(&s.Conditions, object.Generation)
	s.Ready = ready(conditions, problem)
	conditions.Supported(g.Value.Unsupported)
	c.keepStatus(object, object.Status, g.Object.Status)
	c.assigns(object, s.IP != g.Object.Status.IP)
}

// eipState is why an EIP is not in effect, and what the pods of its gateway report.
type eipState struct {
	running
	problem nat.Problem
}

// ruleObject has what a rule's condition depends on.
type ruleObject struct {
	owner, eip string
	// address is the one in its status.
	address    string
	conditions []metav1.Condition
	generation int64
}

// eipProblem returns why an EIP is not in effect.
func (c *compiler) eipProblem(e *nat.EIP, g *nat.Gateway, r running) nat.Problem {
	refused := c.refusal(e.Value.Owner())
	switch {
	case e.Object.DeletionTimestamp != nil && len(e.Rules) > 0:
		return nat.Problem{Reason: kubeovn.ReasonInUse, Message: "rules name the EIP; delete them: " + strings.Join(e.Rules, ", ")}
	case len(e.Problems) > 0:
		return nat.Problem{Reason: kubeovn.ReasonInvalid, Message: e.Problems.Error()}
	case refused != (nat.Problem{}):
		return refused
	case g == nil:
		return nat.Problem{Reason: kubeovn.ReasonMissing, Message: fmt.Sprintf("spec.natGwDp: there is no VpcNatGateway %.64q; create it", e.Value.Gateway)}
	case g.Value.External != e.Value.External:
		return nat.Problem{Reason: kubeovn.ReasonInvalid, Message: fmt.Sprintf("spec.externalSubnet: VpcNatGateway %s is in external Subnet %s, not in %s; name that one",
			e.Value.Gateway, g.Value.External, e.Value.External)}
	}
	problem := c.gatewayProblem(g, r)
	if problem == (nat.Problem{}) && g.Has(e.Value.Name) {
		problem = c.behind(g, r, stays(e.Object.Status.Conditions, e.Object.Generation))
	}
	if problem != (nat.Problem{}) {
		if problem.Reason != kubeovn.ReasonDisabled {
			problem.Reason = kubeovn.ReasonPending
		}
		problem.Message = "VpcNatGateway " + g.Value.Name + ": " + problem.Message
		return problem
	}
	if !g.Has(e.Value.Name) {
		return nat.Problem{Reason: kubeovn.ReasonPending, Message: "the EIP has no address yet"}
	}
	return nat.Problem{}
}

func (c *compiler) eipStatus(e *nat.EIP, g *nat.Gateway, problem nat.Problem) {
	object := e.Object.DeepCopy()
	s := &object.Status
	s.IP, s.Nat = c.addressOf(e), ""
	if g != nil {
		s.Nat = strings.Join(g.Result.Uses[e.Value.Name], ",")
	}
	conditions := c.conditions(&s.Conditions, object.Generation)
	s.Ready = ready(conditions, problem)
	conditions.Supported(e.Value.Unsupported)
	c.keepStatus(object, object.Status, e.Object.Status)
	c.assigns(object, s.IP != e.Object.Status.IP && !e.Value.Wanted.IsValid()) // a requested address is assigned by the finalizer
}

// ruleProblem returns why a rule is not in effect, with its EIP's address and gateway.
func (c *compiler) ruleProblem(rule *ruleObject, problems map[string]eipState) (problem nat.Problem, address, gateway string) {
	owner, eip := rule.owner, rule.eip
	if wrong := c.compiled.Problems[owner]; len(wrong) > 0 {
		return nat.Problem{Reason: kubeovn.ReasonInvalid, Message: wrong.Error()}, "", ""
	}
	e := c.compiled.EIPs[eip]
	if e == nil {
		return nat.Problem{Reason: kubeovn.ReasonMissing, Message: fmt.Sprintf("spec.eip: there is no IptablesEIP %.64q; create it", eip)}, "", ""
	}
	address, gateway = c.addressOf(e), e.Value.Gateway
	g := c.compiled.Gateways[gateway]
	if g != nil {
		if wrong, is := g.Result.Problems[owner]; is {
			return nat.Problem{Reason: kubeovn.ReasonConflict, Message: wrong.Error()}, address, gateway
		}
	}
	problem = problems[eip].problem
	switch problem.Reason {
	case "", kubeovn.ReasonInUse: // an EIP that is being deleted serves its rules
		problem = nat.Problem{}
		if g != nil {
			problem = c.behind(g, problems[eip].running, rule.address == address && stays(rule.conditions, rule.generation))
		}
	case kubeovn.ReasonDisabled:
	default:
		problem = nat.Problem{Reason: kubeovn.ReasonPending, Message: "IptablesEIP " + eip + ": " + problem.Message}
	}
	return problem, address, gateway
}

func (c *compiler) ruleStatuses(problems map[string]eipState) {
	owner := func(kind string, object metav1.Object) string {
		return objects.Meta{Kind: kind, Name: object.GetName(), UID: string(object.GetUID())}.Owner()
	}
	for i := range c.listed.SNATs {
		before := &c.listed.SNATs[i]
		object, name := before.DeepCopy(), owner("IptablesSnatRule", before)
		s := &object.Status
		var problem nat.Problem
		problem, s.V4ip, s.NatGwDp = c.ruleProblem(&ruleObject{name, object.Spec.EIP, s.V4ip, s.Conditions, object.Generation}, problems)
		s.InternalCIDR = object.Spec.InternalCIDR
		conditions := c.conditions(&s.Conditions, object.Generation)
		s.Ready = ready(conditions, problem)
		c.matched(conditions, name, s.NatGwDp)
		c.keepStatus(object, object.Status, before.Status)
	}
	for i := range c.listed.FIPs {
		before := &c.listed.FIPs[i]
		object, name := before.DeepCopy(), owner("IptablesFIPRule", before)
		s := &object.Status
		var problem nat.Problem
		problem, s.V4ip, s.NatGwDp = c.ruleProblem(&ruleObject{name, object.Spec.EIP, s.V4ip, s.Conditions, object.Generation}, problems)
		s.InternalIP = object.Spec.InternalIP
		conditions := c.conditions(&s.Conditions, object.Generation)
		s.Ready = ready(conditions, problem)
		c.keepStatus(object, object.Status, before.Status)
	}
	for i := range c.listed.DNATs {
		before := &c.listed.DNATs[i]
		object, name := before.DeepCopy(), owner("IptablesDnatRule", before)
		s, spec := &object.Status, &object.Spec
		var problem nat.Problem
		problem, s.V4ip, s.NatGwDp = c.ruleProblem(&ruleObject{name, spec.EIP, s.V4ip, s.Conditions, object.Generation}, problems)
		s.Protocol, s.InternalIP, s.InternalPort, s.ExternalPort = cmp.Or(strings.ToLower(spec.Protocol), "tcp"), spec.InternalIP, spec.InternalPort, spec.ExternalPort
		conditions := c.conditions(&s.Conditions, object.Generation)
		s.Ready = ready(conditions, problem)
		c.keepStatus(object, object.Status, before.Status)
	}
}

// matched sets condition Matched of an SNAT rule, if its gateway is known.
func (c *compiler) matched(conditions report.Conditions, owner, gateway string) {
	g := c.compiled.Gateways[gateway]
	if g == nil || g.Hash == "" {
		conditions.Remove(kubeovn.ConditionMatched)
		return
	}
	if !slices.Contains(g.Result.Unmatched, owner) {
		conditions.Set(kubeovn.ConditionMatched, kubeovn.ReasonMatched, "")
		return
	}
	conditions.Set(kubeovn.ConditionMatched, kubeovn.ReasonNoSubnet,
		fmt.Sprintf("spec.internalCIDR overlaps no Subnet of Vpc %s, so that no packet matches; its Subnets are %s", g.Value.VPC, strings.Join(g.Inside(), ", ")))
}
