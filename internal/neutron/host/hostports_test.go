package host

import (
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/nft"
)

// before returns the rules of a chain before the first that translates to a pod.
func before(t *testing.T, rules map[nft.Key]nft.Item, chain string) []string {
	t.Helper()
	for _, item := range rules {
		list, is := item.(*nft.ChainRules)
		if !is || list.Chain != chain {
			continue
		}
		var all []string
		for _, r := range list.Rules {
			if strings.Contains(r.Text, "dnat") {
				return all
			}
			all = append(all, r.Text)
		}
	}
	t.Fatalf("no chain %s that translates", chain)
	return nil
}

// Packets of tunnels and to Services never lead to a pod's host port.
func TestNotTranslated(t *testing.T) {
	rules := Rules([]uint16{4789, 6081})
	for _, chain := range []string{"hostports-in", "hostports-out"} {
		first := before(t, rules, chain)
		for _, want := range []string{"udp dport 4789 return", "udp dport 6081 return", "ip daddr @services return"} {
			if !slices.Contains(first, want) {
				t.Errorf("%s: no rule %q in %q", chain, want, first)
			}
		}
	}
}
