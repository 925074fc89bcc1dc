package fabric_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/flannel/uplink"
	"weft.dev/weft/internal/link/whole"
)

func view(backend netconf.Backend) *fabric.View {
	ip := netip.MustParseAddr
	return &fabric.View{
		Backend: backend, V4: true, V6: true, MAC: lease.MAC{2, 0, 0, 0, 0, 1}, MAC6: lease.MAC{2, 0, 0, 0, 0, 2},
		Uplink: uplink.Uplink{Name: "eth0", MTU: 1500, Addr: ip("192.0.2.1"), Addr6: ip("2001:db8::1"), Public: ip("192.0.2.1"), Public6: ip("2001:db8::1")},
		Links:  []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
	}
}

func peer(backend string) lease.Lease {
	l := lease.Lease{
		Subnet: netip.MustParsePrefix("10.5.68.0/24"), Subnet6: netip.MustParsePrefix("2001:cafe:42:68::/64"),
		PublicIP: netip.MustParseAddr("192.0.2.2"), PublicIP6: netip.MustParseAddr("2001:db8::2"), Backend: backend,
	}
	if backend == "vxlan" {
		l.Data, l.Data6 = lease.VXLAN{VNI: 1, MAC: lease.MAC{2, 0, 0, 0, 0, 8}}, lease.VXLAN{VNI: 1, MAC: lease.MAC{2, 0, 0, 0, 0, 9}}
	}
	return l
}

func text(f fabric.Fragment) string {
	var lines []string
	for _, item := range f {
		lines = append(lines, item.String())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestPeer compares a peer's entries with those of flanneld v0.28.9.
func TestPeer(t *testing.T) {
	for _, c := range []struct {
		name    string
		backend netconf.Backend
		peer    lease.Lease
		want    []string
	}{
		{"vxlan", netconf.VXLAN{VNI: 1}, peer("vxlan"), []string{
			"fdb 02:00:00:00:00:08 dev flannel.1 dst 192.0.2.2",
			"fdb 02:00:00:00:00:09 dev flannel-v6.1 dst 2001:db8::2",
			"neighbour 10.5.68.0 dev flannel.1 lladdr 02:00:00:00:00:08",
			"neighbour 2001:cafe:42:68:: dev flannel-v6.1 lladdr 02:00:00:00:00:09",
			"route 10.5.68.0/24 via 10.5.68.0 dev flannel.1 onlink",
			"route 2001:cafe:42:68::/64 via 2001:cafe:42:68:: dev flannel-v6.1 onlink",
		}},
		{"DirectRouting follows from the uplink's ranges", netconf.VXLAN{VNI: 1, DirectRouting: true}, peer("vxlan"), []string{
			"fdb 02:00:00:00:00:09 dev flannel-v6.1 dst 2001:db8::2",
			"neighbour 2001:cafe:42:68:: dev flannel-v6.1 lladdr 02:00:00:00:00:09",
			"route 10.5.68.0/24 via 192.0.2.2 dev eth0",
			"route 2001:cafe:42:68::/64 via 2001:cafe:42:68:: dev flannel-v6.1 onlink",
		}},
		{"host-gw", netconf.HostGW{}, peer("host-gw"), []string{"route 10.5.68.0/24 via 192.0.2.2 dev eth0", "route 2001:cafe:42:68::/64 via 2001:db8::2 dev eth0"}},
		{"alloc", netconf.Alloc{}, peer(""), nil},
	} {
		f, err := view(c.backend).Peer(c.peer)
		if got, want := text(f), strings.Join(c.want, "\n"); err != nil || got != want {
			t.Errorf("%s: %v\ngot\n%s\nwant\n%s", c.name, err, got, want)
		}
	}
	if f, err := view(netconf.VXLAN{VNI: 1}).Peer(peer("host-gw")); err == nil || len(f) != 0 || !strings.Contains(err.Error(), `lease of 10.5.68.0/24 has backend "host-gw", this node has "vxlan"`) {
		t.Errorf("a lease of another backend: %v, %v", f, err)
	}
}

// Only routes through IPv4 tunnels refer to nexthop objects.
func TestNexthops(t *testing.T) {
	for _, c := range []struct {
		backend netconf.Backend
		want    string
	}{
		{netconf.VXLAN{VNI: 1}, "nexthop id 168117248 via 10.5.68.0 dev flannel.1 onlink"},
		{netconf.VXLAN{VNI: 1, DirectRouting: true}, ""},
		{netconf.HostGW{}, ""},
	} {
		v := view(c.backend)
		v.Nexthops = true
		f, err := v.Peer(peer(c.backend.Type()))
		if err != nil {
			t.Fatal(err)
		}
		var objects []string
		for _, item := range f {
			if object, is := item.(*whole.Nexthop); is {
				objects = append(objects, object.String())
			}
			if route, is := item.(*whole.Route); is && route.Nexthop != (c.want != "" && route.Dst.Addr().Is4()) {
				t.Errorf("%+v: route %+v", c.backend, route)
			}
		}
		if got := strings.Join(objects, ","); got != c.want {
			t.Errorf("%+v: objects %s, want %s", c.backend, got, c.want)
		}
	}
}

func TestOwn(t *testing.T) {
	own := lease.Lease{Subnet: netip.MustParsePrefix("10.5.1.0/24"), Subnet6: netip.MustParsePrefix("2001:cafe:42:1::/64")}
	want := strings.Join([]string{
		"vxlan flannel-v6.7 id 7 dev eth0 local 2001:db8::1 dstport 8472 mtu 1430 address 02:00:00:00:00:02 inet 2001:cafe:42:1::/128",
		"vxlan flannel.7 id 7 dev eth0 local 192.0.2.1 dstport 8472 mtu 1450 address 02:00:00:00:00:01 inet 10.5.1.0/32",
	}, "\n")
	if got := text(view(netconf.VXLAN{VNI: 7}).Own(own)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := text(view(netconf.HostGW{}).Own(own)); got != "" {
		t.Errorf("host-gw has %s", got)
	}
}

func TestMTU(t *testing.T) {
	for _, c := range []struct {
		backend netconf.Backend
		v6      bool
		want    int
	}{
		{netconf.VXLAN{}, false, 1450},
		{netconf.VXLAN{}, true, 1430}, // flannel uses 1450, which does not fit
		{netconf.VXLAN{MTU: 1400}, false, 1350},
		{netconf.HostGW{}, true, 1500},
		{netconf.WireGuard{}, true, 1420},
		{netconf.IPIP{}, false, 1480},
		{netconf.Alloc{}, false, 1500},
	} {
		v := view(c.backend)
		v.V6 = c.v6
		if got := v.MTU(); got != c.want {
			t.Errorf("%s: %d, want %d", c.backend.Type(), got, c.want)
		}
	}
}

func TestOwns(t *testing.T) {
	for name, want := range map[string]bool{
		"flannel.1": true, "flannel-v6.4096": true, "flannel-wg": true, "flannel.ipip": true, "flannel.": false, "flannel.x": false, "eth0": false, "cni0": false,
		"flannel.16777216": false,
	} {
		if fabric.Owns(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}

func TestCheck(t *testing.T) {
	v := view(netconf.HostGW{})
	v.Uplink.Public = netip.MustParseAddr("198.51.100.1")
	if err := v.Check(); err == nil || !strings.Contains(err.Error(), "leave out --public-ip") {
		t.Error(err)
	}
}

// TestLongestNames: the largest VNI that a configuration may have fills the names of the devices.
func TestLongestNames(t *testing.T) {
	const longest = 15 // IFNAMSIZ-1 of linux/if.h
	for i, text := range []string{`{"Backend":{"Type":"vxlan","VNI":9999999}}`, `{"EnableIPv6":true,"Backend":{"Type":"vxlan","VNI":9999}}`} {
		config, err := netconf.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if name := fabric.Devices(config.Backend.(netconf.VXLAN))[i]; len(name) != longest { //nolint:forcetypeassert // it says vxlan
			t.Errorf("device %s has a name of %d characters, want %d", name, len(name), longest)
		}
	}
}
