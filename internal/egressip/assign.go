package egressip

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Assignment is what one round gives to nodes with ranges.
type Assignment struct {
	// IPs are what each node with ranges is to list, in the order that it lists them in now, what is new behind.
	IPs map[string][]netip.Addr
	// Again says that addresses were taken off nodes, and wait for the next round to be given to others.
	Again bool
	// Problems are addresses that no node with ranges can have, in order.
	Problems []Problem
}

// Assign makes one round of giving addresses to nodes that have ranges. What is where it can stay, stays.
//
// In a balanced cluster nothing moves. A node counts as empty that has less than half of what it would have if all were given
// out anew: then what it would have is taken off the others, provided that the next round brings it there.
func Assign(namespaces []Namespace, nodes []Node) Assignment {
	a := newAssigner(namespaces, nodes)
	if len(a.nodes) == 0 {
		return Assignment{}
	}
	off := a.leave()
	kept, dropped := a.keep(a.listed(), off)
	round := a.place(kept, dropped)
	if len(dropped) == 0 {
		if released := a.rebalance(round); len(released) > 0 {
			kept, _ = a.keep(a.listed(), released)
			round, dropped = a.place(kept, released), released
		}
	}
	result := Assignment{IPs: map[string][]netip.Addr{}, Again: len(dropped) > 0}
	for _, node := range a.nodes {
		result.IPs[node.Name] = a.ordered(node, round)
	}
	for _, ip := range a.order {
		if _, has := round.at[ip]; !has {
			if _, waits := dropped[ip]; !waits {
				result.Problems = append(result.Problems, a.explain(ip, round)...)
			}
		}
	}
	slices.SortFunc(result.Problems, compareProblems)
	return result
}

// placement says which node has an address.
type placement struct {
	at map[netip.Addr]string
	// count is how many a node has, and has which of a project.
	count map[string]int
	has   map[seat]netip.Addr
}

// seat is the room that a node has for a project: one address.
type seat struct {
	node string
	vnid uint32
}

func newPlacement() *placement {
	return &placement{at: map[netip.Addr]string{}, count: map[string]int{}, has: map[seat]netip.Addr{}}
}

func (p *placement) put(ip netip.Addr, node string, vnid uint32) {
	p.at[ip], p.has[seat{node, vnid}] = node, ip
	p.count[node]++
}

type ipSet map[netip.Addr]struct{}

func (s ipSet) has(ip netip.Addr) bool {
	_, in := s[ip]
	return in
}

// assigner is what a round knows.
type assigner struct {
	claims *claims
	// nodes have ranges, in the order of their names.
	nodes []Node
	// order has the addresses that can be given out, in the order in which they are; project is whose each is.
	order   []netip.Addr
	project map[netip.Addr]uint32
}

func newAssigner(namespaces []Namespace, nodes []Node) *assigner {
	a := &assigner{claims: newClaims(namespaces, nodes), project: map[netip.Addr]uint32{}}
	byHand := ipSet{}
	for _, node := range nodes {
		if len(node.CIDRs) > 0 {
			a.nodes = append(a.nodes, node)
			continue
		}
		for _, ip := range node.IPs {
			byHand[ip] = struct{}{}
		}
	}
	slices.SortFunc(a.nodes, func(x, y Node) int { return cmp.Compare(x.Name, y.Name) })
	a.doubt()
	for _, ip := range a.claims.turns() {
		if vnids := a.claims.vnids[ip]; len(vnids) == 1 && !byHand.has(ip) {
			a.order, a.project[ip] = append(a.order, ip), vnids[0]
		}
	}
	return a
}

// doubt takes back what is told of nodes, where it is told of all: then it is more likely that who tells it is cut off.
func (a *assigner) doubt() {
	online := slices.ContainsFunc(a.nodes, func(n Node) bool { return !n.Offline })
	for i := range a.nodes {
		a.nodes[i].Offline = a.nodes[i].Offline && online
	}
}

// turns returns all wanted addresses: in turn one of each project, those that want the fewest first.
func (c *claims) turns() []netip.Addr {
	projects := slices.SortedFunc(maps.Values(c.projects), func(a, b *project) int {
		return cmp.Or(cmp.Compare(len(a.ips), len(b.ips)), cmp.Compare(a.namespaces[0], b.namespaces[0]))
	})
	var order []netip.Addr
	seen := ipSet{}
	for turn, more := 0, true; more; turn++ {
		more = false
		for _, p := range projects {
			if turn >= len(p.ips) {
				continue
			}
			more = true
			if ip := p.ips[turn]; !seen.has(ip) {
				seen[ip] = struct{}{}
				order = append(order, ip)
			}
		}
	}
	return order
}

// listed returns where nodes with ranges list addresses now; one that several list is at none.
func (a *assigner) listed() map[netip.Addr]string {
	at := map[netip.Addr]string{}
	for _, node := range a.nodes {
		for _, ip := range node.IPs {
			if len(a.claims.nodes[ip]) == 1 {
				at[ip] = node.Name
			}
		}
	}
	return at
}

// leave returns the addresses of nodes that do not answer, that others can have: by what this round, without them, and the next one
// would make of it. What nobody else can have stays where it is.
func (a *assigner) leave() ipSet {
	offline, leaving := ipSet{}, ipSet{}
	now := a.listed()
	for ip, name := range now {
		if a.node(name).Offline {
			offline[ip] = struct{}{}
		}
	}
	if len(offline) == 0 {
		return nil
	}
	next := a.place(a.place(a.keep(now, offline)), nil)
	for ip := range offline {
		if _, taken := next.at[ip]; taken {
			leaving[ip] = struct{}{}
		}
	}
	return leaving
}

// node returns a node with ranges by its name.
func (a *assigner) node(name string) *Node {
	return &a.nodes[slices.IndexFunc(a.nodes, func(n Node) bool { return n.Name == name })]
}

// keep returns what stays where it is, without what is to be released, and what is taken off its node.
func (a *assigner) keep(now map[netip.Addr]string, release ipSet) (kept *placement, dropped ipSet) {
	kept, dropped = newPlacement(), ipSet{}
	for _, ip := range a.order {
		name, has := now[ip]
		if !has {
			if len(a.claims.nodes[ip]) > 0 { // several list it: it is taken off all first
				dropped[ip] = struct{}{}
			}
			continue
		}
		if release.has(ip) || a.unfit(a.node(name), ip, kept) != "" {
			dropped[ip] = struct{}{}
			continue
		}
		kept.put(ip, name, a.project[ip])
	}
	return kept, dropped
}

// refuses says why a node cannot get an address besides what is placed already, "" if it can.
func (a *assigner) refuses(node *Node, ip netip.Addr, placed *placement) string {
	if why := a.unfit(node, ip, placed); why != "" {
		return why
	}
	switch {
	case node.Offline:
		return "does not answer"
	case node.Unproven:
		return "has not answered yet"
	}
	return ""
}

// unfit says why a node cannot have an address besides what is placed already, even if it has it, "" if it can.
func (a *assigner) unfit(node *Node, ip netip.Addr, placed *placement) string {
	other, taken := placed.has[seat{node.Name, a.project[ip]}]
	switch {
	case !slices.ContainsFunc(node.CIDRs, func(c netip.Prefix) bool { return c.Contains(ip) }):
		return "has it not in its egressCIDRs"
	case node.Refused[ip] != "":
		return "cannot hold it: " + node.Refused[ip]
	case taken:
		return "has " + other.String() + " for this project already"
	case node.Limited && placed.count[node.Name] >= node.Capacity:
		return fmt.Sprintf("has all %d that it can have", node.Capacity)
	}
	return ""
}

// place gives what is nowhere to nodes, and adds it to what is placed: first what only one node can have, then the rest.
func (a *assigner) place(placed *placement, without ipSet) *placement {
	for _, single := range []bool{true, false} {
		for _, ip := range a.order {
			if _, has := placed.at[ip]; has || without.has(ip) {
				continue
			}
			best, candidates := a.best(ip, placed)
			if candidates == 1 || candidates > 1 && !single {
				placed.put(ip, best, a.project[ip])
			}
		}
	}
	return placed
}

// best returns the node that an address is given to, and how many can have it: the one with the fewest, of several the one
// with most room.
func (a *assigner) best(ip netip.Addr, placed *placement) (name string, candidates int) {
	var best *Node
	for i := range a.nodes {
		node := &a.nodes[i]
		if a.refuses(node, ip, placed) != "" {
			continue
		}
		candidates++
		if best == nil || cmp.Or(cmp.Compare(placed.count[node.Name], placed.count[best.Name]), compareRoom(node, best, placed.count)) < 0 {
			best, name = node, node.Name
		}
	}
	return name, candidates
}

// compareRoom orders nodes by how many addresses they can still have, most first.
func compareRoom(x, y *Node, counts map[string]int) int {
	switch {
	case x.Limited != y.Limited && y.Limited:
		return -1
	case x.Limited != y.Limited:
		return 1
	case !x.Limited:
		return 0
	}
	return cmp.Compare(y.Capacity-counts[y.Name], x.Capacity-counts[x.Name])
}

// rebalance returns what is to be taken off nodes so that others get their part.
func (a *assigner) rebalance(round *placement) ipSet {
	fresh := newPlacement()
	for ip, name := range round.at { // who has not answered gets nothing, and gives nothing
		if a.node(name).Unproven {
			fresh.put(ip, name, a.project[ip])
		}
	}
	fresh = a.place(fresh, nil)
	empty := a.empty(round, fresh)
	released, now := ipSet{}, a.listed()
	for ip, name := range fresh.at {
		if at, has := now[ip]; has && at != name && slices.Contains(empty, name) {
			released[ip] = struct{}{}
		}
	}
	if len(released) == 0 {
		return nil
	}
	// What the next round would make of it: where that is no better, everything stays.
	rest := newPlacement()
	for ip, name := range round.at {
		if !released.has(ip) {
			rest.put(ip, name, a.project[ip])
		}
	}
	if next := a.place(rest, nil); len(next.at) < len(round.at) || len(a.empty(next, fresh)) >= len(empty) {
		return nil
	}
	return released
}

// empty returns the nodes that have less than half of what they would have in a fresh plan.
func (a *assigner) empty(round, fresh *placement) []string {
	var names []string
	for _, node := range a.nodes {
		if round.count[node.Name] < fresh.count[node.Name]/2 {
			names = append(names, node.Name)
		}
	}
	return names
}

// ordered returns what a node is to list.
func (a *assigner) ordered(node Node, round *placement) []netip.Addr {
	var list []netip.Addr
	for _, ip := range slices.Concat(node.IPs, a.order) {
		if round.at[ip] == node.Name && !slices.Contains(list, ip) {
			list = append(list, ip)
		}
	}
	return list
}

// explain says why no node has an address.
func (a *assigner) explain(ip netip.Addr, round *placement) []Problem {
	const most = 5
	var why []string
	for i := range a.nodes {
		node := &a.nodes[i]
		if slices.ContainsFunc(node.CIDRs, func(c netip.Prefix) bool { return c.Contains(ip) }) {
			why = append(why, "node "+node.Name+" "+a.refuses(node, ip, round))
		}
	}
	if more := len(why) - most; more > 0 {
		why = append(why[:most:most], fmt.Sprintf("and %d more nodes", more))
	}
	text := "no node has it in its egressCIDRs"
	if len(why) > 0 {
		text = strings.Join(why, "; ")
	}
	var problems []Problem
	for _, ns := range a.claims.projects[a.project[ip]].wants[ip] {
		problems = append(problems, Problem{KindNamespace, ns, ip, ReasonUnassigned, fmt.Sprintf("egressIPs: %s is hosted by no node: %s", ip, text)})
	}
	return problems
}
