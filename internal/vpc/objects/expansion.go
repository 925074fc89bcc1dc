package objects

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// many is the largest number that is counted; sums and products of two such numbers do not overflow.
const many = 1_000_000_000

func plus(a, b int) int  { return min(a+b, many) }
func times(a, b int) int { return min(a*b, many) }

// expansion is what ovn-controller makes of a part of a match, as far as its size is concerned: an OR of conjunctions (expr_normalize in
// OVN's lib/expr.c). OVN has no limit for it. It multiplies where an AND is over ORs of different fields.
type expansion struct {
	// count is the number of conjunctions, with those that cannot be fulfilled: ovn-controller drops them only after it has made them.
	count int
	// conjunctions can be fulfilled, as far as is known here. If count is more than maxFlows, there are none, so that an expansion is small.
	conjunctions []conjunction

	// symbol is the only one that the part compares. OVN adds the prerequisites once to such a part, here resolve does. Without a symbol, the
	// two fields above are used.
	symbol string
	// comparisons are the parts of an OR: the number of values and prefixes of each. OVN joins an OR with the OR that it is in.
	comparisons []int
}

// conjunction is an AND of fields.
type conjunction struct {
	fields []alternatives
	// needsIP is a predicate whose negation includes the negation of ip, which OpenFlow cannot match: the match on eth.type is left out,
	// and the conjunction matches all packets, unless another part of it excludes those that are not of IP.
	needsIP string
	// later: it matches fragments except the first ones, which have no ports.
	later bool
}

// alternatives is the number of values and prefixes of a field of OpenFlow in a conjunction.
type alternatives struct {
	field   string
	n       int
	nominal bool // has single values only
}

// check returns an error if the whole match is too large, matches more packets than it says, or has flows that Open vSwitch refuses.
func (e expansion) check() error {
	if size := e.size(); size > maxFlows {
		number := fmt.Sprint(size)
		if size == many {
			number = "more than " + number
		}
		return fmt.Errorf("ovn-controller makes up to %s flows of it, at most %d are allowed: use fewer != and fewer || between &&, "+
			"or several rules; what != excludes can have a rule of higher priority", number, maxFlows)
	}
	for _, c := range e.resolve().conjunctions {
		if err := c.check(); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error if no flows express the conjunction. Open vSwitch refuses flows that match ports of later fragments (MFP_TCP in its
// lib/meta-flow.c). ovn-controller sends all changes of a node in one bundle, which fails as a whole, again and again.
func (c conjunction) check() error {
	has := func(test func(field string) bool) bool {
		return slices.ContainsFunc(c.fields, func(a alternatives) bool { return test(a.field) })
	}
	switch {
	case c.needsIP != "" && !has(func(field string) bool { return field == "eth.type" }):
		return fmt.Errorf("!%s needs the version of IP beside it, as in ip4 && !%s; OVN lets it match all packets otherwise", c.needsIP, c.needsIP)
	case c.later && has(func(field string) bool {
		return strings.HasPrefix(field, "tcp.") || strings.HasPrefix(field, "udp.") || strings.HasPrefix(field, "sctp.")
	}):
		return errors.New("later fragments have no ports and no flags of TCP; match ip.later_frag, or what is not ip.first_frag, without them")
	}
	return nil
}

// size returns the number of flows, or that of conjunctions before ovn-controller drops some, if there are more.
func (e expansion) size() int {
	e = e.resolve()
	flows := 0
	for _, c := range e.conjunctions {
		flows = plus(flows, c.flows())
	}
	return max(flows, e.count)
}

// flows returns how many flows a conjunction becomes: a conjunctive match, of one flow for each alternative and one for conj_id, once for
// each combination of the fields that OVN does not match in this way (must_crossproduct in OVN's lib/logical-fields.c).
func (c conjunction) flows() int {
	crossed, dimensions, sum := 1, 0, 0
	for _, a := range c.fields {
		switch {
		case a.n == 1:
		case slices.Contains([]string{"eth.type", "ip.proto", "icmp6.type", "icmp6.code"}, a.field):
			crossed = times(crossed, a.n)
		default:
			dimensions++
			sum = plus(sum, a.n)
		}
	}
	switch dimensions {
	case 0:
		return crossed
	case 1:
		return times(crossed, sum)
	default:
		return times(crossed, sum+1)
	}
}

// with returns the conjunction of both. An alternative of one and an alternative of the other make a prefix, or nothing; of two nominal
// ones, both are the same value.
func (c conjunction) with(other conjunction) conjunction {
	result := conjunction{fields: slices.Clone(c.fields), needsIP: c.needsIP, later: c.later || other.later}
	if other.needsIP != "" {
		result.needsIP = other.needsIP
	}
	for _, a := range other.fields {
		i := slices.IndexFunc(result.fields, func(have alternatives) bool { return have.field == a.field })
		if i < 0 {
			result.fields = append(result.fields, a)
		} else {
			result.fields[i] = result.fields[i].with(a)
		}
	}
	return result
}

func (a alternatives) with(other alternatives) alternatives {
	if a.nominal {
		a.n = min(a.n, other.n)
	} else {
		a.n = times(a.n, other.n)
	}
	return a
}

// constantly is the expansion of a part that matches everything or nothing. OVN removes it before it multiplies anything.
func constantly(matches bool) expansion {
	if matches {
		return single(conjunction{})
	}
	return expansion{}
}

func single(c conjunction) expansion { return expansion{count: 1, conjunctions: []conjunction{c}} }

// resolve adds the prerequisites of the only symbol.
func (e expansion) resolve() expansion {
	if e.symbol == "" {
		return e
	}
	return compare(e.symbol, e.alternatives())
}

// alternatives is the number of values and prefixes of the only symbol.
func (e expansion) alternatives() int {
	n := 0
	for _, comparison := range e.comparisons {
		n = plus(n, comparison)
	}
	return n
}

// compare is the expansion of comparisons of a symbol with its prerequisites.
func compare(symbol string, n int) expansion {
	if n == 0 {
		return constantly(false)
	}
	s, _ := symbolOf(symbol)
	field := alternatives{field: openFlowField(symbol), n: n, nominal: s.nominal}
	return allOf([]expansion{single(conjunction{fields: []alternatives{field}}), prerequisite(s)})
}

func prerequisite(s symbol) expansion {
	if s.prerequisite == "" {
		return constantly(true)
	}
	return predicateFlows(s.prerequisite, false)
}

// openFlowField returns the field that a symbol is a part of.
func openFlowField(name string) string {
	if name == "vlan.vid" || name == "vlan.pcp" {
		return "vlan.tci"
	}
	return name
}

// sameSymbol returns the symbol that is the only one of all parts, empty if there is none.
func sameSymbol(parts []expansion) string {
	for _, part := range parts {
		if part.symbol != parts[0].symbol {
			return ""
		}
	}
	return parts[0].symbol
}

// allOf is the expansion of an AND.
func allOf(parts []expansion) expansion {
	if symbol := sameSymbol(parts); symbol != "" {
		s, _ := symbolOf(symbol)
		a := alternatives{n: parts[0].alternatives(), nominal: s.nominal}
		for _, part := range parts[1:] {
			a = a.with(alternatives{n: part.alternatives()})
		}
		return expansion{symbol: symbol, comparisons: []int{a.n}}
	}
	resolved := make([]expansion, 0, len(parts))
	for _, part := range parts {
		resolved = append(resolved, part.resolve())
	}
	// Parts of one conjunction come first, so that the work is bounded: of the others, each doubles the count, up to maxFlows.
	slices.SortStableFunc(resolved, func(a, b expansion) int { return len(a.conjunctions) - len(b.conjunctions) })
	result := constantly(true)
	for _, part := range resolved {
		both := expansion{count: times(result.count, part.count)}
		if both.count <= maxFlows {
			for _, a := range result.conjunctions {
				for _, b := range part.conjunctions {
					both.conjunctions = append(both.conjunctions, a.with(b))
				}
			}
		}
		result = both
	}
	return result
}

// anyOf is the expansion of an OR.
func anyOf(parts []expansion) expansion {
	if symbol := sameSymbol(parts); symbol != "" {
		one := expansion{symbol: symbol}
		for _, part := range parts {
			one.comparisons = append(one.comparisons, part.comparisons...)
		}
		return one
	}
	var resolved []expansion
	for _, part := range parts {
		for _, n := range part.comparisons {
			resolved = append(resolved, compare(part.symbol, n))
		}
		if part.symbol == "" {
			resolved = append(resolved, part)
		}
	}
	if a, ok := oneField(resolved); ok {
		return single(conjunction{fields: []alternatives{a}})
	}
	var result expansion
	for _, part := range resolved {
		result.count = plus(result.count, part.count)
		for _, c := range part.conjunctions {
			one, n := c.split()
			if result.count = plus(result.count, n-1); result.count <= maxFlows {
				result.conjunctions = append(result.conjunctions, slices.Repeat([]conjunction{one}, n)...)
			}
		}
	}
	if result.count > maxFlows {
		result.conjunctions = nil
	}
	return result
}

// oneField returns the alternatives of an OR whose parts match one field, the same one.
func oneField(parts []expansion) (alternatives, bool) {
	var sum alternatives
	for _, part := range parts {
		if part.count != 1 || len(part.conjunctions) != 1 || len(part.conjunctions[0].fields) != 1 || part.conjunctions[0].needsIP != "" {
			return sum, false
		}
		a := part.conjunctions[0].fields[0]
		if sum.field != "" && a.field != sum.field {
			return sum, false
		}
		sum = alternatives{field: a.field, n: plus(sum.n, a.n), nominal: a.nominal}
	}
	return sum, true
}

// split returns what a conjunction is in an OR over several fields, where each alternative of a single field is a conjunction: one of them,
// and their number.
func (c conjunction) split() (conjunction, int) {
	if len(c.fields) != 1 {
		return c, 1
	}
	one := c.fields[0]
	one.n = 1
	return conjunction{fields: []alternatives{one}, needsIP: c.needsIP, later: c.later}, c.fields[0].n
}

// comparisonFlows is the expansion of a comparison. OVN makes one bit of the field an alternative for !=, and a prefix for each bit at which
// a number can begin to differ in an order (expr_simplify in OVN's lib/expr.c).
func comparisonFlows(name string, s symbol, operator string, values []constant) expansion {
	e := expansion{symbol: name}
	switch {
	case s.ordered(operator):
		e.comparisons = []int{prefixes(operator, values[0].number, s.bits)}
	case operator == "==":
		e.comparisons = slices.Repeat([]int{1}, len(values))
	default:
		n := 1
		for _, value := range values {
			n = times(n, value.bits)
		}
		e.comparisons = []int{n}
	}
	return e
}

// prefixes returns how many prefixes an order of numbers is.
func prefixes(operator string, number uint64, width int) int {
	less, equal := operator[0] == '<', len(operator) == 2
	ones := bits.OnesCount64(number)
	if !less {
		ones = width - ones
	}
	switch {
	case equal && ones == width:
		return 1 // all numbers
	case equal:
		return ones + 1
	default:
		return ones
	}
}

// fields returns a conjunction of fields with one alternative each.
func fields(names ...string) conjunction {
	var c conjunction
	for _, name := range names {
		s, _ := symbolOf(name)
		c.fields = append(c.fields, alternatives{field: name, n: 1, nominal: s.nominal})
	}
	return c
}

// predicateFlows is the expansion of a predicate, as OVN's lib/logical-fields.c defines them, or of its negation, if it can be negated.
func predicateFlows(name string, not bool) expansion {
	switch name {
	case "ip4", "ip6", "arp":
		return single(fields("eth.type"))
	case "ip":
		return anyOf([]expansion{single(fields("eth.type")), single(fields("eth.type"))})
	case "tcp", "udp", "sctp":
		return allOf([]expansion{single(fields("ip.proto")), predicateFlows("ip", false)})
	case "icmp4", "icmp6", "igmp":
		return single(fields("ip.proto", "eth.type"))
	case "icmp":
		return anyOf([]expansion{predicateFlows("icmp4", false), predicateFlows("icmp6", false)})
	case "nd_ns", "nd_na":
		return single(fields("icmp6.type", "icmp6.code", "ip.ttl", "ip.proto", "eth.type"))
	case "nd":
		c := fields("icmp6.type", "icmp6.code", "ip.ttl", "ip.proto", "eth.type")
		c.fields[0].n = 2
		return single(c)
	case "eth.mcast":
		return single(fields("eth.dst"))
	case "eth.bcast":
		c := fields("eth.dst")
		if not {
			c.fields[0].n = 48
		}
		return single(c)
	case "vlan.present":
		return single(fields("vlan.tci"))
	case "ct.trk", "ct.new", "ct.est", "ct.rel", "ct.rpl", "ct.inv":
		return single(fields("ct_state"))
	}
	return compositeFlows(name, not)
}

// compositeFlows is predicateFlows for those that include a version of IP. Their negations include its negation: each bit of eth.type is an
// alternative, and the flows of these do not match eth.type.
func compositeFlows(name string, not bool) expansion {
	// notIP is the number of conjunctions of the negation of ip, one bit of each of two values. With the version of IP beside it, none of
	// them can be fulfilled.
	const notIP = 16 * 16
	fragment := allOf([]expansion{single(fields("ip.frag")), predicateFlows("ip", false)})
	var e expansion
	switch {
	case name == "ip4.mcast" && not:
		return negation(name, alternatives{field: "eth.dst", n: 1}, alternatives{field: "ip4.dst", n: 4}, alternatives{n: 16})
	case name == "ip6.mcast" && not:
		return negation(name, alternatives{field: "eth.dst", n: 16}, alternatives{field: "ip6.dst", n: 8}, alternatives{n: 16})
	case name == "ip4.mcast":
		return single(fields("eth.dst", "ip4.dst", "eth.type"))
	case name == "ip6.mcast":
		return single(fields("eth.dst", "ip6.dst", "eth.type"))
	case name == "ip.first_frag" && not:
		later := compositeFlows("ip.later_frag", false)
		e = anyOf([]expansion{negation(name, alternatives{field: "ip.frag", n: 1}), later})
	case name == "ip.first_frag":
		e = fragment // ip.is_frag && !ip.later_frag
	case not:
		e = negation(name, alternatives{field: "ip.frag", n: 1})
	default:
		fragment.conjunctions[0].later = name == "ip.later_frag"
		return fragment
	}
	e.count = plus(e.count, notIP)
	return e
}

// negation is the expansion of the negation of a predicate that includes a version of IP; what has no field is a bit of eth.type.
func negation(predicate string, parts ...alternatives) expansion {
	var e expansion
	for _, part := range parts {
		c := conjunction{needsIP: predicate}
		if part.field != "" {
			c.fields = []alternatives{{field: part.field, n: 1}}
		}
		e.conjunctions = append(e.conjunctions, slices.Repeat([]conjunction{c}, part.n)...)
	}
	e.count = len(e.conjunctions)
	return e
}
