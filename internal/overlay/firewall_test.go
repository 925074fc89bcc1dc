package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
)

// denying returns a firewall that denies ranges and allows everything else.
func denying(cidrs ...string) *egressfirewall.Firewall {
	var rules []egressfirewall.Rule
	for _, cidr := range cidrs {
		rules = append(rules, egressfirewall.Rule{CIDR: netip.MustParsePrefix(cidr)})
	}
	f := egressfirewall.Compile(rules, nil)
	return &f
}

func (l *life) guard(t tb, firewalls map[string]*egressfirewall.Firewall) {
	t.Helper()
	if err := l.Firewalls.Update(context.Background(), FirewallChange{Firewalls: firewalls}); err != nil {
		t.Fatal(err)
	}
}

// guarded returns which pods carry the number of a firewall, and the ranges of that number in the switch.
func (p programmed) guarded(t tb, reqs ...*cni.Request) string {
	t.Helper()
	have, err := p.at.flows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, req := range reqs {
		cookie := cookies.Of(owner(keyOf(req)))
		for _, entry := range have {
			f, ok := entry.(*openflow.Flow)
			if !ok || f.Cookie != cookie || f.Table != layout.TablePod || !strings.Contains(f.String(), "nw_src=") {
				continue
			}
			number := "none"
			if _, rest, has := strings.Cut(f.Actions.String(), "reg0,set_field:"); has {
				number, _, _ = strings.Cut(rest, "->reg7")
			}
			var ranges []string
			for key := range have {
				if key.Table == layout.TableEgressFirewall && strings.Contains(key.Match, "reg7="+number) {
					to, _ := strings.CutPrefix(key.Match, "ip,reg7="+number)
					ranges = append(ranges, strings.TrimPrefix(to, ","))
				}
			}
			slices.Sort(ranges)
			if number != "none" {
				number = "guarded"
			}
			out = append(out, fmt.Sprintf("%s: %s %q", req.Args.PodName, number, ranges))
		}
	}
	return strings.Join(out, "\n")
}

// ranges returns the number of all ranges in the switch.
func (p programmed) ranges(t tb) int {
	t.Helper()
	have, err := p.at.flows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for key := range have {
		if key.Table == layout.TableEgressFirewall && strings.Contains(key.Match, "reg7=0x") {
			n++
		}
	}
	return n
}

// A namespace's firewall is programmed while it has pods here, from the first one on. When a firewall is added, changed or removed, its
// pods' flows follow. A restart commits nothing.
func TestFirewalls(t *testing.T) {
	n := newNode(t.TempDir())
	l := isolate(t, n, vnids("a", 10, "b", 11))
	l.guard(t, map[string]*egressfirewall.Firewall{"a": denying("192.0.2.0/24"), "c": denying("198.51.100.0/24")})
	if got := l.ranges(t); got != 0 {
		t.Errorf("%d ranges without a pod", got)
	}
	one, two, other := l.of("a", "one"), l.of("a", "two"), l.of("b", "other")
	for _, req := range []*cni.Request{one, two, other} {
		l.add(t, req)
	}
	want := func(what, want string) {
		t.Helper()
		if got := l.guarded(t, one, other); got != want {
			t.Errorf("%s: %s\nwant %s", what, got, want)
		}
	}
	want("pods of a namespace with a firewall", `pod-one: guarded ["" "nw_dst=192.0.2.0/24"]`+"\n"+`pod-other: none []`)
	if got := fmt.Sprint(l.WithPods()); got != "map[a:{} b:{}]" {
		t.Errorf("inhabited: %s", got)
	}
	before := n.commits()[0]
	l.guard(t, map[string]*egressfirewall.Firewall{"a": denying("203.0.113.0/24")})
	if got := n.commits()[0] - before; got != 1 {
		t.Errorf("a change of rules is %d commits", got)
	}
	want("other rules", `pod-one: guarded ["" "nw_dst=203.0.113.0/24"]`+"\n"+`pod-other: none []`)
	l.guard(t, map[string]*egressfirewall.Firewall{"b": {Closed: "because"}})
	want("another namespace", `pod-one: guarded ["" "nw_dst=203.0.113.0/24"]`+"\n"+`pod-other: guarded [""]`)

	state := n.state(t)
	l.stop()
	commits := n.commits()
	l = n.begin(t)
	t.Cleanup(l.stop)
	l.tenancy(t, vnids("a", 10, "b", 11))
	l.guard(t, map[string]*egressfirewall.Firewall{"a": denying("203.0.113.0/24"), "b": {Closed: "because"}})
	l.update(t, isolated())
	if now := n.commits(); now != commits || n.state(t) != state {
		t.Errorf("a restart commits: %v, before %v", now, commits)
	}

	l.del(t, one)
	if got := l.ranges(t); got != 3 {
		t.Errorf("%d ranges while a pod is left", got)
	}
	l.del(t, two)
	l.settled(t)
	if got := l.ranges(t); got != 1 {
		t.Errorf("%d ranges after the namespace's last pod, want the other's", got)
	}
	l.guard(t, map[string]*egressfirewall.Firewall{"b": nil})
	if got := l.ranges(t); got != 0 || !strings.Contains(l.guarded(t, other), "none") {
		t.Errorf("%d ranges without a firewall: %s", got, l.guarded(t, other))
	}
}

// The datapath is purged at once if a firewall no longer lets something out, and otherwise soon.
func TestFirewallsPurgeTheDatapath(t *testing.T) {
	l := isolate(t, newNode(t.TempDir()), vnids("a", 10, "b", 11))
	l.add(t, l.of("a", "one"))
	d := l.watchDatapath(time.Hour)
	for _, step := range []struct {
		what     string
		firewall *egressfirewall.Firewall
		times    int
	}{
		{"a range is denied", denying("192.0.2.0/24"), 1},
		{"another range is denied as well", denying("192.0.2.0/24", "203.0.113.0/24"), 2},
		{"the first range is no longer denied", denying("203.0.113.0/24"), 2},
		{"half of the range is denied", denying("203.0.113.0/25"), 2},
		{"the other half is denied", denying("203.0.113.128/25"), 3},
		{"closed", &egressfirewall.Firewall{Closed: "because"}, 4},
		{"open again", denying("203.0.113.128/25"), 4},
		{"none", nil, 4},
	} {
		l.guard(t, map[string]*egressfirewall.Firewall{"a": step.firewall})
		d.want(t, step.what, step.times)
	}
	if !l.pods.policies.purges.Pending() {
		t.Error("no purge is pending: the datapath may use old flows for ever")
	}
}

// A change of the mode adds or removes firewalls; a flat network has none.
func TestFirewallsFollowTheMode(t *testing.T) {
	n := newNode(t.TempDir())
	l := isolate(t, n, vnids("a", 10))
	one := l.of("a", "one")
	l.guard(t, map[string]*egressfirewall.Firewall{"a": denying("192.0.2.0/24")})
	l.add(t, one)
	isolating := n.state(t)
	l.update(t, sample())
	if got := l.ranges(t); got != 0 || !strings.Contains(l.guarded(t, one), "none") {
		t.Errorf("flat: %d ranges, %s", got, l.guarded(t, one))
	}
	l.update(t, isolated())
	if got := n.state(t); got != isolating {
		t.Errorf("isolated again, it is\n%s\nwant\n%s", got, isolating)
	}
	if err := l.Firewalls.Update(context.Background(), FirewallChange{Reset: true}); err != nil {
		t.Fatal(err)
	}
	if got := l.ranges(t); got != 0 {
		t.Errorf("%d ranges after all were forgotten", got)
	}
}

// A firewall that the switch refuses is retried, and until then its pods send nothing out. Those of other namespaces are programmed.
func TestFirewallRefused(t *testing.T) {
	n := newNode(t.TempDir())
	l := isolate(t, n, vnids("a", 10, "b", 11))
	one, two := l.of("a", "one"), l.of("b", "two")
	l.add(t, one)
	l.add(t, two)
	refused := errors.New("no room")
	n.flowEngine.refuse(func(change reconcile.Change[openflow.Key, openflow.Entry]) error {
		for key := range change.Set {
			if strings.Contains(key.Match, "nw_dst=192.0.2.0/24") {
				return refused
			}
		}
		return nil
	})
	err := l.Firewalls.Update(context.Background(), FirewallChange{Firewalls: map[string]*egressfirewall.Firewall{
		"a": denying("192.0.2.0/24"), "b": denying("198.51.100.0/24"),
	}})
	if !errors.Is(err, refused) {
		t.Fatalf("the update says %v", err)
	}
	eventually(t, "the other's firewall is programmed", func() bool {
		return l.guarded(t, one, two) == `pod-one: guarded []`+"\n"+`pod-two: guarded ["" "nw_dst=198.51.100.0/24"]`
	})
	n.flowEngine.refuse(nil)
	eventually(t, "the first one's is", func() bool {
		return l.Firewalls.Update(context.Background(), FirewallChange{}) == nil &&
			strings.HasPrefix(l.guarded(t, one), `pod-one: guarded ["" "nw_dst=192.0.2.0/24"]`)
	})
}

// After any sequence of changes, the node's state is the same as if all had been passed at once.
func TestFirewallsProperty(t *testing.T) {
	base := t.TempDir()
	rapid.Check(t, func(r *rapid.T) {
		n := newNode(tempDir(r, base))
		l := n.begin(r)
		defer func() { l.stop() }() // of the last agent
		known := map[string]*egressfirewall.Firewall{}
		reqs := map[string]*cni.Request{}
		l.tenancy(r, vnids("a", 10, "b", 11))
		view := isolated()
		l.update(r, view)
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			namespace := rapid.SampledFrom([]string{"a", "b"}).Draw(r, "namespace")
			switch rapid.IntRange(0, 5).Draw(r, "step") {
			case 0, 1:
				f := rapid.SampledFrom([]*egressfirewall.Firewall{nil, denying("192.0.2.0/24"), denying("192.0.2.0/24", "203.0.113.0/24"), {Closed: "x"}}).Draw(r, "firewall")
				l.guard(r, map[string]*egressfirewall.Firewall{namespace: f})
				if known[namespace] = f; f == nil {
					delete(known, namespace)
				}
			case 2, 3:
				name := namespace + rapid.SampledFrom([]string{"1", "2"}).Draw(r, "pod")
				if reqs[name] == nil {
					reqs[name] = l.of(namespace, name)
					l.add(r, reqs[name])
				} else {
					l.del(r, reqs[name])
					delete(reqs, name)
				}
			case 4:
				view = rapid.SampledFrom([]View{isolated(), sample()}).Draw(r, "view")
				l.update(r, view)
			default:
				l.stop()
				l = n.begin(r)
				l.tenancy(r, vnids("a", 10, "b", 11))
				l.guard(r, known)
				l.update(r, view)
			}
		}
		flat := view.Cluster.Mode == clusternetwork.ModeSubnet
		for _, req := range reqs {
			guarded := strings.Contains(l.guarded(r, req), "guarded")
			if want := known[req.Args.PodNamespace] != nil && !flat; guarded != want {
				r.Fatalf("%s is guarded: %t, want %t", req.Args.PodName, guarded, want)
			}
		}
		want := 0
		for namespace, f := range known {
			here := false
			for _, req := range reqs {
				here = here || req.Args.PodNamespace == namespace
			}
			if here && !flat {
				want += max(1, len(f.Entries))
			}
		}
		if got := l.ranges(r); got != want {
			r.Fatalf("%d ranges, want %d", got, want)
		}
	})
}
