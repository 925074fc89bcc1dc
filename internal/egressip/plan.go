package egressip

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Namespace is a namespace and the egress IPs that it wants.
type Namespace struct {
	Name string
	// VNID is the project's VNID. Namespaces with the same VNID share their addresses.
	VNID uint32
	// IPs are the wanted addresses, in order of preference. None: the traffic leaves by the nodes of the pods.
	IPs []netip.Addr
}

// Node is a node and the egress IPs that it hosts.
type Node struct {
	Name string
	// IPs are the addresses that the node is to hold.
	IPs []netip.Addr
	// CIDRs are the ranges from which Assign may give addresses to the node. None: IPs are set by hand.
	CIDRs []netip.Prefix
	// Limited says that the node can hold at most Capacity addresses.
	Limited  bool
	Capacity int
	// Refused has the addresses that the node reports it cannot hold, with the reason. For these the node does not count.
	Refused map[netip.Addr]string
	// RefusedAbove is the address above which every address counts as refused, because the node's report has no room for more. The zero
	// value: none does.
	RefusedAbove netip.Addr
	// Offline says that the node does not answer. Addresses that another node can have are removed from it. Used only by Assign.
	Offline bool
	// Unproven says that the node is not known to answer. It keeps its addresses and gets no new ones. Used only by Assign.
	Unproven bool
}

// refusal returns why the node cannot hold an address; "" if it does not refuse it.
func (n *Node) refusal(ip netip.Addr) string {
	if why := n.Refused[ip]; why != "" || !n.RefusedAbove.IsValid() || ip.Compare(n.RefusedAbove) <= 0 {
		return why
	}
	return fmt.Sprintf("its status has no room for more refused addresses, so every address above %s counts as refused: remove the refused addresses from NetNamespaces or from its egressCIDRs", n.RefusedAbove)
}

// Holder is an address in use, and the node that holds it.
type Holder struct {
	IP   netip.Addr
	Node string
}

// Way is how the traffic of a project with egress IPs leaves.
type Way struct {
	VNID uint32
	// Namespaces are the project's namespaces that want addresses, sorted.
	Namespaces []string
	// Holders are the addresses in use, in order of preference, each on a different node. None: nothing leaves.
	Holders []Holder
}

// Kinds of the object of a Problem.
const (
	KindNamespace = "NetNamespace"
	KindNode      = "HostSubnet"
)

// Reasons of problems.
const (
	// ReasonConflict means that an address is claimed more than once.
	ReasonConflict = "EgressIPConflict"
	// ReasonUnassigned means that no node has an address.
	ReasonUnassigned = "EgressIPUnassigned"
	// ReasonRefused means that the node that lists an address cannot hold it.
	ReasonRefused = "EgressIPRefused"
)

// Problem is why an address is not used.
type Problem struct {
	Kind, Name string
	IP         netip.Addr
	Reason     string
	Message    string
}

// Plan is the result for all objects.
type Plan struct {
	// Ways has the way of each project that wants addresses, by VNID.
	Ways map[uint32]Way
	// Problems are sorted.
	Problems []Problem
}

// Held returns the addresses that a node holds, and the VNID of each.
func (p Plan) Held(node string) map[netip.Addr]uint32 {
	held := map[netip.Addr]uint32{}
	for vnid, way := range p.Ways {
		for _, holder := range way.Holders {
			if holder.Node == node {
				held[holder.IP] = vnid
			}
		}
	}
	return held
}

// NewPlan computes the plan from the addresses that namespaces want and nodes host.
func NewPlan(namespaces []Namespace, nodes []Node) Plan {
	c := newClaims(namespaces, nodes)
	plan := Plan{Ways: map[uint32]Way{}}
	for _, vnid := range slices.Sorted(maps.Keys(c.projects)) {
		project := c.projects[vnid]
		way := Way{VNID: vnid, Namespaces: project.namespaces}
		way.Holders, plan.Problems = c.judge(project, plan.Problems)
		plan.Ways[vnid] = way
	}
	for ip, listed := range c.nodes {
		if len(listed) < 2 {
			continue
		}
		for _, node := range listed {
			plan.Problems = append(plan.Problems, Problem{
				KindNode, node, ip, ReasonConflict,
				fmt.Sprintf("egressIPs: %s is listed by nodes %s: no traffic uses it until only one of them lists it", ip, strings.Join(listed, ", ")),
			})
		}
	}
	slices.SortFunc(plan.Problems, compareProblems)
	return plan
}

func compareProblems(a, b Problem) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), a.IP.Compare(b.IP), cmp.Compare(a.Message, b.Message))
}

// project has the addresses that all namespaces of one VNID want.
type project struct {
	vnid       uint32
	namespaces []string
	// ips are in order of preference, without duplicates; wants has the namespaces that want each.
	ips   []netip.Addr
	wants map[netip.Addr][]string
}

// claims has the claims on each address.
type claims struct {
	projects map[uint32]*project
	// vnids has the VNIDs that want an address, nodes the nodes that list it, sorted.
	vnids map[netip.Addr][]uint32
	nodes map[netip.Addr][]string
	// hosts has all nodes by name.
	hosts map[string]*Node
}

func newClaims(namespaces []Namespace, nodes []Node) *claims {
	c := &claims{projects: map[uint32]*project{}, vnids: map[netip.Addr][]uint32{}, nodes: map[netip.Addr][]string{}, hosts: map[string]*Node{}}
	ordered := slices.SortedFunc(slices.Values(namespaces), func(a, b Namespace) int { return cmp.Compare(a.Name, b.Name) })
	for _, ns := range ordered {
		if len(ns.IPs) == 0 {
			continue
		}
		p := c.projects[ns.VNID]
		if p == nil {
			p = &project{vnid: ns.VNID, wants: map[netip.Addr][]string{}}
			c.projects[ns.VNID] = p
		}
		p.namespaces = append(p.namespaces, ns.Name)
		for _, ip := range ns.IPs {
			if p.wants[ip] == nil {
				p.ips = append(p.ips, ip)
				c.vnids[ip] = append(c.vnids[ip], ns.VNID)
			}
			if !slices.Contains(p.wants[ip], ns.Name) {
				p.wants[ip] = append(p.wants[ip], ns.Name)
			}
		}
	}
	for i := range nodes {
		node := &nodes[i]
		c.hosts[node.Name] = node
		for _, ip := range node.IPs {
			if !slices.Contains(c.nodes[ip], node.Name) {
				c.nodes[ip] = append(c.nodes[ip], node.Name)
			}
		}
	}
	for _, listed := range c.nodes {
		slices.Sort(listed)
	}
	return c
}

// judge returns the addresses of a project that are in use, and adds the problems of the others.
func (c *claims) judge(p *project, problems []Problem) ([]Holder, []Problem) {
	var holders []Holder
	contested := false
	for _, ip := range p.ips {
		report := func(reason, format string, args ...any) {
			for _, ns := range p.wants[ip] {
				problems = append(problems, Problem{KindNamespace, ns, ip, reason, "egressIPs: " + fmt.Sprintf(format, args...)})
			}
		}
		listed := c.nodes[ip]
		switch {
		case !ip.IsGlobalUnicast():
			report(ReasonUnassigned, "%s is no address that a node can have: give an IPv4 address of the nodes' network", ip)
		case len(c.vnids[ip]) > 1:
			contested = true
			report(ReasonConflict, "%s is listed by %s as well: an address belongs to one project, and nothing leaves these projects until the others no longer list it", ip, c.others(p, ip))
		case len(listed) == 0:
			report(ReasonUnassigned, "%s is hosted by no node: list it in egressIPs of a HostSubnet, or have it in egressCIDRs of one", ip)
		case len(listed) > 1:
			report(ReasonConflict, "%s is listed by nodes %s: no traffic uses it until only one of them lists it", ip, strings.Join(listed, ", "))
		case c.hosts[listed[0]].refusal(ip) != "":
			report(ReasonRefused, "%s is not used: node %s cannot hold it: %s", ip, listed[0], c.hosts[listed[0]].refusal(ip))
		default:
			at := slices.IndexFunc(holders, func(h Holder) bool { return h.Node == listed[0] })
			if at >= 0 {
				report(ReasonConflict, "%s is not used: node %s has %s for this project already, and one address of a project is all that a node can use", ip, listed[0], holders[at].IP)
				continue
			}
			holders = append(holders, Holder{ip, listed[0]})
		}
	}
	if contested {
		return nil, problems
	}
	return holders, problems
}

// others returns the namespaces of other projects that want an address, as text.
func (c *claims) others(p *project, ip netip.Addr) string {
	const most = 5
	var names []string
	for _, vnid := range c.vnids[ip] {
		if vnid != p.vnid {
			names = append(names, c.projects[vnid].wants[ip]...)
		}
	}
	slices.Sort(names)
	if more := len(names) - most; more > 0 {
		names = append(names[:most:most], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
