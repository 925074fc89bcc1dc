//go:build lab

package e2e

import (
	"context"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/firstpacket"
)

// Which clients may reach a pod, for each kind of rule of a policy.
func TestPolicyIngress(t *testing.T) {
	s := newPolicyScene(t, "in")
	server := map[string]string{"app": "server"}
	from := func(peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: peers, Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(sourcePort))}}}
	}
	none, all := [3]bool{}, [3]bool{true, true, true}
	s.reach(t, "without a policy", map[uint16][3]bool{sourcePort: all, otherPort: all})

	s.policy(t, "in", server, ingress())
	s.reach(t, "default deny", map[uint16][3]bool{sourcePort: none, otherPort: none})
	n1 := s.server.Node
	expect(t, "the node to its own pod, and the pod to others",
		attempt{"the node", n1.Netns, port(s.server.IPs[0], sourcePort), true},
		attempt{"the other node", s.far.Node.Netns, port(s.server.IPs[0], sourcePort), false},
		attempt{"the server", s.server.Netns, port(s.far.IPs[0], sourcePort), true},
		attempt{"the server", s.server.Netns, port(s.near.IPs[0], sourcePort), true},
		attempt{"the server to itself", s.server.Netns, port(s.server.IPs[0], sourcePort), true})

	s.policy(t, "in", server, ingress(from(networkingv1.NetworkPolicyPeer{PodSelector: labelled(map[string]string{"app": "far"})})))
	s.reach(t, "podSelector", map[uint16][3]bool{sourcePort: {false, true, false}, otherPort: none})

	s.policy(t, "in", server, ingress(from(networkingv1.NetworkPolicyPeer{NamespaceSelector: labelled(map[string]string{corev1.LabelMetadataName: "other-namespace"})})))
	s.reach(t, "namespaceSelector", map[uint16][3]bool{sourcePort: {false, false, true}, otherPort: none})

	block := &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{netip.PrefixFrom(s.far.IPs[0], 32).String()}}
	s.policy(t, "in", server, ingress(from(networkingv1.NetworkPolicyPeer{IPBlock: block})))
	s.reach(t, "ipBlock with except", map[uint16][3]bool{sourcePort: {true, false, true}, otherPort: none})

	s.policy(t, "in", server, ingress(networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("other"))}}}))
	s.reach(t, "a named port", map[uint16][3]bool{sourcePort: none, otherPort: all})

	s.policy(t, "in", server, ingress(networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(1)), EndPort: new(int32(sourcePort))}}}))
	s.reach(t, "a range of ports", map[uint16][3]bool{sourcePort: all, otherPort: none})

	group := map[string]string{"policy-group.network.openshift.io/host-network": ""}
	s.policy(t, "in", server, ingress(from(networkingv1.NetworkPolicyPeer{NamespaceSelector: labelled(group)})))
	other := attempt{"the other node", s.far.Node.Netns, port(s.server.IPs[0], sourcePort), false}
	expect(t, "no namespace has the label of the nodes' namespace", other)
	s.hostNetwork(t, group)
	other.passes = true
	expect(t, "the nodes' namespace has the label", other)
	s.reach(t, "which is no pod's", map[uint16][3]bool{sourcePort: none, otherPort: none})

	s.drop(t, "in")
	s.reach(t, "without a policy again", map[uint16][3]bool{sourcePort: all, otherPort: all})
}

// Which destinations a pod may reach, also through a Service: the endpoint counts.
func TestPolicyEgress(t *testing.T) {
	s := newPolicyScene(t, "out")
	services := &serviceScene{cluster: s.cluster, client: s.client}
	ip := services.simple(t, "out", nil, at(s.server))
	for _, from := range []*lab.Pod{s.near, s.far} {
		settles(t, from.Netns, port(ip, 80), s.server.Name)
	}
	// A Service with an endpoint outside of the pods' network: packets to this endpoint do not pass the switch a second time.
	host := s.far.Node
	sourceServerAt(t, host.Netns, "host", port(host.IP, sourcePort))
	outside := services.simple(t, "out-host", nil, endpoint{host.IP, host.Name, at(s.server).conditions})
	settles(t, s.far.Netns, port(outside, 80), "host")
	far := map[string]string{"app": "far"}
	reach := func(what string, direct, other, byService, toHost bool) {
		t.Helper()
		expect(t, what,
			attempt{"far", s.far.Netns, port(s.server.IPs[0], sourcePort), direct},
			attempt{"far", s.far.Netns, port(s.server.IPs[0], otherPort), other},
			attempt{"far, by the Service", s.far.Netns, port(ip, 80), byService},
			attempt{"far, by the Service of a host", s.far.Netns, port(outside, 80), toHost},
			attempt{"near", s.near.Netns, port(ip, 80), true},
			attempt{"the server to far", s.server.Netns, port(s.far.IPs[0], sourcePort), true})
	}
	deny := networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}}
	s.policy(t, "out", far, deny)
	reach("egress is denied, and answers pass", false, false, false, false)

	allow := deny
	allow.Egress = []networkingv1.NetworkPolicyEgressRule{{
		To:    []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(map[string]string{"app": "server"})}},
		Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(sourcePort))}},
	}}
	s.policy(t, "out", far, allow)
	reach("egress to the endpoint is allowed", true, false, true, false)

	toService := deny
	toService.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: ip.String() + "/32"}}}}}
	s.policy(t, "out", far, toService)
	reach("egress to the Service's address is allowed, which is no endpoint's", false, false, false, false)
	toService.Egress[0].To[0].IPBlock.CIDR = host.IP.String() + "/32"
	s.policy(t, "out", far, toService)
	reach("egress to the host is allowed", false, false, false, true)
	s.drop(t, "out")
	reach("without a policy again", true, true, true, true)

	closed := networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}}
	s.policy(t, "out", map[string]string{"app": "server"}, closed)
	expect(t, "only the server itself",
		attempt{"near", s.near.Netns, port(ip, 80), false},
		attempt{"the server", s.server.Netns, port(s.near.IPs[0], sourcePort), false},
		attempt{"the server to itself, by the Service", s.server.Netns, port(ip, 80), true},
		attempt{"the node", s.server.Node.Netns, port(s.server.IPs[0], sourcePort), true})
}

// A pod's status with the address of another node's pod does not make policies allow that pod.
func TestPolicyRemoteStatus(t *testing.T) {
	s := newPolicyScene(t, "status")
	ghost := map[string]string{"app": "ghost"}
	s.policy(t, "status", map[string]string{"app": "server"}, ingress(networkingv1.NetworkPolicyIngressRule{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: labelled(ghost)}},
	}))
	s.reach(t, "no pod has the label", map[uint16][3]bool{sourcePort: {}})
	pods := s.client.CoreV1().Pods("default")
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "status-ghost", Labels: ghost}, Spec: corev1.PodSpec{
		NodeName: "former", Containers: []corev1.Container{{Name: "c", Image: "none"}},
	}}
	made, err := pods.Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pods.Delete(context.Background(), made.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Error(err)
		}
	})
	ip := s.otherPod.IPs[0].String()
	made.Status.Phase, made.Status.PodIP, made.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	if _, err := pods.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The agent receives changes of pods in order: once it has this one, it has the status.
	patch := []byte(`{"metadata":{"labels":{"app":"ghost"}}}`)
	if _, err := pods.Patch(t.Context(), s.far.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.reach(t, "a pod with the label, and a status with the address of the pod in the other namespace", map[uint16][3]bool{sourcePort: {false, true, false}})
}

// An isolated pod receives and sends no denied packet from its first moment on, whatever happens.
func TestPolicyIsolatesFirst(t *testing.T) {
	c := cluster(t)
	byPolicies(t, c)
	report, err := firstpacket.Run(t.Context(), c, *starts)
	t.Log(report.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, leak := range report.Leaks {
		t.Error(leak)
	}
	if report.Starts < *starts {
		t.Errorf("%d pods started, want %d", report.Starts, *starts)
	}
}
