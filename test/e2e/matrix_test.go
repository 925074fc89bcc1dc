//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/traffic"
)

// podMTU is the underlay's 1,500 bytes minus the tunnel's headers.
const podMTU = 1450

// cell is one path of the matrix.
type cell struct {
	name string
	from string // namespace
	to   netip.Addr
	at   string // the receiver's namespace
	// seen is the sender's address at the receiver. If it is invalid, own gives the sender's own address.
	seen netip.Addr
	size int // of the largest packet
}

// matrix is two pods on the first node and one on the second, and all peers that they talk to.
func matrix(c *lab.Cluster, pods []*lab.Pod) []cell {
	a, b, far := pods[0], pods[1], pods[2]
	n1, n2 := c.Node(1), c.Node(2)
	gateway := func(p *lab.Pod) netip.Addr { return netip.PrefixFrom(p.IPs[0], 23).Masked().Addr().Next() }
	return []cell{
		{"pod to pod on its node", a.Netns, b.IPs[0], b.Netns, a.IPs[0], podMTU},
		{"pod to pod on another node", a.Netns, far.IPs[0], far.Netns, a.IPs[0], podMTU},
		{"pod of the other node to pod", far.Netns, a.IPs[0], a.Netns, far.IPs[0], podMTU},
		{"pod to itself", a.Netns, a.IPs[0], a.Netns, a.IPs[0], podMTU},
		{"pod to its gateway", a.Netns, gateway(a), n1.Netns, a.IPs[0], podMTU},
		{"pod to its own host", a.Netns, n1.IP, n1.Netns, a.IPs[0], podMTU},
		{"pod to another host", a.Netns, n2.IP, n2.Netns, n1.IP, podMTU},
		{"host to its own pod", n1.Netns, a.IPs[0], a.Netns, gateway(a), podMTU},
		{"host to another node's pod", n1.Netns, far.IPs[0], far.Netns, gateway(a), podMTU},
		{"pod to outside", a.Netns, c.Outside.IP, c.Outside.Netns, n1.IP, podMTU},
		{"pod of the other node to outside", far.Netns, c.Outside.IP, c.Outside.Netns, n2.IP, podMTU},
	}
}

// All pods and nodes reach each other with their own addresses, and the outside with the node's address; by UDP, TCP and ICMP; with
// packets up to the interface's MTU.
func TestMatrix(t *testing.T) {
	c := cluster(t)
	pods := addPods(t, c, [2]string{"n1", "matrix-a"}, [2]string{"n1", "matrix-b"}, [2]string{"n2", "matrix-far"})
	for _, cell := range matrix(c, pods) {
		t.Run(strings.ReplaceAll(cell.name, " ", "-"), func(t *testing.T) { cell.check(t) })
	}
}

func (c *cell) check(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server := echo(t, c.at, c.to)
	first := ping(t, c.from, c.to)
	latency := ping(t, c.from, c.to)
	for source := range server.Sources() {
		if source != c.seen {
			t.Errorf("UDP: the receiver sees the source %s, want %s", source, c.seen)
		}
	}

	sink, err := traffic.NewSink(c.at, netip.AddrPortFrom(c.to, echoPort))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sink.Close() }()
	sent, err := traffic.Send(ctx, c.from, netip.AddrPortFrom(c.to, echoPort), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if sent.Source != c.seen {
		t.Errorf("TCP: the receiver sees the source %s, want %s", sent.Source, c.seen)
	}

	icmp, err := traffic.PingICMP(ctx, c.from, c.to, 84)
	if err != nil {
		t.Errorf("ICMP: %v", err)
	}
	if _, err := traffic.PingICMP(ctx, c.from, c.to, c.size); err != nil {
		t.Errorf("the largest packet: %v", err)
	}
	t.Logf("UDP %s (first %s), ICMP %s, TCP connect %s, 1 MiB %s; source %s",
		latency.Round(time.Microsecond), first.Round(time.Microsecond), icmp.Round(time.Microsecond),
		sent.Connect.Round(time.Microsecond), sent.Took.Round(time.Millisecond), c.seen)
}

// Agents detect the switch's datapath: the kernel's, if its module is available. The lab has looked for the module, and made the nodes'
// links accordingly.
func TestDatapath(t *testing.T) {
	c := cluster(t)
	for _, n := range c.Nodes() {
		found := strings.TrimSpace(mustRun(t, n.Enter("ovs-vsctl", "get", "Bridge", "br0", "datapath_type")))
		if found != string(c.Datapath) {
			t.Errorf("br0 of %s has datapath_type %s, want %s", n.Name, found, c.Datapath)
		}
		// This is what the switch really does: with a type that does not work here, it keeps the bridge but forwards nothing.
		datapaths := mustRun(t, n.Enter("ovs-appctl", "dpif/show"))
		if !strings.Contains(datapaths, string(c.Datapath)+"@ovs-"+string(c.Datapath)+":") || !strings.Contains(datapaths, "vxlan0 1/") {
			t.Errorf("%s does not forward br0 and its tunnel by the datapath %s:\n%s", n.Name, c.Datapath, datapaths)
		}
	}
}

// A pod's interface has the MTU that fits the tunnel, and refuses larger packets instead of losing them. The pod has its address, its
// gateway, and routes to the cluster and the Services.
func TestPodInterface(t *testing.T) {
	c := cluster(t)
	pods := addPods(t, c, [2]string{"n1", "interface-a"}, [2]string{"n2", "interface-b"})
	a, b := pods[0], pods[1]
	link := mustRun(t, a.Enter("ip", "-o", "link", "show", "eth0"))
	if !strings.Contains(link, fmt.Sprintf(" mtu %d ", podMTU)) {
		t.Errorf("eth0 has no MTU of %d: %s", podMTU, link)
	}
	address := mustRun(t, a.Enter("ip", "-4", "-o", "addr", "show", "eth0"))
	if !strings.Contains(address, " "+a.IPs[0].String()+"/23 ") {
		t.Errorf("eth0 does not have %s/23: %s", a.IPs[0], address)
	}
	gateway := netip.PrefixFrom(a.IPs[0], 23).Masked().Addr().Next()
	routes := mustRun(t, a.Enter("ip", "-4", "route"))
	for _, want := range []string{"default via " + gateway.String() + " dev eth0", "10.128.0.0/14 dev eth0", "172.30.0.0/16 via " + gateway.String()} {
		if !strings.Contains(routes, want) {
			t.Errorf("no route %q among:\n%s", want, routes)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := traffic.PingICMP(ctx, a.Netns, b.IPs[0], podMTU); err != nil {
		t.Errorf("a packet of the MTU's size: %v", err)
	}
	if _, err := traffic.PingICMP(ctx, a.Netns, b.IPs[0], podMTU+1); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a packet over the MTU: %v, want %v", err, unix.EMSGSIZE)
	}
	if err := a.Check(ctx); err != nil {
		t.Errorf("CNI CHECK: %v", err)
	}
}

// Large transfers and many concurrent connections work across nodes.
func TestTransfers(t *testing.T) {
	c := cluster(t)
	pods := addPods(t, c, [2]string{"n1", "transfer-a"}, [2]string{"n2", "transfer-b"})
	a, b := pods[0], pods[1]
	to := netip.AddrPortFrom(b.IPs[0], echoPort)
	sink, err := traffic.NewSink(b.Netns, to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sink.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	const size = 10 << 20
	one, err := traffic.Send(ctx, a.Netns, to, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("10 MiB across nodes in %s: %.0f Mbit/s", one.Took.Round(time.Millisecond), size*8/one.Took.Seconds()/1e6)

	const connections, each = 100, 64 << 10
	var group errgroup.Group
	begin := time.Now()
	for range connections {
		group.Go(func() error {
			_, err := traffic.Send(ctx, a.Netns, to, each)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d connections at a time, 64 KiB each, in %s", connections, time.Since(begin).Round(time.Millisecond))
}
