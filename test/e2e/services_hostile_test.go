//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"weft.dev/weft/test/traffic"
)

// A user who may write Services names foreign addresses in them: of a node, a pod, the gateway, the Services themselves, another Service.
// None of these is redirected, and all remain reachable.
func TestHostileServices(t *testing.T) {
	s := newServiceScene(t, "hostile")
	startSourceServer(t, s.near.Netns, "thief", sourcePort)
	n1, n2 := s.cluster.Node(1), s.cluster.Node(2)
	startSourceServer(t, n1.Netns, "node", 80)
	startSourceServer(t, s.there.Netns, "victim", 80)
	external, made := "203.0.113.40", time.Now()
	victim := port(s.simple(t, "victim", func(o *corev1.Service) { o.Spec.ExternalIPs = []string{external} }, at(s.there)), 80)
	settles(t, s.here.Netns, victim, "there")
	settles(t, s.here.Netns, port(netip.MustParseAddr(external), 80), "there")
	gateway := gatewayOf(s.here).IP
	watch := watchFlows(t, n1)
	// a- sorts before victim by name, and is younger by at least a second, because objects' ages are in seconds.
	await(t, "a later timestamp", func(context.Context) error {
		if !time.Now().After(made.Add(2 * time.Second)) {
			return errors.New("the timestamp is the same")
		}
		return nil
	})
	thief := s.service(t, "a-thief", func(o *corev1.Service) {
		o.Spec.ExternalIPs = []string{
			external, victim.Addr().String(), "172.30.0.1", n1.IP.String(), n2.IP.String(), gateway.String(), s.there.IPs[0].String(), "203.0.113.41",
		}
	})
	s.endpoints(t, "a-thief", "a-thief", endpointPorts(sourcePort), at(s.near))
	settles(t, s.here.Netns, port(netip.MustParseAddr(thief.Spec.ClusterIP), 80), "thief")
	settles(t, s.here.Netns, port(netip.MustParseAddr("203.0.113.41"), 80), "thief")
	for _, honest := range []struct {
		what string
		to   netip.AddrPort
		name string
	}{
		{"the victim's cluster address", victim, "there"},
		{"the victim's external address", port(netip.MustParseAddr(external), 80), "there"},
		{"a pod's address", port(s.there.IPs[0], 80), "victim"},
	} {
		for range 10 {
			for _, network := range []string{"tcp", "udp"} {
				if answer, err := traffic.Ask(t.Context(), s.here.Netns, network, honest.to); err != nil || answer.Name != honest.name {
					t.Errorf("%s by %s: %s, %v", honest.what, network, answer, err)
				}
			}
		}
	}
	if err := watch.Check(t.Context(), nil); err != nil {
		t.Error(err)
	}
	out := mustRun(t, n1.Enter("ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "dump-flows", "br0", "table=25"))
	for _, ip := range []string{n1.IP.String(), n2.IP.String(), gateway.String(), s.there.IPs[0].String()} {
		if strings.Contains(out, "nw_dst="+ip+",") {
			t.Errorf("the switch treats %s as a Service", ip)
		}
	}
	said := logOf(t, s.cluster, "n1/weft-agent")
	for _, ip := range []string{external, n1.IP.String(), s.there.IPs[0].String(), "172.30.0.1"} {
		if !strings.Contains(said, "of "+ip) {
			t.Errorf("%s is not served, and no event reports it", ip)
		}
	}
}

// An object of any size that the API server accepts does not block others: these are served meanwhile. What a node refuses is reported.
func TestHugeService(t *testing.T) {
	s := newServiceScene(t, "huge")
	other := port(s.simple(t, "modest", nil, at(s.here)), 80)
	settles(t, s.near.Netns, other, "here")
	// kube-proxy programs all of it, in nftables, where these numbers are cheap.
	const ports, addresses, endpoints = 200, 60, 900
	s.service(t, "huge", func(o *corev1.Service) {
		o.Spec.Ports = nil
		for i := range ports {
			o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolTCP, Port: int32(1000 + i)})
		}
		for i := range addresses {
			o.Spec.ExternalIPs = append(o.Spec.ExternalIPs, fmt.Sprintf("203.0.113.%d", 100+i))
		}
	})
	var list []endpoint
	for i := range endpoints {
		list = append(list, endpoint{netip.AddrFrom4([4]byte{192, 0, 2 + byte(i/250), byte(1 + i%250)}), "n9", at(s.here).conditions})
	}
	var all []discoveryv1.EndpointPort
	for i := range ports {
		name, number, tcp := fmt.Sprint("p", i), int32(2000+i), corev1.ProtocolTCP
		all = append(all, discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &tcp})
	}
	s.endpoints(t, "huge", "huge", all, list[:1]...)
	s.endpoints(t, "huge", "huge-p0", all[:1], list...)
	// Changes of another Service are still programmed.
	s.endpoints(t, "modest", "modest", endpointPorts(sourcePort), at(s.there))
	settles(t, s.near.Netns, other, "there")
	await(t, "an event about the endpoints left out", func(context.Context) error {
		said := logOf(t, s.cluster, "n1/weft-agent")
		for _, word := range []string{"for one Service", "of the 900 endpoints"} {
			if !strings.Contains(said, word) {
				return fmt.Errorf("no event contains %q", word)
			}
		}
		return nil
	})
	out := mustRun(t, s.cluster.Node(1).Enter("ovs-ofctl", "-O", "OpenFlow15", "dump-flows", "br0", "table=25", "--no-stats"))
	t.Logf("%s has %d flows in table 25 of one Service", s.cluster.Node(1).Name, strings.Count(out, "\n"))
	if err := ready(t.Context(), s.cluster.Node(1)); err != nil {
		t.Error(err)
	}
	late := addPod(t, s.cluster, "n1", "huge-late")
	t.Logf("a pod's ADD took %s meanwhile", late.Took)
}
