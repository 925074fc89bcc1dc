//go:build real

package pipeline_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/service"
)

// serviceNode is a node with a switch, a host's interface and pods that can communicate.
type serviceNode struct {
	realSwitch
	t      *testing.T
	config *pipeline.Config
	engine *bridge.Engine
	pods   map[string]*livePod
	flows  map[openflow.Key]openflow.Entry
}

// livePod is a namespace on a port of the switch.
type livePod struct {
	pipeline.Pod
	name  string
	space ns.NetNS
}

// startNode starts a node with pods a, b, c... at 10.128.0.5 and on, and ports 3 and on.
func startNode(t *testing.T, pods int) *serviceNode {
	t.Helper()
	n := &serviceNode{t: t, realSwitch: realSwitch{Switch: ovstest.Start(t)}, config: sample(true), pods: map[string]*livePod{}}
	n.config.KeepApart = false // the tests use the userspace datapath, which cannot
	n.bridge = n.Name("br")
	n.AddBridge(n.bridge)
	tun := n.Name("t")
	n.VSCtl("add-port", n.bridge, tun, "--", "set", "interface", tun, "type=internal", "ofport_request=2")
	n.flows = n.config.Static()
	n.host(tun)
	for i := range pods {
		n.addPod(i)
	}
	n.engine = bridge.NewEngine(bridge.Config{Address: n.Mgmt(n.bridge)})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.engine.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the engine ended with %v", err)
		}
	})
	return n
}

// host sets up the host's side: tun0 with the gateway's address, and the node's own address.
func (n *serviceNode) host(tun string) {
	c := n.config
	n.in(n.NetNS, "ip", "link", "set", tun, "address", pipeline.PodMAC(c.Gateway).String(), "up")
	n.in(n.NetNS, "ip", "addr", "add", netip.PrefixFrom(c.Gateway, c.LocalSubnet.Bits()).String(), "dev", tun)
	n.in(n.NetNS, "ip", "route", "add", c.ServiceNetwork.String(), "dev", tun, "src", c.Gateway.String())
	n.in(n.NetNS, "ip", "link", "set", "lo", "up")
	n.in(n.NetNS, "ip", "addr", "add", c.NodeIP.String()+"/32", "dev", "lo")
	n.in(n.NetNS, "ethtool", "-K", tun, "tx", "off")
	n.in(n.NetNS, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
}

func (n *serviceNode) addPod(i int) {
	t := n.t
	name := string(rune('a' + i))
	p := &livePod{name: name, space: ovstest.NewNetNS(t), Pod: pipeline.Pod{
		Owner: reconcile.Owner("attachment/" + name + "/eth0"), OFPort: uint32(3 + i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 128, 0, byte(5 + i)})},
	}}
	port, mac := n.Name(name), pipeline.PodMAC(p.Addrs[0])
	err := n.NetNS.Do(func(ns.NetNS) error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: port}, PeerName: "eth0", PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(int(p.space.Fd())),
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	n.in(n.NetNS, "ip", "link", "set", port, "up")
	n.in(n.NetNS, "ethtool", "-K", port, "tx", "off")
	n.in(p.space, "ethtool", "-K", "eth0", "tx", "off")
	n.in(p.space, "ip", "link", "set", "lo", "up")
	n.in(p.space, "ip", "link", "set", "eth0", "up")
	n.in(p.space, "ip", "addr", "add", p.Addrs[0].String()+"/32", "dev", "eth0")
	// The kernel's side of a userspace switch's port would answer ARP too, which is not tested here.
	n.in(p.space, "ip", "neigh", "add", n.config.Gateway.String(), "lladdr", pipeline.PodMAC(n.config.Gateway).String(), "dev", "eth0")
	n.in(p.space, "ip", "route", "add", n.config.Gateway.String(), "dev", "eth0", "scope", "link")
	n.in(p.space, "ip", "route", "add", "default", "via", n.config.Gateway.String())
	n.VSCtl("add-port", n.bridge, port, "--", "set", "interface", port, fmt.Sprintf("ofport_request=%d", p.OFPort))
	maps.Copy(n.flows, n.config.Pod(p.Pod))
	n.pods[name] = p
}

func (n *serviceNode) in(space ns.NetNS, program string, args ...string) {
	n.t.Helper()
	err := space.Do(func(ns.NetNS) error {
		if out, err := exec.CommandContext(n.t.Context(), program, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
		}
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

// apply commits the flows of the given Services, and returns the change.
func (n *serviceNode) apply(list ...service.VirtualAddress) bridge.Change {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 30*time.Second)
	defer cancel()
	want := maps.Clone(n.flows)
	maps.Copy(want, serviceState(n.config, list))
	change := reconcile.Diff(want, n.read(ctx, n.t, n.engine))
	if err := n.engine.Commit(ctx, change); err != nil {
		n.t.Fatal(err)
	}
	if rest := reconcile.Diff(want, n.read(ctx, n.t, n.engine)); !rest.Empty() {
		n.t.Fatalf("once committed, it differs: %v", rest)
	}
	n.AppCtl("revalidator/wait") // the datapath follows within milliseconds
	return change
}

// flush flushes the connections that a change outdated.
func (n *serviceNode) flush(before, after []service.VirtualAddress) {
	n.t.Helper()
	for _, s := range service.Outdated(before, after) {
		if err := n.engine.FlushCT(n.t.Context(), (pipeline.Services{Config: n.config}).Flush(s)); err != nil {
			n.t.Fatal(err)
		}
	}
}

// serve answers every connection and datagram with the server's name and the client's address.
func (n *serviceNode) serve(space ns.NetNS, name, network, at string) {
	n.t.Helper()
	err := space.Do(func(ns.NetNS) error {
		if network == "udp" {
			conn, err := net.ListenPacket("udp4", at)
			if err != nil {
				return err
			}
			n.t.Cleanup(func() { _ = conn.Close() })
			go answerDatagrams(conn, name)
			return nil
		}
		l, err := net.Listen("tcp4", at)
		if err != nil {
			return err
		}
		n.t.Cleanup(func() { _ = l.Close() })
		go answerConnections(l, name)
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

func answerDatagrams(conn net.PacketConn, name string) {
	b := make([]byte, 2048)
	for {
		_, from, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo([]byte(answer(name, from)), from)
	}
}

func answerConnections(l net.Listener, name string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			// Line by line, so that a connection can stay open.
			for in := bufio.NewScanner(conn); in.Scan(); {
				_, _ = conn.Write([]byte(answer(name, conn.RemoteAddr()) + "\n"))
			}
		}()
	}
}

func answer(name string, from net.Addr) string {
	host, _, _ := net.SplitHostPort(from.String())
	return name + " sees " + host
}

// replies is how long a reply is waited for that must come.
const replies = soon

// dial connects from a pod.
func (n *serviceNode) dial(pod, network, to string) (net.Conn, error) {
	return n.dialWithin(replies, pod, network, to)
}

// dialWithin connects from a pod in a time.
func (n *serviceNode) dialWithin(limit time.Duration, pod, network, to string) (net.Conn, error) {
	var conn net.Conn
	err := n.pods[pod].space.Do(func(ns.NetNS) (err error) {
		conn, err = (&net.Dialer{Timeout: limit}).Dial(network+"4", to)
		return err
	})
	return conn, err
}

// say sends a line and returns the reply.
func say(conn net.Conn) (string, error) { return sayWithin(replies, conn) }

// sayWithin sends a line and returns the reply, if it comes in a time.
func sayWithin(limit time.Duration, conn net.Conn) (string, error) {
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		return "", err
	}
	b := make([]byte, 2048)
	k, err := conn.Read(b)
	return strings.TrimSpace(string(b[:k])), err
}

// ask makes a new connection and returns the reply, or an error.
func (n *serviceNode) ask(pod, network, to string) (string, error) {
	conn, err := n.dial(pod, network, to)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	return say(conn)
}

// silent fails the test if there is a reply on a new connection.
func (n *serviceNode) silent(pod, network, to string) {
	n.t.Helper()
	conn, err := n.dialWithin(long, pod, network, to)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	if got, err := sayWithin(long, conn); err == nil {
		n.t.Errorf("%s asks %s %s: %q, want no reply", pod, network, to, got)
	}
}

// want compares the reply on a new connection.
func (n *serviceNode) want(pod, network, to, answer string) {
	n.t.Helper()
	got, err := n.ask(pod, network, to)
	if err != nil || got != answer {
		n.t.Errorf("%s asks %s %s: %q (%v), want %q\n%s", pod, network, to, got, err, answer, n.AppCtl("dpctl/dump-conntrack"))
	}
}

// tally counts the replies on several connections.
func (n *serviceNode) tally(pod, network, to string, times int) map[string]int {
	n.t.Helper()
	count := map[string]int{}
	for range times {
		got, err := n.ask(pod, network, to)
		if err != nil {
			n.t.Fatalf("%s asks %s %s: %v\n%s", pod, network, to, err, n.AppCtl("dpctl/dump-conntrack"))
		}
		count[got]++
	}
	return count
}
