package conjunction_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/overlay/pipeline/conjunction"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/transport"
)

// oneRule are objects with one rule.
type oneRule struct{ rule policy.Rule }

func (o oneRule) Rules(policy.Key) []policy.Rule { return []policy.Rule{o.rule} }

func (o oneRule) Addresses(name policy.SetName) []netip.Addr {
	if name == o.rule.Subjects {
		return []netip.Addr{netip.MustParseAddr("10.128.0.5")}
	}
	return []netip.Addr{netip.MustParseAddr("10.128.0.6"), netip.MustParseAddr("10.129.0.7")}
}

func newCompiler() *conjunction.Compiler {
	return conjunction.New(netip.MustParsePrefix("10.128.0.0/23"))
}

// Every flow of rules leads to the policies that it was compiled from: its own, or all that name its address.
func TestOrigins(t *testing.T) {
	x, key := newCompiler(), policy.Key{Namespace: "one", Name: "web"}
	x.Apply(policy.Effect{Policies: []policy.Key{key}}, oneRule{policy.Rule{
		Name: "one/web ingress[0]", Policy: key, Direction: policy.Ingress, Subjects: "server", PeerSets: []policy.SetName{"clients"},
		Services: []policy.Service{{Protocol: transport.TCP, Port: 80, Mask: 0xffff}},
	}})
	changed := x.ChangedRules()
	origins := x.Origins(5, policy.Key{})
	if len(changed) == 0 {
		t.Fatal("there are no flows")
	}
	for owner, rules := range changed {
		want := conjunction.Origin{Policies: []policy.Key{key}}
		for _, r := range rules {
			for _, address := range []string{"10.128.0.5", "10.128.0.6", "10.129.0.7"} {
				if match := r.Flow.Match.String(); match == "ip,nw_src="+address || match == "ip,nw_dst="+address {
					want.Address = netip.PrefixFrom(netip.MustParseAddr(address), 32)
				}
			}
		}
		if diff := cmp.Diff(want, origins[owner], cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", owner, diff)
		}
	}
}

// manyPolicies are objects with equal policies.
type manyPolicies struct{ oneRule }

func (o manyPolicies) Rules(key policy.Key) []policy.Rule {
	rule := o.rule
	rule.Policy = key
	return []policy.Rule{rule}
}

// If there are more policies than requested, the first ones are returned, and the requested one.
func TestOriginsAreBounded(t *testing.T) {
	x := newCompiler()
	var keys []policy.Key
	for i := range 30 {
		keys = append(keys, policy.Key{Namespace: "one", Name: fmt.Sprintf("p%02d", i)})
	}
	x.Apply(policy.Effect{Policies: keys}, manyPolicies{oneRule{policy.Rule{
		Name: "ingress[0]", Direction: policy.Ingress, Subjects: "server", PeerSets: []policy.SetName{"clients"}, AnyService: true,
	}}})
	for asked, want := range map[string][]policy.Key{
		"":    {keys[0], keys[1], keys[2]},
		"p20": {keys[20], keys[0], keys[1]},
		"p01": {keys[1], keys[0], keys[2]},
	} {
		origins := x.Origins(3, policy.Key{Namespace: "one", Name: asked})
		if len(origins) < 3 {
			t.Fatalf("only %d owners", len(origins))
		}
		for _, owner := range slices.Sorted(maps.Keys(origins)) {
			if origin := origins[owner]; !origin.More || !slices.Equal(origin.Policies, want) {
				t.Errorf("asked for %q: %s comes from %v, more %t; want %v", asked, owner, origin.Policies, origin.More, want)
			}
		}
	}
}
