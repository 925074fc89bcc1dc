package egressfirewall

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// Key is the namespace and name of a policy.
type Key struct{ Namespace, Name string }

// String returns namespace/name.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Verdict is the decision on a packet.
type Verdict uint8

// The verdicts. The zero value denies.
const (
	Deny Verdict = iota
	Allow
)

// String returns the verdict as the API writes it.
func (v Verdict) String() string {
	if v == Allow {
		return string(networkv1.EgressNetworkPolicyRuleAllow)
	}
	return string(networkv1.EgressNetworkPolicyRuleDeny)
}

// Rule is one rule of a policy. It matches a range, or the addresses of a name.
type Rule struct {
	Verdict Verdict
	// CIDR is the range; if it is not valid, Name is used.
	CIDR netip.Prefix
	// Name is a DNS name in lower case, with the final dot.
	Name string
}

// Policy is a parsed EgressNetworkPolicy.
type Policy struct {
	Key
	// Rules are in the policy's order.
	Rules []Rule
	// Err is why the policy is invalid. Its namespace is then closed.
	Err error
	// Warnings say which parts are not used as they are written; at most a few.
	Warnings []string
}

// MaxRules is the maximum number of rules in a policy; the API has the same limit.
const MaxRules = 8000

// maxErrors limits the errors reported for one policy.
const maxErrors = 5

// FromObject parses an EgressNetworkPolicy. Errors are in Err, with the names of the fields.
func FromObject(o *networkv1.EgressNetworkPolicy) Policy {
	p := Policy{Key: Key{o.Namespace, o.Name}}
	if len(o.Spec.Egress) > MaxRules {
		p.Err = fmt.Errorf("spec.egress: %d rules, at most %d are possible", len(o.Spec.Egress), MaxRules)
		return p
	}
	var errs []error
	for i := range o.Spec.Egress {
		rule, err := fromRule(&o.Spec.Egress[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("spec.egress[%d].%w", i, err))
			continue
		}
		p.Rules = append(p.Rules, rule)
		if text := o.Spec.Egress[i].To.CIDRSelector; notCanonical(text) && len(p.Warnings) < maxErrors {
			p.Warnings = append(p.Warnings, fmt.Sprintf("spec.egress[%d].to.cidrSelector: %s has bits set right of the prefix, and is taken as %s", i, text, rule.CIDR))
		}
	}
	if more := len(errs) - maxErrors; more > 0 {
		errs = append(errs[:maxErrors:maxErrors], fmt.Errorf("and %d more", more))
	}
	if len(errs) > 0 {
		p.Rules, p.Err = nil, errors.Join(errs...)
	}
	return p
}

func fromRule(o *networkv1.EgressNetworkPolicyRule) (Rule, error) {
	var rule Rule
	switch o.Type {
	case networkv1.EgressNetworkPolicyRuleAllow:
		rule.Verdict = Allow
	case networkv1.EgressNetworkPolicyRuleDeny:
	default:
		return rule, fmt.Errorf("type: %.40q: it is Allow or Deny", string(o.Type))
	}
	var err error
	switch {
	case (o.To.CIDRSelector == "") == (o.To.DNSName == ""):
		return rule, errors.New("to: exactly one of cidrSelector and dnsName must be set")
	case o.To.DNSName != "":
		rule.Name, err = ParseName(o.To.DNSName)
		return rule, within("to.dnsName", err)
	default:
		rule.CIDR, err = parseCIDR(o.To.CIDRSelector)
		return rule, within("to.cidrSelector", err)
	}
}

func within(field string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", field, err)
}

// notCanonical reports whether a range has bits set to the right of its prefix.
func notCanonical(text string) bool {
	prefix, err := netip.ParsePrefix(text)
	return err == nil && prefix != prefix.Masked()
}

// parseCIDR parses a range. Bits to the right of the prefix are ignored, as in OpenShift SDN. 0.0.0.0/32 is read as 0.0.0.0/0: some users
// once wrote it for all addresses.
func parseCIDR(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil || !prefix.Addr().Is4():
		return netip.Prefix{}, fmt.Errorf("%.40q is not an IPv4 range such as 192.0.2.0/24", text)
	case prefix == netip.PrefixFrom(netip.IPv4Unspecified(), prefix.Addr().BitLen()):
		return everything(), nil
	}
	return prefix.Masked(), nil
}

// Limits of names (RFC 1035, 2.3.4), without the final dot.
const (
	maxName  = 253
	maxLabel = 63
)

// ParseName returns a name as rules contain it: in lower case, with the final dot. Names are absolute: no search list is applied.
func ParseName(text string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	if name == "" || len(name) > maxName {
		return "", fmt.Errorf("%.40q: a name has 1 to %d characters", text, maxName)
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return "", fmt.Errorf("%q is an address: write cidrSelector: %s/32", text, name)
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > maxLabel {
			return "", fmt.Errorf("%.80q: the parts between dots have 1 to %d characters", text, maxLabel)
		}
		if strings.ContainsFunc(label, notInNames) {
			return "", fmt.Errorf("%.80q: letters, digits, hyphens and dots are possible, and no wildcards", text)
		}
	}
	return name + ".", nil
}

func notInNames(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
}

// everything is the range of all addresses.
func everything() netip.Prefix { return netip.PrefixFrom(netip.IPv4Unspecified(), 0) }
