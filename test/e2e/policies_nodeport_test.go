//go:build lab

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// maskedOutside is the source address of traffic that a node masquerades for other clients than itself, on its way to the node's own
// pods.
var maskedOutside = netip.MustParseAddr("169.254.0.2") //nolint:gochecknoglobals // a constant

// Traffic from outside through a node port is judged as from outside, whichever node it enters. Traffic from a node to its own pods
// passes. A pod's packets that the host forwards with its own address are judged as from outside too.
func TestPolicyNodePort(t *testing.T) {
	s := newPolicyScene(t, "np")
	services := &serviceScene{cluster: s.cluster, client: s.client}
	open := services.service(t, "np", func(o *corev1.Service) { o.Spec.Type, o.Spec.Ports = corev1.ServiceTypeNodePort, o.Spec.Ports[:1] })
	services.endpoints(t, "np", "np", endpointPorts(sourcePort)[:1], at(s.server))
	local := services.service(t, "np-local", func(o *corev1.Service) {
		o.Spec.Type, o.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
		o.Spec.Ports = o.Spec.Ports[:1]
	})
	services.endpoints(t, "np-local", "np-local", endpointPorts(sourcePort)[:1], at(s.server))
	n1, n2 := s.cluster.Node(1), s.cluster.Node(2)
	outside, number, kept := s.cluster.Outside, uint16(open.Spec.Ports[0].NodePort), uint16(local.Spec.Ports[0].NodePort)
	round(t, n1, port(gateway(s.server.IPs[0]), roundPort), port(s.server.IPs[0], sourcePort))
	// Each check covers all of these paths: true where the server must answer.
	type ways struct{ here, other, keeping, hostHere, hostThere, otherHost, round, byPod bool }
	reach := func(what string, w ways) {
		t.Helper()
		expect(t, what,
			attempt{"outside", outside.Netns, port(n1.IP, number), w.here},
			attempt{"outside, by the other node", outside.Netns, port(n2.IP, number), w.other},
			attempt{"outside, source address preserved", outside.Netns, port(n1.IP, kept), w.keeping},
			attempt{"the node", n1.Netns, port(n1.IP, number), w.hostHere},
			attempt{"the node, by the other node", n1.Netns, port(n2.IP, number), w.hostThere},
			attempt{"the other node", n2.Netns, port(n1.IP, number), w.otherHost},
			attempt{"near, by the host and back", s.near.Netns, port(gateway(s.near.IPs[0]), roundPort), w.round},
			attempt{"near, by its node", s.near.Netns, port(n1.IP, number), w.byPod})
	}
	server := map[string]string{"app": "server"}
	all := ways{true, true, true, true, true, true, true, true}
	reach("without a policy", all)
	answer, err := traffic.Ask(t.Context(), outside.Netns, "tcp", port(n1.IP, number))
	if err != nil || answer.Source != maskedOutside {
		t.Errorf("from outside: %s, %v", answer, err)
	}
	answer, err = traffic.Ask(t.Context(), n1.Netns, "tcp", port(n1.IP, number))
	if err != nil || answer.Source != gateway(s.server.IPs[0]) {
		t.Errorf("from the node itself: %s, %v", answer, err)
	}

	s.policy(t, "np", server, ingress())
	reach("only the node itself", ways{hostHere: true})
	from := func(peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicySpec {
		return ingress(networkingv1.NetworkPolicyIngressRule{From: peers})
	}
	s.policy(t, "np", server, from(networkingv1.NetworkPolicyPeer{NamespaceSelector: labelled(nil)}))
	reach("all pods, and no address outside", ways{hostHere: true, byPod: true})
	block := func(cidr string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}
	}
	s.policy(t, "np", server, from(block(outside.IP.String()+"/32")))
	reach("the address outside, which only externalTrafficPolicy Local preserves", ways{hostHere: true, keeping: true})
	s.policy(t, "np", server, from(block(maskedOutside.String()+"/32")))
	reach("traffic that this node masquerades", ways{hostHere: true, here: true, otherHost: true, round: true})
	s.policy(t, "np", server, from(block(gateway(s.far.IPs[0]).String()+"/32")))
	reach("traffic that the other node masquerades", ways{hostHere: true, other: true, hostThere: true})
	s.policy(t, "np", server, from(block("0.0.0.0/0")))
	reach("all addresses", all)
	s.drop(t, "np")
	reach("without a policy again", all)
}

// roundPort is a port of the host that is forwarded back to a pod.
const roundPort = 4444

// round forwards pods' traffic for an address of the host to a pod, until the test ends.
func round(t *testing.T, n lab.Node, from, to netip.AddrPort) {
	t.Helper()
	rules := fmt.Sprintf(`table ip round { chain there { type nat hook prerouting priority dstnat; ip daddr %s tcp dport %d dnat to %s; }; }`, from.Addr(), from.Port(), to)
	if _, err := probe.Run(t.Context(), n.Enter("nft", rules)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := probe.Run(context.Background(), n.Enter("nft", "delete", "table", "ip", "round")); err != nil {
			t.Error(err)
		}
	})
}

// gateway is the gateway address of the subnet that contains a pod's address.
func gateway(pod netip.Addr) netip.Addr {
	const subnetBits = 23
	return netip.PrefixFrom(pod, subnetBits).Masked().Addr().Next()
}
