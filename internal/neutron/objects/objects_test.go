package objects

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/internal/neutron/cloud"
)

func network(spec stackubev1.NetworkSpec) *stackubev1.Network {
	return &stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "web", UID: "u1"}, Spec: spec}
}

func reserved() Reserved {
	return Reserved{
		"the cluster's pods": {netip.MustParsePrefix("10.128.0.0/14")},
		"the Services":       {netip.MustParsePrefix("172.30.0.0/16")},
		"the nodes":          {netip.MustParsePrefix("192.0.2.0/24")},
	}
}

func rules() *Rules {
	return &Rules{Allowed: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("100.64.0.0/10")}, Reserved: reserved()}
}

// Addresses that no pod may have are those in reserved ranges and those outside the allowed ones.
func TestRefusedAddresses(t *testing.T) {
	for text, want := range map[string]bool{
		"10.244.0.5": false, "100.64.0.1": false, "172.30.0.10": true, "10.129.0.1": true, "192.0.2.1": true, "8.8.8.8": true, "169.254.0.3": true,
	} {
		if got := rules().Refuses(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is refused: %v, want %v", text, got, want)
		}
	}
	public := &Rules{Allowed: []netip.Prefix{netip.MustParsePrefix("8.8.8.0/24")}}
	if public.Refuses(netip.MustParseAddr("8.8.8.8")) {
		t.Error("an address of a configured range is refused")
	}
}

// Within has exactly the addresses of the pools that are not refused, each once, whatever the pools are.
func TestWithin(t *testing.T) {
	address := func(last int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 0, byte(last)}) }
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.IntRange(0, 255)
		prefix := func(what string) netip.Prefix {
			p, err := address(number.Draw(t, what)).Prefix(rapid.IntRange(24, 32).Draw(t, "bits"))
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		r := &Rules{Reserved: Reserved{"a": {prefix("a"), netip.MustParsePrefix("fd00::/64")}, "b": {prefix("b")}}}
		for range rapid.IntRange(0, 3).Draw(t, "allowed") {
			r.Allowed = append(r.Allowed, prefix("of allowed"))
		}
		var pools []ahead.Range
		for range rapid.IntRange(0, 3).Draw(t, "pools") {
			pools = append(pools, ahead.Range{First: address(number.Draw(t, "first")), Last: address(number.Draw(t, "last"))})
		}
		got := ahead.Addresses(r.Within(pools), ahead.Place{}, 1000, func(netip.Addr) bool { return false })
		slices.SortFunc(got, netip.Addr.Compare)
		var want []netip.Addr
		for last := range 256 {
			a := address(last)
			if slices.ContainsFunc(pools, func(p ahead.Range) bool { return !a.Less(p.First) && !p.Last.Less(a) }) && !r.Refuses(a) {
				want = append(want, a)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

func TestCompile(t *testing.T) {
	got, err := Compile(network(stackubev1.NetworkSpec{CIDR: "10.244.0.0/16", Gateway: "10.244.0.1", DNSServers: []string{"192.0.2.53"}}), "p", rules())
	if err != nil {
		t.Fatal(err)
	}
	want := cloud.Network{Owner: "network/u1", Name: "kube-red-web", Project: "p", Subnets: []cloud.Subnet{{
		Name: "kube-red-web-subnet", CIDR: netip.MustParsePrefix("10.244.0.0/16"), Gateway: netip.MustParseAddr("10.244.0.1"),
		DNS: []netip.Addr{netip.MustParseAddr("192.0.2.53")},
	}}}
	same := cmp.Options{cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}
	if diff := cmp.Diff(want, got, same); diff != "" {
		t.Error(diff)
	}
	got, err = Compile(network(stackubev1.NetworkSpec{
		CIDR: "10.244.0.0/16", Gateway: "10.244.0.1", IPv6CIDR: "fd00:10:244::/64", DNSServers: []string{"2001:db8::53", "192.0.2.53"},
	}), "p", rules())
	if err != nil {
		t.Fatal(err)
	}
	want.Subnets = append(want.Subnets, cloud.Subnet{
		Name: "kube-red-web-subnet-ipv6", CIDR: netip.MustParsePrefix("fd00:10:244::/64"), Gateway: netip.MustParseAddr("fd00:10:244::1"),
		DNS: []netip.Addr{netip.MustParseAddr("2001:db8::53")},
	})
	if diff := cmp.Diff(want, got, same); diff != "" {
		t.Error(diff)
	}
	for cidr, gateway := range map[string]string{
		"fd00:10:244::1/64": "", "fd00:10:244::/121": "", "10.0.0.0/24": "", "::ffff:10.0.0.0/120": "", "fe80::/64": "", "ff05::/64": "", "fd00:10:244::/64": "fd00:10:245::1",
	} {
		spec := stackubev1.NetworkSpec{CIDR: "10.244.0.0/16", IPv6CIDR: cidr, IPv6Gateway: gateway}
		if _, err := Compile(network(spec), "p", rules()); err == nil || !strings.Contains(err.Error(), "spec.ipv6") {
			t.Errorf("range %q with gateway %q: %v", cidr, gateway, err)
		}
	}
}

func TestErrorsNameTheField(t *testing.T) {
	for _, c := range []struct {
		spec stackubev1.NetworkSpec
		want []string
	}{
		{stackubev1.NetworkSpec{}, []string{"spec.cidr"}},
		{stackubev1.NetworkSpec{CIDR: "10.244.0.1/16"}, []string{"spec.cidr"}},
		{stackubev1.NetworkSpec{CIDR: "fd00::/64"}, []string{"spec.cidr"}},
		{stackubev1.NetworkSpec{CIDR: "10.128.5.0/24"}, []string{"spec.cidr", "the cluster's pods"}},
		{stackubev1.NetworkSpec{CIDR: "172.16.0.0/12"}, []string{"spec.cidr", "the Services"}},
		{stackubev1.NetworkSpec{CIDR: "192.0.2.128/25"}, []string{"spec.cidr", "the nodes"}},
		{stackubev1.NetworkSpec{CIDR: "8.8.8.0/24"}, []string{"spec.cidr", "ranges for tenants' networks", "neutron.ranges"}},
		{stackubev1.NetworkSpec{CIDR: "8.0.0.0/5"}, []string{"spec.cidr", "ranges for tenants' networks"}},
		{stackubev1.NetworkSpec{CIDR: "169.254.0.0/24"}, []string{"spec.cidr", "ranges for tenants' networks"}},
		{stackubev1.NetworkSpec{CIDR: "10.244.0.0/24", Gateway: "10.244.1.1"}, []string{"spec.gateway", "10.244.1.1"}},
		{stackubev1.NetworkSpec{CIDR: "10.244.0.0/24", Gateway: "10.244.0.0"}, []string{"spec.gateway"}},
		{stackubev1.NetworkSpec{CIDR: "10.244.0.0/24", Gateway: "10.244.0.255"}, []string{"spec.gateway"}},
		{stackubev1.NetworkSpec{CIDR: "10.244.0.0/24", DNSServers: []string{"192.0.2.1", "dns"}}, []string{"spec.dnsServers[1]"}},
	} {
		_, err := Compile(network(c.spec), "p", rules())
		if err == nil {
			t.Errorf("%+v is accepted", c.spec)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: error %q does not name %s", c.spec, err, want)
			}
		}
	}
}

// An accepted network overlaps no reserved range and contains its gateway; no input causes a panic.
func TestAcceptedNetworksAreSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addr := netip.AddrFrom4([4]byte{byte(rapid.SampledFrom([]int{10, 172, 192}).Draw(t, "a")), rapid.Byte().Draw(t, "b"), rapid.Byte().Draw(t, "c"), 0})
		spec := stackubev1.NetworkSpec{
			CIDR:    rapid.OneOf(rapid.String(), rapid.Just(netip.PrefixFrom(addr, rapid.IntRange(0, 32).Draw(t, "bits")).String())).Draw(t, "cidr"),
			Gateway: rapid.OneOf(rapid.String(), rapid.Just(""), rapid.Just(addr.Next().String())).Draw(t, "gateway"),
		}
		got, err := Compile(network(spec), "p", rules())
		if err != nil {
			return
		}
		subnet := got.Subnets[0]
		if subnet.Gateway.IsValid() && !subnet.CIDR.Contains(subnet.Gateway) {
			t.Fatalf("gateway %s is outside of %s", subnet.Gateway, subnet.CIDR)
		}
		for what, ranges := range reserved() {
			for _, r := range ranges {
				if subnet.CIDR.Contains(r.Addr()) || r.Contains(subnet.CIDR.Addr()) {
					t.Fatalf("%s overlaps %s", subnet.CIDR, what)
				}
			}
		}
	})
}

// A network that networkID names is refused, with what has to change, where no pod can have an address of it.
func TestAdoptable(t *testing.T) {
	rules := &Rules{
		Allowed:  []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		Reserved: Reserved{"the nodes' addresses": {netip.MustParsePrefix("10.244.3.7/32"), netip.MustParsePrefix("10.244.8.0/22")}},
	}
	for cidr, want := range map[string]string{
		"10.244.1.0/24":   "",
		"10.244.0.0/15":   "", // pods get the addresses of the allowed half
		"10.244.3.0/24":   "", // all but one
		"192.168.10.0/24": "spec.networkID: 192.168.10.0/24 is in none of the ranges for tenants' networks, [10.244.0.0/16]: choose one of them, or add it to the chart's neutron.ranges",
		"10.244.9.0/24":   "spec.networkID: 10.244.9.0/24 overlaps the nodes' addresses, 10.244.8.0/22: choose another range",
	} {
		prefix := netip.MustParsePrefix(cidr)
		pool := subnets.AllocationPool{Start: prefix.Addr().Next().String(), End: prefix.Addr().Next().Next().String()}
		held := &cloud.HeldNetwork{Held: []subnets.Subnet{{ID: "s", IPVersion: 4, CIDR: cidr, AllocationPools: []subnets.AllocationPool{pool}}}}
		got := ""
		if err := Adoptable(&stackubev1.Network{Spec: stackubev1.NetworkSpec{NetworkID: "id"}}, held, rules); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", cidr, got, want)
		}
	}
	if err := Adoptable(&stackubev1.Network{}, &cloud.HeldNetwork{}, rules); err != nil {
		t.Errorf("without a subnet: %v", err)
	}
}

// Whatever a Network says, it is rejected or compiles to subnets that Neutron can have and nodes can route: an IPv4 range within those allowed and
// outside of those reserved, at most one of IPv6, gateways and name servers of the range's family.
func FuzzCompile(f *testing.F) {
	f.Add("10.244.0.0/16", "10.244.0.1", "fd00:10:244::/64", "fd00:10:244::5", "192.0.2.1", "fd00::1")
	f.Add("10.244.0.1/16", "10.244.255.255", "::ffff:10.0.0.0/120", "fd00::", "::ffff:1.2.3.4", "fe80::1%x")
	f.Add("0.0.0.0/0", "", "ff00::/8", "", "", "")
	f.Add("10.0.0.0/8", "", "", "fd00::1", "1.1.1.1", "2001:db8::1")
	f.Fuzz(func(t *testing.T, cidr, gateway, cidr6, gateway6, dns, dns6 string) {
		spec := stackubev1.NetworkSpec{CIDR: cidr, Gateway: gateway, IPv6CIDR: cidr6, IPv6Gateway: gateway6, DNSServers: []string{dns, dns6}}
		got, err := Compile(network(spec), "p", rules())
		if err != nil {
			return
		}
		if len(got.Subnets) < 1 || len(got.Subnets) > 2 || !got.Subnets[0].CIDR.Addr().Is4() || (len(got.Subnets) == 2) != (cidr6 != "") {
			t.Fatalf("accepted %+v", got)
		}
		if rules().Refuses(got.Subnets[0].CIDR.Addr()) {
			t.Errorf("range %s", got.Subnets[0].CIDR)
		}
		for i, s := range got.Subnets {
			if s.CIDR != s.CIDR.Masked() || s.CIDR.Addr().Is4In6() || s.CIDR.Addr().Is4() != (i == 0) {
				t.Errorf("range %s", s.CIDR)
			}
			if g := s.Gateway; g.IsValid() && (!s.CIDR.Contains(g) || g == s.CIDR.Addr()) {
				t.Errorf("gateway %s of %s", g, s.CIDR)
			}
			for _, addr := range s.DNS {
				if addr.Zone() != "" || addr.Is4In6() || i == 1 && addr.Is4() || i == 0 && len(got.Subnets) == 2 && addr.Is6() {
					t.Errorf("name server %s of %s", addr, s.CIDR)
				}
			}
		}
	})
}
