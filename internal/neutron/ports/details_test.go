package ports

import (
	"testing"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/pipeline"
)

// What a NeutronPort says is used only if a pod can have it: unicast addresses that are not the host's, and gateways and routes of its
// subnets.
func FuzzParse(f *testing.F) {
	f.Add("0a:58:0a:f4:00:05", "10.244.0.5/16", "10.244.0.1", "192.0.2.0/24", "10.244.0.9")
	f.Add("0a:58:0a:f4:00:05:00:00", "169.254.0.3/16", "fd00::1", "0.0.0.0/0", "10.244.0.5")
	f.Add("", "fd00::5/64", "", "::ffff:1.2.3.4/96", "fd00::1%eth0")
	f.Fuzz(func(t *testing.T, mac, address, gateway, destination, hop string) {
		object := &weftv1.NeutronPort{Spec: weftv1.NeutronPortSpec{
			MAC: mac, Addresses: []weftv1.NeutronPortAddress{{Address: address, Gateway: gateway}},
			Routes: []weftv1.NeutronPortRoute{{Destination: destination, NextHop: hop}},
		}}
		s, err := Parse(object)
		if err != nil {
			return
		}
		if len(s.Addresses) != 1 || len(s.MAC) == 0 {
			t.Fatalf("accepted %+v", s)
		}
		own := s.Addresses[0]
		if !own.Addr().IsGlobalUnicast() || own.Contains(pipeline.HostAddress()) || own.Contains(pipeline.OutsideAddress()) {
			t.Errorf("address %s", own)
		}
		for _, g := range s.Gateways {
			if g == own.Addr() || g.Is4() != own.Addr().Is4() {
				t.Errorf("gateway %s of %s", g, own)
			}
		}
		for _, r := range s.Routes {
			if !own.Contains(r.NextHop) || r.Destination != r.Destination.Masked() || r.Destination.Bits() == 0 {
				t.Errorf("route %v of %s", r, own)
			}
		}
	})
}
