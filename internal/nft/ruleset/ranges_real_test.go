//go:build real

package ruleset_test

import (
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/reconcile"
)

// TestRealForeignRanges: a rule that drops packets of a range is found and opened by the range's addresses, in chains of iptables and of
// family inet. A rule that names the range or a part of it is recognised, a rule for another range is ignored.
func TestRealForeignRanges(t *testing.T) {
	netns := nstest.New(t)
	command(t, netns, "", "iptables-nft", "-P", "FORWARD", "DROP")
	command(t, netns, "", "iptables-nft", "-A", "FORWARD", "-s", "10.6.0.0/16", "-j", "DROP")
	command(t, netns, "", "iptables-nft", "-A", "FORWARD", "-s", "10.5.7.0/24", "-j", "DROP")
	script(t, netns, `table inet fw {
 chain forward { type filter hook forward priority filter; policy accept;
  ct state established accept
  ip6 daddr fd00:5::/48 drop
  reject
 }
}`)
	engine := newEngine(t, netns, true)
	four, six := netip.MustParsePrefix("10.5.0.0/16"), netip.MustParsePrefix("fd00:5::/48")
	traffic := []nft.Traffic{
		{Family: nft.FamilyIPv4, Hook: nft.HookForward, Source: four},
		{Family: nft.FamilyIPv4, Hook: nft.HookForward, Destination: four},
		{Family: nft.FamilyIPv6, Hook: nft.HookForward, Source: six},
		{Family: nft.FamilyIPv6, Hook: nft.HookForward, Destination: six},
	}
	look := func() (map[nft.Key]nft.Item, []string) {
		t.Helper()
		found, err := engine.Survey(t.Context(), traffic...)
		if err != nil {
			t.Fatal(err)
		}
		return nft.Open(found.Drops, "flannel", "")
	}
	desired, warnings := look()
	if len(desired) != 5 || len(warnings) != 2 || !strings.Contains(warnings[0]+warnings[1], "ip6 daddr fd00:5::/48 drop: Weft does not open this") ||
		!strings.Contains(warnings[0]+warnings[1], "10.5.7.0/24 counter drop: has no effect") {
		t.Fatalf("%v\n%s", desired, strings.Join(warnings, "\n"))
	}
	apply(t, engine, desired)
	if again, _ := look(); !reconcile.Diff(desired, again).Empty() {
		t.Errorf("once open, a look finds %v", again)
	}
	rules := command(t, netns, "", "iptables-nft", "-S", "FORWARD")
	for _, want := range []string{`-A FORWARD -s 10.5.0.0/16 -m comment --comment "weft.dev flannel" -j ACCEPT`, `-A FORWARD -d 10.5.0.0/16 -m comment --comment "weft.dev flannel" -j ACCEPT`} {
		if strings.Count(rules, want) != 1 {
			t.Errorf("%q is not once in\n%s", want, rules)
		}
	}
	command(t, netns, "", "iptables-nft", "-I", "FORWARD", "-s", "10.5.0.0/16", "-j", "DROP")
	if actual, err := newEngine(t, netns, true).Read(t.Context()); err != nil || reconcile.Diff(desired, actual).Empty() {
		t.Errorf("a rule above is not noticed: %v", err)
	}
}
