package egressfirewall_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/egressfirewall/oracle"
)

// Only a few distinct values, so that they interact.
var (
	spaces = []string{"a", "b", "c"}
	cidrs  = []string{
		"0.0.0.0/0", "0.0.0.0/32", "10.0.0.0/8", "192.0.2.0/24", "192.0.2.0/25", "192.0.2.128/25", "192.0.2.7/32", "192.0.2.200/32",
		"198.51.100.0/24", "128.0.0.0/1", "203.0.113.4/30", "203.0.113.5/32",
	}
	// looseCIDRs have bits set to the right of the prefix.
	looseCIDRs = []string{"192.0.2.1/24", "203.0.113.6/30"}
	badCIDRs   = []string{"::/0", "192.0.2.0", "00.0.0.0/0", "192.0.2.0/33", "x"}
	names      = []string{"one.example", "Two.Example.", "three.example", "four.example"}
	badNames   = []string{"*.example", "under_score.example"}
	// targets are inside and outside of all ranges.
	targets = []string{
		"10.1.2.3", "192.0.2.0", "192.0.2.7", "192.0.2.8", "192.0.2.127", "192.0.2.128", "192.0.2.200", "192.0.2.255", "192.0.3.0",
		"198.51.100.10", "203.0.113.3", "203.0.113.5", "203.0.113.7", "203.0.113.8", "1.1.1.1", "255.255.255.254",
	}
)

func drawRule(r *rapid.T, bad bool) networkv1.EgressNetworkPolicyRule {
	rule := networkv1.EgressNetworkPolicyRule{Type: rapid.SampledFrom([]networkv1.EgressNetworkPolicyRuleType{"Allow", "Deny"}).Draw(r, "type")}
	cidr, name := rapid.SampledFrom(slices.Concat(cidrs, looseCIDRs)), rapid.SampledFrom(names)
	if bad {
		switch rapid.IntRange(0, 3).Draw(r, "wrong") {
		case 0:
			rule.Type = rapid.SampledFrom([]networkv1.EgressNetworkPolicyRuleType{"", "AllowX", "XDeny", "allow"}).Draw(r, "bad type")
		case 1:
			cidr = rapid.SampledFrom(badCIDRs)
		case 2:
			name = rapid.SampledFrom(badNames)
		default:
			if rapid.Bool().Draw(r, "both") {
				rule.To.CIDRSelector, rule.To.DNSName = cidr.Draw(r, "cidr"), name.Draw(r, "name")
			}
			return rule
		}
	}
	if rapid.Bool().Draw(r, "by name") {
		rule.To.DNSName = name.Draw(r, "name")
	} else {
		rule.To.CIDRSelector = cidr.Draw(r, "cidr")
	}
	return rule
}

func drawAddrs(r *rapid.T) []netip.Addr {
	var addrs []netip.Addr
	for _, text := range rapid.SliceOfNDistinct(rapid.SampledFrom(append([]string{"2001:db8::1"}, targets...)), 0, 3, rapid.ID).Draw(r, "addresses") {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// world is the oracle's world and an index with the same content.
type world struct {
	oracle.World
	index     *egressfirewall.Index
	firewalls map[string]*egressfirewall.Firewall
}

// change makes one random change to both.
func (w *world) change(r *rapid.T) {
	space := rapid.SampledFrom(spaces).Draw(r, "namespace")
	switch rapid.IntRange(0, 5).Draw(r, "change") {
	case 0, 1:
		policy := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: rapid.SampledFrom([]string{"default", "default", "default", "second"}).Draw(r, "policy")}}
		for range rapid.IntRange(0, 6).Draw(r, "rules") {
			policy.Spec.Egress = append(policy.Spec.Egress, drawRule(r, rapid.IntRange(0, 40).Draw(r, "bad") == 40))
		}
		w.delete(policy.Namespace, policy.Name)
		w.Policies = append(w.Policies, policy)
		w.index.SetPolicy(egressfirewall.FromObject(policy))
	case 2:
		name := rapid.SampledFrom([]string{"default", "second", "second"}).Draw(r, "policy")
		w.delete(space, name)
		w.index.DeletePolicy(egressfirewall.Key{Namespace: space, Name: name})
	case 3:
		if vnid := rapid.SampledFrom([]int{-1, 0, 10, 11, 12, 12}).Draw(r, "VNID"); vnid < 0 {
			delete(w.VNIDs, space)
			w.index.DeleteVNID(space)
		} else {
			w.VNIDs[space] = uint32(vnid)
			w.index.SetVNID(space, uint32(vnid))
		}
	default:
		name, err := egressfirewall.ParseName(rapid.SampledFrom(names).Draw(r, "name"))
		if err != nil {
			r.Fatal(err)
		}
		if rapid.IntRange(0, 4).Draw(r, "forget") == 0 {
			delete(w.Names, strings.TrimSuffix(name, "."))
			w.index.ForgetName(name)
			return
		}
		addrs := drawAddrs(r)
		w.Names[strings.TrimSuffix(name, ".")] = addrs
		w.index.SetAddresses(name, addrs)
	}
}

func (w *world) delete(namespace, name string) {
	w.Policies = slices.DeleteFunc(w.Policies, func(p *networkv1.EgressNetworkPolicy) bool { return p.Namespace == namespace && p.Name == name })
}

// After any changes, the firewalls from the index agree with the API's text, for every namespace and destination.
func TestIndexProperty(t *testing.T) {
	judged, allowed := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		w := world{
			World: oracle.World{VNIDs: map[string]uint32{}, Names: map[string][]netip.Addr{}},
			index: egressfirewall.NewIndex(), firewalls: map[string]*egressfirewall.Firewall{},
		}
		for range rapid.IntRange(1, 30).Draw(r, "changes") {
			w.change(r)
			for space, firewall := range w.index.Changed() {
				if firewall.Equal(w.firewalls[space]) {
					r.Fatalf("the firewall of %s is reported again", space)
				}
				w.firewalls[space] = firewall
			}
			for _, space := range spaces {
				for _, text := range targets {
					to := netip.MustParseAddr(text)
					want := w.Allowed(space, to)
					firewall := w.firewalls[space]
					if got := firewall == nil || firewall.Verdict(to) == egressfirewall.Allow; got != want {
						r.Fatalf("%s to %s: allowed: %t, want %t\n%+v", space, to, got, want, firewall)
					}
					if judged++; want {
						allowed++
					}
				}
			}
		}
	})
	t.Logf("%d destinations judged, %d of them allowed", judged, allowed)
	if allowed == 0 || allowed == judged {
		t.Errorf("of %d destinations %d are allowed: that says nothing", judged, allowed)
	}
}

func rules(t *testing.T, texts ...string) []egressfirewall.Rule {
	t.Helper()
	policy := &networkv1.EgressNetworkPolicy{}
	for _, text := range texts {
		verdict, to, _ := strings.Cut(text, " ")
		rule := networkv1.EgressNetworkPolicyRule{Type: networkv1.EgressNetworkPolicyRuleType(verdict)}
		if strings.Contains(to, "/") {
			rule.To.CIDRSelector = to
		} else {
			rule.To.DNSName = to
		}
		policy.Spec.Egress = append(policy.Spec.Egress, rule)
	}
	parsed := egressfirewall.FromObject(policy)
	if parsed.Err != nil {
		t.Fatal(parsed.Err)
	}
	return parsed.Rules
}

func text(f egressfirewall.Firewall) string {
	var b strings.Builder
	for _, e := range f.Entries {
		fmt.Fprintf(&b, "%s %s %d\n", e.To, e.Verdict, e.Rule)
	}
	return b.String()
}

func TestCompile(t *testing.T) {
	known := map[string][]netip.Addr{
		"web.example.": {netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::1")}, "none.example.": {},
		"many.example.": {netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("198.51.100.9")},
	}
	addresses := func(name string) ([]netip.Addr, bool) {
		addrs, has := known[name]
		return addrs, has
	}
	for name, c := range map[string]struct {
		rules []string
		want  string
	}{
		"no rule":                        {nil, "0.0.0.0/0 Allow -1\n"},
		"deny all":                       {[]string{"Deny 0.0.0.0/0"}, "0.0.0.0/0 Deny 0\n"},
		"all, as some wrote it":          {[]string{"Deny 0.0.0.0/32"}, "0.0.0.0/0 Deny 0\n"},
		"the first decides":              {[]string{"Allow 192.0.2.0/24", "Deny 192.0.2.0/24"}, "192.0.2.0/24 Allow 0\n0.0.0.0/0 Allow -1\n"},
		"a hidden rule":                  {[]string{"Deny 192.0.2.0/24", "Allow 192.0.2.7/32", "Deny 0.0.0.0/0"}, "192.0.2.0/24 Deny 0\n0.0.0.0/0 Deny 2\n"},
		"an exception":                   {[]string{"Allow 192.0.2.7/32", "Deny 192.0.2.0/24"}, "192.0.2.7/32 Allow 0\n192.0.2.0/24 Deny 1\n0.0.0.0/0 Allow -1\n"},
		"a name, and its IPv6 address":   {[]string{"Allow web.example", "Deny 0.0.0.0/0"}, "192.0.2.7/32 Allow 0\n0.0.0.0/0 Deny 1\n"},
		"all addresses of a name":        {[]string{"Deny many.example"}, "198.51.100.1/32 Deny 0\n198.51.100.2/32 Deny 0\n198.51.100.9/32 Deny 0\n0.0.0.0/0 Allow -1\n"},
		"a name hidden by a range":       {[]string{"Deny 192.0.2.0/24", "Allow web.example"}, "192.0.2.0/24 Deny 0\n0.0.0.0/0 Allow -1\n"},
		"names are read in lower case":   {[]string{"Deny WEB.Example."}, "192.0.2.7/32 Deny 0\n0.0.0.0/0 Allow -1\n"},
		"a name without addresses":       {[]string{"Deny none.example", "Allow none.example"}, "0.0.0.0/0 Allow -1\n"},
		"an unknown name that is denied": {[]string{"Allow 10.0.0.0/8", "Deny pending.example", "Allow 192.0.2.0/24"}, "10.0.0.0/8 Allow 0\n0.0.0.0/0 Deny 1\n"},
		"an unknown name, allowed":       {[]string{"Allow pending.example", "Deny 192.0.2.0/24"}, "192.0.2.0/24 Deny 1\n0.0.0.0/0 Allow -1\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := text(egressfirewall.Compile(rules(t, c.rules...), addresses)); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}

// Two firewalls differ only in the ranges that a change is about, wherever in the list a rule is added.
func TestChangesAreSmall(t *testing.T) {
	var list []string
	for i := range 200 {
		list = append(list, fmt.Sprintf("Allow 10.%d.0.0/16", i))
	}
	list = append(list, "Deny 0.0.0.0/0")
	before := egressfirewall.Compile(rules(t, list...), nil)
	for _, at := range []int{0, 100, 200} {
		after := egressfirewall.Compile(rules(t, slices.Insert(slices.Clone(list), at, "Allow 192.0.2.7/32")...), nil)
		was := map[netip.Prefix]egressfirewall.Verdict{}
		for _, e := range before.Entries {
			was[e.To] = e.Verdict
		}
		differ := 0
		for _, e := range after.Entries {
			if verdict, had := was[e.To]; !had || verdict != e.Verdict {
				differ++
			}
		}
		if differ != 1 || len(after.Entries) != len(before.Entries)+1 {
			t.Errorf("a rule at %d: %d ranges differ, of %d", at, differ, len(after.Entries))
		}
	}
}

// A range with bits set to the right of its prefix is read as its network, with a warning, as OpenShift SDN did.
func TestRangesThatAreNotCanonical(t *testing.T) {
	policy := &networkv1.EgressNetworkPolicy{}
	for _, text := range []string{"198.51.100.7/24", "192.0.2.0/24", "0.0.0.0/32", "198.51.100.7/32"} {
		policy.Spec.Egress = append(policy.Spec.Egress, networkv1.EgressNetworkPolicyRule{Type: "Deny", To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: text}})
	}
	parsed := egressfirewall.FromObject(policy)
	var ranges []string
	for _, rule := range parsed.Rules {
		ranges = append(ranges, rule.CIDR.String())
	}
	if got := strings.Join(ranges, " "); parsed.Err != nil || got != "198.51.100.0/24 192.0.2.0/24 0.0.0.0/0 198.51.100.7/32" {
		t.Errorf("its ranges are %s (%v)", got, parsed.Err)
	}
	const want = "spec.egress[0].to.cidrSelector: 198.51.100.7/24 has bits set right of the prefix, and is taken as 198.51.100.0/24"
	if len(parsed.Warnings) != 1 || parsed.Warnings[0] != want {
		t.Errorf("the warnings are %q, want %q", parsed.Warnings, want)
	}
}

func TestWrongObjects(t *testing.T) {
	rule := func(kind, cidr, name string) networkv1.EgressNetworkPolicyRule {
		return networkv1.EgressNetworkPolicyRule{Type: networkv1.EgressNetworkPolicyRuleType(kind), To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: cidr, DNSName: name}}
	}
	for words, bad := range map[string]networkv1.EgressNetworkPolicyRule{
		`spec.egress[1].type: "AllowX": it is Allow or Deny`:                                                               rule("AllowX", "0.0.0.0/0", ""),
		"spec.egress[1].to: exactly one of cidrSelector and dnsName":                                                       rule("Allow", "", ""),
		"spec.egress[1].to: exactly one":                                                                                   rule("Allow", "0.0.0.0/0", "a.example"),
		`spec.egress[1].to.cidrSelector: "2001:db8::/32" is not an IPv4 range`:                                             rule("Allow", "2001:db8::/32", ""),
		`spec.egress[1].to.dnsName: "*.example": letters, digits, hyphens and dots are possible, and no wildcards`:         rule("Allow", "", "*.example"),
		`spec.egress[1].to.dnsName: "192.0.2.7" is an address: write cidrSelector: 192.0.2.7/32`:                           rule("Deny", "", "192.0.2.7"),
		`spec.egress[1].to.dnsName: "a..example": the parts between dots have 1 to 63 characters`:                          rule("Deny", "", "a..example"),
		"spec.egress[1].to.dnsName: \"" + strings.Repeat("a", 40) + "\": a name has 1 to 253 characters":                   rule("Deny", "", strings.Repeat("a", 300)),
		"spec.egress[1].to.dnsName: \"" + strings.Repeat("a", 64) + ".example\": the parts between dots have 1 to 63 char": rule("Deny", "", strings.Repeat("a", 64)+".example"),
	} {
		policy := &networkv1.EgressNetworkPolicy{}
		policy.Spec.Egress = []networkv1.EgressNetworkPolicyRule{rule("Allow", "192.0.2.0/24", ""), bad}
		parsed := egressfirewall.FromObject(policy)
		if parsed.Err == nil || !strings.Contains(parsed.Err.Error(), words) || len(parsed.Rules) > 0 {
			t.Errorf("%q: %v", words, parsed.Err)
		}
	}
	policy := &networkv1.EgressNetworkPolicy{}
	policy.Spec.Egress = make([]networkv1.EgressNetworkPolicyRule, egressfirewall.MaxRules+1)
	if parsed := egressfirewall.FromObject(policy); parsed.Err == nil || !strings.Contains(parsed.Err.Error(), "spec.egress: 8001 rules") {
		t.Errorf("too many rules: %v", parsed.Err)
	}
	policy.Spec.Egress = policy.Spec.Egress[:100]
	if parsed := egressfirewall.FromObject(policy); parsed.Err == nil || !strings.Contains(parsed.Err.Error(), "and 95 more") {
		t.Errorf("many errors: %v", parsed.Err)
	}
}

// A name may have so many addresses that no switch has room for them. Then none is left out: everything is closed.
func TestTooManyAddresses(t *testing.T) {
	addrs := make([]netip.Addr, 0, egressfirewall.MaxEntries+1)
	for addr := netip.MustParseAddr("10.0.0.0"); len(addrs) <= egressfirewall.MaxEntries; addr = addr.Next() {
		addrs = append(addrs, addr)
	}
	f := egressfirewall.Compile(rules(t, "Deny big.example"), func(string) ([]netip.Addr, bool) { return addrs, true })
	if !f.TooLarge || !strings.Contains(f.Closed, "spec.egress[0] (big.example.)") || f.Verdict(netip.MustParseAddr("1.1.1.1")) != egressfirewall.Deny {
		t.Errorf("%q, %d entries", f.Closed, len(f.Entries))
	}
}

// Names are returned only for the given namespaces, without duplicates.
func TestNames(t *testing.T) {
	x := egressfirewall.NewIndex()
	for _, p := range []struct{ namespace, name, rule string }{{"a", "one", "Allow web.example"}, {"b", "one", "Deny Web.Example."}, {"c", "one", "Deny other.example"}} {
		x.SetPolicy(egressfirewall.Policy{Key: egressfirewall.Key{Namespace: p.namespace, Name: p.name}, Rules: rules(t, p.rule)})
	}
	if got := x.Names(map[string]struct{}{"a": {}, "b": {}, "none": {}}); !slices.Equal(got, []string{"web.example."}) {
		t.Errorf("names: %v", got)
	}
	many := egressfirewall.NewIndex()
	for _, p := range []struct{ namespace, names string }{{"a", "a1 a2 a3 both"}, {"b", "b1 both"}, {"c", "c1"}, {"d", "d1"}} {
		var list []string
		for name := range strings.FieldsSeq(p.names) {
			list = append(list, "Allow "+name+".example")
		}
		many.SetPolicy(egressfirewall.Policy{Key: egressfirewall.Key{Namespace: p.namespace, Name: "one"}, Rules: rules(t, list...)})
	}
	want := "a1.example. b1.example. c1.example. a2.example. both.example. a3.example."
	if got := strings.Join(many.Names(map[string]struct{}{"a": {}, "b": {}, "c": {}}), " "); got != want {
		t.Errorf("in turn: %s, want %s", got, want)
	}
	if got := fmt.Sprint(x.Users("web.example.")); got != "[a/one b/one]" {
		t.Errorf("users: %v", got)
	}
	x.DeletePolicy(egressfirewall.Key{Namespace: "a", Name: "one"})
	x.DeletePolicy(egressfirewall.Key{Namespace: "a", Name: "one"})
	if got := fmt.Sprint(x.Users("web.example.")); got != "[b/one]" {
		t.Errorf("users: %v", got)
	}
}

func FuzzParseName(f *testing.F) {
	for _, seed := range append(append([]string{"", ".", "a", "192.0.2.1", "a..b", strings.Repeat("a.", 130)}, names...), badNames...) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		name, err := egressfirewall.ParseName(in)
		if err != nil {
			return
		}
		if again, err := egressfirewall.ParseName(name); err != nil || again != name {
			t.Errorf("%q is read as %q, and that as %q, %v", in, name, again, err)
		}
		if len(name) > 254 || !strings.HasSuffix(name, ".") || strings.ToLower(name) != name {
			t.Errorf("%q is read as %q", in, name)
		}
	})
}
