//go:build real

package marked_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/linktest"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/link/notify"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/reconcile"
)

// Routes and neighbours that the engine changes are not reported; those that other programs change are.
func TestRealOwnEntries(t *testing.T) {
	s, home := subject(t)
	engine := s.Engine.(*marked.Engine)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	device := &link.Device{Name: linktest.Device, Owner: "x", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("10.128.0.1/23")}}
	commit := func(change reconcile.Change[link.Key, link.Item]) {
		t.Helper()
		if err := engine.Commit(ctx, change); err != nil {
			t.Fatal(err)
		}
	}
	commit(reconcile.Change[link.Key, link.Item]{Set: linktest.Items(device)})
	drifts, err := engine.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	entries := linktest.Items(
		&link.Route{Dst: netip.MustParsePrefix("10.1.0.0/16"), Device: linktest.Device},
		&link.Route{Dst: netip.MustParsePrefix("fd00:1::/64"), Device: linktest.Device},
		&link.Neighbour{Device: linktest.Device, Address: netip.MustParseAddr("10.128.0.9"), MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}},
	)
	commit(reconcile.Change[link.Key, link.Item]{Set: entries})
	commit(reconcile.Change[link.Key, link.Item]{Delete: entries})
	commit(reconcile.Change[link.Key, link.Item]{Set: entries})
	// An event of another device ends the wait: events before it are the engine's.
	nstest.Do(t, home, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		address, err := netlink.ParseAddr("192.0.2.77/32")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, address)
	})
	next := func() notify.Drift {
		t.Helper()
		drift, more := <-drifts
		if !more {
			t.Fatal("no further report in time")
		}
		return drift
	}
	for drift := next(); !drift.Attended || drift.Device != "lo"; drift = next() {
		if drift.Kind == link.KindRoute || drift.Kind == link.KindNeighbour {
			t.Errorf("an own change is reported: %+v", drift)
		}
	}
	nstest.Do(t, home, func() error { return forget(&link.Route{Dst: netip.MustParsePrefix("10.1.0.0/16")}) })
	for drift := next(); drift.Kind != link.KindRoute; drift = next() {
	}
	neighbour := &link.Neighbour{Device: linktest.Device, Address: netip.MustParseAddr("10.128.0.9")}
	nstest.Do(t, home, func() error { return forget(neighbour) })
	for drift := next(); drift.Kind != link.KindNeighbour; drift = next() {
	}
	cancel()
	for range drifts { // until it is closed
	}
}

// entry returns the route and neighbour of one lease.
func entry(i int) []link.Item {
	next := netip.AddrFrom4([4]byte{10, 244, byte(i / 256), byte(i)})
	subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i / 256), byte(i), 0}), 24)
	return []link.Item{
		&link.Neighbour{Device: linktest.Device, Address: next, MAC: net.HardwareAddr{2, 0, 0, 0, byte(i / 256), byte(i)}},
		&link.Route{Dst: subnet, Device: linktest.Device, Gateway: next, OnLink: true},
	}
}

// BenchmarkEntries programs routes with their neighbours: 5,000 at once, compared with ip -batch, and one more with many or few present.
func BenchmarkEntries(b *testing.B) {
	home := nstest.New(b)
	nstest.Do(b, home, addDevice)
	engine := newEngine(b, home, marked.Options{})
	commit := func(b *testing.B, change reconcile.Change[link.Key, link.Item]) {
		if err := engine.Commit(b.Context(), change); err != nil {
			b.Fatal(err)
		}
	}
	commit(b, reconcile.Change[link.Key, link.Item]{Set: linktest.Items(&link.Device{
		Name: linktest.Device, Owner: "x", Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("10.128.0.1/23")},
	})})
	many := func(n int) map[link.Key]link.Item {
		var items []link.Item
		for i := range n {
			items = append(items, entry(i)...)
		}
		return linktest.Items(items...)
	}
	for _, present := range []int{50, 5000} {
		state := many(present)
		commit(b, reconcile.Change[link.Key, link.Item]{Set: state})
		one := linktest.Items(entry(6000)...)
		b.Run(fmt.Sprintf("one/present=%d", present), func(b *testing.B) {
			for b.Loop() {
				commit(b, reconcile.Change[link.Key, link.Item]{Set: one})
				b.StopTimer()
				commit(b, reconcile.Change[link.Key, link.Item]{Delete: one})
				b.StartTimer()
			}
		})
		commit(b, reconcile.Change[link.Key, link.Item]{Delete: state})
	}
	all := many(5000)
	b.Run("all/engine", func(b *testing.B) {
		for b.Loop() {
			commit(b, reconcile.Change[link.Key, link.Item]{Set: all})
			b.StopTimer()
			commit(b, reconcile.Change[link.Key, link.Item]{Delete: all})
			b.StartTimer()
		}
	})
	add, remove := filepath.Join(b.TempDir(), "add"), filepath.Join(b.TempDir(), "remove")
	for path, verbs := range map[string][2]string{add: {"neigh replace", "route add"}, remove: {"neigh del", "route del"}} {
		var lines strings.Builder
		for i := range 5000 {
			items := entry(i)
			neighbour, route := items[0].(*link.Neighbour), items[1].(*link.Route)
			fmt.Fprintf(&lines, "%s %s lladdr %s dev %s nud permanent\n", verbs[0], neighbour.Address, neighbour.MAC, neighbour.Device)
			fmt.Fprintf(&lines, "%s %s via %s dev %s onlink\n", verbs[1], route.Dst, route.Gateway, route.Device)
		}
		if err := os.WriteFile(path, []byte(lines.String()), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("all/ip-batch", func(b *testing.B) {
		run := func(path string) {
			nstest.Do(b, home, func() error { return exec.Command("ip", "-batch", path).Run() })
		}
		for b.Loop() {
			run(add)
			b.StopTimer()
			run(remove)
			b.StartTimer()
		}
	})
}
