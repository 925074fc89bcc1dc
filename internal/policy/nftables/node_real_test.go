//go:build real

package nftables_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	// beforePass is called before each pass over conntrack; nil: nothing.
	beforePass atomic.Pointer[func()]
}

var config = nftables.Config{Bridge: bridge}

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
	n.loop.Set(map[reconcile.Owner]nftables.Items{"gates": nftables.Gates(config)}) // the guard is there at all times
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
		Revoke: func(context.Context) error {
			if before := n.beforePass.Load(); before != nil {
				(*before)()
			}
			return nftables.Flush(tracked, e.Revoked())
		},
		Made: func() { e.Compiler().(*nftables.Compiler).Settle() }, //nolint:forcetypeassert // its only one
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
	e.Compile(nftables.NewCompiler(n.loop, config), nil)
	e.Begin(nil)
}

func (n *node) start(t *testing.T) {
	t.Helper()
	if err := n.loop.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
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
