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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/egressfirewall/oracle"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/groupid"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
)

// firewallSwitch is a real switch with namespaces' firewalls: pod a is in namespace one, pod b in namespace two.
type firewallSwitch struct {
	realSwitch
	config *pipeline.Config
	engine *bridge.Engine
	have   map[openflow.Key]openflow.Entry
	ids    groupid.IDs
	// ways are the ways of namespaces with egress IPs.
	ways map[string]pipeline.EgressWay
}

func startFirewalls(t *testing.T, mode pipeline.Mode) *firewallSwitch {
	t.Helper()
	c := sample(true)
	c.Mode = mode
	s := &firewallSwitch{realSwitch: start(t, c), config: c}
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

// follow commits firewalls, and returns how many flows of table 100 it set.
func (s *firewallSwitch) follow(t *testing.T, firewalls map[string]*egressfirewall.Firewall) int {
	t.Helper()
	want := s.config.Static()
	maps.Copy(want, leftToHost(s.config, "172.30.0.99"))
	for _, p := range []struct {
		pod       pipeline.Pod
		namespace string
	}{{podA, "one"}, {podB, "two"}} {
		p.pod.Isolation = policy.Isolation{}
		if f := firewalls[p.namespace]; f != nil {
			p.pod.Firewall = s.ids.ID(p.namespace)
			maps.Copy(want, pipeline.Firewalls{Config: s.config}.Flows(p.namespace, p.pod.Firewall, f))
		}
		if way, has := s.ways[p.namespace]; has {
			p.pod.VNID, p.pod.Egress = way.VNID, egressGroup(way.VNID)
			maps.Copy(want, pipeline.EgressIPs{Config: s.config}.Flows(way, p.pod.Egress))
		}
		maps.Copy(want, s.config.Pod(p.pod))
	}
	for _, r := range []pipeline.Remote{remote, outside} {
		maps.Copy(want, s.config.Remote(r))
	}
	change := reconcile.Diff(want, s.have)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.engine.Commit(ctx, change); err != nil {
		t.Fatal(err)
	}
	s.have = want
	changed := 0
	for key := range change.Set {
		if key.Table == layout.TableEgressFirewall {
			changed++
		}
	}
	return changed
}

var (
	firewallCIDRs   = []string{"0.0.0.0/0", "198.51.100.0/24", "198.51.100.128/25", "198.51.100.10/32", "203.0.113.0/24", "192.0.2.0/24", "128.0.0.0/1", "0.0.0.0/1"}
	firewallTargets = []string{"198.51.100.10", "198.51.100.11", "198.51.100.200", "203.0.113.5", "192.0.2.1", "192.0.2.77", "8.8.8.8", "223.255.255.1"}
	firewallNames   = []string{"web.example", "other.example", "unknown.example"}
)

func drawFirewallPolicy(r *rapid.T, namespace string) *networkv1.EgressNetworkPolicy {
	p := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: rapid.SampledFrom([]string{"default", "default", "default", "other"}).Draw(r, "policy")}}
	for range rapid.IntRange(0, 5).Draw(r, "rules") {
		rule := networkv1.EgressNetworkPolicyRule{Type: rapid.SampledFrom([]networkv1.EgressNetworkPolicyRuleType{"Allow", "Deny"}).Draw(r, "type")}
		if rapid.IntRange(0, 3).Draw(r, "by name") == 0 {
			rule.To.DNSName = rapid.SampledFrom(firewallNames).Draw(r, "name")
		} else {
			rule.To.CIDRSelector = rapid.SampledFrom(firewallCIDRs).Draw(r, "cidr")
		}
		p.Spec.Egress = append(p.Spec.Egress, rule)
	}
	return p
}

// The switch's decision about a pod's packet to outside is that of an oracle that shares no code with the rules, in each mode and in each
// connection state. Traffic inside the cluster is not affected.
func TestFirewallProperty(t *testing.T) {
	for _, mode := range []pipeline.Mode{pipeline.ModeMultitenant, pipeline.ModeNetworkPolicy} {
		s := startFirewalls(t, mode)
		judged, passed := 0, 0
		rapid.Check(t, func(r *rapid.T) {
			w := oracle.World{
				VNIDs: map[string]uint32{"one": 42, "two": rapid.SampledFrom([]uint32{77, 77, 77, 42, 0}).Draw(r, "VNID")},
				Names: map[string][]netip.Addr{"web.example": addrs("198.51.100.10", "203.0.113.5"), "other.example": addrs("198.51.100.10")},
			}
			x := egressfirewall.NewIndex()
			for namespace, vnid := range w.VNIDs {
				x.SetVNID(namespace, vnid)
			}
			for name, list := range w.Names {
				x.SetAddresses(name+".", list)
			}
			seen := map[string]bool{}
			for range rapid.IntRange(1, 3).Draw(r, "policies") {
				p := drawFirewallPolicy(r, rapid.SampledFrom([]string{"one", "one", "two"}).Draw(r, "namespace"))
				if key := p.Namespace + "/" + p.Name; !seen[key] {
					seen[key] = true
					w.Policies = append(w.Policies, p)
					x.SetPolicy(egressfirewall.FromObject(p))
				}
			}
			s.follow(t, x.Changed())
			from := map[string]string{"one": fromA + toGateway + "%s," + ipA, "two": "in_port=4,dl_src=0a:58:0a:80:00:06," + toGateway + "%s,nw_src=10.128.0.6,"}
			for namespace, frame := range from {
				for _, target := range firewallTargets {
					want := w.Allowed(namespace, netip.MustParseAddr(target))
					protocol := rapid.SampledFrom([]string{"tcp,tcp_dst=443", "udp,udp_dst=123", "icmp,icmp_type=8", "ip,nw_proto=47", "udp,nw_frag=later"}).Draw(r, "protocol")
					o := s.trace(t, fmt.Sprintf(frame, protocol)+"nw_dst="+target, "--ct-next", rapid.SampledFrom([]string{"trk,new", "trk,est", "trk,est,rpl"}).Draw(r, "state"))
					if got := slices.Equal(o.leaving(), []string{"2"}); got != want || len(o.leaving()) > 1 {
						r.Fatalf("%s: %s to %s, %s: leaves by %v, the oracle lets it leave: %t\n%s", mode, namespace, target, protocol, o.leaving(), want, o.text)
					}
					if judged++; want {
						passed++
					}
				}
				o := s.trace(t, fmt.Sprintf(frame, "tcp,tcp_dst=80")+"nw_dst=10.128.0.1", "--ct-next", "trk,new")
				if !slices.Equal(o.leaving(), []string{"2"}) {
					r.Fatalf("%s to the gateway leaves by %v\n%s", namespace, o.leaving(), o.text)
				}
				o = s.trace(t, fmt.Sprintf(frame, "udp,udp_dst=53")+"nw_dst=192.0.2.1", "--ct-next", "trk,new")
				if !slices.Equal(o.leaving(), []string{"2"}) {
					r.Fatalf("%s asks its node for names, and leaves by %v\n%s", namespace, o.leaving(), o.text)
				}
			}
		})
		t.Logf("%s: %d packets judged, %d of them allowed", mode, judged, passed)
		if passed == 0 || passed == judged {
			t.Errorf("of %d packets %d are allowed: that says nothing", judged, passed)
		}
	}
}

// A number without rules lets nothing out. The endpoint of a Service outside the cluster is checked itself. The host rejects packets to
// Services that it serves, because it would choose an endpoint that is not checked.
func TestFirewallStates(t *testing.T) {
	s := startFirewalls(t, pipeline.ModeNetworkPolicy)
	deny := egressfirewall.Compile([]egressfirewall.Rule{{CIDR: netip.MustParsePrefix("198.51.100.0/24")}}, nil)
	if n := s.follow(t, map[string]*egressfirewall.Firewall{"one": &deny}); n != 2 {
		t.Errorf("two ranges make %d flows", n)
	}
	service := fromA + toGateway + "sctp," + ipA + "nw_dst=172.30.0.99,sctp_dst=80"
	o := s.trace(t, service, "--ct-next", "trk,new")
	if !slices.Equal(o.leaving(), []string{"2"}) || !strings.Contains(o.text, "set_field:"+pipeline.RejectMAC().String()+"->eth_src") {
		t.Errorf("a Service that the host serves leaves by %v, not to be rejected\n%s", o.leaving(), o.text)
	}
	o = s.trace(t, strings.NewReplacer("in_port=3", "in_port=4", ":05", ":06", "10.128.0.5", "10.128.0.6").Replace(service), "--ct-next", "trk,new")
	if !slices.Equal(o.leaving(), []string{"2"}) || strings.Contains(o.text, pipeline.RejectMAC().String()) {
		t.Errorf("a pod without a firewall asks for it, and leaves by %v\n%s", o.leaving(), o.text)
	}
	none := egressfirewall.Firewall{}
	s.follow(t, map[string]*egressfirewall.Firewall{"one": &none})
	for _, target := range firewallTargets {
		if o := s.trace(t, fromA+toGateway+"tcp,"+ipA+"nw_dst="+target+",tcp_dst=443", "--ct-next", "trk,new"); len(o.leaving()) > 0 {
			t.Errorf("a firewall without rules: %s leaves by %v\n%s", target, o.leaving(), o.text)
		}
	}
	if o := s.trace(t, fromHost+"tcp,nw_src=10.128.0.1,nw_dst=10.128.0.5,tcp_dst=80", "--ct-next", "trk,new"); !slices.Equal(o.leaving(), []string{"3"}) {
		t.Errorf("the node to the pod leaves by %v", o.leaving())
	}
}
