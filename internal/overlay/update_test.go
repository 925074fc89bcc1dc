package overlay

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/overlay/host"
)

// same checks that the node's state is what a new agent compiles.
func (l *life) same(t *testing.T, view View) {
	t.Helper()
	if want, have := fresh(t, t.TempDir(), view, l.store.List()), l.node.state(t); want != have {
		t.Errorf("state\n%s\nwant\n%s", have, want)
	}
}

func TestUpdate(t *testing.T) {
	for name, change := range map[string]func(*View){
		"nothing":              func(*View) {},
		"remote added":         func(v *View) { v.Remotes = append(v.Remotes, subnet("d", "192.0.2.4", "10.128.6.0/23")) },
		"remote changed":       func(v *View) { v.Remotes[1].HostIP = netip.MustParseAddr("192.0.2.9") },
		"remote made anew":     func(v *View) { v.Remotes[1].UID = "another" },
		"remote removed":       func(v *View) { v.Remotes = v.Remotes[:1] },
		"all removed":          func(v *View) { v.Remotes = nil },
		"order":                func(v *View) { v.Remotes[0], v.Remotes[1] = v.Remotes[1], v.Remotes[0] },
		"remote with a VNID":   func(v *View) { v.Remotes[0].VNID = 77 },
		"mtu":                  func(v *View) { v.Cluster.MTU = 1400 },
		"interface's mtu":      func(v *View) { v.Node.MTU = 9000 },
		"port":                 func(v *View) { v.Cluster.VXLANPort = 4790 },
		"closed ports":         func(v *View) { v.ClosedPorts = []uint16{6081} },
		"own address":          func(v *View) { v.Local.HostIP = netip.MustParseAddr("192.0.2.77") },
		"service network":      func(v *View) { v.Cluster.ServiceNetwork = netip.MustParsePrefix("172.31.0.0/16") },
		"own subnet":           func(v *View) { v.Local.Subnet = netip.MustParsePrefix("10.128.8.0/23") },
		"remote of this node":  func(v *View) { v.Remotes[0].HostIP = v.Local.HostIP },
		"remote inside":        func(v *View) { v.Remotes[0].HostIP = netip.MustParseAddr("10.128.0.9") },
		"remote overlaps own":  func(v *View) { v.Remotes[0].Subnet = v.Local.Subnet },
		"remote outside":       func(v *View) { v.Remotes[0].Subnet = netip.MustParsePrefix("10.0.0.0/23") },
		"two of one address":   func(v *View) { v.Remotes[0].HostIP = v.Remotes[1].HostIP },
		"two of one subnet":    func(v *View) { v.Remotes[0].Subnet = v.Remotes[1].Subnet },
		"overlapping subnets":  func(v *View) { v.Remotes[0].Subnet = netip.MustParsePrefix("10.128.4.0/24") },
		"and settings as well": func(v *View) { v.Remotes, v.Cluster.MTU = v.Remotes[1:], 1400 },
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			reqs := []*cni.Request{l.request("s1"), l.request("s2")}
			for _, req := range reqs {
				l.add(t, req)
			}
			view := sample()
			change(&view)
			l.update(t, view)
			l.same(t, view)
			commits := l.node.commits()
			l.update(t, view)
			if now := l.node.commits(); now != commits {
				t.Errorf("the same again commits: %v, was %v", now, commits)
			}
			l.update(t, sample())
			l.same(t, sample())
		})
	}
}

// A host with an invalid object is left out, which is logged once.
func TestBadRemoteIsReported(t *testing.T) {
	n := newNode(t.TempDir())
	l := n.begin(t)
	defer l.stop()
	var log strings.Builder
	l.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
	view := sample()
	view.Remotes = append(view.Remotes, subnet("bad", "192.0.2.5", "10.0.0.0/23"))
	l.update(t, view)
	view.Remotes = append(view.Remotes, subnet("d", "192.0.2.4", "10.128.6.0/23"))
	l.update(t, view)
	if got := strings.Count(log.String(), "HostSubnet bad:"); got != 1 {
		t.Errorf("reported %d times:\n%s", got, log.String())
	}
	if !strings.Contains(n.flows.String(), "192.0.2.4") || strings.Contains(n.state(t), "192.0.2.5") {
		t.Errorf("state:\n%s", n.state(t))
	}
}

// A host without a Node does not take a node's subnet, in any order.
func TestNodesComeBeforeOtherHosts(t *testing.T) {
	l := start(t)
	view := sample()
	view.Remotes[1].NodeUID = "node-c"
	l.update(t, view)
	before := l.node.flows.String()
	view.Remotes = append(view.Remotes, subnet("a-first-in-order", "192.0.2.66", view.Remotes[1].Subnet.String()))
	l.update(t, view)
	if after := l.node.flows.String(); after != before {
		t.Errorf("flows changed:\n%s\nwere:\n%s", after, before)
	}
}

// The cost of a change of remote hosts depends on the change: pods are not compiled, and unaffected engines are not called.
func TestRemoteChangeLeavesPodsAlone(t *testing.T) {
	l := start(t)
	l.add(t, l.request("s1"))
	before, settings := l.node.commits(), l.pods.settings.Load()
	view := sample()
	view.Remotes = append(view.Remotes, subnet("d", "192.0.2.4", "10.128.6.0/23"))
	l.update(t, view)
	after := l.node.commits()
	if after != [4]int{before[0] + 1, before[1], before[2], before[3] + 1} || l.pods.settings.Load() != settings {
		t.Errorf("commits %v, were %v", after, before)
	}
}

// extend adds a cluster network.
func extend(v *View, network string) {
	v.Cluster.ClusterNetworks = append(v.Cluster.ClusterNetworks, ipam.Range{Prefix: netip.MustParsePrefix(network), HostBits: 1})
}

func TestInvalidView(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*View)
		words  string
	}{
		"mode":             {func(v *View) { v.Cluster.Mode = "none" }, "pluginName"},
		"mtu too large":    {func(v *View) { v.Cluster.MTU = 1451 }, "at most 1450"},
		"interface narrow": {func(v *View) { v.Node.MTU = 600 }, "at least 626"},
		"no subnet":        {func(v *View) { v.Local.Subnet = netip.Prefix{} }, "subnet"},
		"subnet too small": {func(v *View) { v.Local.Subnet = netip.MustParsePrefix("10.128.0.0/31") }, "subnet"},
		"subnet elsewhere": {func(v *View) { v.Local.Subnet = netip.MustParsePrefix("10.0.0.0/23") }, "not within a cluster network"},
		"no networks":      {func(v *View) { v.Cluster.ClusterNetworks = nil }, "cluster network"},
		"address inside":   {func(v *View) { v.Local.HostIP = netip.MustParseAddr("10.128.0.9") }, "the address of node a"},
		"own among pods":   {func(v *View) { extend(v, "192.0.2.0/31") }, "clusterNetworks: 192.0.2.0/31"},
		"node among pods":  {func(v *View) { extend(v, "192.0.2.2/31") }, "the address of node b"},
		"node a Service":   {func(v *View) { v.Cluster.ServiceNetwork = netip.MustParsePrefix("192.0.2.2/31") }, "serviceNetwork: 192.0.2.2/31"},
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			req := l.request("s1")
			l.add(t, req)
			state, commits := l.node.state(t), l.node.commits()
			view := sample()
			view.Remotes[0].NodeUID = "node-b"
			c.change(&view)
			if err := l.Update(t.Context(), view); err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("error %v, want one with %q", err, c.words)
			}
			if l.node.state(t) != state || l.node.commits() != commits {
				t.Error("something was changed")
			}
			l.whole(t, req)
			l.add(t, l.request("s2"))

			first := newNode(t.TempDir()).begin(t)
			defer first.stop()
			if err := first.Update(t.Context(), view); err == nil || first.Ready() == nil {
				t.Errorf("as the first: %v", err)
			}
			if n := first.node.commits(); n != [4]int{} {
				t.Errorf("commits %v", n)
			}
		})
	}
}

// An Update that fails at one engine still reaches the others, and the next one completes it.
func TestUpdateThatFails(t *testing.T) {
	for name, engine := range map[string]func(*node) interface{ fail(error) }{
		"rules": func(n *node) interface{ fail(error) } { return n.ruleEngine },
		"rows":  func(n *node) interface{ fail(error) } { return n.rowEngine },
		"links": func(n *node) interface{ fail(error) } { return n.linkEngine },
		"flows": func(n *node) interface{ fail(error) } { return n.flowEngine },
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			l.add(t, l.request("s1"))
			gone := sample()
			gone.Remotes, gone.Cluster.MTU, gone.Cluster.VXLANPort = gone.Remotes[:1], 1400, 4790
			engine(l.node).fail(errBroken)
			if err := l.Update(t.Context(), gone); err == nil {
				t.Fatal("no error")
			}
			if name != "flows" && strings.Contains(l.node.flows.String(), "192.0.2.3") {
				t.Error("the host that is gone still has flows")
			}
			engine(l.node).fail(nil)
			l.update(t, gone)
			l.same(t, gone)
		})
	}
}

// Concurrent Updates, ADDs and DELs: no fragment of a removed pod comes back, and none of a former View stays.
func TestUpdateDuringRequests(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	done := make(chan struct{})
	var updates, all sync.WaitGroup
	updates.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			view := sample()
			view.Local.HostIP = netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i%100)})
			view.Cluster.MTU = 1400 + i%50
			if err := l.Update(context.Background(), view); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 8 {
		all.Go(func() {
			for round := range 10 {
				req := l.request(fmt.Sprint("s", i, "r", round%3))
				if _, err := l.Add(context.Background(), req); err != nil {
					t.Error(err)
				}
				if err := l.Del(context.Background(), req); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	close(done)
	updates.Wait()
	l.update(t, sample())
	l.nothingLeft(t, before)
}

// model is the desired state of a node, kept naively.
type model struct {
	life     *life
	view     View
	attached map[string]*cni.Request
	away     bool
}

func (m *model) name(t *rapid.T) string {
	return fmt.Sprint("s", rapid.IntRange(0, 7).Draw(t, "sandbox"))
}

func (m *model) add(t *rapid.T) {
	name := m.name(t)
	req := m.life.node.request(name, fmt.Sprint("/run/netns/", name, rapid.IntRange(0, 1).Draw(t, "namespace")))
	if _, err := m.life.Add(context.Background(), req); err != nil {
		if !m.away {
			t.Fatal(err)
		}
		delete(m.attached, name) // undone, and reported so to the runtime
		return
	}
	m.attached[name] = req
}

func (m *model) fail(t *rapid.T) {
	name := m.name(t)
	m.life.node.pods.onCreate(func() error { return errBroken })
	defer m.life.node.pods.onCreate(nil)
	if _, err := m.life.Add(context.Background(), m.life.request(name)); err == nil {
		t.Fatal("an ADD without a link succeeded")
	}
	delete(m.attached, name)
}

func (m *model) del(t *rapid.T) {
	name := m.name(t)
	m.life.del(t, m.life.request(name))
	delete(m.attached, name)
}

func (m *model) gc(t *rapid.T) {
	req := &cni.Request{NetConf: &cni.NetConf{}}
	for name := range m.attached {
		if rapid.Bool().Draw(t, "valid") {
			req.NetConf.ValidAttachments = append(req.NetConf.ValidAttachments, cni.Attachment{ContainerID: name, IfName: "eth0"})
			continue
		}
		delete(m.attached, name)
	}
	if err := m.life.GC(context.Background(), req); err != nil {
		t.Fatal(err)
	}
}

func (m *model) update(t *rapid.T) {
	if m.away {
		return
	}
	m.view = sample()
	m.view.Cluster.MTU = rapid.SampledFrom([]int{0, 1400}).Draw(t, "mtu")
	m.view.Local.HostIP = netip.AddrFrom4([4]byte{192, 0, 2, byte(rapid.IntRange(1, 2).Draw(t, "own address"))})
	m.view.Remotes = nil
	for _, i := range rapid.SliceOfDistinct(rapid.IntRange(1, 6), rapid.ID[int]).Draw(t, "remotes") {
		m.view.Remotes = append(m.view.Remotes, subnet(fmt.Sprint("n", i), fmt.Sprint("192.0.2.", 1+i/2), fmt.Sprintf("10.128.%d.0/23", 2*i)))
	}
	m.life.update(t, m.view)
}

func (m *model) restart(t *rapid.T) {
	if m.away {
		return
	}
	m.life.stop()
	m.life = m.life.node.begin(t)
	m.life.update(t, m.view)
}

func (m *model) leave(*rapid.T) {
	m.away = !m.away
	var err error
	if m.away {
		err = unavailable()
	}
	m.life.node.flowEngine.fail(err)
}

func (m *model) check(t *rapid.T) {
	for name, req := range m.attached {
		rec := m.life.record(t, req)
		if rec.State != attach.Attached || rec.Netns != req.Netns {
			t.Fatalf("%s: %+v", name, rec)
		}
	}
	recs := m.life.store.List()
	if len(addresses(recs)) != len(recs) {
		t.Fatalf("records share an address: %+v", recs)
	}
}

// After any sequence, the node's state is what a new agent compiles from the desired attachments.
func TestAnyOrder(t *testing.T) {
	base := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dirs := [2]string{tempDir(t, base), tempDir(t, base)}
		m := &model{life: newNode(dirs[0]).begin(t), view: sample(), attached: map[string]*cni.Request{}}
		defer func() { m.life.stop() }()
		m.life.update(t, m.view)
		t.Repeat(map[string]func(*rapid.T){
			"add": m.add, "add2": m.add, "del": m.del, "gc": m.gc, "fail": m.fail,
			"update": m.update, "restart": m.restart, "switch": m.leave, "": m.check,
		})
		m.life.node.flowEngine.fail(nil)
		m.life.settled(t)
		m.check(t)
		recs := m.life.store.List()
		if len(recs) != len(m.attached) {
			t.Fatalf("records %+v, want %v", recs, m.attached)
		}
		m.life.engines.Flows.Resync()
		if _, err := m.life.engines.Flows.Verify(context.Background()); err != nil {
			t.Fatal(err)
		}
		if want, have := fresh(t, dirs[1], m.view, recs), m.life.node.state(t); want != have {
			t.Fatalf("state\n%s\nwant\n%s", have, want)
		}
		if links, _ := m.life.node.pods.List(context.Background()); len(links) != len(m.attached) {
			t.Fatalf("links %v, want %v", links, m.attached)
		}
		if ports := m.life.node.rows.Ports(host.Bridge); len(ports) != len(m.attached)+2 {
			t.Fatalf("ports %v, want %v", ports, m.attached)
		}
	})
}

// A pod outside the node's present subnet is closed, which is reported as long as it lasts.
func TestClosedPortIsReported(t *testing.T) {
	l := start(t)
	req := l.request("s1")
	l.add(t, req)
	if closed := l.Closed(); len(closed) != 0 {
		t.Errorf("closed: %v", closed)
	}
	reported := map[string]string{}
	l.opts.Closed = func(rec attach.Record, why error) { reported[rec.PodName] = why.Error() }
	moved := sample()
	moved.Local = subnet("a", "192.0.2.1", "10.128.8.0/23")
	l.update(t, moved)
	rec := l.record(t, req)
	for _, words := range []string{"10.128.0.2", "10.128.8.0/23", "delete the pod"} {
		if why := l.Closed()[owner(rec.Key())]; why == nil || !strings.Contains(why.Error(), words) || !strings.Contains(reported["pod-s1"], words) {
			t.Errorf("closed %v, reported %q: without %q", why, reported, words)
		}
	}
	l.update(t, sample())
	if closed := l.Closed(); len(closed) != 0 {
		t.Errorf("open again, and closed: %v", closed)
	}
	l.whole(t, req)
}
