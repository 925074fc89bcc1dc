package egressfirewall

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// MaxEntries is the maximum number of ranges of a firewall. A name may have thousands of addresses, and each costs about a kilobyte in the
// switch of every node. A firewall with more ranges is closed.
const MaxEntries = 10_000

// Firewall defines which destinations outside the cluster the pods of a namespace may reach.
type Firewall struct {
	// Closed is the reason why nothing may leave; "": Entries decide.
	Closed string
	// TooLarge says that it is closed because its rules result in more than MaxEntries ranges. Only a node that resolves the names can detect
	// this.
	TooLarge bool
	// Entries have different ranges, longest prefix first. The first range that contains a destination decides; the last one contains all.
	Entries []Entry
}

// Entry is a range and its verdict.
type Entry struct {
	To      netip.Prefix
	Verdict Verdict
	// Rule is the index of the rule that the entry comes from, or NoRule.
	Rule int
	// Name is the DNS name in the rule, if any.
	Name string
	// Unknown says that the addresses of Name are not known and the rule denies them: all addresses are denied.
	Unknown bool
}

// NoRule is the Rule of the entry for destinations that no rule matches: they are allowed.
const NoRule = -1

// Equal reports whether two firewalls are the same.
func (f *Firewall) Equal(other *Firewall) bool {
	if f == nil || other == nil {
		return f == other
	}
	return f.Closed == other.Closed && slices.Equal(f.Entries, other.Entries)
}

// Verdict returns the verdict on a destination.
func (f *Firewall) Verdict(to netip.Addr) Verdict {
	for i := range f.Entries {
		if f.Entries[i].To.Contains(to) {
			return f.Entries[i].Verdict
		}
	}
	return Deny
}

// Addresses returns the addresses of a name; known is false until they are known.
type Addresses func(name string) (addrs []netip.Addr, known bool)

// Compile compiles rules, of which the first match decides, to a firewall.
//
// A range inside the range of an earlier rule never decides, and is left out. If two remaining ranges overlap, one contains the other, and
// the longer prefix belongs to the earlier rule. Therefore the longest prefix decides.
func Compile(rules []Rule, addresses Addresses) Firewall {
	c := compiler{seen: map[netip.Prefix]struct{}{}}
	for i, rule := range rules {
		if rule.Name == "" {
			c.add(Entry{To: rule.CIDR, Verdict: rule.Verdict, Rule: i})
		} else {
			c.name(i, rule, addresses)
		}
		if len(c.entries) > MaxEntries {
			return Firewall{
				Closed:   fmt.Sprintf("its rules come to more than %d ranges and addresses of names, up to spec.egress[%d] (%s)", MaxEntries, i, rule.Name),
				TooLarge: true,
			}
		}
	}
	c.add(Entry{To: everything(), Verdict: Allow, Rule: NoRule})
	slices.SortFunc(c.entries, func(a, b Entry) int {
		return cmp.Or(-cmp.Compare(a.To.Bits(), b.To.Bits()), a.To.Addr().Compare(b.To.Addr()))
	})
	return Firewall{Entries: c.entries}
}

type compiler struct {
	entries []Entry
	seen    map[netip.Prefix]struct{}
	// lengths has a bit for each prefix length seen.
	lengths uint64
}

// name adds the addresses of a name. As long as they are not known, they can be any address: a rule that allows the name then allows no
// address, and one that denies it denies all.
func (c *compiler) name(place int, rule Rule, addresses Addresses) {
	addrs, known := addresses(rule.Name)
	if !known && rule.Verdict == Deny {
		c.add(Entry{To: everything(), Verdict: Deny, Rule: place, Name: rule.Name, Unknown: true})
		return
	}
	for _, addr := range addrs {
		if addr = addr.Unmap(); addr.Is4() { // IPv6 is closed in any case
			c.add(Entry{To: netip.PrefixFrom(addr, addr.BitLen()), Verdict: rule.Verdict, Rule: place, Name: rule.Name})
		}
	}
}

// add adds an entry unless an earlier one covers it.
func (c *compiler) add(e Entry) {
	if c.hidden(e.To) {
		return
	}
	c.seen[e.To] = struct{}{}
	c.lengths |= 1 << e.To.Bits()
	c.entries = append(c.entries, e)
}

func (c *compiler) hidden(to netip.Prefix) bool {
	for bits := range to.Bits() + 1 {
		if c.lengths&(1<<bits) == 0 {
			continue
		}
		if _, seen := c.seen[netip.PrefixFrom(to.Addr(), bits).Masked()]; seen {
			return true
		}
	}
	return false
}
