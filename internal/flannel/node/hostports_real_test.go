//go:build real

package node_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/cni"
)

// mirrors answers each connection and each datagram at a port of a namespace with the client's address.
func mirrors(t *testing.T, space ns.NetNS, port int) {
	t.Helper()
	var listener net.Listener
	var datagrams net.PacketConn
	err := space.Do(func(ns.NetNS) error {
		var errs [2]error
		listener, errs[0] = net.Listen("tcp", fmt.Sprintf(":%d", port))
		datagrams, errs[1] = net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		return errors.Join(errs[:]...)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(listener.Close(), datagrams.Close()) })
	host := func(a net.Addr) []byte {
		text, _, _ := net.SplitHostPort(a.String())
		return []byte(text)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(host(conn.RemoteAddr()))
			_ = conn.Close()
		}
	}()
	go func() {
		data := make([]byte, 64)
		for {
			_, from, err := datagrams.ReadFrom(data)
			if err != nil {
				return
			}
			_, _ = datagrams.WriteTo(host(from), from)
		}
	}()
}

// asks returns the client's address as the listener at an address sees it.
func asks(from ns.NetNS, to string, within time.Duration) (seen string, err error) {
	err = from.Do(func(ns.NetNS) error {
		conn, err := net.DialTimeout("tcp", to, within)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		data, err := io.ReadAll(conn)
		seen = string(data)
		return err
	})
	return seen, err
}

// uplink connects a node with a neighbour outside, which has routes to the node's pods.
func uplink(t *testing.T, node ns.NetNS) (outside ns.NetNS) {
	t.Helper()
	outside = space(t)
	err := node.Do(func(ns.NetNS) error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: "far", PeerNamespace: netlink.NsFd(int(outside.Fd()))}
		return netlink.LinkAdd(pair)
	})
	if err != nil {
		t.Fatal(err)
	}
	for at, name := range map[ns.NetNS]string{node: "uplink", outside: "far"} {
		host := map[string]int{"uplink": 1, "far": 9}[name]
		err := at.Do(func(ns.NetNS) error {
			for _, line := range []string{
				fmt.Sprintf("addr add 192.0.2.%d/24 dev %s", host, name), fmt.Sprintf("addr add 2001:db8::%d/64 dev %s nodad", host, name),
				"link set lo up", "link set " + name + " up",
			} {
				if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
					return fmt.Errorf("ip %s: %w %s", line, err, out)
				}
			}
			// On a node, the agent and the daemon turn forwarding on.
			return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0), os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return outside
}

func publish(t *testing.T, h *lifecycle.Handler, name string, pod ns.NetNS, ports ...cni.PortMapping) (*types100.Result, error) {
	t.Helper()
	return addWith(t, h, name, pod, cni.RuntimeConfig{PortMappings: ports})
}

// TestHostPorts: host ports lead to the pod from outside, from the node, from another pod and from the pod itself, by IPv4 and IPv6, also
// after a restart of the agent and after another program has removed the rules; a second pod cannot have the port; a DEL ends it.
func TestHostPorts(t *testing.T) {
	s := newStage(t)
	outside := uplink(t, s.space)
	h, stop := serveUntil(t, s)
	pod, other := space(t), space(t)
	tcp, udp := cni.PortMapping{HostPort: 8080, ContainerPort: 80}, cni.PortMapping{HostPort: 8080, ContainerPort: 80, Protocol: "udp"}
	one := cni.PortMapping{HostPort: 8081, ContainerPort: 80, HostIP: "2001:db8::1"}
	result, err := publish(t, h, "web", pod, tcp, udp, one)
	if err != nil {
		t.Fatal(err)
	}
	asked, err := add(t, h, "other", other)
	if err != nil {
		t.Fatal(err)
	}
	mirrors(t, pod, 80)
	gateway := func(i int) string { return s.state.Subnets[i].Addr().Next().String() }
	cases := []struct {
		name string
		from ns.NetNS
		to   string
		sees string
	}{
		{"outside", outside, "192.0.2.1:8080", "192.0.2.9"},
		{"outside", outside, "[2001:db8::1]:8080", "2001:db8::9"},
		{"outside, at one address", outside, "[2001:db8::1]:8081", "2001:db8::9"},
		{"node", s.space, "192.0.2.1:8080", "192.0.2.1"},
		{"node", s.space, "127.0.0.1:8080", gateway(0)},
		{"node", s.space, "[2001:db8::1]:8080", "2001:db8::1"},
		{"another pod", other, "192.0.2.1:8080", asked.IPs[0].Address.IP.String()},
		{"another pod", other, gateway(0) + ":8080", asked.IPs[0].Address.IP.String()},
		{"another pod", other, "[2001:db8::1]:8080", asked.IPs[1].Address.IP.String()},
		{"the pod itself", pod, "192.0.2.1:8080", gateway(0)},
		{"the pod itself", pod, "[2001:db8::1]:8080", gateway(1)},
	}
	all := func(when string) {
		t.Helper()
		for _, c := range cases {
			got, err := asks(c.from, c.to, 10*time.Second)
			if want := netip.MustParseAddr(c.sees).String(); err != nil || got != want {
				t.Errorf("%s: from %s to %s: the pod sees %q, %v, want %s", when, c.name, c.to, got, err, want)
			}
		}
	}
	all("at first")
	for _, to := range []string{"192.0.2.1:8081", "192.0.2.1:80", "[2001:db8::1]:80"} {
		if got, err := asks(outside, to, time.Second); err == nil {
			t.Errorf("%s answers %q", to, got)
		}
	}
	if _, err := publish(t, h, "second", space(t), tcp); cni.AsError(err) == nil || cni.AsError(err).Code != cni.CodeTryAgainLater || !strings.Contains(err.Error(), "default/web") {
		t.Errorf("a second pod with the host port: %v", err)
	}
	stop()
	all("without an agent")
	runNFT(t, s.space, "delete table inet weft-flannel")
	h = serve(t, s)
	eventually(t, "the rules are there again", func() error {
		_, err := asks(outside, "192.0.2.1:8080", time.Second)
		return err
	})
	all("with the next agent")

	// A client that goes on sending while no pod has the port reaches the next one.
	sender := datagrams(t, outside, "udp4 192.0.2.1:8080")
	sends := func() error {
		if err := sender.SetDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return err
		}
		_, _ = sender.Write([]byte("x")) // an ICMP unreachable causes an error of the next write
		_, err := sender.Read(make([]byte, 64))
		return err
	}
	eventually(t, "a datagram is answered", sends)
	if err := h.Del(t.Context(), &cni.Request{Command: cni.CommandDel, ContainerID: "web", IfName: "eth0", Netns: pod.Path(), Args: cni.Args{PodNamespace: "default", PodName: "web"}, NetConf: &cni.NetConf{}}); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"192.0.2.1:8080", "[2001:db8::1]:8081"} {
		if got, err := asks(outside, to, time.Second); err == nil {
			t.Errorf("after DEL, %s answers %q", to, got)
		}
	}
	if err := sends(); err == nil {
		t.Error("after DEL, a datagram is answered")
	}
	next := space(t)
	if _, err := publish(t, h, "next", next, tcp, udp); err != nil {
		t.Fatal(err)
	}
	mirrors(t, next, 80)
	if result.IPs[0].Address.IP == nil {
		t.Fatal("no address")
	}
	eventually(t, "a datagram of the same client is answered by the next pod", sends)
	if got, err := asks(outside, "192.0.2.1:8080", 10*time.Second); err != nil || got != "192.0.2.9" {
		t.Errorf("the next pod sees %q, %v", got, err)
	}
}
