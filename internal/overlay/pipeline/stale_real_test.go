//go:build real

package pipeline_test

import (
	"bufio"
	"bytes"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
)

// modes are all modes.
func modes() []pipeline.Mode {
	return []pipeline.Mode{pipeline.ModeSubnet, pipeline.ModeMultitenant, pipeline.ModeNetworkPolicy}
}

// proxy serves an address on the host, for TCP and UDP, in place of kube-proxy, and rejects what the switch wants rejected.
func (n *serviceNode) proxy(address string) {
	n.serve(n.NetNS, "kube-proxy", "tcp", "10.128.0.1:81")
	n.serve(n.NetNS, "kube-proxy", "udp", "10.128.0.1:81")
	n.in(n.NetNS, "nft", rejectRules())
	n.in(n.NetNS, "nft", "add table ip k; add chain ip k p { type nat hook prerouting priority -100; };"+
		"add rule ip k p ip daddr "+address+" meta l4proto { tcp, udp } ether saddr != "+pipeline.RejectMAC().String()+" dnat to 10.128.0.1:81")
}

// upload sends more than a window of TCP, and reads the replies.
func upload(conn net.Conn) error {
	const lines, length = 20, 60_000
	if err := conn.SetDeadline(time.Now().Add(soon)); err != nil {
		return err
	}
	line := append(bytes.Repeat([]byte("x"), length), '\n')
	for range lines {
		if _, err := conn.Write(line); err != nil {
			return err
		}
	}
	in := bufio.NewReader(conn)
	for range lines {
		if _, err := in.ReadString('\n'); err != nil {
			return err
		}
	}
	return nil
}

// A pod sends as much as it likes to a Service that the host serves, although the switch may see none of the replies.
func TestUploadToTheHost(t *testing.T) {
	for _, mode := range modes() {
		t.Run(string(mode), func(t *testing.T) {
			n := startNode(t, 1)
			n.setMode(mode)
			n.proxy("172.30.0.77")
			maps.Copy(n.flows, leftToHost(n.config, "172.30.0.77"))
			n.apply()
			conn, err := n.dial("a", "tcp", "172.30.0.77:80")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if err := upload(conn); err != nil {
				t.Errorf("%v\n%s", err, n.AppCtl("dpctl/dump-conntrack"))
			}
		})
	}
}

// Datagrams of all lengths reach a Service in one connection. If the first one is fragmented, the host serves it; with policies, the host
// serves the connection from then on, because conntrack has its entry.
func TestFragmentsFirst(t *testing.T) {
	for _, mode := range modes() {
		t.Run(string(mode), func(t *testing.T) {
			n := startNode(t, 2)
			n.setMode(mode)
			n.proxy("172.30.0.77")
			n.serve(n.pods["b"].space, "b", "udp", ":5353")
			n.apply(vip("dns", "172.30.0.77", transport.UDP, 53, "10.128.0.6:5353"))
			conn, err := n.dial("a", "udp", "172.30.0.77:53")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			ask := func(length int) (string, error) {
				_ = conn.SetDeadline(time.Now().Add(soon))
				if _, err := conn.Write(bytes.Repeat([]byte("x"), length)); err != nil {
					return "", err
				}
				b := make([]byte, 2048)
				k, err := conn.Read(b)
				return string(b[:k]), err
			}
			small := "b sees 10.128.0.5"
			if mode == pipeline.ModeNetworkPolicy {
				small = "kube-proxy sees 10.128.0.5"
			}
			const fragmented, whole = 4000, 10
			if got, err := ask(fragmented); err != nil || got != "kube-proxy sees 10.128.0.5" {
				t.Fatalf("a fragmented datagram: %q, %v", got, err)
			}
			for range 3 {
				if got, err := ask(whole); err != nil || got != small {
					t.Errorf("a datagram after a fragmented one: %q, %v; want %q\n%s", got, err, small, n.AppCtl("dpctl/dump-conntrack"))
				}
			}
		})
	}
}

// A pod that is isolated in both directions is refused like others by a Service without endpoints, and by one that the switch does not have.
func TestIsolatedPodIsRefused(t *testing.T) {
	n := byPolicies(t)
	n.in(n.NetNS, "nft", rejectRules())
	n.isolate("a", policy.Isolation{Ingress: true, Egress: true})
	n.apply(vip("none", "172.30.0.13", transport.TCP, 80), vip("noneu", "172.30.0.13", transport.UDP, 53))
	for network, to := range map[string]string{"tcp": "172.30.0.13:80", "udp": "172.30.0.13:53"} {
		if got, err := n.ask("a", network, to); !refused(err) {
			t.Errorf("by %s: %q, %v; want it refused", network, got, err)
		}
	}
}

// A client of a project with egress IPs, all of whose connections are tracked, is served from the port from which it was refused before.
func TestRefusedPodWithEgressIP(t *testing.T) {
	n := startNode(t, 2)
	n.setMode(pipeline.ModeMultitenant)
	const group, port, to = 4138, 40000, "172.30.0.10:80"
	pod := n.pods["a"].Pod
	for key := range n.config.Pod(pod) {
		delete(n.flows, key)
	}
	pod.Egress = group
	maps.Copy(n.flows, n.config.Pod(pod))
	maps.Copy(n.flows, pipeline.EgressIPs{Config: n.config}.Flows(pipeline.EgressWay{VNID: 42, Here: true}, group))
	n.in(n.NetNS, "nft", rejectRules())
	n.serve(n.pods["b"].space, "b", "tcp", ":8080")
	n.apply(vip("web", "172.30.0.10", transport.TCP, 80))
	n.refusedFrom(port, to)
	n.apply(vip("web", "172.30.0.10", transport.TCP, 80, "10.128.0.6:8080"))
	n.servedFrom(port, to)
}

// A client that was refused at a node port, because the Service had no endpoint, is served from the same port once there is one.
func TestRefusedAtNodePort(t *testing.T) {
	for _, mode := range modes() {
		t.Run(string(mode), func(t *testing.T) {
			n := startNode(t, 2)
			n.setMode(mode)
			n.serve(n.pods["b"].space, "b", "tcp", ":8080")
			nodePort := func(to ...string) service.VirtualAddress {
				v := vip("web", "172.30.0.10", transport.TCP, 30080, to...)
				v.Kind, v.IP = service.KindNodePort, netip.Addr{}
				return v
			}
			n.apply(nodePort())
			const port, to = 40000, "192.0.2.1:30080"
			n.refusedFrom(port, to)
			if known := n.AppCtl("dpctl/dump-conntrack"); mode != pipeline.ModeNetworkPolicy && strings.Contains(known, "dport=30080") {
				t.Errorf("the refused connection has an entry: %s", known)
			}
			n.apply(nodePort("10.128.0.6:8080"))
			n.servedFrom(port, to)
		})
	}
}

// A direct connection to a port continues while the only Service with an endpoint at that port is deleted and created again. In between, the
// switch does not track the connection.
func TestServiceIsCreatedAgain(t *testing.T) {
	for _, mode := range modes() {
		t.Run(string(mode), func(t *testing.T) {
			n := startNode(t, 2)
			n.setMode(mode)
			n.serve(n.pods["b"].space, "b", "tcp", ":8080")
			web := vip("web", "172.30.0.10", transport.TCP, 80, "10.128.0.6:8080")
			n.apply(web)
			conn, err := n.dial("a", "tcp", "10.128.0.6:8080")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if got, err := say(conn); err != nil || got != "b sees 10.128.0.5" {
				t.Fatalf("with the Service: %q, %v", got, err)
			}
			n.apply()
			for _, target := range targets(n.config, []service.VirtualAddress{web}) {
				if mode == pipeline.ModeNetworkPolicy {
					break // everything is tracked
				}
				if err := n.engine.FlushCT(t.Context(), pipeline.Services{Config: n.config}.FlushTarget(target)); err != nil {
					t.Fatal(err)
				}
			}
			if err := upload(conn); err != nil {
				t.Fatalf("without it: %v", err)
			}
			n.apply(web)
			if got, err := say(conn); err != nil || got != "b sees 10.128.0.5" {
				t.Errorf("with it again: %q, %v\n%s", got, err, n.AppCtl("dpctl/dump-conntrack"))
			}
			n.want("a", "tcp", "172.30.0.10:80", "b sees 10.128.0.5")
		})
	}
}
