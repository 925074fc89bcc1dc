package overlay

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay/host"
)

func TestRestartCommitsNothing(t *testing.T) {
	l := start(t)
	var reqs []*cni.Request
	for i := range 10 {
		reqs = append(reqs, l.request(fmt.Sprint("s", i)))
		l.add(t, reqs[i])
	}
	l.del(t, reqs[9])
	l.settled(t)
	state, commits := l.node.state(t), l.node.commits()
	for range 3 {
		l = l.restart(t)
		if now := l.node.commits(); now != commits {
			t.Errorf("commits %v, were %v", now, commits)
		}
		if now := l.node.state(t); now != state {
			t.Errorf("state\n%s\nwas\n%s", now, state)
		}
		for _, req := range reqs[:9] {
			l.whole(t, req)
		}
	}
	if got := l.add(t, l.request("more")).IPs[0].Address.String(); got == "10.128.0.11/23" {
		// The last address, s9's, was in a record that is gone; s8's is the last known.
		t.Logf("address %s of the last pod is used again after a restart", got)
	}
}

// A new agent compiles the same state from the same records.
func TestFreshCompileIsTheSame(t *testing.T) {
	l := start(t)
	for i := range 5 {
		l.add(t, l.request(fmt.Sprint("s", i)))
	}
	l.del(t, l.request("s2"))
	l.settled(t)
	if got := fresh(t, t.TempDir(), sample(), l.store.List()); got != l.node.state(t) {
		t.Errorf("fresh:\n%s\nhave:\n%s", got, l.node.state(t))
	}
}

// What was unfinished before the restart, or is of a former boot, is removed; what is attached stays.
func TestRestartReaps(t *testing.T) {
	l := start(t)
	stays := l.request("stays")
	l.add(t, stays)
	alone := l.node.state(t)
	want := l.record(t, stays)
	for _, name := range []string{"planned", "closing", "stale", "lost", "broken"} {
		l.add(t, l.request(name))
	}
	put := func(name string, change func(*attach.Record)) {
		t.Helper()
		rec := l.record(t, l.request(name))
		change(&rec)
		if err := l.store.Put(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
	}
	put("planned", func(rec *attach.Record) { rec.State = attach.Planned })
	put("closing", func(rec *attach.Record) { rec.State = attach.Closing })
	put("stale", func(rec *attach.Record) { rec.BootID = "boot-0" })
	_ = l.node.pods.Delete(t.Context(), l.record(t, l.request("stale")).HostInterface)
	if err := l.store.Delete(t.Context(), keyOf(l.request("lost"))); err != nil {
		t.Fatal(err)
	}
	spoil(t, l.node, "broken")
	l.request("ahead")
	ahead := podlink.Pair{HostName: "weft-p900", PodName: "eth0", Netns: "/run/netns/ahead", Owner: "spare/weft-p900"} // of an earlier version
	if _, err := l.node.pods.Create(t.Context(), ahead); err != nil {
		t.Fatal(err)
	}
	l = l.restart(t)
	if n := len(l.store.Broken()); n != 1 {
		t.Errorf("%d broken records", n)
	}
	l.settled(t)
	if now := l.node.state(t); now != alone {
		t.Errorf("state\n%s\nwant\n%s", now, alone)
	}
	links, _ := l.node.pods.List(t.Context())
	if len(links) != 1 || links[want.HostInterface] == "" {
		t.Errorf("links %v", links)
	}
	if recs := l.store.List(); len(recs) != 1 || recs[0].Key() != keyOf(stays) {
		t.Errorf("records %v", recs)
	}
	for _, name := range []string{"planned", "closing", "stale", "lost", "broken", "stays"} {
		l.add(t, l.request(name))
		l.whole(t, l.request(name))
	}
}

// spoil truncates the record of a sandbox.
func spoil(t *testing.T, n *node, name string) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(n.dir, "*.json"))
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rec, err := attach.ParseRecord(data)
		if err != nil {
			t.Fatal(err)
		}
		if rec.ContainerID == name {
			if err := os.WriteFile(file, data[:len(data)/2], 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A rebooted node has neither links nor flows, and a database with the former ports.
func TestReboot(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	for i := range 3 {
		l.add(t, l.request(fmt.Sprint("s", i)))
		l.node.pods.RemoveNamespace(l.request(fmt.Sprint("s", i)).Netns)
	}
	l.stop()
	l.node.flows.Restart()
	l.node.rules.Forget(l.node.tableKey())
	l.node.links.RemoveDevice("", host.Tun)
	l.node.links.AddDevice("", host.Tun)
	next := l.node.beginIn(t, "boot-2")
	defer next.stop()
	next.update(t, sample())
	next.nothingLeft(t, before)
}

// A pod that lost its link while the agent was stopped blocks neither other pods nor new ones.
func TestRestartWithAPodWithoutLink(t *testing.T) {
	l := start(t)
	good, bad := l.request("good"), l.request("bad")
	l.add(t, good)
	l.add(t, bad)
	rec := l.record(t, bad)
	_ = l.node.pods.Delete(t.Context(), rec.HostInterface)
	l.node.rows.Refuse(rec.HostInterface, "no such device")
	l = l.restart(t)
	l.whole(t, good)
	next := l.request("next")
	l.add(t, next)
	l.whole(t, next)
	if err := l.Check(t.Context(), bad); err == nil {
		t.Error("CHECK of the pod without a link succeeds")
	}
	if err := l.Status(t.Context(), nil); err != nil {
		t.Error(err)
	}
	view := sample()
	view.Cluster.MTU = 1400
	l.update(t, view)
	l.del(t, bad)
	l.settled(t)
	l.whole(t, good)
	l.whole(t, next)
}

// A start that fails at an engine is retried, and includes what came meanwhile.
func TestStartTriedAgain(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	req := l.request("s1")
	l.add(t, req)
	l.stop()
	for _, engine := range []interface{ fail(error) }{l.node.ruleEngine, l.node.rowEngine, l.node.linkEngine, l.node.flowEngine} {
		engine.fail(errBroken)
		l = l.node.begin(t)
		if err := l.Update(t.Context(), sample()); err == nil {
			t.Error("no error")
		}
		if err := l.Ready(); err == nil {
			t.Error("ready")
		}
		if _, err := l.Add(t.Context(), req); !codeIs(err, cni.CodeTryAgainLater) {
			t.Errorf("ADD: %v", err)
		}
		engine.fail(nil)
		l.update(t, sample())
		l.whole(t, req)
		l.stop()
	}
	l.node.linkEngine.fail(errBroken)
	l = l.node.begin(t)
	defer l.stop()
	_ = l.Update(t.Context(), sample())
	l.del(t, req)
	l.node.linkEngine.fail(nil)
	l.update(t, sample())
	l.nothingLeft(t, before)
}

// After an ADD that failed while the switch was unreachable, the pod is not attached after a restart either, whatever its record said
// before.
func TestRestartAfterAnAddThatFailed(t *testing.T) {
	for name, netns := range map[string]string{"the same again": "/run/netns/s1", "another namespace": "/run/netns/other"} {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			before := l.node.state(t)
			l.add(t, l.request("s1"))
			l.node.pods.onCreate(func() error { return errBroken })
			l.node.flowEngine.fail(unavailable())
			if _, err := l.Add(t.Context(), l.node.request("s1", netns)); err == nil {
				t.Fatal("no error")
			}
			l.stop()
			l.node.flowEngine.fail(nil)
			next := l.node.begin(t)
			defer next.stop()
			next.update(t, sample())
			next.nothingLeft(t, before)
		})
	}
}

// crash is a node with requests while agents are killed.
type crash struct {
	mu sync.Mutex
	// open are the sandboxes whose ADD was answered and whose DEL was not requested.
	open map[string]*cni.Request
}

func (c *crash) set(name string, req *cni.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if req == nil {
		delete(c.open, name)
		return
	}
	c.open[name] = req
}

// An agent that is killed at any moment leaves nothing that the next one does not find. What was answered works; what was not is removed
// once the runtime has sent its GC.
func TestCrash(t *testing.T) {
	n := newNode(t.TempDir())
	l := n.begin(t)
	l.update(t, sample())
	c := &crash{open: map[string]*cni.Request{}}
	for round := range 12 {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() { c.pod(ctx, l, fmt.Sprint("r", round, "s", i)) })
		}
		time.Sleep(time.Duration(rand.IntN(int(30 * time.Millisecond)))) // the moment is random on purpose
		l.stop()
		cancel()
		all.Wait()
		l = n.begin(t)
		l.update(t, sample())
		gc := &cni.Request{NetConf: &cni.NetConf{}}
		for name := range c.open {
			gc.NetConf.ValidAttachments = append(gc.NetConf.ValidAttachments, cni.Attachment{ContainerID: name, IfName: "eth0"})
		}
		if err := l.GC(t.Context(), gc); err != nil {
			t.Fatal(err)
		}
		l.settled(t)
		for _, req := range c.open {
			l.whole(t, req)
		}
		if want, have := slices.Sorted(maps.Keys(c.open)), recorded(l); !slices.Equal(want, have) {
			t.Fatalf("round %d: attached %v, recorded %v", round, want, have)
		}
		if want, have := fresh(t, t.TempDir(), sample(), l.store.List()), n.state(t); want != have {
			t.Fatalf("round %d: state\n%s\nwant\n%s", round, have, want)
		}
		if links, _ := n.pods.List(t.Context()); len(links) != len(c.open) {
			t.Errorf("round %d: links %v", round, links)
		}
	}
	l.stop()
}

func recorded(l *life) []string {
	names := []string{}
	for _, rec := range l.store.List() {
		names = append(names, rec.ContainerID)
	}
	return names
}

// pod adds and deletes sandboxes until ctx ends.
func (c *crash) pod(ctx context.Context, l *life, name string) {
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprint(name, "i", i)
		req := l.request(id)
		if _, err := l.Add(ctx, req); err != nil {
			return
		}
		c.set(id, req)
		if i%2 == 0 {
			continue
		}
		c.set(id, nil) // from here on the runtime wants it deleted
		_ = l.Del(ctx, req)
	}
}

func (n *node) tableKey() nft.Key {
	table := host.Tables()[0]
	return table.Key()
}

var _ podlink.Links = (*breakablePods)(nil)
