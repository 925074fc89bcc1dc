package enforcer_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/policy/nftables"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/internal/transport"
)

const bridge = "cni0"

// node is an enforcer whose compiler's table is a Fake that evaluates packets.
type node struct {
	*enforcer.Enforcer
	table   *refusing
	loop    *reconcile.Loop[nftnl.Key, nftnl.Item]
	revoked atomic.Int32
	mu      sync.Mutex
	said    []string
}

// refusing is a table that refuses the elements of address blocks on request, by key.
type refusing struct {
	*nftnl.Fake
	blocks atomic.Bool
}

func (r *refusing) Commit(ctx context.Context, change reconcile.Change[nftnl.Key, nftnl.Item]) error {
	failed := map[nftnl.Key]error{}
	change.Set = maps.Clone(change.Set)
	for key, item := range change.Set {
		if element, ok := item.(*nftnl.Element); ok && r.blocks.Load() && strings.HasPrefix(element.Set, "blocks") {
			failed[key] = errors.New("refused")
			delete(change.Set, key)
		}
	}
	if err := r.Fake.Commit(ctx, change); err != nil || len(failed) == 0 {
		return err
	}
	return &reconcile.PartialError[nftnl.Key]{Failed: failed}
}

// An error of the engine for one policy does not keep later permissions from being revoked, or a node from moving.
func TestRefusedFragment(t *testing.T) {
	n := start(t)
	n.serve(t)
	n.update(t, enforcer.Change{Pods: pod("client", "n2", "10.0.2.7")})
	n.table.blocks.Store(true)
	if err := n.Update(t.Context(), onlyClient(t, "192.0.2.0/24")); err == nil {
		t.Error("a policy that is refused in part is reported as in effect")
	}
	if !n.allows("10.0.2.7", "10.0.1.5") {
		t.Error("the rest of the policy is not in effect")
	}
	before := n.revoked.Load()
	changed := pod("client", "n2", "10.0.2.7")
	changed[policy.Key{Namespace: "a", Name: "client"}].Labels = map[string]string{"app": "other"}
	if err := n.Update(t.Context(), enforcer.Change{Pods: changed}); err == nil {
		t.Error("what was refused before is reported as in effect")
	}
	if n.allows("10.0.2.7", "10.0.1.5") || n.revoked.Load() == before {
		t.Error("a permission is not revoked")
	}
	before = n.revoked.Load()
	_ = n.Update(t.Context(), enforcer.Change{Pods: pod("client", "n2", "10.0.2.7")})
	if err := n.Move(t.Context(), map[string][]netip.Prefix{"n2": {netip.MustParsePrefix("10.0.3.0/24")}}, nil); err == nil {
		t.Error("what was refused before is reported as in effect")
	}
	if n.allows("10.0.2.7", "10.0.1.5") || n.revoked.Load() == before {
		t.Error("a node that moved keeps its permissions")
	}
	n.table.blocks.Store(false)
	testwait.Until(t, "the policies are in effect", func() bool { return n.Update(t.Context(), enforcer.Change{}) == nil })
}

func start(t *testing.T) *node {
	t.Helper()
	n := &node{table: &refusing{Fake: nftnl.NewFake()}}
	n.loop = reconcile.NewLoop(n.table, reconcile.Options[nftnl.Key, nftnl.Item]{})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = n.loop.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	lock := &sync.Mutex{}
	n.Enforcer = enforcer.New(enforcer.Options{
		Node: "n1", Lock: lock, PerPolicy: true, SCTP: true, Families: enforcer.Families{IPv4: true},
		Revocations: enforcer.NewRevocations(enforcer.RevocationOptions{
			Lock: lock, Rest: func() time.Duration { return time.Millisecond },
			Settled: func(ctx context.Context, owners []reconcile.Owner) error {
				err := n.loop.Apply(ctx, nil)
				for _, o := range owners {
					err = errors.Join(err, n.loop.Failure(o))
				}
				return err
			},
			Revoke: func(context.Context) error { n.revoked.Add(1); return nil },
		}),
		Problems: func(key policy.Key, problems []error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.said = append(n.said, key.String()+": "+errors.Join(problems...).Error())
		},
	})
	n.Compile(nftables.NewCompiler(n.loop, nftables.Config{Bridge: bridge}), map[string][]netip.Prefix{"n2": {netip.MustParsePrefix("10.0.2.0/24")}})
	n.Begin(nil)
	if err := n.loop.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) update(t *testing.T, change enforcer.Change) {
	t.Helper()
	if err := n.Update(t.Context(), change); err != nil {
		t.Fatal(err)
	}
}

// allows reports whether a packet from one address to another passes the chains.
func (n *node) allows(from, to string) bool {
	verdict, _ := n.table.Judge(nftnl.HookForward, nftnl.Packet{
		nftnl.InDevice: nftnl.Name("eth0"), nftnl.OutDevice: nftnl.Name(bridge), nftnl.ConntrackState: nftnl.Bits(nftnl.StateNew),
		nftnl.IPSource: nftnl.Addr(netip.MustParseAddr(from)), nftnl.IPDestination: nftnl.Addr(netip.MustParseAddr(to)),
		nftnl.L4Proto: nftnl.Proto(17), nftnl.DestinationPort: nftnl.Port(80),
	})
	return verdict == nftnl.Accept()
}

func pod(name, node, address string) map[policy.Key]*enforcer.Pod {
	key := policy.Key{Namespace: "a", Name: name}
	p := &enforcer.Pod{Pod: policy.Pod{Key: key, Node: node, Labels: map[string]string{"app": name}}, UIDs: []string{"uid-" + name}}
	if address != "" {
		p.Addresses = []netip.Addr{netip.MustParseAddr(address)}
	}
	return map[policy.Key]*enforcer.Pod{key: p}
}

// onlyClient is a policy that isolates the server and allows the client and the addresses of a block.
func onlyClient(t *testing.T, block string) enforcer.Change {
	t.Helper()
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one"}}
	np.Spec.PodSelector.MatchLabels = map[string]string{"app": "server"}
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{
		{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}}},
		{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: block}}}},
	}
	p, err := policy.FromNetworkPolicy(np)
	if err != nil {
		t.Fatal(err)
	}
	return enforcer.Change{Policies: map[policy.Key]*policy.Policy{p.Key: &p}, Namespaces: map[string]*policy.Namespace{"a": {Name: "a"}}}
}

func server() attach.Record {
	return attach.Record{
		ContainerID: "c", IfName: "eth0", PodNamespace: "a", PodName: "server", PodUID: "uid-server",
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.1.5/24")},
	}
}

// serve attaches the server, which nothing isolates yet.
func (n *node) serve(t *testing.T) attach.Record {
	t.Helper()
	rec := server()
	n.update(t, enforcer.Change{Pods: pod("server", "n1", "")})
	n.Open(&rec)
	if err := n.Await(t.Context(), &rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

// An attachment is closed until its own pod is known, not another of the same name, and is closed again when the pod is deleted.
func TestClosedUntilKnown(t *testing.T) {
	n := start(t)
	rec := server()
	n.Open(&rec)
	former := pod("server", "n1", "")
	former[policy.Key{Namespace: "a", Name: "server"}].UIDs = []string{"uid-former"}
	n.update(t, enforcer.Change{Pods: former})
	if n.allows("192.0.2.1", "10.0.1.5") {
		t.Error("open for a pod that had the name before")
	}
	c := policy.Connection{Source: netip.MustParseAddr("192.0.2.1"), Destination: netip.MustParseAddr("10.0.1.5"), Protocol: transport.TCP, Port: 80}
	if !n.Revoked()(c) {
		t.Error("the connections of a closed attachment go on")
	}
	waited := make(chan error, 1)
	go func() { waited <- n.Await(t.Context(), &rec) }()
	n.update(t, enforcer.Change{Pods: pod("server", "n1", "")})
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	n.update(t, enforcer.Change{})
	if !n.allows("192.0.2.1", "10.0.1.5") || n.Revoked()(c) {
		t.Error("closed although nothing isolates the pod")
	}
	n.update(t, enforcer.Change{Pods: map[policy.Key]*enforcer.Pod{{Namespace: "a", Name: "server"}: nil}})
	if n.allows("192.0.2.1", "10.0.1.5") {
		t.Error("open for a pod that is gone")
	}
}

// What only allows more, or ends with a pod's isolation, needs no pass over the connections.
func TestNothingToRevoke(t *testing.T) {
	n := start(t)
	n.serve(t)
	first := onlyClient(t, "192.0.2.0/24")
	second := onlyClient(t, "198.51.100.0/24")
	other := *second.Policies[policy.Key{Namespace: "a", Name: "one"}]
	other.Key.Name = "two"
	one, two := policy.Key{Namespace: "a", Name: "one"}, other.Key
	for _, step := range []struct {
		name    string
		change  map[policy.Key]*policy.Policy
		revokes bool
	}{
		{"isolated", first.Policies, true},
		{"another policy", map[policy.Key]*policy.Policy{two: &other}, false},
		{"one of two deleted", map[policy.Key]*policy.Policy{one: nil}, true},
		{"the last one deleted", map[policy.Key]*policy.Policy{two: nil}, false},
	} {
		before := n.revoked.Load()
		n.update(t, enforcer.Change{Policies: step.change})
		if got := n.revoked.Load() > before; got != step.revokes {
			t.Errorf("%s: revoked %t", step.name, got)
		}
	}
}

// A pod of another node has the addresses that are in its node's ranges, also when the ranges move. Revoked permissions end at once.
func TestRanges(t *testing.T) {
	n := start(t)
	rec := n.serve(t)
	n.update(t, enforcer.Change{Pods: pod("client", "n2", "10.0.2.7")})
	before := n.revoked.Load()
	n.update(t, onlyClient(t, "fd00::/8"))
	if n.revoked.Load() == before {
		t.Error("a pod was isolated, and nothing revoked")
	}
	if !n.allows("10.0.2.7", "10.0.1.5") || n.allows("10.0.3.7", "10.0.1.5") {
		t.Error("the client is not the only one that is admitted")
	}
	n.mu.Lock()
	said := strings.Join(n.said, "\n")
	n.mu.Unlock()
	if !strings.HasPrefix(said, "a/one: spec.ingress[1]: all its ipBlocks are of IPv6") {
		t.Errorf("reported was %q", said)
	}
	before = n.revoked.Load()
	move := func(subnet string) {
		t.Helper()
		if err := n.Move(t.Context(), map[string][]netip.Prefix{"n2": {netip.MustParsePrefix(subnet)}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	move("10.0.3.0/24")
	if n.allows("10.0.2.7", "10.0.1.5") || n.revoked.Load() == before {
		t.Error("an address that is not its node's any more is admitted, or its connections go on")
	}
	move("10.0.2.0/24")
	if !n.allows("10.0.2.7", "10.0.1.5") {
		t.Error("the client is not admitted again")
	}
	c := policy.Connection{Source: netip.MustParseAddr("10.0.2.7"), Destination: netip.MustParseAddr("10.0.1.5"), Protocol: transport.TCP, Port: 80}
	if n.Revoked()(c) {
		t.Error("a connection of the client is taken for revoked")
	}
	if c.Source = netip.MustParseAddr("10.0.3.7"); !n.Revoked()(c) {
		t.Error("a connection that no policy allows is not revoked")
	}
	n.Close(rec)
	if err := n.loop.Apply(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if n.allows("10.0.2.7", "10.0.1.5") {
		t.Error("a closed attachment is reached")
	}
}
