package ports

import (
	"encoding/json"
	"slices"
	"testing"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/neutron/pipeline"
)

// What a NeutronPort says is used only if a pod can have it: unicast addresses that are not the host's, and gateways and routes of its
// subnets.
func FuzzParse(f *testing.F) {
	f.Add("0a:58:0a:f4:00:05", "10.244.0.5/16", "10.244.0.1", "192.0.2.0/24", "10.244.0.9")
	f.Add("0a:58:0a:f4:00:05:00:00", "169.254.0.3/16", "fd00::1", "0.0.0.0/0", "10.244.0.5")
	f.Add("", "fd00::5/64", "", "::ffff:1.2.3.4/96", "fd00::1%eth0")
	f.Add("0a:58:0a:f4:00:05", "fd00::5/64", "fe80::1%eth0", "2001:db8::/64", "fd00::1")
	f.Add("01:00:5e:00:00:05", "10.244.0.5/16", "224.0.0.1", "192.0.2.0/24", "10.244.0.9")
	f.Fuzz(func(t *testing.T, mac, address, gateway, destination, hop string) {
		object := &weftv1.NeutronPort{Spec: weftv1.NeutronPortSpec{
			MAC: mac, Addresses: []weftv1.NeutronPortAddress{{Address: address, Gateway: gateway}},
			Routes: []weftv1.NeutronPortRoute{{Destination: destination, NextHop: hop}},
		}}
		s, err := Parse(object)
		if err != nil {
			return
		}
		if len(s.Addresses) != 1 || len(s.MAC) != 6 || s.MAC[0]&1 != 0 {
			t.Fatalf("accepted %+v", s)
		}
		own := s.Addresses[0]
		if !own.Addr().IsGlobalUnicast() || own.Contains(pipeline.HostAddress()) || own.Contains(pipeline.OutsideAddress()) {
			t.Errorf("address %s", own)
		}
		for _, g := range s.Gateways {
			if g == own.Addr() || g.Is4() != own.Addr().Is4() || g.Zone() != "" || g.IsMulticast() || g.IsUnspecified() {
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

// What a record says of its port is rejected, or names a port and a slot, and is the same after writing and reading it.
func FuzzDetailsOf(f *testing.F) {
	f.Add([]byte(`{"port":"5b1fdbd5-6f0b-4f0a-9a5c-0d9c5f3f0f11","slot":3,"network":"blue","routes":[{"destination":"192.0.2.0/24","nextHop":"10.244.0.9"}],"dns":["10.244.0.2"]}`))
	f.Add([]byte(`{"port":"p","slot":0,"routes":[],"dns":[""]}`))
	f.Add([]byte(`{"port":"p","slot":-1}`))
	f.Add([]byte(`{"port":"p","slot":70000}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := DetailsOf(&attach.Record{Details: raw})
		if err != nil {
			return
		}
		if d.Port == "" || !d.Slot.Valid() || int(d.Slot.Pod()) > 65279 || d.Slot.Patch() == 0 || d.Slot.Zone() < 57344 || d.Slot.Zone() > 65279 {
			t.Errorf("accepted %+v", d)
		}
		again, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DetailsOf(&attach.Record{Details: again})
		if err != nil {
			t.Fatal(err)
		}
		same := back.Port == d.Port && back.Slot == d.Slot && back.Network == d.Network
		if !same || !slices.Equal(back.Routes, d.Routes) || !slices.Equal(back.DNS, d.DNS) {
			t.Errorf("%+v is read back as %+v", d, back)
		}
	})
}
