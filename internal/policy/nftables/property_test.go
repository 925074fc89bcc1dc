package nftables_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/policy/nftables"
	"weft.dev/weft/internal/policy/oracle"
	"weft.dev/weft/internal/reconcile"
)

const bridge = "cni0"

func sample[T any](r *rapid.T, what string, from ...T) T {
	return rapid.SampledFrom(from).Draw(r, what)
}

func drawSelector(r *rapid.T) *metav1.LabelSelector {
	switch rapid.IntRange(0, 2).Draw(r, "selector") {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": sample(r, "value", "x", "y")}}
	default:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}}
	}
}

func drawPeer(r *rapid.T) networkingv1.NetworkPolicyPeer {
	switch rapid.IntRange(0, 3).Draw(r, "peer") {
	case 0:
		return networkingv1.NetworkPolicyPeer{PodSelector: drawSelector(r)}
	case 1:
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: drawSelector(r)}
	case 2:
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: drawSelector(r), PodSelector: drawSelector(r)}
	default:
		block := sample(r, "block", networkingv1.IPBlock{CIDR: "10.0.0.0/29", Except: []string{"10.0.0.2/32"}},
			networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"10.0.0.0/8"}}, networkingv1.IPBlock{CIDR: "10.0.0.2/31"},
			networkingv1.IPBlock{CIDR: "::/0"}, networkingv1.IPBlock{CIDR: "fd00::/64", Except: []string{"fd00::2/128"}})
		return networkingv1.NetworkPolicyPeer{IPBlock: &block}
	}
}

func drawPort(r *rapid.T) networkingv1.NetworkPolicyPort {
	port := networkingv1.NetworkPolicyPort{Protocol: new(sample(r, "protocol", corev1.ProtocolTCP, corev1.ProtocolUDP))}
	switch rapid.IntRange(0, 3).Draw(r, "port") {
	case 1:
		port.Port = new(intstr.FromString(sample(r, "name", "http", "dns")))
	case 2:
		port.Port, port.EndPort = new(intstr.FromInt32(79)), new(rapid.Int32Range(79, 90).Draw(r, "last"))
	case 3:
		port.Port = new(intstr.FromInt32(sample[int32](r, "number", 80, 82, 85)))
	}
	return port
}

func drawList[T any](r *rapid.T, what string, draw func(*rapid.T) T) []T {
	var list []T
	for range rapid.IntRange(0, 2).Draw(r, what) {
		list = append(list, draw(r))
	}
	return list
}

func drawWorld(r *rapid.T) oracle.World {
	var w oracle.World
	for _, name := range []string{"a", "b"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if rapid.Bool().Draw(r, "labelled") {
			ns.Labels = map[string]string{"app": sample(r, "label", "x", "y")}
		}
		w.Namespaces = append(w.Namespaces, ns)
	}
	for i := range rapid.IntRange(1, 5).Draw(r, "pods") {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: sample(r, "namespace", "a", "b"), Name: fmt.Sprint("p", i)}}
		pod.Spec.NodeName = "n1"
		if rapid.Bool().Draw(r, "labelled") {
			pod.Labels = map[string]string{"app": sample(r, "label", "x", "y")}
		}
		pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{
			{Name: "http", ContainerPort: sample[int32](r, "http", 80, 81), Protocol: corev1.ProtocolTCP},
			{Name: "dns", ContainerPort: 85, Protocol: corev1.ProtocolUDP},
		}}}
		pod.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprint("10.0.0.", i+1)}, {IP: fmt.Sprint("fd00::", i+1)}}
		pod.Status.PodIP = pod.Status.PodIPs[0].IP
		w.Pods = append(w.Pods, pod)
	}
	for i := range rapid.IntRange(0, 4).Draw(r, "policies") {
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: sample(r, "namespace", "a", "b"), Name: fmt.Sprint("n", i)}}
		np.Spec.PodSelector = *drawSelector(r)
		if rapid.IntRange(0, 9).Draw(r, "keeps") == 0 {
			np.Annotations = map[string]string{policy.AnnotationEstablished: "keep"}
		}
		np.Spec.PolicyTypes = sample(r, "types", nil, []networkingv1.PolicyType{"Ingress"}, []networkingv1.PolicyType{"Egress"}, []networkingv1.PolicyType{"Ingress", "Egress"})
		np.Spec.Ingress = drawList(r, "ingress", func(r *rapid.T) networkingv1.NetworkPolicyIngressRule {
			return networkingv1.NetworkPolicyIngressRule{From: drawList(r, "from", drawPeer), Ports: drawList(r, "ports", drawPort)}
		})
		np.Spec.Egress = drawList(r, "egress", func(r *rapid.T) networkingv1.NetworkPolicyEgressRule {
			return networkingv1.NetworkPolicyEgressRule{To: drawList(r, "to", drawPeer), Ports: drawList(r, "ports", drawPort)}
		})
		w.Policies = append(w.Policies, np)
	}
	return w
}

// keeps reports whether a policy of the world keeps established connections.
func keeps(w oracle.World) bool {
	return slices.ContainsFunc(w.Policies, func(np *networkingv1.NetworkPolicy) bool { return len(np.Annotations) > 0 })
}

// compile compiles the whole world.
func compile(t interface{ Fatal(args ...any) }, w oracle.World) nftables.Items {
	return compileOn(t, w, bridge)
}

// compileOn compiles the whole world for a bridge with that name.
func compileOn(t interface{ Fatal(args ...any) }, w oracle.World, bridge string) nftables.Items {
	index := policy.New("n1")
	for _, ns := range w.Namespaces {
		index.SetNamespace(policy.FromNamespace(ns))
	}
	for _, pod := range w.Pods {
		index.SetPod(policy.FromPod(pod))
	}
	items := nftables.Static(nftables.Config{Bridge: bridge})
	maps.Copy(items, nftables.Gates(nftables.Config{Bridge: bridge}))
	for _, np := range w.Policies {
		compiled, err := policy.FromNetworkPolicy(np)
		if err != nil {
			t.Fatal(err)
		}
		index.SetPolicy(compiled)
	}
	for _, np := range w.Policies {
		key := policy.Key{Namespace: np.Namespace, Name: np.Name}
		rules := index.Rules(key)
		maps.Copy(items, nftables.Policy(key, rules))
		for _, set := range nftables.Sets(rules) {
			maps.Copy(items, nftables.Set(set, index.Addresses(set)))
		}
	}
	for _, pod := range w.Pods {
		of := policy.FromPod(pod)
		maps.Copy(items, nftables.Pod(index, of.Key, of.Addresses))
	}
	return items
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

var packets = []oracle.Packet{
	{Protocol: corev1.ProtocolTCP, Port: 80},
	{Protocol: corev1.ProtocolTCP, Port: 81},
	{Protocol: corev1.ProtocolTCP, Port: 82},
	{Protocol: corev1.ProtocolTCP, Port: 443},
	{Protocol: corev1.ProtocolUDP, Port: 80},
	{Protocol: corev1.ProtocolUDP, Port: 85},
	{Protocol: "ICMP"},
}

// packetOf returns the packet as it is in the forward hook.
func packetOf(p oracle.Packet, pods map[netip.Addr]bool) nftnl.Packet {
	device := map[bool]nftnl.Value{true: nftnl.Name(bridge), false: nftnl.Name("eth0")}
	packet := nftnl.Packet{nftnl.InDevice: device[pods[p.Src]], nftnl.OutDevice: device[pods[p.Dst]]}
	source, destination := nftnl.IPSource, nftnl.IPDestination
	if p.Src.Is6() {
		source, destination = nftnl.IP6Source, nftnl.IP6Destination
	}
	packet[source], packet[destination] = nftnl.Addr(p.Src), nftnl.Addr(p.Dst)
	number, withPorts := map[corev1.Protocol]uint8{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17}[p.Protocol]
	if !withPorts {
		number = 1
	}
	packet[nftnl.L4Proto] = nftnl.Proto(number)
	if withPorts {
		packet[nftnl.DestinationPort] = nftnl.Port(p.Port)
	}
	return packet
}

// A packet that meets the commit of a pod half way, with the new elements and the former rules, passes only if it passes before or after it.
func TestHalfCommitted(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		after := drawWorld(r)
		before := after
		before.Pods = after.Pods[:len(after.Pods)-1]
		then, now := compile(r, before), compile(r, after)
		half := maps.Clone(then)
		for key, item := range now {
			if key.Kind != nftnl.KindRules {
				half[key] = item
			}
		}
		addresses := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		pods := map[netip.Addr]bool{}
		for _, pod := range after.Pods {
			address := netip.MustParseAddr(pod.Status.PodIP)
			addresses, pods[address] = append(addresses, address), true
		}
		passes := func(items nftables.Items, p oracle.Packet) bool {
			fake := nftnl.NewFake()
			if err := fake.Commit(context.Background(), reconcile.Change[nftnl.Key, nftnl.Item]{Set: items}); err != nil {
				r.Fatal(err)
			}
			verdict, _ := fake.Judge(nftnl.HookForward, packetOf(p, pods))
			return verdict.Kind == nftnl.VerdictAccept
		}
		for _, source := range addresses {
			for _, destination := range addresses {
				p := oracle.Packet{Src: source, Dst: destination, Protocol: corev1.ProtocolTCP, Port: 80}
				if source != destination && passes(half, p) && !passes(then, p) && !passes(now, p) {
					r.Fatalf("%v passes during the commit only", p)
				}
			}
		}
	})
}

// The compiled table treats every packet as the API's documentation says.
func TestVerdicts(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := drawWorld(r)
		fake := nftnl.NewFake()
		if err := fake.Commit(context.Background(), reconcile.Change[nftnl.Key, nftnl.Item]{Set: compile(r, w)}); err != nil {
			r.Fatal(err)
		}
		pods, addresses := map[netip.Addr]bool{}, []netip.Addr{
			netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::9"), netip.MustParseAddr("2001:db8::1"),
		}
		for _, pod := range w.Pods {
			for _, ip := range pod.Status.PodIPs {
				pods[netip.MustParseAddr(ip.IP)] = true
				addresses = append(addresses, netip.MustParseAddr(ip.IP))
			}
		}
		for _, source := range addresses {
			for _, destination := range addresses {
				if source.Is4() != destination.Is4() || !pods[source] && !pods[destination] {
					continue
				}
				for _, p := range packets {
					p.Src, p.Dst = source, destination
					got, _ := fake.Judge(nftnl.HookForward, packetOf(p, pods))
					if want := w.Allowed(p); want != (got == nftnl.Accept()) {
						r.Fatalf("%+v: %v, allowed is %t", p, got, want)
					}
				}
			}
		}
	})
}

// A TCP packet in the middle of a connection that conntrack does not know passes between pods that no policy isolates, and not from or to
// another: it may be the answering side of a connection that was revoked. One that opens a connection is judged as any other.
func TestMidstream(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := drawWorld(r)
		fake := nftnl.NewFake()
		if err := fake.Commit(context.Background(), reconcile.Change[nftnl.Key, nftnl.Item]{Set: compile(r, w)}); err != nil {
			r.Fatal(err)
		}
		index := policy.New("n1")
		for _, np := range w.Policies {
			of, err := policy.FromNetworkPolicy(np)
			if err != nil {
				r.Fatal(err)
			}
			index.SetPolicy(of)
		}
		for _, ns := range w.Namespaces {
			index.SetNamespace(policy.FromNamespace(ns))
		}
		pods, isolated := map[netip.Addr]bool{}, map[netip.Addr]bool{}
		for _, pod := range w.Pods {
			of := policy.FromPod(pod)
			index.SetPod(of)
			isolation, _ := index.Isolation(of.Key)
			for _, address := range of.Addresses {
				pods[address], isolated[address] = true, isolation.Ingress || isolation.Egress
			}
		}
		outside := netip.MustParseAddr("192.0.2.1")
		for source := range isolated {
			for _, to := range append(slices.Collect(maps.Keys(isolated)), outside) {
				for _, ends := range [][2]netip.Addr{{source, to}, {to, source}} {
					if ends[0].Is4() != ends[1].Is4() || ends[0] == ends[1] {
						continue
					}
					p := oracle.Packet{Src: ends[0], Dst: ends[1], Protocol: corev1.ProtocolTCP, Port: 80}
					packet := packetOf(p, pods)
					packet[nftnl.ConntrackState] = nftnl.Bits(nftnl.StateNew)
					for flags, want := range map[uint8]bool{nftnl.SYN: w.Allowed(p), 1 << 4: !isolated[ends[0]] && !isolated[ends[1]]} {
						packet[nftnl.TCPFlags] = nftnl.Byte(flags)
						got, left := fake.Judge(nftnl.HookForward, packet)
						if want != (got == nftnl.Accept()) {
							r.Fatalf("%+v with flags %#x: %v, allowed is %t", p, flags, got, want)
						}
						if between := pods[p.Src] && pods[p.Dst]; want && between != (left[nftnl.Mark] == nftnl.Bits(nftables.Judged)) {
							r.Fatalf("%+v leaves with mark %x", p, left[nftnl.Mark].From)
						}
					}
				}
			}
		}
	})
}

// A pod without a fragment is closed in both directions, and established connections pass.
func TestClosed(t *testing.T) {
	fake := nftnl.NewFake()
	items := nftables.Static(nftables.Config{Bridge: bridge})
	maps.Copy(items, nftables.Gates(nftables.Config{Bridge: bridge}))
	maps.Copy(items, nftables.Pod(policy.New("n1"), policy.Key{Namespace: "a", Name: "unknown"}, []netip.Addr{netip.MustParseAddr("10.0.0.1")}))
	if err := fake.Commit(t.Context(), reconcile.Change[nftnl.Key, nftnl.Item]{Set: items}); err != nil {
		t.Fatal(err)
	}
	pod, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1")
	for _, p := range []oracle.Packet{{Src: pod, Dst: other, Protocol: corev1.ProtocolTCP, Port: 80}, {Src: other, Dst: pod, Protocol: "ICMP"}} {
		packet := packetOf(p, map[netip.Addr]bool{pod: true})
		if got, _ := fake.Judge(nftnl.HookForward, packet); got != nftnl.Drop() {
			t.Errorf("%+v: %v", p, got)
		}
		if got, _ := fake.Judge(nftnl.HookInput, packet); p.Src == pod && got != nftnl.Drop() {
			t.Errorf("%+v to the node: %v", p, got)
		}
		packet[nftnl.ConntrackState] = nftnl.Bits(nftnl.StateEstablished)
		if got, _ := fake.Judge(nftnl.HookForward, packet); got != nftnl.Accept() {
			t.Errorf("established %+v: %v", p, got)
		}
		packet[nftnl.InDevice], packet[nftnl.OutDevice] = nftnl.Name(bridge), nftnl.Name(bridge)
		if got, left := fake.Judge(nftnl.HookForward, packet); got != nftnl.Accept() || left[nftnl.Mark] != nftnl.Bits(nftables.Judged) {
			t.Errorf("established %+v between ports: %v, mark %x", p, got, left[nftnl.Mark].From)
		}
	}
}

// Isolated pods resolve each other's IPv6 addresses, and nothing else of ICMPv6 passes in that form: not beyond the bridge, where a packet's hop
// limit is lower.
func TestNeighbourDiscovery(t *testing.T) {
	w := oracle.World{Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}
	for i := range 2 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("p", i)}}
		pod.Spec.NodeName = "n1"
		pod.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprint("fd00::", i+1)}}
		pod.Status.PodIP = pod.Status.PodIPs[0].IP
		w.Pods = append(w.Pods, pod)
	}
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "none"}}
	np.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	w.Policies = append(w.Policies, np)
	fake := nftnl.NewFake()
	if err := fake.Commit(t.Context(), reconcile.Change[nftnl.Key, nftnl.Item]{Set: compile(t, w)}); err != nil {
		t.Fatal(err)
	}
	const solicitation, advertisement, redirect, echo, whole = 135, 136, 137, 128, 255
	for _, c := range []struct {
		from, to    string
		kind, limit uint8
		passes      bool
	}{
		{"fd00::1", "fd00::2", solicitation, whole, true},
		{"fd00::1", "fd00::2", advertisement, whole, true},
		{"fe80::1", "ff02::1:ff00:2", solicitation, whole, true},
		{"fe80::1", "fd00::2", advertisement, whole, true},
		{"::", "ff02::1:ff00:2", solicitation, whole, true},
		{"fd00::1", "fd00::2", solicitation, whole - 1, false},
		{"fe80::1", "ff02::1:ff00:2", solicitation, whole - 1, false},
		{"fd00::1", "fd00::2", redirect, whole, false},
		{"fe80::1", "fd00::2", redirect, whole, false},
		{"fd00::1", "fd00::2", echo, whole, false},
		{"fd00::1", "fd00::1", echo, whole, true}, // to itself
	} {
		device := nftnl.Name(bridge)
		got, left := fake.Judge(nftnl.HookForward, nftnl.Packet{
			nftnl.InDevice: device, nftnl.OutDevice: device, nftnl.L4Proto: nftnl.Proto(58), nftnl.ICMPType: nftnl.Byte(c.kind), nftnl.IP6HopLimit: nftnl.Byte(c.limit),
			nftnl.IP6Source: nftnl.Addr(netip.MustParseAddr(c.from)), nftnl.IP6Destination: nftnl.Addr(netip.MustParseAddr(c.to)),
		})
		if c.passes != (got == nftnl.Accept()) || c.passes && left[nftnl.Mark] != nftnl.Bits(nftables.Judged) {
			t.Errorf("%+v: %v, mark %x", c, got, left[nftnl.Mark].From)
		}
	}
}

// The cost of a policy: 200 pods to 200 pods on one port.
func TestCost(t *testing.T) {
	w := oracle.World{Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}
	for i := range 400 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("p", i), Labels: map[string]string{"side": fmt.Sprint(i % 2)}}}
		pod.Spec.NodeName = "n1"
		pod.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.0.%d.%d", i/200, i%200+1)}}
		pod.Status.PodIP = pod.Status.PodIPs[0].IP
		w.Pods = append(w.Pods, pod)
	}
	before := compile(t, w)
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one"}}
	np.Spec.PodSelector = metav1.LabelSelector{MatchLabels: map[string]string{"side": "0"}}
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"side": "1"}}}},
		Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(80))}},
	}}
	w.Policies = append(w.Policies, np)
	cost := 0
	for _, item := range reconcile.Diff(compile(t, w), before).Set {
		switch item := item.(type) {
		case *nftnl.Element:
			cost++
		case *nftnl.Rules:
			cost += len(item.Rules)
		}
	}
	if cost > 410 {
		t.Errorf("%d rules and elements are added or changed, at most 410", cost)
	}
}

// Policies and labels that change treat every packet as the API's documentation says after each change, like those that are there from the
// start. A revocation is made if a packet is not allowed any more, unless a policy keeps connections.
func TestChanges(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w, fake, table := drawWorld(r), nftnl.NewFake(), fragments{}
		lock, revoked, revokedBefore, allowed := &sync.Mutex{}, 0, 0, map[oracle.Packet]bool{}
		e := enforcer.New(enforcer.Options{
			Node: "n1", Lock: lock, PerPolicy: true, Families: enforcer.Families{IPv4: true, IPv6: true},
			Revocations: enforcer.NewRevocations(enforcer.RevocationOptions{
				Lock: lock, Settled: func(context.Context, []reconcile.Owner) error { return nil },
				Revoke: func(context.Context) error { revoked++; return nil },
			}),
		})
		update := func(change enforcer.Change) {
			if err := e.Update(t.Context(), change); err != nil {
				r.Fatal(err)
			}
		}
		update(changeOf(r, w))
		pods, addresses := map[netip.Addr]bool{}, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		for _, pod := range w.Pods {
			rec := record(pod)
			e.Open(&rec)
			address := netip.MustParseAddr(pod.Status.PodIP)
			pods[address], addresses = true, append(addresses, address)
		}
		e.Compile(nftables.NewCompiler(table, nftables.Config{Bridge: bridge}), nil)
		e.Begin(nil)
		for range 3 {
			items := nftables.Items{}
			for _, fragment := range table {
				maps.Copy(items, fragment)
			}
			if err := fake.Commit(t.Context(), reconcile.Diff(items, must(fake.Read(t.Context())))); err != nil {
				r.Fatal(err)
			}
			for _, p := range packets {
				for _, p.Src = range addresses {
					for _, p.Dst = range addresses {
						if !pods[p.Src] && !pods[p.Dst] {
							continue
						}
						got, _ := fake.Judge(nftnl.HookForward, packetOf(p, pods))
						want := w.Allowed(p)
						if want != (got == nftnl.Accept()) {
							r.Fatalf("%+v: %v, allowed is %t", p, got, want)
						}
						if allowed[p] && !want && !keeps(w) && revoked == revokedBefore {
							r.Fatalf("%+v is not allowed any more, and nothing is revoked", p)
						}
						allowed[p] = want
					}
				}
			}
			revokedBefore = revoked
			next := drawWorld(r)
			change := enforcer.Change{Policies: map[policy.Key]*policy.Policy{}}
			for _, np := range w.Policies {
				change.Policies[policy.Key{Namespace: np.Namespace, Name: np.Name}] = nil
			}
			w.Policies = next.Policies
			maps.Copy(change.Policies, changeOf(r, w).Policies)
			if rapid.Bool().Draw(r, "relabelled") {
				w.Pods = slices.Clone(w.Pods)
				for i, pod := range w.Pods {
					w.Pods[i] = pod.DeepCopy()
					w.Pods[i].Labels = map[string]string{"app": sample(r, "label", "x", "y")}
				}
				change.Pods = changeOf(r, w).Pods
			}
			update(change)
		}
	})
}
