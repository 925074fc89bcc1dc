//go:build lab && vm

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/traffic"
)

// sctpPort is the port of Diameter.
const sctpPort = 3868

// Pods reach each other by SCTP, directly and through a Service, as far as NetworkPolicies for SCTP ports allow. The test runs in the
// virtual machine: the kernel needs SCTP and Open vSwitch's module, which tracks SCTP.
func TestSCTP(t *testing.T) {
	s := newPolicyScene(t, "sctp")
	for _, p := range []*lab.Pod{s.server, s.far} {
		for _, number := range []uint16{sctpPort, sctpPort + 1} {
			sourceServer, err := traffic.NewSCTPSourceServer(p.Netns, p.Name, port(p.IPs[0], number))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = sourceServer.Close() })
		}
	}
	services := &serviceScene{cluster: s.cluster, client: s.client}
	sctp, name, number := corev1.ProtocolSCTP, "diameter", int32(sctpPort)
	made := services.service(t, "sctp", func(o *corev1.Service) {
		o.Spec.Ports = []corev1.ServicePort{{Name: name, Protocol: sctp, Port: 80, TargetPort: intstr.FromInt32(number)}}
	})
	services.endpoints(t, "sctp", "sctp", []discoveryv1.EndpointPort{{Name: &name, Protocol: &sctp, Port: &number}}, at(s.server))
	vip, direct, other := port(netip.MustParseAddr(made.Spec.ClusterIP), 80), port(s.server.IPs[0], sctpPort), port(s.server.IPs[0], sctpPort+1)
	// The answer has the server's name, and the address that it sees: the client pod's own, also through the Service.
	reach := func(what string, from *lab.Pod, to netip.AddrPort, passes bool) {
		t.Helper()
		wait := brief
		if passes {
			wait = 2 * time.Second
		}
		await(t, what, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			answer, err := traffic.AskSCTP(ctx, from.Netns, to)
			if want := (traffic.Answer{Name: s.server.Name, Source: from.IPs[0]}); passes && (err != nil || answer != want) {
				return fmt.Errorf("%s to %s: %s, %w", from.Name, to, answer, err)
			}
			if !passes && err == nil {
				return fmt.Errorf("%s to %s is answered", from.Name, to)
			}
			return nil
		})
	}
	for _, p := range []*lab.Pod{s.near, s.far, s.otherPod} {
		for _, to := range []netip.AddrPort{direct, other, vip} {
			reach("without a policy", p, to, true)
		}
	}
	allowed := intstr.FromInt32(sctpPort)
	s.policy(t, "sctp", map[string]string{"app": "server"}, ingress(networkingv1.NetworkPolicyIngressRule{
		From:  []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(map[string]string{"app": "far"})}},
		Ports: []networkingv1.NetworkPolicyPort{{Protocol: &sctp, Port: &allowed}},
	}))
	for _, to := range []netip.AddrPort{direct, vip} {
		reach("denied by the policy", s.near, to, false)
		reach("from another namespace", s.otherPod, to, false)
		reach("allowed by the policy", s.far, to, true)
	}
	reach("at another port", s.far, other, false)
	expect(t, "by TCP at the same port of a pod", attempt{"far", s.far.Netns, port(s.server.IPs[0], sourcePort), false})
}
