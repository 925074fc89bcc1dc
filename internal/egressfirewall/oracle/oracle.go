// Package oracle decides by the API's text about EgressNetworkPolicies alone where the pods of a namespace may send. It evaluates all rules
// for each packet, and shares no code with what it tests. It is for tests.
package oracle

import (
	"net/netip"
	"slices"
	"strings"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// World is everything that a verdict depends on.
type World struct {
	Policies []*networkv1.EgressNetworkPolicy
	// VNIDs has the VNID of each namespace.
	VNIDs map[string]uint32
	// Names has the addresses of names, in lower case and without the final dot; a missing name is unknown.
	Names map[string][]netip.Addr
}

// Allowed reports whether packets from a namespace's pods to an address outside the cluster may leave.
func (w World) Allowed(namespace string, to netip.Addr) bool {
	vnid, numbered := w.VNIDs[namespace]
	if numbered && vnid == 0 {
		return true // policies have no effect
	}
	together := []string{namespace}
	for other, number := range w.VNIDs {
		if numbered && other != namespace && number == vnid {
			together = append(together, other)
		}
	}
	var policies []*networkv1.EgressNetworkPolicy
	for _, p := range w.Policies {
		if slices.Contains(together, p.Namespace) && len(p.Spec.Egress) > 0 { // a policy without rules has no effect
			policies = append(policies, p)
		}
	}
	switch {
	case len(policies) == 0:
		return true
	case len(policies) > 1 || len(together) > 1:
		return false
	}
	rules := policies[0].Spec.Egress
	if slices.ContainsFunc(rules, func(r networkv1.EgressNetworkPolicyRule) bool { return !usable(&r) }) {
		return false
	}
	for i := range rules {
		if verdict, decides := w.judge(&rules[i], to); decides {
			return verdict
		}
	}
	return true
}

// judge reports whether a rule decides, and its verdict.
func (w World) judge(rule *networkv1.EgressNetworkPolicyRule, to netip.Addr) (allowed, decides bool) {
	deny := rule.Type == "Deny"
	if rule.To.DNSName != "" {
		addrs, known := w.Names[strings.ToLower(strings.TrimSuffix(rule.To.DNSName, "."))]
		if !known && deny {
			return false, true // the name may have any address
		}
		return !deny, slices.Contains(addrs, to)
	}
	text := rule.To.CIDRSelector
	if text == "0.0.0.0/32" {
		text = "0.0.0.0/0"
	}
	return !deny, netip.MustParsePrefix(text).Contains(to)
}

func usable(rule *networkv1.EgressNetworkPolicyRule) bool {
	if rule.Type != "Allow" && rule.Type != "Deny" {
		return false
	}
	if (rule.To.CIDRSelector == "") == (rule.To.DNSName == "") {
		return false
	}
	if rule.To.DNSName != "" {
		return !strings.ContainsAny(rule.To.DNSName, "*_ ")
	}
	prefix, err := netip.ParsePrefix(rule.To.CIDRSelector)
	return err == nil && prefix.Addr().Is4()
}
