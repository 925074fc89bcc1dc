package service

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"weft.dev/weft/internal/transport"
)

// AnnotationIdled is the annotation by which `oc idle` marks a Service as idled, with the time as its value.
const AnnotationIdled = "idling.alpha.openshift.io/idled-at"

// FromService converts a Service, and reports whether it has virtual addresses at all: headless Services and those of type ExternalName
// have none. Unusable parts of an object are left out: the API server rejects them, and the other parts must keep working.
func FromService(obj *corev1.Service) (Service, bool) {
	if obj.Spec.Type == corev1.ServiceTypeExternalName || obj.Spec.ClusterIP == "" || obj.Spec.ClusterIP == corev1.ClusterIPNone {
		return Service{}, false
	}
	internal := obj.Spec.InternalTrafficPolicy
	s := Service{
		Namespace: obj.Namespace, Name: obj.Name,
		InternalLocal: internal != nil && *internal == corev1.ServiceInternalTrafficPolicyLocal,
		ExternalLocal: obj.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		ExternalIPs:   addresses(obj.Spec.ExternalIPs),
		SourceRanges:  ranges(obj.Spec.LoadBalancerSourceRanges),
		Affinity:      affinity(&obj.Spec),
	}
	_, s.Idled = obj.Annotations[AnnotationIdled]
	for _, text := range append([]string{obj.Spec.ClusterIP}, obj.Spec.ClusterIPs...) {
		if ip, ok := address(text); ok {
			s.ClusterIP = ip
			break
		}
	}
	for i := range obj.Status.LoadBalancer.Ingress {
		in := &obj.Status.LoadBalancer.Ingress[i]
		if in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy {
			continue
		}
		s.LoadBalancerIPs = append(s.LoadBalancerIPs, addresses([]string{in.IP})...)
	}
	for i := range obj.Spec.Ports {
		p := &obj.Spec.Ports[i]
		proto, known := transport.Of(cmp.Or(p.Protocol, corev1.ProtocolTCP))
		number, usable := port(p.Port)
		if !known || !usable {
			continue
		}
		nodePort, _ := port(p.NodePort)
		s.Ports = append(s.Ports, Port{Name: p.Name, Protocol: proto, Number: number, NodePort: nodePort})
	}
	return s, s.ClusterIP.IsValid() || len(s.ExternalIPs)+len(s.LoadBalancerIPs) > 0 || slices.ContainsFunc(s.Ports, func(p Port) bool { return p.NodePort != 0 })
}

// maxAffinitySeconds is the maximum that the API server accepts: a day.
const maxAffinitySeconds int32 = 86400

func affinity(spec *corev1.ServiceSpec) time.Duration {
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil && *c.ClientIP.TimeoutSeconds > 0 {
		seconds = min(*c.ClientIP.TimeoutSeconds, maxAffinitySeconds)
	}
	return time.Duration(seconds) * time.Second
}

// FromSlice converts an EndpointSlice, and reports whether it can be used: its addresses must be IPv4, and it must name a Service.
func FromSlice(obj *discoveryv1.EndpointSlice) (Slice, bool) {
	s := Slice{Namespace: obj.Namespace, Service: obj.Labels[discoveryv1.LabelServiceName], Name: obj.Name}
	if obj.AddressType != discoveryv1.AddressTypeIPv4 || s.Service == "" {
		return Slice{}, false
	}
	for _, p := range obj.Ports {
		if p.Port == nil { // all ports: not usable for a Service
			continue
		}
		proto, known := transport.TCP, true
		if p.Protocol != nil {
			proto, known = transport.Of(cmp.Or(*p.Protocol, corev1.ProtocolTCP))
		}
		number, usable := port(*p.Port)
		if !known || !usable {
			continue
		}
		sp := SlicePort{Protocol: proto, Number: number}
		if p.Name != nil {
			sp.Name = *p.Name
		}
		s.Ports = append(s.Ports, sp)
	}
	for i := range obj.Endpoints {
		if e, ok := endpoint(&obj.Endpoints[i]); ok {
			s.Endpoints = append(s.Endpoints, e)
		}
	}
	return s, true
}

func endpoint(obj *discoveryv1.Endpoint) (SliceEndpoint, bool) {
	if len(obj.Addresses) == 0 { // several addresses belong to the same endpoint: consumers use the first
		return SliceEndpoint{}, false
	}
	ip, ok := address(obj.Addresses[0])
	if !ok {
		return SliceEndpoint{}, false
	}
	is := func(condition *bool, unknown bool) bool {
		if condition == nil {
			return unknown
		}
		return *condition
	}
	ready := is(obj.Conditions.Ready, true)
	e := SliceEndpoint{
		IP: ip, Ready: ready, Serving: is(obj.Conditions.Serving, true), Terminating: is(obj.Conditions.Terminating, false),
	}
	if obj.NodeName != nil {
		e.Node = *obj.NodeName
	}
	if obj.Hints != nil {
		for _, z := range obj.Hints.ForZones {
			e.Zones = append(e.Zones, z.Name)
		}
		for _, n := range obj.Hints.ForNodes {
			e.Nodes = append(e.Nodes, n.Name)
		}
	}
	return e, true
}

// address parses an IPv4 address that a host can have. Loopback and link-local addresses are not usable: a connection to them would end at
// the node itself.
func address(text string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, false
	}
	ip = ip.Unmap()
	usable := ip.Is4() && !ip.IsUnspecified() && !ip.IsLoopback() && !ip.IsMulticast() && !ip.IsLinkLocalUnicast() &&
		ip != netip.AddrFrom4([4]byte{255, 255, 255, 255})
	return ip, usable
}

func addresses(texts []string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		if ip, ok := address(text); ok && !slices.Contains(list, ip) {
			list = append(list, ip)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// noClient returns a range that contains no client, for use if none of the given ranges is usable.
func noClient() netip.Prefix { return netip.MustParsePrefix("255.255.255.255/32") }

// ranges parses IPv4 ranges. It returns none, which means no limit, if one of them contains all addresses. If ranges are given and none is
// usable, no client is allowed. The API server accepts spaces around ranges.
func ranges(texts []string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || !p.Addr().Is4() {
			continue
		}
		if p.Bits() == 0 {
			return nil
		}
		if p = p.Masked(); !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	if len(list) == 0 && len(texts) > 0 {
		return []netip.Prefix{noClient()}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return list
}

func port(n int32) (uint16, bool) {
	const highest = 65535
	if n < 1 || n > highest {
		return 0, false
	}
	return uint16(n), true
}
