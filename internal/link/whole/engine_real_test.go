//go:build real

package whole_test

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"weft.dev/weft/internal/link/whole"
	"weft.dev/weft/internal/reconcile"
)

// space moves the test into its own network namespace with an underlay, eth0 at 192.0.2.1/24.
func space(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // the thread ends with the test's goroutine
	handle, err := netns.New()
	if err != nil {
		t.Fatalf("this test needs root: %v", err)
	}
	t.Cleanup(func() { _ = handle.Close() })
	ip(t, "link add eth0 mtu 1500 type veth peer name far0")
	ip(t, "addr add 192.0.2.1/24 dev eth0")
	ip(t, "link set eth0 up")
	ip(t, "link set far0 up")
}

func ip(t *testing.T, args string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
	return string(out)
}

func bridge(t *testing.T, args string) string {
	t.Helper()
	out, err := exec.Command("bridge", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("bridge %s: %v: %s", args, err, out)
	}
	return string(out)
}

func engine(t *testing.T) *whole.Engine {
	t.Helper()
	e, err := whole.NewEngine(whole.Options{
		Owns:   func(name string) bool { return strings.HasPrefix(name, "flannel.") },
		Ranges: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func device() *whole.VXLAN {
	return &whole.VXLAN{
		Name: "flannel.1", VNI: 1, Underlay: "eth0", Local: netip.MustParseAddr("192.0.2.1"), MTU: 1450,
		MAC: whole.MAC{2, 0, 0, 0, 0, 1}, Address: netip.MustParsePrefix("10.5.1.0/32"),
	}
}

func peer(n byte) []whole.Item {
	gateway := netip.AddrFrom4([4]byte{10, 5, n, 0})
	mac := whole.MAC{2, 0, 0, 0, 0, n}
	return []whole.Item{
		&whole.Neighbour{Device: "flannel.1", Address: gateway, MAC: mac},
		&whole.FDB{Device: "flannel.1", MAC: mac, Remote: netip.AddrFrom4([4]byte{192, 0, 2, n})},
		&whole.Route{Dst: netip.PrefixFrom(gateway, 24), Gateway: gateway, Device: "flannel.1", OnLink: true},
	}
}

func state(items ...whole.Item) map[whole.Key]whole.Item {
	out := map[whole.Key]whole.Item{}
	for _, item := range items {
		out[item.Key()] = item
	}
	return out
}

func read(t *testing.T, e *whole.Engine) map[whole.Key]whole.Item {
	t.Helper()
	got, err := e.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// reach commits the difference to the desired state and compares what is read back with it.
func reach(t *testing.T, e *whole.Engine, want map[whole.Key]whole.Item) {
	t.Helper()
	if err := e.Commit(t.Context(), reconcile.Diff(want, read(t, e))); err != nil {
		t.Fatal(err)
	}
	if diff := reconcile.Diff(want, read(t, e)); !diff.Empty() {
		t.Fatalf("left: %v", diff)
	}
}

// TestState creates, changes and removes a device with its entries, and checks iproute2's view of it.
func TestState(t *testing.T) {
	space(t)
	e := engine(t)
	want := state(append(peer(2), device())...)
	reach(t, e, want)
	for _, c := range []struct{ got, want string }{
		{ip(t, "route show 10.5.2.0/24"), "10.5.2.0/24 via 10.5.2.0 dev flannel.1 proto 88 onlink"},
		{ip(t, "neigh show dev flannel.1"), "10.5.2.0 lladdr 02:00:00:00:00:02 PERMANENT"},
		{bridge(t, "fdb show dev flannel.1"), "02:00:00:00:00:02 dst 192.0.2.2 self permanent"},
		{ip(t, "-d link show flannel.1"), "vxlan id 1 local 192.0.2.1 dev eth0 srcport 0 0 dstport 8472 nolearning"},
		{ip(t, "-d link show flannel.1"), "noudpcsum"},
		{ip(t, "addr show flannel.1"), "inet 10.5.1.0/32"},
	} {
		if !strings.Contains(c.got, c.want) {
			t.Errorf("got\n%s\nwant in it: %s", c.got, c.want)
		}
	}
	changed := *device()
	changed.MTU, changed.MAC, changed.Address = 1400, whole.MAC{2, 0, 0, 0, 0, 9}, netip.MustParsePrefix("10.5.9.0/32")
	index := strings.Fields(ip(t, "-o link show flannel.1"))[0]
	reach(t, e, state(append(peer(2), &changed)...))
	if after := strings.Fields(ip(t, "-o link show flannel.1"))[0]; after != index {
		t.Errorf("the device was replaced for a change of MTU, MAC and address: index %s, then %s", index, after)
	}
	replaced := changed
	replaced.Port = 4789
	reach(t, e, state(append(peer(2), &replaced)...)) // peers' entries were lost with the device, and are restored
	reach(t, e, state())
	if links := ip(t, "-o link show type vxlan"); links != "" {
		t.Errorf("left: %s", links)
	}
}

// TestForeignChanges: every manual change is detected and corrected.
func TestForeignChanges(t *testing.T) {
	space(t)
	e := engine(t)
	want := state(append(append(peer(2), peer(3)...), device())...)
	reach(t, e, want)
	for _, change := range []string{
		"link del flannel.1", "link set flannel.1 down", "link set flannel.1 mtu 1300", "link set flannel.1 address 02:00:00:00:00:77",
		"route del 10.5.2.0/24", "route replace 10.5.2.0/24 via 10.5.3.0 dev flannel.1 onlink", "neigh del 10.5.2.0 dev flannel.1",
		"neigh replace 10.5.2.0 lladdr 02:00:00:00:00:03 nud permanent dev flannel.1", "addr add 10.5.77.0/32 dev flannel.1",
		"addr del 10.5.1.0/32 dev flannel.1", "route add 10.5.99.0/24 via 192.0.2.99 dev eth0", "neigh add 10.5.98.0 lladdr 02:00:00:00:00:98 nud permanent dev flannel.1",
	} {
		ip(t, change)
		diff := reconcile.Diff(want, read(t, e))
		if diff.Empty() {
			t.Errorf("%s: not seen", change)
		}
		if err := e.Commit(t.Context(), diff); err != nil {
			t.Fatalf("%s: %v", change, err)
		}
		if diff := reconcile.Diff(want, read(t, e)); !diff.Empty() {
			t.Fatalf("%s: left: %v", change, diff)
		}
	}
}

// TestOthersAreLeftAlone: devices, routes and neighbours that are not managed are not read.
func TestOthersAreLeftAlone(t *testing.T) {
	space(t)
	e := engine(t)
	ip(t, "link add vxlan7 type vxlan id 7 dstport 4789 dev eth0")
	ip(t, "link set vxlan7 up")
	ip(t, "route add 10.9.0.0/24 via 192.0.2.9 dev eth0")
	ip(t, "route add 10.5.7.0/24 via 192.0.2.9 dev eth0 proto static")
	ip(t, "route add 10.5.8.0/24 via 192.0.2.9 dev eth0 metric 50")
	ip(t, "neigh add 192.0.2.9 lladdr 02:00:00:00:00:98 nud permanent dev eth0")
	if got := read(t, e); len(got) != 0 {
		t.Errorf("read %v", got)
	}
}

// TestRanges: routes with Weft's protocol are managed in all ranges, so that those of a former process are removed. Other routes into ranges
// that are set later are managed, unless with ownOnly.
func TestRanges(t *testing.T) {
	space(t)
	e := engine(t)
	ip(t, "route add 10.9.1.0/24 via 192.0.2.9 dev eth0")
	ip(t, "route add 10.9.2.0/24 via 192.0.2.9 dev eth0 proto 88")
	if got := read(t, e); len(got) != 1 {
		t.Errorf("before: %v", got)
	}
	for _, c := range []struct {
		ownOnly bool
		want    int
	}{{false, 2}, {true, 1}} {
		e.SetRanges([]netip.Prefix{netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("10.9.0.0/16")}, c.ownOnly)
		if got := read(t, e); len(got) != c.want {
			t.Errorf("ownOnly %t: %v", c.ownOnly, got)
		}
	}
}

// TestFailuresStopNoOther: the keys that cannot be programmed are named, and all others are in effect, also within one datagram and in
// the next one.
func TestFailuresStopNoOther(t *testing.T) {
	space(t)
	e := engine(t)
	want, bad := state(append(peer(2), device())...), map[whole.Key]bool{}
	for n := range 250 {
		route := &whole.Route{
			Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 5, byte(n), 128}), 25), Gateway: netip.AddrFrom4([4]byte{10, 5, byte(n), 128}),
			Device: "flannel.1", OnLink: true,
		}
		if n%60 == 0 || n == 249 {
			route.OnLink, bad[route.Key()] = false, true // the gateway cannot be reached
		}
		want[route.Key()] = route
	}
	err := e.Commit(t.Context(), reconcile.Change[whole.Key, whole.Item]{Set: want})
	var partial *reconcile.PartialError[whole.Key]
	if !errors.As(err, &partial) || len(partial.Failed) != len(bad) {
		t.Fatalf("error %v, want one for each of %v", err, bad)
	}
	for key := range bad {
		if partial.Failed[key] == nil {
			t.Errorf("no error for %s", key)
		}
		delete(want, key)
	}
	if diff := reconcile.Diff(want, read(t, e)); !diff.Empty() {
		t.Errorf("left: %v", diff)
	}
}

// TestForeignDeviceIsKept: a device of another kind that has the name is an error, and stays.
func TestForeignDeviceIsKept(t *testing.T) {
	space(t)
	e := engine(t)
	ip(t, "link add flannel.1 type bridge")
	err := e.Commit(t.Context(), reconcile.Change[whole.Key, whole.Item]{Set: state(device())})
	if err == nil || !strings.Contains(err.Error(), "is a bridge device: remove or rename it") {
		t.Errorf("error %v", err)
	}
	if out := ip(t, "-d link show flannel.1"); !strings.Contains(out, "bridge") {
		t.Errorf("replaced: %s", out)
	}
}

// TestWatch: own requests are not reported, other programs' are.
func TestWatch(t *testing.T) {
	space(t)
	e := engine(t)
	reach(t, e, state(append(peer(2), device())...))
	ctx, cancel := context.WithCancel(t.Context())
	events, err := e.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// The kernel reports late that links are up: such an event may occur in some rounds, but not in all.
	const rounds = 50
	quiet := false
	for range rounds {
		for n := range byte(20) {
			if err := e.Commit(t.Context(), reconcile.Change[whole.Key, whole.Item]{Set: state(peer(10 + n)...)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Commit(t.Context(), reconcile.Change[whole.Key, whole.Item]{Delete: state(peer(10)...)}); err != nil {
			t.Fatal(err)
		}
		ip(t, "neigh replace 192.0.2.50 lladdr 02:00:00:00:00:50 nud permanent dev eth0") // not a managed device
		ip(t, "neigh del 192.0.2.50 dev eth0")
		ip(t, "neigh replace 10.5.200.9 lladdr 02:00:00:00:00:51 nud stale dev flannel.1") // not permanent
		ip(t, "neigh del 10.5.200.9 dev flannel.1")
		select {
		case <-events:
			continue
		default:
		}
		quiet = true
		break
	}
	if !quiet {
		t.Error("own requests are reported")
	}
	for _, change := range []string{
		"route del 10.5.2.0/24", "neigh del 10.5.12.0 dev flannel.1", "neigh replace 10.5.13.0 lladdr 02:00:00:00:00:52 nud permanent dev flannel.1",
		"neigh replace 10.5.14.0 lladdr 02:00:00:00:00:53 nud stale dev flannel.1",
		"neigh replace 10.5.200.9 lladdr 02:00:00:00:00:54 nud permanent dev flannel.1", "link del flannel.1",
	} {
		ip(t, change)
		<-events
		for len(events) > 0 {
			<-events
		}
	}
	cancel()
	for range events { //nolint:revive // until it is closed
	}
}

// TestWatchOfLinks: managed links and the attended one are reported, also when renamed; a pod's link that is added or removed is not.
func TestWatchOfLinks(t *testing.T) {
	space(t)
	e := engine(t)
	reach(t, e, state(device()))
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	e.Attend(eth0.Attrs().Index, "eth0")
	ctx, cancel := context.WithCancel(t.Context())
	events, err := e.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// The kernel reports late that links are up: such an event may occur in some rounds, but not in all.
	const rounds = 50
	quiet := false
	for range rounds {
		ip(t, "link add pod0 group 78 type veth peer name far1")
		ip(t, "link set pod0 up")
		ip(t, "link del pod0")
		select {
		case <-events:
			continue
		default:
		}
		quiet = true
		break
	}
	if !quiet {
		t.Error("links of pods are reported")
	}
	for _, change := range []string{
		"link set flannel.1 mtu 1300", "link set eth0 mtu 1400", "link set eth0 down", "link set eth0 name eth7", "link set eth7 name eth0",
		"link set eth0 up", "route add default via 192.0.2.9", "addr add 192.0.2.77/32 dev lo",
	} {
		for len(events) > 0 {
			<-events
		}
		ip(t, change)
		<-events
	}
	cancel()
	for range events { //nolint:revive // until it is closed
	}
}

// BenchmarkLeases measures adding the entries of 5,000 peers at once, and of one more.
func BenchmarkLeases(b *testing.B) {
	runtime.LockOSThread()
	handle, err := netns.New()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = handle.Close() }()
	for _, args := range []string{"link add eth0 mtu 1500 type veth peer name far0", "addr add 192.0.2.1/24 dev eth0", "link set eth0 up", "link set far0 up"} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			b.Fatalf("%s: %s", args, out)
		}
	}
	e, err := whole.NewEngine(whole.Options{Owns: func(name string) bool { return strings.HasPrefix(name, "flannel.") }, Ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	all := state(device())
	for i := range 5000 {
		gateway := netip.AddrFrom4([4]byte{10, byte(100 + i/250), byte(i % 250), 0})
		mac := whole.MAC{2, 0, 0, 1, byte(i / 250), byte(i % 250)}
		for _, item := range []whole.Item{
			&whole.Neighbour{Device: "flannel.1", Address: gateway, MAC: mac},
			&whole.FDB{Device: "flannel.1", MAC: mac, Remote: netip.AddrFrom4([4]byte{198, 18, byte(i / 250), byte(i % 250)})},
			&whole.Route{Dst: netip.PrefixFrom(gateway, 24), Gateway: gateway, Device: "flannel.1", OnLink: true},
		} {
			all[item.Key()] = item
		}
	}
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			if err := e.Commit(b.Context(), reconcile.Change[whole.Key, whole.Item]{Set: all}); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if got, err := e.Read(b.Context()); err != nil || len(got) != len(all) {
				b.Fatal(len(got), err)
			}
			if err := e.Commit(b.Context(), reconcile.Change[whole.Key, whole.Item]{Delete: state(device())}); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	if err := e.Commit(b.Context(), reconcile.Change[whole.Key, whole.Item]{Set: all}); err != nil {
		b.Fatal(err)
	}
	b.Run("event", func(b *testing.B) {
		for b.Loop() {
			if err := e.Commit(b.Context(), reconcile.Change[whole.Key, whole.Item]{Set: state(peer(2)...)}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := e.Read(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
