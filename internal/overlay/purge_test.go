package overlay

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/policy"
)

// datapath records the switch's flows at each purge.
type datapath struct {
	life *life

	mu     sync.Mutex
	purged []string
	err    error
	// wanted is the number of purges at the previous check.
	wanted int
}

// Purge implements Datapath.
func (d *datapath) Purge(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.purged = append(d.purged, d.life.node.flows.String())
	return d.err
}

func (d *datapath) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// asked returns the number of purges, and whether the last one was with the present flows.
func (d *datapath) asked() (times int, current bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	times = len(d.purged)
	return times, times > 0 && d.purged[times-1] == d.life.node.flows.String()
}

func (d *datapath) want(t *testing.T, what string, times int) {
	t.Helper()
	if got, current := d.asked(); got != times || times > d.wanted && !current {
		t.Errorf("%s: the datapath was asked %d times, want %d; by the flows that are there: %t", what, got, times, current)
	}
	d.wanted = times
}

// watchDatapath counts purges from now on. rest is Options.PurgeRest.
func (l *life) watchDatapath(rest time.Duration) *datapath {
	l.pods.mu.Lock()
	defer l.pods.mu.Unlock()
	l.opts.PurgeRest = rest
	d := &datapath{life: l}
	l.engines.Datapath = d
	return d
}

// elsewhere returns a pod of another node.
func elsewhere(labels map[string]string, addrs ...string) PolicyChange {
	change := policyPod("elsewhere", labels)
	for _, pod := range change.Pods {
		pod.Node = "b"
		for _, addr := range addrs {
			pod.Addresses = append(pod.Addresses, netip.MustParseAddr(addr))
		}
	}
	return change
}

func without(pod, np string) PolicyChange {
	change := PolicyChange{Pods: map[policy.Key]*PolicyPod{}, Policies: map[policy.Key]*policy.Policy{}}
	if pod != "" {
		change.Pods[policy.Key{Namespace: "default", Name: "pod-" + pod}] = nil
	}
	if np != "" {
		change.Policies[policy.Key{Namespace: "default", Name: np}] = nil
	}
	return change
}

// The datapath is purged at once when something is no longer allowed, and not at all when nothing changed.
func TestDatapathIsPurgedAtOnce(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), policyPod("one", web))
	req := l.request("one")
	l.add(t, req)
	d := l.watchDatapath(time.Hour)
	for _, step := range []struct {
		what   string
		change PolicyChange
		times  int
	}{
		{"a policy isolates the pod", denyAll(t), 1},
		{"the policy is reported again", denyAll(t), 1},
		{"the pod's status is reported, with its address", runningStatus(t, l), 1},
		{"another pod may send", elsewhere(client, "10.128.2.9"), 1},
		{"the same pod is reported again", elsewhere(client, "10.128.2.9"), 1},
		{"a label that no policy selects", elsewhere(map[string]string{"app": "client", "hash": "x"}, "10.128.2.9"), 1},
		{"the pod has another address", elsewhere(client, "10.128.2.10"), 2},
		{"the pod loses the client's label", elsewhere(nil, "10.128.2.10"), 3},
		{"the pod has the client's label again", elsewhere(client, "10.128.2.10"), 3},
		{"the pod is deleted, and no connection of it remains", without("elsewhere", ""), 3},
		{"a pod that no policy selects", policyPod("unselected", nil), 3},
		{"that pod is deleted", without("unselected", ""), 3},
		{"no policy isolates the pod any more", without("", "deny"), 4},
	} {
		l.policies(t, step.change)
		d.want(t, step.what, step.times)
	}
}

// runningStatus returns the pod one with the status that the kubelet writes once it runs.
func runningStatus(t *testing.T, l *life) PolicyChange {
	t.Helper()
	change := policyPod("one", web)
	for _, pod := range change.Pods {
		pod.Node = "a"
		for _, address := range l.record(t, l.request("one")).Addresses {
			pod.Addresses = append(pod.Addresses, address.Addr())
		}
	}
	return change
}

// Purges that may wait are combined, come soon, and are retried until they succeed.
func TestDatapathIsPurgedSoon(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), policyPod("one", web), denyAll(t))
	l.add(t, l.request("one"))
	d := l.watchDatapath(time.Millisecond)
	d.fail(errors.New("the switch does not answer"))
	l.policies(t, elsewhere(client, "10.128.2.9"))
	eventually(t, "a retry", func() bool { times, _ := d.asked(); return times > 1 })
	d.fail(nil)
	eventually(t, "no purge pending", func() bool {
		return !l.pods.policies.purges.Pending()
	})
	if _, current := d.asked(); !current {
		t.Error("the datapath was purged with older flows")
	}
	before, _ := d.asked()
	l.policies(t, without("elsewhere", ""))
	eventually(t, "a purge for the deleted pod", func() bool { times, current := d.asked(); return times > before && current })
}

// A purge that may wait is repeated while the switch refuses the flows, until they are in effect.
func TestDatapathWaitsForTheSwitch(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), policyPod("one", web), policyPod("two", client), denyAll(t))
	l.add(t, l.request("one"))
	two := l.request("two")
	l.add(t, two)
	addr := l.record(t, two).Addresses[0].Addr()
	d := l.watchDatapath(time.Millisecond)
	l.node.flowEngine.fail(errBroken)
	if err := l.UpdatePolicies(context.Background(), policyPod("two", nil)); !errors.Is(err, errBroken) {
		t.Errorf("the switch refuses, and the answer is %v", err)
	}
	l.pods.mu.Lock()
	l.pods.policies.purges.Wake()
	l.pods.mu.Unlock()
	eventually(t, "it is tried while the switch refuses", func() bool { times, _ := d.asked(); return times > 0 })
	if n := l.named(t, addr); n != 1 {
		t.Fatalf("%d flows name the client: the switch has not refused", n)
	}
	l.node.flowEngine.fail(nil)
	eventually(t, "it is asked for what is in effect", func() bool {
		_, current := d.asked()
		return l.named(t, addr) == 0 && current
	})
}

// An ADD and a DEL need no purge.
func TestDatapathOfAttachments(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), denyAll(t), policyPod("server", web), policyPod("client", client))
	d := l.watchDatapath(time.Hour)
	l.add(t, l.request("server"))
	l.add(t, l.request("client"))
	l.del(t, l.request("client"))
	l.settled(t)
	d.want(t, "pods came and went", 0)
}

// A change of the mode purges the datapath, and again if that fails.
func TestDatapathOfModes(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), policyPod("one", web), denyAll(t))
	l.add(t, l.request("one"))
	d := l.watchDatapath(time.Hour)
	broken := errors.New("the switch does not answer")
	d.fail(broken)
	if err := l.Update(context.Background(), sample()); !errors.Is(err, broken) {
		t.Errorf("the datapath cannot be asked, and the answer is %v", err)
	}
	d.fail(nil)
	for range 2 {
		l.update(t, sample())
	}
	d.want(t, "the mode changed, and one try failed", 2)
}

// A change that the switch refuses is reported, and the datapath is purged once it is in effect, not before.
func TestRefusedPoliciesAreTriedAgain(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), policyPod("one", web))
	req := l.request("one")
	l.add(t, req)
	d := l.watchDatapath(time.Hour)
	l.node.flowEngine.fail(errBroken)
	if err := l.UpdatePolicies(context.Background(), denyAll(t)); !errors.Is(err, errBroken) {
		t.Errorf("the switch refuses, and the answer is %v", err)
	}
	d.want(t, "nothing is there", 0)
	l.node.flowEngine.fail(nil)
	eventually(t, "it is in effect", func() bool { return l.UpdatePolicies(context.Background(), PolicyChange{}) == nil })
	d.want(t, "it is there", 1)
	if got := l.opens(t, req); got != "isolated" {
		t.Errorf("the port is %s", got)
	}
}

// The purge after a View is made when the View's flows are in effect, not by a feature or policy that is programmed meanwhile.
func TestPurgeComesAfterTheFlowsOfAView(t *testing.T) {
	l := isolate(t, newNode(t.TempDir()), vnids("default", 10))
	d := l.watchDatapath(time.Hour)
	waits, end := make(chan struct{}), make(chan struct{})
	first, release := sync.OnceFunc(func() { close(waits) }), sync.OnceFunc(func() { close(end) })
	defer release()
	l.node.flowEngine.before(func() { first(); <-end })
	view := isolated()
	view.Cluster.VXLANPort = 4790
	updated := make(chan error, 1)
	go func() { updated <- l.Update(t.Context(), view) }()
	<-waits
	if err := (changer{l.Network}).Purge(t.Context(), feature.Never); err != nil {
		t.Fatal(err)
	}
	d.want(t, "while the flows are committed", 0)
	release()
	if err := <-updated; err != nil {
		t.Fatal(err)
	}
	d.want(t, "after the View", 1)
}

// The purge after a View that the switch refuses at first is made when its flows are in effect, although a feature has made one before.
func TestPurgeComesAfterTheFlowsOfARefusedView(t *testing.T) {
	l := start(t)
	d := l.watchDatapath(time.Hour)
	view := sample()
	view.Cluster.VXLANPort = 4790
	l.node.flowEngine.fail(errBroken)
	if err := l.Update(t.Context(), view); !errors.Is(err, errBroken) {
		t.Fatalf("the switch refuses, and the answer is %v", err)
	}
	if err := (changer{l.Network}).Purge(t.Context(), feature.Never); err != nil {
		t.Fatal(err)
	}
	l.node.flowEngine.fail(nil)
	l.update(t, view)
	if _, current := d.asked(); !current {
		t.Error("the datapath was not purged with the flows of the View")
	}
	before, _ := d.asked()
	l.update(t, view)
	if now, _ := d.asked(); now != before {
		t.Error("the same View again purges the datapath")
	}
}

// An update of a feature that is repeated because the datapath could not be purged is in effect only after a purge.
func TestFailedPurgesOfFeatures(t *testing.T) {
	for name, update := range map[string]func(l *life) error{
		"firewalls": func(l *life) error {
			return l.Firewalls.Update(context.Background(), FirewallChange{Firewalls: map[string]*egressfirewall.Firewall{"a": denying("192.0.2.0/24")}})
		},
		"multicast": func(l *life) error { return l.Multicast.Update(context.Background(), wants("a 10 on")) },
	} {
		t.Run(name, func(t *testing.T) {
			l := isolate(t, newNode(t.TempDir()), vnids("a", 10))
			l.add(t, l.of("a", "one"))
			d := l.watchDatapath(time.Hour)
			broken := errors.New("the switch does not answer")
			d.fail(broken)
			if err := update(l); !errors.Is(err, broken) {
				t.Errorf("the datapath cannot be asked, and the answer is %v", err)
			}
			d.fail(nil)
			before, _ := d.asked()
			if err := update(l); err != nil {
				t.Error(err)
			}
			if now, current := d.asked(); now == before || !current {
				t.Error("in effect without a purge")
			}
		})
	}
}
