package overlay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/multicast"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
)

// wants returns a change: "a 10 on" means that namespace a has VNID 10 and wants multicast, "a 10" that it does not, "a" that it is gone.
func wants(texts ...string) multicast.Change {
	change := multicast.Change{Namespaces: map[string]*multicast.Namespace{}}
	for _, text := range texts {
		var name, on string
		var vnid uint32
		n, _ := fmt.Sscan(text, &name, &vnid, &on) // there may be fewer fields
		change.Namespaces[name] = nil
		if n > 1 {
			change.Namespaces[name] = &multicast.Namespace{VNID: vnid, On: on == "on"}
		}
	}
	return change
}

func (l *life) sings(t tb, texts ...string) {
	t.Helper()
	if err := l.Multicast.Update(context.Background(), wants(texts...)); err != nil {
		t.Fatal(err)
	}
}

// choir returns, from the switch's flows, which pods send multicast with which VNID and which receive it: "10: one>, >one, >two".
func (p programmed) choir(t tb) string {
	t.Helper()
	have, err := p.at.flows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	names := map[uint32]string{}
	for _, rec := range p.store.List() {
		names[rec.OFPort] = strings.TrimPrefix(rec.PodName, "pod-")
	}
	byVNID := map[uint32][]string{}
	for _, entry := range have {
		f, ok := entry.(*openflow.Flow)
		if !ok {
			continue
		}
		text := f.String()
		for port, name := range names {
			for vnid := range uint32(100) {
				number := fmt.Sprintf("%#x", vnid)
				if vnid == 0 {
					number = "0"
				}
				if f.Table == layout.TableMulticastLocal && strings.Contains(text, "reg0="+number+",") && strings.Contains(text+",", fmt.Sprintf("output:%d,", port)) {
					byVNID[vnid] = append(byVNID[vnid], ">"+name)
				}
				if f.Table == layout.TablePod && strings.Contains(text, fmt.Sprintf("in_port=%d,", port)) && strings.Contains(text, "nw_dst=224.0.0.0/4") &&
					strings.Contains(text, "set_field:"+number+"->reg0") {
					byVNID[vnid] = append(byVNID[vnid], name+">")
				}
			}
		}
	}
	var lines []string
	for _, vnid := range slices.Sorted(maps.Keys(byVNID)) {
		slices.Sort(byVNID[vnid])
		lines = append(lines, fmt.Sprintf("%d: %s", vnid, strings.Join(byVNID[vnid], " ")))
	}
	return strings.Join(lines, "; ")
}

func (p programmed) wantMulticast(t tb, when, want string) {
	t.Helper()
	if got := p.choir(t); got != want {
		t.Errorf("%s: %q, want %q", when, got, want)
	}
}

// A VNID has multicast while all namespaces with it want it. Without multicast there are no flows.
func TestMulticastIsWantedByAll(t *testing.T) {
	l := isolate(t, newNode(t.TempDir()), vnids("a", 10, "b", 10, "c", 11))
	a, b, c := l.of("a", "a"), l.of("b", "b"), l.of("c", "c")
	for _, req := range []*cni.Request{a, b, c} {
		l.add(t, req)
	}
	before := l.node.state(t)
	l.sings(t, "a 10 on", "b 10", "c 11")
	if now := l.node.state(t); now != before {
		t.Errorf("no project has multicast, but the state differs:\n%s\nit was:\n%s", now, before)
	}
	l.sings(t, "b 10 on")
	l.wantMulticast(t, "both want it", "10: >a >b a> b>")
	l.sings(t, "c 11 on")
	l.wantMulticast(t, "another as well", "10: >a >b a> b>; 11: >c c>")
	l.add(t, l.of("a", "a2"))
	l.wantMulticast(t, "a pod comes", "10: >a >a2 >b a2> a> b>; 11: >c c>")
	l.del(t, a)
	l.wantMulticast(t, "a pod goes", "10: >a2 >b a2> b>; 11: >c c>")
	l.sings(t, "d 11") // a namespace without pods here
	l.wantMulticast(t, "one elsewhere does not want it", "10: >a2 >b a2> b>")
	l.sings(t, "d")
	l.wantMulticast(t, "it is gone", "10: >a2 >b a2> b>; 11: >c c>")
	l.sings(t, "a 10")
	l.wantMulticast(t, "one wants it no more", "11: >c c>")
	l.sings(t, "c 11")
	l.del(t, l.of("a", "a2"))
	l.settled(t)
	l.add(t, a)
	if now := strings.Count(l.node.state(t), "\n"); now != strings.Count(before, "\n") {
		t.Errorf("no project has multicast any more, but there are %d lines of state, before %d", now, strings.Count(before, "\n"))
	}
}

// Multicast follows a move: in each step a pod sends with one VNID and receives what is sent with those that it admits, and a step is one
// commit.
func TestMulticastMoves(t *testing.T) {
	l := isolate(t, newNode(t.TempDir()), vnids("a", 10, "b", 20))
	l.add(t, l.of("a", "a"))
	l.add(t, l.of("b", "b"))
	l.sings(t, "a 10 on", "b 20 on")
	l.wantMulticast(t, "before", "10: >a a>; 20: >b b>")
	commits := l.node.commits()
	l.tenancy(t, vnids("b", 10))
	l.wantMulticast(t, "admitting", "10: >a >b a>; 20: >b b>")
	l.sings(t, "b 10 on")
	l.wantMulticast(t, "no pod has the VNID of the datagrams", "10: >a >b a>; 20: >b b>")
	l.takeStep(t)
	l.wantMulticast(t, "sending", "10: >a >b a> b>; 20: >b")
	l.takeStep(t)
	l.wantMulticast(t, "done", "10: >a >b a> b>")
	if now := l.node.commits(); now[0]-commits[0] != 3 {
		t.Errorf("%d commits of flows, want one for each step", now[0]-commits[0])
	}
	l.tenancy(t, vnids("b", 30))
	l.sings(t, "b 30") // it moves out, and does not want multicast there
	l.wantMulticast(t, "moving out", "10: >a a>")
}

// A restart changes nothing, and the node's state is what a new agent compiles.
func TestMulticastSurvivesARestart(t *testing.T) {
	n := newNode(t.TempDir())
	l := isolate(t, n, vnids("a", 10, "b", 11))
	for i := range 5 {
		l.add(t, l.of("a", fmt.Sprint("a", i)))
		l.add(t, l.of("b", fmt.Sprint("b", i)))
	}
	l.sings(t, "a 10 on", "b 11")
	state, commits := n.state(t), n.commits()
	l.stop()
	next := n.begin(t)
	t.Cleanup(next.stop)
	next.tenancy(t, vnids("a", 10, "b", 11))
	next.sings(t, "a 10 on", "b 11")
	next.update(t, isolated())
	if now := n.commits(); now != commits {
		t.Errorf("commits %v, were %v", now, commits)
	}
	if now := n.state(t); now != state {
		t.Errorf("state\n%s\nwas\n%s", now, state)
	}
}

// Other nodes are in the flows that copy to them while any project has multicast, and changes of nodes are followed.
func TestMulticastNodes(t *testing.T) {
	l := isolate(t, newNode(t.TempDir()), vnids("a", 10))
	tunnels := func() string {
		have, err := l.node.flows.Read(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for key, entry := range have {
			if key.Table == layout.TableMulticastTunnel && key.Match != "" {
				all = append(all, entry.String())
			}
		}
		return strings.Join(all, "\n")
	}
	if got := tunnels(); got != "" {
		t.Errorf("no project has multicast: %s", got)
	}
	l.sings(t, "a 10 on")
	before := strings.Count(tunnels(), "->tun_dst")
	if before == 0 {
		t.Errorf("it is not copied to other nodes: %s", tunnels())
	}
	view := isolated()
	view.Remotes = append(view.Remotes, subnet("late", "192.0.2.77", "10.128.100.0/23"))
	l.update(t, view)
	if after := strings.Count(tunnels(), "->tun_dst"); after != before+1 || !strings.Contains(tunnels(), "192.0.2.77") {
		t.Errorf("with another node: %s", tunnels())
	}
	l.sings(t, "a 10")
	if got := tunnels(); got != "" {
		t.Errorf("no project has multicast any more: %s", got)
	}
}

// A flat network has no multicast. In the mode with NetworkPolicies all namespaces have VNIDs.
func TestMulticastModes(t *testing.T) {
	l := newNode(t.TempDir()).begin(t)
	t.Cleanup(l.stop)
	l.sings(t, "default 0 on")
	l.policies(t, policyPod("s1", nil))
	l.policies(t, policyPod("s2", nil))
	l.update(t, policyView())
	l.add(t, l.request("s1"))
	l.wantMulticast(t, "by policies", "0: >s1 s1>")
	l.add(t, l.request("s2"))
	l.wantMulticast(t, "and another", "0: >s1 >s2 s1> s2>")
	l.update(t, sample())
	l.wantMulticast(t, "flat", "")
	l.tenancy(t, vnids("default", 0))
	l.update(t, isolated())
	l.wantMulticast(t, "by projects", "0: >s1 >s2 s1> s2>")
}

// While a list of receivers may still have the port of a removed pod, neither the port nor the address goes to another pod.
func TestMulticastKeepsPortsUntilTheyAreLeft(t *testing.T) {
	n := newNode(t.TempDir())
	l := isolate(t, n, vnids("a", 10))
	one, two := l.of("a", "one"), l.of("a", "two")
	l.add(t, one)
	l.add(t, two)
	l.sings(t, "a 10 on")
	var refused atomic.Int32
	n.flowEngine.refuse(func(change reconcile.Change[openflow.Key, openflow.Entry]) error {
		for key := range change.Set {
			if key.Table == layout.TableMulticastLocal {
				refused.Add(1)
				return errors.New("no room")
			}
		}
		return nil
	})
	l.del(t, one)
	eventually(t, "its own flows are gone, and the rest was tried again and again", func() bool {
		return refused.Load() > 5 && len(l.held(t, owner(keyOf(one)))) == 0
	})
	l.wantMulticast(t, "what the switch has", "10: >one >two two>")
	if _, err := l.store.Get(keyOf(one)); errors.Is(err, attach.ErrNotFound) {
		t.Error("its record is gone while a list has its port")
	}
	n.flowEngine.refuse(nil)
	l.settled(t)
	l.wantMulticast(t, "in the end", "10: >two two>")
}

// After any sequence of changes, senders and receivers are as the rule requires, which choirOf states independently.
func TestMulticastProperty(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		l := newNode(tempDir(t, dir)).begin(t)
		defer l.stop()
		names := []string{"a", "b", "c"}
		have := map[string]multicast.Namespace{}
		reported := TenantChange{VNIDs: map[string]uint32{}}
		for _, name := range names {
			have[name] = multicast.Namespace{VNID: 10}
			reported.VNIDs[name] = 10
		}
		l.opts.MoveStep = 0
		l.tenancy(t, reported)
		l.update(t, isolated())
		pods := map[string]string{}
		for range rapid.IntRange(1, 15).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "namespace")
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				ns := multicast.Namespace{VNID: rapid.Uint32Range(10, 12).Draw(t, "vnid"), On: rapid.Bool().Draw(t, "on")}
				have[name] = ns
				l.tenancy(t, TenantChange{VNIDs: map[string]uint32{name: ns.VNID}})
				if err := l.Multicast.Update(context.Background(), multicast.Change{Namespaces: map[string]*multicast.Namespace{name: &ns}}); err != nil {
					t.Fatal(err)
				}
			case 1:
				pod := fmt.Sprint(name, len(pods))
				pods[pod] = name
				l.add(t, l.of(name, pod))
			case 2:
				for _, pod := range slices.Sorted(maps.Keys(pods)) {
					l.del(t, l.of(pods[pod], pod))
					delete(pods, pod)
					break
				}
			}
		}
		if err := l.Multicast.Update(context.Background(), multicast.Change{Reset: true, Namespaces: pointers(have)}); err != nil {
			t.Fatal(err)
		}
		l.settled(t)
		eventually(t, "all moves are over", func() bool { return !l.Projects.Pending() })
		l.wantMulticast(t, "in the end", choirOf(have, pods))
	})
}

func pointers(have map[string]multicast.Namespace) map[string]*multicast.Namespace {
	all := map[string]*multicast.Namespace{}
	for name, ns := range have {
		all[name] = &ns
	}
	return all
}

// choirOf returns by the rule which pods take part, for each VNID.
func choirOf(have map[string]multicast.Namespace, pods map[string]string) string {
	var lines []string
	for vnid := range uint32(100) {
		all := true
		for _, ns := range have {
			all = all && (ns.VNID != vnid || ns.On)
		}
		var ports []string
		for pod, namespace := range pods {
			if all && have[namespace].VNID == vnid {
				ports = append(ports, pod+">", ">"+pod)
			}
		}
		slices.SortFunc(ports, cmp.Compare[string])
		if len(ports) > 0 {
			lines = append(lines, fmt.Sprintf("%d: %s", vnid, strings.Join(ports, " ")))
		}
	}
	return strings.Join(lines, "; ")
}
