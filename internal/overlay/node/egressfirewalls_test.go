package node

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	fakesource "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/node/watch"
	"weft.dev/weft/internal/resolver"
)

// The addresses of names are known on the node only. So it reports names that cannot be resolved, and names with too many addresses, on the
// policies that use them.
func TestEventsOfNames(t *testing.T) {
	network := withPodOfShop(t)

	scheme := runtime.NewScheme()
	if err := networkv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	policy := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "default", UID: "uid"}}
	for _, name := range []string{"big.example", "broken.example"} {
		policy.Spec.Egress = append(policy.Spec.Egress, networkv1.EgressNetworkPolicyRule{Type: "Allow", To: networkv1.EgressNetworkPolicyPeer{DNSName: name}})
	}
	e := newEgressFirewalls(cached{from: fake.NewClientBuilder().WithScheme(scheme).WithObjects(policy).Build()}, nil, slog.New(slog.DiscardHandler))
	reported := &sinkOfEvents{}
	e.events = reported
	e.names = resolver.NewNames(resolver.Options{Changed: e.signal, Lookup: func(_ context.Context, name string) (resolver.Answer, error) {
		if name != "big.example." {
			return resolver.Answer{}, errors.New("no name server answers")
		}
		answer := resolver.Answer{TTL: time.Hour}
		for addr := netip.MustParseAddr("10.0.0.0"); len(answer.Addrs) <= egressfirewall.MaxEntries; addr = addr.Next() {
			answer.Addrs = append(answer.Addrs, addr)
		}
		return answer, nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.names.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	e.listed.Store(true)
	e.notePolicy(policy)
	<-e.wake
	if err := e.step(t.Context(), network); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"EgressNetworkPolicy shop/default uid TooManyAddresses: nothing leaves the namespace: its rules come to more than 10000 ranges",
		"EgressNetworkPolicy shop/default uid NameNotResolved: no name server answers: until it is, a rule that allows it",
	} {
		for !slices.ContainsFunc(reported.events, func(event string) bool { return strings.HasPrefix(event, want) }) {
			select {
			case <-e.wake:
			case <-time.After(patience):
				t.Fatalf("no event %q in %q", want, reported.events)
			}
			if err := e.step(t.Context(), network); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The first change of a name triggers a step at once. Further changes within a while are handled by one step.
func TestNamesAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEgressFirewalls(nil, nil, slog.New(slog.DiscardHandler))
		steps := func() int {
			synctest.Wait()
			n := len(e.wake)
			if n > 0 {
				<-e.wake
			}
			return n
		}
		total := 0
		for i := range 100 { // one each 10 ms
			e.gathered.changed()
			n := steps()
			if total += n; i == 0 && n != 1 {
				t.Error("the first change waits")
			}
			time.Sleep(10 * time.Millisecond)
		}
		if total > 2 {
			t.Errorf("%d steps within two times %s", total, gatherNames)
		}
		time.Sleep(gatherNames)
		if steps() != 1 {
			t.Error("the last changes have no step")
		}
		e.notePolicy(&networkv1.EgressNetworkPolicy{})
		if steps() != 1 {
			t.Error("a policy waits")
		}
	})
}

// A namespace's names stay resolved for a while after its last pod.
func TestResidents(t *testing.T) {
	r, now := residents{}, time.Unix(1000, 0)
	for _, step := range []struct {
		after time.Duration
		here  string
		want  string
		next  time.Duration
	}{
		{0, "a b", "a b", 0},
		{0, "b", "a b", lingerNames},
		{lingerNames - 2, "b", "a b", 2},
		{0, "a", "a b", lingerNames},
		{lingerNames - 1, "", "a b", 1},
		{1, "", "a", lingerNames - 1},
		{lingerNames, "c", "c", 0},
	} {
		now = now.Add(step.after)
		here := map[string]struct{}{}
		for namespace := range strings.FieldsSeq(step.here) {
			here[namespace] = struct{}{}
		}
		all, next := r.at(now, here)
		got := strings.Join(slices.Sorted(maps.Keys(all)), " ")
		if got != step.want || !next.IsZero() != (step.next > 0) || step.next > 0 && next.Sub(now) != step.next {
			t.Errorf("after %s, with %q: %q, next %s; want %q, next after %s", step.after, step.here, got, next, step.want, step.next)
		}
	}
}

// watched is a cache with the objects of a client, and an informer.
type watched struct {
	cached
	informer toolscache.SharedIndexInformer
}

func (w watched) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return w.informer, nil
}

// Namespaces that come to share a VNID are closed before the network receives the shared VNID.
func TestFirewallsBeforeTenants(t *testing.T) {
	network := withPodOfShop(t)
	scheme := runtime.NewScheme()
	if err := networkv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	policy := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "default"}}
	policy.Spec.Egress = []networkv1.EgressNetworkPolicyRule{{Type: "Deny", To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: "192.0.2.0/24"}}}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(policy)
	source := fakesource.NewFakeControllerSource()
	for _, name := range []string{"shop", "bank"} {
		nn := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name, NetID: 7}
		objects.WithObjects(nn)
		source.Add(nn.DeepCopy())
	}
	from := watched{cached{from: objects.Build()}, toolscache.NewSharedIndexInformer(source, &networkv1.NetNamespace{}, 0, toolscache.Indexers{})}
	go from.informer.RunWithContext(t.Context())
	e := newEgressFirewalls(from, nil, slog.New(slog.DiscardHandler))
	e.names = resolver.NewNames(resolver.Options{Changed: e.gathered.changed})
	e.listed.Store(true)
	e.notePolicy(policy)
	if err := e.step(t.Context(), network); err != nil {
		t.Fatal(err)
	}
	x := newTenants(from, watch.New(from, watch.NewMarks()), slog.New(slog.DiscardHandler), func() {})
	ticker, deadline := time.NewTicker(time.Millisecond), time.After(patience)
	defer ticker.Stop()
	for x.Begin(t.Context()) != nil {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatal("the NetNamespaces are not listed")
		}
	}
	x.ahead = func(ctx context.Context, network *overlay.Network, names map[string]struct{}) {
		e.ahead(ctx, network, names)
		if f := e.index.All()["shop"]; f == nil || f.Closed == "" {
			t.Errorf("the namespace that shares a VNID is not closed: %v", f)
		}
		if len(network.WithoutVNID()) == 0 {
			t.Error("the network got the VNID before its firewall")
		}
	}
	if err := x.step(t.Context(), network); err != nil {
		t.Fatal(err)
	}
	if got := network.WithoutVNID(); len(got) > 0 {
		t.Errorf("namespaces without a VNID after the step: %v", got)
	}
}

// withPodOfShop returns a network with a pod of the namespace shop, and without engines.
func withPodOfShop(t *testing.T) *overlay.Network {
	t.Helper()
	store, err := attach.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if err := store.Put(t.Context(), attach.Record{
		Network: overlay.NetworkName, ContainerID: "c", IfName: "eth0", Netns: "/run/netns/x", PodNamespace: "shop",
		BootID: "boot", State: attach.Attached, Created: time.Unix(1, 0),
	}); err != nil {
		t.Fatal(err)
	}
	return overlay.New(overlay.Engines{}, store, overlay.Options{BootID: "boot"})
}
