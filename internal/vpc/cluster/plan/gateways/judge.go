package gateways

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

// running is what the pods of a gateway report.
type running struct {
	// pods is the number of existing pods, whatever their state.
	pods int
	// hashes are the hashes of what their agents have programmed; empty: nothing yet. most are the hashes of what they have at most; empty: unknown.
	hashes, most []string
	// failure is why an agent could not program one of them; empty: none failed. lost is the name of one whose node does not report; empty: none.
	failure, lost string
}

// has reports whether a pod runs, and all existing pods have the state.
func (r running) has(hash string) bool { return len(r.hashes) > 0 && all(r.hashes, hash) }

// within reports whether no existing pod has more than the state.
func (r running) within(hash string) bool { return all(r.most, hash) }

func all(hashes []string, hash string) bool {
	return !slices.ContainsFunc(hashes, func(h string) bool { return h != hash })
}

// some reports whether a pod runs, and all existing pods have a state, of the same objects or older ones.
func (r running) some() bool { return len(r.hashes) > 0 && !slices.Contains(r.hashes, "") }

// runningOf returns what the pods of each gateway report.
func runningOf(pods map[types.UID]*corev1.Pod) map[string]running {
	byName := map[string]running{}
	for _, pod := range pods {
		if objects.Ended(pod) {
			continue
		}
		name := strings.TrimSuffix(strings.TrimPrefix(pod.Name, nat.PodPrefix), "-0")
		r := byName[name]
		r.pods++
		hash, most := "", ""
		for _, condition := range pod.Status.Conditions {
			switch {
			case condition.Type != nat.Condition:
			case condition.Status == corev1.ConditionTrue:
				hash, most = condition.Message, condition.Message
			case condition.Reason == nat.ReasonNothing:
				most = condition.Message
			case condition.Reason == nat.ReasonFailed:
				r.failure = max(r.failure, condition.Message) // of several, one that does not depend on their order
			}
		}
		if isLost(pod) {
			r.lost = max(r.lost, pod.Namespace+"/"+pod.Name+" on node "+pod.Spec.NodeName)
		}
		if r.hashes = append(r.hashes, hash); pod.Spec.NodeName != "" { // else it has nothing
			r.most = append(r.most, most)
		}
		byName[name] = r
	}
	return byName
}

// isLost reports whether the kubelet of a pod's node does not report any more. The node controller then sets the pod's condition Ready to False,
// later than the agent has set its own, and leaves ContainersReady as the kubelet has written it. The kubelet sets both if a container stops,
// which a gateway's traffic does not notice.
func isLost(pod *corev1.Pod) bool {
	var ready, containers, programmed corev1.PodCondition
	for _, condition := range pod.Status.Conditions {
		switch condition.Type {
		case corev1.PodReady:
			ready = condition
		case corev1.ContainersReady:
			containers = condition
		case nat.Condition:
			programmed = condition
		}
	}
	return ready.Status == corev1.ConditionFalse && containers.Status == corev1.ConditionTrue && programmed.Status == corev1.ConditionTrue &&
		ready.LastTransitionTime.After(programmed.LastTransitionTime.Time)
}

// stays reports whether an object was Ready with its current generation.
func stays(conditions []metav1.Condition, generation int64) bool {
	ready := meta.FindStatusCondition(conditions, kubeovn.ConditionReady)
	return ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == generation
}

// judge decides why objects are not in effect.
type judge struct {
	config    *objects.NATConfig
	compiled  *nat.Network
	addresses *addresses
	running   map[string]running // by gateway
	refused   map[string]string  // why StatefulSets are refused, by their names
}

// gateway returns why a gateway is not in effect.
func (j *judge) gateway(g *nat.Gateway, r running) nat.Problem {
	switch {
	case g.Problem != (nat.Problem{}):
		return g.Problem
	case !j.config.Enabled:
		return disabled()
	case j.config.Image == "":
		return nat.Problem{Reason: kubeovn.ReasonMissing, Message: fmt.Sprintf("ConfigMap %s/%s names no image; write the gateways' image under the key \"image\"",
			kubeovn.ConfigNamespace, kubeovn.NATConfigMap)}
	case r.pods == 0 && j.refused[nat.WorkloadName(g.Value.Name)] != "":
		return nat.Problem{Reason: kubeovn.ReasonRefused, Message: "the API server refuses the gateway's StatefulSet, which has spec.selector, spec.tolerations and " +
			"spec.affinity; correct them: " + j.refused[nat.WorkloadName(g.Value.Name)]}
	case r.pods == 0:
		return nat.Problem{Reason: kubeovn.ReasonPending, Message: fmt.Sprintf("pod %s/%s is not there yet", kubeovn.ConfigNamespace, nat.PodName(g.Value.Name))}
	case r.lost != "":
		return nat.Problem{Reason: kubeovn.ReasonPending, Message: fmt.Sprintf("pod %s is not ready, because the node's kubelet does not report; if the node "+
			"does not come back, delete the Node object, so that the gateway starts on another node", r.lost)}
	}
	return nat.Problem{}
}

func disabled() nat.Problem {
	return nat.Problem{Reason: kubeovn.ReasonDisabled, Message: fmt.Sprintf("NAT gateways are turned off; write enable-vpc-nat-gw: \"true\" in ConfigMap %s/%s",
		kubeovn.ConfigNamespace, kubeovn.NATGatewayConfigMap)}
}

// behind returns why an object that was not in effect before is not in effect yet: the gateway's pod has another state. A pod changes its
// state as a whole, so that what is in both the old and the new state stays in effect.
func behind(g *nat.Gateway, r running, stays bool) nat.Problem {
	if r.has(g.Hash) || stays && r.some() {
		return nat.Problem{}
	}
	message := fmt.Sprintf("pod %s/%s does not have the state yet", kubeovn.ConfigNamespace, nat.PodName(g.Value.Name))
	if r.failure != "" {
		message += ": " + r.failure
	}
	return nat.Problem{Reason: kubeovn.ReasonPending, Message: message}
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

// eip returns why an EIP is not in effect.
func (j *judge) eip(e *nat.EIP, g *nat.Gateway, r running) nat.Problem {
	refused := j.addresses.refusal(e.Value.Owner())
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
	problem := j.gateway(g, r)
	if problem == (nat.Problem{}) && g.Has(e.Value.Name) {
		problem = behind(g, r, stays(e.Object.Status.Conditions, e.Object.Generation))
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

// rule returns why a rule is not in effect, with its EIP's address and gateway.
func (j *judge) rule(rule *ruleObject, states map[string]eipState) (problem nat.Problem, address, gateway string) {
	owner, eip := rule.owner, rule.eip
	if wrong := j.compiled.Problems[owner]; len(wrong) > 0 {
		return nat.Problem{Reason: kubeovn.ReasonInvalid, Message: wrong.Error()}, "", ""
	}
	e := j.compiled.EIPs[eip]
	if e == nil {
		return nat.Problem{Reason: kubeovn.ReasonMissing, Message: fmt.Sprintf("spec.eip: there is no IptablesEIP %.64q; create it", eip)}, "", ""
	}
	address, gateway = j.addresses.of(e), e.Value.Gateway
	g := j.compiled.Gateways[gateway]
	if g != nil {
		if wrong, is := g.Result.Problems[owner]; is {
			return nat.Problem{Reason: kubeovn.ReasonConflict, Message: wrong.Error()}, address, gateway
		}
	}
	problem = states[eip].problem
	switch problem.Reason {
	case "", kubeovn.ReasonInUse: // an EIP that is being deleted serves its rules
		problem = nat.Problem{}
		if g != nil {
			problem = behind(g, states[eip].running, rule.address == address && stays(rule.conditions, rule.generation))
		}
	case kubeovn.ReasonDisabled:
	default:
		problem = nat.Problem{Reason: kubeovn.ReasonPending, Message: "IptablesEIP " + eip + ": " + problem.Message}
	}
	return problem, address, gateway
}
