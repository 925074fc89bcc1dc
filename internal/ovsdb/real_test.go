//go:build real

package ovsdb_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

func TestReal(t *testing.T) {
	suite(t, func(t *testing.T) *bench { return newReal(t).bench() })
}

// realSwitch is a switch in a namespace of its own, with an engine on it.
type realSwitch struct {
	*ovstest.Switch
	netns  ns.NetNS
	links  *netlink.Handle
	engine *ovsdb.Engine
}

func newReal(t testing.TB) *realSwitch {
	t.Helper()
	space := newNetNS(t)
	s := &realSwitch{netns: space, Switch: ovstest.StartIn(t, space)}
	var err error
	s.links, err = netlink.NewHandleAt(netns.NsHandle(space.Fd()))
	must(t, err)
	t.Cleanup(s.links.Close)
	s.engine = s.open(t)
	return s
}

func (s *realSwitch) config() ovsdb.Config {
	return ovsdb.Config{
		Endpoint:      "unix:" + s.DBSock,
		Bridges:       []string{"br0", "br1"},
		ControlSocket: s.CtlSock,
		ProbeInterval: time.Second,
	}
}

func (s *realSwitch) open(t testing.TB) *ovsdb.Engine {
	t.Helper()
	config := s.config()
	config.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	e, err := ovsdb.Open(suiteContext(t), config)
	must(t, err)
	t.Cleanup(e.Close)
	return e
}

// newNetNS makes a named network namespace. It is deleted when the test ends.
func newNetNS(t testing.TB) ns.NetNS {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	host, err := netns.Get()
	must(t, err)
	defer func() { _ = host.Close() }()
	name := "wt" + strings.ToLower(rand.Text()[:10])
	handle, err := netns.NewNamed(name)
	must(t, err)
	must(t, handle.Close())
	must(t, netns.Set(host))
	t.Cleanup(func() {
		if err := netns.DeleteNamed(name); err != nil {
			t.Errorf("delete namespace %s: %v", name, err)
		}
	})
	space, err := ns.GetNS(filepath.Join("/var/run/netns", name))
	must(t, err)
	t.Cleanup(func() { _ = space.Close() })
	return space
}

// counted is the engine with a counter of its transactions.
type counted struct {
	*ovsdb.Engine
	s *realSwitch
}

func (c counted) NextCfg(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(c.s.VSCtl("get", "open_vswitch", ".", "next_cfg")))
	must(t, err)
	return n
}

func (s *realSwitch) bench() *bench {
	return &bench{
		engine: counted{s.engine, s},
		link: func(t *testing.T, names ...string) {
			for _, name := range names {
				s.addLink(t, name)
			}
		},
		noLink: func(t *testing.T, name string) {
			if link, err := s.links.LinkByName(name); err == nil {
				must(t, s.links.LinkDel(link))
			}
		},
		foreign: func(_ *testing.T, bridge, port string) {
			s.VSCtl("add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev")
			s.VSCtl("add-port", bridge, port, "--", "set", "interface", port, "type=internal")
		},
		stray: func(_ *testing.T, bridge, port string) {
			s.VSCtl("add-port", bridge, port, "--", "set", "interface", port, "type=internal")
		},
		remove: func(_ *testing.T, port string) { s.VSCtl("del-port", port) },
		ports: func(_ *testing.T, bridge string) []string {
			ports := strings.Fields(s.VSCtl("list-ports", bridge))
			slices.Sort(ports)
			return ports
		},
	}
}

// addLink makes a veth pair with an end of that name for the switch, unless the link exists.
func (s *realSwitch) addLink(t testing.TB, name string) {
	t.Helper()
	if _, err := s.links.LinkByName(name); err == nil {
		return
	}
	must(t, s.links.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "p-" + name,
	}))
}

func TestRealServerRestart(t *testing.T) {
	s := newReal(t)
	b, ctx := s.bench(), suiteContext(t)
	b.link(t, "pod1", "pod2", "pod3")
	must(t, b.engine.Commit(ctx, set(br0(), pod("pod1", 3))))
	s.Stop("ovsdb-server", true)

	short, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if _, err := b.engine.Read(short); !errors.Is(err, ovsdb.ErrNotConnected) || !errors.Is(err, reconcile.ErrUnavailable) {
		t.Errorf("Read without a server: %v", err)
	}
	// A change during the outage is made once the server is back.
	committed := make(chan error, 1)
	go func() { committed <- b.engine.Commit(ctx, set(pod("pod2", 4))) }()
	s.StartDB()
	must(t, <-committed)
	b.event(t, "the connection is back", func(e ovsdb.Event) bool { return e.Kind == ovsdb.EventReconnected })
	b.holds(t, br0(), pod("pod1", 3), pod("pod2", 4))

	// The new connection works like the old one.
	b.quietBut(t, ovsdb.EventReconnected)
	must(t, b.engine.Commit(ctx, set(pod("pod3", 5))))
	b.remove(t, "pod1")
	b.event(t, "drift over the new connection", driftOf(ovsdb.PortKey("pod1")))
}

// quietBut fails if there is an event of another kind now.
func (b *bench) quietBut(t *testing.T, kinds ...ovsdb.EventKind) {
	t.Helper()
	_, err := b.engine.Read(suiteContext(t))
	must(t, err)
	for {
		select {
		case e := <-b.engine.Events():
			if !slices.Contains(kinds, e.Kind) {
				t.Fatalf("event without a cause: %v %v", e.Kind, e.Keys)
			}
		default:
			return
		}
	}
}

func TestRealServerRestartsAgainAndAgain(t *testing.T) {
	s := newReal(t)
	b, ctx := s.bench(), suiteContext(t)
	must(t, b.engine.Commit(ctx, set(br0())))
	for i := range 3 {
		s.Stop("ovsdb-server", i%2 == 0)
		s.StartDB()
		b.event(t, "the connection is back", func(e ovsdb.Event) bool { return e.Kind == ovsdb.EventReconnected })
		b.holds(t, br0())
	}
	// ovs-vswitchd doubles its own wait with every loss, so only the last connection is tested for an effect.
	port := pod("tap0", 10)
	port.Type = ovsdb.TypeInternal
	must(t, b.engine.Commit(ctx, set(port)))
	b.holds(t, br0(), port)
}

func TestRealSwitchRestart(t *testing.T) {
	s := newReal(t)
	b, ctx := s.bench(), suiteContext(t)
	b.link(t, "pod1", "pod2", "pod3")
	must(t, b.engine.Commit(ctx, set(br0(), pod("pod1", 3), pod("pod2", 4))))
	restarted := func(e ovsdb.Event) bool { return e.Kind == ovsdb.EventSwitchRestarted }
	for _, kill := range []bool{true, false} {
		s.Stop("ovs-vswitchd", kill)
		s.StartVSwitchd()
		b.event(t, "the switch has started anew", restarted)
		b.holds(t, br0(), pod("pod1", 3), pod("pod2", 4))
	}
	// While there is no switch, a change does not come into effect. It does when the switch is back.
	s.Stop("ovs-vswitchd", true)
	short, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := b.engine.Commit(short, set(pod("pod3", 5))); !errors.Is(err, ovsdb.ErrNotApplied) ||
		!errors.Is(err, reconcile.ErrUnavailable) {
		t.Errorf("Commit without a switch: %v", err)
	}
	rows, err := b.engine.Read(ctx)
	must(t, err)
	change := reconcile.Diff(set(br0(), pod("pod1", 3), pod("pod2", 4), pod("pod3", 5)).Set, rows)
	if len(change.Set) != 1 || len(change.Delete) != 0 {
		t.Errorf("what is not in effect is read as if it were: %v", change)
	}
	s.StartVSwitchd()
	must(t, b.engine.Commit(ctx, change))
	b.holds(t, br0(), pod("pod1", 3), pod("pod2", 4), pod("pod3", 5))
	b.event(t, "the switch has started anew", restarted)
}

func TestRealIdleControlConnectionStays(t *testing.T) {
	s := newReal(t)
	for range 50 {
		s.AppCtl("version")
	}
	must(t, s.engine.Commit(suiteContext(t), set(br0())))
	s.bench().quiet(t)
}

func TestRealEmptyDatabase(t *testing.T) {
	s := newReal(t)
	s.run(t, `["Open_vSwitch",{"op":"delete","table":"Open_vSwitch","where":[]}]`)
	b := s.bench()
	b.holds(t)
	must(t, b.engine.Commit(suiteContext(t), set(br0())))
	b.holds(t, br0())
}

// run makes a transaction without the engine.
func (s *realSwitch) run(t *testing.T, transaction string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ovsdb-client", "transact", "unix:"+s.DBSock, transaction).CombinedOutput()
	if err != nil || strings.Contains(string(out), `"error"`) {
		t.Fatalf("%s: %v: %s", transaction, err, out)
	}
}

func TestRealGarbage(t *testing.T) {
	s := newReal(t)
	b, ctx := s.bench(), suiteContext(t)
	b.link(t, "pod1", "eth1", "eth2")
	must(t, b.engine.Commit(ctx, set(br0(), pod("pod1", 3))))
	s.VSCtl("add-bond", "br0", "bond0", "eth1", "eth2", "--", "set", "port", "bond0", "lacp=active")
	s.VSCtl("--no-wait", "add-port", "br0", "odd name/..*", "--", "set", "interface", "odd name/..*",
		"type=no-such-type", "options:a=b", "external_ids:\"weird \\\"key\"=\"\\u0001\"", "ofport_request=77")
	s.VSCtl("--", "--id=@m", "create", "mirror", "name=m", "--", "set", "bridge", "br0", "mirrors=@m",
		"other_config:unknown=1", "flood_vlans=5")
	rows, err := b.engine.Read(ctx)
	must(t, err)
	change := reconcile.Diff(set(br0(), pod("pod1", 3)).Set, rows)
	for _, name := range []string{"bond0", "odd name/..*"} {
		if change.Delete[ovsdb.PortKey(name)] == nil {
			t.Errorf("stray %q is not seen", name)
		}
	}
	// A member of a bond has the name of a desired port: one change removes the bond and adds the port.
	change.Set[ovsdb.PortKey("eth1")] = pod("eth1", 11)
	must(t, b.engine.Commit(ctx, change))
	b.holds(t, br0(), pod("pod1", 3), pod("eth1", 11))
}

func TestRealOVNsIDsStay(t *testing.T) {
	s := newReal(t)
	b, ctx := s.bench(), suiteContext(t)
	b.link(t, "pod1")
	port := pod("pod1", 3)
	must(t, b.engine.Commit(ctx, set(br0(), port)))
	s.VSCtl("set", "interface", "pod1", "external_ids:ovn-installed=true")
	s.VSCtl("set", "bridge", "br0", "external_ids:ct-zone-x=7")
	b.holds(t, br0(), port)
	b.quiet(t)
	port.ExternalIDs["sandbox"] = "other"
	must(t, b.engine.Commit(ctx, set(port)))
	if got := s.VSCtl("get", "interface", "pod1", "external_ids:ovn-installed"); strings.TrimSpace(got) != `"true"` {
		t.Errorf("ovn-installed is %s", got)
	}
}

// A port is bound when OVN has marked it, or when Neutron's agent has given it a VLAN tag, except that of dead ports. A port that is removed
// and added again is not.
func TestRealAwaitBound(t *testing.T) {
	s := newReal(t)
	b, ctx := s.bench(), suiteContext(t)
	names := []string{"pod1", "pod2", "pod3"}
	for i, name := range names {
		b.link(t, name)
		must(t, b.engine.Commit(ctx, set(br0(), pod(name, uint16(3+i)))))
	}
	s.VSCtl("set", "port", "pod3", "tag=4095")
	bound := func(want ...string) {
		t.Helper()
		if got, err := s.engine.AwaitBound(ctx, names, nil); err != nil || !slices.Equal(got, want) {
			t.Errorf("%v are bound, want %v: %v", got, want, err)
		}
	}
	unbound := func() {
		t.Helper()
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if got, err := s.engine.AwaitBound(short, names, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v are bound: %v", got, err)
		}
	}
	unbound()
	asked := make(chan []string, 1)
	go func() {
		got, _ := s.engine.AwaitBound(ctx, names, nil)
		asked <- got
	}()
	s.VSCtl("set", "interface", "pod1", "external_ids:ovn-installed=true")
	if got := <-asked; !slices.Equal(got, []string{"pod1"}) {
		t.Errorf("%v are bound, want pod1", got)
	}
	s.VSCtl("set", "port", "pod2", "tag=7")
	bound("pod1", "pod2")
	if got, err := s.engine.AwaitBound(ctx, nil, names); err != nil || !slices.Equal(got, []string{"pod1"}) {
		t.Errorf("the flows of %v are installed, want pod1: %v", got, err)
	}
	for i, name := range names[:2] {
		port := pod(name, uint16(3+i))
		must(t, b.engine.Commit(ctx, del(port)))
		must(t, b.engine.Commit(ctx, set(port)))
	}
	unbound()
}

// A controller that another client sets is found. It is removed when the bridge is written.
func TestRealControllerOfOthers(t *testing.T) {
	s := newReal(t)
	b, ctx := s.bench(), suiteContext(t)
	must(t, b.engine.Commit(ctx, set(br0())))
	s.VSCtl("set-controller", "br0", "tcp:127.0.0.1:6653")
	obeying := br0()
	obeying.Controllers = 1
	b.holds(t, obeying)
	if br0().Equal(obeying) {
		t.Error("a bridge with a controller equals one without")
	}
	must(t, b.engine.Commit(ctx, set(br0())))
	b.holds(t, br0())
	if have := strings.TrimSpace(s.VSCtl("get-controller", "br0")); have != "" {
		t.Errorf("still there: %s", have)
	}
}

func TestRealClose(t *testing.T) {
	s := newReal(t)
	s.Stop("ovsdb-server", true)
	s.engine.Close() // while there is no connection
	s.engine.Close()
	if _, open := <-s.engine.Events(); open {
		t.Error("the channel of events is open")
	}
	if _, err := s.engine.Read(suiteContext(t)); !errors.Is(err, ovsdb.ErrClosed) {
		t.Errorf("Read after Close: %v", err)
	}
}

func TestRealNoServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := ovsdb.Open(ctx, ovsdb.Config{Endpoint: "unix:" + filepath.Join(t.TempDir(), "db.sock")})
	if !errors.Is(err, ovsdb.ErrNotConnected) {
		t.Errorf("Open without a server: %v", err)
	}
}

// BenchmarkAddPorts adds n ports to a switch in one transaction, and removes them again outside the measurement. present is the number of
// ports that the switch already has, with which the cost grows.
func BenchmarkAddPorts(b *testing.B) {
	for _, present := range []int{0, 200} {
		for _, group := range []int{1, 10, 160} {
			b.Run(fmt.Sprintf("present=%d/group=%d", present, group), func(b *testing.B) { benchmarkAdd(b, present, group) })
		}
	}
}

func benchmarkAdd(b *testing.B, present, group int) {
	s := newReal(b)
	rows := make([]ovsdb.Row, present+group)
	for i := range rows {
		name := fmt.Sprintf("pod%d", i)
		s.addLink(b, name)
		rows[i] = pod(name, uint16(i+3))
	}
	must(b, s.engine.Commit(b.Context(), set(append(rows[:present:present], br0())...)))
	rows = rows[present:]
	for b.Loop() {
		must(b, s.engine.Commit(b.Context(), set(rows...)))
		b.StopTimer()
		must(b, s.engine.Commit(b.Context(), del(rows...)))
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*group), "us/port")
}
