package objects

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
)

// maxPolicyPriority is the highest priority of a user's policy route. Priorities 0 to 2 of the router are Weft's.
const maxPolicyPriority = 32765

// Meta identifies an object.
type Meta struct {
	// Kind, Name and UID are the object's.
	Kind, Name, UID string
}

// Owner returns the object's name in rows.
func (m Meta) Owner() string { return m.Kind + "/" + m.Name + "/" + m.UID }

// VPC is a Vpc.
type VPC struct {
	Meta
	// Namespaces may use the VPC's subnets; empty: all.
	Namespaces []string
	// Routes are the static routes, in the object's order.
	Routes []Route
	// Policies are the policy routes, in the object's order.
	Policies []Policy
	// Peerings are those that this side declares.
	Peerings []Peering
	// TunnelKey is the datapath's key; 0: OVN chooses.
	TunnelKey int
	// Unsupported names the fields that are set and not supported.
	Unsupported []string
}

// Route is a static route.
type Route struct {
	// Field is the path of the route in the object.
	Field string
	// Table is the route table; empty: the main one.
	Table string
	// Source reports that Prefix is matched with the source.
	Source bool
	// Prefix and NextHop are the route's.
	Prefix  netip.Prefix
	NextHop netip.Addr
}

// Action is the action of a policy route.
type Action string

// The actions.
const (
	Allow   Action = "allow"
	Drop    Action = "drop"
	Reroute Action = "reroute"
)

// Policy is a policy route.
type Policy struct {
	Priority int
	// Match is an expression in OVN's language that was checked.
	Match    string
	Action   Action
	NextHops []netip.Addr
}

// Peering is one side of a peering.
type Peering struct {
	// Remote is the other VPC's name.
	Remote string
	// Local is this side's address with the link's prefix length.
	Local netip.Prefix
}

// matchAll is the match of a rule that drops because its own match is invalid.
const matchAll = "1"

// ParseVPC reads a Vpc. The problems are those of invalid fields; the rest of the value can be used.
func ParseVPC(vpc *kubeovn.Vpc) (VPC, Problems) {
	v := VPC{
		Meta:       Meta{Kind: "Vpc", Name: vpc.Name, UID: string(vpc.UID)},
		Namespaces: slices.Clone(vpc.Spec.Namespaces), TunnelKey: vpc.Status.TunnelKey,
	}
	var problems Problems
	if vpc.Name == kubeovn.DefaultVpc {
		problems.add("metadata.name", "%s is Kube-OVN's default VPC, whose place the overlay takes; give the VPC another name", kubeovn.DefaultVpc)
		return v, problems
	}
	v.Unsupported = unsupportedVPC(&vpc.Spec)
	for i, route := range vpc.Spec.StaticRoutes {
		if r, ok := problems.route(fmt.Sprintf("spec.staticRoutes[%d]", i), route); ok {
			v.Routes = append(v.Routes, r)
		}
	}
	for i, policy := range vpc.Spec.PolicyRoutes {
		v.Policies = append(v.Policies, problems.policy(fmt.Sprintf("spec.policyRoutes[%d]", i), policy))
	}
	for i, peering := range vpc.Spec.VpcPeerings {
		field := fmt.Sprintf("spec.vpcPeerings[%d]", i)
		if p, ok := problems.peering(field, vpc.Name, peering); ok {
			if slices.ContainsFunc(v.Peerings, func(q Peering) bool { return q.Remote == p.Remote }) {
				problems.add(field+".remoteVpc", "%s is named twice; two VPCs have one peering", quote(p.Remote))
				continue
			}
			v.Peerings = append(v.Peerings, p)
		}
	}
	return v, problems
}

func unsupportedVPC(spec *kubeovn.VpcSpec) []string {
	var fields []string
	for field, set := range map[string]bool{
		"spec.defaultSubnet":        spec.DefaultSubnet != "",
		"spec.enableExternal":       spec.EnableExternal,
		"spec.extraExternalSubnets": len(spec.ExtraExternalSubnets) > 0,
		"spec.enableBfd":            spec.EnableBfd,
		"spec.bfdPort":              spec.BFDPort != nil && spec.BFDPort.Enabled,
		"spec.staticRoutes.bfdId":   slices.ContainsFunc(spec.StaticRoutes, func(r kubeovn.StaticRoute) bool { return r.BfdID != "" }),
		"spec.staticRoutes.ecmpMode": slices.ContainsFunc(spec.StaticRoutes, func(r kubeovn.StaticRoute) bool {
			return r.ECMPMode != ""
		}),
	} {
		if set {
			fields = append(fields, field)
		}
	}
	slices.Sort(fields)
	return fields
}

func (p *Problems) route(field string, route kubeovn.StaticRoute) (Route, bool) {
	prefix, prefixOK := p.prefix4(field+".cidr", route.CIDR, "10.1.0.0/16")
	hop, hopOK := p.addr4(field+".nextHopIP", route.NextHopIP, "10.0.1.254")
	tableOK := validTable(route.RouteTable)
	if !tableOK {
		p.add(field+".routeTable", "%s is not a name of a route table; use letters, digits, '-', '_' and '.'", quote(route.RouteTable))
	}
	policyOK := slices.Contains([]string{"", "policyDst", "policySrc"}, route.Policy)
	if !policyOK {
		p.add(field+".policy", "%s is neither policyDst nor policySrc", quote(route.Policy))
	}
	return Route{
		Field: field, Table: route.RouteTable, Source: route.Policy == "policySrc", Prefix: prefix, NextHop: hop,
	}, prefixOK && hopOK && tableOK && policyOK
}

// validTable reports whether the text may be the name of a route table. The main table has the empty name; OVN uses the name "global" for
// routes in all tables.
func validTable(name string) bool {
	return len(name) <= 63 && name != "global" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == ""
}

// policy reads a policy route. An invalid one drops at its priority.
func (p *Problems) policy(field string, policy kubeovn.PolicyRoute) Policy {
	known := len(*p)
	r := Policy{Priority: policy.Priority, Match: policy.Match, Action: Action(policy.Action)}
	if policy.Priority < 0 || policy.Priority > maxPolicyPriority {
		p.add(field+".priority", "%d is not between 0 and %d", policy.Priority, maxPolicyPriority)
		r.Priority = min(max(policy.Priority, 0), maxPolicyPriority)
	}
	if err := CheckMatch(policy.Match); err != nil {
		p.add(field+".match", "%s: %v; all packets are dropped at this priority until it is corrected", quote(policy.Match), err)
	}
	switch r.Action {
	case Allow, Drop:
	case Reroute:
		r.NextHops = p.nextHops(field+".nextHopIP", policy.NextHopIP)
	default:
		p.add(field+".action", "%s is not allow, drop or reroute", quote(policy.Action))
	}
	if len(*p) > known {
		return Policy{Priority: r.Priority, Match: matchAll, Action: Drop}
	}
	if err := CheckPorts(policy.Match, "test-vpc-1/net1"); err != nil {
		p.add(field+".match", "%s: %v", quote(policy.Match), err)
	}
	return r
}

func (p *Problems) nextHops(field, text string) []netip.Addr {
	if strings.TrimSpace(text) == "" {
		p.add(field, "a reroute needs a next hop, such as 10.0.1.254")
		return nil
	}
	var hops []netip.Addr
	for word := range strings.SplitSeq(text, ",") {
		if hop, ok := p.addr4(field, word, "10.0.1.254"); ok && !slices.Contains(hops, hop) {
			hops = append(hops, hop)
		}
	}
	return hops
}

func (p *Problems) peering(field, own string, peering kubeovn.VpcPeering) (Peering, bool) {
	local, err := netip.ParsePrefix(peering.LocalConnectIP)
	switch {
	case peering.RemoteVpc == own:
		p.add(field+".remoteVpc", "a VPC has no peering with itself; name another VPC")
	case peering.RemoteVpc == kubeovn.DefaultVpc:
		p.add(field+".remoteVpc", "%s is Kube-OVN's default VPC, whose place the overlay takes; name another VPC", kubeovn.DefaultVpc)
	case peering.RemoteVpc == "":
		p.add(field+".remoteVpc", "is empty; name the other VPC")
	case err != nil || !local.Addr().Is4():
		p.add(field+".localConnectIP", "%s is not an IPv4 address with a prefix length; write one such as 169.254.0.1/30", quote(peering.LocalConnectIP))
	case local.Bits() > 31 || local.Bits() < 31 && !usable(local.Masked(), local.Addr()):
		p.add(field+".localConnectIP", "%s is no address that a router can have; write one such as 169.254.0.1/30", quote(peering.LocalConnectIP))
	default:
		return Peering{Remote: peering.RemoteVpc, Local: local}, true
	}
	return Peering{}, false
}
