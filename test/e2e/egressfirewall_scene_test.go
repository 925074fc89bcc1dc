//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/traffic"
)

// guardScene is pods of two namespaces, and hosts beyond the router, one of them a name server.
type guardScene struct {
	cluster *lab.Cluster
	api     client.Client
	zone    *nameServer
	// near and far are pods of the first namespace, on the first and the second node; otherPod is a pod of the second, on the first node.
	near, far, otherPod *lab.Pod
	// hosts are addresses beyond the router. Each answers with its own address.
	hosts []netip.Addr
}

// Namespaces of the scene.
const (
	guardedOne = "egress-one"
	guardedTwo = "egress-two"
)

// newGuardScene makes the scene, in the cluster's mode.
func newGuardScene(t *testing.T, c *lab.Cluster) *guardScene {
	t.Helper()
	s := &guardScene{cluster: c, api: networkClient(t, c)}
	for i := range 4 {
		s.hosts = append(s.hosts, s.host(t, 20+i))
	}
	s.zone = serveNames(t, c.Outside.Netns, netip.AddrPortFrom(c.Outside.IP, 53))
	for _, name := range []string{guardedOne, guardedTwo} {
		addProject(t, c, name)
	}
	pod := func(node, namespace, name string) *lab.Pod {
		p, err := tryAddPod(t.Context(), c, lab.PodSpec{Node: node, Namespace: namespace, Name: name})
		if p != nil {
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				if err := c.DelPod(ctx, p); err != nil {
					t.Error(err)
				}
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	s.near, s.far, s.otherPod = pod("n1", guardedOne, "egress-near"), pod("n2", guardedOne, "egress-far"), pod("n1", guardedTwo, "egress-other")
	startSourceServer(t, s.far.Netns, "far", sourcePort)
	return s
}

// host adds an address beyond the router, which answers with its own address until the test ends.
func (s *guardScene) host(t *testing.T, number int) netip.Addr {
	t.Helper()
	b := s.cluster.Outside.IP.As4()
	b[3] = byte(number) //nolint:gosec // of the test's own
	addr := netip.AddrFrom4(b)
	enter := []string{"nsenter", "--net=" + s.cluster.Outside.Netns, "--", "ip", "address"}
	mustRun(t, append(enter, "add", addr.String()+"/24", "dev", "eth0"))
	t.Cleanup(func() {
		if _, err := run(context.Background(), append(enter, "del", addr.String()+"/24", "dev", "eth0")); err != nil {
			t.Error(err)
		}
	})
	sourceServerAt(t, s.cluster.Outside.Netns, addr.String(), netip.AddrPortFrom(addr, sourcePort))
	return addr
}

// rules parses rules written as "Allow 192.0.2.0/24" or "Deny www.example.test".
func rules(texts ...string) []networkv1.EgressNetworkPolicyRule {
	list := []networkv1.EgressNetworkPolicyRule{}
	for _, text := range texts {
		kind, to, _ := strings.Cut(text, " ")
		rule := networkv1.EgressNetworkPolicyRule{Type: networkv1.EgressNetworkPolicyRuleType(kind)}
		if strings.Contains(to, "/") {
			rule.To.CIDRSelector = to
		} else {
			rule.To.DNSName = to
		}
		list = append(list, rule)
	}
	return list
}

// policy makes a policy, or replaces its rules. It is deleted when the test ends.
func (s *guardScene) policy(t *testing.T, namespace, name string, texts ...string) {
	t.Helper()
	object := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	object.Spec.Egress = rules(texts...)
	err := s.api.Create(t.Context(), object)
	if err == nil {
		t.Cleanup(func() { s.drop(t, namespace, name) })
		return
	}
	if apierrors.IsAlreadyExists(err) {
		err = s.api.Patch(t.Context(), object, client.Merge)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// drop deletes a policy. If it is missing, that is no error.
func (s *guardScene) drop(t *testing.T, namespace, name string) {
	t.Helper()
	err := s.api.Delete(context.Background(), &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	if client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
}

// condition waits until a policy's condition Valid has a reason, and a message that contains says.
func (s *guardScene) condition(t *testing.T, namespace, name, reason, says string) {
	t.Helper()
	await(t, fmt.Sprintf("%s/%s: %s", namespace, name, reason), func(ctx context.Context) error {
		var object networkv1.EgressNetworkPolicy
		if err := s.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &object); err != nil {
			return err
		}
		valid := meta.FindStatusCondition(object.Status.Conditions, networkv1.ConditionValid)
		if valid == nil || valid.Reason != reason || !strings.Contains(valid.Message, says) || valid.ObservedGeneration != object.Generation {
			return fmt.Errorf("the conditions are %v", object.Status.Conditions)
		}
		return nil
	})
}

// reach waits until the pods of the first namespace reach exactly the given hosts, by index. The second namespace's pods reach all, and
// traffic within the cluster works.
func (s *guardScene) reach(t *testing.T, what string, places ...int) {
	t.Helper()
	s.reachOf(t, what, map[*lab.Pod][]int{s.near: places, s.far: places, s.otherPod: {0, 1, 2, 3}})
}

func (s *guardScene) reachOf(t *testing.T, what string, of map[*lab.Pod][]int) {
	t.Helper()
	all := []attempt{{s.near.Name, s.near.Netns, port(s.far.IPs[0], sourcePort), true}}
	for pod, places := range of {
		for i, host := range s.hosts {
			passes := false
			for _, place := range places {
				passes = passes || place == i
			}
			all = append(all, attempt{pod.Name, pod.Netns, port(host, sourcePort), passes})
		}
	}
	expect(t, what, all...)
}

// nameServer answers name queries by UDP and by TCP.
type nameServer struct {
	mu      sync.Mutex
	records map[string][]string // by name; nil: the server fails
	cutOff  string              // the name whose answers by UDP are truncated
	tcp     int
}

// serveNames answers in a namespace until the test ends.
func serveNames(t *testing.T, netns string, at netip.AddrPort) *nameServer {
	t.Helper()
	s := &nameServer{records: map[string][]string{}}
	var servers []*dns.Server
	err := traffic.In(netns, func() error {
		packets, err := net.ListenPacket("udp", at.String())
		if err != nil {
			return err
		}
		streams, err := net.Listen("tcp", at.String())
		if err != nil {
			return errors.Join(err, packets.Close())
		}
		servers = []*dns.Server{{PacketConn: packets}, {Listener: streams}}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range servers {
		server.Handler = dns.HandlerFunc(s.answer)
		started, ended := make(chan struct{}), make(chan error, 1)
		server.NotifyStartedFunc = func() { close(started) }
		go func() { ended <- server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			if err := errors.Join(server.Shutdown(), <-ended); err != nil {
				t.Error(err)
			}
		})
	}
	return s
}

// has sets a name's records; without records, the name does not exist.
func (s *nameServer) has(name string, records ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[name] = append([]string{}, records...)
}

// fails makes the server fail for a name.
func (s *nameServer) fails(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[name] = nil
}

// cut makes the server truncate its answers by UDP for a name.
func (s *nameServer) cut(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutOff = name
}

// byTCP returns the number of queries by TCP.
func (s *nameServer) byTCP() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tcp
}

func (s *nameServer) answer(w dns.ResponseWriter, r *dns.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reply := new(dns.Msg).SetReply(r)
	reply.RecursionAvailable = true
	q := r.Question[0]
	texts, known := s.records[strings.TrimSuffix(q.Name, ".")]
	_, overTCP := w.RemoteAddr().(*net.TCPAddr)
	if overTCP {
		s.tcp++
	}
	for _, text := range texts {
		record, err := dns.NewRR(text)
		if err == nil && (record.Header().Rrtype == q.Qtype || record.Header().Rrtype == dns.TypeCNAME || record.Header().Name != q.Name) {
			reply.Answer = append(reply.Answer, record)
		}
	}
	switch {
	case known && texts == nil:
		reply.Rcode = dns.RcodeServerFailure
	case len(texts) == 0:
		reply.Rcode = dns.RcodeNameError
	case strings.TrimSuffix(q.Name, ".") == s.cutOff && !overTCP:
		reply.Answer, reply.Truncated = nil, true
	}
	_ = w.WriteMsg(reply)
}
