package objects

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/neutron/cloud"
)

// BalancerClass is the loadBalancerClass of Services that Octavia serves; Services without a class are served too.
const BalancerClass = "weft.dev/octavia"

// Balanced reports whether a Service requests a load balancer of Octavia.
func Balanced(s *corev1.Service) bool {
	class := s.Spec.LoadBalancerClass
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && (class == nil || *class == BalancerClass) && s.DeletionTimestamp.IsZero()
}

// mostListeners limits the ports of a Service. Octavia changes one listener after the other, each in three steps of about a second.
const mostListeners = 64

// BalancerName is stackube's name of a Service's load balancer in OpenStack.
func BalancerName(namespace, name string) string { return "stackube_" + namespace + "_" + name }

// BalancerOwner is the owner in the marks of a Service's load balancer.
func BalancerOwner(s *corev1.Service) string { return "service/" + string(s.UID) }

// Balancer compiles the load balancer of a Service whose pods are on a network. The error names the field of the Service.
func Balancer(
	s *corev1.Service, all []discoveryv1.EndpointSlice, n *stackubev1.Network, held *cloud.HeldNetwork, project string,
) (cloud.Balancer, error) {
	id, _, err := PodSubnet(n, held)
	if err != nil {
		return cloud.Balancer{}, err
	}
	want := cloud.Balancer{
		Owner: BalancerOwner(s), Name: BalancerName(s.Namespace, s.Name), Project: project, Subnet: id,
		SourceAffinity: s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP, AnyFloating: true,
	}
	if want.FloatingIP, err = floatingOf(s); err != nil {
		return cloud.Balancer{}, err
	}
	if len(s.Spec.Ports) > mostListeners {
		return cloud.Balancer{}, fmt.Errorf("spec.ports: %d given, at most %d are served: split the Service", len(s.Spec.Ports), mostListeners)
	}
	var inside netip.Prefix
	if i := slices.IndexFunc(held.Held, func(n subnets.Subnet) bool { return n.ID == id }); i >= 0 {
		inside, _ = netip.ParsePrefix(held.Held[i].CIDR) // OpenStack has checked it; the zero value contains nothing
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		switch p.Protocol {
		case "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			return cloud.Balancer{}, fmt.Errorf("spec.ports[%d].protocol: %q is none of TCP, UDP, SCTP", i, p.Protocol)
		}
		l := cloud.Listener{Protocol: string(p.Protocol), Port: int(p.Port)}
		if l.Protocol == "" {
			l.Protocol = string(corev1.ProtocolTCP)
		}
		l.Members = members(all, p.Name, l.Protocol, inside)
		want.Listeners = append(want.Listeners, l)
	}
	return want, nil
}

// floatingOf returns the address that the Service requests, as stackube's users do by externalIPs; zero: any.
func floatingOf(s *corev1.Service) (netip.Addr, error) {
	text, field := s.Spec.LoadBalancerIP, "spec.loadBalancerIP"
	if text == "" && len(s.Spec.ExternalIPs) > 0 {
		if len(s.Spec.ExternalIPs) > 1 {
			return netip.Addr{}, fmt.Errorf("spec.externalIPs: %d given, at most one is served", len(s.Spec.ExternalIPs))
		}
		text, field = s.Spec.ExternalIPs[0], "spec.externalIPs[0]"
	}
	if text == "" {
		return netip.Addr{}, nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is4() {
		return netip.Addr{}, fmt.Errorf("%s: %q is not an IPv4 address", field, text)
	}
	return addr, nil
}

// members are the ready endpoints of a port in the subnet, each once, sorted.
func members(all []discoveryv1.EndpointSlice, port, protocol string, inside netip.Prefix) []cloud.Member {
	var found []cloud.Member
	for i := range all {
		number := portOf(&all[i], port, protocol)
		if number == 0 {
			continue
		}
		for _, addr := range readyIn(&all[i], inside) {
			found = append(found, cloud.Member{Addr: addr, Port: number})
		}
	}
	slices.SortFunc(found, func(a, b cloud.Member) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(found)
}

// portOf returns the number of a port in a slice of IPv4 addresses; 0 if it has none. The API server accepts slices with any number.
func portOf(slice *discoveryv1.EndpointSlice, port, protocol string) int {
	if slice.AddressType != discoveryv1.AddressTypeIPv4 {
		return 0
	}
	const most = 65535
	number := 0
	for _, p := range slice.Ports {
		if p.Port != nil && *p.Port > 0 && *p.Port <= most && value(p.Name) == port && (value(p.Protocol) == "" || string(value(p.Protocol)) == protocol) {
			number = int(*p.Port)
		}
	}
	return number
}

// readyIn returns the addresses of ready endpoints in a range.
func readyIn(slice *discoveryv1.EndpointSlice, inside netip.Prefix) []netip.Addr {
	var ready []netip.Addr
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		for _, text := range e.Addresses {
			if addr, err := netip.ParseAddr(text); err == nil && inside.Contains(addr) {
				ready = append(ready, addr)
			}
		}
	}
	return ready
}

func value[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}
