package nftables_test

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/policy/nftables"
	"weft.dev/weft/internal/policy/oracle"
	"weft.dev/weft/internal/reconcile"
)

// fragments is a table that keeps what it is set to.
type fragments map[reconcile.Owner]nftables.Items

func (f fragments) Set(changed map[reconcile.Owner]map[nftnl.Key]nftnl.Item) { maps.Copy(f, changed) }

// has reports whether a fragment has a base chain at a hook.
func (f fragments) has(hook nftnl.Hook) bool {
	for _, items := range f {
		for _, item := range items {
			if chain, is := item.(*nftnl.Chain); is && chain.Hook == hook {
				return true
			}
		}
	}
	return false
}

// TestChainsThatPodsNeed: the base chains exist from the commit of the first pod that is isolated or not known until the last one has left and
// the guard of the bridge is gone, and the chain of the node's own packets while one is isolated for egress.
func TestChainsThatPodsNeed(t *testing.T) {
	index := policy.New("n1")
	index.SetNamespace(policy.FromNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}
	pod.Spec.NodeName, pod.Status.PodIPs = "n1", []corev1.PodIP{{IP: "10.0.0.1"}}
	index.SetPod(policy.FromPod(pod))
	rec := attach.Record{
		ContainerID: "c", IfName: "eth0", PodNamespace: "a", PodName: "p", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")},
	}
	isolate := func(types ...networkingv1.PolicyType) {
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one"}}
		np.Spec.PolicyTypes = types
		compiled, err := policy.FromNetworkPolicy(np)
		if err != nil {
			t.Fatal(err)
		}
		index.SetPolicy(compiled)
	}
	table := fragments{}
	c := nftables.NewCompiler(table, nftables.Config{Bridge: bridge, Group: 78})
	commit := func(known bool) func() []reconcile.Owner {
		return func() []reconcile.Owner {
			return c.Commit(index, []enforcer.Attachment{{Record: rec, Decision: enforcer.Decision{Known: known}}}, nil, false)
		}
	}
	for _, step := range []struct {
		name                string
		do                  func() []reconcile.Owner
		held, gated, output bool
		waits               bool // for the base chains
	}{
		{name: "not isolated", do: commit(true)},
		{name: "not known", do: commit(false), held: true, gated: true, waits: true},
		{name: "known", do: commit(true), gated: true},
		{name: "without the guard", do: func() []reconcile.Owner { c.Ungate(); return nil }},
		{name: "isolated for ingress", do: func() []reconcile.Owner { isolate(networkingv1.PolicyTypeIngress); return commit(true)() }, held: true, gated: true, waits: true},
		{name: "isolated for egress", do: func() []reconcile.Owner { isolate(networkingv1.PolicyTypeEgress); return commit(true)() }, held: true, gated: true, output: true},
		{name: "still needed", do: func() []reconcile.Owner { c.Ungate(); return nil }, held: true, gated: true, output: true},
		{name: "closed", do: func() []reconcile.Owner { return c.Commit(index, nil, []attach.Record{rec}, false) }, held: true, gated: true},
		{name: "left", do: func() []reconcile.Owner { c.Left(rec.Key()); return nil }, gated: true},
		{name: "not needed", do: func() []reconcile.Owner { c.Ungate(); return nil }},
	} {
		owners := step.do()
		if c.Held() != step.held || c.Gated() != step.gated {
			t.Errorf("%s: held %t, gated %t", step.name, c.Held(), c.Gated())
		}
		if forward, input := table.has(nftnl.HookForward), table.has(nftnl.HookInput); forward != step.gated || input != step.gated {
			t.Errorf("%s: base chain forward %t, input %t", step.name, forward, input)
		}
		if got := table.has(nftnl.HookOutput); got != step.output {
			t.Errorf("%s: chain of the node's packets %t", step.name, got)
		}
		if got := slices.Contains(owners, nftables.OwnerGates); got != step.waits {
			t.Errorf("%s: waits for the base chains: %t", step.name, got)
		}
	}
}

// TestRevoking: from a revocation until it is made, the chains judge the packets of established connections as the first ones of new
// connections, in the direction in which the connection began. Replies pass.
func TestRevoking(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := drawWorld(r)
		table, fake := fragments{}, nftnl.NewFake()
		c := nftables.NewCompiler(table, nftables.Config{Bridge: bridge})
		open := enforcer.Attachment{Record: attach.Record{ContainerID: "c", IfName: "eth0"}}
		passes := func(items nftables.Items, hook nftnl.Hook, packet nftnl.Packet) bool {
			if err := fake.Commit(t.Context(), reconcile.Diff(items, must(fake.Read(t.Context())))); err != nil {
				r.Fatal(err)
			}
			verdict, _ := fake.Judge(hook, packet)
			return verdict == nftnl.Accept()
		}
		pods, addresses := map[netip.Addr]bool{}, []netip.Addr{}
		for _, pod := range w.Pods {
			address := netip.MustParseAddr(pod.Status.PodIP)
			pods[address], addresses = true, append(addresses, address)
		}
		from, to := sample(r, "from", append(addresses, netip.MustParseAddr("192.0.2.1"))...), sample(r, "to", addresses...)
		p := packets[rapid.IntRange(0, len(packets)-1).Draw(r, "packet")]
		p.Src, p.Dst = from, to
		items := compile(r, w)
		packet := func(state uint32, direction uint8) nftnl.Packet {
			packet := packetOf(p, pods)
			packet[nftnl.ConntrackState], packet[nftnl.ConntrackDirection] = nftnl.Bits(state), nftnl.Byte(direction)
			return packet
		}
		original, reply := packet(nftnl.StateEstablished, nftnl.DirectionOriginal), packet(nftnl.StateEstablished, nftnl.DirectionReply)
		for _, step := range []struct {
			name                      string
			revoking, settled, judges bool
		}{
			{name: "no revocation"},
			{name: "revocation", revoking: true, judges: true},
			{name: "another change meanwhile", judges: true},
			{name: "settled", settled: true},
			{name: "the next revocation", revoking: true, judges: true},
		} {
			if step.settled {
				c.Settle()
			} else {
				c.Commit(policy.New("n1"), []enforcer.Attachment{open}, nil, step.revoking)
			}
			maps.Copy(items, table[nftables.OwnerStatic])
			want := !step.judges || w.Allowed(p)
			if got := passes(items, nftnl.HookForward, original); got != want && (want || !keeps(w)) {
				r.Fatalf("%s: %+v passes %t, want %t", step.name, p, got, want)
			}
			if !passes(items, nftnl.HookForward, reply) || !passes(items, nftnl.HookForward, packet(nftnl.StateRelated, nftnl.DirectionOriginal)) {
				r.Fatalf("%s: a reply, or an error about a connection, is dropped: %+v", step.name, p)
			}
			if pods[from] && !passes(items, nftnl.HookInput, reply) {
				r.Fatalf("%s: a reply to the node is dropped: %+v", step.name, p)
			}
			if got, want := passes(items, nftnl.HookInput, original), passes(items, nftnl.HookInput, packet(nftnl.StateNew, nftnl.DirectionOriginal)); pods[from] && step.judges && got != want && (want || !keeps(w)) {
				r.Fatalf("%s: %+v to the node passes %t, the first packet of a connection %t", step.name, p, got, want)
			}
		}
	})
}

// TestKept: while a revocation is being made, packets of established connections pass from and to a pod whose policies keep them, and those
// of new ones do not.
func TestKept(t *testing.T) {
	w := oracle.World{Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Status: corev1.PodStatus{PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}}
	pod.Spec.NodeName = "n1"
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "n", Annotations: map[string]string{policy.AnnotationEstablished: "keep"}}}
	np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	w.Pods, w.Policies = []*corev1.Pod{pod}, []*networkingv1.NetworkPolicy{np}
	table, fake := fragments{}, nftnl.NewFake()
	c := nftables.NewCompiler(table, nftables.Config{Bridge: bridge})
	c.Commit(policy.New("n1"), []enforcer.Attachment{{Record: attach.Record{ContainerID: "c", IfName: "eth0"}}}, nil, true)
	items := compile(t, w)
	maps.Copy(items, table[nftables.OwnerStatic])
	if err := fake.Commit(t.Context(), reconcile.Change[nftnl.Key, nftnl.Item]{Set: items}); err != nil {
		t.Fatal(err)
	}
	own, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1")
	for _, ends := range [][2]netip.Addr{{own, other}, {other, own}} {
		packet := packetOf(oracle.Packet{Src: ends[0], Dst: ends[1], Protocol: corev1.ProtocolUDP, Port: 80}, map[netip.Addr]bool{own: true})
		packet[nftnl.ConntrackDirection] = nftnl.Byte(nftnl.DirectionOriginal)
		for state, passes := range map[uint32]bool{nftnl.StateEstablished: true, nftnl.StateNew: false} {
			packet[nftnl.ConntrackState] = nftnl.Bits(state)
			if got, _ := fake.Judge(nftnl.HookForward, packet); passes != (got == nftnl.Accept()) {
				t.Errorf("%v to %v, state %d: %v", ends[0], ends[1], state, got)
			}
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
