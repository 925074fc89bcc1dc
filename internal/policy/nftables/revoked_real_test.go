//go:build real

package nftables_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/policy/oracle"
)

// openNode returns a node with three pods that nothing isolates.
func openNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t, 3)
	n.start(t)
	open := web(false)
	if err := n.enforcer.Update(t.Context(), changeOf(t, open)); err != nil {
		t.Fatal(err)
	}
	n.admit(t, open)
	return n
}

// connect connects from a namespace.
func connect(t *testing.T, from, network, to string, port uint16) net.Conn {
	t.Helper()
	c, err := dial(t, from, network, netip.AddrPortFrom(netip.MustParseAddr(to), port), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// When a permission is revoked, its connections end, whichever side sends. An annotation keeps them. A connection that an isolated pod
// began continues.
func TestRevoked(t *testing.T) {
	n := openNode(t)
	server, client, node := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr(gateway4)
	connect := func(pod int, network string, to netip.Addr, port uint16) net.Conn {
		t.Helper()
		return connect(t, n.pods[pod], network, to.String(), port)
	}
	pushed := n.push(t)
	in, begun, toNode := connect(1, "tcp", server, 80), connect(0, "tcp", client, 80), connect(0, "tcp", node, 80)
	datagrams := connect(1, "udp", server, 85)
	fromServer := connect(1, "tcp", server, 7)
	fromNode, err := dial(t, n.space, "tcp", netip.AddrPortFrom(server, 80), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer fromNode.Close()
	goesOn := func(what string, c net.Conn) {
		t.Helper()
		if err := echo(c, patience); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	set := func(w oracle.World) {
		t.Helper()
		if err := n.enforcer.Update(t.Context(), changeOf(t, w)); err != nil {
			t.Fatal(err)
		}
	}
	set(web(true, networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress))
	goesOn("kept, to the server", in)
	goesOn("kept, of the server", begun)
	goesOn("kept, datagrams", datagrams)
	set(web(false, networkingv1.PolicyTypeIngress))
	goesOn("begun by the isolated pod", begun)
	goesOn("begun by the isolated pod, to the node", toNode)
	goesOn("begun by the node", fromNode)
	pushed <- struct{}{}
	data := make([]byte, 64)
	_ = fromServer.SetReadDeadline(time.Now().Add(impatience))
	if _, err := fromServer.Read(data); err == nil {
		t.Error("the server's side of a connection that was revoked goes on")
	}
	for what, c := range map[string]net.Conn{"TCP": in, "UDP": datagrams, "TCP, after the server has sent": fromServer} {
		if err := echo(c, impatience); err == nil {
			t.Errorf("a connection of %s that was revoked goes on", what)
		}
	}
	set(web(false, networkingv1.PolicyTypeEgress))
	for what, c := range map[string]net.Conn{"pod": begun, "node": toNode} {
		if err := echo(c, impatience); err == nil {
			t.Errorf("a connection to a %s that was revoked goes on", what)
		}
	}
	goesOn("begun by the node, to a pod isolated for egress", fromNode)
}

// What a policy does not allow any more stops with the transaction of nftables, before the pass over conntrack, which takes the longer the
// larger the kernel's table is. What an isolated pod began continues, and what a policy keeps as well.
func TestRevokedBeforeThePass(t *testing.T) {
	n := openNode(t)
	in := map[string]net.Conn{
		"TCP": connect(t, n.pods[1], "tcp", "10.0.0.1", 80), "UDP": connect(t, n.pods[1], "udp", "fd00::1", 85), "TCP from outside": connect(t, n.outside, "tcp", "10.0.0.1", 80),
	}
	out := map[string]net.Conn{
		"TCP": connect(t, n.pods[0], "tcp", "10.0.0.2", 80), "to the node": connect(t, n.pods[0], "tcp", gateway4, 80), "from the node": connect(t, n.space, "tcp", "10.0.0.1", 80),
	}
	for _, step := range []struct {
		name    string
		world   oracle.World
		in, out bool
	}{
		{"kept", web(true, networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress), true, true},
		{"isolated for ingress", web(false, networkingv1.PolicyTypeIngress), false, true},
	} {
		checked := false
		check := func() {
			checked = true
			for side, conns := range map[bool]map[string]net.Conn{step.in: in, step.out: out} {
				for what, c := range conns {
					wait := impatience
					if side {
						wait = patience
					}
					if err := echo(c, wait); side != (err == nil) {
						t.Errorf("%s: %s before the pass: %v", step.name, what, err)
					}
				}
			}
		}
		n.beforePass.Store(&check)
		if err := n.enforcer.Update(t.Context(), changeOf(t, step.world)); err != nil {
			t.Fatal(err)
		}
		n.beforePass.Store(nil)
		if !checked {
			t.Errorf("%s: no pass over conntrack", step.name)
		}
	}
}

// push makes the server send at TCP port 7 at each value in the channel.
func (n *node) push(t *testing.T) chan struct{} {
	t.Helper()
	reported := make(chan struct{})
	nstest.Do(t, n.pods[0], func() error {
		l, err := net.Listen("tcp", ":7")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			data := make([]byte, 64)
			size, _ := c.Read(data)
			_, _ = c.Write(data[:size])
			<-reported
			_, _ = c.Write([]byte("pushed"))
			_, _ = io.Copy(c, c)
		}()
		return nil
	})
	return reported
}
