package judge

import (
	"net/netip"
	"testing"

	"weft.dev/weft/internal/attach"
)

// TestVacated: an address that is left again while its connections are flushed is flushed for the next pod until they are flushed again.
func TestVacated(t *testing.T) {
	inside, outside := netip.MustParsePrefix("10.244.3.9/24"), netip.MustParsePrefix("10.244.4.9/24")
	v := vacated{left: map[netip.Addr]departure{}}
	rec := &attach.Record{ContainerID: "a", IfName: "eth0", Addresses: []netip.Prefix{inside}}
	other := &attach.Record{ContainerID: "b", IfName: "eth0", Addresses: []netip.Prefix{outside}}
	if len(v.reused(rec)) != 1 {
		t.Error("before anything is swept, an address is not in doubt")
	}
	v.sweep([]netip.Prefix{inside.Masked()})
	if len(v.reused(rec)) != 0 || len(v.reused(other)) != 1 {
		t.Errorf("in doubt: %v of the range, %v outside", v.reused(rec), v.reused(other))
	}
	v.leave(rec)
	under := v.departed()
	if got := owners(under); len(got) != 1 || string(got[0]) != rec.Key().Owner() {
		t.Errorf("owners %v", got)
	}
	v.leave(rec)
	v.flushed(under)
	if len(v.reused(rec)) != 1 {
		t.Error("left again meanwhile, the address is not in doubt")
	}
	v.flushed(v.departed())
	if len(v.reused(rec)) != 0 || len(v.departed()) != 0 {
		t.Error("flushed, the address is in doubt")
	}
}
