package objects

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
)

// minMTU is the least MTU that every IPv4 host must support (RFC 791).
const minMTU = 576

// Subnet is a Subnet.
type Subnet struct {
	Meta
	// VPC is the name of the Vpc; empty for the pool of a NetworkAttachmentDefinition.
	VPC string
	// Definition is the NetworkAttachmentDefinition whose pool this is, as "<name>.<namespace>"; empty for a switch of a VPC.
	Definition string
	// Prefix is the range, Gateway the router's address in it.
	Prefix  netip.Prefix
	Gateway netip.Addr
	// Excludes are addresses that are assigned only if they are requested. They are sorted and do not overlap.
	Excludes []netipx.IPRange
	// Namespaces and Selectors bind namespaces to the subnet.
	Namespaces []string
	Selectors  []labels.Selector
	// MTU is that of the pods' interfaces; 0: the default.
	MTU int
	// RouteTable is that of the router's port; empty: the main one.
	RouteTable string
	// Stopped is why no pod gets an address any more, as text; empty: pods get addresses. Those that pods have stay, with the switch.
	Stopped string
	// Private, Allow, EastWest and ACLs are the rules of the switch.
	Private  bool
	Allow    []netip.Prefix
	EastWest bool
	ACLs     []ACL
	// TunnelKey is the datapath's key; 0: OVN chooses.
	TunnelKey int
	// Unsupported names the fields that are set and not supported.
	Unsupported []string
}

// ACL is a rule of a subnet's switch.
type ACL struct {
	// Ingress reports that the rule applies to packets to the subnet's pods; else it applies to packets from them.
	Ingress  bool
	Priority int
	// Match is an expression in OVN's language that was checked.
	Match  string
	Action string
}

// noTable is a route table that no Vpc has: validTable refuses its name.
const noTable = "weft:none"

// ParseSubnet reads a Subnet. ok is false if nothing of it can be used; otherwise the problems are those of fields that were ignored, or
// treated as drops, or of those that stop new addresses (Subnet.Stopped).
func ParseSubnet(subnet *kubeovn.Subnet) (s Subnet, problems Problems, ok bool) {
	spec := &subnet.Spec
	s = Subnet{
		Meta: Meta{Kind: "Subnet", Name: subnet.Name, UID: string(subnet.UID)}, VPC: spec.Vpc,
		Namespaces: slices.Clone(spec.Namespaces), RouteTable: spec.RouteTable,
		Private: spec.Private, EastWest: spec.AllowEWTraffic, TunnelKey: subnet.Status.TunnelKey, Unsupported: unsupportedSubnet(spec),
	}
	problems.binding(&s, spec) // also of a Subnet that cannot be used: the pods that it binds must not start on another network
	switch {
	case External(spec):
		s.Definition, s.VPC = strings.TrimSuffix(spec.Provider, "."+kubeovn.ProviderOVN), ""
	case spec.Vpc == "" || spec.Vpc == kubeovn.DefaultVpc:
		problems.add("spec.vpc", "is Kube-OVN's default VPC, whose place the overlay takes; name a Vpc; pods without a Subnet are on the overlay")
		return s, problems, false
	}
	if _, err := netip.ParseAddr(s.Name); err == nil && s.Definition == "" {
		problems.add("metadata.name", "%s is an IP address: a port of a Subnet that is named as this one's Vpc could have the same name in OVN; choose another name", s.Name)
		return s, problems, false
	}
	if ok = problems.addressing(&s, spec); !ok {
		return s, problems, false
	}
	known := len(problems)
	problems.excludes(&s, spec.ExcludeIps)
	if !validTable(spec.RouteTable) {
		problems.add("spec.routeTable", "%s is not a name of a route table; use letters, digits, '-', '_' and '.'", quote(spec.RouteTable))
		s.RouteTable = noTable // the routes of the main table may lead to where those of the intended one do not
	}
	s.Stopped = problems[known:].Error()
	for i, text := range spec.AllowSubnets {
		if strings.Contains(text, ":") && strings.Contains(spec.CIDRBlock, ":") {
			continue // the IPv6 side of a subnet of two families, which is not served
		}
		if prefix, ok := problems.prefix4(fmt.Sprintf("spec.allowSubnets[%d]", i), text, "10.0.2.0/24"); ok {
			s.Allow = append(s.Allow, prefix)
		}
	}
	for i, acl := range spec.Acls {
		s.ACLs = append(s.ACLs, problems.acl(fmt.Sprintf("spec.acls[%d]", i), acl))
	}
	return s, problems, true
}

// External reports whether a Subnet is the address pool of a NetworkAttachmentDefinition.
func External(spec *kubeovn.SubnetSpec) bool {
	return spec.Provider != "" && spec.Provider != kubeovn.ProviderOVN
}

// addressing reads the range and the fields that depend on it. False: the subnet cannot be used.
func (p *Problems) addressing(s *Subnet, spec *kubeovn.SubnetSpec) bool {
	block := FirstIPv4(spec.CIDRBlock)
	prefix, err := netip.ParsePrefix(block)
	switch {
	case err != nil || !prefix.Addr().Is4():
		p.add("spec.cidrBlock", "%s is not an IPv4 range; write one such as 10.0.1.0/24", quote(spec.CIDRBlock))
		return false
	case prefix.Bits() < 8 || prefix.Bits() > 30:
		p.add("spec.cidrBlock", "%s has no length between /8 and /30", quote(block))
		return false
	}
	s.Prefix = prefix.Masked()
	if isReserved(s.Prefix) {
		p.add("spec.cidrBlock", "%s overlaps addresses that no network may use (0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/3); write one such as 10.0.1.0/24", quote(block))
		return false
	}
	s.Gateway = s.Prefix.Addr().Next()
	if spec.Gateway != "" {
		gateway, ok := p.addr4("spec.gateway", FirstIPv4(spec.Gateway), s.Gateway.String())
		if !ok {
			return false
		}
		if !usable(s.Prefix, gateway) {
			p.add("spec.gateway", "%s is no address for a host in %s; write one such as %s", gateway, s.Prefix, s.Gateway)
			return false
		}
		s.Gateway = gateway
	}
	if mtu := int(spec.Mtu); mtu != 0 {
		if mtu < minMTU || mtu > 65535 {
			p.add("spec.mtu", "%d is not between %d and 65535; the default is used", mtu, minMTU)
		} else {
			s.MTU = mtu
		}
	}
	return true
}

// excludes reads the excluded addresses. If one cannot be read, all addresses of the range are excluded, because any could be meant.
func (p *Problems) excludes(s *Subnet, texts []string) {
	var set netipx.IPSetBuilder
	for i, text := range texts {
		field := fmt.Sprintf("spec.excludeIps[%d]", i)
		first, last, isRange := strings.Cut(text, "..")
		if !isRange {
			last = first
		}
		if strings.Contains(text, ":") {
			continue // the IPv6 side of a subnet of two families, which is not served
		}
		from, fromOK := p.addr4(field, first, "10.0.1.10..10.0.1.20")
		to, toOK := p.addr4(field, last, "10.0.1.10..10.0.1.20")
		if !fromOK || !toOK {
			set.AddPrefix(s.Prefix)
			continue
		}
		if to.Less(from) {
			p.add(field, "%s ends before it begins; write the lower address first", quote(text))
			set.AddPrefix(s.Prefix)
			continue
		}
		set.AddRange(netipx.IPRangeFrom(from, to))
	}
	built, err := set.IPSet()
	if err != nil {
		p.add("spec.excludeIps", "%v", err)
		s.Excludes = []netipx.IPRange{netipx.RangeOfPrefix(s.Prefix)}
		return
	}
	s.Excludes = built.Ranges()
}

// binding reads the selectors of namespaces. An invalid one selects nothing. It stays in the list: an empty list permits all namespaces.
func (p *Problems) binding(s *Subnet, spec *kubeovn.SubnetSpec) {
	for i := range spec.NamespaceSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&spec.NamespaceSelectors[i])
		if err != nil {
			p.add(fmt.Sprintf("spec.namespaceSelectors[%d]", i), "%v", err)
			selector = labels.Nothing()
		}
		s.Selectors = append(s.Selectors, selector)
	}
}

// acl reads a rule. An invalid one drops at its priority, in its direction, or in both directions if that is invalid too.
func (p *Problems) acl(field string, acl kubeovn.ACL) ACL {
	known := len(*p)
	r := ACL{Ingress: acl.Direction == "to-lport", Priority: acl.Priority, Match: acl.Match, Action: acl.Action}
	if acl.Direction != "to-lport" && acl.Direction != "from-lport" {
		p.add(field+".direction", "%s is neither from-lport nor to-lport", quote(acl.Direction))
		r.Ingress = true
	}
	if acl.Priority < 0 || acl.Priority > 32767 {
		p.add(field+".priority", "%d is not between 0 and 32767", acl.Priority)
		r.Priority = min(max(acl.Priority, 0), 32767)
	}
	if err := CheckMatch(acl.Match); err != nil {
		p.add(field+".match", "%s: %v; all packets of this direction are dropped at this priority until it is corrected", quote(acl.Match), err)
	}
	if !slices.Contains([]string{"allow", "allow-related", "allow-stateless", "drop", "reject"}, acl.Action) {
		p.add(field+".action", "%s is not allow, allow-related, allow-stateless, drop or reject", quote(acl.Action))
	}
	if len(*p) > known {
		r.Match, r.Action = matchAll, "drop"
	} else if err := CheckPorts(acl.Match, "net1/10.0.1.5"); err != nil {
		p.add(field+".match", "%s: %v", quote(acl.Match), err)
	}
	return r
}

// unsupportedSubnet returns the fields that are set and not supported, without those that have no effect in a VPC (such as
// disableGatewayCheck).
func unsupportedSubnet(spec *kubeovn.SubnetSpec) []string {
	var fields []string
	for field, set := range map[string]bool{
		"default":                 spec.Default,
		"vlan":                    spec.Vlan != "",
		"logicalGateway":          spec.LogicalGateway,
		"vips":                    len(spec.Vips) > 0,
		"gatewayType":             spec.GatewayType == "centralized",
		"gatewayNode":             spec.GatewayNode != "",
		"gatewayNodeSelectors":    len(spec.GatewayNodeSelectors) > 0,
		"enableEcmp":              spec.EnableEcmp,
		"natOutgoing":             spec.NatOutgoing,
		"natOutgoingPolicyRules":  len(spec.NatOutgoingPolicyRules) > 0,
		"externalEgressGateway":   spec.ExternalEgressGateway != "",
		"policyRoutingPriority":   spec.PolicyRoutingPriority != 0,
		"policyRoutingTableID":    spec.PolicyRoutingTableID != 0,
		"enableLb":                spec.EnableLb != nil && *spec.EnableLb,
		"enableExternalLBAddress": spec.EnableExternalLBAddress,
		"enableDHCP":              spec.EnableDHCP,
		"dhcpV4Options":           spec.DHCPv4Options != "",
		"dhcpV6Options":           spec.DHCPv6Options != "",
		"enableIPv6RA":            spec.EnableIPv6RA,
		"ipv6RAConfigs":           spec.IPv6RAConfigs != "",
		"u2oInterconnection":      spec.U2OInterconnection,
		"u2oInterconnectionIP":    spec.U2OInterconnectionIP != "",
		"u2oFeatures":             spec.U2OFeatures != nil,
		"enableMulticastSnoop":    spec.EnableMulticastSnoop,
		"nodeNetwork":             spec.NodeNetwork != "",
		"cidrBlock (IPv6)":        strings.Contains(spec.CIDRBlock, ":"),
		"protocol":                spec.Protocol == "IPv6" || spec.Protocol == "Dual",
	} {
		if set {
			fields = append(fields, "spec."+field)
		}
	}
	slices.Sort(fields)
	return fields
}

// FirstIPv4 returns the IPv4 side of "a,b", or the text itself.
func FirstIPv4(text string) string {
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); !strings.Contains(word, ":") {
			return word
		}
	}
	return text
}

// usable reports whether a host may have the address: it is in the range, and neither its first nor its last address.
func usable(prefix netip.Prefix, addr netip.Addr) bool {
	return prefix.Contains(addr) && addr != prefix.Addr() && addr != netipx.PrefixLastIP(prefix)
}

// isReserved reports whether the range overlaps addresses that hosts treat specially.
func isReserved(prefix netip.Prefix) bool {
	return slices.ContainsFunc([]netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{}), 8), netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 3),
	}, prefix.Overlaps)
}
