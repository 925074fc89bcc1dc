//go:build real

package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/conjunction"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/oracle"
	"weft.dev/weft/internal/reconcile"
)

// policySwitch is a real switch with a node's policies.
type policySwitch struct {
	realSwitch
	engine *bridge.Engine
	have   map[openflow.Key]openflow.Entry
}

func startPolicies(t *testing.T) *policySwitch {
	t.Helper()
	s := &policySwitch{realSwitch: start(t, policySample())}
	s.engine = bridge.NewEngine(bridge.Config{Address: s.Mgmt(s.bridge), Last: pipeline.IsNote})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.engine.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the engine ended with %v", err)
		}
	})
	s.have = s.read(ctx, t, s.engine)
	return s
}

// follow commits the flows of a node's policies and pods.
func (s *policySwitch) follow(t *testing.T, n *node) {
	t.Helper()
	s.commit(t, n, n.pods()...)
}

// commit commits the flows of a node's policies, and of the given pods.
func (s *policySwitch) commit(t *testing.T, n *node, pods ...pipeline.Pod) {
	t.Helper()
	want := n.flows(t)
	for _, pod := range pods {
		maps.Copy(want, n.config.Pod(pod))
	}
	maps.Copy(want, n.config.Static())
	maps.Copy(want, leftToHost(n.config, "172.30.0.99"))
	for _, r := range []pipeline.Remote{remote, outside} {
		maps.Copy(want, n.config.Remote(r))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.engine.Commit(ctx, reconcile.Diff(want, s.have)); err != nil {
		t.Fatal(err)
	}
	s.have = want
}

// trip is a packet on one of the paths through this node.
type trip struct {
	frame string
	src   string
	dst   string
}

func trips() []trip {
	all := map[string]string{"10.128.0.5": fromA, "10.128.0.6": "in_port=4,dl_src=0a:58:0a:80:00:06,", "10.129.0.7": fromTunnel, "10.129.0.8": fromTunnel, "198.51.100.10": fromHost}
	var list []trip
	for src, frame := range all {
		for dst := range all {
			here := strings.HasPrefix(src, "10.128.")
			if src == dst || !here && !strings.HasPrefix(dst, "10.128.") {
				continue
			}
			if here {
				frame = all[src] + toGateway
			}
			list = append(list, trip{frame, src, dst})
		}
	}
	return list
}

func (w trip) packet(protocol corev1.Protocol, port uint16) string {
	text := w.frame + map[corev1.Protocol]string{corev1.ProtocolTCP: "tcp", corev1.ProtocolUDP: "udp", "ICMP": "icmp"}[protocol]
	text += fmt.Sprintf(",nw_src=%s,nw_dst=%s", w.src, w.dst)
	switch protocol {
	case corev1.ProtocolTCP:
		return text + fmt.Sprintf(",tcp_dst=%d,tcp_flags=2", port)
	case corev1.ProtocolUDP:
		return text + fmt.Sprintf(",udp_dst=%d", port)
	default:
		return text + ",icmp_type=8"
	}
}

// The switch's decision about the first packet of a connection is that of an oracle that shares no code with the rules. The isolation of a
// remote pod is up to its own node.
func TestPoliciesProperty(t *testing.T) {
	s := startPolicies(t)
	judged, passed := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		w := drawPolicyWorld(r)
		// Most worlds are so small that their rules fit one stage: some get stages for one or two rules.
		n := nodeInStages(t, w, rapid.SampledFrom([]int{1, 2, conjunction.StageRoom}).Draw(r, "room of a stage"))
		s.follow(t, n)
		for _, way := range trips() {
			here := judgedHere(w, way)
			for _, probe := range []oracle.Packet{
				{Protocol: corev1.ProtocolTCP, Port: 80}, {Protocol: corev1.ProtocolTCP, Port: 81}, {Protocol: corev1.ProtocolUDP, Port: 80}, {Protocol: "ICMP"},
			} {
				probe.Src, probe.Dst = netip.MustParseAddr(way.src), netip.MustParseAddr(way.dst)
				want := here.Allowed(probe)
				o := s.trace(t, way.packet(probe.Protocol, probe.Port), "--ct-next", "trk,new")
				if got := len(o.leaving()) > 0; got != want {
					r.Fatalf("%s to %s, %s %d: the switch lets it pass: %t, the oracle: %t\n%s", way.src, way.dst, probe.Protocol, probe.Port, got, want, o.text)
				}
				if tracked := strings.Contains(o.text, "ct(table=21"); tracked != ofPod(n, way) {
					r.Fatalf("%s to %s: looked for its connection: %t, one of them is a pod here: %t\n%s", way.src, way.dst, tracked, !tracked, o.text)
				}
				if judged++; want {
					passed++
				}
			}
		}
	})
	t.Logf("%d packets judged, %d of them allowed", judged, passed)
	if passed == 0 || passed == judged {
		t.Errorf("of %d packets %d are allowed: that says nothing", judged, passed)
	}
}

// If more rules name an address than a flow can hold, the rules of all stages are effective.
func TestRulesInStages(t *testing.T) {
	s := startPolicies(t)
	n, np := crowd(1)
	n.names["here-a"] = policy.Key{Namespace: "one", Name: "server0"}
	const rules = 2*conjunction.StageRoom + 3
	for i := range rules {
		np.Name = fmt.Sprint("policy", i)
		np.Spec.Ingress[0].Ports[0].Port = new(intstr.FromInt32(int32(i + 1)))
		p, err := policy.FromNetworkPolicy(np)
		if err != nil {
			t.Fatal(err)
		}
		n.rules.Apply(n.index.SetPolicy(p), n.index)
	}
	n.apply(policy.Effect{})
	s.follow(t, n)
	for port, want := range map[int]bool{1: true, conjunction.StageRoom + 1: true, rules: true, rules + 1: false} {
		packet := fmt.Sprintf("%stcp,nw_src=10.132.0.5,nw_dst=10.128.0.5,tcp_dst=%d,tcp_flags=2", fromHost, port)
		if o := s.trace(t, packet, "--ct-next", "trk,new"); len(o.leaving()) > 0 != want {
			t.Errorf("port %d passes: %t, want %t\n%s", port, !want, want, o.text)
		}
		foreign := fmt.Sprintf("%stcp,nw_src=10.132.0.6,nw_dst=10.128.0.5,tcp_dst=%d,tcp_flags=2", fromHost, port)
		if o := s.trace(t, foreign, "--ct-next", "trk,new"); len(o.leaving()) > 0 {
			t.Errorf("port %d passes from an address that no rule names\n%s", port, o.text)
		}
	}
}

// judgedHere returns a world without the policies for pods of other nodes.
func judgedHere(w oracle.World, way trip) oracle.World {
	var local []*networkingv1.NetworkPolicy
	for _, np := range w.Policies {
		np := np.DeepCopy()
		np.Spec.PodSelector.MatchExpressions = append(np.Spec.PodSelector.MatchExpressions,
			metav1.LabelSelectorRequirement{Key: "here", Operator: metav1.LabelSelectorOpExists})
		local = append(local, np)
	}
	pods := make([]*corev1.Pod, len(w.Pods))
	for i, pod := range w.Pods {
		pods[i] = pod.DeepCopy()
		if strings.HasPrefix(pod.Status.PodIP, "10.128.") {
			pods[i].Labels = maps.Clone(pod.Labels)
			if pods[i].Labels == nil {
				pods[i].Labels = map[string]string{}
			}
			pods[i].Labels["here"] = ""
		}
	}
	return oracle.World{Policies: local, Pods: pods, Namespaces: w.Namespaces}
}

// ofPod reports whether a pod of this node is the sender or the receiver.
func ofPod(n *node, way trip) bool {
	return slices.ContainsFunc(n.pods(), func(pod pipeline.Pod) bool {
		at := pod.Addrs[0].String()
		return at == way.src || at == way.dst
	})
}

// isolated returns a world in which both pods of the node are isolated in both directions, and may reach each other's port 80.
func isolated(t *testing.T) *node {
	t.Helper()
	var w oracle.World
	w.Namespaces = []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}}
	for name, addr := range policyPods {
		w.Pods = append(w.Pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "one", Name: name}, Status: corev1.PodStatus{PodIP: addr, PodIPs: []corev1.PodIP{{IP: addr}}}})
	}
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "one", Name: "web"}}
	np.Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress", "Egress"}
	ports := []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(80))}}
	own := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: own, Ports: ports}}
	np.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: own, Ports: ports}}
	w.Policies = append(w.Policies, np)
	return nodeOf(t, w)
}

// For isolated pods: which packets pass, and what happens to the connection.
func TestPolicyStates(t *testing.T) {
	s := startPolicies(t)
	s.follow(t, isolated(t))
	toPort := func(port int, flags string) string {
		return fmt.Sprintf("%s%stcp,%snw_dst=10.128.0.6,tcp_dst=%d,tcp_flags=%s", fromA, toB, ipA, port, flags)
	}
	const commits, ends = "ct(commit,zone=65280,nat(src))", "ct(commit,zone=65280,exec(set_field:0x1/0x1->ct_mark))"
	for _, c := range []struct {
		name, packet, state string
		passes              bool
		says, saysNot       string
	}{
		{"a connection begins that a rule allows", toPort(80, "2"), "trk,new", true, commits, ends},
		{"one goes on", toPort(80, "0x10"), "trk,est", true, "", "ct(commit"},
		{"one is found in its middle that a rule allows", toPort(80, "0x10"), "trk,new", true, commits, ends},
		{"a connection begins that none allows", toPort(81, "2"), "trk,new", false, "", "ct(commit"},
		{"a connection to a Service begins that none allows", toPort(81, "2"), "trk,new,dnat", false, ends, commits},
		{"a connection to a Service begins that a rule allows", toPort(80, "2"), "trk,new,dnat", true, "", ends},
		{"one goes on that none allows any more", toPort(81, "0x10"), "trk,est", false, ends, ""},
		{"an answer", toPort(81, "0x10"), "trk,est,rpl", true, "", "ct(commit"},
		{"an ICMP error about a connection that is not the pod's", fromA + toB + "icmp," + ipA + "nw_dst=10.128.0.6,icmp_type=3", "trk,rel,rpl", false, "", "ct(commit"},
		{"an ICMP error about a connection, from another node", fromTunnel + "icmp,nw_src=10.129.0.7,nw_dst=10.128.0.6,icmp_type=3", "trk,rel,rpl", true, "", "ct(commit"},
		{"an ICMP error about none", fromA + toB + "icmp," + ipA + "nw_dst=10.128.0.6,icmp_type=3", "trk,inv", false, "", "ct(commit"},
		{"a packet that fits no connection", toPort(80, "0x10"), "trk,inv", false, "", "ct(commit"},
		{"a fragment of what may be known", fromA + toB + "udp,nw_frag=later," + ipA + "nw_dst=10.128.0.6", "trk,est", false, "", "ct(commit"},
		{"the node to its pod", fromHost + "tcp,nw_src=10.128.0.1,nw_dst=10.128.0.5,tcp_dst=81,tcp_flags=2", "trk,new", true, commits, ""},
		{"the host for a client outside, to the pod", fromHost + "tcp,nw_src=169.254.0.2,nw_dst=10.128.0.5,tcp_dst=80,tcp_flags=2", "trk,new", false, "", "ct(commit"},
		{"the pod's answer to a client outside", fromA + toGateway + "tcp," + ipA + "nw_dst=169.254.0.2,tcp_src=80", "trk,est,rpl", true, "set_field:0a:58:0a:80:00:01->eth_dst", ""},
		{"the pod's answer to the node", fromA + toGateway + "tcp," + ipA + "nw_dst=10.128.0.1,tcp_src=81", "trk,est,rpl", true, "", ""},
		{"the pod to the node", fromA + toGateway + "tcp," + ipA + "nw_dst=10.128.0.1,tcp_dst=81,tcp_flags=2", "trk,new", false, "", ""},
		{"another node to the pod", fromTunnel + "tcp,nw_src=10.129.0.1,nw_dst=10.128.0.5,tcp_dst=80,tcp_flags=2", "trk,new", false, "", ""},
		{"to another node's pod", fromA + toRemote + "tcp," + ipA + "nw_dst=10.129.0.7,tcp_dst=80,tcp_flags=2", "trk,new", true, commits, ""},
		{"to outside", fromA + toGateway + "tcp," + ipA + "nw_dst=198.51.100.10,tcp_dst=80,tcp_flags=2", "trk,new", false, "", ""},
		{"ARP", fromA + broadcast + arpA + "arp_tpa=10.128.0.6", "trk,new", true, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := s.trace(t, c.packet, "--ct-next", c.state)
			if passes := len(o.leaving()) > 0; passes != c.passes {
				t.Errorf("it passes: %t, want %t\n%s", passes, c.passes, o.text)
			}
			if !strings.Contains(o.text, c.says) || c.saysNot != "" && strings.Contains(o.text, c.saysNot) {
				t.Errorf("want %q, and not %q\n%s", c.says, c.saysNot, o.text)
			}
		})
	}
}

// A connection that no rule allows any more continues if it is kept, and no other does.
func TestPolicyKeeps(t *testing.T) {
	s := startPolicies(t)
	n := isolated(t)
	for _, keeps := range []policy.Isolation{{KeepsIngress: true, KeepsEgress: true}, {KeepsIngress: true}, {KeepsEgress: true}} {
		a, b := podA, podB
		a.Isolation, b.Isolation = policy.Isolation{Egress: true, KeepsEgress: keeps.KeepsEgress}, policy.Isolation{Ingress: true, KeepsIngress: keeps.KeepsIngress}
		s.commit(t, n, a, b)
		for state, want := range map[string]bool{"trk,est": keeps.KeepsEgress && keeps.KeepsIngress, "trk,new": false, "trk,inv": false} {
			o := s.trace(t, fromA+toB+"tcp,"+ipA+"nw_dst=10.128.0.6,tcp_dst=81,tcp_flags=0x10", "--ct-next", state)
			if passes := len(o.leaving()) > 0; passes != want || want && strings.Contains(o.text, "ct(commit") {
				t.Errorf("%+v, %s: it passes: %t, want %t\n%s", keeps, state, passes, want, o.text)
			}
		}
	}
}

// For a Service, policies apply to the endpoint, also outside the pods' network, from where packets do not return to the switch. If the
// host would choose the endpoint, which no policy sees, the host rejects the packet, even if a policy allows the Service's address.
func TestPolicyJudgesEndpointsOutside(t *testing.T) {
	s := startPolicies(t)
	n := isolated(t)
	free, judged := podB, podA
	judged.Isolation = policy.Isolation{Egress: true}
	allow := func(cidr string) {
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "one", Name: "out"}}
		np.Spec.PolicyTypes = []networkingv1.PolicyType{"Egress"}
		np.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}}}}
		p, err := policy.FromNetworkPolicy(np)
		if err != nil {
			t.Fatal(err)
		}
		n.apply(n.index.SetPolicy(p))
		s.commit(t, n, judged, free)
	}
	outside := fromA + toGateway + "tcp," + ipA + "nw_dst=192.0.2.2,tcp_dst=6443,tcp_flags=2" // the endpoint of a Service
	hosts := fromA + toGateway + "sctp," + ipA + "nw_dst=172.30.0.99,sctp_dst=80"
	fromFree := strings.NewReplacer("in_port=3", "in_port=4", ":05", ":06", "10.128.0.5", "10.128.0.6")
	for cidr, passes := range map[string]bool{"172.30.0.0/16": false, "192.0.2.2/32": true, "0.0.0.0/0": true} {
		allow(cidr)
		for _, state := range []string{"trk,new,dnat", "trk,est,dnat"} {
			if o := s.trace(t, outside, "--ct-next", state); len(o.leaving()) > 0 != passes {
				t.Errorf("%s is allowed: a packet that is %s to the endpoint leaves by %v\n%s", cidr, state, o.leaving(), o.text)
			}
		}
		if o := s.trace(t, hosts, "--ct-next", "trk,new"); len(o.leaving()) > 0 && !strings.Contains(o.text, "set_field:"+pipeline.RejectMAC().String()+"->eth_src") {
			t.Errorf("%s is allowed: a Service of the host's is reached\n%s", cidr, o.text)
		}
		if o := s.trace(t, fromFree.Replace(hosts), "--ct-next", "trk,new"); len(o.leaving()) != 1 || strings.Contains(o.text, pipeline.RejectMAC().String()) {
			t.Errorf("a pod that is not isolated reaches it by %v\n%s", o.leaving(), o.text)
		}
	}
}

// The hostile packets of the flat network are dropped here as well.
func TestPolicyHostile(t *testing.T) {
	s := startPolicies(t)
	for name, packet := range hostileBesideAnswers() {
		for _, state := range []string{"trk,new", "trk,est,rpl"} {
			if o := s.trace(t, packet, "--ct-next", state); len(o.leaving()) > 0 {
				t.Errorf("%s (%s) is let through\n%s", name, state, o.text)
			}
		}
	}
}
