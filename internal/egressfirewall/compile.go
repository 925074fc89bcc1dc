package egressfirewall

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// MaxEntries is the most ranges that a firewall may come to: a name may stand for thousands of addresses, and each costs the
// switch of every node about a kilobyte. One that comes to more is closed.
const MaxEntries = 10_000

// Firewall is what a namespace's pods may reach outside the cluster.
type Firewall struct {
	// Closed says in words why nothing may leave; "": Entries say what may.
	Closed string
	// TooLarge says that it is closed because its rules come to more than MaxEntries. Only who resolves its names can know.
	TooLarge bool
	// Entries have different ranges, longest first. Of those that hold a destination, the first decides; the last holds all.
	Entries []Entry
}

// Entry is a range and what becomes of what is sent there.
type Entry struct {
	To      netip.Prefix
	Verdict Verdict
	// Rule is the place, from 0, of the rule that it comes from, or NoRule.
	Rule int
	// Name is the rule's, if it has one.
	Name string
	// Unknown says that the addresses of Name are not known, and that the rule denies them: all are denied.
	Unknown bool
}

// NoRule is the place of what no rule matches: that is allowed.
const NoRule = -1

// Equal reports whether two firewalls are the same.
func (f *Firewall) Equal(other *Firewall) bool {
	if f == nil || other == nil {
		return f == other
	}
	return f.Closed == other.Closed && slices.Equal(f.Entries, other.Entries)
}

// Verdict judges a destination.
func (f *Firewall) Verdict(to netip.Addr) Verdict {
	for i := range f.Entries {
		if f.Entries[i].To.Contains(to) {
			return f.Entries[i].Verdict
		}
	}
	return Deny
}

// Addresses returns what a name stands for; known is false while nobody has said.
type Addresses func(name string) (addrs []netip.Addr, known bool)

// Compile makes a firewall of rules of which the first that matches decides.
//
// A range within that of an earlier rule never decides, and is left out. Of two that are left and overlap, one holds the other,
// and the longer one is the earlier rule's: so the longest decides.
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
	// lengths has a bit for each length of a range that was seen.
	lengths uint64
}

// name adds what a name stands for. What a name of which nothing is known stands for can be any address: a rule that allows
// it allows none, one that denies it denies all.
func (c *compiler) name(place int, rule Rule, addresses Addresses) {
	addrs, known := addresses(rule.Name)
	if !known && rule.Verdict == Deny {
		c.add(Entry{To: everything(), Verdict: Deny, Rule: place, Name: rule.Name, Unknown: true})
		return
	}
	for _, addr := range addrs {
		if addr = addr.Unmap(); addr.Is4() { // IPv6 is closed anyway
			c.add(Entry{To: netip.PrefixFrom(addr, addr.BitLen()), Verdict: rule.Verdict, Rule: place, Name: rule.Name})
		}
	}
}

// add adds an entry unless an earlier one hides it.
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
