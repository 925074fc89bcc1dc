package nftables_test

import (
	"maps"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/policy/nftables"
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

// TestChainsThatPodsNeed: the guard of the bridge exists while a pod is isolated or not known, and the chain of the node's own packets while
// one is isolated for egress.
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
	table, guard := fragments{}, fragments{}
	c := nftables.NewCompiler(table)
	c.GuardBy(guard, nftables.Config{Bridge: bridge, Group: 78})
	for _, step := range []struct {
		name           string
		types          []networkingv1.PolicyType
		unknown, gone  bool
		guards, output bool
	}{
		{name: "not known", unknown: true, guards: true},
		{name: "not isolated"},
		{name: "isolated for ingress", types: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, guards: true},
		{name: "isolated for egress", types: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}, guards: true, output: true},
		{name: "detached", gone: true},
	} {
		if len(step.types) > 0 {
			isolate(step.types...)
		}
		if step.gone {
			c.Commit(index, nil, []attach.Record{rec})
		} else {
			c.Commit(index, []enforcer.Attachment{{Record: rec, Decision: enforcer.Decision{Known: !step.unknown}}}, nil)
		}
		if got := guard.has(nftnl.HookForward); got != step.guards {
			t.Errorf("%s: guard %t", step.name, got)
		}
		if got := table.has(nftnl.HookOutput); got != step.output {
			t.Errorf("%s: chain of the node's packets %t", step.name, got)
		}
	}
}
