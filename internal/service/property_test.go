package service_test

import (
	"net/netip"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
)

// oracle decides for one endpoint whether a new connection of a pod may be forwarded to it. It evaluates all slices for each endpoint, and
// computes no lists.
type oracle struct {
	svc    service.Service
	port   service.Port
	slices []service.Slice
}

// endpointState is the combined state of an endpoint in all slices.
type endpointState struct{ there, ready, leaving, local, serving bool }

func (o oracle) stateOf(addr netip.AddrPort) endpointState {
	var best endpointState
	rank := -1
	for _, s := range o.slices {
		for _, p := range s.Ports {
			for _, e := range s.Endpoints {
				if p.Name != o.port.Name || p.Protocol != o.port.Protocol || netip.AddrPortFrom(e.IP, p.Number) != addr {
					continue
				}
				now := endpointState{true, e.Ready, e.Serving && e.Terminating, e.Node == here.Node, e.Serving}
				r := 0
				for i, b := range []bool{now.leaving, now.serving, now.ready, now.local} {
					if b {
						r |= 1 << i
					}
				}
				if r > rank {
					best, rank = now, r
				}
			}
		}
	}
	return best
}

func (o oracle) some(holds func(endpointState) bool, all []netip.AddrPort) bool {
	for _, a := range all {
		if holds(o.stateOf(a)) {
			return true
		}
	}
	return false
}

func (o oracle) goesTo(addr netip.AddrPort, all []netip.AddrPort, onlyLocal bool) bool {
	in := func(x endpointState) bool { return x.there && (x.local || !onlyLocal) }
	x := o.stateOf(addr)
	if !in(x) {
		return false
	}
	anyReady := o.some(func(y endpointState) bool { return in(y) && y.ready }, all)
	return x.ready || !anyReady && x.leaving
}

func drawSlices(r *rapid.T) []service.Slice {
	endpoint := rapid.Custom(func(r *rapid.T) service.SliceEndpoint {
		return service.SliceEndpoint{
			IP:    netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 4).Draw(r, "ip"))}),
			Node:  rapid.SampledFrom([]string{"", "here", "there"}).Draw(r, "node"),
			Ready: rapid.Bool().Draw(r, "ready"), Serving: rapid.Bool().Draw(r, "serving"), Terminating: rapid.Bool().Draw(r, "terminating"),
		}
	})
	port := rapid.Custom(func(r *rapid.T) service.SlicePort {
		return service.SlicePort{
			Name: rapid.SampledFrom([]string{"http", "dns"}).Draw(r, "name"), Number: rapid.SampledFrom([]uint16{8080, 5353}).Draw(r, "number"),
			Protocol: rapid.SampledFrom([]transport.Protocol{transport.TCP, transport.UDP}).Draw(r, "protocol"),
		}
	})
	return rapid.SliceOfN(rapid.Custom(func(r *rapid.T) service.Slice {
		return service.Slice{
			Namespace: "ns", Service: "web", Name: rapid.StringMatching(`[a-d]`).Draw(r, "slice"),
			Ports: rapid.SliceOfN(port, 0, 3).Draw(r, "ports"), Endpoints: rapid.SliceOfN(endpoint, 0, 6).Draw(r, "endpoints"),
		}
	}), 0, 3).Draw(r, "slices")
}

func TestCompileProperty(t *testing.T) {
	var all []netip.AddrPort
	for last := byte(1); last <= 4; last++ {
		for _, port := range []uint16{8080, 5353} {
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, last}), port))
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		svc := web(func(s *service.Service) {
			s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.50")}
			s.InternalLocal, s.ExternalLocal = rapid.Bool().Draw(r, "internal"), rapid.Bool().Draw(r, "external")
			s.Ports = append(s.Ports, service.Port{Name: "dns", Protocol: transport.UDP, Number: 53, NodePort: 30053})
		})
		slices := drawSlices(r)
		list := service.Compile(svc, slices, here)
		if again := service.Compile(svc, rapid.Permutation(slices).Draw(r, "again"), here); !sameButTies(list, again) {
			r.Fatalf("the order of slices counts:\n%v\n%v", lines(list), lines(again))
		}
		for _, v := range list {
			o := oracle{svc: svc, slices: slices}
			for _, p := range svc.Ports {
				if p.Name == v.PortName {
					o.port = p
				}
			}
			local := v.Kind == service.KindClusterIP && svc.InternalLocal
			got := map[netip.AddrPort]bool{}
			for _, e := range v.Endpoints {
				got[e.Addr] = true
			}
			for _, a := range all {
				if want := o.goesTo(a, all, local); got[a] != want {
					r.Fatalf("%v: goes to %s is %v, want %v", lines([]service.VirtualAddress{v}), a, got[a], want)
				}
			}
			usable := o.some(func(x endpointState) bool { return x.ready || x.leaving }, all)
			want := service.Forward
			if len(got) == 0 && usable {
				want = service.Drop
			} else if len(got) == 0 {
				want = service.Reject
			}
			if v.Verdict != want {
				r.Fatalf("%v: verdict %d, want %d", lines([]service.VirtualAddress{v}), v.Verdict, want)
			}
		}
	})
}

// sameButTies compares without the node: if two slices rank equally for an endpoint, either may provide its node.
func sameButTies(a, b []service.VirtualAddress) bool {
	plain := func(list []service.VirtualAddress) []service.VirtualAddress {
		out := append([]service.VirtualAddress(nil), list...)
		for i := range out {
			es := append([]service.Endpoint(nil), out[i].Endpoints...)
			for j := range es {
				es[j].Node, es[j].Terminating = "", false
			}
			out[i].Endpoints = es
		}
		return out
	}
	return reflect.DeepEqual(plain(a), plain(b))
}
