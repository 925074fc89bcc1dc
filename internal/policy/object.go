package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	utilnet "k8s.io/utils/net"

	"weft.dev/weft/internal/transport"
)

// AnnotationEstablished, on a NetworkPolicy, says what happens to established connections of its pods that policies no longer allow:
// EstablishedKeep or EstablishedEnd, which is the default.
const (
	AnnotationEstablished = "network.weft.dev/established-connections"
	EstablishedKeep       = "keep"
	EstablishedEnd        = "end"
)

// maxItems limits what one policy may expand to: its rules, peers, ports, label values, and the prefixes and port masks that blocks and
// ranges are split into. The API server's limit of 1.5 MiB per object would allow exceptions of blocks that become millions of prefixes.
const maxItems = 1 << 16

// parser reads one policy.
type parser struct{ items int }

// spend counts items towards the limit.
func (p *parser) spend(items int, field string) error {
	p.items += min(items, maxItems+1)
	if p.items > maxItems {
		return fmt.Errorf("%s: the policy has more than %d rules, peers, label values, prefixes and ports: split it", field, maxItems)
	}
	return nil
}

// FromNetworkPolicy returns the value of a NetworkPolicy. If it cannot parse a field, the error names the field, and the returned policy
// isolates its pods and allows nothing. If the field is AnnotationEstablished, the policy is returned as without the annotation.
func FromNetworkPolicy(obj *networkingv1.NetworkPolicy) (Policy, error) {
	p := &parser{}
	policy := Policy{Key: Key{obj.Namespace, obj.Name}}
	isolates, problem := policyTypes(&obj.Spec)
	for d := range policy.Sides {
		policy.Sides[d].Isolates = isolates[d]
	}
	selector, err := p.selector(&obj.Spec.PodSelector, "spec.podSelector")
	problem = cmp.Or(problem, err)
	policy.Pods = selector
	if isolates[Ingress] && problem == nil {
		policy.Sides[Ingress].Allows, problem = p.ingress(obj.Spec.Ingress)
	}
	if isolates[Egress] && problem == nil {
		policy.Sides[Egress].Allows, problem = p.egress(obj.Spec.Egress)
	}
	if problem != nil {
		for d := range policy.Sides {
			policy.Sides[d].Allows = nil
		}
		return policy, fmt.Errorf("NetworkPolicy %s isolates its pods and allows nothing: %w", policy.Key, problem)
	}
	switch value, set := obj.Annotations[AnnotationEstablished]; {
	case value == EstablishedKeep:
		policy.Keeps = true
	case set && value != EstablishedEnd:
		return policy, fmt.Errorf("NetworkPolicy %s ends connections that are no longer allowed: metadata.annotations[%s]: %q is neither %s nor %s",
			policy.Key, AnnotationEstablished, value, EstablishedKeep, EstablishedEnd)
	}
	return policy, nil
}

// policyTypes returns in which directions the pods are isolated, with the API server's default for a missing field.
func policyTypes(spec *networkingv1.NetworkPolicySpec) (isolates [directions]bool, err error) {
	if len(spec.PolicyTypes) == 0 {
		return [directions]bool{Ingress: true, Egress: len(spec.Egress) > 0}, nil
	}
	for i, t := range spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			isolates[Ingress] = true
		case networkingv1.PolicyTypeEgress:
			isolates[Egress] = true
		default:
			return [directions]bool{Ingress: true, Egress: true}, fmt.Errorf("spec.policyTypes[%d]: %q is neither Ingress nor Egress", i, t)
		}
	}
	return isolates, nil
}

func (p *parser) ingress(rules []networkingv1.NetworkPolicyIngressRule) ([]Allow, error) {
	var list []Allow
	for i := range rules {
		a, err := p.allow(rules[i].From, rules[i].Ports, fmt.Sprintf("spec.ingress[%d]", i), "from")
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

func (p *parser) egress(rules []networkingv1.NetworkPolicyEgressRule) ([]Allow, error) {
	var list []Allow
	for i := range rules {
		a, err := p.allow(rules[i].To, rules[i].Ports, fmt.Sprintf("spec.egress[%d]", i), "to")
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

func (p *parser) allow(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, path, peersName string) (Allow, error) {
	if err := p.spend(1+len(peers)+len(ports), path); err != nil {
		return Allow{}, err
	}
	a := Allow{AnyPeer: len(peers) == 0, AnyService: len(ports) == 0}
	var blocks netipx.IPSetBuilder
	for i := range peers {
		field := fmt.Sprintf("%s.%s[%d]", path, peersName, i)
		if err := p.peer(&peers[i], field, &a, &blocks); err != nil {
			return Allow{}, err
		}
	}
	all, err := blocks.IPSet()
	if err != nil {
		return Allow{}, fmt.Errorf("%s.%s: %w", path, peersName, err)
	}
	if list := all.Prefixes(); len(list) > 0 {
		a.Blocks = list
	}
	var ranges []portRange
	for i := range ports {
		if err := port(&ports[i], fmt.Sprintf("%s.ports[%d]", path, i), &a, &ranges); err != nil {
			return Allow{}, err
		}
	}
	a.Services = services(ranges)
	slices.SortFunc(a.Named, func(x, y NamedPort) int {
		return cmp.Or(cmp.Compare(x.Protocol, y.Protocol), strings.Compare(x.Name, y.Name))
	})
	a.Named = slices.Compact(a.Named)
	return a, p.spend(len(a.Services), path)
}

func (p *parser) peer(peer *networkingv1.NetworkPolicyPeer, path string, a *Allow, blocks *netipx.IPSetBuilder) error {
	if peer.IPBlock != nil {
		if peer.PodSelector != nil || peer.NamespaceSelector != nil {
			return fmt.Errorf("%s: has ipBlock and a selector; write them as two peers", path)
		}
		set, err := p.block(peer.IPBlock, path+".ipBlock")
		if err == nil {
			blocks.AddSet(set)
		}
		return err
	}
	if peer.PodSelector == nil && peer.NamespaceSelector == nil {
		return fmt.Errorf("%s: has none of podSelector, namespaceSelector, ipBlock", path)
	}
	var out Peer
	if peer.NamespaceSelector != nil {
		s, err := p.selector(peer.NamespaceSelector, path+".namespaceSelector")
		if err != nil {
			return err
		}
		out.Namespaces = &s
	}
	if peer.PodSelector != nil {
		s, err := p.selector(peer.PodSelector, path+".podSelector")
		if err != nil {
			return err
		}
		out.Pods = s
	}
	a.Peers = append(a.Peers, out)
	return nil
}

// block returns the addresses of a block. Exceptions are subtracted from their own block only: other blocks of the same rule keep their
// addresses.
func (p *parser) block(block *networkingv1.IPBlock, path string) (*netipx.IPSet, error) {
	cidr, err := prefix(block.CIDR)
	if err != nil {
		return nil, fmt.Errorf("%s.cidr: %w", path, err)
	}
	var b netipx.IPSetBuilder
	b.AddPrefix(cidr)
	for i, text := range block.Except {
		field := fmt.Sprintf("%s.except[%d]", path, i)
		except, err := prefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		if !cidr.Contains(except.Addr()) || except.Bits() <= cidr.Bits() {
			return nil, fmt.Errorf("%s: %s is not within %s", field, except, cidr)
		}
		if err := p.spend(1, field); err != nil {
			return nil, err
		}
		b.RemovePrefix(except)
	}
	set, err := b.IPSet()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	// An exception splits the block into up to one prefix for each bit that the exception is longer than its block.
	return set, p.spend(len(set.Prefixes()), path)
}

// prefix parses a CIDR as the API server does for this field: bits after the mask are ignored, leading zeros are decimal, and IPv4
// addresses written as IPv6 ones are IPv4.
func prefix(text string) (netip.Prefix, error) {
	wrong := fmt.Errorf("%q is not a CIDR such as 192.0.2.0/24 or 2001:db8::/64", text)
	_, parsed, err := utilnet.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, wrong
	}
	ip, _ := netip.AddrFromSlice(parsed.IP)
	ones, length := parsed.Mask.Size()
	if ip.Is4In6() {
		ip = ip.Unmap()
		ones -= length - ip.BitLen()
	}
	if p := netip.PrefixFrom(ip, ones); p.IsValid() {
		return p, nil
	}
	return netip.Prefix{}, wrong
}

func port(obj *networkingv1.NetworkPolicyPort, path string, a *Allow, ranges *[]portRange) error {
	name := corev1.ProtocolTCP
	if obj.Protocol != nil {
		name = *obj.Protocol
	}
	proto, known := transport.Of(name)
	if !known {
		return fmt.Errorf("%s.protocol: %q is not one of TCP, UDP, SCTP", path, name)
	}
	switch {
	case obj.Port == nil && obj.EndPort != nil:
		return fmt.Errorf("%s.endPort: there is no port where the range begins", path)
	case obj.Port == nil:
		*ranges = append(*ranges, portRange{proto, 0, highestPort})
		return nil
	case obj.Port.Type == intstr.String:
		if obj.EndPort != nil {
			return fmt.Errorf("%s.endPort: a range begins with a number, not with the name %q", path, obj.Port.StrVal)
		}
		if wrong := validation.IsValidPortName(obj.Port.StrVal); len(wrong) > 0 {
			return fmt.Errorf("%s.port: %q is not a port name: %s", path, obj.Port.StrVal, wrong[0])
		}
		a.Named = append(a.Named, NamedPort{proto, obj.Port.StrVal})
		return nil
	}
	first, last := obj.Port.IntVal, obj.Port.IntVal
	if first < 1 || first > highestPort {
		return fmt.Errorf("%s.port: %d is not in 1 to %d", path, first, highestPort)
	}
	if obj.EndPort != nil {
		last = *obj.EndPort
	}
	if last < first || last > highestPort {
		return fmt.Errorf("%s.endPort: %d is not in %d (the port) to %d", path, last, first, highestPort)
	}
	*ranges = append(*ranges, portRange{proto, uint32(first), uint32(last)})
	return nil
}

// FromPod returns the value of a pod. It leaves out addresses that cannot be parsed: rules then allow nothing for such an address.
func FromPod(obj *corev1.Pod) Pod {
	p := Pod{
		Key: Key{obj.Namespace, obj.Name}, Node: obj.Spec.NodeName, Labels: obj.Labels,
		HostNetwork: obj.Spec.HostNetwork,
		Ended:       obj.Status.Phase == corev1.PodSucceeded || obj.Status.Phase == corev1.PodFailed,
	}
	texts := []string{obj.Status.PodIP}
	for i := range obj.Status.PodIPs {
		texts = append(texts, obj.Status.PodIPs[i].IP)
	}
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Zone() == "" && !ip.IsUnspecified() {
			p.Addresses = append(p.Addresses, ip.Unmap())
		}
	}
	slices.SortFunc(p.Addresses, netip.Addr.Compare)
	p.Addresses = slices.Compact(p.Addresses)
	for _, containers := range [][]corev1.Container{obj.Spec.Containers, obj.Spec.InitContainers} {
		for i := range containers {
			p.Ports = append(p.Ports, containerPorts(containers[i].Ports)...)
		}
	}
	slices.SortFunc(p.Ports, func(a, b ContainerPort) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), strings.Compare(a.Name, b.Name), cmp.Compare(a.Number, b.Number))
	})
	p.Ports = slices.Compact(p.Ports)
	return p
}

func containerPorts(ports []corev1.ContainerPort) []ContainerPort {
	var list []ContainerPort
	for i := range ports {
		c := &ports[i]
		proto, known := transport.Of(cmp.Or(c.Protocol, corev1.ProtocolTCP))
		if c.Name == "" || !known || c.ContainerPort < 1 || c.ContainerPort > highestPort {
			continue
		}
		list = append(list, ContainerPort{NamedPort{proto, c.Name}, uint16(c.ContainerPort)})
	}
	return list
}

// FromNamespace returns the value of a namespace.
func FromNamespace(obj *corev1.Namespace) Namespace {
	return Namespace{Name: obj.Name, Labels: obj.Labels}
}
