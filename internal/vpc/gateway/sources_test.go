package gateway

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/vpc/objects"
)

// compiledSources returns the owners of the elements of SNAT rules with these prefixes, by the range that an element matches. The VPC has
// two Subnets, a route to another range, and a route to a gateway.
func compiledSources(prefixes []netip.Prefix) (map[string]string, []string) {
	const eip = "e"
	in := &Input{
		EIPs:    []objects.EIP{{Age: objects.Age{Meta: objects.Meta{Name: eip}}, Addr: netip.MustParseAddr("192.0.2.1")}},
		Subnets: []objects.Subnet{{Prefix: netip.MustParsePrefix("10.0.0.0/28")}, {Prefix: netip.MustParsePrefix("10.0.0.128/27")}},
		LanIPs:  []netip.Addr{netip.MustParseAddr("10.0.0.14")},
		VPC: objects.VPC{Routes: []objects.Route{
			{Prefix: netip.MustParsePrefix("10.0.0.64/28"), NextHop: netip.MustParseAddr("10.0.0.2")},
			{Prefix: netip.MustParsePrefix("10.0.0.192/28"), NextHop: netip.MustParseAddr("10.0.0.14")},
		}},
	}
	for _, p := range prefixes {
		in.SNATs = append(in.SNATs, objects.SNAT{Age: objects.Age{Meta: objects.Meta{Kind: "SNAT", Name: p.String(), UID: p.String()}}, EIP: eip, Prefix: p})
	}
	result, elements := Compile(in), map[string]string{}
	for _, item := range result.State.Items {
		if e, is := item.(*nft.Element); is && e.Set == Sources {
			elements[e.Match[0]] = e.Owner
		}
	}
	return elements, result.Unmatched
}

// The elements of SNAT rules are those of the naive form, in which each rule omits all longer prefixes, and so are the rules that match no
// prefix inside.
func TestSourcesLikeTheNaiveForm(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var prefixes []netip.Prefix
		for range rapid.IntRange(0, 40).Draw(r, "rules") {
			address := netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(0, 255).Draw(r, "address"))})
			p := netip.PrefixFrom(address, rapid.SampledFrom([]int{0, 8, 24, 25, 26, 27, 28, 29, 30, 31, 32}).Draw(r, "bits")).Masked()
			if !slices.Contains(prefixes, p) {
				prefixes = append(prefixes, p)
			}
		}
		want, unmatched := map[string]string{}, []string(nil)
		for _, p := range prefixes {
			var b netipx.IPSetBuilder
			b.AddPrefix(p)
			for _, other := range prefixes {
				if other.Bits() > p.Bits() {
					b.RemovePrefix(other)
				}
			}
			set, err := b.IPSet()
			if err != nil {
				r.Fatal(err)
			}
			for _, piece := range set.Prefixes() {
				text := piece.String()
				if piece.IsSingleIP() {
					text = piece.Addr().String()
				}
				want[text] = "SNAT/" + p.String()
			}
			inside := []string{"10.0.0.0/28", "10.0.0.64/28", "10.0.0.128/27"}
			if !slices.ContainsFunc(inside, func(i string) bool { return p.Overlaps(netip.MustParsePrefix(i)) }) {
				unmatched = append(unmatched, "SNAT/"+p.String()+"/"+p.String())
			}
		}
		slices.Sort(unmatched)
		have, haveUnmatched := compiledSources(prefixes)
		if !maps.Equal(have, want) || !slices.Equal(haveUnmatched, unmatched) {
			r.Fatalf("of %v:\n%v, unmatched %v\nwant\n%v, unmatched %v", prefixes, have, haveUnmatched, want, unmatched)
		}
	})
}

// Ten thousand SNAT rules cost one removal each at most, whether they are beside each other or within each other.
func TestManySources(t *testing.T) {
	const rules = 10_000
	address := func(i, bits int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), bits)
	}
	for name, prefixOf := range map[string]func(i int) netip.Prefix{
		"a /32 in each /25": func(i int) netip.Prefix { return address(i/2*128, []int{25, 32}[i%2]) },
		"/25 and /32 apart": func(i int) netip.Prefix {
			if i < rules/2 {
				return address(i*128, 25)
			}
			return address(1<<23+i, 32)
		},
		"all in one": func(i int) netip.Prefix {
			if i == 0 {
				return address(0, 8)
			}
			return address(i, 32)
		},
		"within each other": func(i int) netip.Prefix { return address(i/25*256, 8+i%25).Masked() },
	} {
		t.Run(name, func(t *testing.T) {
			var sorted []netip.Prefix
			for i := range rules {
				sorted = append(sorted, prefixOf(i))
			}
			slices.SortFunc(sorted, netip.Prefix.Compare)
			sorted = slices.Compact(sorted)
			removals := 0
			for _, within := range nested(sorted) {
				removals += len(within)
			}
			if removals >= len(sorted) {
				t.Errorf("%d removals for %d rules", removals, len(sorted))
			}
			if elements, _ := compiledSources(sorted); len(elements) < len(sorted)/2 {
				t.Errorf("%d elements of %d rules", len(elements), len(sorted))
			}
		})
	}
}
