//go:build real

package node

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/ovn/ovntest"
)

// answers runs a server in a namespace that sends its name on each connection.
func answers(t *testing.T, space ns.NetNS, address, name string) {
	t.Helper()
	var listener net.Listener
	must(t, space.Do(func(ns.NetNS) (err error) {
		listener, err = net.Listen("tcp4", address)
		return err
	}))
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, name)
			_ = conn.Close()
		}
	}()
}

// asks connects from a namespace and returns the answer. long waits longer, for an answer that must come.
func asks(space ns.NetNS, address string, long bool) (string, error) {
	wait := 500 * time.Millisecond * ovstest.Slowness
	if long {
		wait = patience
	}
	var answer []byte
	err := space.Do(func(ns.NetNS) error {
		conn, err := net.DialTimeout("tcp4", address, wait)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		answer, err = io.ReadAll(conn)
		return err
	})
	return string(answer), err
}

// podObject creates a pod's object in the API server, in its state before the runtime's ADD.
func podObject(t *testing.T, n *served, namespace, name string, labels map[string]string) *corev1.Pod {
	t.Helper()
	c := api(t)
	must(t, client.IgnoreAlreadyExists(c.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}})))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: n.name, AutomountServiceAccountToken: new(bool), Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	must(t, c.Create(t.Context(), pod))
	t.Cleanup(func() { _ = c.Delete(context.Background(), pod, client.GracePeriodSeconds(0)) })
	return pod
}

// start creates a pod's object, attaches the pod, and writes its addresses into its status. It returns the pod with ADD's answer.
func start(t *testing.T, n *served, namespace, name string, labels map[string]string) (*ovntest.Pod, *types100.Result) {
	t.Helper()
	object := podObject(t, n, namespace, name, labels)
	pod, result := n.attach(t, namespace, name, string(object.UID))
	var addresses []corev1.PodIP
	for _, ip := range result.IPs {
		addresses = append(addresses, corev1.PodIP{IP: ip.Address.IP.String()})
	}
	text, err := json.Marshal(map[string]any{"status": map[string]any{"podIP": addresses[0].IP, "podIPs": addresses}})
	must(t, err)
	must(t, api(t).Status().Patch(t.Context(), object, client.RawPatch(types.MergePatchType, text)))
	return pod, result
}

// onlyClients creates a policy: pods with the labels receive packets from the pod with label app=client alone, at the ports; none: at all.
func onlyClients(t *testing.T, namespace, name string, labels map[string]string, ports ...networkingv1.NetworkPolicyPort) *networkingv1.NetworkPolicy {
	t.Helper()
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: labels}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}},
				Ports: ports,
			}},
		},
	}
	must(t, api(t).Create(t.Context(), policy))
	t.Cleanup(func() { _ = api(t).Delete(context.Background(), policy) })
	return policy
}

// silence lets a policy's pods send nothing, and waits until a pod does not reach an address any more.
func silence(t *testing.T, policy *networkingv1.NetworkPolicy, pod *ovntest.Pod, address string) {
	t.Helper()
	policy.Spec.PolicyTypes = append(policy.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	must(t, api(t).Update(t.Context(), policy))
	eventually(t, "a pod that may send nothing sends nothing", func() error {
		if pod.Ping(address, "") {
			return errors.New("it does")
		}
		return nil
	})
}

// nameService creates a Service for DNS with one endpoint, at port 5353.
func nameService(t *testing.T, namespace, endpoint string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	t.Helper()
	c := api(t)
	port := corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(5353)}
	dns := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "dns"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{port}},
	}
	must(t, c.Create(t.Context(), dns))
	t.Cleanup(func() { _ = c.Delete(context.Background(), dns) })
	return dns, endpoints(t, namespace, "dns", port, endpoint)
}

// endpoints creates the slice of a Service's port, with the addresses of its endpoints.
func endpoints(t *testing.T, namespace, name string, of corev1.ServicePort, addresses ...string) *discoveryv1.EndpointSlice {
	t.Helper()
	c := api(t)
	protocol, port, ready := cmp.Or(of.Protocol, corev1.ProtocolTCP), of.TargetPort.IntVal, true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &of.Name, Protocol: &protocol, Port: &port}},
	}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	must(t, c.Create(t.Context(), slice))
	t.Cleanup(func() { _ = c.Delete(context.Background(), slice) })
	return slice
}

// A connection to a Service that its sender's policy refuses, although the translation has committed it, opens no way for packets of the
// endpoint to the sender. Once it is allowed, both reach each other.
func TestRefusedConnectionsToServicesHaveNoReplies(t *testing.T) {
	s := newSite(t, 1)
	blue := s.network("violet")
	for number := range 2 {
		s.port(blue, 0, 3, 1+number)
	}
	s.serve()
	c, namespace := api(t), blue.Namespace
	pods, addresses := map[string]*ovntest.Pod{}, map[string]string{}
	for _, name := range []string{"asks", "answers"} {
		pod, result := start(t, s.nodes[0], namespace, name, map[string]string{"app": name})
		pods[name], addresses[name] = pod, result.IPs[0].Address.IP.String()
	}
	dns, _ := nameService(t, namespace, addresses["answers"])
	var endpoint net.PacketConn
	must(t, pods["answers"].Do(func(ns.NetNS) (err error) {
		endpoint, err = net.ListenPacket("udp4", addresses["answers"]+":5353")
		return err
	}))
	defer func() { _ = endpoint.Close() }()
	dial := func() net.Conn {
		var conn net.Conn
		must(t, pods["asks"].Do(func(ns.NetNS) (err error) {
			conn, err = net.Dial("udp4", net.JoinHostPort(dns.Spec.ClusterIP, "53"))
			return err
		}))
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	asked := func(conn net.Conn, within time.Duration) bool {
		if _, err := conn.Write([]byte("question")); err != nil { // the packet before was rejected
			return false
		}
		_ = endpoint.SetReadDeadline(time.Now().Add(within))
		_, _, err := endpoint.ReadFrom(make([]byte, 16))
		return err == nil
	}
	answered := func(conn net.Conn, within time.Duration) bool {
		if _, err := endpoint.WriteTo([]byte("answer"), conn.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(within))
		_, err := conn.Read(make([]byte, 16))
		return err == nil
	}
	eventually(t, "the Service", func() error {
		if conn := dial(); !asked(conn, time.Second) || !answered(conn, time.Second) {
			return errors.New("no answer")
		}
		return nil
	})
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "closed"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "asks"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		},
	}
	must(t, c.Create(t.Context(), policy))
	t.Cleanup(func() { _ = c.Delete(context.Background(), policy) })
	eventually(t, "the sender is isolated", func() error {
		if asked(dial(), time.Second) {
			return errors.New("it is not")
		}
		return nil
	})
	conn := dial()
	if asked(conn, time.Second) {
		t.Error("an isolated pod reaches the Service")
	}
	if answered(conn, time.Second) {
		t.Error("a packet from the endpoint reaches the isolated pod")
	}
	silent := dial()
	_ = asked(silent, time.Second)
	must(t, c.Delete(t.Context(), policy))
	eventually(t, "the sender is not isolated any more", func() error {
		if !asked(dial(), time.Second) {
			return errors.New("it still is")
		}
		return nil
	})
	for what, conn := range map[string]net.Conn{"answered": conn, "silent": silent} {
		if !asked(conn, patience) || !answered(conn, patience) {
			t.Errorf("once it is allowed, the connection that was refused has no answer (%s)", what)
		}
	}
}

// named runs a UDP server in a namespace that answers with its name.
func named(t *testing.T, space ns.NetNS, at, name string) {
	t.Helper()
	var server net.PacketConn
	must(t, space.Do(func(ns.NetNS) (err error) {
		server, err = net.ListenPacket("udp4", at)
		return err
	}))
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		for {
			_, from, err := server.ReadFrom(make([]byte, 16))
			if err != nil {
				return
			}
			_, _ = server.WriteTo([]byte(name), from)
		}
	}()
}

// A client that keeps sending by UDP reaches another endpoint when its own is removed, and a port that its Service gets only later.
func TestDatagramsFollowServices(t *testing.T) {
	s := newSite(t, 1)
	blue := s.network("ochre")
	for number := range 3 {
		s.port(blue, 0, 3, 1+number)
	}
	s.serve()
	c, namespace := api(t), blue.Namespace
	pods, addresses := map[string]*ovntest.Pod{}, map[string]string{}
	for _, name := range []string{"asks", "first", "second"} {
		pod, result := start(t, s.nodes[0], namespace, name, map[string]string{"app": name})
		pods[name], addresses[name] = pod, result.IPs[0].Address.IP.String()
		named(t, pod.NetNS, ":5353", name)
	}
	dns, slice := nameService(t, namespace, addresses["first"])
	udp, port, late := corev1.ProtocolUDP, int32(5353), "late"
	dial := func(port string) net.Conn {
		var conn net.Conn
		must(t, pods["asks"].Do(func(ns.NetNS) (err error) {
			conn, err = net.Dial("udp4", net.JoinHostPort(dns.Spec.ClusterIP, port))
			return err
		}))
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	answers := func(conn net.Conn, want string) func() error {
		return func() error {
			if _, err := conn.Write([]byte("question")); err != nil {
				return err // the packet before was rejected
			}
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			text := make([]byte, 16)
			n, err := conn.Read(text)
			if got := string(text[:n]); got != want {
				return fmt.Errorf("the answer is %q, want %q: %w\n%s", got, want, err, s.nodes[0].AppCtl("dpctl/dump-conntrack"))
			}
			return nil
		}
	}
	served, early := dial("53"), dial("54")
	eventually(t, "the Service", answers(served, "first"))
	eventually(t, "a connection to a port that no Service has", func() error {
		_, _ = early.Write([]byte("question"))
		if known := s.nodes[0].AppCtl("dpctl/dump-conntrack"); !strings.Contains(known, "dport=54)") {
			return errors.New(known)
		}
		return nil
	})
	slice.Endpoints[0].Addresses = []string{addresses["second"]}
	must(t, c.Update(t.Context(), slice))
	eventually(t, "another endpoint", answers(served, "second"))
	dns.Spec.Ports = append(dns.Spec.Ports, corev1.ServicePort{Name: late, Protocol: udp, Port: 54, TargetPort: intstr.FromInt32(port)})
	must(t, c.Update(t.Context(), dns))
	slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &late, Protocol: &udp, Port: &port})
	must(t, c.Update(t.Context(), slice))
	eventually(t, "a port that the Service has now", answers(early, "second"))
}

// counts runs a TCP server in a namespace that answers each line.
func counts(t *testing.T, space ns.NetNS, at string) {
	t.Helper()
	var listener net.Listener
	must(t, space.Do(func(ns.NetNS) (err error) {
		listener, err = net.Listen("tcp4", at)
		return err
	}))
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for in := bufio.NewScanner(conn); in.Scan(); {
					_, _ = io.WriteString(conn, "yes\n")
				}
			}()
		}
	}()
}

// lines sends lines of 60,000 bytes, and waits for the answers.
func lines(conn net.Conn, count int) error {
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second * ovstest.Slowness)); err != nil {
		return err
	}
	for range count {
		if _, err := io.WriteString(conn, strings.Repeat("x", 60_000)+"\n"); err != nil {
			return err
		}
	}
	_, err := io.ReadFull(conn, make([]byte, count*len("yes\n")))
	return err
}

// A connection between two pods continues while the only Service of their namespace is deleted and created again. In between, the switch does
// not track the pods' connections.
func TestServiceIsCreatedAgain(t *testing.T) {
	s := newSite(t, 1)
	blue := s.network("sepia")
	for number := range 2 {
		s.port(blue, 0, 3, 1+number)
	}
	s.serve()
	c, namespace := api(t), blue.Namespace
	asks, _ := start(t, s.nodes[0], namespace, "asks", nil)
	answers, result := start(t, s.nodes[0], namespace, "answers", nil)
	address := result.IPs[0].Address.IP.String()
	counts(t, answers.NetNS, ":8080")
	dial := func(to, port string) (conn net.Conn, err error) {
		err = asks.Do(func(ns.NetNS) (err error) {
			conn, err = net.DialTimeout("tcp4", net.JoinHostPort(to, port), time.Second*ovstest.Slowness)
			return err
		})
		return conn, err
	}
	port := corev1.ServicePort{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}
	endpoints(t, namespace, "web", port, address)
	serve := func() *corev1.Service {
		web := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{port}},
		}
		must(t, c.Create(t.Context(), web))
		t.Cleanup(func() { _ = c.Delete(context.Background(), web) })
		eventually(t, "the Service", func() error {
			conn, err := dial(web.Spec.ClusterIP, "80")
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			return lines(conn, 1)
		})
		return web
	}
	web := serve()
	conn, err := dial(address, "8080")
	must(t, err)
	defer func() { _ = conn.Close() }()
	must(t, lines(conn, 1))
	must(t, c.Delete(t.Context(), web))
	eventually(t, "no connection is tracked", func() error {
		if flows := s.nodes[0].flowsOf(); strings.Contains(flows, "ct(table=12") {
			return errors.New(flows)
		}
		return nil
	})
	eventually(t, "the connection is not known", func() error {
		if known := s.nodes[0].AppCtl("dpctl/dump-conntrack"); strings.Contains(known, "dport=8080") {
			return errors.New(known)
		}
		return nil
	})
	must(t, lines(conn, 50))
	_ = serve()
	if err := lines(conn, 1); err != nil {
		t.Errorf("a connection of before: %v\n%s", err, s.nodes[0].AppCtl("dpctl/dump-conntrack"))
	}
}

// A tenant's pods reach the Services of their namespace by the switch and the API server's by the host; policies apply to the translated
// destination, from the first packet, and to established connections.
func TestServicesAndPolicies(t *testing.T) {
	s := newSite(t, 2)
	blue := s.network("indigo")
	for number := range 2 {
		s.port(blue, 0, 3, 1+number)
		s.port(blue, 1, 3, 3+number)
	}
	s.serve()
	c, namespace := api(t), blue.Namespace
	pods, addresses := map[string]*ovntest.Pod{}, map[string]string{}
	for name, at := range map[string]int{"client": 0, "near": 0, "far": 1, "other": 1} {
		pod, result := start(t, s.nodes[at], namespace, name, map[string]string{"app": name, "web": fmt.Sprint(name == "near" || name == "far")})
		pods[name], addresses[name] = pod, result.IPs[0].Address.IP.String()
		answers(t, pods[name].NetNS, ":8080", name)
	}
	port := corev1.ServicePort{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}
	web := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{port}},
	}
	must(t, c.Create(t.Context(), web))
	t.Cleanup(func() { _ = c.Delete(context.Background(), web) })
	endpoints(t, namespace, "web", port, addresses["near"], addresses["far"])
	virtual := net.JoinHostPort(web.Spec.ClusterIP, "80")
	for _, from := range []string{"client", "other"} {
		seen := map[string]bool{}
		eventually(t, from+" reaches both endpoints of the Service", func() error {
			answer, err := asks(pods[from].NetNS, virtual, false)
			seen[answer] = err == nil || seen[answer]
			if !seen["near"] || !seen["far"] {
				return fmt.Errorf("answers %v: %w\n%s", seen, err, s.nodes[0].flowsOf())
			}
			return nil
		})
	}

	// The API server's Service, by the node: kube-proxy is replaced by one rule here.
	var kubernetes corev1.Service
	must(t, c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "kubernetes"}, &kubernetes))
	node := s.nodes[0]
	ovntest.Run(t, node.NetNS, "ip", "link", "set", "lo", "up")
	ovntest.Run(t, node.NetNS, "ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
	ovntest.Run(t, node.NetNS, "nft", "add", "table", "ip", "proxy")
	ovntest.Run(t, node.NetNS, "nft", "add chain ip proxy pre { type nat hook prerouting priority -100; }")
	ovntest.Run(t, node.NetNS, "nft", "add rule ip proxy pre ip daddr "+kubernetes.Spec.ClusterIP+" tcp dport 443 dnat to 192.0.2.1:7443")
	answers(t, node.NetNS, "192.0.2.1:7443", "api")
	eventually(t, "the API server's Service", func() error {
		answer, err := asks(pods["client"].NetNS, net.JoinHostPort(kubernetes.Spec.ClusterIP, "443"), false)
		if answer != "api" {
			return fmt.Errorf("answer %q: %w", answer, errors.Join(err, errors.New(node.flowsOf())))
		}
		return nil
	})
	if answer, err := asks(pods["client"].NetNS, "192.0.2.1:7443", false); err == nil {
		t.Errorf("the node itself answers a pod: %q", answer)
	}
	ovntest.Run(t, node.NetNS, "nft", "add rule ip proxy pre ip daddr "+kubernetes.Spec.ClusterIP+" tcp dport 22 dnat to 192.0.2.1:7443")
	if answer, err := asks(pods["client"].NetNS, net.JoinHostPort(kubernetes.Spec.ClusterIP, "22"), false); err == nil {
		t.Errorf("a port that is none of the Service's is answered: %q", answer)
	}

	policy := onlyClients(t, namespace, "web", map[string]string{"web": "true"},
		networkingv1.NetworkPolicyPort{Protocol: &port.Protocol, Port: &intstr.IntOrString{IntVal: 8080}})
	eventually(t, "others reach the endpoints no more", func() error {
		for _, endpoint := range []string{"near", "far"} { // each on its node
			if answer, err := asks(pods["other"].NetNS, net.JoinHostPort(addresses[endpoint], "8080"), false); err == nil {
				return fmt.Errorf("%s answers", answer)
			}
		}
		return nil
	})
	var both sync.WaitGroup
	for range 6 { // whichever endpoint is chosen
		both.Go(func() {
			if answer, err := asks(pods["other"].NetNS, virtual, false); err == nil {
				t.Errorf("%s answers a pod that no policy allows", answer)
			}
			if _, err := asks(pods["client"].NetNS, virtual, true); err != nil {
				t.Errorf("a pod that a policy allows: %v", err)
			}
		})
	}
	both.Wait()
	if pods["client"].Ping(addresses["far"], "") {
		t.Error("an isolated pod answers what no policy allows")
	}
	must(t, s.nodes[1].pings(addresses["far"])) // the node's probes
	reaches(t, pods["far"], addresses["other"]) // answers in its own connections

	silence(t, policy, pods["far"], addresses["other"])
	if _, err := asks(pods["client"].NetNS, virtual, true); err != nil {
		t.Errorf("answers of a pod that is isolated for egress: %v", err)
	}
	eventually(t, "a pod that is isolated for egress does not reach the API server", func() error {
		if answer, err := asks(pods["near"].NetNS, net.JoinHostPort(kubernetes.Spec.ClusterIP, "443"), false); err == nil {
			return fmt.Errorf("%s answers", answer)
		}
		return nil
	})
}
