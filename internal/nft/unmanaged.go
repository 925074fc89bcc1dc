package nft

import (
	"maps"
	"strings"
)

// unmanaged are the keys (of KindChain) of the chains whose rules are not the engine's.
type unmanaged map[Key]bool

func newUnmanaged(chains []Chain) unmanaged {
	u := unmanaged{}
	for i := range chains {
		u[chains[i].Key()] = true
	}
	return u
}

// hides reports whether an item is outside the engine's management: the rules of an unmanaged chain, and objects whose name is the chain's
// with a hyphen appended. The engine manages the chain itself.
func (u unmanaged) hides(key Key) bool {
	switch key.Kind {
	case KindRules, KindChain, KindSet, KindMap, KindElement:
	default:
		return false
	}
	name, _, _ := strings.Cut(key.Name, " ") // of an element, the set's name
	for chain := range u {
		if chain.table() != key.table() {
			continue
		}
		if key.Kind == KindRules && name == chain.Name || strings.HasPrefix(name, chain.Name+"-") {
			return true
		}
	}
	return false
}

// leaveOut removes the hidden items from a state, and returns it.
func (u unmanaged) leaveOut(state map[Key]Item) map[Key]Item {
	if len(u) > 0 {
		maps.DeleteFunc(state, func(key Key, _ Item) bool { return u.hides(key) })
	}
	return state
}
