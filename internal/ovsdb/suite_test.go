package ovsdb_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is what the suite holds an engine to.
type engine interface {
	reconcile.Engine[ovsdb.Key, ovsdb.Row]
	OFPort(ctx context.Context, name string) (uint32, error)
	Datapath(ctx context.Context) (ovsdb.Datapath, error)
	Events() <-chan ovsdb.Event
}

// bench is a switch with an engine, and functions that change the switch without the engine.
type bench struct {
	engine engine
	// link makes links that ports of these names can use.
	link func(t *testing.T, names ...string)
	// noLink removes the link.
	noLink func(t *testing.T, name string)
	// foreign makes a bridge and a port on it that are not Weft's.
	foreign func(t *testing.T, bridge, port string)
	// stray adds an unmarked internal port to a bridge by hand.
	stray func(t *testing.T, bridge, port string)
	// remove deletes a port by hand.
	remove func(t *testing.T, port string)
	// ports lists all ports of a bridge, including foreign ports.
	ports func(t *testing.T, bridge string) []string
}

const patience = 20 * time.Second

func suiteContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	return ctx
}

func set(rows ...ovsdb.Row) ovsdb.Change {
	c := ovsdb.Change{Set: map[ovsdb.Key]ovsdb.Row{}}
	for _, r := range rows {
		c.Set[r.Key()] = r
	}
	return c
}

func del(rows ...ovsdb.Row) ovsdb.Change {
	return ovsdb.Change{Delete: set(rows...).Set}
}

func br0() *ovsdb.Bridge {
	return &ovsdb.Bridge{
		Name: "br0", DatapathType: ovsdb.DatapathNetdev, FailMode: "secure",
		Protocols:   []string{"OpenFlow15", "OpenFlow13"},
		OtherConfig: map[string]string{"hwaddr": "0a:58:0a:80:00:01"},
		ExternalIDs: map[string]string{ovsdb.OwnerID: "node"},
	}
}

func pod(name string, ofport uint16) *ovsdb.Port {
	return &ovsdb.Port{
		Bridge: "br0", Name: name, OFPort: ofport,
		ExternalIDs: map[string]string{ovsdb.OwnerID: "attachment/" + name, "sandbox": "s-" + name},
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// holds fails unless the engine reads exactly these rows.
func (b *bench) holds(t *testing.T, rows ...ovsdb.Row) {
	t.Helper()
	have, err := b.engine.Read(suiteContext(t))
	must(t, err)
	change := reconcile.Diff(set(rows...).Set, have)
	if !change.Empty() {
		t.Fatalf("not as desired:\n  would set %v\n  would delete %v\n  have %v",
			slices.Collect(maps.Values(change.Set)), slices.Collect(maps.Values(change.Delete)), have)
	}
}

// event takes events until one satisfies ok.
func (b *bench) event(t *testing.T, what string, ok func(ovsdb.Event) bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e, open := <-b.engine.Events():
			if !open {
				t.Fatalf("events ended before %s", what)
			}
			t.Logf("event: %v %v", e.Kind, e.Keys)
			if ok(e) {
				return
			}
		case <-deadline:
			t.Fatalf("no event in %v: %s", patience, what)
		}
	}
}

// quiet fails if there is an event now. It first calls Read, which returns after all earlier updates.
func (b *bench) quiet(t *testing.T) {
	t.Helper()
	_, err := b.engine.Read(suiteContext(t))
	must(t, err)
	select {
	case e := <-b.engine.Events():
		t.Fatalf("event without a cause: %v %v", e.Kind, e.Keys)
	default:
	}
}

func driftOf(keys ...ovsdb.Key) func(ovsdb.Event) bool {
	return func(e ovsdb.Event) bool {
		return e.Kind == ovsdb.EventDrift &&
			!slices.ContainsFunc(keys, func(k ovsdb.Key) bool { return !slices.Contains(e.Keys, k) })
	}
}

// suite has the tests that the fake and the real switch must pass.
func suite(t *testing.T, start func(t *testing.T) *bench) {
	cases := map[string]func(*testing.T, *bench){
		"a bridge and its ports come and go":           testLifecycle,
		"rows that are as desired are not written":     testIdempotent,
		"a port is changed in place":                   testUpdate,
		"an id that is no longer desired goes":         testRemoveID,
		"many ports in one change":                     testMany,
		"a port whose link does not exist fails alone": testFailsAlone,
		"a port that fails after it was there stays":   testFailsLater,
		"a number in use fails alone":                  testNumberInUse,
		"an invalid row fails alone":                   testInvalid,
		"a port without a bridge fails alone":          testNoBridge,
		"a datapath that does not work":                testDatapath,
		"what is foreign stays":                        testForeign,
		"marked ports on a foreign bridge":             testMarkedOnForeign,
		"strays on an own bridge are seen":             testStrays,
		"a port moves between bridges":                 testMove,
		"drift is reported":                            testDrift,
		"port numbers":                                 testOFPort,
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) { cases[name](t, start(t)) })
	}
}

func testLifecycle(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.holds(t)
	b.link(t, "pod1")
	vx := &ovsdb.Port{
		Bridge: "br0", Name: "vxlan0", Type: ovsdb.TypeVXLAN, OFPort: 1,
		Options: map[string]string{"remote_ip": "flow", "key": "flow", "dst_port": "4789"},
	}
	tun := &ovsdb.Port{
		Bridge: "br0", Name: "tun0", Type: ovsdb.TypeInternal, OFPort: 2, MTURequest: 1450,
		MAC: "0a:58:0a:80:00:02",
	}
	must(t, b.engine.Commit(ctx, set(br0(), vx, tun, pod("pod1", 3))))
	b.holds(t, br0(), vx, tun, pod("pod1", 3))
	if diff := cmp.Diff([]string{"pod1", "tun0", "vxlan0"}, b.ports(t, "br0")); diff != "" {
		t.Error(diff)
	}
	must(t, b.engine.Commit(ctx, del(vx, pod("pod1", 3))))
	b.holds(t, br0(), tun)
	must(t, b.engine.Commit(ctx, del(br0(), tun)))
	b.holds(t)
	must(t, b.engine.Commit(ctx, del(br0(), tun))) // no such rows: nothing to do
	must(t, b.engine.Commit(ctx, set(br0())))      // and the bridge can be made again
	b.holds(t, br0())
	b.quiet(t)
}

func testIdempotent(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.link(t, "pod1")
	must(t, b.engine.Commit(ctx, set(br0(), pod("pod1", 3))))
	before := b.written(t)
	must(t, b.engine.Commit(ctx, set(br0(), pod("pod1", 3))))
	must(t, b.engine.Commit(ctx, ovsdb.Change{}))
	if after := b.written(t); after != before {
		t.Errorf("%d transactions for nothing", after-before)
	}
}

// written counts the transactions that have changed something.
func (b *bench) written(t *testing.T) int {
	t.Helper()
	switch e := b.engine.(type) {
	case *ovsdb.Fake:
		return e.Transactions()
	case interface{ NextCfg(*testing.T) int }:
		return e.NextCfg(t)
	default:
		t.Fatalf("cannot count the transactions of %T", e)
		return 0
	}
}

func testUpdate(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.link(t, "pod1")
	port := pod("pod1", 3)
	must(t, b.engine.Commit(ctx, set(br0(), port)))
	port.IngressRate, port.IngressBurst, port.LLDP, port.OFPort = 1000, 100, true, 7
	port.ExternalIDs["ip"] = "10.128.0.5"
	bridge := br0()
	bridge.FailMode, bridge.Protocols, bridge.OtherConfig = "standalone", []string{"OpenFlow15"}, nil
	must(t, b.engine.Commit(ctx, set(port, bridge)))
	b.holds(t, bridge, port)
	if n, err := b.engine.OFPort(ctx, "pod1"); err != nil || n != 7 {
		t.Errorf("number %d, %v; want 7", n, err)
	}
	b.quiet(t)
}

func testRemoveID(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.link(t, "pod1")
	port := pod("pod1", 3)
	must(t, b.engine.Commit(ctx, set(br0(), port)))
	delete(port.ExternalIDs, "sandbox")
	must(t, b.engine.Commit(ctx, set(port)))
	rows, err := b.engine.Read(ctx)
	must(t, err)
	if diff := cmp.Diff(port, rows[port.Key()], cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func testMany(t *testing.T, b *bench) {
	const n = 200
	ctx := suiteContext(t)
	must(t, b.engine.Commit(ctx, set(br0())))
	rows := make([]ovsdb.Row, n)
	for i := range rows {
		name := fmt.Sprintf("pod%d", i)
		b.link(t, name)
		rows[i] = pod(name, uint16(i+3))
	}
	before := b.written(t)
	begin := time.Now()
	must(t, b.engine.Commit(ctx, set(rows...)))
	t.Logf("%d ports added in %v, %v each", n, time.Since(begin), time.Since(begin)/n)
	if got := b.written(t) - before; got != 1 {
		t.Errorf("%d transactions, want 1", got)
	}
	b.holds(t, append(rows, br0())...)
	begin = time.Now()
	must(t, b.engine.Commit(ctx, del(rows...)))
	t.Logf("%d ports removed in %v, %v each", n, time.Since(begin), time.Since(begin)/n)
	b.holds(t, br0())
}

// failedKeys returns the failed keys. It fails the test if err is about more than single rows.
func failedKeys(t *testing.T, err error) []ovsdb.Key {
	t.Helper()
	failed, whole := ovsdb.FailedKeys(err)
	if whole {
		t.Fatalf("the whole change failed: %v", err)
	}
	return slices.SortedFunc(maps.Keys(failed), func(a, b ovsdb.Key) int { return strings.Compare(a.Name, b.Name) })
}

func testFailsAlone(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.link(t, "pod1", "pod3")
	b.noLink(t, "pod2")
	must(t, b.engine.Commit(ctx, set(br0())))
	err := b.engine.Commit(ctx, set(pod("pod1", 3), pod("pod2", 4), pod("pod3", 5)))
	if diff := cmp.Diff([]ovsdb.Key{ovsdb.PortKey("pod2")}, failedKeys(t, err)); diff != "" {
		t.Fatal(diff)
	}
	var partial *reconcile.PartialError[ovsdb.Key]
	if !errors.As(err, &partial) || len(partial.Failed) != 1 {
		t.Errorf("a loop does not report that the others are in effect: %v", err)
	}
	var portErr *ovsdb.PortError
	if !errors.As(err, &portErr) || !strings.Contains(portErr.Reason, "No such device") {
		t.Errorf("the error does not repeat the switch's words: %v", err)
	}
	b.holds(t, br0(), pod("pod1", 3), pod("pod3", 5))
	if diff := cmp.Diff([]string{"pod1", "pod3"}, b.ports(t, "br0")); diff != "" {
		t.Errorf("something stayed behind: %s", diff)
	}
	b.link(t, "pod2")
	must(t, b.engine.Commit(ctx, set(pod("pod2", 4))))
	b.holds(t, br0(), pod("pod1", 3), pod("pod2", 4), pod("pod3", 5))
	b.quiet(t)
}

func testFailsLater(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.link(t, "pod1")
	port := pod("pod1", 3)
	must(t, b.engine.Commit(ctx, set(br0(), port)))
	b.noLink(t, "pod1")
	b.event(t, "drift of the port whose link has gone", driftOf(port.Key()))
	rows, err := b.engine.Read(ctx)
	must(t, err)
	if have, ok := rows[port.Key()].(*ovsdb.Port); !ok || have.Failure == "" || port.Equal(have) {
		t.Fatalf("a port without effect is read as %v", rows[port.Key()])
	}
	err = b.engine.Commit(ctx, set(port))
	if diff := cmp.Diff([]ovsdb.Key{port.Key()}, failedKeys(t, err)); diff != "" {
		t.Error(diff)
	}
	must(t, b.engine.Commit(ctx, del(port)))
	b.holds(t, br0())
}

func testNumberInUse(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.link(t, "pod1", "pod2", "pod3")
	must(t, b.engine.Commit(ctx, set(br0(), pod("pod1", 3))))
	err := b.engine.Commit(ctx, set(pod("pod2", 3), pod("pod3", 4)))
	if diff := cmp.Diff([]ovsdb.Key{ovsdb.PortKey("pod2")}, failedKeys(t, err)); diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
	b.holds(t, br0(), pod("pod1", 3), pod("pod3", 4))
}

func testInvalid(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.link(t, "pod1")
	bad := pod("a-name-that-is-too-long", 9)
	wrongKey := set(br0(), pod("pod1", 3), bad)
	wrongKey.Set[ovsdb.PortKey("other")] = pod("pod9", 10)
	wrongKey.Set[ovsdb.PortKey("nothing")] = nil
	err := b.engine.Commit(ctx, wrongKey)
	want := []ovsdb.Key{bad.Key(), ovsdb.PortKey("nothing"), ovsdb.PortKey("other")}
	if diff := cmp.Diff(want, failedKeys(t, err)); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(err, ovsdb.ErrInvalid) {
		t.Errorf("not ErrInvalid: %v", err)
	}
	b.holds(t, br0(), pod("pod1", 3))
}

func testNoBridge(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.link(t, "pod1", "pod2")
	must(t, b.engine.Commit(ctx, set(br0())))
	lost := pod("pod2", 4)
	lost.Bridge = "br9"
	err := b.engine.Commit(ctx, set(pod("pod1", 3), lost))
	if diff := cmp.Diff([]ovsdb.Key{lost.Key()}, failedKeys(t, err)); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(err, ovsdb.ErrNotFound) {
		t.Errorf("not ErrNotFound: %v", err)
	}
	b.holds(t, br0(), pod("pod1", 3))
}

func testDatapath(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	d, err := b.engine.Datapath(ctx)
	must(t, err)
	if !d.Supports(ovsdb.DatapathNetdev) || d.Supports("hyperspace") {
		t.Errorf("datapaths %+v", d)
	}
	kernel := br0()
	kernel.DatapathType = ovsdb.DatapathSystem
	on := &ovsdb.Port{Bridge: "br0", Name: "tun0", Type: ovsdb.TypeInternal}
	err = b.engine.Commit(ctx, set(kernel, on))
	if d.Supports(ovsdb.DatapathSystem) {
		must(t, err)
		b.holds(t, kernel, on)
		return
	}
	if d.Best() != ovsdb.DatapathNetdev {
		t.Errorf("best is %q", d.Best())
	}
	want := []ovsdb.Key{kernel.Key(), on.Key()}
	if diff := cmp.Diff(want, failedKeys(t, err)); diff != "" {
		t.Errorf("%v: %s", err, diff)
	}
	b.holds(t)
}

func testForeign(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.foreign(t, "br-phy", "eth0")
	b.link(t, "eth0")
	b.holds(t)
	phy, eth := br0(), pod("eth0", 5)
	phy.Name, phy.OtherConfig = "br-phy", nil
	err := b.engine.Commit(ctx, set(br0(), phy, eth))
	if diff := cmp.Diff([]ovsdb.Key{phy.Key(), eth.Key()}, failedKeys(t, err)); diff != "" {
		t.Error(diff)
	}
	if !errors.Is(err, ovsdb.ErrNotOwned) {
		t.Errorf("not ErrNotOwned: %v", err)
	}
	must(t, b.engine.Commit(ctx, del(phy, eth)))
	if diff := cmp.Diff([]string{"eth0"}, b.ports(t, "br-phy")); diff != "" {
		t.Errorf("a foreign port was changed: %s", diff)
	}
	b.holds(t, br0())
}

func testMarkedOnForeign(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.foreign(t, "br-int", "other")
	b.link(t, "pod1")
	port := pod("pod1", 0)
	port.Bridge = "br-int"
	must(t, b.engine.Commit(ctx, set(port)))
	b.holds(t, port)
	must(t, b.engine.Commit(ctx, del(port)))
	b.holds(t)
	if diff := cmp.Diff([]string{"other"}, b.ports(t, "br-int")); diff != "" {
		t.Error(diff)
	}
}

func testStrays(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	must(t, b.engine.Commit(ctx, set(br0())))
	b.stray(t, "br0", "stray0")
	b.event(t, "drift of the stray", driftOf(ovsdb.PortKey("stray0")))
	have, err := b.engine.Read(ctx)
	must(t, err)
	change := reconcile.Diff(set(br0()).Set, have)
	if len(change.Set) != 0 || len(change.Delete) != 1 || change.Delete[ovsdb.PortKey("stray0")] == nil {
		t.Fatalf("change is %v", change)
	}
	must(t, b.engine.Commit(ctx, change))
	b.holds(t, br0())
}

func testMove(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	br1 := br0()
	br1.Name, br1.OtherConfig = "br1", nil
	b.link(t, "pod1")
	port := pod("pod1", 3)
	must(t, b.engine.Commit(ctx, set(br0(), br1, port)))
	port.Bridge = "br1"
	must(t, b.engine.Commit(ctx, set(port)))
	b.holds(t, br0(), br1, port)
	change := del(br1) // one change removes the bridge and moves the port
	port.Bridge = "br0"
	change.Set = set(port).Set
	must(t, b.engine.Commit(ctx, change))
	b.holds(t, br0(), port)
	b.quiet(t)
}

func testDrift(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.link(t, "pod1", "pod2")
	must(t, b.engine.Commit(ctx, set(br0(), pod("pod1", 3), pod("pod2", 4))))
	b.quiet(t)
	b.remove(t, "pod1")
	b.event(t, "drift of the port that was removed", driftOf(ovsdb.PortKey("pod1")))
	must(t, b.engine.Commit(ctx, set(pod("pod1", 3))))
	b.holds(t, br0(), pod("pod1", 3), pod("pod2", 4))
	b.quiet(t)
}

func testOFPort(t *testing.T, b *bench) {
	ctx := suiteContext(t)
	b.link(t, "pod1", "pod2")
	must(t, b.engine.Commit(ctx, set(br0(), pod("pod1", 9), pod("pod2", 0))))
	for name, want := range map[string]uint32{"br0": 65534, "pod1": 9} {
		if n, err := b.engine.OFPort(ctx, name); err != nil || n != want {
			t.Errorf("%s has number %d, %v; want %d", name, n, err, want)
		}
	}
	if n, err := b.engine.OFPort(ctx, "pod2"); err != nil || n == 0 || n == 9 {
		t.Errorf("pod2 has number %d, %v", n, err)
	}
	if _, err := b.engine.OFPort(ctx, "none"); !errors.Is(err, ovsdb.ErrNotFound) {
		t.Errorf("not ErrNotFound: %v", err)
	}
}
