//go:build real

package nftables_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link/conntrack"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/policy/nftables"
	"weft.dev/weft/internal/policy/oracle"
	"weft.dev/weft/internal/reconcile"
)

// Addresses of the node's bridge, and of a host outside.
const (
	gateway4, gateway6 = "10.0.0.100", "fd00::100"
	outside4, outside6 = "192.0.2.1", "2001:db8::1"
)

// node is a network namespace with a bridge, pods in their own namespaces on it, and a host outside.
type node struct {
	space    string
	outside  string
	pods     []string // namespaces of p0, p1, ...
	loop     *reconcile.Loop[nftnl.Key, nftnl.Item]
	enforcer *enforcer.Enforcer
	commits  *commits
	end      func() // of the last loop
}

// commits counts the items that a loop changed.
type commits struct {
	mu    sync.Mutex
	items int
}

func (c *commits) count(e reconcile.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.items += e.Set + e.Deleted
}

func (c *commits) take() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.items
	c.items = 0
	return n
}

// ip runs commands of ip(8) in a namespace.
func ip(t *testing.T, space string, lines ...string) {
	t.Helper()
	cmd := exec.Command("nsenter", "--net="+space, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ip: %v\n%s", err, out)
	}
}

func sysctl(t *testing.T, space string, settings ...string) {
	t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=" + space, "sysctl", "-qw"}, settings...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("sysctl: %v\n%s", err, out)
	}
}

// call sets whether bridged packets of the bridge pass the chains of family inet.
func (n *node) call(t *testing.T, on int) {
	t.Helper()
	ip(t, n.space, fmt.Sprintf("link set %s type bridge nf_call_iptables %d nf_call_ip6tables %d", bridge, on, on))
}

func newNode(t *testing.T, pods int) *node {
	t.Helper()
	n := &node{space: nstest.New(t), outside: nstest.New(t)}
	sysctl(t, n.space, "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
		"net.bridge.bridge-nf-call-iptables=0", "net.bridge.bridge-nf-call-ip6tables=0") // the bridge itself calls
	ip(t, n.space, "link set lo up", "link add "+bridge+" type bridge nf_call_iptables 1 nf_call_ip6tables 1",
		"addr add "+gateway4+"/24 dev "+bridge, "addr add "+gateway6+"/64 dev "+bridge+" nodad", "link set "+bridge+" up",
		"link add eth0 type veth peer name eth0 netns "+n.outside, "addr add 192.0.2.254/24 dev eth0", "addr add 2001:db8::254/64 dev eth0 nodad",
		"link set eth0 up")
	ip(t, n.outside, "link set lo up", "addr add "+outside4+"/24 dev eth0", "addr add "+outside6+"/64 dev eth0 nodad", "link set eth0 up",
		"route add default via 192.0.2.254", "route add default via 2001:db8::254")
	serve(t, n.outside)
	serve(t, n.space)
	for i := range pods {
		space := nstest.New(t)
		ip(t, n.space, fmt.Sprintf("link add pod%d master %s type veth peer name eth0 netns %s", i, bridge, space), fmt.Sprintf("link set pod%d group 78 up", i),
			fmt.Sprintf("link set pod%d type bridge_slave hairpin on", i))
		ip(t, space, "link set lo up", fmt.Sprintf("addr add 10.0.0.%d/24 dev eth0", i+1), fmt.Sprintf("addr add fd00::%d/64 dev eth0 nodad", i+1),
			"link set eth0 up", "route add default via "+gateway4, "route add default via "+gateway6)
		serve(t, space)
		n.pods = append(n.pods, space)
	}
	n.table(t, nftnl.FamilyBridge, "weft_guard", nftables.Guard(nftables.Config{Group: 78}))
	n.begin(t, oracle.World{})
	return n
}

// table keeps a table up to date until the test ends.
func (n *node) table(t *testing.T, family nftnl.Family, name string, static nftables.Items) *reconcile.Loop[nftnl.Key, nftnl.Item] {
	t.Helper()
	engine, err := nftnl.NewEngine(nftnl.Options{Netns: n.space, Family: family, Table: name})
	if err != nil {
		t.Fatal(err)
	}
	n.commits = &commits{}
	loop := reconcile.NewLoop[nftnl.Key, nftnl.Item](engine, reconcile.Options[nftnl.Key, nftnl.Item]{Observe: n.commits.count})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = loop.Run(ctx)
	}()
	end := sync.OnceFunc(func() {
		stop()
		<-done
		engine.Close()
	})
	t.Cleanup(end)
	n.end = end
	if family == nftnl.FamilyBridge {
		if err := loop.Start(t.Context(), map[reconcile.Owner]nftables.Items{nftables.OwnerStatic: static}); err != nil {
			t.Fatal(err)
		}
	}
	return loop
}

// begin starts an agent, which finds the objects of a world with its pods attached.
func (n *node) begin(t *testing.T, w oracle.World) {
	t.Helper()
	n.loop = n.table(t, nftnl.FamilyInet, "weft_policy", nil)
	tracked, err := conntrack.New(n.space)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tracked.Close)
	lock := &sync.Mutex{}
	var e *enforcer.Enforcer
	revocations := enforcer.NewRevocations(enforcer.RevocationOptions{
		Lock: lock, Rest: func() time.Duration { return time.Millisecond },
		Settled: func(ctx context.Context, owners []reconcile.Owner) error {
			err := n.loop.Apply(ctx, nil)
			for _, o := range owners {
				err = errors.Join(err, n.loop.Failure(o))
			}
			return err
		},
		Revoke: func(context.Context) error { return nftables.Flush(tracked, e.Revoked()) },
	})
	e = enforcer.New(enforcer.Options{
		Node: "n1", Lock: lock, Revocations: revocations, PerPolicy: true, Families: enforcer.Families{IPv4: true, IPv6: true},
	})
	n.enforcer = e
	if err := e.Update(t.Context(), changeOf(t, w)); err != nil {
		t.Fatal(err)
	}
	for _, pod := range w.Pods {
		rec := record(pod)
		e.Open(&rec)
	}
	e.Compile(nftables.NewCompiler(n.loop), nil)
	e.Begin(nil)
}

func (n *node) start(t *testing.T) {
	t.Helper()
	static := map[reconcile.Owner]nftables.Items{nftables.OwnerStatic: nftables.Static(nftables.Config{Bridge: bridge, Priority: -10})}
	if err := n.loop.Start(t.Context(), static); err != nil {
		t.Fatal(err)
	}
}

// record is the attachment of a pod of a world.
func record(pod *corev1.Pod) attach.Record {
	rec := attach.Record{ContainerID: pod.Name, IfName: "eth0", PodNamespace: pod.Namespace, PodName: pod.Name, PodUID: string(pod.UID)}
	for _, of := range pod.Status.PodIPs {
		address := netip.MustParseAddr(of.IP)
		rec.Addresses = append(rec.Addresses, netip.PrefixFrom(address, address.BitLen()))
	}
	return rec
}

// changeOf returns all objects of a world as a change.
func changeOf(t interface{ Fatal(args ...any) }, w oracle.World) enforcer.Change {
	all := enforcer.Change{
		Reset: true, Policies: map[policy.Key]*policy.Policy{}, Pods: map[policy.Key]*enforcer.Pod{}, Namespaces: map[string]*policy.Namespace{},
	}
	for _, ns := range w.Namespaces {
		of := policy.FromNamespace(ns)
		all.Namespaces[ns.Name] = &of
	}
	for _, pod := range w.Pods {
		of := policy.FromPod(pod)
		all.Pods[of.Key] = &enforcer.Pod{Pod: of, UIDs: []string{string(pod.UID)}}
	}
	for _, np := range w.Policies {
		of, err := policy.FromNetworkPolicy(np)
		if err != nil {
			t.Fatal(err)
		}
		all.Policies[of.Key] = &of
	}
	return all
}

// serve echoes what it receives, in a namespace at TCP 80 and 82 and UDP 85.
func serve(t *testing.T, space string) {
	t.Helper()
	nstest.Do(t, space, func() error {
		for _, port := range []string{":80", ":82"} {
			l, err := net.Listen("tcp", port)
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						_, _ = io.Copy(c, c)
					}()
				}
			}()
		}
		c, err := net.ListenPacket("udp", ":85")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			data := make([]byte, 64)
			for {
				n, from, err := c.ReadFrom(data)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(data[:n], from)
			}
		}()
		return nil
	})
}

// dial opens a connection in a namespace, and sends data through it in both directions.
func dial(t *testing.T, space, network string, to netip.AddrPort, patience time.Duration) (net.Conn, error) {
	var c net.Conn
	err := errors.New("not tried")
	nstest.Do(t, space, func() error {
		c, err = (&net.Dialer{Timeout: patience}).Dial(network, to.String())
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err = echo(c, patience); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// echo sends through a connection and waits for the answer. It repeats datagrams.
func echo(c net.Conn, patience time.Duration) error {
	end := time.Now().Add(patience)
	data := make([]byte, 64)
	for {
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		wait := end
		if _, datagrams := c.(*net.UDPConn); datagrams {
			wait = time.Now().Add(min(patience, time.Second))
		}
		_ = c.SetReadDeadline(wait)
		if _, err := c.Read(data); err == nil {
			return nil
		} else if time.Now().After(end) || !wait.Before(end) {
			return err
		}
	}
}

// Time limits for packets that must arrive, and for packets that must not.
const (
	patience   = 60 * time.Second
	impatience = 600 * time.Millisecond
)

// end is a sender or a receiver of packets.
type end struct {
	name      string
	space     string
	addresses []netip.Addr
}

func (n *node) ends(w oracle.World) []end {
	list := []end{
		{"outside", n.outside, []netip.Addr{netip.MustParseAddr(outside4), netip.MustParseAddr(outside6)}},
		{"node", n.space, []netip.Addr{netip.MustParseAddr(gateway4), netip.MustParseAddr(gateway6)}},
	}
	for i, pod := range w.Pods {
		rec := record(pod)
		list = append(list, end{pod.Name, n.pods[i], []netip.Addr{rec.Addresses[0].Addr(), rec.Addresses[1].Addr()}})
	}
	return list
}

// judge compares where packets arrive with the oracle's verdict.
func (n *node) judge(t *testing.T, w oracle.World) {
	t.Helper()
	var group sync.WaitGroup
	for _, from := range n.ends(w) {
		for _, to := range n.ends(w) {
			if from.name == to.name || !strings.HasPrefix(from.name, "p") && !strings.HasPrefix(to.name, "p") {
				continue
			}
			for family := range 2 {
				for _, p := range []oracle.Packet{
					{Protocol: corev1.ProtocolTCP, Port: 80}, {Protocol: corev1.ProtocolTCP, Port: 82}, {Protocol: corev1.ProtocolUDP, Port: 85},
				} {
					p.Src, p.Dst = from.addresses[family], to.addresses[family]
					want := from.name == "node" || w.Allowed(p) // a node reaches its own pods
					time := impatience
					if want {
						time = patience
					}
					group.Go(func() {
						c, err := dial(t, from.space, strings.ToLower(string(p.Protocol)), netip.AddrPortFrom(p.Dst, p.Port), time)
						if err == nil {
							c.Close()
						}
						if want != (err == nil) {
							t.Errorf("%s to %s, %+v: allowed %t, seen: %v", from.name, to.name, p, want, err)
						}
					})
				}
			}
		}
	}
	group.Wait()
}

// admit attaches the pods of a world, as ADD does.
func (n *node) admit(t *testing.T, w oracle.World) {
	t.Helper()
	for _, pod := range w.Pods {
		rec := record(pod)
		n.enforcer.Open(&rec)
		if err := n.enforcer.Await(t.Context(), &rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.loop.Apply(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

// Packets of pods, of their node and from outside pass as the API's documentation says, whatever the order in which policies are added
// and deleted. A restarted agent changes nothing.
func TestPackets(t *testing.T) {
	n := newNode(t, 5)
	n.start(t)
	worlds := rapid.Custom(drawWorld)
	var last oracle.World
	for seed := range 5 {
		w := worlds.Example(seed * 7)
		for _, pod := range last.Pods {
			rec := record(pod)
			n.enforcer.Close(rec)
		}
		if err := n.enforcer.Update(t.Context(), changeOf(t, w)); err != nil {
			t.Fatal(err)
		}
		n.admit(t, w)
		n.judge(t, w)
		if t.Failed() {
			t.Fatalf("in world %d", seed)
		}
		last = w
	}
	n.end()
	n.begin(t, last)
	n.start(t)
	if changed := n.commits.take(); changed != 0 {
		t.Errorf("one that begins anew changes %d items", changed)
	}
}

// web is a world of a server and two clients, and a policy for the server that allows one of them.
func web(keep bool, types ...networkingv1.PolicyType) oracle.World {
	w := oracle.World{Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}
	for i, app := range []string{"server", "client", "other"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("p", i), Labels: map[string]string{"app": app}}}
		pod.Spec.NodeName = "n1"
		pod.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprint("10.0.0.", i+1)}, {IP: fmt.Sprint("fd00::", i+1)}}
		w.Pods = append(w.Pods, pod)
	}
	if len(types) > 0 {
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one"}}
		np.Spec.PodSelector.MatchLabels = map[string]string{"app": "server"}
		np.Spec.PolicyTypes = types
		if keep {
			np.Annotations = map[string]string{policy.AnnotationEstablished: policy.EstablishedKeep}
		}
		w.Policies = append(w.Policies, np)
	}
	return w
}

// When a permission is revoked, its connections end, whichever side sends. An annotation keeps them. A connection that an isolated pod
// began continues.
func TestRevoked(t *testing.T) {
	n := newNode(t, 3)
	n.start(t)
	open := web(false)
	if err := n.enforcer.Update(t.Context(), changeOf(t, open)); err != nil {
		t.Fatal(err)
	}
	n.admit(t, open)
	server, client, node := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr(gateway4)
	connect := func(space int, network string, to netip.Addr, port uint16) net.Conn {
		t.Helper()
		c, err := dial(t, n.pods[space], network, netip.AddrPortFrom(to, port), patience)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
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

// Pods reach nothing before they are attached, nor without the chains while bridged packets do not pass them.
func TestNotJudged(t *testing.T) {
	n := newNode(t, 3)
	n.start(t)
	w := web(false)
	if err := n.enforcer.Update(t.Context(), changeOf(t, w)); err != nil {
		t.Fatal(err)
	}
	attached := w
	attached.Pods = w.Pods[:2]
	n.admit(t, attached)
	closed := func(what string, from int, to ...string) {
		t.Helper()
		for _, text := range to {
			for network, port := range map[string]uint16{"tcp": 80, "udp": 85} {
				if c, err := dial(t, n.pods[from], network, netip.AddrPortFrom(netip.MustParseAddr(text), port), impatience); err == nil {
					c.Close()
					t.Errorf("%s: %s of %s passes", what, network, text)
				}
			}
		}
	}
	closed("a pod that is not attached", 2, "10.0.0.1", "fd00::1", gateway4, gateway6, outside4, outside6)
	closed("to a pod that is not attached", 0, "10.0.0.3", "fd00::3")
	n.judge(t, attached)
	n.call(t, 0)
	closed("while the bridge does not call", 0, "10.0.0.2", "fd00::2")
	n.call(t, 1)
	n.judge(t, attached)
	for _, pod := range attached.Pods {
		rec := record(pod)
		n.enforcer.Close(rec)
	}
	n.enforcer.Commit()
	if err := n.loop.Apply(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	closed("detached", 0, "10.0.0.2", "fd00::2", gateway4, outside4)
	want := nftables.Static(nftables.Config{Bridge: bridge, Priority: -10})
	have, err := n.loop.Read(t.Context())
	if err != nil || !maps.EqualFunc(have, want, func(a, b nftnl.Item) bool { return a.Equal(b) }) {
		t.Errorf("without pods, the table has %v, %v", have, err)
	}
}

// Nothing remains of the chains of an earlier release, which had a base chain for each direction.
func TestEarlierRelease(t *testing.T) {
	n := newNode(t, 2)
	cmd := exec.Command("nsenter", "--net="+n.space, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(`table inet weft_policy {
		map from4 { typeof ip saddr : verdict; }
		map to4 { typeof ip daddr : verdict; elements = { 10.0.0.1 : return, 10.0.0.2 : goto pods }; }
		chain one { tcp dport 80 accept; }
		chain pods { jump one; counter drop; }
		chain egress { type filter hook forward priority -10; ct state established,related accept; oifname "cni0" jump midstream-to; ip saddr vmap @from4; }
		chain ingress { type filter hook forward priority -9; ct state established,related accept; oifname != "cni0" accept; ip daddr vmap @to4; counter drop; }
		chain egress-input { type filter hook input priority -10; ct state established,related accept; }
		chain midstream-output { type filter hook output priority -10; oifname "cni0" jump midstream-to; }
		chain midstream-to { ip daddr vmap @from4; }
	}`)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	n.start(t)
	want := nftables.Static(nftables.Config{Bridge: bridge, Priority: -10})
	have, err := n.loop.Read(t.Context())
	if err != nil || !maps.EqualFunc(have, want, func(a, b nftnl.Item) bool { return a.Equal(b) }) {
		t.Errorf("the table has %v, %v", have, err)
	}
	w := web(false)
	if err := n.enforcer.Update(t.Context(), changeOf(t, w)); err != nil {
		t.Fatal(err)
	}
	w.Pods = w.Pods[:2]
	n.admit(t, w)
	n.judge(t, w)
}

// Policies judge the pod behind a Service, also on the same node and for the pod itself: addresses are translated before the chains.
func TestServices(t *testing.T) {
	n := newNode(t, 3)
	n.start(t)
	cmd := exec.Command("nsenter", "--net="+n.space, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(`table inet proxy {
		chain prerouting { type nat hook prerouting priority dstnat; ip daddr 10.96.0.1 dnat ip to 10.0.0.1; ip6 daddr fd96::1 dnat ip6 to fd00::1; }
		chain postrouting { type nat hook postrouting priority srcnat; ip saddr 10.0.0.1 ip daddr 10.0.0.1 masquerade; ip6 saddr fd00::1 ip6 daddr fd00::1 masquerade; }
	}`)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
	w := web(false, networkingv1.PolicyTypeIngress)
	w.Policies[0].Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
		{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}},
	}}}
	if err := n.enforcer.Update(t.Context(), changeOf(t, w)); err != nil {
		t.Fatal(err)
	}
	n.admit(t, w)
	for i, pod := range []string{"the pod itself", "a client", "another pod"} {
		for _, service := range []string{"10.96.0.1", "fd96::1"} {
			allowed, wait := i < 2, impatience
			if allowed {
				wait = patience
			}
			c, err := dial(t, n.pods[i], "tcp", netip.AddrPortFrom(netip.MustParseAddr(service), 80), wait)
			if err == nil {
				c.Close()
			}
			if allowed != (err == nil) {
				t.Errorf("%s to Service %s: allowed %t, seen: %v", pod, service, allowed, err)
			}
		}
	}
}
