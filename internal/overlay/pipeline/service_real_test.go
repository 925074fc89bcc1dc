//go:build real

package pipeline_test

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/internal/transport"
)

// serviceWalk is a packet and its expected path.
type serviceWalk struct {
	name, packet, state string // state is the connection's, as in conntrack
	tables              string
	say                 string // text in the trace
}

func serviceWalks() []serviceWalk {
	tcp := fromA + toGateway + "tcp," + ipA
	udp := fromA + toGateway + "udp," + ipA
	return []serviceWalk{
		{"a new connection", tcp + "nw_dst=172.30.0.11,tp_dst=80", "trk,new", "0 20 21 22 25", "ct(commit,table=27,zone=65280,nat(dst=10.128.0.5:8080))"},
		{"UDP", udp + "nw_dst=172.30.0.2,udp_dst=53", "trk,new", "0 20 21 22 25", "group:"},
		{"SCTP", fromA + toGateway + "sctp," + ipA + "nw_dst=172.30.0.3,sctp_dst=3868", "trk,new", "0 20 21 22 25", "nat(dst=10.128.0.6:3868))"},
		{"a connection that is known", tcp + "nw_dst=10.128.0.6,tp_dst=8080", "trk,est,dnat", "0 20 21 27 30 70 80", "output:NXM_NX_REG2[]"},
		{"the first packet again, translated already", tcp + "nw_dst=10.128.0.6,tp_dst=8080", "trk,new,dnat", "0 20 21 27 30 70 80", "output:NXM_NX_REG2[]"},
		{"translated to what is a node port too", tcp + "nw_dst=192.0.2.2,tp_dst=30080", "trk,new,dnat", "0 20 21 22 25 21 27 30 99 100 101", "output:2"},
		{"another port of the address", tcp + "nw_dst=172.30.0.11,tp_dst=81", "trk,new", "0 20 21 22 25 27 30 60", "output:2"},
		{"another protocol", udp + "nw_dst=172.30.0.11,udp_dst=80", "trk,new", "0 20 21 22 25 27 30 60", "output:2"},
		{"an endpoint outside the pods' network", tcp + "nw_dst=172.30.0.1,tp_dst=443", "trk,new", "0 20 21 22 25", "nat(dst=192.0.2.2:6443))"},
		{"no endpoints", tcp + "nw_dst=172.30.0.13,tp_dst=80", "trk,new", "0 20 21 22 25 60", "output:2"},
		{"none on this node", tcp + "nw_dst=172.30.0.14,tp_dst=80", "trk,new", "0 20 21 22 25", "drop"},
		{"an external address", tcp + "nw_dst=192.0.2.50,tp_dst=80", "trk,new", "0 20 21 22 25 21 22 25", "group:"},
		{"a load balancer that is not for this pod", tcp + "nw_dst=192.0.2.60,tp_dst=80", "trk,new", "0 20 21 22 25 21 22 25", "drop"},
		{"a load balancer that is for this pod", "in_port=4,dl_src=0a:58:0a:80:00:06," + toGateway + "tcp,nw_src=10.128.0.6,nw_dst=192.0.2.60,tp_dst=80", "trk,new", "0 20 21 22 25 21 22 25", "group:"},
		{"a node port at this node", tcp + "nw_dst=192.0.2.1,tp_dst=30080", "trk,new", "0 20 21 22 25 21 22 25", "group:"},
		{"a node port at another node", tcp + "nw_dst=192.0.2.3,tp_dst=30080", "trk,new", "0 20 21 22 25 21 22 25", "group:"},
		{"a node port of policy Local at this node", tcp + "nw_dst=192.0.2.1,tp_dst=30081", "trk,new", "0 20 21 22 25 21 22 25", "nat(dst=10.128.0.6:8080))"},
		{"a node port of policy Local at another node", tcp + "nw_dst=192.0.2.2,tp_dst=30081", "trk,new", "0 20 21 22 25 27 30 99 100 101", "output:2"},
		{"a node port's number at no node", tcp + "nw_dst=198.51.100.10,tp_dst=30080", "trk,new", "0 20 21 22 25 27 30 99 100 101", "output:2"},
		{"affinity", tcp + "nw_dst=172.30.0.12,tp_dst=80", "trk,new", "0 20 21 22 25 24 26 26", "learn(table=24"},
		{"to itself, translated", fromA + toGateway + "tcp," + ipA + "nw_dst=10.128.0.5,tp_dst=8080", "trk,est,dnat", "0 20 21 27 30 70", "IN_PORT"},
		{"to itself, by its own doing", fromA + toGateway + "tcp," + ipA + "nw_dst=10.128.0.5,tp_dst=8080", "trk,new", "0 20 21 22 25 27 30 70 80", "skipping output to input port"},
		{"its answer to itself", tcp + "nw_dst=169.254.0.1,tp_src=8080", "trk,est,rpl", "0 20 21 27 30", "IN_PORT"},
		{"a reply without a connection", tcp + "nw_dst=169.254.0.1,tp_src=8080", "trk,new", "0 20 21 22 25 27 30", "drop"},
		{"a reply from another node", fromTunnel + "tcp,nw_src=10.129.0.7,nw_dst=10.128.0.5,tp_src=8080", "trk,est,rpl", "0 10 21 30 70 80", "ct(table=21,zone=65280,nat)"},
		{"a reply of the host's", fromHost + "tcp,nw_src=192.0.2.2,nw_dst=10.128.0.5,tp_src=6443", "trk,est,rpl", "0 21 30 70 80", "ct(table=21,zone=65280,nat)"},
		{"the host is not served here", fromHost + "tcp,nw_src=10.128.0.1,nw_dst=172.30.0.11,tp_dst=80", "trk,new", "0 21 30 60", "skipping output to input port"},
	}
}

// Each case passes the expected tables.
func TestServiceWalks(t *testing.T) {
	n := startNode(t, 2)
	maps.Copy(n.flows, n.config.Remote(remote))
	n.VSCtl("add-port", n.bridge, n.Name("vx"), "--", "set", "interface", n.Name("vx"), "type=vxlan", "ofport_request=1",
		"options:remote_ip=flow", "options:key=flow", "options:dst_port=4789")
	n.apply(sampleServices()...)
	for _, w := range serviceWalks() {
		t.Run(w.name, func(t *testing.T) {
			o := n.trace(t, w.packet, "--ct-next", w.state)
			// A select group depends on a hash of the datapath, and conntrack continues in table 21. So the tables of the trace are compared only up
			// to the translation, whose result the trace does not have.
			path, _, _ := strings.Cut(o.text, "nat(dst=")
			got := outcome{}
			var tables []string
			for _, m := range visited.FindAllStringSubmatch(path, -1) {
				if len(tables) == 0 || tables[len(tables)-1] != m[1] || m[1] == "26" {
					tables = append(tables, m[1])
				}
			}
			got.tables = strings.Join(tables, " ")
			if got.tables != w.tables || !strings.Contains(o.text, w.say) {
				t.Errorf("goes by %s, want %s, and %q\n%s", got.tables, w.tables, w.say, o.text)
			}
		})
	}
}

// rejectRules are the host's rules for packets that it must reject.
func rejectRules() string {
	return "add table inet t; add chain inet t p { type filter hook prerouting priority 0; };" +
		"add rule inet t p ether saddr " + pipeline.RejectMAC().String() + " meta l4proto tcp reject with tcp reset;" +
		"add rule inet t p ether saddr " + pipeline.RejectMAC().String() + " reject"
}

func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// Pods reach Services, each other and themselves.
func TestServicesCarryTraffic(t *testing.T) {
	n := startNode(t, 3)
	for _, pod := range []string{"a", "b", "c"} {
		n.serve(n.pods[pod].space, pod, "tcp", ":8080")
		n.serve(n.pods[pod].space, pod, "udp", ":5353")
	}
	n.serve(n.NetNS, "host", "tcp", "192.0.2.1:6443")
	n.in(n.NetNS, "nft", rejectRules())
	nodePort := vip("web", "172.30.0.10", transport.TCP, 30080, "10.128.0.6:8080", "10.128.0.7:8080")
	nodePort.Kind, nodePort.IP = service.KindNodePort, netip.Addr{}
	n.apply(
		vip("web", "172.30.0.10", transport.TCP, 80, "10.128.0.6:8080", "10.128.0.7:8080"), nodePort,
		vip("three", "172.30.0.20", transport.TCP, 80, "10.128.0.5:8080", "10.128.0.6:8080", "10.128.0.7:8080"),
		vip("dns", "172.30.0.2", transport.UDP, 53, "10.128.0.6:5353"), vip("dnstwo", "172.30.0.21", transport.UDP, 53, "10.128.0.6:5353", "10.128.0.7:5353"),
		vip("self", "172.30.0.11", transport.TCP, 80, "10.128.0.5:8080"), vip("selfu", "172.30.0.11", transport.UDP, 53, "10.128.0.5:5353"),
		vip("kubernetes", "172.30.0.1", transport.TCP, 443, "192.0.2.1:6443"),
		vip("none", "172.30.0.13", transport.TCP, 80), vip("noneu", "172.30.0.13", transport.UDP, 53),
	)
	t.Run("all endpoints are used, and see the client", func(t *testing.T) {
		for network, to := range map[string]string{"tcp": "172.30.0.10:80", "udp": "172.30.0.21:53"} {
			got := n.tally("a", network, to, 60)
			if got["b sees 10.128.0.5"] < 10 || got["c sees 10.128.0.5"] < 10 || len(got) != 2 {
				t.Errorf("answers by %s: %v", network, got)
			}
		}
	})
	t.Run("three endpoints, one of them the client, share alike", func(t *testing.T) {
		got := n.tally("a", "tcp", "172.30.0.20:80", 150)
		if got["a sees 169.254.0.1"] < 25 || got["b sees 10.128.0.5"] < 25 || got["c sees 10.128.0.5"] < 25 || len(got) != 3 {
			t.Errorf("answers: %v", got)
		}
	})
	t.Run("UDP", func(t *testing.T) { n.want("a", "udp", "172.30.0.2:53", "b sees 10.128.0.5") })
	t.Run("itself", func(t *testing.T) {
		n.want("a", "tcp", "172.30.0.11:80", "a sees 169.254.0.1")
		n.want("a", "udp", "172.30.0.11:53", "a sees 169.254.0.1")
		n.want("b", "tcp", "172.30.0.11:80", "a sees 10.128.0.6")
	})
	t.Run("the API server on this node", func(t *testing.T) { n.want("a", "tcp", "172.30.0.1:443", "host sees 10.128.0.5") })
	t.Run("a node port at this node", func(t *testing.T) {
		if got := n.tally("a", "tcp", "192.0.2.1:30080", 8); len(got) == 0 {
			t.Errorf("answers: %v", got)
		}
	})
	t.Run("no endpoints", func(t *testing.T) {
		for range 20 { // more than the kernel's limit of ICMP errors
			if _, err := n.ask("a", "tcp", "172.30.0.13:80"); !refused(err) {
				t.Errorf("TCP: %v, want refused", err)
			}
		}
		if _, err := n.ask("a", "udp", "172.30.0.13:53"); !refused(err) {
			t.Errorf("UDP: %v, want refused", err)
		}
	})
	t.Run("a port without a listener refuses by itself", func(t *testing.T) {
		n.apply(vip("closed", "172.30.0.30", transport.TCP, 80, "10.128.0.6:99"), vip("closedu", "172.30.0.30", transport.UDP, 53, "10.128.0.6:99"))
		if _, err := n.ask("a", "tcp", "172.30.0.30:80"); !refused(err) {
			t.Errorf("TCP: %v, want refused", err)
		}
		if _, err := n.ask("a", "udp", "172.30.0.30:53"); !refused(err) { // an ICMP error, translated back
			t.Errorf("UDP: %v, want refused", err)
		}
	})
	t.Run("a large answer and a pod's own address pass as before", func(t *testing.T) {
		n.want("a", "tcp", "10.128.0.6:8080", "b sees 10.128.0.5")
	})
	entries := n.AppCtl("dpctl/dump-conntrack")
	if !strings.Contains(entries, "orig=(src=10.128.0.5,dst=172.30.0.2,") || !strings.Contains(entries, "reply=(src=10.128.0.6,dst=10.128.0.5,sport=5353") {
		t.Errorf("conntrack has\n%s", entries)
	}
	for line := range strings.SplitSeq(entries, "\n") {
		if strings.HasPrefix(line, "udp,orig=(src=10.128.0.5,dst=10.128.0.6,") && strings.Contains(line, "dport=5353") {
			t.Errorf("a connection is known twice: %s", line)
		}
	}
}

// An endpoint that is removed gets no new connections; its existing ones continue.
func TestEndpointIsRemoved(t *testing.T) {
	n := startNode(t, 3)
	for _, pod := range []string{"b", "c"} {
		n.serve(n.pods[pod].space, pod, "tcp", ":8080")
		n.serve(n.pods[pod].space, pod, "udp", ":5353")
	}
	both := vip("web", "172.30.0.10", transport.TCP, 80, "10.128.0.6:8080", "10.128.0.7:8080")
	n.apply(both, vip("dns", "172.30.0.2", transport.UDP, 53, "10.128.0.6:5353"))
	kept, err := n.dial("a", "tcp", "172.30.0.10:80")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kept.Close() }()
	at, err := say(kept)
	if err != nil {
		t.Fatal(err)
	}
	dns, err := n.dial("a", "udp", "172.30.0.2:53")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dns.Close() }()
	if got, err := say(dns); err != nil || got != "b sees 10.128.0.5" {
		t.Fatalf("%q, %v", got, err)
	}
	left, other := "10.128.0.7:8080", "c"
	if strings.HasPrefix(at, "c") {
		left, other = "10.128.0.6:8080", "b"
	}
	before := []service.VirtualAddress{vip("dns", "172.30.0.2", transport.UDP, 53, "10.128.0.6:5353")}
	after := []service.VirtualAddress{vip("dns", "172.30.0.2", transport.UDP, 53, "10.128.0.7:5353")}
	before[0].Serving, after[0].Serving = []netip.AddrPort{before[0].Endpoints[0].Addr}, []netip.AddrPort{after[0].Endpoints[0].Addr}
	change := n.apply(vip("web", "172.30.0.10", transport.TCP, 80, left), after[0])
	for key := range change.Set {
		if key.Group == 0 {
			t.Errorf("a flow changes: %s", key)
		}
	}
	if got := n.tally("a", "tcp", "172.30.0.10:80", 20); got[other+" sees 10.128.0.5"] != 20 {
		t.Errorf("new connections: %v, want all at %s", got, other)
	}
	if got, err := say(kept); err != nil || got != at {
		t.Errorf("the old connection: %q, %v", got, err)
	}
	n.flush(before, after)
	if got, err := say(dns); err != nil || got != "c sees 10.128.0.5" {
		t.Errorf("a client that goes on sending: %q, %v", got, err)
	}
	if got, err := say(kept); err != nil || got != at {
		t.Errorf("the old TCP connection, after UDP was flushed: %q, %v", got, err)
	}
}

// A pod's packets to a Service that the switch does not have yet are refused, although the host would already serve it: its endpoint would see
// the node as the client. The Service works as soon as the switch has it. A Service that the switch leaves to the host is served by the host.
func TestServiceThatTheSwitchDoesNotHave(t *testing.T) {
	for name, mode := range map[string]pipeline.Mode{"flat": "", "policies": pipeline.ModeNetworkPolicy} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, 2)
			n.config.Mode = mode
			n.flows = n.config.Static()
			for _, pod := range n.pods {
				maps.Copy(n.flows, n.config.Pod(pod.Pod))
			}
			n.serve(n.pods["b"].space, "b", "tcp", ":8080")
			n.serve(n.pods["b"].space, "b", "udp", ":5353")
			n.serve(n.NetNS, "kube-proxy", "tcp", "10.128.0.1:81") // in place of a Service that the host serves
			n.serve(n.NetNS, "kube-proxy", "udp", "10.128.0.1:81")
			n.in(n.NetNS, "nft", "add table inet t; add chain inet t p { type filter hook prerouting priority 0; };"+
				"add rule inet t p ether saddr "+pipeline.RejectMAC().String()+" meta l4proto tcp reject with tcp reset;"+
				"add rule inet t p ether saddr "+pipeline.RejectMAC().String()+" reject")
			n.in(n.NetNS, "nft", "add table ip k; add chain ip k p { type nat hook prerouting priority -100; };"+
				"add rule ip k p ip daddr 172.30.0.77 meta l4proto { tcp, udp } ether saddr != "+pipeline.RejectMAC().String()+" dnat to 10.128.0.1:81")
			n.apply()
			for network, to := range map[string]string{"tcp": "172.30.0.77:80", "udp": "172.30.0.77:53"} {
				if got, err := n.ask("a", network, to); !refused(err) {
					t.Errorf("before the switch has the Service, by %s: %q, %v; want it refused", network, got, err)
				}
			}
			n.apply(vip("new", "172.30.0.77", transport.TCP, 80, "10.128.0.6:8080"), vip("newu", "172.30.0.77", transport.UDP, 53, "10.128.0.6:5353"))
			n.want("a", "tcp", "172.30.0.77:80", "b sees 10.128.0.5")
			n.want("a", "udp", "172.30.0.77:53", "b sees 10.128.0.5")
			maps.Copy(n.flows, leftToHost(n.config, "172.30.0.77"))
			n.apply()
			n.want("a", "tcp", "172.30.0.77:80", "kube-proxy sees 10.128.0.5")
		})
	}
}

// leftToHost returns the flows that leave a Service's address to the host.
func leftToHost(c *pipeline.Config, address string) map[openflow.Key]openflow.Entry {
	return openflow.Fragment(pipeline.Services{Config: c}.HostRules(service.Owner("ns", "elsewhere"), []netip.Addr{netip.MustParseAddr(address)}, nil))
}

// A Service that gets its first endpoint serves the client that it rejected before, from the same port.
func TestFirstEndpointIsAdded(t *testing.T) {
	n := startNode(t, 2)
	n.setMode(pipeline.ModeNetworkPolicy) // in which a refused connection is tracked
	n.serve(n.pods["b"].space, "b", "udp", ":5353")
	before, after := vip("dns", "172.30.0.2", transport.UDP, 53), vip("dns", "172.30.0.2", transport.UDP, 53, "10.128.0.6:5353")
	n.apply(before)
	conn, err := n.dial("a", "udp", "172.30.0.2:53")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the connection is known", func() bool {
		return strings.Contains(n.AppCtl("dpctl/dump-conntrack"), "dst=172.30.0.2")
	})
	n.apply(after)
	n.flush([]service.VirtualAddress{before}, []service.VirtualAddress{after})
	if got, err := say(conn); err != nil || got != "b sees 10.128.0.5" {
		t.Errorf("%q, %v", got, err)
	}
}

// A client that was refused, because the Service had no endpoint, is served from the same port once there is one: no entry of the refused
// connection is left by which the next one would pass untranslated.
func TestRefusedClientIsServedFromItsPort(t *testing.T) {
	for _, mode := range modes() {
		t.Run(string(mode), func(t *testing.T) {
			n := startNode(t, 2)
			n.setMode(mode)
			n.in(n.NetNS, "nft", rejectRules())
			n.serve(n.pods["b"].space, "b", "tcp", ":8080")
			before, after := vip("web", "172.30.0.10", transport.TCP, 80), vip("web", "172.30.0.10", transport.TCP, 80, "10.128.0.6:8080")
			n.apply(before)
			const port, to = 40000, "172.30.0.10:80"
			n.refusedFrom(port, to)
			n.apply(after)
			n.flush([]service.VirtualAddress{before}, []service.VirtualAddress{after})
			n.servedFrom(port, to)
		})
	}
}

// refusedFrom expects that pod a is refused from a port by a Service without endpoints.
func (n *serviceNode) refusedFrom(port int, to string) {
	n.t.Helper()
	if _, err := n.dialFrom("a", "tcp", port, to); !refused(err) {
		n.t.Fatalf("without an endpoint: %v", err)
	}
}

// servedFrom expects that pod a is served from a port by a Service with pod b as its endpoint.
func (n *serviceNode) servedFrom(port int, to string) {
	n.t.Helper()
	conn, err := n.dialFrom("a", "tcp", port, to)
	if err != nil {
		n.t.Fatalf("with one: %v\n%s", err, n.AppCtl("dpctl/dump-conntrack"))
	}
	defer func() { _ = conn.Close() }()
	if got, err := say(conn); err != nil || got != "b sees 10.128.0.5" {
		n.t.Errorf("%q, %v", got, err)
	}
}

// A client keeps its endpoint as long as it returns in time, also when others are added and removed.
func TestAffinity(t *testing.T) {
	n := startNode(t, 4)
	sticky := func(to ...string) service.VirtualAddress {
		v := vip("sticky", "172.30.0.12", transport.TCP, 80, to...)
		v.Affinity = 10 * time.Second // longer than the two changes below take on a busy machine
		return v
	}
	for _, pod := range []string{"b", "c", "d"} {
		n.serve(n.pods[pod].space, pod, "tcp", ":8080")
	}
	all := []string{"10.128.0.6:8080", "10.128.0.7:8080", "10.128.0.8:8080"}
	n.apply(sticky(all...))
	first := n.tally("a", "tcp", "172.30.0.12:80", 20)
	if len(first) != 1 {
		t.Fatalf("answers: %v", first)
	}
	mine := slices.Collect(maps.Keys(first))[0]
	learned := func() int {
		return strings.Count(n.OFCtl("dump-flows", n.Mgmt(n.bridge), "table=24"), "idle_timeout")
	}
	if learned() != 1 {
		t.Errorf("learned: %s", n.OFCtl("dump-flows", n.Mgmt(n.bridge), "table=24"))
	}
	// Other endpoints are removed: the client keeps its own, and nothing is learned again.
	var addr string
	for i, pod := range []string{"b", "c", "d"} {
		if strings.HasPrefix(mine, pod) {
			addr = all[i]
		}
	}
	n.apply(sticky(addr))
	n.apply(sticky(all...))
	if got := n.tally("a", "tcp", "172.30.0.12:80", 10); got[mine] != 10 {
		t.Errorf("answers once others went and came: %v, want %s", got, mine)
	}
	// The client's endpoint is removed: the learned flow is removed with it, and the client gets another. (While the datapath still has flows
	// of former packets, their statistics may make the switch learn again, so they are purged first.)
	n.AppCtl("revalidator/purge")
	rest := slices.DeleteFunc(slices.Clone(all), func(a string) bool { return a == addr })
	n.apply(sticky(rest...))
	if learned() != 0 {
		t.Errorf("learned of an endpoint that is gone: %s", n.OFCtl("dump-flows", n.Mgmt(n.bridge), "table=24"))
	}
	second := n.tally("a", "tcp", "172.30.0.12:80", 10)
	if len(second) != 1 || second[mine] != 0 {
		t.Errorf("answers once %s went: %v", mine, second)
	}
	// The endpoint is added again: the client keeps the new one until its timeout.
	n.apply(sticky(all...))
	if again := n.tally("a", "tcp", "172.30.0.12:80", 5); !maps.Equal(names(second), names(again)) {
		t.Errorf("answers: %v, then %v", second, again)
	}
	n.AppCtl("revalidator/purge") // as above: the datapath keeps its flows for longer than this Service its clients
	testwait.Until(t, "what was learned expires", func() bool { return learned() == 0 })
	if got := n.tally("a", "tcp", "172.30.0.12:80", 5); len(got) != 1 {
		t.Errorf("answers: %v", got)
	}
}

func names(count map[string]int) map[string]bool {
	set := map[string]bool{}
	for name := range count {
		set[name] = true
	}
	return set
}
