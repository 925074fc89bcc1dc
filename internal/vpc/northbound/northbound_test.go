package northbound_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

func meta(kind, name string) objects.Meta {
	return objects.Meta{Kind: kind, Name: name, UID: "uid-" + name}
}

func subnet(name, vpc, prefix string) objects.Subnet {
	p := netip.MustParsePrefix(prefix)
	return objects.Subnet{Meta: meta("Subnet", name), VPC: vpc, Prefix: p, Gateway: p.Addr().Next()}
}

// cluster is the input from which a test's database is compiled.
type cluster struct {
	vpcs    []objects.VPC
	subnets []objects.Subnet
	ports   map[string][]string // addresses by subnet
	more    northbound.Rows     // additional rows
	// problems and shadowed are those of the last compilation, by VPC.
	problems map[string]objects.Problems
	shadowed map[string][]string
}

func (c *cluster) compile(t testing.TB) map[ovn.Key]ovn.Row {
	t.Helper()
	rows := map[ovn.Key]ovn.Row{}
	c.problems, c.shadowed = map[string]objects.Problems{}, map[string][]string{}
	add := func(more map[ovn.Key]ovn.Row) {
		for key, row := range more {
			if err := row.Validate(key); err != nil {
				t.Fatalf("%s: %v", row, err)
			}
			if other, twice := rows[key]; twice {
				t.Fatalf("two rows under %s: %s and %s", key, row, other)
			}
			rows[key] = row
		}
	}
	add(c.more)
	byName := map[string]objects.VPC{}
	for _, vpc := range c.vpcs {
		byName[vpc.Name] = vpc
	}
	for _, vpc := range c.vpcs {
		n := &northbound.Network{VPC: vpc, Remotes: byName}
		for _, s := range c.subnets {
			if s.VPC == vpc.Name {
				n.Subnets = append(n.Subnets, s)
			}
		}
		result := northbound.Router(n)
		add(result.Rows)
		c.problems[vpc.Name], c.shadowed[vpc.Name] = result.Problems, result.Shadowed
	}
	for i := range c.subnets {
		s := &c.subnets[i]
		add(northbound.Switch(s, byName[s.VPC].Meta))
		for _, addr := range c.ports[s.Name] {
			key, row := northbound.SwitchPort(s, northbound.Port{Addr: netip.MustParseAddr(addr)})
			add(map[ovn.Key]ovn.Row{key: row})
		}
	}
	return rows
}

func render(rows map[ovn.Key]ovn.Row) string {
	lines := make([]string, 0, len(rows))
	for key, row := range rows {
		lines = append(lines, fmt.Sprintf("%s %s", key, row))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

func golden(t *testing.T, name, have string) {
	t.Helper()
	file := "testdata/" + name + ".golden"
	goldentest.Compare(t, file, have)
}

func route(table, policy, prefix, hop string) objects.Route {
	return objects.Route{
		Field: prefix + "@" + table, Table: table, Source: policy == "src", Prefix: netip.MustParsePrefix(prefix), NextHop: netip.MustParseAddr(hop),
	}
}

func full() *cluster {
	s := subnet("s1", "vpc1", "10.0.1.0/24")
	s.Private, s.Allow, s.EastWest, s.TunnelKey = true, []netip.Prefix{netip.MustParsePrefix("10.0.2.0/24")}, true, 7
	s.ACLs = []objects.ACL{{Ingress: true, Priority: 5, Match: "tcp.dst == 80", Action: "drop"}, {Priority: 6, Match: "udp", Action: "allow"}}
	other := subnet("s2", "vpc1", "10.0.2.0/24")
	other.RouteTable = "blue"
	return &cluster{
		vpcs: []objects.VPC{
			{
				Meta: meta("Vpc", "vpc1"), TunnelKey: 3,
				Routes: []objects.Route{
					route("", "dst", "192.168.0.0/16", "10.0.1.254"), route("", "dst", "192.168.0.0/16", "10.0.1.253"),
					route("", "src", "10.0.1.0/24", "10.0.1.254"), route("", "src", "10.0.1.5/32", "10.0.1.253"),
					route("blue", "dst", "0.0.0.0/0", "10.0.2.254"), route("blue", "src", "10.0.2.0/24", "10.0.2.253"),
					route("", "dst", "172.16.0.0/12", "10.9.9.9"),
				},
				Policies: []objects.Policy{{Priority: 0, Match: "ip4.src == 10.0.1.7", Action: objects.Reroute, NextHops: []netip.Addr{
					netip.MustParseAddr("10.0.1.4"), netip.MustParseAddr("10.0.1.3"),
				}}},
				Peerings: []objects.Peering{{Remote: "vpc2", Local: netip.MustParsePrefix("169.254.0.1/30")}, {Remote: "none", Local: netip.MustParsePrefix("169.254.1.1/30")}},
			},
			{Meta: meta("Vpc", "vpc2"), Peerings: []objects.Peering{{Remote: "vpc1", Local: netip.MustParsePrefix("169.254.0.2/30")}}},
		},
		subnets: []objects.Subnet{s, other, subnet("s3", "vpc2", "10.0.1.0/24")},
		ports:   map[string][]string{"s1": {"10.0.1.5"}, "s3": {"10.0.1.5"}},
	}
}

func TestGolden(t *testing.T) {
	c := full()
	golden(t, "full", render(c.compile(t)))
	if got := c.problems["vpc1"].Error(); !strings.Contains(got, "10.9.9.9 is in no subnet") || !strings.Contains(got, `there is no Vpc "none"`) {
		t.Errorf("problems: %s", got)
	}
	if got := c.shadowed["vpc1"]; !slices.Equal(got, []string{"10.0.2.0/24@blue"}) {
		t.Errorf("shadowed: %v", got)
	}
}

// The same objects compile to the same rows, whatever the order of subnets, routes, peerings and rules.
func TestOrder(t *testing.T) {
	want := render(full().compile(t))
	rapid.Check(t, func(r *rapid.T) {
		c := full()
		c.subnets = rapid.Permutation(c.subnets).Draw(r, "subnets")
		for i := range c.vpcs {
			c.vpcs[i].Routes = rapid.Permutation(c.vpcs[i].Routes).Draw(r, "routes")
			c.vpcs[i].Peerings = rapid.Permutation(c.vpcs[i].Peerings).Draw(r, "peerings")
		}
		for i := range c.subnets {
			c.subnets[i].ACLs = rapid.Permutation(c.subnets[i].ACLs).Draw(r, "acls")
		}
		if have := render(c.compile(t)); have != want {
			r.Fatalf("another order gives other rows:\n%s", have)
		}
	})
}

// Combined names do not collide: a-b with c, and a with b-c.
func TestNamesDoNotCollide(t *testing.T) {
	c := &cluster{
		vpcs:    []objects.VPC{{Meta: meta("Vpc", "a-b")}, {Meta: meta("Vpc", "a")}},
		subnets: []objects.Subnet{subnet("c", "a-b", "10.0.0.0/24"), subnet("b-c", "a", "10.0.0.0/24")},
	}
	names := map[string]int{}
	for key, row := range c.compile(t) {
		names[string(key.Table)+" "+row.Text["name"]]++
	}
	for name, n := range maps.All(names) {
		if n != 1 {
			t.Errorf("%s: %d rows", name, n)
		}
	}
}

// A rule of a user, whatever its priority, decides before the rule that lets replies to an isolated pod pass, and after the one that isolates it.
func TestPrioritiesOfIsolation(t *testing.T) {
	s := subnet("s1", "v", "10.0.1.0/24")
	for _, priority := range []int{0, 1, 2, 1000, 32767} {
		s.ACLs = append(s.ACLs, objects.ACL{Priority: priority, Match: "ip4", Action: "drop"})
	}
	var tracked, isolated int
	for _, row := range northbound.Isolation(&s, netip.MustParseAddr("10.0.1.5"), northbound.Closed{Ingress: true}) {
		if row.Text["action"] == "drop" {
			isolated = row.Number["priority"]
		} else {
			tracked = row.Number["priority"]
		}
	}
	users := 0
	for key, row := range northbound.Switch(&s, meta("Vpc", "v")) {
		if key.Table != ovn.ACL {
			continue
		}
		users++
		if p := row.Number["priority"]; p <= tracked || p >= isolated {
			t.Errorf("a rule of priority %d; replies have %d, isolation %d", p, tracked, isolated)
		}
	}
	if users != len(s.ACLs) {
		t.Errorf("%d rules of users", users)
	}
}

// For each packet from a subnet, the routes by source have the same result as in Kube-OVN: a prefix known by destination first, else the
// longest prefix of the source, else no route.
func TestSourceRoutes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		c := &cluster{vpcs: []objects.VPC{{Meta: meta("Vpc", "v")}}, subnets: []objects.Subnet{subnet("s", "v", "10.0.0.0/28")}}
		address := rapid.Custom(func(r *rapid.T) netip.Addr {
			return netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(0, 63).Draw(r, "address"))})
		})
		var bySource, byDestination []objects.Route
		for range rapid.IntRange(1, 5).Draw(r, "routes") {
			prefix := netip.PrefixFrom(address.Draw(r, "prefix"), rapid.IntRange(26, 32).Draw(r, "bits")).Masked()
			policy := rapid.SampledFrom([]string{"src", "dst"}).Draw(r, "policy")
			hop := netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 14).Draw(r, "hop"))})
			next := route("", policy, prefix.String(), hop.String())
			if next.Source {
				bySource = append(bySource, next)
			} else {
				byDestination = append(byDestination, next)
			}
		}
		c.vpcs[0].Routes = append(slices.Clone(bySource), byDestination...)
		rows := c.compile(t)
		source, destination := address.Draw(r, "source"), address.Draw(r, "destination")
		want := "none"
		known := c.subnets[0].Prefix.Contains(destination) ||
			slices.ContainsFunc(byDestination, func(o objects.Route) bool { return o.Prefix.Contains(destination) })
		if len(bySource) > 0 && !known {
			want = expected(bySource, source)
		}
		if have := judge(rows, source, destination); have != want {
			r.Fatalf("%s to %s: %s, want %s\n%s", source, destination, have, want, render(rows))
		}
	})
}

// The text of the policies for routes by source is limited for a Vpc as a whole, whatever the number of its route tables. The tables that exceed
// the limit are reported with the number and the limit, and have no default route, so that their packets are dropped; a small table is served.
func TestManyRouteTables(t *testing.T) {
	const tables, limit = 20, 16 << 20
	v, subnets := objects.VPC{Meta: meta("Vpc", "v")}, []objects.Subnet{}
	for i := range tables {
		table := fmt.Sprintf("t%02d", i)
		s := subnet("s-"+table, "v", fmt.Sprintf("10.0.%d.0/24", i))
		s.RouteTable = table
		subnets = append(subnets, s)
		hop := fmt.Sprintf("10.0.%d.9", i)
		for j := range 200 {
			if i == tables-1 && j > 0 {
				break // the small table, which is the last one by its name
			}
			v.Routes = append(v.Routes, route(table, "src", fmt.Sprintf("172.16.%d.%d/32", j>>8, j&255), hop),
				route(table, "dst", fmt.Sprintf("172.%d.%d.0/28", 18+j>>8, j&255), hop))
		}
	}
	result := northbound.Router(&northbound.Network{VPC: v, Subnets: subnets})
	size, served := 0, map[string]bool{}
	for key, row := range result.Rows {
		switch {
		case key.Table == ovn.Policy:
			size += len(row.Text["match"])
		case key.Table == ovn.Route && row.Text["ip_prefix"] == "0.0.0.0/0":
			served[row.Text["route_table"]] = true
		}
	}
	if size > limit || size < limit/2 {
		t.Errorf("the policies have %d bytes, the limit is %d", size, limit)
	}
	if !served["t19"] || len(served) < 2 || len(served)+len(result.Problems) != tables {
		t.Errorf("served are %v; %d problems", served, len(result.Problems))
	}
	for _, problem := range result.Problems {
		_, table, _ := strings.Cut(problem.Field, "@")
		if served[table] || !strings.Contains(problem.Text, fmt.Sprintf("%q", table)) || !strings.Contains(problem.Text, fmt.Sprintf("a Vpc can have %d;", limit)) {
			t.Errorf("%s", problem)
		}
	}
}

// expected is the naive result: the next hops of the longest prefix, sorted, or a drop.
func expected(routes []objects.Route, source netip.Addr) string {
	best := -1
	var hops []string
	for _, o := range routes {
		switch {
		case !o.Prefix.Contains(source) || o.Prefix.Bits() < best:
			continue
		case o.Prefix.Bits() > best:
			best, hops = o.Prefix.Bits(), nil
		}
		if !slices.Contains(hops, o.NextHop.String()) {
			hops = append(hops, o.NextHop.String())
		}
	}
	if best < 0 {
		return "drop []"
	}
	slices.Sort(hops)
	return fmt.Sprintf("reroute %v", hops)
}

// judge applies the policies of priority 1 to a packet, and fails if two match.
func judge(rows map[ovn.Key]ovn.Row, source, destination netip.Addr) string {
	verdict := "none"
	for key, row := range rows {
		if key.Table != ovn.Policy || row.Number["priority"] != 1 {
			continue
		}
		in := func(field string, addr netip.Addr) bool {
			_, rest, _ := strings.Cut(row.Text["match"], field+" == {")
			set, _, _ := strings.Cut(rest, "}")
			return slices.ContainsFunc(strings.Split(set, ", "), func(p string) bool { return netip.MustParsePrefix(p).Contains(addr) })
		}
		if in("ip4.src", source) && in("ip4.dst", destination) {
			if verdict != "none" {
				return "two policies match"
			}
			verdict = fmt.Sprintf("%s %v", row.Text["action"], row.Set["nexthops"])
		}
	}
	return verdict
}

// 10,000 routes compile to 10,000 rows.
func TestManyRoutes(t *testing.T) {
	c := &cluster{vpcs: []objects.VPC{{Meta: meta("Vpc", "v")}}, subnets: []objects.Subnet{subnet("s", "v", "10.0.0.0/24")}}
	for i := range 10000 {
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0}), 24)
		c.vpcs[0].Routes = append(c.vpcs[0].Routes, route("", "dst", prefix.String(), "10.0.0.254"))
	}
	if n := len(c.compile(t)); n != 10000+4 {
		t.Errorf("%d rows", n)
	}
}

// A policy of whose next hops one is not reached drops the packets that match, and a problem names the next hop. OVN would ignore the policy.
func TestUnreachedNextHopOfPolicy(t *testing.T) {
	at := netip.MustParseAddr
	reroute := func(priority int, hops ...netip.Addr) objects.Policy {
		return objects.Policy{Priority: priority, Match: "ip4", Action: objects.Reroute, NextHops: hops}
	}
	c := &cluster{
		vpcs: []objects.VPC{
			{
				Meta: meta("Vpc", "vpc1"), Peerings: []objects.Peering{{Remote: "vpc2", Local: netip.MustParsePrefix("169.254.0.1/30")}},
				Policies: []objects.Policy{
					reroute(10, at("10.0.1.9"), at("10.0.1.8")), reroute(20, at("10.0.1.9"), at("10.9.9.9")), reroute(30, at("169.254.0.2")), reroute(40, at("169.254.1.2")),
				},
			},
			{Meta: meta("Vpc", "vpc2"), Peerings: []objects.Peering{{Remote: "vpc1", Local: netip.MustParsePrefix("169.254.0.2/30")}}},
		},
		subnets: []objects.Subnet{subnet("s1", "vpc1", "10.0.1.0/24")},
	}
	have := map[int]string{}
	for key, row := range c.compile(t) {
		if key.Table == ovn.Policy {
			have[row.Number["priority"]] = row.Text["action"] + " " + strings.Join(row.Set["nexthops"], ",")
		}
	}
	want := map[int]string{12: "reroute 10.0.1.8,10.0.1.9", 22: "drop ", 32: "reroute 169.254.0.2", 42: "drop "}
	if !maps.Equal(have, want) {
		t.Errorf("policies %v, want %v", have, want)
	}
	problems := c.problems["vpc1"].Error()
	for _, words := range []string{"spec.policyRoutes[1].nextHopIP: 10.9.9.9 is in no subnet", "spec.policyRoutes[3].nextHopIP: 169.254.1.2"} {
		if !strings.Contains(problems, words) {
			t.Errorf("problems %q, want %q in them", problems, words)
		}
	}
}
