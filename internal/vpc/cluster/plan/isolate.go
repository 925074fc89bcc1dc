package plan

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/vpc/northbound"
)

// isolation describes a NetworkPolicy: which pods it isolates, and in which directions. Its rules are not supported in VPCs: a pod that it
// isolates is closed.
type isolation struct {
	selector interface {
		Matches(of map[string]string) bool
	}
	closed northbound.Closed
}

// readPolicy reads a NetworkPolicy. An invalid one isolates its pods, or all pods of the namespace if its selector is invalid.
func readPolicy(o *networkingv1.NetworkPolicy) isolation {
	read, _ := policy.FromNetworkPolicy(o) // errors in its rules make no difference here
	return isolation{read.Pods, northbound.Closed{Ingress: read.Sides[policy.Ingress].Isolates, Egress: read.Sides[policy.Egress].Isolates}}
}

// setPolicy sets a NetworkPolicy; nil: it was deleted.
func (p *Planner) setPolicy(namespace, name string, o *networkingv1.NetworkPolicy) {
	var now isolation
	if o != nil {
		now = readPolicy(o)
	}
	index(p.objects.policies, namespace, name, now, o != nil)
	for _, v := range p.objects.verdicts[namespace] {
		delete(v.by, name)
		if o != nil && now.selector.Matches(v.labels) {
			v.by[name] = now.closed
		}
	}
	for uid := range p.objects.holdersOf[namespace] {
		p.ranges[uid] = struct{}{}
	}
}

// verdict has, by name, the NetworkPolicies that select the pods of a namespace with the labels. A plan does not evaluate selectors again.
type verdict struct {
	namespace, key string
	labels         map[string]string
	by             map[string]northbound.Closed
	pods           int
}

// verdictOf returns the verdict on a pod.
func (p *Planner) verdictOf(pod *corev1.Pod) *verdict {
	v := p.objects.verdictOf[pod.UID]
	if v != nil && maps.Equal(v.labels, pod.Labels) {
		return v
	}
	p.forget(pod.UID)
	key := labels.Set(pod.Labels).String()
	if v = p.objects.verdicts[pod.Namespace][key]; v == nil {
		v = &verdict{namespace: pod.Namespace, key: key, labels: pod.Labels, by: map[string]northbound.Closed{}}
		for name, one := range p.objects.policies[pod.Namespace] {
			if one.selector.Matches(pod.Labels) {
				v.by[name] = one.closed
			}
		}
		index(p.objects.verdicts, pod.Namespace, key, v, true)
	}
	v.pods++
	p.objects.verdictOf[pod.UID] = v
	return v
}

// forget deletes the verdict on a pod that was deleted, or whose labels have changed.
func (p *Planner) forget(uid types.UID) {
	v := p.objects.verdictOf[uid]
	if v == nil {
		return
	}
	delete(p.objects.verdictOf, uid)
	if v.pods--; v.pods == 0 {
		index(p.objects.verdicts, v.namespace, v.key, v, false)
	}
}

// hold counts the IP objects of a Subnet that pods of a namespace have: one more, or one less.
func (p *Planner) hold(ip *kubeovn.IP, change int) {
	held := p.objects.holdersOf[ip.Spec.Namespace]
	if held == nil {
		held = map[string]int{}
		p.objects.holdersOf[ip.Spec.Namespace] = held
	}
	if held[ip.Spec.SubnetUID] += change; held[ip.Spec.SubnetUID] > 0 {
		return
	}
	if delete(held, ip.Spec.SubnetUID); len(held) == 0 {
		delete(p.objects.holdersOf, ip.Spec.Namespace)
	}
}

// isolated returns the directions in which NetworkPolicies isolate a pod. The pods of NAT gateways carry other pods' packets, and are
// exempt.
func (p *Planner) isolated(pod *corev1.Pod, ip *kubeovn.IP) northbound.Closed {
	var closed northbound.Closed
	if ip.Spec.NATGateway != "" {
		return closed
	}
	for _, by := range p.verdictOf(pod).by {
		closed.Ingress = closed.Ingress || by.Ingress
		closed.Egress = closed.Egress || by.Egress
	}
	return closed
}
