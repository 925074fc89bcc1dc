package plan

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/vpc/cluster/plan/index"
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

// isolations has the NetworkPolicies, and which of them select which pods.
type isolations struct {
	policies index.Index[string, string, isolation] // by namespace and name
	// verdicts has the policies that select the pods with the same labels, by namespace and labels, and verdictOf has the verdicts of pods.
	verdicts  index.Index[string, string, *verdict]
	verdictOf map[types.UID]*verdict
	// holders has the UIDs of Subnets of which pods have IP objects, with their number, by the pods' namespace.
	holders map[string]map[string]int
}

func newIsolations() isolations {
	return isolations{
		policies: index.Index[string, string, isolation]{}, verdicts: index.Index[string, string, *verdict]{},
		verdictOf: map[types.UID]*verdict{}, holders: map[string]map[string]int{},
	}
}

// set sets a NetworkPolicy; nil: it was deleted.
func (s *isolations) set(namespace, name string, o *networkingv1.NetworkPolicy) {
	var now isolation
	if o == nil {
		s.policies.Remove(namespace, name)
	} else {
		now = readPolicy(o)
		s.policies.Put(namespace, name, now)
	}
	for _, v := range s.verdicts[namespace] {
		delete(v.by, name)
		if o != nil && now.selector.Matches(v.labels) {
			v.by[name] = now.closed
		}
	}
}

// verdict has, by name, the NetworkPolicies that select the pods of a namespace with the labels. A plan does not evaluate selectors again.
type verdict struct {
	namespace, key string
	labels         map[string]string
	by             map[string]northbound.Closed
	pods           int
}

// verdict returns the verdict on a pod.
func (s *isolations) verdict(pod *corev1.Pod) *verdict {
	v := s.verdictOf[pod.UID]
	if v != nil && maps.Equal(v.labels, pod.Labels) {
		return v
	}
	s.forget(pod.UID)
	key := labels.Set(pod.Labels).String()
	if v = s.verdicts[pod.Namespace][key]; v == nil {
		v = &verdict{namespace: pod.Namespace, key: key, labels: pod.Labels, by: map[string]northbound.Closed{}}
		for name, one := range s.policies[pod.Namespace] {
			if one.selector.Matches(pod.Labels) {
				v.by[name] = one.closed
			}
		}
		s.verdicts.Put(pod.Namespace, key, v)
	}
	v.pods++
	s.verdictOf[pod.UID] = v
	return v
}

// forget deletes the verdict on a pod that was deleted, or whose labels have changed.
func (s *isolations) forget(uid types.UID) {
	v := s.verdictOf[uid]
	if v == nil {
		return
	}
	delete(s.verdictOf, uid)
	if v.pods--; v.pods == 0 {
		s.verdicts.Remove(v.namespace, v.key)
	}
}

// hold counts the IP objects of a Subnet that pods of a namespace have: one more, or one less.
func (s *isolations) hold(ip *kubeovn.IP, change int) {
	held := s.holders[ip.Spec.Namespace]
	if held == nil {
		held = map[string]int{}
		s.holders[ip.Spec.Namespace] = held
	}
	if held[ip.Spec.SubnetUID] += change; held[ip.Spec.SubnetUID] > 0 {
		return
	}
	if delete(held, ip.Spec.SubnetUID); len(held) == 0 {
		delete(s.holders, ip.Spec.Namespace)
	}
}

// of returns the directions in which NetworkPolicies isolate a pod. The pods of NAT gateways carry other pods' packets, and are
// exempt.
func (s *isolations) of(pod *corev1.Pod, ip *kubeovn.IP) northbound.Closed {
	var closed northbound.Closed
	if ip.Spec.NATGateway != "" {
		return closed
	}
	for _, by := range s.verdict(pod).by {
		closed.Ingress = closed.Ingress || by.Ingress
		closed.Egress = closed.Egress || by.Egress
	}
	return closed
}
