package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

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
	for _, ip := range p.objects.ips {
		if ip.Spec.Namespace == namespace {
			p.ranges[ip.Spec.SubnetUID] = struct{}{}
		}
	}
}

func readPolicy(o *networkingv1.NetworkPolicy) policy {
	selector, err := metav1.LabelSelectorAsSelector(&o.Spec.PodSelector)
	if err != nil {
		selector = labels.Everything() // what cannot be read closes
	}
	types := o.Spec.PolicyTypes
	return policy{selector, northbound.Closed{
		Ingress: len(types) == 0 || slices.Contains(types, networkingv1.PolicyTypeIngress),
		Egress:  len(types) == 0 && len(o.Spec.Egress) > 0 || slices.Contains(types, networkingv1.PolicyTypeEgress),
	}}
}

// isolated returns the directions in which NetworkPolicies isolate a pod. The pods of NAT gateways carry others' packets, and are exempt.
func (p *Planner) isolated(pod *corev1.Pod, ip *kubeovn.IP) northbound.Closed {
	var closed northbound.Closed
	if ip.Spec.NATGateway != "" {
		return closed
	}
	for _, policy := range p.objects.policies[pod.Namespace] {
		if policy.selector.Matches(labels.Set(pod.Labels)) {
			closed.Ingress = closed.Ingress || policy.closed.Ingress
			closed.Egress = closed.Egress || policy.closed.Egress
		}
	}
	return closed
}
