package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/neutron/ports"
)

// manyCombinations is a policy of the namespace blue with as many peers, and as many ports.
func manyCombinations(count int) *networkingv1.NetworkPolicy {
	rule := networkingv1.NetworkPolicyIngressRule{}
	for i := range count {
		port, protocol := intstr.FromInt32(int32(2*i+1)), corev1.ProtocolTCP
		rule.Ports = append(rule.Ports, networkingv1.NetworkPolicyPort{Port: &port, Protocol: &protocol})
		block := networkingv1.IPBlock{CIDR: fmt.Sprintf("10.%d.%d.%d/32", 1+i>>15, i>>7&255, 2*i&255)}
		rule.From = append(rule.From, networkingv1.NetworkPolicyPeer{IPBlock: &block})
	}
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "many"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, Ingress: []networkingv1.NetworkPolicyIngressRule{rule},
	}}
}

// The MAC address of a pod follows from its address. Other endpoints, such as machines in the pods' subnet, are reached by the router; without
// one, all are tried directly.
func TestEndpointsThatAreNotPods(t *testing.T) {
	service, slice := serviceOf("blue", "web", 80)
	slice.Endpoints = []discoveryv1.Endpoint{
		{Addresses: []string{"10.244.9.9"}, TargetRef: &corev1.ObjectReference{Kind: "Pod"}}, {Addresses: []string{"10.244.9.10"}}, {Addresses: []string{"192.0.2.1"}},
	}
	const router = "fa:16:3e:00:00:01"
	gateway, err := net.ParseMAC(router)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		gateway net.HardwareAddr
		want    map[string]string
	}{
		{gateway, map[string]string{"10.244.9.9": "0a:58:0a:f4:09:09", "10.244.9.10": router, "192.0.2.1": router}},
		{nil, map[string]string{"10.244.9.9": "0a:58:0a:f4:09:09", "10.244.9.10": "0a:58:0a:f4:09:0a"}},
	} {
		w := world{
			scope: scope{"blue", "blue"}, subnet: subnet{[]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, c.gateway},
			services: []corev1.Service{*service}, slices: []discoveryv1.EndpointSlice{*slice}, number: func(groupKey) uint32 { return 1 },
		}
		got := map[string]string{}
		for _, s := range w.compileServices() {
			for _, e := range s.Endpoints {
				got[e.Addr.Addr().String()] = e.MAC.String()
			}
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("with router %q: endpoints at %v, want %v", c.gateway, got, c.want)
		}
	}
}

// A connection keeps the path to its endpoint when that gets no new ones.
func TestLeavingEndpoints(t *testing.T) {
	service, slice := serviceOf("blue", "web", 80)
	ready, leaves := true, false
	slice.Endpoints = []discoveryv1.Endpoint{
		{Addresses: []string{"10.244.9.9"}, Conditions: discoveryv1.EndpointConditions{Ready: &leaves}},
		{Addresses: []string{"10.244.9.10"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
	}
	w := world{
		scope: scope{"blue", "blue"}, subnet: subnet{prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
		services: []corev1.Service{*service}, slices: []discoveryv1.EndpointSlice{*slice}, number: func(groupKey) uint32 { return 1 },
	}
	list := w.compileServices()
	if len(list) != 1 || len(list[0].Endpoints) != 1 || len(list[0].Leaving) != 1 || list[0].Leaving[0].Addr.String() != "10.244.9.9:8080" {
		t.Fatalf("compiled: %+v", list)
	}
	var flows []string
	for key := range pipeline.ServiceEntries("owner", 1, list) {
		if text := key.String(); strings.Contains(text, "table=15") && strings.Contains(text, "10.244.9.9") {
			flows = append(flows, text)
		}
	}
	if len(flows) != 2 {
		t.Errorf("flows to the endpoint that leaves: %v", flows)
	}
}

// A policy whose peers and ports combine to more flows than a node programs closes its pods, and is reported; a smaller one is in effect.
func TestPoliciesOfManyCombinations(t *testing.T) {
	for count, closed := range map[int]bool{64: false, 65: true, 15000: true} {
		details, err := json.Marshal(ports.Details{Port: "p", Network: "blue"})
		if err != nil {
			t.Fatal(err)
		}
		rec := attach.Record{
			ContainerID: "c", IfName: "eth0", PodNamespace: "blue", PodName: "web", MAC: "0a:58:0a:f4:00:05", Details: details,
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.5/16")},
		}
		w := world{
			scope: scope{"blue", "blue"}, attached: []attach.Record{rec}, pods: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web"}}},
			policies: []networkingv1.NetworkPolicy{*manyCombinations(count)},
		}
		made, _, problem := w.compile()
		if errors.Is(problem, errMatches) != closed {
			t.Errorf("%d peers and ports: %v, want it reported: %v", count, problem, closed)
		}
		pod, _, err := podOf(&rec)
		if err != nil {
			t.Fatal(err)
		}
		if flows := len(made[pod.Owner]); (flows < 100) != closed || flows > mostMatches+100 {
			t.Errorf("%d peers and ports: %d flows of the pod", count, flows)
		}
	}
}
