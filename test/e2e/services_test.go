//go:build lab

package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/traffic"
)

// A cluster address leads pods on every node to all endpoints, which see the pod's own address. Hosts and the outside reach the same
// endpoints by kube-proxy.
func TestServiceClusterIP(t *testing.T) {
	s := newServiceScene(t, "cip")
	vip := port(s.simple(t, "cip", nil, at(s.here), at(s.there)), 80)
	for _, p := range []*lab.Pod{s.near, s.far} {
		settles(t, p.Netns, vip, "here", "there")
		for _, network := range []string{"tcp", "udp"} {
			const times = 60
			count := tally(t, p.Netns, network, vip, times)
			here, there := traffic.Answer{Name: "here", Source: p.IPs[0]}, traffic.Answer{Name: "there", Source: p.IPs[0]}
			// Of 60 fair choices, fewer than 10 for one side occur once in ten million runs.
			if count[here] < 10 || count[there] < 10 || len(count) != 2 {
				t.Errorf("%s from %s: %v", network, p.Name, count)
			}
		}
	}
	for _, n := range s.cluster.Nodes() {
		settles(t, n.Netns, vip, "here", "there")
	}
	// A pod that is an endpoint itself reaches the other endpoint, and itself.
	settles(t, s.here.Netns, vip, "here", "there")
	large, err := traffic.NewSink(s.there.Netns, port(s.there.IPs[0], 8081))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = large.Close() }()
	number := int32(8081)
	sink := s.service(t, "cip-sink", nil)
	s.endpoints(t, "cip-sink", "cip-sink", endpointPorts(number), at(s.there))
	to := port(netip.MustParseAddr(sink.Spec.ClusterIP), 80)
	await(t, "a large transfer", func(ctx context.Context) error {
		transfer, err := traffic.Send(ctx, s.near.Netns, to, 4<<20)
		if err == nil && transfer.Source != s.near.IPs[0] {
			return fmt.Errorf("the source is %s", transfer.Source)
		}
		return err
	})
}

// A pod may reach an endpoint from one port by the endpoint's own address and by several Services' at the same time, in any order,
// although all these connections would look the same to the endpoint. (The userspace datapath keeps only connections through Services
// apart, and those that existed before.)
func TestServicesFromOnePort(t *testing.T) {
	s := newServiceScene(t, "oneport")
	for _, endpoint := range []*lab.Pod{s.here, s.there} {
		name := "oneport-" + endpoint.Name
		one, two := port(s.simple(t, name+"-one", nil, at(endpoint)), 80), port(s.simple(t, name+"-two", nil, at(endpoint)), 80)
		direct := port(endpoint.IPs[0], sourcePort)
		for _, to := range []netip.AddrPort{one, two, direct} {
			settles(t, s.near.Netns, to, map[*lab.Pod]string{s.here: "here", s.there: "there"}[endpoint])
		}
		orders := [][]netip.AddrPort{{direct, one, two}, {one, two}}
		if s.cluster.Datapath == plan.DatapathSystem {
			orders = append(orders, []netip.AddrPort{one, direct, two}, []netip.AddrPort{one, two, direct})
		}
		for i, order := range orders {
			for _, network := range []string{"tcp", "udp"} {
				s.meet(t, network, uint16(40000+100*i), order) // far apart: where two would look the same, the switch takes a port nearby
			}
		}
	}
}

// meet opens connections from one port, in order, and sends requests on all of them.
func (s *serviceScene) meet(t *testing.T, network string, from uint16, order []netip.AddrPort) {
	t.Helper()
	var open []*traffic.Conn
	for _, to := range order {
		conn, err := traffic.DialFrom(t.Context(), s.near.Netns, network, from, to)
		if err != nil {
			t.Errorf("by %s from port %d to %v: %v", network, from, order, err)
			return
		}
		defer func() { _ = conn.Close() }()
		open = append(open, conn)
		for i, earlier := range open { // earlier connections continue
			if answer, err := earlier.Ask(); err != nil || answer.Source != s.near.IPs[0] {
				t.Errorf("by %s from port %d to %v: once %s is reached, %s answers %v, %v", network, from, order, to, order[i], answer, err)
			}
		}
	}
}

// Each port of a Service has its own endpoints; a named target port may have another number on each of them.
func TestServicePorts(t *testing.T) {
	s := newServiceScene(t, "ports")
	startSourceServer(t, s.here.Netns, "here-named", 9001)
	startSourceServer(t, s.there.Netns, "there-named", 9002)
	made := s.service(t, "ports", func(o *corev1.Service) {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: "named", Protocol: corev1.ProtocolTCP, Port: 81, TargetPort: intstr.FromString("web")})
	})
	named := func(number int32) []discoveryv1.EndpointPort {
		tcp, name := corev1.ProtocolTCP, "named"
		return append(endpointPorts(sourcePort), discoveryv1.EndpointPort{Name: &name, Protocol: &tcp, Port: &number})
	}
	s.endpoints(t, "ports", "ports-1", named(9001), at(s.here))
	s.endpoints(t, "ports", "ports-2", named(9002), at(s.there))
	ip := netip.MustParseAddr(made.Spec.ClusterIP)
	settles(t, s.near.Netns, port(ip, 80), "here", "there")
	answered := map[string]int{}
	for answer, times := range tally(t, s.near.Netns, "tcp", port(ip, 81), 40) {
		answered[answer.Name] += times
	}
	if answered["here-named"] == 0 || answered["there-named"] == 0 || len(answered) != 2 {
		t.Errorf("the named port: answers %v", answered)
	}
	// A port that is not the Service's is not answered.
	if answer, err := traffic.Ask(t.Context(), s.near.Netns, "tcp", port(ip, 82)); err == nil {
		t.Errorf("a port that the Service does not have answers: %s", answer)
	}
}

// A pod reaches itself by its Service.
func TestServiceHairpin(t *testing.T) {
	s := newServiceScene(t, "hairpin")
	vip := port(s.simple(t, "hairpin", nil, at(s.here)), 80)
	settles(t, s.here.Netns, vip, "here")
	settles(t, s.near.Netns, vip, "here")
	settles(t, s.far.Netns, vip, "here")
}

// Node ports answer on every node's address: for pods by the switch, for the outside by kube-proxy. With externalTrafficPolicy Local,
// traffic to another node's address counts as traffic from outside there.
func TestServiceNodePort(t *testing.T) {
	s := newServiceScene(t, "nodeport")
	open := s.service(t, "nodeport", func(o *corev1.Service) { o.Spec.Type = corev1.ServiceTypeNodePort })
	s.endpoints(t, "nodeport", "nodeport", endpointPorts(sourcePort), at(s.here), at(s.there))
	local := s.service(t, "nodeport-local", func(o *corev1.Service) {
		o.Spec.Type, o.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
		// One port for both protocols gives two node ports; below, the test finds out which is which.
		o.Spec.Ports = o.Spec.Ports[:1]
	})
	s.endpoints(t, "nodeport-local", "nodeport-local", endpointPorts(sourcePort)[:1], at(s.there))
	n1, n2 := s.cluster.Node(1), s.cluster.Node(2)
	ports := map[string]uint16{}
	for _, p := range open.Spec.Ports {
		ports[p.Name] = uint16(p.NodePort)
	}
	answeredBy := func(from, network string, to netip.AddrPort, want ...string) {
		t.Helper()
		await(t, fmt.Sprintf("%s %s answered by %v", network, to, want), func(ctx context.Context) error {
			names := map[string]bool{}
			for range 12 {
				answer, err := traffic.Ask(ctx, from, network, to)
				if err != nil {
					return err
				}
				names[answer.Name] = true
			}
			if len(names) != len(want) || !names[want[0]] {
				return fmt.Errorf("%v answer", names)
			}
			return nil
		})
	}
	for _, network := range []string{"tcp", "udp"} {
		for _, n := range []lab.Node{n1, n2} {
			for _, from := range []string{s.near.Netns, s.far.Netns, s.cluster.Outside.Netns} {
				answeredBy(from, network, port(n.IP, ports[network]), "here", "there")
			}
		}
	}
	answer, err := traffic.Ask(t.Context(), s.near.Netns, "tcp", port(n1.IP, ports["tcp"]))
	if err != nil || answer.Source != s.near.IPs[0] {
		t.Errorf("a pod at its node's port: %s, %v", answer, err)
	}
	to := uint16(local.Spec.Ports[0].NodePort)
	answeredBy(s.near.Netns, "tcp", port(n1.IP, to), "there") // from within, all endpoints count
	answeredBy(s.near.Netns, "tcp", port(n2.IP, to), "there")
	answeredBy(s.cluster.Outside.Netns, "tcp", port(n2.IP, to), "there")
	silent(t, s.cluster.Outside.Netns, "tcp", port(n1.IP, to))
	silent(t, s.far.Netns, "tcp", port(n1.IP, to)) // like traffic from outside: n1 has no endpoint
	answer, err = traffic.Ask(t.Context(), s.cluster.Outside.Netns, "tcp", port(n2.IP, to))
	if err != nil || answer.Source != s.cluster.Outside.IP {
		t.Errorf("policy Local, where the source is preserved: %s, %v", answer, err)
	}
}

// External addresses and a load balancer's are served within the cluster, the latter only for the allowed clients.
func TestServiceExternalAddresses(t *testing.T) {
	s := newServiceScene(t, "external")
	external, balanced := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.20")
	made := s.service(t, "external", func(o *corev1.Service) {
		o.Spec.Type, o.Spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, []string{external.String()}
		o.Spec.LoadBalancerSourceRanges = []string{s.near.IPs[0].String() + "/32"}
	})
	made.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: balanced.String()}}
	if _, err := s.client.CoreV1().Services("default").UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.endpoints(t, "external", "external", endpointPorts(sourcePort), at(s.here), at(s.there))
	settles(t, s.near.Netns, port(external, 80), "here", "there")
	settles(t, s.far.Netns, port(external, 80), "here", "there")
	settles(t, s.near.Netns, port(balanced, 80), "here", "there")
	silent(t, s.far.Netns, "tcp", port(balanced, 80))
	answer, err := traffic.Ask(t.Context(), s.near.Netns, "tcp", port(balanced, 80))
	if err != nil || answer.Source != s.near.IPs[0] {
		t.Errorf("%s, %v", answer, err)
	}
}

// sticky gives a Service session affinity with a timeout in seconds.
func sticky(seconds int32) func(*corev1.Service) {
	return func(o *corev1.Service) {
		o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		o.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

// With affinity a client stays with its endpoint, separately for each protocol, until the endpoint is removed.
func TestServiceAffinity(t *testing.T) {
	s := newServiceScene(t, "sticky")
	const seconds = 10 // longer than a busy machine takes from one request to the next
	vip := port(s.simple(t, "sticky", sticky(seconds), at(s.here), at(s.there)), 80)
	n1 := s.cluster.Node(1)
	learned := func() (int, error) {
		out, err := run(t.Context(), n1.Enter("ovs-ofctl", "-O", "OpenFlow15", "dump-flows", "br0", "table=24"))
		return strings.Count(out, fmt.Sprintf("idle_timeout=%d,", seconds)), err
	}
	for _, network := range []string{"tcp", "udp"} {
		await(t, network+" served", func(ctx context.Context) error {
			_, err := traffic.Ask(ctx, s.near.Netns, network, vip)
			return err
		})
		count := tally(t, s.near.Netns, network, vip, 30)
		if len(count) != 1 {
			t.Errorf("%s: one client has %v", network, count)
		}
	}
	await(t, "learned affinity flows expired", func(context.Context) error {
		if n, err := learned(); err != nil || n > 0 {
			return fmt.Errorf("affinity of %d clients is still learned: %w", n, err)
		}
		return nil
	})
	first := tally(t, s.near.Netns, "tcp", vip, 1)
	left, want := at(s.there), "there"
	for answer := range first {
		if answer.Name == "there" {
			left, want = at(s.here), "here"
		}
	}
	s.endpoints(t, "sticky", "sticky", endpointPorts(sourcePort), left)
	settles(t, s.near.Netns, vip, want)
}

// internalTrafficPolicy Local keeps traffic to a cluster address on the node: without an endpoint there, it is dropped.
func TestServiceInternalTrafficPolicy(t *testing.T) {
	s := newServiceScene(t, "internal")
	local := corev1.ServiceInternalTrafficPolicyLocal
	vip := port(s.simple(t, "internal", func(o *corev1.Service) { o.Spec.InternalTrafficPolicy = &local }, at(s.here), at(s.there)), 80)
	settles(t, s.near.Netns, vip, "here")
	settles(t, s.far.Netns, vip, "there")
	settles(t, s.cluster.Node(2).Netns, vip, "there")
	s.endpoints(t, "internal", "internal", endpointPorts(sourcePort), at(s.there))
	silent(t, s.near.Netns, "tcp", vip)
	silent(t, s.cluster.Node(1).Netns, "tcp", vip) // kube-proxy does the same
	settles(t, s.far.Netns, vip, "there")
}

// Ready endpoints are used; without any, those that serve while they terminate; without these, connections are refused at once. A
// connection to a terminating endpoint continues.
func TestServiceEndpointConditions(t *testing.T) {
	s := newServiceScene(t, "ready")
	vip := port(s.simple(t, "ready", nil, at(s.here).leaving(), at(s.there)), 80)
	n1 := s.cluster.Node(1)
	set := func(list ...endpoint) { s.endpoints(t, "ready", "ready", endpointPorts(sourcePort), list...) }
	settles(t, s.near.Netns, vip, "there")
	kept, err := traffic.Dial(t.Context(), s.near.Netns, "tcp", vip)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kept.Close() }()
	if _, err := kept.Ask(); err != nil {
		t.Fatal(err)
	}
	set(at(s.here).leaving(), at(s.there).leaving())
	for _, from := range []string{s.near.Netns, s.far.Netns, n1.Netns} {
		settles(t, from, vip, "here", "there")
	}
	set(at(s.here), at(s.there).unready())
	settles(t, s.near.Netns, vip, "here")
	if answer, err := kept.Ask(); err != nil || answer.Name != "there" {
		t.Errorf("a connection to an endpoint that is no longer ready: %s, %v", answer, err)
	}
	set(at(s.here).unready(), at(s.there).unready())
	refused(t, s.near.Netns, vip, "tcp", "udp")
	refused(t, s.far.Netns, vip, "tcp", "udp")
	refused(t, n1.Netns, vip, "tcp")
	if answer, err := kept.Ask(); err != nil || answer.Name != "there" {
		t.Errorf("an established connection of a Service that has no endpoint now: %s, %v", answer, err)
	}
	set(at(s.here)) // as in a Service that publishes addresses that are not ready
	settles(t, s.near.Netns, vip, "here")
}

// A Service without endpoints, or without any slice, refuses every time: the kernel's limit of ICMP errors is not reached.
func TestServiceWithoutEndpoints(t *testing.T) {
	s := newServiceScene(t, "none")
	made := s.service(t, "none", func(o *corev1.Service) { o.Spec.ExternalIPs = []string{"203.0.113.30"} })
	for _, ip := range []string{made.Spec.ClusterIP, "203.0.113.30"} {
		vip := port(netip.MustParseAddr(ip), 80)
		refused(t, s.near.Netns, vip, "tcp", "udp")
		for range 20 {
			if _, err := traffic.Ask(t.Context(), s.near.Netns, "tcp", vip); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: %v, want a refusal", vip, err)
			}
		}
	}
}

// Services lead to the API server, and to programs on hosts' own addresses.
func TestServiceEndpointsOutsideThePodNetwork(t *testing.T) {
	s := newServiceScene(t, "hosts")
	for _, p := range []*lab.Pod{s.near, s.far} {
		await(t, "the API server from "+p.Name, func(context.Context) error {
			var conn net.Conn
			err := traffic.In(p.Netns, func() (err error) {
				conn, err = net.DialTimeout("tcp", "172.30.0.1:443", 3*time.Second)
				return err
			})
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // that it is an API server is what is asked
			if err := secure.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
				return err
			}
			return secure.Handshake()
		})
	}
	n1, n2 := s.cluster.Node(1), s.cluster.Node(2)
	// On the address itself: a program that answers UDP on any address of the host would answer from the gateway's.
	sourceServerAt(t, n1.Netns, "host1", port(n1.IP, sourcePort))
	sourceServerAt(t, n2.Netns, "host2", port(n2.IP, sourcePort))
	ready := at(s.here).conditions
	vip := port(s.simple(t, "hosts", nil, endpoint{n1.IP, n1.Name, ready}, endpoint{n2.IP, n2.Name, ready}), 80)
	for _, from := range []string{s.near.Netns, s.far.Netns, n1.Netns} {
		settles(t, from, vip, "host1", "host2")
	}
}

// The switch ignores headless Services and ExternalName Services, and leaves to the host the address of a Service that another proxy serves.
func TestServicesThatAreNotServed(t *testing.T) {
	s := newServiceScene(t, "headless")
	watch := watchFlows(t, s.cluster.Node(1))
	s.service(t, "headless", func(o *corev1.Service) { o.Spec.ClusterIP = corev1.ClusterIPNone })
	s.service(t, "named", func(o *corev1.Service) {
		o.Spec.Type, o.Spec.ExternalName, o.Spec.Ports = corev1.ServiceTypeExternalName, "example.com", nil
	})
	proxied := s.service(t, "proxied", func(o *corev1.Service) {
		o.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	})
	for _, name := range []string{"headless", "named", "proxied"} {
		s.endpoints(t, name, name, endpointPorts(sourcePort), at(s.here))
	}
	// A served Service is created after them: when it works, they have been processed.
	vip := port(s.simple(t, "headed", nil, at(s.here)), 80)
	settles(t, s.near.Netns, vip, "here")
	if err := watch.Check(t.Context(), nil); err != nil {
		t.Error(err)
	}
	out := mustRun(t, s.cluster.Node(1).Enter("ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "dump-flows", "br0", "table=25"))
	for line := range strings.SplitSeq(out, "\n") {
		if strings.Contains(line, "nw_dst") && !strings.Contains(line, "nw_dst=172.30.0.1,") && !strings.Contains(line, "nw_dst="+vip.Addr().String()+",") {
			t.Errorf("a flow of an object that is not served as a Service: %s", line)
		}
	}
	out = mustRun(t, s.cluster.Node(1).Enter("ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "dump-flows", "br0", "table=60"))
	if !strings.Contains(out, "nw_dst="+proxied.Spec.ClusterIP+" ") {
		t.Errorf("no flow leaves the address of the Service of another proxy, %s, to the host:\n%s", proxied.Spec.ClusterIP, out)
	}
}
