package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/vpc/objects"
)

// Names in the gateway's namespace.
const (
	// Inside is the device in the VPC, Outside the one in the external network.
	Inside  = "eth0"
	Outside = "net1"
	// Table is the nftables table, of family ip.
	Table = "weft_gateway"
)

// Input is a gateway with everything on which its state depends.
type Input struct {
	Gateway objects.Gateway
	// Own is the gateway's own address in the external subnet; the zero value: none.
	Own netip.Addr
	// VPC is the gateway's, Subnet the one in which it is, Subnets all of the VPC's, External the external one.
	VPC      objects.VPC
	Subnet   objects.Subnet
	Subnets  []objects.Subnet
	External objects.Subnet
	// LanIPs are those of all gateways of the VPC, sorted. The gateway's own need not be among them.
	LanIPs []netip.Addr
	// EIPs are the gateway's EIPs that have an address. Rules may be of any EIP; those of other EIPs are ignored.
	EIPs  []objects.EIP
	SNATs []objects.SNAT
	DNATs []objects.DNAT
	FIPs  []objects.FIP
}

// Route is a route of the gateway.
type Route struct {
	Dst     netip.Prefix
	Gateway netip.Addr // the zero value: directly connected
	Device  string
}

// State is the complete state of a gateway's namespace.
type State struct {
	// Addresses are those of Outside. The gateway's own has the length of the external subnet.
	Addresses []netip.Prefix
	Routes    []Route
	// Sysctls are values by their path under /proc/sys, with slashes.
	Sysctls map[string]string
	Items   map[nft.Key]nft.Item
}

// Result is the result of compiling a gateway.
type Result struct {
	State State
	// Problems are those of rules that are not in the state, by owner (objects.Meta.Owner).
	Problems map[string]objects.Problem
	// Unmatched are the owners of SNAT rules whose prefix overlaps none to which the gateway has a route in the VPC, and of floating IPs and
	// port forwards to an address to which it has none.
	Unmatched []string
	// Uses has the uses of each EIP, by its name: "fip", "snat", "dnat", sorted.
	Uses map[string][]string
}

// Compile returns the gateway's state.
func Compile(in *Input) Result {
	c := newCompiler(in)
	c.net1()
	c.routes()
	c.table()
	c.translations()
	for _, uses := range c.result.Uses {
		slices.Sort(uses)
	}
	slices.Sort(c.result.Unmatched)
	return c.result
}

// sysctls returns the settings of a gateway. Paths are symmetric, so a strict reverse path filter drops only spoofed packets. arp_ignore
// and arp_announce restrict each device to its own addresses. A new namespace has the settings of the node, and most of those of "all" count
// for each device as well: the larger one, or either.
func sysctls() map[string]string {
	values := map[string]string{"net/ipv4/ip_forward": "1"}
	for _, device := range []string{"all", Inside, Outside} {
		for name, value := range map[string]string{
			"arp_ignore": "1", "arp_announce": "2", "arp_filter": "0", "proxy_arp": "0", "proxy_arp_pvlan": "0", "rp_filter": "1", "accept_local": "0",
			"route_localnet": "0", "accept_redirects": "0", "send_redirects": "0", "accept_source_route": "0",
		} {
			values["net/ipv4/conf/"+device+"/"+name] = value
		}
	}
	return values
}

type compiler struct {
	*Input
	addresses map[string]netip.Addr // of EIPs, by name
	inside    map[netip.Prefix]bool // insideOf
	result    Result
}

func newCompiler(in *Input) *compiler {
	c := &compiler{Input: in, addresses: map[string]netip.Addr{}, inside: insideOf(in), result: Result{
		Problems: map[string]objects.Problem{}, Uses: map[string][]string{},
		State: State{Items: map[nft.Key]nft.Item{}, Sysctls: sysctls()},
	}}
	for i := range in.EIPs {
		if eip := &in.EIPs[i]; eip.Addr.IsValid() {
			c.addresses[eip.Name] = eip.Addr
		}
	}
	return c
}

func (c *compiler) net1() {
	if c.Own.IsValid() {
		c.result.State.Addresses = append(c.result.State.Addresses, netip.PrefixFrom(c.Own, c.External.Prefix.Bits()))
	}
	eips := slices.SortedFunc(maps.Values(c.addresses), netip.Addr.Compare)
	for _, addr := range slices.Compact(eips) {
		c.result.State.Addresses = append(c.result.State.Addresses, netip.PrefixFrom(addr, 32))
	}
}

// insideOf returns the prefixes of the VPC and of its routes by destination: true for those in the VPC, and false for those of routes that
// lead outside. A route leads outside if one of its next hops, in any route table, is a NAT gateway of the VPC: each of these gateways has
// to send outside what it receives, because a packet that it returned to the VPC's router could come back. Next hops that the router does
// not reach are ignored, as the router ignores them.
func insideOf(in *Input) map[netip.Prefix]bool {
	connected := map[netip.Prefix]bool{}
	for i := range in.Subnets {
		connected[in.Subnets[i].Prefix] = true
	}
	for _, peering := range in.VPC.Peerings {
		connected[peering.Local.Masked()] = true
	}
	inside := maps.Clone(connected)
	for _, route := range in.VPC.Routes {
		_, known := inside[route.Prefix]
		switch {
		case route.Source || route.Prefix.Bits() == 0 || !around(connected, single(route.NextHop)):
		case route.NextHop != in.Gateway.LanIP && !slices.Contains(in.LanIPs, route.NextHop):
			if !known {
				inside[route.Prefix] = true
			}
		case !around(connected, route.Prefix): // a Subnet's addresses are inside, whatever leads there
			inside[route.Prefix] = false
		}
	}
	return inside
}

func single(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// reach records a rule as unmatched if the gateway has no route in the VPC to its internal address.
func (c *compiler) reach(rule objects.Meta, internal netip.Addr) {
	if !around(c.inside, single(internal)) {
		c.result.Unmatched = append(c.result.Unmatched, rule.Owner())
	}
}

// routes returns routes to the VPC's prefixes by eth0, and to everything else by net1. A prefix outside has a route of its own if it is
// within one of the VPC.
func (c *compiler) routes() {
	routes := []Route{
		{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: c.External.Gateway, Device: Outside},
		{Dst: c.External.Prefix, Device: Outside},
	}
	for prefix, inside := range c.inside {
		switch {
		case prefix == c.External.Prefix || prefix == c.Subnet.Prefix: // eth0 has the route to its Subnet from its address
		case inside:
			routes = append(routes, Route{Dst: prefix, Gateway: c.Subnet.Gateway, Device: Inside})
		case around(c.inside, netip.PrefixFrom(prefix.Addr(), prefix.Bits()-1)):
			route := Route{Dst: prefix, Gateway: c.External.Gateway, Device: Outside}
			if around(map[netip.Prefix]bool{c.External.Prefix: true}, prefix) {
				route.Gateway = netip.Addr{} // directly connected, as the whole range is
			}
			routes = append(routes, route)
		}
	}
	slices.SortFunc(routes, func(a, b Route) int { return a.Dst.Compare(b.Dst) })
	c.result.State.Routes = routes
}

// Names of maps and sets: floating IPs by direction, port forwards, SNAT rules. "snat" and "dnat" are words of nft's language.
const (
	FloatingIn  = "floating_in"
	FloatingOut = "floating_out"
	Ports       = "port_forwards"
	Sources     = "sources"
	outside     = "outside_addresses"
)

func (c *compiler) add(items ...nft.Item) {
	for _, item := range items {
		c.result.State.Items[item.Key()] = item
	}
}

func (c *compiler) chain(chain nft.Chain, rules ...string) {
	chain.Family, chain.Table = nft.FamilyIPv4, Table
	list := &nft.ChainRules{Family: nft.FamilyIPv4, Table: Table, Chain: chain.Name}
	for _, rule := range rules {
		list.Rules = append(list.Rules, nft.Rule{Text: rule, Owner: c.comment(c.Gateway.Meta)})
	}
	c.add(&chain, list)
}

// private drops packets that leave with another source than an address of net1.
const private = `oifname "net1" ip saddr != @` + outside + " counter drop"

// table creates the chains, which are the same for every gateway: rules are elements of maps.
func (c *compiler) table() {
	c.add(
		&nft.Table{Family: nft.FamilyIPv4, Name: Table},
		&nft.Map{Family: nft.FamilyIPv4, Table: Table, Name: FloatingIn, Type: "ipv4_addr", Value: "ipv4_addr"},
		&nft.Map{Family: nft.FamilyIPv4, Table: Table, Name: FloatingOut, Type: "ipv4_addr", Value: "ipv4_addr"},
		&nft.Map{
			Family: nft.FamilyIPv4, Table: Table, Name: Ports, Type: "ipv4_addr . inet_proto . inet_service", Value: "ipv4_addr . inet_service",
		},
		&nft.Map{Family: nft.FamilyIPv4, Table: Table, Name: Sources, Type: "ipv4_addr", Value: "ipv4_addr", Flags: []nft.SetFlag{nft.FlagInterval}},
		&nft.Set{Family: nft.FamilyIPv4, Table: Table, Name: outside, Type: "ipv4_addr"},
	)
	for _, prefix := range c.result.State.Addresses {
		c.element(outside, c.Gateway.Meta, []string{prefix.Addr().String()})
	}
	c.chain(nft.Chain{Name: "prerouting", Type: nft.TypeNAT, Hook: nft.HookPrerouting, Priority: -100},
		"dnat to ip daddr map @"+FloatingIn,
		"dnat ip to ip daddr . meta l4proto . th dport map @"+Ports)
	// Each packet passes this chain, and almost each is accepted by one of the first two rules: what a connection's first packet shows is
	// judged in postrouting. An established connection may be routed to net1 although it must not: after the route to its internal address
	// was removed, it follows the default route. So packets from net1 have to leave by eth0, and so do those of a connection from inside to a
	// forwarded address, which has the mark.
	c.chain(nft.Chain{Name: "forward", Type: nft.TypeFilter, Hook: nft.HookForward, Policy: nft.PolicyDrop},
		`iifname "eth0" oifname "net1" ct mark 0 ct state new,established,related accept`,
		`oifname "eth0" ct state established,related accept`,
		`iifname "net1" oifname "eth0" ct state new ct status dnat accept`,
		`iifname "eth0" oifname "eth0" ct state new ct status dnat ct mark set 1 accept`,
		"counter drop")
	// Only the first packet of a connection passes a chain of type nat, and one that is dropped here makes no connection.
	c.chain(nft.Chain{Name: "postrouting", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: 100},
		"meta l4proto udp th dport 6081 counter drop", // Geneve of the nodes
		`oifname "net1" ct status dnat counter drop`,  // forwarded to an internal address without a route
		`iifname "eth0" oifname "eth0" ct status dnat masquerade`,
		`oifname "net1" snat to ip saddr map @`+FloatingOut,
		`oifname "net1" snat to ip saddr map @`+Sources+" fully-random",
		private)
	// Without them, the gateway's kernel resets forwarded connections that conntrack does not know, as after the gateway was made again. Invalid
	// packets are not translated, so that they are the gateway's own. Of a TCP connection, conntrack takes a segment without FIN and RST for a
	// new connection: it is the gateway's own at the EIP of an SNAT rule, and at eth0 if it answers a connection of the hairpin.
	c.chain(nft.Chain{Name: "input", Type: nft.TypeFilter, Hook: nft.HookInput},
		"ct state invalid,untracked counter drop",
		"ct state new tcp flags & (syn | ack) != syn counter drop")
	c.chain(nft.Chain{Name: "output", Type: nft.TypeFilter, Hook: nft.HookOutput}, private)
}

// comment names an owner in at most 120 bytes.
func (c *compiler) comment(meta objects.Meta) string {
	const most = 120
	text := meta.Kind + "/" + meta.Name
	return text[:min(len(text), most)]
}

func (c *compiler) element(set string, owner objects.Meta, match []string, value ...string) {
	c.add(&nft.Element{Family: nft.FamilyIPv4, Table: Table, Set: set, Match: match, Value: value, Owner: c.comment(owner)})
}

// rule is a rule of any of the three kinds, while it is judged.
type rule struct {
	objects.Age
	eip   string
	use   string   // "fip", "snat" or "dnat"
	claim []string // what only one rule may have, each with the name of the field before it
	make  func(address netip.Addr)
}

// translations creates the elements of all rules, the oldest first.
func (c *compiler) translations() {
	var snats []objects.SNAT
	rules := c.rules(&snats)
	slices.SortFunc(rules, func(a, b rule) int { return a.Compare(b.Age) })
	claimed := map[string]objects.Meta{}
	for _, r := range rules {
		address, there := c.addresses[r.eip]
		if !there {
			continue
		}
		if problem, is := conflict(r, claimed); is {
			c.result.Problems[r.Owner()] = problem
			continue
		}
		for _, claim := range r.claim {
			claimed[claim] = r.Meta
		}
		if r.use == "dnat" {
			claimed["forwards "+r.eip] = r.Meta
		}
		if !slices.Contains(c.result.Uses[r.eip], r.use) {
			c.result.Uses[r.eip] = append(c.result.Uses[r.eip], r.use)
		}
		r.make(address)
	}
	c.sources(snats)
}

// conflict returns the problem of a rule that claims what an older rule holds.
func conflict(r rule, claimed map[string]objects.Meta) (objects.Problem, bool) {
	held := func(claim, field, format string) (objects.Problem, bool) {
		holder, is := claimed[claim]
		return objects.Problem{Field: "spec." + field, Text: fmt.Sprintf(format, holder.Kind, holder.Name)}, is
	}
	for _, claim := range r.claim {
		field, _, _ := strings.Cut(claim, " ")
		if problem, is := held(claim, field, "the older %s %s has the same "+field+"; change or delete one of the two"); is {
			return problem, true
		}
	}
	switch r.use {
	case "fip":
		return held("forwards "+r.eip, "eip", "the older %s %s forwards a port of the EIP, and a floating IP needs the whole EIP; use another EIP")
	case "dnat":
		return held("eip "+r.eip, "eip", "the older %s %s makes the EIP a floating IP; use another EIP")
	}
	return objects.Problem{}, false
}

func (c *compiler) rules(snats *[]objects.SNAT) []rule {
	var rules []rule
	for _, fip := range c.FIPs {
		rules = append(rules, rule{
			Age: fip.Age, eip: fip.EIP, use: "fip", claim: []string{"eip " + fip.EIP, "internalIp " + fip.Internal.String()},
			make: func(address netip.Addr) {
				c.reach(fip.Meta, fip.Internal)
				c.element(FloatingIn, fip.Meta, []string{address.String()}, fip.Internal.String())
				c.element(FloatingOut, fip.Meta, []string{fip.Internal.String()}, address.String())
			},
		})
	}
	for _, dnat := range c.DNATs {
		port := fmt.Sprint(dnat.Port)
		rules = append(rules, rule{
			Age: dnat.Age, eip: dnat.EIP, use: "dnat", claim: []string{"externalPort " + dnat.EIP + " " + dnat.Protocol + " " + port},
			make: func(address netip.Addr) {
				c.reach(dnat.Meta, dnat.Internal.Addr())
				c.element(Ports, dnat.Meta, []string{address.String(), dnat.Protocol, port},
					dnat.Internal.Addr().String(), fmt.Sprint(dnat.Internal.Port()))
			},
		})
	}
	for _, snat := range c.SNATs {
		rules = append(rules, rule{
			Age: snat.Age, eip: snat.EIP, use: "snat", claim: []string{"internalCIDR " + snat.Prefix.String()},
			make: func(netip.Addr) { *snats = append(*snats, snat) },
		})
	}
	return rules
}

// sources creates the elements of SNAT rules. The intervals of a map must not overlap, so each rule's elements omit the prefixes of other
// rules within its own: those directly within it, which include all others.
func (c *compiler) sources(snats []objects.SNAT) {
	slices.SortFunc(snats, func(a, b objects.SNAT) int { return a.Prefix.Compare(b.Prefix) })
	prefixes := make([]netip.Prefix, 0, len(snats))
	for _, snat := range snats {
		prefixes = append(prefixes, snat.Prefix)
	}
	overlaps := c.overlaps()
	for i, within := range nested(prefixes) {
		snat := &snats[i]
		if !overlaps(snat.Prefix) {
			c.result.Unmatched = append(c.result.Unmatched, snat.Owner())
		}
		var b netipx.IPSetBuilder
		b.AddPrefix(snat.Prefix)
		for _, other := range within {
			b.RemovePrefix(other)
		}
		set, err := b.IPSet()
		if err != nil {
			continue // only prefixes that are not valid make an error, and parsed ones are
		}
		for _, piece := range set.Prefixes() {
			text := piece.String()
			if piece.IsSingleIP() {
				text = piece.Addr().String()
			}
			c.element(Sources, snat.Meta, []string{text}, c.addresses[snat.EIP].String())
		}
	}
}

// overlaps returns a function that reports whether a prefix overlaps one to which the gateway has a route in the VPC. It costs about the
// same for one such prefix and for many, because it is called for each SNAT rule.
func (c *compiler) overlaps() func(netip.Prefix) bool {
	sorted := make([]netip.Prefix, 0, len(c.inside))
	for prefix, inside := range c.inside {
		if inside {
			sorted = append(sorted, prefix)
		}
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	return func(p netip.Prefix) bool {
		if around(c.inside, p) {
			return true
		}
		at, _ := slices.BinarySearchFunc(sorted, p, netip.Prefix.Compare)
		return at < len(sorted) && p.Contains(sorted[at].Addr())
	}
}

// around returns the value of the longest of the prefixes that contain all of p; false if there is none.
func around(prefixes map[netip.Prefix]bool, p netip.Prefix) bool {
	for bits := p.Bits(); bits >= 0; bits-- {
		if value, there := prefixes[netip.PrefixFrom(p.Addr(), bits).Masked()]; there {
			return value
		}
	}
	return false
}

// nested returns, for each of the sorted prefixes, the others that are directly within it: in no third one that is within it. Each prefix is
// directly within one other at most, so that there are no more of them than prefixes, whatever they are.
func nested(sorted []netip.Prefix) [][]netip.Prefix {
	within := make([][]netip.Prefix, len(sorted))
	var open []int // the prefixes that contain the current one, the shortest first
	for i, p := range sorted {
		for len(open) > 0 {
			if last := sorted[open[len(open)-1]]; last.Bits() < p.Bits() && last.Contains(p.Addr()) {
				break
			}
			open = open[:len(open)-1]
		}
		if len(open) > 0 {
			parent := open[len(open)-1]
			within[parent] = append(within[parent], p)
		}
		open = append(open, i)
	}
	return within
}

// Hash returns a digest of the state: equal states have equal hashes, wherever they were compiled.
func (s *State) Hash() string {
	lines := make([]string, 0, len(s.Items)+len(s.Addresses)+len(s.Routes)+len(s.Sysctls))
	for _, item := range s.Items {
		line := "nft " + item.String()
		if rules, ok := item.(*nft.ChainRules); ok {
			line = "nft " + rules.Key().String() + " " + rules.Digest()
		}
		lines = append(lines, line)
	}
	for _, addr := range s.Addresses {
		lines = append(lines, "address "+addr.String())
	}
	for _, route := range s.Routes {
		lines = append(lines, fmt.Sprintf("route %s via %s dev %s", route.Dst, route.Gateway, route.Device))
	}
	for name, value := range s.Sysctls {
		lines = append(lines, "sysctl "+name+"="+value)
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:16])
}

// Links returns the items of engine link for the namespace at the path.
func (s *State) Links(netns, owner string) map[link.Key]link.Item {
	items := map[link.Key]link.Item{}
	add := func(item link.Item) { items[item.Key()] = item }
	add(&link.Device{Netns: netns, Name: Outside, Owner: owner, Up: true, Addresses: s.Addresses, NoPrefixRoute: true})
	for _, route := range s.Routes {
		add(&link.Route{Netns: netns, Dst: route.Dst, Gateway: route.Gateway, Device: route.Device})
	}
	return items
}
