package overlay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
)

// isolated is sample in the mode that isolates by VNIDs.
func isolated() View {
	view := sample()
	view.Cluster.Mode = clusternetwork.ModeMultitenant
	return view
}

func vnids(pairs ...any) TenantChange {
	change := TenantChange{VNIDs: map[string]uint32{}}
	for i := 0; i < len(pairs); i += 2 {
		change.VNIDs[pairs[i].(string)] = uint32(pairs[i+1].(int)) //nolint:gosec,forcetypeassert // of the test's own
	}
	return change
}

func (l *life) tenancy(t tb, change TenantChange) {
	t.Helper()
	if err := l.Projects.Update(context.Background(), change); err != nil {
		t.Fatal(err)
	}
}

// isolate starts an agent in the mode with VNIDs. The next step of a move is taken only by takeStep.
func isolate(t *testing.T, n *node, tenants TenantChange) *life {
	t.Helper()
	l := n.begin(t)
	t.Cleanup(l.stop)
	l.opts.MoveStep = time.Hour
	l.tenancy(t, tenants)
	l.update(t, isolated())
	eventually(t, "VNIDs are realised", func() bool { return l.Projects.Realised() == tenants.Version && !l.Projects.Pending() })
	return l
}

// takeStep makes the next step of all moves due, and waits until it is taken.
func (l *life) takeStep(t *testing.T) {
	t.Helper()
	l.node.ahead.Add(int64(time.Hour))
	if err := l.Projects.Update(context.Background(), TenantChange{}); err != nil { // so that the clock is read
		t.Fatal(err)
	}
	eventually(t, "the step is taken", func() bool {
		programming, next := l.Projects.Progress()
		return !programming && (next.IsZero() || next.After(l.node.now()))
	})
}

func (r requests) of(namespace, name string) *cni.Request {
	req := r.request(name)
	req.Args.PodNamespace = namespace
	return req
}

// vnidsOf returns what an attachment sends with and which VNIDs it admits, by the switch's flows.
func (p programmed) vnidsOf(t *testing.T, req *cni.Request) string {
	t.Helper()
	rec := p.record(t, req)
	have, err := p.at.flows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var sends string
	var admits []string
	for _, entry := range have {
		f, ok := entry.(*openflow.Flow)
		if !ok || f.Cookie != cookies.Of(owner(rec.Key())) {
			continue
		}
		text := f.String()
		switch {
		case f.Table == layout.TablePod && strings.Contains(text, "nw_src="):
			_, rest, _ := strings.Cut(text, "set_field:")
			sends, _, _ = strings.Cut(rest, "->reg0")
		case f.Table == layout.TableIngress && !strings.Contains(text, "ct_state"):
			_, rest, from := strings.Cut(text, "reg0=")
			from0, _, _ := strings.Cut(rest, ",")
			if !from {
				from0 = "all"
			}
			admits = append(admits, from0)
		}
	}
	slices.Sort(admits)
	return fmt.Sprintf("sends %s admits %s", sends, strings.Join(admits, " "))
}

// A pod is not attached before its namespace has a VNID. The ADD waits for nothing else.
func TestADDWaitsForVNID(t *testing.T) {
	l := isolate(t, newNode(t.TempDir()), vnids("a", 10))
	l.add(t, l.of("a", "s1"))
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // the other steps take less, on a busy machine too
	defer cancel()
	before := l.left(t)
	if _, err := l.Add(ctx, l.of("new", "s2")); !codeIs(err, cni.CodeTryAgainLater) || !strings.Contains(err.Error(), `"new"`) || !strings.Contains(err.Error(), "NetNamespace") {
		t.Errorf("without a VNID: %v", err)
	}
	if after := l.left(t); !slices.Equal(after, before) {
		t.Errorf("it left something: %v, was %v", after, before)
	}
	done := make(chan error, 1)
	go func() {
		_, err := l.Add(context.Background(), l.of("new", "s3"))
		done <- err
	}()
	eventually(t, "the ADD waits", func() bool {
		unlock, free := l.opts.Records.TryLock(keyOf(l.of("new", "s3")))
		if free {
			unlock()
		}
		return !free
	})
	l.tenancy(t, vnids("new", 20))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := l.vnidsOf(t, l.of("new", "s3")); got != "sends 0x14 admits 0x14" {
		t.Error(got)
	}
}

// A move changes all pods of the namespace in three commits, and no other pods. It is realised with the last commit.
func TestMove(t *testing.T) {
	l := isolate(t, newNode(t.TempDir()), vnids("a", 10, "b", 20))
	a, b, b2 := l.of("a", "s1"), l.of("b", "s2"), l.of("b", "s3")
	for _, req := range []*cni.Request{a, b, b2} {
		l.add(t, req)
	}
	commits := l.node.commits()
	change := vnids("b", 10)
	change.Version = 7
	l.tenancy(t, change)
	for i, want := range []string{"sends 0x14 admits 0x14 0xa", "sends 0xa admits 0x14 0xa", "sends 0xa admits 0xa"} {
		if i > 0 {
			l.takeStep(t)
		}
		for _, req := range []*cni.Request{b, b2} {
			if got := l.vnidsOf(t, req); got != want {
				t.Errorf("after step %d: %s, want %s", i+1, got, want)
			}
		}
		if got := l.vnidsOf(t, a); got != "sends 0xa admits 0xa" {
			t.Errorf("after step %d the other namespace %s", i+1, got)
		}
		if done := l.Projects.Realised() == 7; done != (i == 2) {
			t.Errorf("after step %d it is realised: %v", i+1, done)
		}
	}
	now := l.node.commits()
	if now[0]-commits[0] != 3 {
		t.Errorf("%d commits of flows, want one for each step", now[0]-commits[0])
	}
	if want, have := fresh(t, t.TempDir(), isolated(), l.store.List(), vnids("a", 10, "b", 10)), l.node.state(t); want != have {
		t.Errorf("state\n%s\nwant\n%s", have, want)
	}
}

// A pod that is added during a move, and a move that is overtaken by another, end in the same state as all others.
func TestMoveInTheMidst(t *testing.T) {
	l := isolate(t, newNode(t.TempDir()), vnids("a", 10, "b", 20))
	b := l.of("b", "s1")
	l.add(t, b)
	l.tenancy(t, vnids("b", 30))
	late := l.of("b", "s2")
	l.add(t, late)
	for _, req := range []*cni.Request{b, late} {
		if got := l.vnidsOf(t, req); got != "sends 0x14 admits 0x14 0x1e" {
			t.Error(got)
		}
	}
	l.tenancy(t, vnids("b", 0))
	if got := l.vnidsOf(t, b); got != "sends 0x14 admits all" {
		t.Error(got)
	}
	l.takeStep(t)
	if got := l.vnidsOf(t, b); got != "sends 0 admits all" {
		t.Error(got)
	}
	l.tenancy(t, vnids("b", 20))
	l.takeStep(t)
	if got := l.vnidsOf(t, late); got != "sends 0x14 admits all" {
		t.Errorf("a namespace that was global is not reachable by all until the change ends: %s", got)
	}
	l.takeStep(t)
	if got := l.vnidsOf(t, late); got != "sends 0x14 admits 0x14" {
		t.Error(got)
	}
}

// A namespace without a VNID is closed, which is reported as long as it lasts, and is opened by the next VNID.
func TestVNIDGone(t *testing.T) {
	l := isolate(t, newNode(t.TempDir()), vnids("a", 10, "b", 20))
	a, b := l.of("a", "s1"), l.of("b", "s2")
	l.add(t, a)
	l.add(t, b)
	reported := map[string]string{}
	l.opts.Closed = func(rec attach.Record, why error) { reported[rec.PodName] = why.Error() }
	closed := func(when string, want ...*cni.Request) {
		t.Helper()
		all := l.Closed()
		if len(all) != len(want) {
			t.Errorf("%s: closed %v", when, all)
		}
		for _, req := range want {
			const words = `namespace "b" has no VNID`
			if why := all[owner(keyOf(req))]; why == nil || !strings.Contains(why.Error(), words) || !strings.Contains(reported["pod-s2"], words) || len(reported) != 1 {
				t.Errorf("%s: closed %v, reported %q", when, all, reported)
			}
			if err := l.Check(t.Context(), req); err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: CHECK: %v", when, err)
			}
		}
	}
	closed("both have a VNID")
	l.tenancy(t, TenantChange{Gone: []string{"b"}})
	closed("b has none", b)
	if got := l.vnidsOf(t, b); got != "sends  admits " {
		t.Errorf("b %s", got)
	}
	if got := l.vnidsOf(t, a); got != "sends 0xa admits 0xa" {
		t.Errorf("a %s", got)
	}
	clear(reported)
	again := isolated()
	again.Cluster.MTU = 1400
	l.update(t, again)
	closed("another View", b)
	l.tenancy(t, vnids("b", 21))
	if got := l.vnidsOf(t, b); got != "sends 0x15 admits 0x15" {
		t.Errorf("b %s", got)
	}
	closed("b has one again")
}

// A restart in this mode changes nothing.
func TestRestartKeepsVNIDs(t *testing.T) {
	n := newNode(t.TempDir())
	tenants := vnids("a", 10, "b", 20, "default", 0)
	l := isolate(t, n, tenants)
	for i, namespace := range []string{"a", "a", "b", "default"} {
		l.add(t, l.of(namespace, fmt.Sprint("s", i)))
	}
	l.settled(t)
	l.stop()
	before, commits := n.state(t), n.commits()
	next := isolate(t, n, tenants)
	next.settled(t)
	if now := n.state(t); now != before {
		t.Errorf("state\n%s\nwas\n%s", now, before)
	}
	if now := n.commits(); now != commits {
		t.Errorf("commits %v, were %v", now, commits)
	}
}

// A change of the mode changes flows, and in one commit the host's rules: no bridge, port or link. The change back restores the former state.
// VNIDs that change meanwhile are in effect at once when they count again.
func TestModeChange(t *testing.T) {
	l := start(t)
	a, b := l.of("a", "s1"), l.of("b", "s2")
	l.add(t, a)
	l.add(t, b)
	l.settled(t)
	flat, commits := l.node.state(t), l.node.commits()
	if names := l.WithoutVNID(); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("without a VNID: %v", names)
	}
	l.tenancy(t, vnids("a", 10, "b", 20))
	if l.node.state(t) != flat || l.Projects.InUse() || len(l.WithoutVNID()) > 0 {
		t.Error("in a flat network VNIDs make a difference")
	}
	l.update(t, isolated())
	if got := l.vnidsOf(t, a) + ", " + l.vnidsOf(t, b); got != "sends 0xa admits 0xa, sends 0x14 admits 0x14" || !l.Projects.InUse() {
		t.Error(got)
	}
	if want, have := fresh(t, t.TempDir(), isolated(), l.store.List(), vnids("a", 10, "b", 20)), l.node.state(t); want != have {
		t.Errorf("state\n%s\nwant\n%s", have, want)
	}
	const rules = 3
	commits[rules]++
	now := l.node.commits()
	for i := 1; i < len(now); i++ {
		if now[i] != commits[i] {
			t.Errorf("commits %v, want %v: more than flows and rules", now, commits)
		}
	}
	l.update(t, sample())
	if now := l.node.state(t); now != flat {
		t.Errorf("state\n%s\nwas\n%s", now, flat)
	}
	l.tenancy(t, vnids("b", 30))
	l.update(t, isolated())
	if got := l.vnidsOf(t, b); got != "sends 0x1e admits 0x1e" {
		t.Error(got)
	}
}

// A change that the switch refuses is retried, and is not reported as realised until then.
func TestMoveIsTriedAgain(t *testing.T) {
	l := isolate(t, newNode(t.TempDir()), vnids("a", 10))
	a := l.of("a", "s1")
	l.add(t, a)
	l.opts.MoveStep = time.Nanosecond
	l.node.flowEngine.refuse(func(reconcile.Change[openflow.Key, openflow.Entry]) error { return errors.New("full") })
	change := vnids("a", 11)
	change.Version = 5
	if err := l.Projects.Update(context.Background(), change); err == nil {
		t.Error("no error")
	}
	if got := l.Projects.Realised(); got != 0 {
		t.Errorf("version %d is realised", got)
	}
	l.node.flowEngine.refuse(nil)
	eventually(t, "it is realised", func() bool { return l.Projects.Realised() == 5 })
	if got := l.vnidsOf(t, a); got != "sends 0xb admits 0xb" {
		t.Error(got)
	}
}

// After any sequence of changes and restarts, the node's state is what a new agent compiles from the present records and VNIDs.
func TestTenantsProperty(t *testing.T) {
	base := t.TempDir()
	rapid.Check(t, func(r *rapid.T) {
		n := newNode(tempDir(r, base))
		l := n.begin(r)
		defer func() { l.stop() }()
		l.opts.MoveStep = time.Nanosecond
		view, have, pods := sample(), map[string]uint32{}, map[string]*cni.Request{}
		l.update(r, view)
		namespaces, names := []string{"a", "b", "c"}, []string{"s0", "s1", "s2", "s3"}
		everything := func() TenantChange { return TenantChange{VNIDs: maps.Clone(have)} }
		for range rapid.IntRange(1, 15).Draw(r, "steps") {
			namespace, name := rapid.SampledFrom(namespaces).Draw(r, "namespace"), rapid.SampledFrom(names).Draw(r, "pod")
			switch rapid.SampledFrom([]string{"vnid", "vnid", "gone", "add", "add", "delete", "mode", "restart"}).Draw(r, "do") {
			case "vnid":
				have[namespace] = rapid.Uint32Range(0, 3).Draw(r, "vnid")
				l.tenancy(r, TenantChange{VNIDs: map[string]uint32{namespace: have[namespace]}})
			case "gone":
				delete(have, namespace)
				l.tenancy(r, TenantChange{Gone: []string{namespace}})
			case "add":
				if _, has := have[namespace]; pods[name] == nil && (has || view.Cluster.Mode == clusternetwork.ModeSubnet) {
					pods[name] = l.of(namespace, name)
					l.add(r, pods[name])
				}
			case "delete":
				if pods[name] != nil {
					l.del(r, pods[name])
					delete(pods, name)
				}
			case "mode":
				if view.Cluster.Mode == clusternetwork.ModeSubnet {
					view = isolated()
				} else {
					view = sample()
				}
				l.update(r, view)
			case "restart":
				l.stop()
				l = n.begin(r)
				l.opts.MoveStep = time.Nanosecond
				l.tenancy(r, everything())
				l.update(r, view)
			}
		}
		l.settled(r)
		eventually(r, "nothing moves", func() bool { return !l.Projects.Pending() })
		if want, now := fresh(r, tempDir(r, base), view, l.store.List(), everything()), n.state(r); want != now {
			r.Fatalf("state\n%s\nwant\n%s", now, want)
		}
	})
}

// A change to the flat network drops no packet that is allowed: before pods' own flows are removed, packets from other nodes have VNID 0,
// and the flow that admits everything is added last or together with them. In the change back, no sender is excluded before pods' flows say
// which VNIDs they admit.
func TestModeChangeOrder(t *testing.T) {
	l := isolate(t, newNode(t.TempDir()), vnids("a", 10))
	l.add(t, l.of("a", "s1"))
	remotes, pods, all := 0, 0, 0 // the last commits that changed the VNIDs from tunnels, pods' own flows, and flows for all pods
	commits := 0
	l.node.flowEngine.refuse(func(change reconcile.Change[openflow.Key, openflow.Entry]) error {
		commits++
		for _, entries := range []map[openflow.Key]openflow.Entry{change.Set, change.Delete} {
			for key, entry := range entries {
				text := entry.String()
				switch {
				case key.Group == 0 && key.Table == layout.TableTunnel && strings.Contains(text, "tun_src="):
					remotes = commits
				case key.Group == 0 && key.Table == layout.TableIngress && strings.Contains(text, "reg2=0x3"):
					pods = commits
				case key.Group == 0 && key.Table == layout.TableIngress:
					all = commits
				}
			}
		}
		return nil
	})
	for _, view := range []View{sample(), isolated()} {
		remotes, pods, all, commits = 0, 0, 0, 0
		l.update(t, view)
		if remotes == 0 || remotes > pods || pods > all {
			t.Errorf("to %s: tunnels by commit %d, pods by %d, all by %d", view.Cluster.Mode, remotes, pods, all)
		}
	}
}

// With NetworkPolicies, pods' packets carry the VNIDs of their namespaces, a pod of a namespace without one is closed, and a namespace with
// a new VNID sends with it.
func TestPoliciesCarryVNIDs(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), policyPod("one", web))
	change := func(vnids map[string]uint32, gone ...string) {
		t.Helper()
		if err := l.Projects.Update(t.Context(), TenantChange{VNIDs: vnids, Gone: gone}); err != nil {
			t.Fatal(err)
		}
	}
	change(map[string]uint32{"default": 77})
	eventually(t, "the namespace has moved", func() bool { return !l.Projects.Pending() })
	req := l.request("one")
	l.add(t, req)
	sends := func() string {
		flows := strings.Join(l.held(t, owner(keyOf(req))), "\n")
		for _, vnid := range []string{"0", "0x4d", "0x4e"} {
			if strings.Contains(flows, "set_field:"+vnid+"->reg0") {
				return vnid
			}
		}
		return ""
	}
	if got := sends(); got != "0x4d" {
		t.Errorf("the pod sends with VNID %q, want 0x4d", got)
	}
	change(nil, "default")
	if got := l.opens(t, req); got != "closed" {
		t.Errorf("without a VNID the port is %s", got)
	}
	change(map[string]uint32{"default": 78})
	eventually(t, "the namespace has its VNID", func() bool { return sends() == "0x4e" })
}
