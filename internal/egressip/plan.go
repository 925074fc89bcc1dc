package egressip

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Namespace is what a namespace wants.
type Namespace struct {
	Name string
	// VNID is the project's: namespaces with the same one share their addresses.
	VNID uint32
	// IPs are the addresses that it wants, in order of preference. None: its traffic leaves by the pods' own nodes.
	IPs []netip.Addr
}

// Node is what a node hosts.
type Node struct {
	Name string
	// IPs are the addresses that it is to hold.
	IPs []netip.Addr
	// CIDRs are the ranges that Assign may give it addresses of. None: IPs are written by hand.
	CIDRs []netip.Prefix
	// Limited says that it can hold at most Capacity addresses.
	Limited  bool
	Capacity int
	// Refused are addresses that it says it cannot hold, and why: it does not count as their node.
	Refused map[netip.Addr]string
	// Offline says that it does not answer: what another can have instead is taken off it. Only Assign looks at it.
	Offline bool
	// Unproven says that it is not known to answer: it keeps what it has, and gets nothing. Only Assign looks at it.
	Unproven bool
}

// Holder is an address in use.
type Holder struct {
	IP   netip.Addr
	Node string
}

// Way is how traffic of a project that wants addresses leaves.
type Way struct {
	VNID uint32
	// Namespaces are those of the project that want any, in order.
	Namespaces []string
	// Holders are the addresses in use, in order of preference, each at another node. None: nothing leaves.
	Holders []Holder
}

// Kinds of objects that a Problem is about.
const (
	KindNamespace = "NetNamespace"
	KindNode      = "HostSubnet"
)

// Reasons of problems.
const (
	// ReasonConflict says that an address is claimed more than once.
	ReasonConflict = "EgressIPConflict"
	// ReasonUnassigned says that no node has an address.
	ReasonUnassigned = "EgressIPUnassigned"
	// ReasonRefused says that the node that lists an address cannot hold it.
	ReasonRefused = "EgressIPRefused"
)

// Problem is what keeps an address from being used.
type Problem struct {
	Kind, Name string
	IP         netip.Addr
	Reason     string
	Message    string
}

// Plan is the judgement of all objects.
type Plan struct {
	// Ways are of all projects that want addresses, by VNID.
	Ways map[uint32]Way
	// Problems are in order.
	Problems []Problem
}

// Held returns the addresses that a node holds, and the VNID that each is for.
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

// NewPlan judges what namespaces want and nodes host.
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

// project is what the namespaces of one VNID want together.
type project struct {
	vnid       uint32
	namespaces []string
	// ips are in order of preference, each once; wants says which namespaces want it.
	ips   []netip.Addr
	wants map[netip.Addr][]string
}

// claims are who claims which address.
type claims struct {
	projects map[uint32]*project
	// vnids are those that want an address, nodes are those that list it, in order.
	vnids map[netip.Addr][]uint32
	nodes map[netip.Addr][]string
	// refused are what nodes cannot hold, by their names, and why.
	refused map[string]map[netip.Addr]string
}

func newClaims(namespaces []Namespace, nodes []Node) *claims {
	c := &claims{projects: map[uint32]*project{}, vnids: map[netip.Addr][]uint32{}, nodes: map[netip.Addr][]string{}, refused: map[string]map[netip.Addr]string{}}
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
	for _, node := range nodes {
		c.refused[node.Name] = node.Refused
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

// judge returns the addresses of a project that are in use, and adds what is wrong with the others.
func (c *claims) judge(p *project, problems []Problem) ([]Holder, []Problem) {
	var holders []Holder
	contested := false
	for _, ip := range p.ips {
		tell := func(reason, format string, args ...any) {
			for _, ns := range p.wants[ip] {
				problems = append(problems, Problem{KindNamespace, ns, ip, reason, "egressIPs: " + fmt.Sprintf(format, args...)})
			}
		}
		listed := c.nodes[ip]
		switch {
		case !ip.IsGlobalUnicast():
			tell(ReasonUnassigned, "%s is no address that a node can have: give an IPv4 address of the nodes' network", ip)
		case len(c.vnids[ip]) > 1:
			contested = true
			tell(ReasonConflict, "%s is listed by %s as well: an address belongs to one project, and nothing leaves these projects until the others no longer list it", ip, c.others(p, ip))
		case len(listed) == 0:
			tell(ReasonUnassigned, "%s is hosted by no node: list it in egressIPs of a HostSubnet, or have it in egressCIDRs of one", ip)
		case len(listed) > 1:
			tell(ReasonConflict, "%s is listed by nodes %s: no traffic uses it until only one of them lists it", ip, strings.Join(listed, ", "))
		case c.refused[listed[0]][ip] != "":
			tell(ReasonRefused, "%s is not used: node %s cannot hold it: %s", ip, listed[0], c.refused[listed[0]][ip])
		default:
			at := slices.IndexFunc(holders, func(h Holder) bool { return h.Node == listed[0] })
			if at >= 0 {
				tell(ReasonConflict, "%s is not used: node %s has %s for this project already, and one address of a project is all that a node can use", ip, listed[0], holders[at].IP)
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

// others names the namespaces of other projects that want an address.
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
