package agent

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
)

func addrs(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// What Open vSwitch 3.1 prints.
const shownRoutes = `Route Table:
Cached: 192.0.2.1/32 dev br-phy SRC 192.0.2.1 local
User: 192.0.2.2/32 dev br-phy SRC 192.0.2.1
User: 192.0.2.3/32 dev br-phy GW 192.0.2.254 SRC 192.0.2.1
User: 192.0.2.7/32 MARK 5 dev br-phy SRC 192.0.2.1
User: 198.51.100.0/24 dev br-phy SRC 192.0.2.1
User: nonsense dev
User:
Cached: 192.0.2.0/24 dev br-phy SRC 192.0.2.1
`

func TestUserRoutes(t *testing.T) {
	source := netip.MustParseAddr("192.0.2.1")
	want := map[netip.Addr]switchRoute{
		netip.MustParseAddr("192.0.2.2"): {device: "br-phy", source: source},
		netip.MustParseAddr("192.0.2.3"): {device: "br-phy", gateway: netip.MustParseAddr("192.0.2.254"), source: source},
	}
	if got := userRoutes(shownRoutes); !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestUserspaceBridges(t *testing.T) {
	got := userspaceBridges(`netdev@ovs-netdev: hit:3 missed:1
  br-phy:
    br-phy 65534/1: (tap)
    eth0 1/2: (system)
  weft0:
    vxlan0 1/3: (vxlan: remote_ip=flow)
system@ovs-system: hit:0 missed:0
  br-kernel:
    br-kernel 65534/1: (internal)
`)
	if want := map[string]bool{"br-phy": true, "weft0": true}; !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func FuzzUserRoutes(f *testing.F) {
	f.Add(shownRoutes)
	f.Fuzz(func(t *testing.T, text string) {
		for end := range userRoutes(text) {
			if !end.IsValid() {
				t.Error("a route to nowhere")
			}
		}
		userspaceBridges(text)
	})
}

func TestRouteChanges(t *testing.T) {
	direct := switchRoute{device: "br-phy"}
	via := switchRoute{device: "br-phy", gateway: netip.MustParseAddr("192.0.2.254")}
	routes := func(route switchRoute, ends ...string) map[netip.Addr]switchRoute {
		all := map[netip.Addr]switchRoute{}
		for _, end := range addrs(ends...) {
			all[end] = route
		}
		return all
	}
	own := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.2"): true}
	for _, test := range []struct {
		name        string
		want, have  map[netip.Addr]switchRoute
		set, remove []netip.Addr
	}{
		{"joins", routes(direct, "192.0.2.3", "192.0.2.2"), nil, addrs("192.0.2.2", "192.0.2.3"), nil},
		{"all there", routes(direct, "192.0.2.2"), routes(direct, "192.0.2.2"), nil, nil},
		{"another way", routes(via, "192.0.2.2"), routes(direct, "192.0.2.2"), addrs("192.0.2.2"), nil},
		{"left", nil, routes(direct, "192.0.2.2"), nil, addrs("192.0.2.2")},
		{"left, and gone with the switch", nil, nil, nil, nil},
		{"somebody else's", nil, routes(direct, "192.0.2.9"), nil, nil},
	} {
		set, remove := routeChanges(test.want, test.have, own)
		if !slices.Equal(set, test.set) || !slices.Equal(remove, test.remove) {
			t.Errorf("%s: set %v, remove %v", test.name, set, remove)
		}
	}
}
