//go:build real

package whole_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"weft.dev/weft/internal/link/whole"
	"weft.dev/weft/internal/reconcile"
)

// through is peer, by a nexthop object.
func through(n byte) []whole.Item {
	items := peer(n)
	for _, item := range items {
		if route, is := item.(*whole.Route); is {
			route.Nexthop = true
			return append(items, &whole.Nexthop{Device: route.Device, Gateway: route.Gateway})
		}
	}
	return nil
}

// Routes refer to nexthop objects, which go with their routes, with the device and with nothing else. A route that another program made
// without such an object stays.
func TestNexthops(t *testing.T) {
	space(t)
	if !whole.HasNexthops() {
		t.Fatal("the kernel has no nexthop objects")
	}
	e := engine(t)
	reach(t, e, state(append(through(2), device())...))
	const shown = "10.5.2.0/24 nhid 168100352 via 10.5.2.0 dev flannel.1 proto 88 onlink"
	if route := ip(t, "route show 10.5.2.0/24"); !strings.Contains(route, shown) {
		t.Errorf("route %s", route)
	}
	if route := ip(t, "route get 10.5.2.7"); !strings.Contains(route, "via 10.5.2.0 dev flannel.1") {
		t.Errorf("the way to a pod: %s", route)
	}

	// Taken over from a program that names the gateway in the route.
	ip(t, "route add 10.5.3.0/24 via 10.5.3.0 dev flannel.1 onlink")
	want := state(append(append(through(2), through(3)...), device())...)
	reach(t, e, want)
	if route := ip(t, "route show 10.5.3.0/24"); strings.Contains(route, "nhid") {
		t.Errorf("a route of another program was replaced: %s", route)
	}
	// And back: the other program replaces a route, and deletes its own.
	ip(t, "route replace 10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink")
	reach(t, e, want)
	reach(t, e, state(append(through(2), device())...))
	if left := ip(t, "nexthop show") + ip(t, "route show 10.5.3.0/24"); strings.Contains(left, "10.5.3.0") {
		t.Errorf("left of a deleted peer: %s", left)
	}

	// What another program deletes or changes is made again; nexthops of others are left alone.
	ip(t, "nexthop add id 7 via 192.0.2.9 dev eth0")
	for _, change := range []string{
		"nexthop del id 168100352", "nexthop flush proto 88", "nexthop replace id 168100352 via 10.5.9.0 dev flannel.1 onlink proto 88",
		"route replace 10.5.2.0/24 nhid 7", "addr del 10.5.1.0/32 dev flannel.1", "link set flannel.1 down", "link del flannel.1",
	} {
		ip(t, change)
		reach(t, e, state(append(through(2), device())...))
		if route := ip(t, "route get 10.5.2.7"); !strings.Contains(route, "via 10.5.2.0 dev flannel.1") {
			t.Errorf("after %s, the way to a pod: %s", change, route)
		}
	}
	reach(t, e, state())
	if left := strings.TrimSpace(ip(t, "nexthop show")); strings.Count(left, "\n") > 0 || !strings.HasPrefix(left, "id 7 ") {
		t.Errorf("nexthops in the end: %s", left)
	}
}

// A route is deleted by its own request, and thereby reported to other programs, whether or not the item is of the kind that is there: both
// are equal. The kernel reports no route that goes with its nexthop object.
func TestDeletionOfEitherKind(t *testing.T) {
	space(t)
	e := engine(t)
	for _, there := range [][]whole.Item{through(2), peer(2)} {
		for _, refers := range []bool{true, false} {
			reach(t, e, state(append(append(there, through(3)...), device())...))
			gateway := netip.MustParseAddr("10.5.2.0")
			route := &whole.Route{Dst: netip.PrefixFrom(gateway, 24), Gateway: gateway, Device: "flannel.1", OnLink: true, Nexthop: refers}
			if err := e.Commit(t.Context(), reconcile.Change[whole.Key, whole.Item]{Delete: state(route)}); err != nil {
				t.Fatal(err)
			}
			if left := ip(t, "route show 10.5.2.0/24"); left != "" {
				t.Errorf("left of %v after the deletion of %+v: %s", there, route, left)
			}
			if err := e.Commit(t.Context(), reconcile.Change[whole.Key, whole.Item]{Delete: state(route)}); err != nil {
				t.Errorf("the deletion of nothing: %v", err)
			}
		}
		reach(t, e, state())
	}
}

// An identifier that another program uses is left alone and named; the route is made without it. When it is free again, the object is made.
func TestNexthopOfAnotherProgram(t *testing.T) {
	space(t)
	e := engine(t)
	want := state(append(append(through(2), through(3)...), device())...)
	ways := func(when, via2, via3 string) {
		t.Helper()
		for dst, via := range map[string]string{"10.5.2.0/24 ": via2, "10.5.3.0/24 ": via3} {
			if route := ip(t, "route show "+dst); !strings.HasPrefix(route, dst+via) {
				t.Errorf("%s: %s", when, route)
			}
		}
	}
	key := (&whole.Nexthop{Gateway: netip.MustParseAddr("10.5.2.0")}).Key()
	refused := func(change reconcile.Change[whole.Key, whole.Item]) {
		t.Helper()
		var partial *reconcile.PartialError[whole.Key]
		err := e.Commit(t.Context(), change)
		if !errors.As(err, &partial) || len(partial.Failed) != 1 {
			t.Fatalf("error %v", err)
		}
		if err := partial.Failed[key]; err == nil || !strings.Contains(err.Error(), "id 168100352 is another program's") {
			t.Errorf("error %v", err)
		}
		if taken := ip(t, "nexthop show id 168100352"); !strings.Contains(taken, "192.0.2.9 dev eth0") {
			t.Errorf("replaced: %s", taken)
		}
	}
	change := reconcile.Diff(want, read(t, e))
	ip(t, "nexthop add id 168100352 via 192.0.2.9 dev eth0")
	refused(change)
	ways("taken", "via 10.5.2.0 dev flannel.1", "nhid 168100608")
	ip(t, "link del flannel.1")
	refused(reconcile.Diff(want, read(t, e)))
	ways("made again", "via 10.5.2.0 dev flannel.1", "nhid 168100608")

	ip(t, "nexthop del id 168100352")
	reach(t, e, want)
	ip(t, "nexthop replace id 168100352 via 192.0.2.9 dev eth0") // in use
	refused(reconcile.Diff(want, read(t, e)))
	ways("taken later", "via 10.5.2.0 dev flannel.1", "nhid 168100608")
}

// Routes refer to the objects of a former process and of another device, which are made as desired without a loss.
func TestNexthopsStay(t *testing.T) {
	space(t)
	want := state(append(append(through(2), peer(3)...), device())...)
	reach(t, engine(t), want)
	want = state(append(append(through(2), through(3)...), device())...)
	e := engine(t)
	if diff := reconcile.Diff(want, read(t, e)); len(diff.Set) != 1 || len(diff.Delete) != 0 {
		t.Errorf("after a release without objects: %v", diff)
	}
	reach(t, e, want)
	if diff := reconcile.Diff(want, read(t, engine(t))); !diff.Empty() {
		t.Errorf("another process changes %v", diff)
	}

	second := *device()
	second.Name, second.VNI = "flannel.2", 2
	moved := []whole.Item{&second}
	for _, item := range through(2) {
		switch item := item.(type) {
		case *whole.Route:
			item.Device = second.Name
		case *whole.Nexthop:
			item.Device = second.Name
		default:
			continue
		}
		moved = append(moved, item)
	}
	reach(t, e, state(moved...))
	if route := ip(t, "route get 10.5.2.7"); !strings.Contains(route, "via 10.5.2.0 dev flannel.2") {
		t.Errorf("the way by another device: %s", route)
	}
}

// While the kernel does not show the gateways of routes that refer to objects, routes are made without them.
func TestHiddenGateways(t *testing.T) {
	space(t)
	e := engine(t)
	want := state(append(through(2), device())...)
	reach(t, e, want)
	if err := os.WriteFile("/proc/sys/net/ipv4/nexthop_compat_mode", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	reach(t, e, want)
	if route := ip(t, "route show 10.5.2.0/24"); !strings.Contains(route, "10.5.2.0/24 via 10.5.2.0 dev flannel.1") {
		t.Errorf("route %s", route)
	}
	reach(t, e, state(device()))
	if left := ip(t, "nexthop show") + ip(t, "route show 10.5.2.0/24"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// Another program's deletion of a nexthop object is reported, because the kernel removes its routes without a report; own requests are not.
func TestWatchOfNexthops(t *testing.T) {
	space(t)
	e := engine(t)
	reach(t, e, state(append(through(2), device())...))
	ctx, cancel := context.WithCancel(t.Context())
	events, err := e.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 50 // the kernel reports late that links are up: such an event may occur in some rounds, but not in all
	quiet := false
	for range rounds {
		for n := range byte(20) {
			for _, change := range []reconcile.Change[whole.Key, whole.Item]{{Set: state(through(10 + n)...)}, {Delete: state(through(10 + n)...)}} {
				if err := e.Commit(t.Context(), change); err != nil {
					t.Fatal(err)
				}
			}
		}
		ip(t, "nexthop replace id 7 via 192.0.2.9 dev eth0")
		if quiet = len(events) == 0; quiet {
			break
		}
		<-events
	}
	if !quiet {
		t.Error("own requests, or other nexthops, are reported")
	}
	ip(t, "nexthop del id 168100352")
	<-events
	cancel()
	for range events { //nolint:revive // until it is closed
	}
}

// An identifier is the gateway's address.
func TestNexthopID(t *testing.T) {
	if id := (&whole.Nexthop{Gateway: netip.MustParseAddr("10.5.2.0")}).ID(); id != 168100352 {
		t.Errorf("id %d", id)
	}
}
