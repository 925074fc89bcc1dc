package pipeline

import (
	"cmp"
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
	holders := map[*conjunction][]policy.Key{}
	for _, key := range slices.SortedFunc(maps.Keys(x.policies), comparePolicies) {
		for _, c := range x.policies[key] {
			if held := holders[c]; len(held) == 0 || held[len(held)-1] != key { // two rules of one policy may say the same
				holders[c] = append(held, key)
			}
		}
	}
	origins := make(map[reconcile.Owner]PolicyOrigin, len(x.byName)+len(x.terms))
	for _, c := range x.byName {
		if c.active {
			origins[c.owner()] = originOf(most, first, holders[c])
		}
	}
	for t, uses := range x.terms {
		lists := make([][]policy.Key, 0, len(uses))
		for c := range uses {
			lists = append(lists, holders[c])
		}
		origin := originOf(most, first, lists...)
		if t.end != endService {
			origin.Address = t.prefix
		}
		origins[t.owner()] = origin
	}
	return origins
}

// originOf joins lists of policies, each in order. It keeps no more than it needs: an address may be named by all policies of a
// cluster.
func originOf(most int, first policy.Key, lists ...[]policy.Key) PolicyOrigin {
	var joined []policy.Key
	named := false
	for _, list := range lists {
		_, has := slices.BinarySearchFunc(list, first, comparePolicies)
		named = named || has
		joined = append(joined, list[:min(len(list), most+1)]...)
		if len(joined) > 16*(most+1) {
			joined = lowest(joined, most+1)
		}
	}
	joined = lowest(joined, most+1)
	if named {
		joined = slices.Insert(slices.DeleteFunc(joined, func(k policy.Key) bool { return k == first }), 0, first)
	}
	if len(joined) > most {
		return PolicyOrigin{Policies: joined[:most], More: true}
	}
	return PolicyOrigin{Policies: joined}
}

// lowest returns the first so many of some, in order and each once.
func lowest(keys []policy.Key, n int) []policy.Key {
	slices.SortFunc(keys, comparePolicies)
	keys = slices.Compact(keys)
	return keys[:min(n, len(keys))]
}

func comparePolicies(a, b policy.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
