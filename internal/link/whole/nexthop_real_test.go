//go:build real

package whole_test

import (
	"context"
	"net/netip"
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

// Routes refer to nexthop objects, which go with their routes, with the device and with nothing else. A route that another program made without
// such an object stays.
func TestNexthops(t *testing.T) {
	space(t)
	if !whole.HasNexthops() {
		t.Fatal("the kernel has no nexthop objects")
	}
	e := engine(t)
	reach(t, e, state(append(through(2), device())...))
	if route := ip(t, "route show 10.5.2.0/24"); !strings.Contains(route, "10.5.2.0/24 nhid 168100352 via 10.5.2.0 dev flannel.1 proto 88 onlink") {
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
		"nexthop del id 168100352", "nexthop replace id 168100352 via 10.5.9.0 dev flannel.1 onlink proto 88", "link set flannel.1 down", "link del flannel.1",
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
