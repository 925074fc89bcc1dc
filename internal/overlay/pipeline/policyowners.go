package pipeline

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
)

// PolicyOrigin is what the flows of an owner of Conjunctions come from.
type PolicyOrigin struct {
	// Policies are those whose rules they are, in order. A rule of several policies that says the same is one, and an address is
	// named by all rules that hold for it.
	Policies []policy.Key
	// More says that there are more of them.
	More bool
	// Address is the one that a flow names; not valid for others.
	Address netip.Prefix
}

// Origins returns what each owner's flows come from, with at most so many policies each; first stands before the others, where
// it is among them.
func (x *Conjunctions) Origins(most int, first policy.Key) map[reconcile.Owner]PolicyOrigin {
	h := x.holders()
	firsts := x.policies[first]
	origin := func(named iter.Seq[*conjunction], has func(*conjunction) bool) PolicyOrigin {
		if slices.ContainsFunc(firsts, has) {
			return h.origin(most, named, &first)
		}
		return h.origin(most, named, nil)
	}
	origins := make(map[reconcile.Owner]PolicyOrigin, len(x.byName)+len(x.terms))
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

// holders are the policies of each conjunction, in order. An address may be named by all policies of a cluster, and a node's tables have
// thousands of addresses: who joins the lists of all looks at few of them.
type holders struct {
	lists map[*conjunction][]policy.Key
	// ranks orders conjunctions by the first policy of each.
	ranks map[*conjunction]int
}

func (x *Conjunctions) holders() holders {
	h := holders{lists: map[*conjunction][]policy.Key{}, ranks: map[*conjunction]int{}}
	for rank, key := range slices.SortedFunc(maps.Keys(x.policies), comparePolicies) {
		for _, c := range x.policies[key] {
			held := h.lists[c]
			if len(held) == 0 {
				h.ranks[c] = rank
			}
			if len(held) == 0 || held[len(held)-1] != key { // two rules of one policy may say the same
				h.lists[c] = append(held, key)
			}
		}
	}
	return h
}

// origin joins the policies of conjunctions, with first before all others unless it is nil.
func (h *holders) origin(most int, named iter.Seq[*conjunction], first *policy.Key) PolicyOrigin {
	// The lowest policies are all in the lists that begin lowest.
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
	return PolicyOrigin{Policies: joined[:min(len(joined), most)], More: len(joined) > most}
}

func comparePolicies(a, b policy.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
