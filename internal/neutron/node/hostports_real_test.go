//go:build real

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/network/networktest"
	"weft.dev/weft/internal/ovn/ovntest"
)

// mirrors answers each connection in a namespace with the client's address.
func mirrors(t *testing.T, space ns.NetNS, port string) {
	t.Helper()
	var listener net.Listener
	must(t, space.Do(func(ns.NetNS) (err error) {
		listener, err = net.Listen("tcp4", ":"+port)
		return err
	}))
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
			_, _ = io.WriteString(conn, host)
			_ = conn.Close()
		}
	}()
}

// published is a node with a neighbour, and a pod with a host port.
type publishedSite struct {
	*served
	stop      func()
	dir       string
	neighbour *ovntest.Pod
}

func newPublishedSite(t *testing.T) *publishedSite {
	t.Helper()
	m := newMachine(t, "published", 91)
	s := &publishedSite{dir: filepath.Join(t.TempDir(), "attachments"), neighbour: ovntest.NewPod(t)}
	ovntest.Veth(t, m.NetNS, "uplink", s.neighbour.NetNS, "far")
	for space, at := range map[ns.NetNS][2]string{m.NetNS: {"192.0.2.1/24", "uplink"}, s.neighbour.NetNS: {"192.0.2.9/24", "far"}} {
		ovntest.Run(t, space, "ip", "addr", "replace", at[0], "dev", at[1])
		ovntest.Run(t, space, "ip", "link", "set", at[1], "up")
	}
	ovntest.Run(t, m.NetNS, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	s.begin(t, m)
	return s
}

func (s *publishedSite) begin(t *testing.T, m *machine) {
	t.Helper()
	s.served, s.stop = m.serve(t, s.dir)
	t.Cleanup(s.stop)
	eventually(t, "the node is ready", s.Ready)
}

// publish attaches a pod whose port 80 is at 8080 of the node.
func (s *publishedSite) publish(t *testing.T, name string) (pod *ovntest.Pod, address string, err error) {
	t.Helper()
	object := podObject(t, s.served, "published", name, nil)
	pod = ovntest.NewPod(t)
	request := s.request(cni.CommandAdd, "published", name, pod.ProcPath())
	request.Args.PodUID = string(object.UID)
	request.NetConf.RuntimeConfig.PortMappings = []cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"}}
	result, err := s.handler.Add(t.Context(), request)
	if err != nil {
		return pod, "", err
	}
	return pod, result.IPs[0].Address.IP.String(), nil
}

// sees checks that a pod's host port answers, and which client address the pod sees.
func (s *publishedSite) sees(t *testing.T, from ns.NetNS, to, want string) {
	t.Helper()
	eventually(t, to+" answers", func() error {
		got, err := asks(from, to, false)
		if err != nil || got != want {
			return fmt.Errorf("the pod sees %q, want %s: %w\n%s", got, want, err, s.flowsOf())
		}
		return nil
	})
}

// refuses checks that nothing answers.
func refuses(t *testing.T, from ns.NetNS, to string) {
	t.Helper()
	if got, err := asks(from, to, false); err == nil {
		t.Errorf("%s answers %q", to, got)
	}
}

// A host port reaches the pod from the node and from elsewhere, and opens nothing else; also after a restart of the agent. NetworkPolicies
// apply to connections from elsewhere. When the pod is removed, so is its host port, and another pod can use it.
func TestHostPorts(t *testing.T) {
	const outside, node, at = "169.254.0.2", "169.254.0.3", "192.0.2.1:8080"
	s := newPublishedSite(t)
	pod, address, err := s.publish(t, "a")
	must(t, err)
	for _, port := range []string{"80", "8080", "81"} {
		mirrors(t, pod.NetNS, port)
	}
	all := func() {
		t.Helper()
		s.sees(t, s.neighbour.NetNS, at, outside)
		s.sees(t, s.NetNS, at, node)
		s.sees(t, s.NetNS, "127.0.0.1:8080", node)
	}
	all()
	ovntest.Run(t, s.neighbour.NetNS, "ip", "route", "add", address, "via", "192.0.2.1")
	for _, to := range []string{address + ":80", address + ":8080", "192.0.2.1:80", "192.0.2.1:81"} {
		refuses(t, s.neighbour.NetNS, to)
	}
	if _, _, err := s.publish(t, "b"); cni.AsError(err).Code != cni.CodeTryAgainLater || !strings.Contains(err.Error(), "published/a") {
		t.Errorf("a second pod with the host port: %v", err)
	}
	s.stop()
	s.begin(t, s.machine)
	all()

	c := api(t)
	// kube-proxy in mode IPVS puts the addresses of Services on the node.
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "published", Name: "other"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 8080}}}}
	must(t, c.Create(t.Context(), service))
	t.Cleanup(func() { _ = c.Delete(context.Background(), service) })
	ovntest.Run(t, s.NetNS, "ip", "addr", "add", service.Spec.ClusterIP+"/32", "dev", "lo")
	eventually(t, "the address of a Service leads to no host port", func() error {
		if got, err := asks(s.NetNS, service.Spec.ClusterIP+":8080", false); err == nil {
			return fmt.Errorf("it answers %q", got)
		}
		return nil
	})
	all()

	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "published", Name: "closed"},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	}
	must(t, c.Create(t.Context(), policy))
	t.Cleanup(func() { _ = c.Delete(context.Background(), policy) })
	eventually(t, "a policy closes the host port to the neighbour", func() error {
		if got, err := asks(s.neighbour.NetNS, at, false); err == nil {
			return fmt.Errorf("it answers %q", got)
		}
		return nil
	})
	s.sees(t, s.NetNS, at, node)
	policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: outside + "/32"}}}}}
	must(t, c.Update(t.Context(), policy))
	all()

	s.del(t, "published", "a")
	refuses(t, s.neighbour.NetNS, at)
	eventually(t, "the rules of the host port are gone", func() error {
		if left := ovntest.Run(t, s.NetNS, "nft", "list", "table", "inet", "weft-neutron"); strings.Contains(left, "8080") {
			return errors.New(left)
		}
		return nil
	})
	next, _, err := s.publish(t, "c")
	must(t, err)
	mirrors(t, next.NetNS, "80")
	all()
	if out, err := ovntest.Try(s.neighbour.NetNS, "ping", "-n", "-c", "1", "-W", "1", address); err == nil {
		t.Error(errors.New("a neighbour reaches a pod by the node: " + out))
	}
}

// drops returns how many packets the rules of the chain to-pods have dropped, each.
func (s *publishedSite) drops(t *testing.T) (counts []string) {
	t.Helper()
	for line := range strings.Lines(ovntest.Run(t, s.NetNS, "nft", "list", "chain", "inet", "weft-neutron", "to-pods")) {
		if _, after, is := strings.Cut(line, "counter packets "); is && strings.Contains(line, " drop ") {
			count, _, _ := strings.Cut(after, " ")
			counts = append(counts, count)
		}
	}
	return counts
}

// A program of the node that connects to a Service, which kube-proxy translates to an address of a tenant's pod, does not reach the pod that
// has this address on this node: it may be another tenant's. The node's connections to its own pods and their host ports go on.
func TestServicesOfTheNode(t *testing.T) {
	s := newPublishedSite(t)
	pod, address, err := s.publish(t, "a")
	must(t, err)
	for _, port := range []string{"80", "443"} {
		mirrors(t, pod.NetNS, port)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "of-another"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}}
	must(t, api(t).Create(t.Context(), service))
	t.Cleanup(func() { _ = api(t).Delete(context.Background(), service) })
	cluster := service.Spec.ClusterIP
	eventually(t, "the node has the address of the Service", func() error {
		if set := ovntest.Run(t, s.NetNS, "nft", "list", "set", "inet", "weft-neutron", "services"); !strings.Contains(set, cluster) {
			return errors.New(set)
		}
		return nil
	})
	own := func() {
		t.Helper()
		for _, to := range []string{address + ":80", address + ":443", "192.0.2.1:8080", "127.0.0.1:8080"} {
			s.sees(t, s.NetNS, to, "169.254.0.3")
		}
		s.sees(t, s.neighbour.NetNS, "192.0.2.1:8080", "169.254.0.2")
		must(t, s.pings(address))
	}
	own()
	kubernetes := &corev1.Service{}
	must(t, api(t).Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "kubernetes"}, kubernetes))
	// As kube-proxy does for a cluster address, an address of externalIPs and a node port.
	const external, nodePort = "203.0.113.7", "192.0.2.1:30443"
	ovntest.Run(t, s.NetNS, "ip", "route", "add", "default", "via", "192.0.2.9")
	proxy := filepath.Join(t.TempDir(), "proxy.nft")
	must(t, os.WriteFile(proxy, []byte(fmt.Sprintf(`table ip proxy {
	chain prerouting {
		type nat hook prerouting priority -100;
		ip daddr %[4]s tcp dport 443 dnat to 192.0.2.1:6443
	}
	chain output {
		type nat hook output priority -100;
		ip daddr { %[2]s, %[3]s } tcp dport { 80, 443 } dnat to %[1]s
		ip daddr 192.0.2.1 tcp dport 30443 dnat to %[1]s:443
	}
	chain postrouting {
		type nat hook postrouting priority 100;
		ip daddr %[1]s masquerade
	}
}`, address, cluster, external, kubernetes.Spec.ClusterIP)), 0o600))
	ovntest.Run(t, s.NetNS, "nft", "-f", proxy)
	mirrors(t, s.NetNS, "6443")
	pod.IP("neigh", "replace", "10.244.0.1", "lladdr", "fa:16:3e:00:00:01", "dev", "eth0") // there is no router
	s.sees(t, pod.NetNS, kubernetes.Spec.ClusterIP+":443", address)                        // answers of the node, in connections that a pod opens
	if before := s.drops(t); !slices.Equal(before, []string{"0", "0"}) {
		t.Errorf("packets were dropped before there were any to drop: %v", before)
	}
	for _, to := range []string{cluster + ":443", cluster + ":80", external + ":443", nodePort} {
		before := s.drops(t)
		refuses(t, s.NetNS, to)
		if after := s.drops(t); slices.Equal(after, before) {
			t.Errorf("%s: no packet was dropped", to)
		}
	}
	// IPVS leaves the route's source and no mark of its translation.
	before := s.drops(t)
	must(t, s.NetNS.Do(func(ns.NetNS) error {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, Timeout: time.Second}
		if conn, err := from.DialContext(t.Context(), "tcp4", address+":443"); err == nil {
			_ = conn.Close()
			return errors.New("a connection with another source address of the node reaches the pod")
		}
		return nil
	}))
	if after := s.drops(t); after[0] != before[0] || after[1] == before[1] {
		t.Errorf("packets from another address of the node: %v dropped, before %v", after, before)
	}
	own()
}

// The network passes the suite of networks with host ports, by IPv4.
func TestHostPortSuite(t *testing.T) {
	networktest.RunHostPorts(t, func(t *testing.T) networktest.HostPortSubject {
		s := newPublishedSite(t)
		s.stop()
		agents := s.served
		return networktest.HostPortSubject{
			Records: s.dir, Namespace: "published", Table: "weft-neutron",
			Node: s.NetNS, Outside: s.neighbour.NetNS, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			Serve: func(t *testing.T) (networktest.Runtime, func()) {
				s.begin(t, s.machine)
				return s.handler, s.stop
			},
			Pod: func(t *testing.T, name string) (netns, uid string) {
				object := podObject(t, agents, "published", name, nil)
				return ovntest.NewPod(t).ProcPath(), string(object.UID)
			},
		}
	})
}
