//go:build real

package pipeline_test

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/internal/transport"
)

// byPolicies returns a node in the mode with NetworkPolicies, with two pods that no policy isolates.
func byPolicies(t *testing.T) *serviceNode {
	t.Helper()
	return byPoliciesOf(t, 2)
}

// byPoliciesOf is byPolicies with this many pods.
func byPoliciesOf(t *testing.T, pods int) *serviceNode {
	t.Helper()
	n := startNode(t, pods)
	n.config.Mode = pipeline.ModeNetworkPolicy
	n.flows = n.config.Static()
	for _, p := range n.pods {
		maps.Copy(n.flows, n.config.Pod(p.Pod))
	}
	n.apply()
	return n
}

// isolate replaces a pod's flows by those with this isolation.
func (n *serviceNode) isolate(name string, how policy.Isolation) {
	pod := n.pods[name].Pod
	for key := range n.config.Pod(pod) {
		delete(n.flows, key)
	}
	pod.Isolation = how
	maps.Copy(n.flows, n.config.Pod(pod))
	n.apply()
	n.AppCtl("revalidator/purge")
}

// listen opens a UDP socket in a pod.
func (n *serviceNode) listen(t *testing.T, pod, at string) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	err := n.pods[pod].space.Do(func(ns.NetNS) (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

const (
	// soon is the timeout for a packet that must arrive, long enough for a busy machine. Its arrival ends the wait.
	soon = 10 * time.Second
	// long is the timeout for a packet that must not arrive: arriving takes a fraction of a millisecond.
	long = 500 * time.Millisecond
)

// gets reports whether a packet from one socket reaches another within a time.
func gets(t *testing.T, from, to *net.UDPConn, within time.Duration) bool {
	t.Helper()
	if _, err := from.WriteTo([]byte("x"), to.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	if err := to.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, err := to.Read(make([]byte, 1))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return err == nil
}

// The former pod with an address leaves connections in which others still send. After a flush the next pod with the address receives
// nothing of them, and may use the same ports.
func TestAddressReuse(t *testing.T) {
	n := byPolicies(t)
	old, peer := n.listen(t, "a", "10.128.0.5:7946"), n.listen(t, "b", "10.128.0.6:7946")
	if !gets(t, old, peer, soon) || !gets(t, peer, old, soon) {
		t.Fatal("the pods do not talk")
	}
	n.isolate("a", policy.Isolation{Ingress: true, Egress: true})
	if !gets(t, peer, old, soon) {
		t.Error("the other side goes on, and is no answer: what is forgotten would say nothing")
	}
	for _, flush := range (pipeline.Services{Config: n.config}).FlushPod(netip.MustParseAddr("10.128.0.5")) {
		if err := n.engine.FlushCT(t.Context(), flush); err != nil {
			t.Fatal(err)
		}
	}
	if known := n.AppCtl("dpctl/dump-conntrack"); strings.Contains(known, "10.128.0.5") {
		t.Errorf("still known: %s", known)
	}
	if gets(t, peer, old, long) {
		t.Error("an isolated pod gets packets of the pod that had its address before")
	}
	n.isolate("a", policy.Isolation{Ingress: true})
	if !gets(t, old, peer, soon) || !gets(t, peer, old, soon) {
		t.Error("the pod cannot begin such a connection itself")
	}
}

// Connections that are older than their tracking continue if nothing isolates. With isolation, their direction is unknown, and they end.
func TestConnectionsOfBefore(t *testing.T) {
	n := byPolicies(t)
	var listener net.Listener
	if err := n.pods["b"].space.Do(func(ns.NetNS) (err error) { listener, err = net.Listen("tcp4", "10.128.0.6:80"); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	conn, err := n.dial("a", "tcp", "10.128.0.6:80")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	served, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = served.Close() }()
	arrives := func(from, to net.Conn, within time.Duration) bool {
		if _, err := from.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := to.SetReadDeadline(time.Now().Add(within)); err != nil {
			t.Fatal(err)
		}
		_, err := to.Read(make([]byte, 1))
		return err == nil
	}
	n.AppCtl("dpctl/flush-conntrack")
	if !arrives(conn, served, soon) || !arrives(served, conn, soon) {
		t.Error("the connection ended")
	}
	const unseen = "mark=2"
	if known := n.AppCtl("dpctl/dump-conntrack"); !strings.Contains(known, unseen) {
		t.Errorf("the connection is not tracked as one without an observed beginning: %s", known)
	}
	n.isolate("b", policy.Isolation{Ingress: true, KeepsIngress: true})
	if arrives(conn, served, long) {
		t.Error("the connection continues at an isolated pod")
	}
	if known := n.AppCtl("dpctl/dump-conntrack"); !strings.Contains(known, unseen) {
		t.Errorf("it ends as if it had been seen: %s", known)
	}
	n.isolate("b", policy.Isolation{})
	if !arrives(served, conn, soon) {
		t.Error("it does not go on when nothing isolates the pod any more")
	}
}

// A reply of an endpoint at the gateway's address is translated back, in every mode.
func TestGatewayIsAnEndpoint(t *testing.T) {
	for _, mode := range []pipeline.Mode{pipeline.ModeSubnet, pipeline.ModeNetworkPolicy} {
		c := sample(true)
		c.Mode = mode
		at := pipeline.Services{Config: c}.Target(transport.TCP, netip.MustParseAddrPort(c.Gateway.String()+":80"))
		sw := startWith(t, sorted(append(sections(c), section{"targets", pipeline.Services{Config: c}.TargetsRules([]pipeline.Target{at})})), 2)
		o := sw.trace(t, fromHost+"tcp,nw_src=10.128.0.1,nw_dst=10.128.0.5,tcp_src=80,tcp_dst=40000,tcp_flags=0x12", "--ct-next", "trk,est,rpl")
		if !strings.HasPrefix(o.tables, "0 21 21 ") || len(o.outputs) != 1 {
			t.Errorf("%s: an answer from the gateway takes tables %s to %v", mode, o.tables, o.outputs)
		}
	}
}

// A connection to a Service that policy refuses, at its sender or at its endpoint, opens no way for packets of the endpoint to the sender,
// although the translation has committed it: neither past the isolation of the endpoint nor past that of the sender. Once it is allowed, both
// ends reach each other.
func TestRefusedConnectionsToServicesHaveNoReplies(t *testing.T) {
	both := policy.Isolation{Egress: true, Ingress: true}
	for name, c := range map[string]struct {
		sender, endpoint policy.Isolation
		silent           bool // the endpoint sends nothing before it is asked
	}{
		"refused at the sender": {sender: both}, "refused at the endpoint": {endpoint: both},
		"refused at the sender, in silence": {sender: both, silent: true}, "refused at the endpoint, in silence": {endpoint: both, silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := byPolicies(t)
			dns := vip("dns", "172.30.0.9", transport.UDP, 53, "10.128.0.6:7946")
			n.isolate("a", c.sender)
			n.isolate("b", c.endpoint)
			n.apply(dns)
			endpoint := n.listen(t, "b", "10.128.0.6:7946")
			sender, err := n.dial("a", "udp", "172.30.0.9:53")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = sender.Close() }()
			answered := func(within time.Duration) bool {
				if _, err := endpoint.WriteTo([]byte("answer"), sender.LocalAddr()); err != nil {
					t.Fatal(err)
				}
				_ = sender.SetReadDeadline(time.Now().Add(within))
				_, err := sender.Read(make([]byte, 8))
				if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal(err)
				}
				return err == nil
			}
			ask := func() {
				if _, err := sender.Write([]byte("question")); err != nil {
					t.Fatal(err)
				}
			}
			ask()
			testwait.Until(t, "the connection is committed", func() bool {
				return strings.Contains(n.AppCtl("dpctl/dump-conntrack"), "dst=172.30.0.9")
			})
			if !c.silent && answered(long) {
				t.Error("a packet from the endpoint reaches the sender")
			}
			n.isolate("a", policy.Isolation{})
			n.isolate("b", policy.Isolation{})
			n.apply(dns)
			ask()
			_ = endpoint.SetReadDeadline(time.Now().Add(soon))
			if _, _, err := endpoint.ReadFrom(make([]byte, 8)); err != nil {
				t.Errorf("once it is allowed, the endpoint gets nothing: %v", err)
			}
			if !answered(soon) {
				t.Error("once it is allowed, the sender gets no answer")
			}
		})
	}
}
