package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/overlay/host"
)

func TestAdd(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	req := l.request("s1")
	result := l.add(t, req)
	l.whole(t, req)
	rec := l.record(t, req)
	if len(result.IPs) != 1 || result.IPs[0].Address.String() != "10.128.0.2/23" || result.IPs[0].Gateway.String() != "10.128.0.1" {
		t.Errorf("addresses %v", result.IPs)
	}
	if len(result.Interfaces) != 2 || result.Interfaces[1].Sandbox != req.Netns || result.Interfaces[1].Name != "eth0" ||
		result.Interfaces[1].Mac != "0a:58:0a:80:00:02" || result.Interfaces[1].Mtu != 1450 || result.Interfaces[0].Name != rec.HostInterface {
		t.Errorf("interfaces %v", result.Interfaces)
	}
	if rec.OFPort != ipam.OfportMin || rec.PodName != "pod-s1" || rec.PodNamespace != "default" || rec.PodUID != "uid-s1" {
		t.Errorf("record %+v", rec)
	}
	pair, _ := l.node.pods.Pair(rec.HostInterface)
	if pair.HostGroup != host.PodGroup || !pair.TxOffloadOff || pair.MTU != 1450 {
		t.Errorf("pair %+v", pair)
	}
	l.del(t, req)
	l.nothingLeft(t, before)
}

func TestAddAgain(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	req := l.request("s1")
	first := l.add(t, req)
	commits := l.node.commits()
	if diff := cmp.Diff(first, l.add(t, req)); diff != "" {
		t.Errorf("the same ADD again answers otherwise (-first +again):\n%s", diff)
	}
	if now := l.node.commits(); now != commits {
		t.Errorf("the same ADD again commits: %v, was %v", now, commits)
	}
	other := l.node.request("s1", "/run/netns/other")
	again := l.add(t, other)
	l.whole(t, other)
	if again.Interfaces[1].Sandbox != "/run/netns/other" {
		t.Errorf("sandbox %s", again.Interfaces[1].Sandbox)
	}
	if n := len(l.store.List()); n != 1 {
		t.Errorf("%d records", n)
	}
	l.del(t, other)
	l.nothingLeft(t, before)
}

func TestAddOverWhatIsBeingRemoved(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	req := l.request("s1")
	for range 20 {
		l.add(t, req)
		l.whole(t, req)
		l.del(t, req) // the reaper and the next ADD race
	}
	l.add(t, req)
	l.settled(t)
	l.whole(t, req)
	l.del(t, req)
	l.nothingLeft(t, before)
}

func TestNameReuse(t *testing.T) {
	l := start(t)
	old, next := l.request("old"), l.request("new")
	next.Args = old.Args
	was := l.add(t, old).IPs[0].Address.String()
	l.del(t, old)
	if is := l.add(t, next).IPs[0].Address.String(); is == was {
		t.Errorf("address %s was given out again at once", is)
	}
	l.del(t, old) // late, for the former sandbox
	l.settled(t)
	l.whole(t, next)
}

func TestAddRefusesWhatItCannotGive(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	for name, conf := range map[string]cni.RuntimeConfig{"ips": {IPs: []string{"10.128.0.9"}}, "mac": {MAC: "0a:58:00:00:00:01"}} {
		req := l.request("s1")
		req.NetConf.RuntimeConfig = conf
		if _, err := l.Add(t.Context(), req); !codeIs(err, cni.CodeUnsupportedField) {
			t.Errorf("%s: %v", name, err)
		}
	}
	req := l.request("s1")
	l.node.pods.RemoveNamespace(req.Netns)
	if _, err := l.Add(t.Context(), req); !codeIs(err, cni.CodeInvalidNetns) {
		t.Errorf("without a namespace: %v", err)
	}
	l.nothingLeft(t, before)
}

// The switch's own report is enough: an ADD does not wait for the database as well. A report about another port is not.
func TestAddWaitsForTheSwitchOnly(t *testing.T) {
	l := start(t)
	added, release := make(chan struct{}), make(chan struct{})
	l.node.ports.on(func(name string, ofport uint32) <-chan struct{} {
		if name != attach.PortName(ipam.OfportMin) || ofport != ipam.OfportMin {
			t.Errorf("waits for %s, %d", name, ofport)
		}
		return added
	})
	l.node.rowEngine.before(func() {
		close(added) // the switch has the row, but its reply takes longer
		<-release
	})
	req := l.request("s1")
	if _, err := l.Add(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	l.node.rowEngine.before(nil)
	l.node.ports.on(nil)
	close(release)
	eventually(t, "the row is there", func() bool { return l.node.rows.Ports(host.Bridge)[attach.PortName(ipam.OfportMin)] != 0 })
	l.whole(t, req)
	l.add(t, req) // once more, without a report about the port
	l.whole(t, req)
}

// A port is added to the switch only when its link exists, no matter how long that takes.
func TestAddWithASlowLink(t *testing.T) {
	l := start(t)
	name := attach.PortName(ipam.OfportMin)
	creating, release := make(chan struct{}), make(chan struct{})
	l.node.pods.onCreate(func() error {
		close(creating)
		<-release
		return nil
	})
	req := l.request("s1")
	done := make(chan error, 1)
	go func() {
		_, err := l.Add(t.Context(), req)
		done <- err
	}()
	<-creating
	eventually(t, "the flows are there", func() bool { return l.engines.Flows.Status().Waiting == 0 })
	if err := l.engines.Rows.Apply(t.Context(), nil); err != nil { // all that was handed over is committed
		t.Fatal(err)
	}
	if l.node.rows.Ports(host.Bridge)[name] != 0 {
		t.Error("the port is in the switch before its link")
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	l.node.pods.onCreate(nil)
	l.whole(t, req)
}

var errBroken = errors.New("broken for the test")

// An ADD that fails at any step leaves nothing behind.
func TestAddFails(t *testing.T) {
	hostInterface := attach.PortName(ipam.OfportMin + 1) // the other sandbox had the first
	for name, c := range map[string]struct {
		spoil func(t *testing.T, l *life, cancel context.CancelFunc) (repair func())
		code  cni.Code
	}{
		"no link": {spoil: func(_ *testing.T, l *life, _ context.CancelFunc) func() {
			l.node.pods.onCreate(func() error { return errBroken })
			return func() { l.node.pods.onCreate(nil) }
		}},
		"foreign link": {spoil: func(_ *testing.T, l *life, _ context.CancelFunc) func() {
			l.node.pods.onCreate(func() error { return link.ErrForeign })
			return func() { l.node.pods.onCreate(nil) }
		}},
		"port refused": {spoil: func(_ *testing.T, l *life, _ context.CancelFunc) func() {
			l.node.rows.Refuse(hostInterface, "no such device")
			return func() { l.node.rows.Refuse(hostInterface, "") }
		}},
		"flows refused": {spoil: func(_ *testing.T, l *life, _ context.CancelFunc) func() {
			l.node.flowEngine.fail(errBroken)
			return func() { l.node.flowEngine.fail(nil) }
		}},
		"switch away": {code: cni.CodeTryAgainLater, spoil: func(_ *testing.T, l *life, _ context.CancelFunc) func() {
			l.node.flowEngine.fail(unavailable())
			return func() { l.node.flowEngine.fail(nil) }
		}},
		"database away": {code: cni.CodeTryAgainLater, spoil: func(_ *testing.T, l *life, _ context.CancelFunc) func() {
			l.node.rowEngine.fail(unavailable())
			return func() { l.node.rowEngine.fail(nil) }
		}},
		"given up before the link": {code: cni.CodeTryAgainLater, spoil: func(_ *testing.T, l *life, cancel context.CancelFunc) func() {
			l.node.pods.onCreate(func() error { cancel(); return nil })
			return func() { l.node.pods.onCreate(nil) }
		}},
		"given up at the port": {code: cni.CodeTryAgainLater, spoil: func(_ *testing.T, l *life, cancel context.CancelFunc) func() {
			l.node.rowEngine.before(cancel)
			return func() { l.node.rowEngine.before(nil) }
		}},
		"given up at the flows": {code: cni.CodeTryAgainLater, spoil: func(_ *testing.T, l *life, cancel context.CancelFunc) func() {
			l.node.flowEngine.before(cancel)
			return func() { l.node.flowEngine.before(nil) }
		}},
		"given up at once": {code: cni.CodeTryAgainLater, spoil: func(_ *testing.T, _ *life, cancel context.CancelFunc) func() {
			cancel()
			return func() {}
		}},
		"no record": {code: cni.CodeIO, spoil: func(t *testing.T, l *life, _ context.CancelFunc) func() {
			return l.node.obstruct(t, attach.Key{ContainerID: "s1", IfName: "eth0"})
		}},
		"record not completed": {code: cni.CodeIO, spoil: func(t *testing.T, l *life, _ context.CancelFunc) func() {
			var clear func()
			l.node.pods.onCreate(func() error {
				clear = l.node.obstruct(t, attach.Key{ContainerID: "s1", IfName: "eth0"})
				return nil
			})
			return func() { l.node.pods.onCreate(nil); clear() }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			other := l.request("other")
			l.add(t, other)
			l.del(t, other)
			l.settled(t)
			before := l.node.state(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			repair := c.spoil(t, l, cancel)
			req := l.request("s1")
			result, err := l.Add(ctx, req)
			if err == nil && ctx.Err() == nil {
				t.Fatalf("no error, result %v", result)
			}
			if c.code != 0 && err != nil && !codeIs(err, c.code) {
				t.Errorf("error %v, want code %d", err, c.code)
			}
			repair()
			if err == nil { // it was complete before the cancellation
				l.del(t, req)
			}
			l.nothingLeft(t, before)
			l.add(t, req)
			l.whole(t, req)
			l.del(t, req)
			l.nothingLeft(t, before)
		})
	}
}

func TestPoolExhausted(t *testing.T) {
	l := newNode(t.TempDir()).begin(t)
	defer l.stop()
	l.update(t, small())
	before := l.node.state(t)
	const room = 5
	for i := range room {
		l.add(t, l.request(fmt.Sprint("s", i)))
	}
	full := l.node.state(t)
	if _, err := l.Add(t.Context(), l.request("more")); !errors.Is(err, ipam.ErrExhausted) || !codeIs(err, cni.CodeTryAgainLater) {
		t.Fatalf("one too many: %v", err)
	}
	l.settled(t)
	if now := l.node.state(t); now != full {
		t.Errorf("one too many left:\n%s", now)
	}
	l.del(t, l.request("s3"))
	l.settled(t)
	if got := l.add(t, l.request("more")).IPs[0].Address.String(); got != "10.128.0.5/29" {
		t.Errorf("address %s", got)
	}
	for _, name := range []string{"s0", "s1", "s2", "s4", "more"} {
		l.del(t, l.request(name))
	}
	l.nothingLeft(t, before)
}

// 64 sandboxes are added and removed at the same time: no two ever share an address, and nothing is left behind.
func TestConcurrentPods(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	var mu sync.Mutex
	holders := map[string]string{}
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			name := fmt.Sprint("s", i)
			req := l.request(name)
			for range 5 {
				result, err := l.Add(context.Background(), req)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				address := result.IPs[0].Address.String()
				mu.Lock()
				if other, taken := holders[address]; taken {
					t.Errorf("%s and %s both have %s", name, other, address)
				}
				holders[address] = name
				mu.Unlock()
				l.whole(t, req)
				mu.Lock()
				delete(holders, address)
				mu.Unlock()
				if err := l.Del(context.Background(), req); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	all.Wait()
	l.nothingLeft(t, before)
}

// An ADD during a change of the subnet does not take an address that no flows will match.
func TestAddWithSubnetJustChanged(t *testing.T) {
	l := start(t)
	s := l.pods.settings.Load()
	rec := attach.Record{ContainerID: "s1", IfName: "eth0"}
	view := sample()
	view.Local.Subnet = netip.MustParsePrefix("10.128.8.0/23")
	l.update(t, view)
	if err := l.ports.Choose(&rec, s.Choice(attach.Key{}, true)); !codeIs(err, cni.CodeTryAgainLater) {
		t.Errorf("%v", err)
	}
}

// A link without a record, from before the restart, is in the pod where that pod's next ADD needs the place. It is removed first, even if
// the reaper has not removed it.
func TestAddWhereALinkHasNoRecord(t *testing.T) {
	n := newNode(t.TempDir())
	l := n.begin(t)
	t.Cleanup(l.stop)
	req := l.request("s1")
	stray := podlink.Pair{HostName: "weft-stray", PodName: req.IfName, Netns: req.Netns, Owner: keyOf(req).Owner()}
	if _, err := n.pods.Create(t.Context(), stray); err != nil {
		t.Fatal(err)
	}
	n.pods.onDelete(func() error { return errBroken }) // the reaper cannot remove it
	l.update(t, sample())
	if _, err := l.Add(t.Context(), req); !codeIs(err, cni.CodeTryAgainLater) {
		t.Errorf("with the link in the way: %v", err)
	}
	n.pods.onDelete(nil)
	l.add(t, req)
	l.whole(t, req)
	if _, there := n.pods.Pair("weft-stray"); there {
		t.Error("the link without a record is still there")
	}
	l.del(t, req)
	l.settled(t)
}

// A second interface of a sandbox on this network has only the route of its subnet, also after a restart and when it is added again; the
// first one has all routes.
func TestAddSecondInterface(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	first := l.request("s1")
	second := l.request("s1")
	second.IfName = "net1"
	l.add(t, first)
	for _, again := range []bool{false, true} {
		if got := l.add(t, second); len(got.Routes) != 0 || len(got.IPs) != 1 {
			t.Errorf("again %v: routes %v, addresses %v", again, got.Routes, got.IPs)
		}
		if got := l.add(t, first); len(got.Routes) == 0 {
			t.Errorf("again %v: the first interface has no routes", again)
		}
		if again {
			break
		}
		l = l.restart(t)
		l.update(t, sample())
	}
	if !l.record(t, second).Secondary || l.record(t, first).Secondary {
		t.Error("the records do not say which interface is secondary")
	}
	for _, req := range []*cni.Request{first, second} {
		if err := l.Check(t.Context(), req); err != nil {
			t.Error(err)
		}
		l.del(t, req)
	}
	l.nothingLeft(t, before)
}
