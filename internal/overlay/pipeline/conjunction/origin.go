package conjunction

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
)

// Origin says what the flows of an owner were compiled from.
type Origin struct {
	// Policies are the policies of the rules, sorted. Equal rules of several policies are one, and all rules for an address name it.
	Policies []policy.Key
	// More says that the list is incomplete.
	More bool
	// Address is the address that the flow matches, invalid if it matches none.
	Address netip.Prefix
}

// Origins returns the origin of each owner's flows, with at most this many policies each. If first is among them, it comes first.
func (x *Compiler) Origins(most int, first policy.Key) map[reconcile.Owner]Origin {
	h := x.holders()
	firsts := x.policies[first]
	origin := func(named iter.Seq[*conjunction], has func(*conjunction) bool) Origin {
		if slices.ContainsFunc(firsts, has) {
			return h.origin(most, named, &first)
		}
		return h.origin(most, named, nil)
	}
	origins := make(map[reconcile.Owner]Origin, len(x.byName)+len(x.terms))
	for _, c := range x.byName {
		if c.active {
			origins[c.owner()] = origin(slices.Values([]*conjunction{c}), func(other *conjunction) bool { return other == c })
		}
	}
	for t, uses := range x.terms {
		from := origin(maps.Keys(uses), func(c *conjunction) bool { return uses[c] != nil })
		if t.end != endService {
			from.Address = t.prefix
		}
		origins[t.owner()] = from
	}
	return origins
}

// holders are the sorted policies of each conjunction. An address may be named by all policies of a cluster, and a node's tables have
// thousands of addresses. So joined lists are built from few policies of each conjunction.
type holders struct {
	lists map[*conjunction][]policy.Key
	// ranks orders conjunctions by their first policies.
	ranks map[*conjunction]int
}

func (x *Compiler) holders() holders {
	h := holders{lists: map[*conjunction][]policy.Key{}, ranks: map[*conjunction]int{}}
	for rank, key := range slices.SortedFunc(maps.Keys(x.policies), comparePolicies) {
		for _, c := range x.policies[key] {
			held := h.lists[c]
			if len(held) == 0 {
				h.ranks[c] = rank
			}
			if len(held) == 0 || held[len(held)-1] != key { // two rules of a policy may be equal
				h.lists[c] = append(held, key)
			}
		}
	}
	return h
}

// origin joins the policies of conjunctions. first comes before all others unless it is nil.
func (h *holders) origin(most int, named iter.Seq[*conjunction], first *policy.Key) Origin {
	// The lowest policies are all in the lists with the lowest beginnings.
	var lowest []int
	for c := range named {
		at, there := slices.BinarySearch(lowest, h.ranks[c])
		if !there && at <= most {
			lowest = slices.Insert(lowest, at, h.ranks[c])
			lowest = lowest[:min(len(lowest), most+1)]
		}
	}
	var joined []policy.Key
	for c := range named {
		if h.ranks[c] <= lowest[len(lowest)-1] {
			list := h.lists[c]
			joined = append(joined, list[:min(len(list), most+1)]...)
		}
	}
	slices.SortFunc(joined, comparePolicies)
	joined = slices.Compact(joined)
	if first != nil {
		joined = slices.Insert(slices.DeleteFunc(joined, func(k policy.Key) bool { return k == *first }), 0, *first)
	}
	return Origin{Policies: joined[:min(len(joined), most)], More: len(joined) > most}
}

func comparePolicies(a, b policy.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
