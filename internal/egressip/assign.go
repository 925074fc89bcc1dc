package egressip

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Assignment is the result of one round of assigning addresses to nodes with ranges.
type Assignment struct {
	// IPs are the addresses that each node with ranges is to list: first those that it lists now, in the same order, then new ones.
	IPs map[string][]netip.Addr
	// Again says that addresses were removed from nodes, and are given to other nodes in the next round.
	Again bool
	// Problems are the addresses that no node with ranges can have, sorted.
	Problems []Problem
}

// Assign computes one round of assigning addresses to nodes that have ranges. An address stays on its node if it can.
//
// In a balanced cluster nothing moves. A node counts as empty if it has less than half of the addresses that it would have in a completely
// new assignment. The addresses that it would have are then removed from the other nodes, provided that the next round gives them to it.
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

// placement is an assignment of addresses to nodes.
type placement struct {
	at map[netip.Addr]string
	// count is the number of addresses of each node; has is the address that a node has for a project.
	count map[string]int
	has   map[seat]netip.Addr
}

// seat is a node's place for an address of a project. A node has at most one address for each project.
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

// assigner is the input of a round.
type assigner struct {
	claims *claims
	// nodes are the nodes with ranges, sorted by name.
	nodes []Node
	// order has the addresses that can be assigned, in the order of assignment; project has the VNID that each belongs to.
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
	a.distrust()
	for _, ip := range a.claims.turns() {
		if vnids := a.claims.vnids[ip]; len(vnids) == 1 && !byHand.has(ip) {
			a.order, a.project[ip] = append(a.order, ip), vnids[0]
		}
	}
	return a
}

// distrust ignores the offline state if all nodes are reported offline: it is then more likely that the observer is disconnected.
func (a *assigner) distrust() {
	online := slices.ContainsFunc(a.nodes, func(n Node) bool { return !n.Offline })
	for i := range a.nodes {
		a.nodes[i].Offline = a.nodes[i].Offline && online
	}
}

// turns returns all wanted addresses: one of each project in turn, beginning with the projects that want the fewest.
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

// listed returns which node with ranges lists each address now. An address that several nodes list is left out.
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

// leave returns the addresses of offline nodes that other nodes can have. To find them it computes this round and the next one, without the
// offline nodes. An address that no other node can have stays.
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

// node returns the node with ranges that has this name.
func (a *assigner) node(name string) *Node {
	return &a.nodes[slices.IndexFunc(a.nodes, func(n Node) bool { return n.Name == name })]
}

// keep returns the addresses that stay on their nodes, and those that are removed from them. Addresses in release do not stay.
func (a *assigner) keep(now map[netip.Addr]string, release ipSet) (kept *placement, dropped ipSet) {
	kept, dropped = newPlacement(), ipSet{}
	for _, ip := range a.order {
		name, has := now[ip]
		if !has {
			if len(a.claims.nodes[ip]) > 0 { // several nodes list it: it is removed from all of them first
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

// refuses returns why a node cannot be given an address, in addition to what is placed already; "" if it can.
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

// unfit returns why a node cannot have an address, even if it has it now, in addition to what is placed already; "" if it can.
func (a *assigner) unfit(node *Node, ip netip.Addr, placed *placement) string {
	other, taken := placed.has[seat{node.Name, a.project[ip]}]
	switch {
	case !slices.ContainsFunc(node.CIDRs, func(c netip.Prefix) bool { return c.Contains(ip) }):
		return "has it not in its egressCIDRs"
	case node.refusal(ip) != "":
		return "cannot hold it: " + node.refusal(ip)
	case taken:
		return "has " + other.String() + " for this project already"
	case node.Limited && placed.count[node.Name] >= node.Capacity:
		return fmt.Sprintf("has all %d that it can have", node.Capacity)
	}
	return ""
}

// place assigns the addresses that are on no node, and adds them to placed: first those that only one node can have, then the others.
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

// best returns the node that an address is given to, and how many nodes can have it. It is the node with the fewest addresses, and among
// equal nodes the one with the most room.
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

// compareRoom orders nodes by how many more addresses they can have, most first.
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

// rebalance returns the addresses to remove from nodes so that empty nodes get their share.
func (a *assigner) rebalance(round *placement) ipSet {
	fresh := newPlacement()
	for ip, name := range round.at { // a node that has not answered yet gets and loses nothing
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
	// Compute the next round. If it is no better, everything stays.
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

// empty returns the nodes that have less than half of what they would have in a new assignment.
func (a *assigner) empty(round, fresh *placement) []string {
	var names []string
	for _, node := range a.nodes {
		if round.count[node.Name] < fresh.count[node.Name]/2 {
			names = append(names, node.Name)
		}
	}
	return names
}

// ordered returns the addresses that a node is to list.
func (a *assigner) ordered(node Node, round *placement) []netip.Addr {
	var list []netip.Addr
	for _, ip := range slices.Concat(node.IPs, a.order) {
		if round.at[ip] == node.Name && !slices.Contains(list, ip) {
			list = append(list, ip)
		}
	}
	return list
}

// explain returns why no node has an address, as problems of the namespaces that want it.
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
