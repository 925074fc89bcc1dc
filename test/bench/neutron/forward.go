package neutron

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/bench/sending"
	"weft.dev/weft/test/traffic"
)

// EchoPort is where the ends of Forwarding answer.
const EchoPort = 7777

// Lines are ways within the first node.
type Lines struct {
	Pods    *sending.Path // between pods of the tenant
	Bare    *sending.Path // between interfaces that were added to br-int by hand, with ports of the same network
	Service *sending.Path // between the same pods, by a Service
	Overlay *sending.Path // between pods of the overlay, by a Service
}

// Forwarding makes the lines.
func (s *Scene) Forwarding(ctx context.Context) (lines Lines, err error) {
	if lines.Pods, lines.Service, err = s.podLines(ctx, Tenant); err != nil {
		return lines, err
	}
	if _, lines.Overlay, err = s.podLines(ctx, Overlay); err != nil {
		return lines, err
	}
	lines.Bare, err = s.bareLine(ctx)
	return lines, err
}

// podLines makes two pods of a namespace, and a Service to the second one.
func (s *Scene) podLines(ctx context.Context, namespace string) (direct, service *sending.Path, err error) {
	var pods [2]*lab.Pod
	for i := range pods {
		spec := lab.PodSpec{Namespace: namespace, Name: fmt.Sprintf("end-%d", i), Node: s.Node(1).Name}
		var err error
		if pods[i], err = s.pod(ctx, spec); err != nil {
			return nil, nil, err
		}
	}
	at := netip.AddrPortFrom(pods[1].IPs[0], EchoPort)
	if _, err := traffic.NewEcho(pods[1].Netns, at); err != nil { // it ends with the program
		return nil, nil, err
	}
	virtual, err := s.service(ctx, service4{
		namespace: namespace, name: "echo", kind: corev1.ServiceTypeClusterIP, protocol: corev1.ProtocolUDP, ports: []int32{EchoPort}, pods: pods[1:],
	})
	if err != nil {
		return nil, nil, err
	}
	from := pods[0].Netns
	return &sending.Path{From: from, To: at}, &sending.Path{From: from, To: netip.AddrPortFrom(virtual, EchoPort)}, nil
}

// service4 is a Service with its endpoints.
type service4 struct {
	namespace, name string
	kind            corev1.ServiceType
	protocol        corev1.Protocol
	ports           []int32
	pods            []*lab.Pod
}

// service creates a Service with its EndpointSlice, for which this lab has no controller, and returns its address.
func (s *Scene) service(ctx context.Context, want service4) (netip.Addr, error) {
	namespace, name, protocol := want.namespace, want.name, want.protocol
	object := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{Type: want.kind}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if want.kind == corev1.ServiceTypeLoadBalancer {
		object.Spec.AllocateLoadBalancerNodePorts = new(false)
	}
	for _, port := range want.ports {
		at := fmt.Sprintf("p%d", port)
		object.Spec.Ports = append(object.Spec.Ports, corev1.ServicePort{Name: at, Port: port, Protocol: protocol, TargetPort: intstr.FromInt32(port)})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &at, Port: new(port), Protocol: &protocol})
	}
	for _, pod := range want.pods {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{pod.IPs[0].String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}, NodeName: new(pod.Node.Name),
		})
	}
	if err := s.create(ctx, slice, object); err != nil {
		return netip.Addr{}, err
	}
	addr, err := netip.ParseAddr(object.Spec.ClusterIP)
	if err != nil {
		return addr, fmt.Errorf("service %s/%s: %w", namespace, name, err)
	}
	return addr, nil
}

// bareLine makes two interfaces by hand.
func (s *Scene) bareLine(ctx context.Context) (*sending.Path, error) {
	node, l, b := s.Node(1), &sending.Path{}, bare{s}
	for _, name := range []string{"from", "to"} {
		port, err := b.createPort(ctx, node.Name, name)
		if err != nil {
			return nil, err
		}
		if err := plug(ctx, node, name, port); err != nil {
			return nil, err
		}
		if err := b.active(ctx, port.ID); err != nil {
			return nil, err
		}
		netns := node.Root("/run/netns/" + device(name))
		if name == "from" {
			l.From = netns
			continue
		}
		addr, err := netip.ParseAddr(port.FixedIPs[0].IPAddress)
		if err != nil {
			return nil, fmt.Errorf("port %s: %w", name, err)
		}
		l.To = netip.AddrPortFrom(addr, EchoPort)
		if _, err := traffic.NewEcho(netns, l.To); err != nil {
			return nil, err
		}
	}
	return l, nil
}
