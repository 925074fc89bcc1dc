package cluster

import (
	"net/netip"
	"slices"
	"testing"
)

// Without neutron.ranges, tenants' networks may use the range that each Tenant gets, and no other.
func TestDefaultRanges(t *testing.T) {
	chosen := netip.MustParsePrefix("172.20.0.0/16")
	for name, c := range map[string]struct {
		opts Options
		want netip.Prefix
	}{
		"nothing is given": {Options{}, netip.MustParsePrefix("10.244.0.0/16")},
		"userCIDR":         {Options{UserCIDR: chosen}, chosen},
		"ranges":           {Options{UserCIDR: netip.MustParsePrefix("10.1.0.0/16"), Ranges: []netip.Prefix{chosen}}, chosen},
	} {
		if got := c.opts.withDefaults().Ranges; !slices.Equal(got, []netip.Prefix{c.want}) {
			t.Errorf("%s: ranges %v, want %s", name, got, c.want)
		}
	}
}
