package egressfirewall_test

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/egressfirewall"
)

// drawFirewall draws a random firewall, or nil.
func drawFirewall(r *rapid.T) *egressfirewall.Firewall {
	switch rapid.IntRange(0, 9).Draw(r, "kind") {
	case 0:
		return nil
	case 1:
		return &egressfirewall.Firewall{Closed: "because"}
	}
	var list []egressfirewall.Rule
	for range rapid.IntRange(0, 6).Draw(r, "rules") {
		list = append(list, egressfirewall.Rule{
			CIDR:    netip.MustParsePrefix(rapid.SampledFrom(cidrs).Draw(r, "cidr")),
			Verdict: rapid.SampledFrom([]egressfirewall.Verdict{egressfirewall.Allow, egressfirewall.Deny}).Draw(r, "verdict"),
		})
	}
	f := egressfirewall.Compile(list, nil)
	return &f
}

// A firewall is narrowed if it denies an address that it allowed before. It is enough to test the addresses at which a range begins, and
// those after its end, because only there verdicts change.
func TestNarrowed(t *testing.T) {
	points := []netip.Addr{netip.MustParseAddr("0.0.0.0")}
	for _, text := range cidrs {
		p := netip.MustParsePrefix(text)
		last := p.Addr().As4()
		for i := p.Bits(); i < 32; i++ {
			last[i/8] |= 1 << (7 - i%8)
		}
		points = append(points, p.Addr())
		if behind := netip.AddrFrom4(last).Next(); behind.IsValid() {
			points = append(points, behind)
		}
	}
	allows := func(f *egressfirewall.Firewall, to netip.Addr) bool {
		return f == nil || f.Closed == "" && f.Verdict(to) == egressfirewall.Allow
	}
	rapid.Check(t, func(r *rapid.T) {
		was, now := drawFirewall(r), drawFirewall(r)
		want := false
		for _, to := range points {
			want = want || allows(was, to) && !allows(now, to)
		}
		if got := egressfirewall.Narrowed(was, now); got != want {
			r.Fatalf("narrowed: %t, want %t\nwas %s\nnow %s", got, want, fmt.Sprint(was), fmt.Sprint(now))
		}
	})
}
