package northbound

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go4.org/netipx"

	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/vpc/objects"
)

// Priorities of policies.
const (
	sourcePriority = 1
	userPriority   = 2 // added to a user's priority
)

// maxPolicyText limits the text of the policies of a router's routes by source, in bytes. The database, ovn-northd and each ovn-controller hold
// it, and each change of a subnet or of a route changes all of it.
const maxPolicyText = 16 << 20

// Network is a VPC with what its router depends on.
type Network struct {
	VPC objects.VPC
	// Subnets are the VPC's, in any order.
	Subnets []objects.Subnet
	// Remotes are the existing VPCs that the VPC names in its peerings, by name.
	Remotes map[string]objects.VPC
}

// Result is the result of compiling a VPC.
type Result struct {
	Rows Rows
	// Peers are the VPCs with which there is a peering, sorted.
	Peers []string
	// Problems concern fields of the Vpc that other objects make useless.
	Problems objects.Problems
	// Shadowed are the fields of routes without effect, in the object's order.
	Shadowed []string
}

// Router compiles a VPC: its router, ports to peers, routes and policies.
func Router(n *Network) Result {
	c := &compiler{Network: n, result: Result{Rows: Rows{}}, owner: n.VPC.Owner(), key: RouterKey(n.VPC.UID)}
	options := map[string]string{"always_learn_from_arp_request": "false", "mac_binding_age_threshold": "300"}
	if n.VPC.TunnelKey != 0 {
		options["requested-tnl-key"] = strconv.Itoa(n.VPC.TunnelKey)
	}
	c.result.Rows[c.key] = ovn.Row{
		Owner: c.owner, Text: map[string]string{"name": n.VPC.Name}, Map: map[string]map[string]string{"options": options},
	}
	c.peerings()
	c.connect()
	c.routes()
	c.policies()
	return c.result
}

type compiler struct {
	*Network
	result Result
	owner  string
	key    ovn.Key
	// links are the ranges of the router's ports to peers, and connected those of all of its ports.
	links, connected []netip.Prefix
}

func (c *compiler) problem(field, format string, args ...any) {
	c.result.Problems = append(c.result.Problems, objects.Problem{Field: field, Text: fmt.Sprintf(format, args...)})
}

// peerings creates this side's port of every peering that the other VPC declares as well.
func (c *compiler) peerings() {
	for i, peering := range c.VPC.Peerings {
		field := fmt.Sprintf("spec.vpcPeerings[%d]", i)
		remote, there := c.Remotes[peering.Remote]
		if !there {
			c.problem(field+".remoteVpc", "there is no Vpc %.64q; create it, or remove the peering", peering.Remote)
			continue
		}
		at := slices.IndexFunc(remote.Peerings, func(p objects.Peering) bool { return p.Remote == c.VPC.Name })
		if at < 0 {
			c.problem(field+".remoteVpc", "the Vpc %s does not declare the peering; add {remoteVpc: %s, localConnectIP: ...} to it", peering.Remote, c.VPC.Name)
			continue
		}
		other := remote.Peerings[at].Local
		if other.Addr() == peering.Local.Addr() || other.Masked() != peering.Local.Masked() {
			c.problem(field+".localConnectIP", "%s and %s of the Vpc %s are not two addresses of one range", peering.Local, other, peering.Remote)
			continue
		}
		if taken := c.overlap(peering.Local); taken != "" {
			c.problem(field+".localConnectIP", "%s overlaps %s", peering.Local, taken)
			continue
		}
		c.links = append(c.links, peering.Local.Masked())
		c.result.Peers = append(c.result.Peers, peering.Remote)
		c.result.Rows[ovn.UUID(ovn.RouterPort, c.VPC.UID, "peer", remote.UID)] = ovn.Row{
			Owner: c.owner, Parent: c.key,
			Text: map[string]string{
				"name": peerPortName(c.VPC.Name, peering.Remote), "peer": peerPortName(peering.Remote, c.VPC.Name), "mac": MAC(peering.Local.Addr()),
			},
			Set: map[string][]string{"networks": {peering.Local.String()}},
		}
	}
	slices.Sort(c.result.Peers)
}

// overlap returns which part of the router a link would overlap, empty if none.
func (c *compiler) overlap(link netip.Prefix) string {
	for i := range c.Subnets {
		if c.Subnets[i].Prefix.Overlaps(link) {
			return "the Subnet " + c.Subnets[i].Name
		}
	}
	if slices.ContainsFunc(c.links, link.Overlaps) {
		return "another peering"
	}
	return ""
}

// connect collects the ranges of the router's ports.
func (c *compiler) connect() {
	c.connected = slices.Clone(c.links)
	for i := range c.Subnets {
		c.connected = append(c.connected, c.Subnets[i].Prefix)
	}
}

// reaches reports whether an address is in one of the ranges of the router's ports.
func (c *compiler) reaches(hop netip.Addr) bool {
	return slices.ContainsFunc(c.connected, func(p netip.Prefix) bool { return p.Contains(hop) })
}

// policies creates the user's policies. OVN has no flow for a reroute of which it does not reach a next hop, so that its packets would take
// another way: such a policy drops, as one with an invalid field does.
func (c *compiler) policies() {
	for i, policy := range c.VPC.Policies {
		if at := slices.IndexFunc(policy.NextHops, func(hop netip.Addr) bool { return !c.reaches(hop) }); at >= 0 {
			c.problem(fmt.Sprintf("spec.policyRoutes[%d].nextHopIP", i),
				"%s is in no subnet of the VPC and in no peering; the packets that match are dropped until it is", policy.NextHops[at])
			policy.Action, policy.NextHops = objects.Drop, nil
		}
		hops := texts(policy.NextHops)
		name := fmt.Sprintf("user/%d/%s/%s/%s", policy.Priority, policy.Action, policy.Match, strings.Join(hops, ","))
		c.policy(name, policy.Priority+userPriority, policy.Match, string(policy.Action), hops)
	}
}

// routes creates the static routes of each table.
func (c *compiler) routes() {
	sources := map[string][]objects.Route{}
	known := map[string][]netip.Prefix{}
	shadowed := map[string]bool{} // tables with a default route by destination
	for _, route := range c.VPC.Routes {
		if !c.reaches(route.NextHop) {
			c.problem(route.Field+".nextHopIP", "%s is in no subnet of the VPC and in no peering; the route has no effect", route.NextHop)
			continue
		}
		if route.Source {
			sources[route.Table] = append(sources[route.Table], route)
			continue
		}
		known[route.Table] = append(known[route.Table], route.Prefix)
		shadowed[route.Table] = shadowed[route.Table] || route.Prefix.Bits() == 0
		c.route(route)
	}
	maps.DeleteFunc(sources, func(table string, _ []objects.Route) bool { return shadowed[table] })
	c.sourceRoutes(sources, known)
	for _, route := range c.VPC.Routes {
		if route.Source && shadowed[route.Table] {
			c.result.Shadowed = append(c.result.Shadowed, route.Field)
		}
	}
}

func (c *compiler) route(route objects.Route) {
	key := ovn.UUID(ovn.Route, c.VPC.UID, route.Table, route.Prefix.String(), route.NextHop.String())
	c.result.Rows[key] = ovn.Row{
		Owner: c.owner, Parent: c.key,
		Text: map[string]string{
			"route_table": route.Table, "ip_prefix": route.Prefix.String(), "nexthop": route.NextHop.String(), "policy": "dst-ip",
		},
	}
}

// sourceRoutes creates the policies of the routes by source, by table. known are the prefixes for which tables have routes by destination.
// Tables with less text come first: a large one does not take the place of the others.
func (c *compiler) sourceRoutes(sources map[string][]objects.Route, known map[string][]netip.Prefix) {
	compile := func(table string) sourceTable { return c.sourceTable(table, sources[table], known[table]) }
	size := make(map[string]int, len(sources))
	for table := range sources { // texts are not kept: they may be many times the limit
		t := compile(table)
		size[table] = t.size()
	}
	tables := slices.SortedFunc(maps.Keys(sources), func(a, b string) int { return cmp.Or(cmp.Compare(size[a], size[b]), cmp.Compare(a, b)) })
	total := 0
	for _, table := range tables {
		if total += size[table]; total > maxPolicyText {
			c.problem(sources[table][0].Field, "the policies for the %d routes by source of table %q have %d bytes, with those of smaller tables %d, and a Vpc "+
				"can have %d; packets that no route by destination of the table matches are dropped; use fewer routes by source, or policyRoutes",
				len(sources[table]), table, size[table], total, maxPolicyText)
			continue
		}
		t := compile(table)
		c.addSourceTable(&t)
	}
}

// sourceTable is what the policies of a table's routes by source consist of.
type sourceTable struct {
	name     string
	inports  string // the ports whose packets use the table
	unknown  string // the destinations for which the table has no route
	prefixes []netip.Prefix
	own      []string // of each prefix, the sources for which it is the longest; empty: none
	rest     string   // the sources without a route; empty: none
	hops     map[netip.Prefix][]netip.Addr
}

// sourceTable returns the zero value if no packet needs the table's routes by source.
func (c *compiler) sourceTable(table string, routes []objects.Route, known []netip.Prefix) sourceTable {
	ports := c.portsOf(table)
	unknown := complement(slices.Concat(known, c.connected))
	if len(ports) == 0 || unknown == "" {
		return sourceTable{}
	}
	t := sourceTable{name: table, inports: quoted(ports), unknown: unknown, hops: map[netip.Prefix][]netip.Addr{}}
	for _, route := range routes {
		if !slices.Contains(t.hops[route.Prefix], route.NextHop) {
			t.hops[route.Prefix] = append(t.hops[route.Prefix], route.NextHop)
		}
	}
	t.prefixes = sortedPrefixes(t.hops)
	for i, prefix := range t.prefixes {
		t.own = append(t.own, without(prefix, t.prefixes[i+1:]))
	}
	t.rest = complement(t.prefixes)
	return t
}

// size returns the length of the policies' text.
func (t *sourceTable) size() (sum int) {
	frame := len(t.match(""))
	for _, sources := range t.sets() {
		sum += frame + len(sources)
	}
	return sum
}

// sets are the sets of sources that policies match.
func (t *sourceTable) sets() []string {
	return slices.DeleteFunc(append(slices.Clone(t.own), t.rest), func(set string) bool { return set == "" })
}

func (t *sourceTable) match(sources string) string {
	return fmt.Sprintf("inport == %s && ip4.src == %s && ip4.dst == %s", t.inports, sources, t.unknown)
}

// addSourceTable creates a table's policies.
func (c *compiler) addSourceTable(t *sourceTable) {
	if len(t.prefixes) == 0 {
		return
	}
	// The default route only makes packets reach the policies; its next hop is the lowest one, so that it does not depend on the order of the
	// object's list.
	hop := slices.MinFunc(t.hops[t.prefixes[0]], netip.Addr.Compare)
	c.route(objects.Route{Table: t.name, Prefix: netip.PrefixFrom(netip.IPv4Unspecified(), 0), NextHop: hop})
	for i, prefix := range t.prefixes {
		if t.own[i] != "" {
			c.policy("source/"+t.name+"/"+prefix.String(), sourcePriority, t.match(t.own[i]), "reroute", texts(t.hops[prefix]))
		}
	}
	if t.rest != "" {
		c.policy("source/"+t.name+"/rest", sourcePriority, t.match(t.rest), "drop", nil)
	}
}

// portsOf returns the names of the router's ports whose packets use the table, sorted.
func (c *compiler) portsOf(table string) []string {
	var ports []string
	for i := range c.Subnets {
		if c.Subnets[i].RouteTable == table {
			ports = append(ports, routerPortName(c.VPC.Name, c.Subnets[i].Name))
		}
	}
	if table == "" {
		for _, peer := range c.result.Peers {
			ports = append(ports, peerPortName(c.VPC.Name, peer))
		}
	}
	slices.Sort(ports)
	return ports
}

func (c *compiler) policy(name string, priority int, match, action string, hops []string) {
	c.result.Rows[ovn.UUID(ovn.Policy, c.VPC.UID, name)] = ovn.Row{
		Owner: c.owner, Parent: c.key,
		Text:   map[string]string{"match": match, "action": action},
		Number: map[string]int{"priority": priority},
		Set:    map[string][]string{"nexthops": hops},
	}
}

func sortedPrefixes(hops map[netip.Prefix][]netip.Addr) []netip.Prefix {
	prefixes := make([]netip.Prefix, 0, len(hops))
	for prefix := range hops {
		prefixes = append(prefixes, prefix)
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return prefixes
}

// complement returns, as a set in OVN's language, the addresses that are in none of the prefixes. It is empty if there are none.
func complement(prefixes []netip.Prefix) string {
	var b netipx.IPSetBuilder
	b.AddPrefix(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	for _, prefix := range prefixes {
		b.RemovePrefix(prefix)
	}
	return setOf(&b)
}

// without returns, as a set, the addresses of the prefix that are in none of the longer ones, which follow it in the sorted list. It is
// empty if there are none.
func without(prefix netip.Prefix, following []netip.Prefix) string {
	var b netipx.IPSetBuilder
	b.AddPrefix(prefix)
	for _, other := range following {
		if !prefix.Contains(other.Addr()) {
			break
		}
		b.RemovePrefix(other)
	}
	return setOf(&b)
}

// setOf returns a set of OVN's language; empty if it has no member.
func setOf(b *netipx.IPSetBuilder) string {
	set, err := b.IPSet()
	if err != nil || len(set.Prefixes()) == 0 {
		return "" // only prefixes that are not valid make an error, and parsed ones are
	}
	words := make([]string, 0, len(set.Prefixes()))
	for _, prefix := range set.Prefixes() {
		words = append(words, prefix.String())
	}
	return "{" + strings.Join(words, ", ") + "}"
}

// quoted returns names as a set of OVN's language. Names of Kubernetes objects have no character that needs an escape.
func quoted(names []string) string {
	words := make([]string, 0, len(names))
	for _, name := range names {
		words = append(words, strconv.Quote(name))
	}
	return "{" + strings.Join(words, ", ") + "}"
}

func texts(addrs []netip.Addr) []string {
	words := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		words = append(words, addr.String())
	}
	slices.Sort(words)
	return words
}
