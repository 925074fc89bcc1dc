package overlay

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
)

// uplink records what was announced and flushed.
type uplink struct {
	mu                 sync.Mutex
	announced, flushed []netip.Addr
	err                error
	// tried counts calls of Flush, calls counts those of Announce.
	tried, calls int
}

func (u *uplink) called() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.calls
}

func (u *uplink) tries() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.tried
}

func (u *uplink) Announce(_ string, addresses ...netip.Addr) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls++
	u.announced = append(u.announced, addresses...)
	return nil
}

func (u *uplink) Flush(addresses ...netip.Addr) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.tried++
	if u.err == nil {
		u.flushed = append(u.flushed, addresses...)
	}
	return u.err
}

func (u *uplink) knows(list *[]netip.Addr, address netip.Addr) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Contains(*list, address)
}

var (
	addressOne = netip.MustParseAddr("192.0.2.100") //nolint:gochecknoglobals // constant
	nodeB      = netip.MustParseAddr("192.0.2.2")   //nolint:gochecknoglobals // constant
)

func heldHere(vnid uint32) EgressIPs {
	return EgressIPs{Ways: map[uint32]EgressWay{vnid: {Address: addressOne}}, Namespaces: map[string]uint32{"a": vnid}}
}

func leavesElsewhere(vnid uint32, nodes ...netip.Addr) EgressIPs {
	return EgressIPs{Ways: map[uint32]EgressWay{vnid: {Nodes: nodes}}, Namespaces: map[string]uint32{"a": vnid}}
}

func (l *life) leaves(t *testing.T, e EgressIPs) {
	t.Helper()
	if err := l.EgressIPs.Update(context.Background(), e); err != nil {
		t.Fatal(err)
	}
}

// egressLife returns an agent in the mode with VNIDs, on a node with an uplink, with a pod in namespace a and one in b.
func egressLife(t *testing.T) (*life, *uplink) {
	n := newNode(t.TempDir())
	n.links.AddDevice("", sample().Node.Uplink)
	u := &uplink{}
	n.uplink = u
	l := isolate(t, n, vnids("a", 10, "b", 11))
	l.add(t, l.of("a", "s1"))
	l.add(t, l.of("b", "s2"))
	return l, u
}

// way returns where traffic of a pod that leaves the cluster goes, by the switch's flows.
func (p programmed) way(t *testing.T, name string) string {
	t.Helper()
	rec := p.record(t, requests{p.at}.of("", name))
	have, err := p.at.flows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for key, entry := range have {
		flow, ok := entry.(*openflow.Flow)
		if !ok || key.Table != layout.TableEgressRoute || !strings.Contains(key.Match, "in_port="+itoa(rec.OFPort)) {
			continue
		}
		for _, a := range flow.Actions {
			if text := a.String(); strings.HasPrefix(text, "group:") {
				return p.groupText(t, text)
			}
		}
	}
	return "by the node"
}

func itoa(n uint32) string { return action.Output(n).String()[len("output:"):] }

func (p programmed) groupText(t *testing.T, group string) string {
	t.Helper()
	have, err := p.at.flows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for key, entry := range have {
		if key.Group != 0 && action.GroupAction(key.Group).String() == group {
			text := entry.String()
			switch {
			case strings.Contains(text, "0a:59:00"):
				return "here"
			case strings.Contains(text, "tun_dst"):
				return "elsewhere"
			}
			return "nowhere"
		}
	}
	return "a group that is not there"
}

func (p programmed) wantWays(t *testing.T, a, b string) {
	t.Helper()
	if gotA, gotB := p.way(t, "s1"), p.way(t, "s2"); gotA != a || gotB != b {
		t.Errorf("a's pod leaves %s and b's %s, want %s and %s", gotA, gotB, a, b)
	}
}

func TestEgressIPIsAddedMovedAndRemoved(t *testing.T) {
	l, u := egressLife(t)
	before := l.node.state(t)
	l.wantWays(t, "by the node", "by the node")
	l.leaves(t, heldHere(10))
	l.wantWays(t, "here", "by the node")
	if state := l.node.state(t); !strings.Contains(state, "address 192.0.2.100 dev eth0") || !strings.Contains(state, "egress-sources 10 : 192.0.2.100") {
		t.Error("the address is not on the interface, or nothing is translated to it")
	}
	eventually(t, "it is announced", func() bool { return u.knows(&u.announced, addressOne) })
	l.add(t, l.of("a", "s3"))
	if got := l.way(t, "s3"); got != "here" {
		t.Errorf("a pod that comes later leaves %s", got)
	}
	l.del(t, l.of("a", "s3"))
	l.settled(t)

	l.leaves(t, heldHere(12)) // the project has another VNID
	l.wantWays(t, "here", "by the node")
	if state := l.node.state(t); !strings.Contains(state, "address 192.0.2.100 dev eth0") || !strings.Contains(state, "egress-sources 12 : 192.0.2.100") || strings.Contains(state, "egress-sources 10 ") {
		t.Error("the address did not go along with the project")
	}

	l.leaves(t, leavesElsewhere(10, nodeB))
	l.wantWays(t, "elsewhere", "by the node")
	eventually(t, "connections of an address that has gone are flushed", func() bool { return u.knows(&u.flushed, addressOne) })
	l.leaves(t, leavesElsewhere(10))
	l.wantWays(t, "nowhere", "by the node")
	l.leaves(t, EgressIPs{})
	l.wantWays(t, "by the node", "by the node")
	if after := l.node.state(t); after != before {
		t.Errorf("something is left:\n%s\nbefore:\n%s", after, before)
	}
}

// A move changes only the group, and no flow of a pod.
func TestEgressIPMoveTouchesNoPod(t *testing.T) {
	l, _ := egressLife(t)
	l.leaves(t, leavesElsewhere(10, nodeB))
	pods := 0
	l.node.flowEngine.refuse(func(change reconcile.Change[openflow.Key, openflow.Entry]) error {
		for key := range change.Set {
			if key.Group == 0 && key.Table != layout.TableNote && !strings.Contains(key.Match, "in_port=1") {
				pods++
			}
		}
		return nil
	})
	l.leaves(t, leavesElsewhere(10, netip.MustParseAddr("192.0.2.3")))
	l.leaves(t, heldHere(10))
	if pods != 0 {
		t.Errorf("%d flows of pods were written", pods)
	}
}

// The address and its translation are in effect before any flow leads there, and stay until none does.
func TestEgressIPOrder(t *testing.T) {
	l, _ := egressLife(t)
	present := func() bool { return strings.Contains(l.node.state(t), "address 192.0.2.100 dev eth0") }
	var seen []bool
	l.node.flowEngine.before(func() { seen = append(seen, present()) })
	l.leaves(t, heldHere(10))
	l.leaves(t, EgressIPs{})
	l.node.flowEngine.before(nil)
	if len(seen) == 0 || slices.Contains(seen, false) {
		t.Errorf("when flows were committed, the address was there: %v", seen)
	}
	if present() {
		t.Error("the address is still there")
	}
}

// After a restart everything is in the first commit, and nothing is written.
func TestRestartKeepsEgressIPs(t *testing.T) {
	l, u := egressLife(t)
	l.leaves(t, heldHere(10))
	state, commits := l.node.state(t), l.node.commits()
	l.stop()
	next := l.node.begin(t)
	t.Cleanup(next.stop)
	next.tenancy(t, vnids("a", 10, "b", 11))
	next.leaves(t, heldHere(10))
	next.update(t, isolated())
	if got := l.node.state(t); got != state {
		t.Errorf("after a restart:\n%s\nbefore:\n%s", got, state)
	}
	if got := l.node.commits(); got != commits {
		t.Errorf("a restart committed: %v, before %v", got, commits)
	}
	next.stop()
	if u.tries() > 0 || len(next.EgressIPs.Flushing()) > 0 {
		t.Error("a restart flushes connections")
	}
}

// A failure is reported and does not block others, and the same change may be passed again.
func TestEgressIPIsTriedAgain(t *testing.T) {
	l, u := egressLife(t)
	broken := errors.New("broken")
	l.node.linkEngine.refuse(func(reconcile.Change[link.Key, link.Item]) error { return broken })
	if err := l.EgressIPs.Update(context.Background(), heldHere(10)); !errors.Is(err, broken) {
		t.Fatalf("%v", err)
	}
	l.wantWays(t, "here", "by the node") // never by the node's own address
	if strings.Contains(l.node.state(t), addressOne.String()) {
		t.Errorf("there are rules for an address that another host may have:\n%s", l.node.state(t))
	}
	commits := l.node.commits()
	if err := l.EgressIPs.Update(context.Background(), heldHere(10)); !errors.Is(err, broken) {
		t.Fatalf("%v", err)
	}
	if got := l.node.commits(); got != commits || u.knows(&u.announced, addressOne) {
		t.Errorf("a try in vain announced the address, or committed: %v, before %v", got, commits)
	}
	other := isolated()
	other.Node.Network = netip.MustParsePrefix("192.0.2.0/24")
	l.update(t, other)
	calls := u.called()
	l.EgressIPs.Announce([]netip.Addr{nodeB}) // not held; everything queued before is announced by the time of this one
	eventually(t, "announcements are made", func() bool { return u.called() > calls })
	if u.knows(&u.announced, addressOne) || strings.Contains(l.node.state(t), "egress-sources 10") {
		t.Error("with another View the address is announced, or translated to")
	}
	l.node.linkEngine.refuse(nil)
	l.leaves(t, heldHere(10))
	if state := l.node.state(t); !strings.Contains(state, "address 192.0.2.100 dev eth0") || !strings.Contains(state, "egress-sources 10 : 192.0.2.100") {
		t.Error("the address did not come")
	}
	eventually(t, "it is announced", func() bool { return u.knows(&u.announced, addressOne) })
	u.mu.Lock()
	u.err = broken
	u.mu.Unlock()
	l.leaves(t, leavesElsewhere(10, nodeB)) // does not wait for the flush
	eventually(t, "a flush of connections has failed", func() bool { return u.tries() > 0 })
	u.mu.Lock()
	u.err = nil
	u.mu.Unlock()
	eventually(t, "connections are flushed", func() bool { return u.knows(&u.flushed, addressOne) })
}

// If an address moves to another project, its connections are flushed.
func TestEgressIPOfAnotherProjectIsFlushed(t *testing.T) {
	l, u := egressLife(t)
	ways := func(a, b netip.Addr) EgressIPs {
		return EgressIPs{Ways: map[uint32]EgressWay{10: {Address: a}, 11: {Address: b}}, Namespaces: map[string]uint32{"a": 10, "b": 11}}
	}
	l.leaves(t, ways(addressOne, netip.Addr{}))
	l.leaves(t, ways(netip.Addr{}, addressOne))
	eventually(t, "its connections are flushed", func() bool { return u.knows(&u.flushed, addressOne) })
	if !strings.Contains(l.node.state(t), "egress-sources 11 : 192.0.2.100") {
		t.Error("nothing is translated to it")
	}
}

// If an address moved while no agent ran, the next agent flushes its connections.
func TestRestartFlushesWhatChangedHands(t *testing.T) {
	elsewhere := func(vnid uint32) EgressIPs { return leavesElsewhere(vnid, nodeB) }
	for name, after := range map[string]EgressIPs{"another node holds it": elsewhere(10), "another project has it": heldHere(11), "no project has it": {}} {
		l, u := egressLife(t)
		l.leaves(t, heldHere(10))
		l.stop()
		if len(u.flushed) > 0 {
			t.Fatalf("%s: %v is flushed before", name, u.flushed)
		}
		next := l.node.begin(t)
		t.Cleanup(next.stop)
		next.tenancy(t, vnids("a", 10, "b", 11))
		next.leaves(t, after)
		next.update(t, isolated())
		eventually(t, name+": its connections are flushed", func() bool { return u.knows(&u.flushed, addressOne) })
	}
}

// A flat network has no VNIDs, so it has no egress IPs; a change to the mode with VNIDs programs them.
func TestEgressIPAndModes(t *testing.T) {
	l, _ := egressLife(t)
	l.leaves(t, heldHere(10))
	l.update(t, sample())
	l.wantWays(t, "by the node", "by the node")
	if strings.Contains(l.node.state(t), addressOne.String()) {
		t.Error("the address is still there")
	}
	l.update(t, isolated())
	l.wantWays(t, "here", "by the node")
}

// An egress IP is added while the switch hangs in the flush of a Service's connections: only the Service waits for the flush.
func TestEgressIPWaitsForNoFlush(t *testing.T) {
	l, _ := egressLife(t)
	owner, web := svc("web", "172.30.0.10", service.KindClusterIP, transport.UDP, "10.128.0.5:80")
	l.services(t, one(owner, web))
	hang, entered := make(chan struct{}), make(chan struct{})
	l.node.tracked.hang, l.node.tracked.entered = hang, entered
	served := make(chan error, 1)
	go func() {
		_, gone := svc("web", "172.30.0.10", service.KindClusterIP, transport.UDP, "10.128.0.6:80")
		served <- l.Services.Update(context.Background(), one(owner, gone))
	}()
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	moved := make(chan error, 1)
	go func() { moved <- l.EgressIPs.Update(ctx, heldHere(10)) }()
	select {
	case err := <-moved:
		if err != nil {
			t.Error(err)
		}
		if got := l.way(t, "s1"); got != "here" {
			t.Errorf("what leaves goes %s, not by the egress address", got)
		}
	case <-ctx.Done():
		t.Error("the egress address waits for the flush")
	}
	close(hang)
	if err := <-served; err != nil {
		t.Error(err)
	}
	if got := l.node.tracked.outdated(); len(got) == 0 {
		t.Error("nothing was flushed")
	}
}

// A View that comes while egress IPs are programmed supersedes them: its rules are not replaced by those compiled before, and the update
// ends when everything is in effect for the new View. A change that comes meanwhile is in effect as well.
func TestEgressIPsAndAViewMeanwhile(t *testing.T) {
	l, u := egressLife(t)
	waits, end := make(chan struct{}), make(chan struct{})
	first, release := sync.OnceFunc(func() { close(waits) }), sync.OnceFunc(func() { close(end) })
	defer release()
	l.node.linkEngine.before(func() { first(); <-end })
	one, two, viewed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go func() { one <- l.EgressIPs.Update(t.Context(), heldHere(10)) }()
	<-waits
	other := netip.MustParseAddr("192.0.2.101")
	latest := EgressIPs{Ways: map[uint32]EgressWay{11: {Address: other}}, Namespaces: map[string]uint32{"b": 11}}
	go func() { two <- l.EgressIPs.Update(t.Context(), latest) }()
	view := isolated()
	view.Remotes = view.Remotes[:1]
	view.Cluster.MTU = 1400
	go func() { viewed <- l.Update(t.Context(), view) }()
	eventually(t, "the View is handed over", func() bool { return l.pods.settings.Load().MTU == 1400 })
	release()
	for _, done := range []<-chan error{one, two, viewed} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	l.wantWays(t, "by the node", "here")
	if state := l.node.state(t); strings.Contains(state, addressOne.String()) || !strings.Contains(state, "egress-sources 11 : 192.0.2.101") {
		t.Errorf("the first change is still there, or the second is not:\n%s", state)
	}
	eventually(t, "the latest address is announced", func() bool { return u.knows(&u.announced, other) })
	commits := l.node.commits()
	l.leaves(t, latest)
	if got := l.node.commits(); got != commits {
		t.Errorf("the same again commits: %v, was %v", got, commits)
	}
}

// hanging makes commits of an engine wait until release is called. reached is closed once one waits.
func hanging[K comparable, V any](t *testing.T, engine *breakable[K, V]) (reached <-chan struct{}, release func()) {
	t.Helper()
	waits, end := make(chan struct{}), make(chan struct{})
	first, release := sync.OnceFunc(func() { close(waits) }), sync.OnceFunc(func() { close(end) })
	t.Cleanup(release)
	engine.before(func() { first(); <-end })
	return waits, release
}

// otherPort returns a View that changes rules, rows and flows of nodes.
func otherPort() View {
	view := isolated()
	view.Cluster.VXLANPort = 4790
	return view
}

// A project gets another VNID, and a View comes before the pods' flows follow. The former group stays as long as flows lead to it: the switch
// would delete them with it, and the pod's traffic would leave by the node's own address.
func TestViewKeepsGroupsThatAreInUse(t *testing.T) {
	l, _ := egressLife(t)
	l.leaves(t, leavesElsewhere(10, nodeB))
	links, releaseLinks := hanging(t, l.node.linkEngine)
	rules, releaseRules := hanging(t, l.node.ruleEngine)
	moved, viewed := make(chan error, 1), make(chan error, 1)
	go func() { moved <- l.EgressIPs.Update(t.Context(), heldHere(12)) }()
	<-links
	go func() { viewed <- l.Update(t.Context(), otherPort()) }()
	<-rules
	eventually(t, "the View's groups are in the switch", func() bool { return len(l.held(t, pipeline.EgressOwner(12))) > 0 })
	l.wantWays(t, "elsewhere", "by the node")
	releaseRules()
	releaseLinks()
	for _, done := range []<-chan error{moved, viewed} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	l.wantWays(t, "here", "by the node")
	if former := l.held(t, pipeline.EgressOwner(10)); len(former) > 0 {
		t.Errorf("the former group is left: %v", former)
	}
}

// Egress IPs change while the rules of a View hang. The flows of pods that the View hands over lead to no group that is not handed over yet:
// the switch would refuse them.
func TestViewLeadsToNoGroupToCome(t *testing.T) {
	l, _ := egressLife(t)
	rules, releaseRules := hanging(t, l.node.ruleEngine)
	viewed, moved := make(chan error, 1), make(chan error, 1)
	go func() { viewed <- l.Update(t.Context(), otherPort()) }()
	<-rules
	links, releaseLinks := hanging(t, l.node.linkEngine)
	go func() { moved <- l.EgressIPs.Update(t.Context(), heldHere(10)) }()
	<-links
	rows, releaseRows := hanging(t, l.node.rowEngine)
	releaseRules()
	<-rows // pods' flows are handed over before
	if err := l.engines.Flows.Apply(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if failures := l.engines.Flows.Failures(); len(failures) > 0 {
		t.Errorf("refused: %v", failures)
	}
	l.wantWays(t, "by the node", "by the node")
	releaseRows()
	releaseLinks()
	for _, done := range []<-chan error{moved, viewed} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	l.wantWays(t, "here", "by the node")
}

// A caller that gives up while an address is put on the interface leaves nothing that translates to it. The next update completes it.
func TestEgressIPIsGivenUp(t *testing.T) {
	l, u := egressLife(t)
	links, release := hanging(t, l.node.linkEngine)
	ctx, giveUp := context.WithCancel(t.Context())
	moved := make(chan error, 1)
	go func() { moved <- l.EgressIPs.Update(ctx, heldHere(10)) }()
	<-links
	giveUp()
	if err := <-moved; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := l.engines.Rules.Apply(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if state := l.node.state(t); strings.Contains(state, "egress-sources 10 ") {
		t.Errorf("packets are translated to an address that is not on the interface:\n%s", state)
	}
	release()
	l.leaves(t, heldHere(10))
	l.wantWays(t, "here", "by the node")
	eventually(t, "it is announced", func() bool { return u.knows(&u.announced, addressOne) })
}
