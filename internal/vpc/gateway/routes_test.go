package gateway_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/vpc/gateway"
	"weft.dev/weft/internal/vpc/objects"
)

// leaves returns the device of the longest route to the address.
func leaves(in *gateway.Input, to netip.Addr) string {
	device, best := "", -1
	for _, route := range append(gateway.Compile(in).State.Routes, gateway.Route{Dst: in.Subnet.Prefix, Device: gateway.Inside}) {
		if route.Dst.Contains(to) && route.Dst.Bits() > best {
			device, best = route.Device, route.Dst.Bits()
		}
	}
	return device
}

func via(table, p, hop string) objects.Route {
	return objects.Route{Table: table, Prefix: prefix(p), NextHop: addr(hop)}
}

// Packets that the VPC's router sends to a gateway leave by net1, also if the router shares them among gateways, or sends them to another
// gateway in another route table. 10.0.1.254 is the gateway's lanIp, and 10.0.1.253 another gateway's.
func TestRoutesOutside(t *testing.T) {
	for name, c := range map[string]struct {
		routes []objects.Route
		want   map[string]string // the device, by destination
	}{
		"shared by two gateways": {
			[]objects.Route{via("", "8.8.8.0/24", "10.0.1.254"), via("", "8.8.8.0/24", "10.0.1.253")}, map[string]string{"8.8.8.8": gateway.Outside},
		},
		"to another gateway in another table": {
			[]objects.Route{via("", "0.0.0.0/0", "10.0.1.254"), via("blue", "8.8.8.0/24", "10.0.1.253")},
			map[string]string{"8.8.8.8": gateway.Outside},
		},
		"shared by a gateway and a pod": {
			[]objects.Route{via("", "8.8.8.0/24", "10.0.1.9"), via("", "8.8.8.0/24", "10.0.1.254")}, map[string]string{"8.8.8.8": gateway.Outside},
		},
		"next hop that is not reached": {[]objects.Route{via("", "8.8.8.0/24", "10.9.9.9")}, map[string]string{"8.8.8.8": gateway.Outside}},
		"to a pod and to a peer": {
			[]objects.Route{via("", "10.5.0.0/16", "10.0.2.9"), via("", "10.6.0.0/16", "169.254.0.2")},
			map[string]string{"10.5.0.1": gateway.Inside, "10.6.0.1": gateway.Inside, "10.7.0.1": gateway.Outside},
		},
		"to a gateway within a range that leads to a pod": {
			[]objects.Route{via("", "10.0.0.0/8", "10.0.1.9"), via("", "10.5.0.0/16", "10.0.1.253"), via("", "10.5.5.0/24", "10.0.1.9")},
			map[string]string{"10.4.0.1": gateway.Inside, "10.5.0.1": gateway.Outside, "10.5.5.1": gateway.Inside, "10.0.2.1": gateway.Inside},
		},
		"part of a Subnet": {[]objects.Route{via("", "10.0.2.128/25", "10.0.1.253")}, map[string]string{"10.0.2.200": gateway.Inside}},
	} {
		t.Run(name, func(t *testing.T) {
			in := input()
			in.LanIPs, in.VPC.Routes = []netip.Addr{addr("10.0.1.253"), addr("10.0.1.254")}, c.routes
			for to, want := range c.want {
				if have := leaves(in, addr(to)); have != want {
					t.Errorf("%s leaves by %s, want %s", to, have, want)
				}
			}
		})
	}
}

// The route of a range in the external network that leads to a gateway has no next hop outside, because its hosts are on net1.
func TestRouteToPartOfExternalRange(t *testing.T) {
	in := input()
	in.VPC.Routes = []objects.Route{
		via("", "192.168.0.0/16", "10.0.1.9"), via("", "192.168.100.64/26", "10.0.1.254"), via("", "192.168.5.0/24", "10.0.1.254"),
	}
	for _, want := range []gateway.Route{
		{Dst: prefix("192.168.100.64/26"), Device: gateway.Outside},
		{Dst: prefix("192.168.5.0/24"), Gateway: in.External.Gateway, Device: gateway.Outside},
	} {
		if have := gateway.Compile(in).State.Routes; !slices.Contains(have, want) {
			t.Errorf("%+v is not in %+v", want, have)
		}
	}
}

// Each destination leaves by the device that a look at every route of the VPC gives, in whatever order the routes are listed.
func TestRoutesLikeTheNaiveForm(t *testing.T) {
	gates := []netip.Addr{addr("10.0.1.253"), addr("10.0.1.254")}
	hops := []string{"10.0.1.253", "10.0.1.254", "10.0.1.9", "10.0.2.9", "169.254.0.2", "10.9.9.9"}
	rapid.Check(t, func(r *rapid.T) {
		in := input()
		in.LanIPs, in.VPC.Routes = gates, nil
		address := rapid.Custom(func(r *rapid.T) netip.Addr {
			return netip.AddrFrom4([4]byte{
				10, rapid.ByteRange(0, 1).Draw(r, "second byte"), rapid.ByteRange(0, 3).Draw(r, "third byte"), rapid.Byte().Draw(r, "fourth byte"),
			})
		})
		for i := range rapid.IntRange(0, 8).Draw(r, "routes") {
			in.VPC.Routes = append(in.VPC.Routes, objects.Route{
				Table: fmt.Sprint(i % 2), Source: rapid.IntRange(0, 5).Draw(r, "by source") == 0,
				Prefix:  netip.PrefixFrom(address.Draw(r, "prefix"), rapid.SampledFrom([]int{0, 8, 15, 22, 23, 24, 25, 32}).Draw(r, "bits")).Masked(),
				NextHop: addr(rapid.SampledFrom(hops).Draw(r, "hop")),
			})
		}
		to := address.Draw(r, "destination")
		connected := []netip.Prefix{prefix("10.0.1.0/24"), prefix("10.0.2.0/24"), prefix("169.254.0.0/30")}
		within := func(p netip.Prefix) bool {
			return slices.ContainsFunc(connected, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Overlaps(p) })
		}
		want, best := gateway.Outside, 0
		if within(netip.PrefixFrom(to, 32)) {
			want, best = gateway.Inside, 33
		}
		for _, route := range in.VPC.Routes {
			if !route.Prefix.Contains(to) || route.Prefix.Bits() < max(best, 1) {
				continue
			}
			reached, outside := false, false
			for _, other := range in.VPC.Routes {
				if !other.Source && other.Prefix == route.Prefix && within(netip.PrefixFrom(other.NextHop, 32)) {
					reached, outside = true, outside || slices.Contains(gates, other.NextHop)
				}
			}
			if reached {
				want, best = map[bool]string{true: gateway.Outside, false: gateway.Inside}[outside], route.Prefix.Bits()
			}
		}
		if have := leaves(in, to); have != want {
			r.Fatalf("%s leaves by %s, want %s: %+v\n%+v", to, have, want, in.VPC.Routes, gateway.Compile(in).State.Routes)
		}
		first := gateway.Compile(in)
		in.VPC.Routes = rapid.Permutation(in.VPC.Routes).Draw(r, "order")
		if again := gateway.Compile(in); again.State.Hash() != first.State.Hash() {
			r.Fatalf("another order, and another state: %+v, before %+v", again.State.Routes, first.State.Routes)
		}
	})
}
