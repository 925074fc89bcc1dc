//go:build lab

package e2e

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/traffic"
)

// Pods reach neither a cloud's metadata service, except its name server, nor the TCP ports of nodes that serve ignition files: neither
// directly, nor by a Service that leads there, nor by a node port of another node. The node itself reaches all of these, and pods reach other
// ports of nodes.
func TestClosedToPods(t *testing.T) {
	s := newServiceScene(t, "closed")
	n1, n2 := s.cluster.Node(1), s.cluster.Node(2)
	metadata := netip.MustParseAddr("169.254.169.254")
	mustRun(t, n2.Enter("ip", "addr", "add", metadata.String()+"/32", "dev", "lo"))
	t.Cleanup(func() {
		_, _ = run(context.Background(), n2.Enter("ip", "addr", "del", metadata.String()+"/32", "dev", "lo"))
	})
	mustRun(t, n1.Enter("ip", "route", "add", metadata.String(), "via", n2.IP.String()))
	t.Cleanup(func() {
		_, _ = run(context.Background(), n1.Enter("ip", "route", "del", metadata.String(), "via", n2.IP.String()))
	})
	sourceServerAt(t, n2.Netns, "metadata", port(metadata, 80))
	sourceServerAt(t, n2.Netns, "metadata", port(metadata, 53))
	for _, number := range []uint16{22623, 22624, 22625} {
		sourceServerAt(t, n1.Netns, n1.Name, port(n1.IP, number))
		sourceServerAt(t, n2.Netns, n2.Name, port(n2.IP, number))
	}
	ready := at(s.here).conditions
	served := map[string]*corev1.Service{}
	for name, number := range map[string]int32{"closed": 22623, "open": 22625, "closed-local": 22623, "open-local": 22625} {
		served[name] = s.service(t, name, func(o *corev1.Service) {
			o.Spec.Type = corev1.ServiceTypeNodePort
			if strings.HasSuffix(name, "-local") {
				o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}
		})
		s.endpoints(t, name, name, endpointPorts(number), endpoint{n2.IP, n2.Name, ready})
	}
	vip := func(name string) netip.AddrPort { return port(netip.MustParseAddr(served[name].Spec.ClusterIP), 80) }
	nodePort := func(at lab.Node, name string) netip.AddrPort {
		return port(at.IP, uint16(served[name].Spec.Ports[0].NodePort)) //nolint:gosec // a port
	}
	reaches := func(from string, all ...netip.AddrPort) {
		t.Helper()
		for _, to := range all {
			await(t, "an answer from "+to.String(), func(ctx context.Context) error {
				_, err := traffic.Ask(ctx, from, "tcp", to)
				return err
			})
		}
	}
	closed := []netip.AddrPort{port(metadata, 80), port(n1.IP, 22623), port(n1.IP, 22624), port(n2.IP, 22623), port(n2.IP, 22624)}
	reaches(n1.Netns, append(closed, vip("closed"), port(metadata, 53))...)
	reaches(n2.Netns, nodePort(n2, "closed"), nodePort(n2, "closed-local")) // kube-proxy serves them
	reaches(s.cluster.Outside.Netns, nodePort(n2, "open-local"), port(n2.IP, 22623))
	reaches(s.near.Netns, port(metadata, 53), port(n1.IP, 22625), port(n2.IP, 22625), vip("open"), nodePort(n1, "open"), nodePort(n2, "open-local"))
	settles(t, s.near.Netns, port(metadata, 53), "metadata") // by UDP too
	translated := []netip.AddrPort{nodePort(n2, "closed"), nodePort(n2, "closed-local")}
	for _, to := range slices.Concat(closed, translated, []netip.AddrPort{vip("closed"), nodePort(n1, "closed")}) {
		if answer, err := traffic.Ask(t.Context(), s.near.Netns, "tcp", to); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a pod that connects to %s: %s (%v), want a refusal", to, answer, err)
		}
	}
	for _, to := range translated {
		if answer, err := traffic.Ask(t.Context(), s.cluster.Outside.Netns, "tcp", to); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a host outside that connects to %s: %s (%v), want a refusal", to, answer, err)
		}
	}
	if answer, err := traffic.Ask(t.Context(), s.near.Netns, "udp", port(metadata, 80)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a pod that sends to %s: %s (%v), want a refusal", metadata, answer, err)
	}
}
