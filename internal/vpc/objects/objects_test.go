package objects

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
)

// goodMatches returns matches that are allowed, with the number of flows that ovn-controller makes of them at most.
func goodMatches() map[string]int {
	return map[string]int{
		"1": 1, "0": 0, "((ip4))": 1, "ip": 2, "tcp": 2, "icmp": 2, "ip4 || arp": 2, "nd": 2, "!(1)": 0,
		"ip4.src == 10.0.1.0/24":                    1,
		"ip4.src == 0.0.0.0/0":                      1,
		"ip4.src != 0.0.0.0/0":                      0,
		"ip4.src == 10.0.1.5 && tcp.dst == 80":      1,
		"ip4.src == {10.0.1.0/24, 10.0.2.5} && udp": 2,
		"(ip4 && tcp) || (udp.dst == {53, 5353})":   5,
		"tcp.flags == 0x2/0x12":                     2,
		"tcp.flags == 0/0x12":                       2,
		"tcp.flags == 2/18":                         2,
		"tcp.flags != 0x2/0x12":                     4,
		"!(ip4.dst != 10.0.0.0/8)":                  1,
		`inport == "net1/10.0.1.5"`:                 1,
		`!(inport != {"a/1", "b/1"})`:               2,
		"eth.src == 0a:58:0a:00:01:05":              1,
		"ip6.src == fd00::/64":                      1,
		"!ct.est && ct.new":                         1,
		"!(ip.proto != 6)":                          2,
		"!(ip.proto != {6, 17} || ct.est)":          4,
		"ip.ttl == {1, 2}":                          4,
		"tcp.dst < 1024":                            2,
		"!(tcp.dst < 1024)":                         32,
		"tcp.dst >= 0":                              2,
		"tcp.dst < 0":                               0,
		"1 && (tcp.src > 1023 && tcp.src <= 5000)":  72,
		"vlan.vid == 7 && vlan.pcp != 0":            3,
		"!vlan.present && !eth.mcast && !eth.bcast": 48,
		"eth.type == {0, 1, 0x5ff, 0x600, 0x8035, 0x8100, 0x88a8, 0x8847, 0x894f}": 9,
		"ip.later_frag && udp":            2,
		"tcp.dst == 80 && !ip.later_frag": 257,
		"ip4 && !ip.is_frag":              257,
		"tcp && !ip4.mcast":               42,
		"ip6 && !ip6.mcast":               40,
		"ip.first_frag":                   257,
		"ip4.src == {10.0.0.1, 10.0.0.2} && ip.ttl == 1 && tcp.dst == {80, 443, 8080}":                    6,
		"ip4.dst != {10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16} && ip4.src == 10.1.0.0/16":                1536,
		"(tcp.src != 1 || tcp.dst != 1) && (tcp.src != 2 || tcp.dst != 2)":                                1156,
		"ip4.dst == 10.0.0.1 && (tcp.dst == {80, 443} || udp.dst == 53 || icmp4)":                         4,
		"(ip4.src == 10.0.0.1 || ip4.dst == 10.0.0.1) && (tcp.dst == 80 || udp.dst == 53 || arp.op == 1)": 6,
	}
}

func TestCheckMatch(t *testing.T) {
	for good, want := range goodMatches() {
		if err := CheckMatch(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
		if got := flowsOf(t, good); got != want {
			t.Errorf("%q: %d flows, want %d", good, got, want)
		}
	}
	for bad, want := range badMatches() {
		if err := CheckMatch(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", bad, err, want)
		}
	}
}

// flowsOf returns the number by which a match is held to maxFlows.
func flowsOf(t *testing.T, text string) int {
	t.Helper()
	tokens, err := lex(text)
	if err != nil {
		t.Fatal(err)
	}
	e, err := (&parser{tokens: tokens}).expression(0)
	if err != nil {
		t.Fatal(err)
	}
	return e.size()
}

// badMatches returns matches that are refused, with words of the error.
func badMatches() map[string]string {
	bad := map[string]string{
		"":                                "empty",
		" ":                               "empty",
		"ip4)":                            "not expected",
		"ip4) || (1":                      "not expected",
		"(ip4":                            "not closed",
		"ip4 && tcp || udp":               "parentheses",
		"ip4.src == 10.0.1.5/24":          "not a value",
		"ip4.src == 10.0.1.300":           "not a value",
		"ip4.src == fd00::1":              "not a value",
		"ip4.src < 10.0.0.0":              "== and !=",
		"tcp.dst == 65536":                "not a value",
		"tcp.dst == 080":                  "not a value",
		"tcp.dst == {80":                  "separated by commas",
		"tcp.dst == {}":                   "not a value",
		"tcp.dst < {80}":                  "a set can be compared",
		"tcp.flags == 0x3/0x1":            "not a value",
		"tcp.dst":                         "needs a comparison",
		"tcp.dst ! 5":                     "needs a comparison",
		"reg0 == 1":                       "not a field",
		"ip4.src == $as":                  "not expected",
		"inport == @pg":                   "not expected",
		`is_chassis_resident("x")`:        "not a field",
		`inport == "a\"`:                  "not a value",
		`inport == "a`:                    "not a value",
		"ip4\nip6":                        "not allowed",
		"ip4; drop":                       "not expected",
		"! 1":                             "! needs",
		"!ip4.src == 10.0.0.1":            "! needs",
		"!!ct.est":                        "! needs",
		"ip4 &&":                          "ends",
		strings.Repeat("(", 50) + "1":     "deep",
		strings.Repeat("ip4 ", 2000):      "at most",
		"ip4.src == ::ffff:10.0.0.0/8":    "not a value",
		"ip.proto == 6/0xff":              "takes no mask",
		"eth.type == 0x800/0xff00":        "takes no mask",
		"!ip.is_frag":                     "ip4 && !ip.is_frag",
		"ip.later_frag && tcp.dst == 80":  "have no ports",
		"udp.src == 53 && !ip.first_frag": "have no ports",
		"ct.new && !(ip4.mcast)":          "ip4 && !ip4.mcast",
		"(ip4 || ct.new) && !ip6.mcast":   "ip4 && !ip6.mcast",
		"(tcp.src != 1 || tcp.dst != 1) && (tcp.src != 2 || tcp.dst != 2) && (tcp.src != 3 || tcp.dst != 3)": "flows of it, at most 2048",
		"tcp.dst != {22, 80, 443}": "8192 flows of it, at most 2048",
		"ip4.src != {10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5, 10.0.0.6, 10.0.0.7}":            "more than 1000000000 flows",
		"eth.src != 0a:58:0a:00:01:05 && eth.dst != 0a:58:0a:00:01:05 && eth.src != 0a:58:0a:00:01:06": "2353 flows",
		`ip4 && !ip.is_frag && !ip.later_frag`:                                                         "flows of it",
	}
	maps.Copy(bad, refusedByOVN())
	return bad
}

// refusedByOVN returns matches that OVN's parser refuses by the levels of fields and the formats of masks, with words of the error.
func refusedByOVN() map[string]string {
	return map[string]string{
		"!tcp":                           "tcp cannot be negated",
		"!ip4":                           "ip4 cannot be negated",
		"ip4.src == 10.0.0.1 && !nd":     "nd cannot be negated",
		"!(udp)":                         "udp cannot be negated",
		"!(ip4.src == 10.0.0.1 || icmp)": "icmp cannot be negated",
		"ip.proto != 6":                  "ip.proto == {",
		"ip.proto != {6, 17}":            "equality only",
		"!(ip.proto == 6)":               "equality only",
		"!(ct.new && !(ip.proto != 6))":  "equality only",
		`inport != "x/1"`:                "equality only",
		`!(outport == {"x", "y"})`:       "equality only",
		"icmp4.type != 8":                "equality only",
		"ip.ttl < 5":                     "no order",
		"!(ip.ttl >= 5)":                 "no order",
		"icmp6.code > 1":                 "no order",
		"eth.type >= 0x800":              "no order",
		"tcp.dst < 0x50/0xff":            "a mask",
		"tcp.flags == 2/0x2":             "both in hexadecimal",
		"tcp.flags == 0x2/2":             "both in hexadecimal",
		"tcp.flags == {0x2, 0x0/2}":      "both in hexadecimal",
	}
}

// symbols returns all names that matches may use.
func symbols() []string {
	return []string{
		"ip", "ip4", "ip6", "icmp", "icmp4", "icmp6", "tcp", "udp", "sctp", "arp", "nd", "nd_ns", "nd_na", "igmp", "eth.bcast", "eth.mcast",
		"ip4.mcast", "ip6.mcast", "ip.is_frag", "ip.later_frag", "ip.first_frag", "vlan.present", "ct.trk", "ct.new", "ct.est", "ct.rel",
		"ct.rpl", "ct.inv", "inport", "outport", "eth.src", "eth.dst", "eth.type", "vlan.vid", "vlan.pcp", "ip4.src", "ip4.dst", "ip6.src",
		"ip6.dst", "ip.proto", "ip.ttl", "ip.dscp", "ip.ecn", "arp.op", "arp.spa", "arp.tpa", "arp.sha", "arp.tha", "icmp4.type",
		"icmp4.code", "icmp6.type", "icmp6.code", "nd.target", "nd.sll", "nd.tll", "tcp.src", "tcp.dst", "tcp.flags", "udp.src", "udp.dst",
		"sctp.src", "sctp.dst",
	}
}

// docs/vpc.md lists every name that matches may use, in a row that tells its operators.
func TestMatchesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/vpc.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := strings.Cut(string(text), "\n## Matches\n")
	page, _, _ = strings.Cut(page, "\n## ")
	var listed []string
	for line := range strings.Lines(page) {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		for i, name := range strings.Split(cells[0], "`") {
			if i%2 == 0 {
				continue
			}
			s, ok := symbolOf(name)
			if only := strings.Contains(cells[1], "only") || strings.Contains(cells[1], "no `!`"); !ok || only != s.nominal {
				t.Errorf("%s: a symbol: %v, nominal: %v; the page says %s", name, ok, s.nominal, cells[1])
			}
			listed = append(listed, name)
		}
	}
	slices.Sort(listed)
	if want := slices.Sorted(slices.Values(symbols())); !slices.Equal(listed, want) {
		t.Errorf("the page lists\n%v, want\n%v", listed, want)
	}
}

func FuzzCheckMatch(f *testing.F) {
	f.Add(`ip4.src == {10.0.1.0/24, 10.0.2.5} && (tcp.dst == 80 || inport == "net1/10.0.1.5")`)
	f.Fuzz(func(t *testing.T, text string) {
		if CheckMatch(text) != nil {
			return
		}
		// northd puts the text of an ACL between parentheses: an accepted match must have balanced parentheses.
		if err := CheckMatch("(" + text + ") && ip4"); err != nil && len(text) < maxMatch-8 && !strings.Contains(err.Error(), "deep") {
			t.Errorf("%q is accepted alone, and not in parentheses: %v", text, err)
		}
	})
}

func TestParseVPC(t *testing.T) {
	vpc := &kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "u"}, Spec: kubeovn.VpcSpec{
		EnableBfd: true,
		StaticRoutes: []kubeovn.StaticRoute{
			{CIDR: "0.0.0.0/0", NextHopIP: "10.0.1.254"},
			{CIDR: "10.0.9.7", NextHopIP: "10.0.1.3", Policy: "policySrc"},
			{CIDR: "10.0.9.7/33", NextHopIP: "10.0.1.3"},
			{CIDR: "10.0.0.0/8", NextHopIP: "gateway\n\x00"},
			{CIDR: "fd00::/64", NextHopIP: "10.0.1.3", RouteTable: "a b"},
		},
		PolicyRoutes: []kubeovn.PolicyRoute{
			{Priority: 10, Match: "ip4", Action: "reroute", NextHopIP: "10.0.1.3, 10.0.1.4"},
			{Priority: 20, Match: "ip4) || (1", Action: "allow"},
			{Priority: 40000, Match: "ip4", Action: "drop"},
			{Priority: 30, Match: "ip4", Action: "reroute"},
		},
		VpcPeerings: []kubeovn.VpcPeering{
			{RemoteVpc: "v", LocalConnectIP: "169.254.0.1/30"},
			{RemoteVpc: "w", LocalConnectIP: "169.254.0.0/30"},
			{RemoteVpc: "x", LocalConnectIP: "169.254.0.1/30"},
			{RemoteVpc: "x", LocalConnectIP: "169.254.1.1/30"},
		},
	}}
	got, problems := ParseVPC(vpc)
	if len(got.Routes) != 2 || !got.Routes[1].Source || got.Routes[1].Prefix.String() != "10.0.9.7/32" {
		t.Errorf("routes: %+v", got.Routes)
	}
	if len(got.Policies) != 4 || len(got.Policies[0].NextHops) != 2 {
		t.Fatalf("policies: %+v", got.Policies)
	}
	for i, priority := range map[int]int{1: 20, 2: maxPolicyPriority, 3: 30} {
		if p := got.Policies[i]; p.Action != Drop || p.Match != matchAll || p.Priority != priority {
			t.Errorf("invalid policy %d does not drop: %+v", i, p)
		}
	}
	if len(got.Peerings) != 1 || got.Peerings[0].Remote != "x" {
		t.Errorf("peerings: %+v", got.Peerings)
	}
	if len(got.Unsupported) != 1 || got.Unsupported[0] != "spec.enableBfd" {
		t.Errorf("unsupported: %v", got.Unsupported)
	}
	for _, want := range []string{
		"spec.staticRoutes[2].cidr", `spec.staticRoutes[3].nextHopIP: "gateway\n\x00"`, "spec.staticRoutes[4].cidr", "spec.staticRoutes[4].routeTable",
		"spec.policyRoutes[1].match", "spec.policyRoutes[2].priority", "spec.policyRoutes[3].nextHopIP",
		"spec.vpcPeerings[0].remoteVpc", "spec.vpcPeerings[1].localConnectIP",
	} {
		if !strings.Contains(problems.Error(), want) {
			t.Errorf("no problem with %s in: %s", want, problems.Error())
		}
	}
	if last := problems[len(problems)-1]; last.Field != "spec.vpcPeerings[3].remoteVpc" {
		t.Errorf("last problem: %v", last)
	}
}

func TestParseSubnet(t *testing.T) {
	base := kubeovn.SubnetSpec{Vpc: "v", CIDRBlock: "10.0.1.0/24"}
	for name, test := range map[string]struct {
		change func(*kubeovn.SubnetSpec)
		want   string // part of the problems; empty: none
		ok     bool
	}{
		"plain":                {func(*kubeovn.SubnetSpec) {}, "", true},
		"host bits":            {func(s *kubeovn.SubnetSpec) { s.CIDRBlock = "10.0.1.77/24" }, "", true},
		"default VPC":          {func(s *kubeovn.SubnetSpec) { s.Vpc = "" }, "name a Vpc", false},
		"ovn-cluster":          {func(s *kubeovn.SubnetSpec) { s.Vpc = "ovn-cluster" }, "pods without a Subnet are on the overlay", false},
		"gateway outside":      {func(s *kubeovn.SubnetSpec) { s.Gateway = "10.0.2.1" }, "spec.gateway: 10.0.2.1 is no address for a host in 10.0.1.0/24", false},
		"gateway is broadcast": {func(s *kubeovn.SubnetSpec) { s.Gateway = "10.0.1.255" }, "spec.gateway", false},
		"loopback":             {func(s *kubeovn.SubnetSpec) { s.CIDRBlock = "127.0.0.0/24" }, "spec.cidrBlock", false},
		"too long":             {func(s *kubeovn.SubnetSpec) { s.CIDRBlock = "10.0.0.0/31" }, "/30", false},
		"IPv6":                 {func(s *kubeovn.SubnetSpec) { s.CIDRBlock = "fd00::/64" }, "spec.cidrBlock", false},
		"two families":         {func(s *kubeovn.SubnetSpec) { s.CIDRBlock, s.Gateway = "fd00::/64,10.0.1.0/24", "fd00::1,10.0.1.2" }, "", true},
		"ranges of two families": {func(s *kubeovn.SubnetSpec) {
			s.CIDRBlock, s.ExcludeIps = "10.0.1.0/24,fd00::/64", []string{"fd00::1..fd00::9", "10.0.1.9"}
			s.Private, s.AllowSubnets = true, []string{"10.0.2.0/24", "fd00:2::/64"}
		}, "", true},
		"allowed range of IPv6": {func(s *kubeovn.SubnetSpec) { s.AllowSubnets = []string{"fd00:2::/64"} }, "spec.allowSubnets[0]", true},
		"reversed exclude":      {func(s *kubeovn.SubnetSpec) { s.ExcludeIps = []string{"10.0.1.9..10.0.1.2"} }, "spec.excludeIps[0]", true},
		"exclude of a name":     {func(s *kubeovn.SubnetSpec) { s.ExcludeIps = []string{"10.0.1.9", "x..y"} }, "spec.excludeIps[1]", true},
		"table":                 {func(s *kubeovn.SubnetSpec) { s.RouteTable = `a" || 1` }, "spec.routeTable", true},
		"small MTU":             {func(s *kubeovn.SubnetSpec) { s.Mtu = 68 }, "spec.mtu", true},
		"external":              {func(s *kubeovn.SubnetSpec) { s.Provider, s.Vpc = "ext.kube-system", "" }, "", true},
		"hostile ACL": {func(s *kubeovn.SubnetSpec) {
			s.Acls = []kubeovn.ACL{{Direction: "to-lport", Priority: 7, Match: "1) || (1", Action: "drop"}}
		}, "spec.acls[0].match", true},
	} {
		t.Run(name, func(t *testing.T) {
			spec := base
			test.change(&spec)
			got, problems, ok := ParseSubnet(&kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: spec})
			if ok != test.ok || (len(problems) > 0) != (test.want != "") || !strings.Contains(problems.Error(), test.want) {
				t.Errorf("ok %v, problems %q", ok, problems.Error())
			}
			if ok && got.Prefix.String() != "10.0.1.0/24" {
				t.Errorf("prefix %s", got.Prefix)
			}
			for _, acl := range got.ACLs {
				if acl.Match != matchAll || acl.Action != "drop" || acl.Priority != 7 || !acl.Ingress {
					t.Errorf("hostile rule: %+v", acl)
				}
			}
		})
	}
}

// An excluded address that cannot be read may be any: all are excluded then. An invalid name of a route table means a table without routes, and
// not the main one. Both stop new addresses.
func TestStoppedSubnet(t *testing.T) {
	parse := func(excludes []string, table string) Subnet {
		s, _, ok := ParseSubnet(&kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovn.SubnetSpec{
			Vpc: "v", CIDRBlock: "10.0.1.0/24", ExcludeIps: excludes, RouteTable: table,
		}})
		if !ok {
			t.Errorf("excludes %q, route table %q: cannot be used", excludes, table)
		}
		return s
	}
	if s := parse([]string{"10.0.1.9", "fd00::1"}, "blue"); s.Stopped != "" || s.RouteTable != "blue" || len(s.Excludes) != 1 {
		t.Errorf("without a mistake: %+v", s)
	}
	if s := parse([]string{"10.0.1.9", "10.0.1.8..10.0.1.7"}, ""); !strings.Contains(s.Stopped, "spec.excludeIps[1]") || s.RouteTable != "" ||
		len(s.Excludes) != 1 || s.Excludes[0].String() != "10.0.1.0-10.0.1.255" {
		t.Errorf("reversed exclude: %+v", s)
	}
	for _, table := range []string{"global", "a b"} {
		if s := parse(nil, table); !strings.Contains(s.Stopped, "spec.routeTable") || validTable(s.RouteTable) || s.RouteTable == "global" {
			t.Errorf("route table %q: %+v", table, s)
		}
	}
}

// An empty list of selectors permits every namespace, so an invalid selector stays in it, and a Subnet that cannot be used keeps its own.
// A Subnet whose name is an address is refused: its router's port in Vpc net1 would have the name of a logical port of Subnet net1.
func TestSubnetNamedAsAddress(t *testing.T) {
	object := &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "10.0.1.5"}, Spec: kubeovn.SubnetSpec{Vpc: "net1", CIDRBlock: "10.9.0.0/24"}}
	if _, problems, ok := ParseSubnet(object); ok || !strings.Contains(problems.Error(), "metadata.name: 10.0.1.5 is an IP address") {
		t.Errorf("ok %v, problems %q", ok, problems.Error())
	}
	object.Spec.Vpc, object.Spec.Provider = "", "ext.kube-system" // has no ports in OVN
	if _, problems, ok := ParseSubnet(object); !ok || len(problems) > 0 {
		t.Errorf("an external one: ok %v, problems %q", ok, problems.Error())
	}
}

func TestSelectorsOfBadSubnets(t *testing.T) {
	team := metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}
	for name, test := range map[string]struct {
		change  func(*kubeovn.SubnetSpec)
		problem string
		selects []string // teams
	}{
		"invalid value": {func(s *kubeovn.SubnetSpec) { s.NamespaceSelectors[0].MatchLabels["team"] = "Team A" }, "spec.namespaceSelectors[0]", nil},
		"invalid operator": {func(s *kubeovn.SubnetSpec) {
			in := metav1.LabelSelectorRequirement{Key: "team", Operator: "in", Values: []string{"a"}}
			s.NamespaceSelectors[0] = metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in}}
		}, "spec.namespaceSelectors[0]", nil},
		"without a Vpc": {func(s *kubeovn.SubnetSpec) { s.Vpc = "" }, "spec.vpc", []string{"a"}},
		"range":         {func(s *kubeovn.SubnetSpec) { s.CIDRBlock = "10.0.0.0/31" }, "spec.cidrBlock", []string{"a"}},
		"exclude":       {func(s *kubeovn.SubnetSpec) { s.ExcludeIps = []string{"x"} }, "spec.excludeIps[0]", []string{"a"}},
		"route table":   {func(s *kubeovn.SubnetSpec) { s.RouteTable = "a b" }, "spec.routeTable", []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := kubeovn.SubnetSpec{Vpc: "v", CIDRBlock: "10.0.1.0/24", NamespaceSelectors: []metav1.LabelSelector{*team.DeepCopy()}}
			test.change(&spec)
			got, problems, _ := ParseSubnet(&kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: spec})
			if !strings.Contains(problems.Error(), test.problem) {
				t.Errorf("problems %q, want one of %s", problems.Error(), test.problem)
			}
			if len(got.Selectors) != 1 {
				t.Fatalf("%d selectors, want 1", len(got.Selectors))
			}
			var selects []string
			for _, team := range []string{"", "a", "b", "Team A"} {
				if got.Selectors[0].Matches(labels.Set{"team": team}) {
					selects = append(selects, team)
				}
			}
			if !slices.Equal(selects, test.selects) {
				t.Errorf("selects %q, want %q", selects, test.selects)
			}
		})
	}
}

// Selectors, ports and protocols of gateways and rules are read as users write them: with any spaces, and in any case.
func TestSpellings(t *testing.T) {
	gateway := &kubeovn.VpcNatGateway{ObjectMeta: metav1.ObjectMeta{Name: "gw1"}, Spec: kubeovn.VpcNatGatewaySpec{
		Vpc: "v", Subnet: "s", LanIP: " 10.0.1.254 ", Selector: []string{"kubernetes.io/hostname: node1", "zone:a", " disk : ssd ", "empty:"},
	}}
	g, problems, ok := ParseGateway(gateway)
	want := map[string]string{"kubernetes.io/hostname": "node1", "zone": "a", "disk": "ssd", "empty": ""}
	if !ok || len(problems) > 0 || !maps.Equal(g.Selector, want) || g.LanIP.String() != "10.0.1.254" {
		t.Errorf("selector %v, lanIp %s, want %v; %v", g.Selector, g.LanIP, want, problems)
	}
	for text, want := range map[string]string{"": "tcp", "TCP": "tcp", " Udp ": "udp", "sctp": ""} {
		r, problems := ParseDNAT(&kubeovn.IptablesDnatRule{Spec: kubeovn.IptablesDnatRuleSpec{
			EIP: "e", ExternalPort: " 8080", InternalPort: "80 ", InternalIP: "10.0.1.5", Protocol: text,
		}})
		switch {
		case want == "" && (len(problems) != 1 || problems[0].Field != "spec.protocol"):
			t.Errorf("protocol %q: %v", text, problems)
		case want != "" && (len(problems) > 0 || r.Protocol != want || r.Port != 8080 || r.Internal.String() != "10.0.1.5:80"):
			t.Errorf("protocol %q: %+v, %v", text, r, problems)
		}
	}
}

// A rule that names a port that cannot exist is reported, and has no effect, as OVN has it: it closes nothing else.
func TestPortsOfMatches(t *testing.T) {
	for match, why := range map[string]string{
		`inport == "net1/10.0.1.5" && ip4`: "", "ip4": "", `ip4 && outport == {"net1/10.0.1.5", "web.shop"}`: `no logical port "web.shop"`,
	} {
		subnet := &kubeovn.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: kubeovn.SubnetSpec{
			Vpc: "v", CIDRBlock: "10.0.1.0/24", Acls: []kubeovn.ACL{{Direction: "to-lport", Priority: 100, Match: match, Action: "allow"}},
		}}
		s, problems, ok := ParseSubnet(subnet)
		text := ""
		if len(problems) > 0 {
			text = problems.Error()
		}
		if !ok || (text == "") != (why == "") || !strings.Contains(text, why) || s.ACLs[0].Match != match || s.ACLs[0].Action != "allow" {
			t.Errorf("%s: %q, %+v", match, text, s.ACLs)
		}
		v, problems := ParseVPC(&kubeovn.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovn.VpcSpec{
			PolicyRoutes: []kubeovn.PolicyRoute{{Priority: 100, Match: match, Action: "allow"}},
		}})
		if text = ""; len(problems) > 0 {
			text = problems.Error()
		}
		if (text == "") != (why == "") || !strings.Contains(text, why) || v.Policies[0].Match != match || v.Policies[0].Action != Allow {
			t.Errorf("%s: %q, %+v", match, text, v.Policies)
		}
	}
}
