package plan

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/northbound"
)

// policy is a NetworkPolicy: which pods it isolates, and in which directions. Its rules are not served in VPCs: a pod that it isolates is
// closed.
type policy struct {
	selector labels.Selector
	closed   northbound.Closed
}

// setPolicy sets a NetworkPolicy; nil: it is gone.
func (p *Planner) setPolicy(namespace, name string, o *networkingv1.NetworkPolicy) {
	if o == nil {
		delete(p.objects.policies[namespace], name)
	} else {
		if p.objects.policies[namespace] == nil {
			p.objects.policies[namespace] = map[string]policy{}
		}
		p.objects.policies[namespace][name] = readPolicy(o)
	}
	now, there := p.objects.policies[namespace][name]
	for _, v := range p.objects.verdicts[namespace] {
		delete(v.by, name)
		if there && now.selector.Matches(labels.Set(v.labels)) {
			v.by[name] = now.closed
		}
	}
	for uid := range p.objects.holdersOf[namespace] {
		p.ranges[uid] = struct{}{}
	}
}

// verdict has the NetworkPolicies that select a pod with the labels, by name. It is kept with the pod: a plan asks no selector again.
type verdict struct {
	labels map[string]string
	by     map[string]northbound.Closed
}

// verdictOf returns the verdict on a pod.
func (p *Planner) verdictOf(pod *corev1.Pod) *verdict {
	kept := p.objects.verdicts[pod.Namespace]
	if kept == nil {
		kept = map[types.UID]*verdict{}
		p.objects.verdicts[pod.Namespace] = kept
	}
	v := kept[pod.UID]
	if v != nil && maps.Equal(v.labels, pod.Labels) {
		return v
	}
	v = &verdict{labels: pod.Labels, by: map[string]northbound.Closed{}}
	for name, policy := range p.objects.policies[pod.Namespace] {
		if policy.selector.Matches(labels.Set(pod.Labels)) {
			v.by[name] = policy.closed
		}
	}
	kept[pod.UID] = v
	return v
}

// forget takes the verdict on a pod that is gone, or that another one of its name is now.
func (p *Planner) forget(namespace string, uid types.UID) {
	if delete(p.objects.verdicts[namespace], uid); len(p.objects.verdicts[namespace]) == 0 {
		delete(p.objects.verdicts, namespace)
	}
}

// hold counts the IP objects that pods of a namespace have of a Subnet: one more, or one less.
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

func readPolicy(o *networkingv1.NetworkPolicy) policy {
	selector, err := metav1.LabelSelectorAsSelector(&o.Spec.PodSelector)
	if err != nil {
		selector = labels.Everything() // what cannot be read closes
	}
	in := o.Spec.PolicyTypes
	return policy{selector, northbound.Closed{
		Ingress: len(in) == 0 || slices.Contains(in, networkingv1.PolicyTypeIngress),
		Egress:  len(in) == 0 && len(o.Spec.Egress) > 0 || slices.Contains(in, networkingv1.PolicyTypeEgress),
	}}
}

// isolated returns the directions in which NetworkPolicies isolate a pod. The pods of NAT gateways carry others' packets, and are exempt.
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
