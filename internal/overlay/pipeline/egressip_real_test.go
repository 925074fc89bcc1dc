//go:build real

package pipeline_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/overlay/pipeline"
)

// exit is how a packet leaves: by the host, with the project's egress IP or without; by the tunnel with the project's VNI; to the host,
// which rejects it; or not at all.
type exit string

const (
	exitNone     exit = "not at all"
	exitHost     exit = "by the host"
	exitAddress  exit = "by the egress address"
	exitTunnel   exit = "by the tunnel"
	exitRejected exit = "rejected"
)

// exitOf returns how a packet of a project leaves, from a trace.
func exitOf(t *testing.T, o outcome, vnid uint32) exit {
	t.Helper()
	says := func(field, value string) bool { return strings.Contains(o.text, "set_field:"+value+"->"+field+"\n") }
	switch leaving := o.leaving(); {
	case len(leaving) == 0:
		return exitNone
	case slices.Equal(leaving, []string{"1"}) && says("tun_id", fmt.Sprintf("%#x", vnid)) && (says("tun_dst", "192.0.2.2") || says("tun_dst", "192.0.2.3")):
		return exitTunnel
	case slices.Equal(leaving, []string{"2"}) && says("eth_src", pipeline.EgressMAC(vnid).String()):
		return exitAddress
	case slices.Equal(leaving, []string{"2"}) && says("eth_src", pipeline.RejectMAC().String()):
		return exitRejected
	case slices.Equal(leaving, []string{"2"}) && !strings.Contains(o.text, "->eth_src"):
		return exitHost
	default:
		t.Fatalf("leaves by %v\n%s", leaving, o.text)
		return exitNone
	}
}

// What a namespace's firewall denies is dropped, and what it allows leaves by the namespace's egress IPs, wherever they are. The node that
// holds an address does not apply a firewall again. DNS queries to the pod's own node bypass both.
func TestFirewallBeforeEgressIPs(t *testing.T) {
	const denied, allowed, other = "198.51.100.11", "198.51.100.10", "203.0.113.5"
	some := egressfirewall.Compile([]egressfirewall.Rule{
		{Verdict: egressfirewall.Allow, CIDR: netip.MustParsePrefix(allowed + "/32")}, {CIDR: netip.MustParsePrefix("198.51.100.0/24")},
	}, nil)
	all := egressfirewall.Compile([]egressfirewall.Rule{{CIDR: netip.MustParsePrefix("0.0.0.0/0")}}, nil)
	firewalls := []struct {
		name     string
		firewall *egressfirewall.Firewall
		allows   []string
	}{
		{"none", nil, []string{denied, allowed, other}},
		{"some denied", &some, []string{allowed, other}},
		{"all denied", &all, nil},
		{"closed", &egressfirewall.Firewall{Closed: "because"}, nil},
	}
	exits := map[uint32]exit{42: exitAddress, 77: exitTunnel, 78: exitTunnel, 79: exitNone}
	for _, mode := range []pipeline.Mode{pipeline.ModeMultitenant, pipeline.ModeNetworkPolicy} {
		s := startFirewalls(t, mode)
		for _, way := range egressWays() {
			s.ways = map[string]pipeline.EgressWay{"one": way}
			for _, f := range firewalls {
				s.follow(t, map[string]*egressfirewall.Firewall{"one": f.firewall})
				see := func(what, packet string, want exit, states ...string) {
					t.Helper()
					for _, state := range states {
						o := s.trace(t, packet, "--ct-next", state)
						if got := exitOf(t, o, way.VNID); got != want {
							t.Errorf("%s, VNID %d, firewall %s, %s, %s: leaves %s, not %s\n%s", mode, way.VNID, f.name, what, state, got, want, o.text)
						}
					}
				}
				for _, target := range []string{denied, allowed, other} {
					want, answer := exits[way.VNID], exitHost
					if !slices.Contains(f.allows, target) {
						want, answer = exitNone, exitNone
					}
					for _, protocol := range []string{"tcp,tcp_dst=443", "udp,udp_dst=123", "icmp,icmp_type=8", "udp,nw_frag=later"} {
						packet := fromA + toGateway + protocol + "," + ipA + "nw_dst=" + target
						see(protocol+" to "+target, packet, want, "trk,new", "trk,est")
						see("an answer by "+protocol+" to "+target, packet, answer, "trk,est,rpl")
					}
				}
				for _, protocol := range []string{"tcp,tcp_dst=53", "udp,udp_dst=53"} {
					see("asks its node for names by "+protocol, fromA+toGateway+protocol+","+ipA+"nw_dst=192.0.2.1", exitHost, "trk,new", "trk,est")
				}
				see("a Service that the host serves", fromA+toGateway+"sctp,"+ipA+"nw_dst=172.30.0.99,sctp_dst=80", exitRejected, "trk,new")
				from := fmt.Sprintf("in_port=1,tun_src=192.0.2.2,tun_dst=192.0.2.1,tun_id=%d,dl_src=0a:58:0a:81:00:07,dl_dst=0a:58:0a:80:00:01,tcp,nw_src=10.129.0.7,nw_dst=%s,tcp_dst=443", way.VNID, denied)
				here := exitNone
				if way.Here {
					here = exitAddress
				}
				see("from another node, which has judged it", from, here, "trk,new")
			}
		}
	}
}

// All packets of a pod to one destination leave by one node, including fragments without ports. Packets to many destinations are
// distributed.
func TestFragmentsLeaveByOneNode(t *testing.T) {
	for _, mode := range []pipeline.Mode{pipeline.ModeMultitenant, pipeline.ModeNetworkPolicy} {
		s := startFirewalls(t, mode)
		s.ways = map[string]pipeline.EgressWay{"one": egressWays()[1]}
		s.follow(t, nil)
		nodes := map[string]int{}
		for target := range 16 {
			to := fmt.Sprintf("%snw_dst=203.0.113.%d", ipA, target+1)
			by := map[string]bool{}
			for _, packet := range []string{
				"udp,nw_frag=first,udp_src=40000,udp_dst=123," + to, "udp,nw_frag=later," + to,
				"udp,udp_src=40001,udp_dst=124," + to, "tcp,tcp_src=40002,tcp_dst=443," + to,
			} {
				o := s.trace(t, fromA+toGateway+packet, "--ct-next", "trk,new")
				if got := exitOf(t, o, 77); got != exitTunnel {
					t.Fatalf("%s, %s: leaves %s\n%s", mode, packet, got, o.text)
				}
				for _, node := range []string{"192.0.2.2", "192.0.2.3"} {
					if strings.Contains(o.text, "set_field:"+node+"->tun_dst") {
						by[node] = true
					}
				}
			}
			if len(by) != 1 {
				t.Errorf("%s, %s: leaves by %v", mode, to, by)
			}
			for node := range by {
				nodes[node]++
			}
		}
		if len(nodes) != 2 {
			t.Errorf("%s: what a pod sends to 16 targets leaves by %v", mode, nodes)
		}
	}
}

// Packets that are hostile in a flat network, and look like replies that return by a node with an egress IP.
const (
	answerIn  = "tunnel: from outside"
	answerOut = "host: from elsewhere to a remote pod"
)

// hostileBesideAnswers returns the packets that are hostile in networks with egress IPs.
func hostileBesideAnswers() map[string]string {
	packets := hostile()
	delete(packets, answerIn)
	delete(packets, answerOut)
	return packets
}

// From outside, another node forwards replies of a pod's connections, and nothing else. This node's host sends replies to other nodes'
// pods, which check them at their own nodes.
func TestAnswersByAnotherNode(t *testing.T) {
	for _, mode := range []pipeline.Mode{pipeline.ModeMultitenant, pipeline.ModeNetworkPolicy} {
		s := startFirewalls(t, mode)
		for state, want := range map[string][]string{"trk,new": nil, "trk,est": nil, "trk,inv": nil, "trk,est,rpl": {"3"}, "trk,rel,rpl": {"3"}} {
			o := s.trace(t, hostile()[answerIn], "--ct-next", state)
			if got := o.leaving(); !slices.Equal(got, want) {
				t.Errorf("%s, %s: leaves by %v, not %v\n%s", mode, state, got, want, o.text)
			}
		}
		foreign := strings.Replace(hostile()[answerIn], "tun_src=192.0.2.2", "tun_src=192.0.2.66", 1)
		if o := s.trace(t, foreign, "--ct-next", "trk,est,rpl"); len(o.leaving()) > 0 {
			t.Errorf("%s, from a foreign host: leaves by %v\n%s", mode, o.leaving(), o.text)
		}
		o := s.trace(t, hostile()[answerOut])
		if !slices.Equal(o.leaving(), []string{"1"}) || !strings.Contains(o.text, "NXM_NX_TUN_ID[0..31] is now 0\n") || !strings.Contains(o.text, "set_field:192.0.2.2->tun_dst") {
			t.Errorf("%s: the host's answer leaves by %v\n%s", mode, o.leaving(), o.text)
		}
	}
}
