// Package objects compiles stackube's objects to the desired state in OpenStack. It is pure: it makes no calls and reads no clock.
package objects

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	"go4.org/netipx"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/internal/neutron/cloud"
)

// TenantNamespace is the namespace of Tenants, as in stackube.
const TenantNamespace = "default"

// Reserved are ranges that a tenant's network must not overlap, by their description.
type Reserved map[string][]netip.Prefix

// Rules are the rules for a tenant's network: its range is in one of Allowed and overlaps none of Reserved. Nodes route pods' addresses, so
// that another network's range would send the nodes' own packets to a tenant's pods.
type Rules struct {
	Allowed  []netip.Prefix
	Reserved Reserved
}

// Refuses reports whether no pod may have the address.
func (r *Rules) Refuses(addr netip.Addr) bool {
	contains := func(p netip.Prefix) bool { return p.Contains(addr) }
	for _, ranges := range r.Reserved {
		if slices.ContainsFunc(ranges, contains) {
			return true
		}
	}
	return !slices.ContainsFunc(r.Allowed, contains)
}

// Within returns the addresses of pools that pods may have, each once. A project chooses how large its pools are, and the configuration what
// is allowed of them: only that is searched for free addresses.
func (r *Rules) Within(pools []ahead.Range) []ahead.Range {
	var left, allowed netipx.IPSetBuilder
	for _, p := range pools {
		if all := netipx.IPRangeFrom(p.First, p.Last); all.IsValid() {
			left.AddRange(all)
		}
	}
	for _, p := range r.Allowed {
		allowed.AddPrefix(p)
	}
	set, err := allowed.IPSet()
	if err != nil {
		return nil // an invalid range allows nothing
	}
	left.Intersect(set)
	for _, ranges := range r.Reserved {
		for _, p := range ranges {
			left.RemovePrefix(p)
		}
	}
	if set, err = left.IPSet(); err != nil {
		return nil
	}
	var within []ahead.Range
	for _, all := range set.Ranges() {
		within = append(within, ahead.Range{First: all.From(), Last: all.To()})
	}
	return within
}

// NetworkName is stackube's name of a network and its router in OpenStack.
func NetworkName(namespace, name string) string { return "kube-" + namespace + "-" + name }

// Owner is the owner in the marks of a network's objects in OpenStack.
func Owner(n *stackubev1.Network) string { return networkOwner + string(n.UID) }

// OfNetwork reports whether an owner is a Network.
func OfNetwork(owner string) bool { return strings.HasPrefix(owner, networkOwner) }

const networkOwner = "network/"

// Compile returns the network that a Network of a project requests. The error names each invalid field; a Network with networkID compiles
// to nothing and must not be passed.
func Compile(n *stackubev1.Network, project string, rules *Rules) (cloud.Network, error) {
	name := NetworkName(n.Namespace, n.Name)
	var errs []error
	cidr, err := netip.ParsePrefix(n.Spec.CIDR)
	switch {
	case err != nil || !cidr.Addr().Is4() || cidr.Masked() != cidr:
		errs = append(errs, fmt.Errorf("spec.cidr: %q is not an IPv4 range whose host bits are zero, such as 10.244.0.0/16", n.Spec.CIDR))
	default:
		errs = append(errs, errors.Join(allowed("spec.cidr", cidr, rules.Allowed), overlap("spec.cidr", cidr, rules.Reserved)))
	}
	subnet := cloud.Subnet{Name: name + "-subnet", CIDR: cidr}
	if g := n.Spec.Gateway; g != "" && errs[0] == nil {
		if subnet.Gateway, err = gateway(g, cidr); err != nil {
			errs = append(errs, err)
		}
	}
	second, err := subnet6(n, name, rules)
	errs = append(errs, err)
	all := []cloud.Subnet{subnet}
	if second != nil {
		all = append(all, *second)
	}
	for i, text := range n.Spec.DNSServers {
		addr, err := netip.ParseAddr(text)
		switch {
		case err != nil || addr.Zone() != "" || addr.Is4In6():
			errs = append(errs, fmt.Errorf("spec.dnsServers[%d]: %q is not an address", i, text))
		case addr.Is6() && second != nil: // Neutron refuses a name server of another family than the subnet's
			all[1].DNS = append(all[1].DNS, addr)
		default:
			all[0].DNS = append(all[0].DNS, addr)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return cloud.Network{}, err
	}
	return cloud.Network{Owner: Owner(n), Name: name, Project: project, Subnets: all}, nil
}

// subnet6 returns the IPv6 subnet that a Network requests; nil: none.
func subnet6(n *stackubev1.Network, name string, rules *Rules) (*cloud.Subnet, error) {
	if n.Spec.IPv6CIDR == "" {
		return nil, nil //nolint:nilnil // no subnet is an answer here
	}
	cidr, err := netip.ParsePrefix(n.Spec.IPv6CIDR)
	if err != nil || !cidr.Addr().Is6() || cidr.Addr().Is4In6() || cidr.Masked() != cidr || cidr.Bits() > 120 || !cidr.Addr().IsGlobalUnicast() {
		return nil, fmt.Errorf("spec.ipv6CIDR: %q is not an IPv6 range of at least 256 addresses whose host bits are zero, such as fd00:10:244::/64", n.Spec.IPv6CIDR)
	}
	// Nodes do not route pods' IPv6 addresses: a range that other pods or nodes use is reached by the tenant's own router alone.
	if err := overlap("spec.ipv6CIDR", cidr, rules.Reserved); err != nil {
		return nil, err
	}
	// Neutron's own default is the subnet's first address, which is the anycast address of all its routers (RFC 4291, 2.6.1).
	subnet := &cloud.Subnet{Name: name + "-subnet-ipv6", CIDR: cidr, Gateway: cidr.Addr().Next()}
	if g := n.Spec.IPv6Gateway; g != "" {
		addr, err := netip.ParseAddr(g)
		if err != nil || !cidr.Contains(addr) || addr == cidr.Addr() {
			return nil, fmt.Errorf("spec.ipv6Gateway: %q is not an address in %s besides its first", g, cidr)
		}
		subnet.Gateway = addr
	}
	return subnet, nil
}

// Refusal returns why pods of a Network of a project must not be on a network in OpenStack; "" if they may. owner is that in the network's mark,
// "" without a mark. With networkID, the network must be the project's, or held.Shared with it. It must not be one that Weft created for another
// Network, whose pods would not be isolated, nor an external one, whose addresses are not the tenant's.
func Refusal(n *stackubev1.Network, held *cloud.HeldNetwork, project, owner string) string {
	own := owner == Owner(n)
	switch {
	case n.Spec.NetworkID == "" && own:
		return ""
	case n.Spec.NetworkID == "":
		return "is not the one that Weft created for this Network"
	case held.ID != n.Spec.NetworkID:
		return "is not the one that is given"
	case held.ProjectID != project && !held.Shared:
		return "is neither of the tenant's project nor shared"
	case OfNetwork(owner) && !own:
		return "is the one of another Network object"
	case held.External:
		return "is an external network"
	}
	return ""
}

// Adoptable returns why no pod can have an address of a network that networkID names: its pods' subnet is outside of all allowed ranges, or
// within a reserved one. Where a part of the subnet is refused, pods get the other addresses. A network without a subnet has no error here.
func Adoptable(n *stackubev1.Network, held *cloud.HeldNetwork, rules *Rules) error {
	id, _, _ := PodSubnet(n, held) // empty with an error
	at := slices.IndexFunc(held.Held, func(s subnets.Subnet) bool { return s.ID == id })
	if at < 0 {
		return nil
	}
	cidr, err := netip.ParsePrefix(held.Held[at].CIDR)
	if err != nil {
		return fmt.Errorf("spec.networkID: subnet %s: %w", id, err)
	}
	if !slices.ContainsFunc(rules.Allowed, cidr.Overlaps) {
		return allowed("spec.networkID", cidr, rules.Allowed)
	}
	within := Reserved{}
	for what, ranges := range rules.Reserved {
		for _, p := range ranges {
			if p.Bits() <= cidr.Bits() && p.Contains(cidr.Addr()) {
				within[what] = append(within[what], p)
			}
		}
	}
	return overlap("spec.networkID", cidr, within)
}

func allowed(field string, cidr netip.Prefix, ranges []netip.Prefix) error {
	if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Bits() <= cidr.Bits() && p.Contains(cidr.Addr()) }) {
		return nil
	}
	return fmt.Errorf("%s: %s is in none of the ranges for tenants' networks, %v: choose one of them, or add it to the chart's neutron.ranges", field, cidr, ranges)
}

// overlap names one range of each kind, in a fixed order: the same objects result in the same text.
func overlap(field string, cidr netip.Prefix, reserved Reserved) error {
	var errs []error
	for _, what := range slices.Sorted(maps.Keys(reserved)) {
		at := slices.IndexFunc(reserved[what], cidr.Overlaps)
		if at >= 0 {
			errs = append(errs, fmt.Errorf("%s: %s overlaps %s, %s: choose another range", field, cidr, what, reserved[what][at]))
		}
	}
	return errors.Join(errs...)
}

// gateway checks that an address can be a router's: in the range, and neither its first nor its last address.
func gateway(text string, cidr netip.Prefix) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || !cidr.Contains(addr) {
		return netip.Addr{}, fmt.Errorf("spec.gateway: %q is not an address in %s", text, cidr)
	}
	if addr == cidr.Addr() || !cidr.Contains(addr.Next()) {
		return netip.Addr{}, fmt.Errorf("spec.gateway: %s is the network's or the broadcast address of %s", addr, cidr)
	}
	return addr, nil
}
