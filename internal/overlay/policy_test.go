package overlay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
)

func policyView() View {
	view := sample()
	view.Cluster.Mode = clusternetwork.ModeNetworkPolicy
	return view
}

// policyPod returns the pod of the sandbox of that name, as it is in the API server during the ADD: without an address.
func policyPod(name string, labels map[string]string) PolicyChange {
	key := policy.Key{Namespace: "default", Name: "pod-" + name}
	return PolicyChange{Pods: map[policy.Key]*PolicyPod{key: {Pod: policy.Pod{Key: key, Labels: labels}, UIDs: []string{"uid-" + name}}}}
}

// denyAll isolates the namespace's pods with the label app=web, and admits pods with the label app=client.
func denyAll(t tb) PolicyChange {
	t.Helper()
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deny"}}
	np.Spec.PodSelector.MatchLabels = map[string]string{"app": "web"}
	np.Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress"}
	np.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}},
	}}
	p, err := policy.FromNetworkPolicy(np)
	if err != nil {
		t.Fatal(err)
	}
	return PolicyChange{Policies: map[policy.Key]*policy.Policy{p.Key: &p}, Namespaces: map[string]*policy.Namespace{"default": {Name: "default"}}}
}

func (l *life) policies(t tb, change PolicyChange) {
	t.Helper()
	if err := l.UpdatePolicies(context.Background(), change); err != nil {
		t.Fatal(err)
	}
}

// startPolicies returns a serving agent in the mode with NetworkPolicies, after the changes.
func startPolicies(t *testing.T, n *node, changes ...PolicyChange) *life {
	t.Helper()
	l := n.begin(t)
	t.Cleanup(l.stop)
	for _, change := range changes {
		l.policies(t, change)
	}
	l.update(t, policyView())
	return l
}

var (
	web    = map[string]string{"app": "web"}
	client = map[string]string{"app": "client"}
)

// opens returns the isolation in an attachment's flows: "closed", "open", or "isolated".
func (p programmed) opens(t tb, req *cni.Request) string {
	t.Helper()
	flows := strings.Join(p.held(t, owner(keyOf(req))), "\n")
	switch {
	case flows == "":
		return "closed"
	case strings.Contains(flows, fmt.Sprintf("set_field:%#x/%#x->reg6", layout.FlagIngress, layout.FlagIngress)):
		return "isolated"
	default:
		return "open"
	}
}

// An ADD waits for the labels of its pod, not for its address, and the first flows of the port isolate it.
func TestIsolationComesFirst(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), denyAll(t))
	req := l.request("one")
	l.node.flowEngine.refuse(func(change reconcile.Change[openflow.Key, openflow.Entry]) error {
		for _, entry := range change.Set {
			if f, ok := entry.(*openflow.Flow); ok && f.Table == layout.TableLocal && f.Priority == 100 && f.Cookie == cookies.Of(owner(keyOf(req))) &&
				!strings.Contains(f.String(), fmt.Sprintf("%#x->reg6", layout.FlagIngress)) {
				return errors.New("the port is open before its pod is isolated")
			}
		}
		return nil
	})
	added := make(chan error, 1)
	go func() {
		_, err := l.Add(context.Background(), req)
		added <- err
	}()
	eventually(t, "the ADD waits for its pod", func() bool {
		return l.pods.policies.enforcer.Attached() == 1
	})
	l.policies(t, policyPod("other", web))
	if got := l.opens(t, req); got != "closed" {
		t.Errorf("while its pod is not known, the port is %s", got)
	}
	l.policies(t, policyPod("one", web))
	if err := <-added; err != nil {
		t.Fatal(err)
	}
	if got := l.opens(t, req); got != "isolated" {
		t.Errorf("the port is %s", got)
	}
}

// An ADD whose pod is unknown fails, and leaves nothing behind.
func TestUnknownPodStaysClosed(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()))
	req := l.request("one")
	ctx, cancel := context.WithCancel(context.Background())
	added := make(chan error, 1)
	go func() {
		_, err := l.Add(ctx, req)
		added <- err
	}()
	eventually(t, "the ADD waits for its pod", func() bool {
		return l.pods.policies.enforcer.Attached() == 1
	})
	cancel()
	var failed *cni.Error
	if err := <-added; !errors.As(err, &failed) || failed.Code != cni.CodeTryAgainLater || !strings.Contains(err.Error(), "default/pod-one") {
		t.Errorf("the ADD ends with %v, want that it is to be tried again, and the pod", err)
	}
	l.settled(t)
	if got := l.opens(t, req); got != "closed" || l.pods.policies.enforcer.Attached() > 0 {
		t.Errorf("the port is %s, and %d pods are attached", got, l.pods.policies.enforcer.Attached())
	}
}

// named returns the number of flows in table 80 with an address as the sender.
func (p programmed) named(t tb, addr netip.Addr) int {
	t.Helper()
	all, err := p.at.flows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for key := range all {
		if key.Table == layout.TableIngress && strings.Contains(key.Match, "nw_src="+addr.String()) && addr != netip.MustParseAddr("10.128.0.1") {
			n++
		}
	}
	return n
}

// An address that this node assigned to a pod counts as the pod's before the API server has it, and as no pod's once the pod is gone.
func TestOwnAddressesComeFromAttachments(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), denyAll(t), policyPod("server", web), policyPod("client", client))
	l.add(t, l.request("server"))
	req := l.request("client")
	l.add(t, req)
	addr := l.record(t, req).Addresses[0].Addr()
	if n := l.named(t, addr); n != 1 {
		t.Errorf("%d flows name the client, want 1", n)
	}
	// The API server has an older address of the pod, or one of this node for another node's pod: this node's own records count.
	stale := policyPod("client", client)
	for _, pod := range stale.Pods {
		pod.Addresses = []netip.Addr{netip.MustParseAddr("10.128.0.77")}
	}
	l.policies(t, stale)
	elsewhere := policyPod("elsewhere", client)
	for _, pod := range elsewhere.Pods {
		pod.Node, pod.Addresses = "b", []netip.Addr{netip.MustParseAddr("10.128.0.78"), netip.MustParseAddr("10.128.2.9")}
	}
	l.policies(t, elsewhere)
	for text, want := range map[string]int{addr.String(): 1, "10.128.0.77": 0, "10.128.0.78": 0, "10.128.2.9": 1} {
		if n := l.named(t, netip.MustParseAddr(text)); n != want {
			t.Errorf("%d flows name %s, want %d", n, text, want)
		}
	}
	l.del(t, req)
	if n := l.named(t, addr); n != 0 {
		t.Errorf("the client is gone, and %d flows name it", n)
	}
}

// A pod's isolation follows policies and labels. The port is closed once another pod has the name of the pod that it was created for.
func TestIsolationFollows(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), policyPod("one", web))
	req := l.request("one")
	l.add(t, req)
	expect := func(what, want string) {
		t.Helper()
		if got := l.opens(t, req); got != want {
			t.Errorf("%s: the port is %s, want %s", what, got, want)
		}
	}
	expect("no policy", "open")
	l.policies(t, denyAll(t))
	expect("a policy", "isolated")
	l.policies(t, policyPod("one", nil))
	expect("other labels", "open")
	l.policies(t, policyPod("one", web))
	expect("the labels again", "isolated")
	l.policies(t, PolicyChange{Policies: map[policy.Key]*policy.Policy{{Namespace: "default", Name: "deny"}: nil}})
	expect("the policy is gone", "open")
	next := policyPod("one", nil)
	for _, pod := range next.Pods {
		pod.UIDs = []string{"uid-next"}
	}
	l.policies(t, next)
	expect("another pod of the name", "closed")
	l.policies(t, policyPod("one", web))
	expect("the pod itself", "open")
	ended := policyPod("one", web)
	for _, pod := range ended.Pods {
		pod.Ended = true
	}
	l.policies(t, ended)
	expect("the pod has ended", "closed")
}

// A restart changes nothing, although all objects are passed again.
func TestPoliciesSurviveARestart(t *testing.T) {
	all := []PolicyChange{denyAll(t), policyPod("server", web), policyPod("client", client)}
	n := newNode(t.TempDir())
	l := startPolicies(t, n, all...)
	l.add(t, l.request("server"))
	l.add(t, l.request("client"))
	l.settled(t)
	before, commits := n.state(t), n.commits()
	l.stop()
	next := startPolicies(t, n, all[2], all[1], all[0])
	next.settled(t)
	if after := n.state(t); after != before {
		t.Errorf("before the restart\n%s\nafter\n%s", before, after)
	}
	if n.commits() != commits {
		t.Errorf("the restart wrote: %v commits before, %v after", commits, n.commits())
	}
}

// The mode changes while pods run, and back: nothing of policies is left then.
func TestModeChanges(t *testing.T) {
	l := start(t)
	req := l.request("one")
	l.add(t, req)
	flat := l.node.state(t)
	for range 2 {
		l.policies(t, denyAll(t))
		l.policies(t, policyPod("one", web))
		if got := l.opens(t, req); got != "open" {
			t.Errorf("in the flat network the port is %s", got)
		}
		l.update(t, policyView())
		if got := l.opens(t, req); got != "isolated" {
			t.Errorf("by policies the port is %s", got)
		}
		l.update(t, sample())
		if after := l.node.state(t); after != flat {
			t.Errorf("the flat network was\n%s\nand is\n%s", flat, after)
		}
	}
}

// The rules of policies exist as long as pods are marked as isolated, also during a change of the mode.
func TestModeLeavesWithItsRules(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), denyAll(t), policyPod("one", web), elsewhere(client, "10.128.2.9"))
	req := l.request("one")
	l.add(t, req)
	commits, rules, pods := 0, 0, 0
	l.node.flowEngine.refuse(func(change reconcile.Change[openflow.Key, openflow.Entry]) error {
		commits++
		for key, entry := range change.Delete {
			if key.Table == layout.TableIngress && strings.Contains(entry.String(), "conj") && rules == 0 {
				rules = commits
			}
		}
		for key := range change.Set {
			if key.Table == layout.TableLocal {
				pods = commits
			}
		}
		return nil
	})
	l.update(t, sample())
	if rules == 0 || pods == 0 || pods > rules {
		t.Errorf("pods are open by commit %d, and rules go from commit %d on", pods, rules)
	}
}

// A pod inherits no connection of a former pod with its address: they are flushed before its port is opened. An attached pod keeps its own
// connections.
func TestConnectionsAreNotInherited(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), denyAll(t), policyPod("one", web), policyPod("two", web))
	flushed := func() []openflow.CTFlush {
		l.node.tracked.mu.Lock()
		defer l.node.tracked.mu.Unlock()
		return slices.Clone(l.node.tracked.flushed)
	}
	opened := 0
	l.node.flowEngine.refuse(func(change reconcile.Change[openflow.Key, openflow.Entry]) error {
		for key := range change.Set {
			if key.Table == layout.TableLocal {
				opened++
				if len(flushed()) == 0 {
					t.Error("the port is opened before the connections are flushed")
				}
			}
		}
		return nil
	})
	result := l.add(t, l.request("one"))
	addr := netip.MustParsePrefix(result.IPs[0].Address.String()).Addr()
	if got := flushed(); len(got) != 2 || got[0].Orig.Src != addr || got[1].Reply.Src != addr || opened == 0 {
		t.Errorf("%+v is flushed, and %d flows open the port", got, opened)
	}
	l.add(t, l.request("one"))
	if n := len(flushed()); n != 2 {
		t.Errorf("%d kinds of connections are flushed after the ADD was repeated", n)
	}
	broken := errors.New("the switch does not answer")
	l.node.tracked.fail(broken)
	if _, err := l.Add(context.Background(), l.request("two")); err == nil || !strings.Contains(err.Error(), broken.Error()) {
		t.Errorf("connections cannot be flushed, and the ADD ends with %v", err)
	}
	if got := l.opens(t, l.request("two")); got != "closed" {
		t.Errorf("its port is %s", got)
	}
	l.node.tracked.fail(nil)
	l.update(t, sample())
	l.add(t, l.request("three"))
	if n := len(flushed()); n != 2 {
		t.Errorf("%d kinds of connections are flushed in a flat network", n)
	}
}

// A change of one address is one flow, besides the note with the hash of the state.
func TestOneAddressIsOneFlow(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), denyAll(t), policyPod("server", web))
	l.add(t, l.request("server"))
	l.settled(t)
	changed := 0
	l.node.flowEngine.refuse(func(change reconcile.Change[openflow.Key, openflow.Entry]) error {
		changed += len(change.Set) + len(change.Delete)
		return nil
	})
	elsewhere := policyPod("elsewhere", client)
	for _, pod := range elsewhere.Pods {
		pod.Node, pod.Addresses = "b", []netip.Addr{netip.MustParseAddr("10.128.2.9")}
	}
	l.policies(t, elsewhere)
	const flowAndNote = 2
	if changed != flowAndNote {
		t.Errorf("%d flows changed, want %d", changed, flowAndNote)
	}
}

// From one isolating mode to another, pods are closed during the change: what one of them lets through, the other may forbid.
func TestBetweenModesThatIsolate(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), policyPod("one", web), denyAll(t))
	req := l.request("one")
	l.add(t, req)
	reported := vnids("default", 42)
	if err := l.Projects.Update(context.Background(), reported); err != nil {
		t.Fatal(err)
	}
	pod, cluster := cookies.Of(owner(keyOf(req))), cookies.Of(ownerCluster)
	for _, next := range []View{isolated(), policyView()} {
		if next.ByPolicies() {
			l.policies(t, PolicyChange{Reset: true})
			l.policies(t, policyPod("one", web))
			l.policies(t, denyAll(t))
		}
		l.node.flowEngine.refuse(func(change reconcile.Change[openflow.Key, openflow.Entry]) error {
			have, _ := l.node.flows.Read(context.Background())
			open := slices.ContainsFunc(slices.Collect(maps.Values(have)), func(e openflow.Entry) bool { return isOf(e, pod) })
			for _, entry := range change.Set {
				if isOf(entry, cluster) && !pipeline.IsNote(entry.Key()) && open {
					return errors.New("the rules of the mode change while a pod is open")
				}
			}
			return nil
		})
		l.update(t, next)
		l.node.flowEngine.refuse(nil)
		if len(l.held(t, owner(keyOf(req)))) == 0 {
			t.Error("the pod stays closed")
		}
	}
	if got := l.opens(t, req); got != "isolated" {
		t.Errorf("back among policies the pod is %s", got)
	}
}

func isOf(entry openflow.Entry, cookie uint64) bool {
	flow, ok := entry.(*openflow.Flow)
	return ok && flow.Cookie == cookie
}
