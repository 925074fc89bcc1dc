// Package oracle evaluates packets by networking.k8s.io/v1 NetworkPolicies in the most naive way: by the API's documentation, clause by
// clause, from Kubernetes' own objects, and looks at every object for every packet. It shares no code with package policy. Tests compare
// it with compiled rules: those of policy and those that networks compile from them.
//
// It expects policies that the API server would have accepted. Where the documentation leaves a case open, it follows package policy.
package oracle

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// World is the complete state of a cluster.
type World struct {
	Policies   []*networkingv1.NetworkPolicy
	Pods       []*corev1.Pod
	Namespaces []*corev1.Namespace
}

// Packet is the first packet of a connection, after the translation of Services' addresses.
type Packet struct {
	Src, Dst netip.Addr
	// Protocol is TCP, UDP, SCTP, or anything else (ICMP).
	Protocol corev1.Protocol
	// Port is the destination port; it has no meaning for other protocols than TCP, UDP and SCTP.
	Port uint16
}

// Allowed reports whether a packet may pass. "For a connection from a source pod to a destination pod to be allowed, both
// the egress policy on the source pod and the ingress policy on the destination pod need to allow the connection." And: "a
// Pod cannot block access to itself".
func (w World) Allowed(p Packet) bool {
	if p.Src == p.Dst {
		return true
	}
	return w.sideAllows(p, p.Src, networkingv1.PolicyTypeEgress) && w.sideAllows(p, p.Dst, networkingv1.PolicyTypeIngress)
}

// sideAllows: "By default, a pod is non-isolated. A pod is isolated if there is any NetworkPolicy that both selects the pod
// and has the direction in its policyTypes. When a pod is isolated, the only allowed connections are those allowed by the
// list of some NetworkPolicy that applies to the pod. The effects of those lists combine additively."
func (w World) sideAllows(p Packet, subject netip.Addr, direction networkingv1.PolicyType) bool {
	isolated := false
	for _, pod := range w.podsAt(subject) {
		for _, np := range w.Policies {
			if np.Namespace != pod.Namespace || !matches(&np.Spec.PodSelector, pod.Labels) || !slices.Contains(Types(np), direction) {
				continue
			}
			isolated = true
			if w.policyAllows(np, pod, p, direction) {
				return true
			}
		}
	}
	return !isolated
}

// Types returns a policy's types: "If no policyTypes are specified then by default Ingress will always be set and Egress
// will be set if the NetworkPolicy has any egress rules."
func Types(np *networkingv1.NetworkPolicy) []networkingv1.PolicyType {
	if len(np.Spec.PolicyTypes) > 0 {
		return np.Spec.PolicyTypes
	}
	if len(np.Spec.Egress) > 0 {
		return []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	}
	return []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
}

func (w World) policyAllows(np *networkingv1.NetworkPolicy, subject *corev1.Pod, p Packet, direction networkingv1.PolicyType) bool {
	if direction == networkingv1.PolicyTypeIngress {
		for _, rule := range np.Spec.Ingress {
			if w.anyPeer(rule.From, np.Namespace, p.Src) && portsAllow(rule.Ports, p, []*corev1.Pod{subject}) {
				return true
			}
		}
		return false
	}
	for _, rule := range np.Spec.Egress {
		if w.egressRule(rule, np.Namespace, p) {
			return true
		}
	}
	return false
}

// egressRule: a named port is a port of the destination pod. If two pods have the address, it is a port of the pod that is the peer.
func (w World) egressRule(rule networkingv1.NetworkPolicyEgressRule, namespace string, p Packet) bool {
	at := w.podsAt(p.Dst)
	if len(rule.To) == 0 {
		return portsAllow(rule.Ports, p, at)
	}
	for _, peer := range rule.To {
		if peer.IPBlock != nil {
			if blockHas(peer.IPBlock, p.Dst) && portsAllow(rule.Ports, p, at) {
				return true
			}
			continue
		}
		for _, pod := range at {
			if w.peerIs(peer, namespace, pod) && portsAllow(rule.Ports, p, []*corev1.Pod{pod}) {
				return true
			}
		}
	}
	return false
}

// anyPeer: "If this field is empty or missing, this rule matches all sources. If this field is present and contains at
// least one item, this rule allows traffic only if the traffic matches at least one item in the list."
func (w World) anyPeer(peers []networkingv1.NetworkPolicyPeer, namespace string, ip netip.Addr) bool {
	if len(peers) == 0 {
		return true
	}
	for _, peer := range peers {
		if peer.IPBlock != nil {
			if blockHas(peer.IPBlock, ip) {
				return true
			}
			continue
		}
		for _, pod := range w.podsAt(ip) {
			if w.peerIs(peer, namespace, pod) {
				return true
			}
		}
	}
	return false
}

// peerIs: "podSelector selects pods. If namespaceSelector is also set, then the pods matching podSelector in the namespaces
// selected by namespaceSelector; otherwise the pods matching podSelector in the policy's own namespace. namespaceSelector
// alone: all pods in the namespaces."
func (w World) peerIs(peer networkingv1.NetworkPolicyPeer, namespace string, pod *corev1.Pod) bool {
	if peer.PodSelector != nil && !matches(peer.PodSelector, pod.Labels) {
		return false
	}
	if peer.NamespaceSelector == nil {
		return pod.Namespace == namespace
	}
	for _, ns := range w.Namespaces {
		if ns.Name == pod.Namespace {
			return matches(peer.NamespaceSelector, ns.Labels)
		}
	}
	return false
}

// blockHas: "except is a slice of CIDRs that should not be included within an IPBlock".
func blockHas(block *networkingv1.IPBlock, ip netip.Addr) bool {
	for _, text := range block.Except {
		if netip.MustParsePrefix(text).Masked().Contains(ip) {
			return false
		}
	}
	return netip.MustParsePrefix(block.CIDR).Masked().Contains(ip)
}

// portsAllow: "If this field is empty or missing, this rule matches all ports. protocol: if not specified, this field
// defaults to TCP. port: either a numerical or named port on a pod; if this field is not provided, this matches all port
// names and numbers. endPort: the range of ports from port to endPort, inclusive."
func portsAllow(ports []networkingv1.NetworkPolicyPort, p Packet, destination []*corev1.Pod) bool {
	if len(ports) == 0 {
		return true
	}
	for _, port := range ports {
		protocol := corev1.ProtocolTCP
		if port.Protocol != nil {
			protocol = *port.Protocol
		}
		if protocol != p.Protocol {
			continue
		}
		switch {
		case port.Port == nil:
			return true
		case port.Port.Type == intstr.String:
			for _, pod := range destination {
				if hasNamedPort(pod, port.Port.StrVal, p) {
					return true
				}
			}
		case port.EndPort != nil:
			if int32(p.Port) >= port.Port.IntVal && int32(p.Port) <= *port.EndPort {
				return true
			}
		case int32(p.Port) == port.Port.IntVal:
			return true
		}
	}
	return false
}

func hasNamedPort(pod *corev1.Pod, name string, p Packet) bool {
	for _, container := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		for _, port := range container.Ports {
			protocol := port.Protocol
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			if port.Name == name && protocol == p.Protocol && port.ContainerPort == int32(p.Port) {
				return true
			}
		}
	}
	return false
}

// podsAt returns the pods that have the address as their own.
func (w World) podsAt(ip netip.Addr) []*corev1.Pod {
	var list []*corev1.Pod
	for _, pod := range w.Pods {
		if pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, its := range pod.Status.PodIPs {
			if addr, err := netip.ParseAddr(its.IP); err == nil && addr == ip {
				list = append(list, pod)
				break
			}
		}
	}
	return list
}

func matches(selector *metav1.LabelSelector, set map[string]string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(labels.Set(set))
}
