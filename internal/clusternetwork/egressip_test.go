package clusternetwork

import (
	"net/netip"
	"slices"
	"testing"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// A namespace that wants egress IPs is never treated as one that wants none.
func TestEgressIPs(t *testing.T) {
	good := netip.MustParseAddr("192.0.2.9")
	for _, test := range []struct {
		texts        []string
		wants, hosts []netip.Addr
	}{
		{nil, nil, nil},
		{[]string{"192.0.2.9"}, []netip.Addr{good}, []netip.Addr{good}},
		{[]string{"fd00::1", "192.0.2.9", "192.0.2.09"}, []netip.Addr{good}, []netip.Addr{good}},
		{[]string{"nonsense", "", "127.0.0.1"}, []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil},
		{[]string{"nonsense", ""}, []netip.Addr{netip.IPv4Unspecified()}, nil},
	} {
		if got := WantedEgressIPs(&networkv1.NetNamespace{EgressIPs: test.texts}); !slices.Equal(got, test.wants) {
			t.Errorf("%v: wants %v, not %v", test.texts, got, test.wants)
		}
		if got := HostedEgressIPs(&networkv1.HostSubnet{EgressIPs: test.texts}); !slices.Equal(got, test.hosts) {
			t.Errorf("%v: hosts %v, not %v", test.texts, got, test.hosts)
		}
	}
	ranges := EgressCIDRs(&networkv1.HostSubnet{EgressCIDRs: []string{"192.0.2.0/24", "192.0.2.1/24", "x"}})
	if !slices.Equal(ranges, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}) {
		t.Errorf("ranges %v", ranges)
	}
}

// Below the limit of the status, a node refuses what it names. At the limit, it refuses every address above the highest as well.
func TestRefusedAbove(t *testing.T) {
	refused := map[netip.Addr]string{}
	for ip := netip.MustParseAddr("192.0.2.7"); len(refused) < networkv1.MaxRefusedEgressIPs-1; ip = ip.Next() {
		refused[ip] = "it is taken"
	}
	if got := RefusedAbove(refused); got.IsValid() {
		t.Errorf("with room in the status, every address above %s is refused", got)
	}
	for _, ip := range []string{"192.0.2.80", "192.0.2.81"} {
		refused[netip.MustParseAddr(ip)] = "it is taken"
		if got := RefusedAbove(refused); got != netip.MustParseAddr("192.0.2.80") {
			t.Errorf("with %d refused addresses, those above %s are refused", len(refused), got)
		}
	}
}
