package nft

import (
	"maps"
	"strings"
)

// Unmanaged are the keys (of KindChain) of the chains whose rules are not the engine's.
type Unmanaged map[Key]bool

// NewUnmanaged returns the keys of chains.
func NewUnmanaged(chains []Chain) Unmanaged {
	u := Unmanaged{}
	for i := range chains {
		u[chains[i].Key()] = true
	}
	return u
}

// Hides reports whether an item is outside the engine's management: the rules of an unmanaged chain, and objects whose name is the chain's
// with a hyphen appended. The engine manages the chain itself.
func (u Unmanaged) Hides(key Key) bool {
	switch key.Kind {
	case KindRules, KindChain, KindSet, KindMap, KindElement:
	default:
		return false
	}
	name, _, _ := strings.Cut(key.Name, " ") // of an element, the set's name
	for chain := range u {
		if !chain.sameTable(key) {
			continue
		}
		if key.Kind == KindRules && name == chain.Name || strings.HasPrefix(name, chain.Name+"-") {
			return true
		}
	}
	return false
}

// LeaveOut removes the hidden items from a state, and returns it.
func (u Unmanaged) LeaveOut(state map[Key]Item) map[Key]Item {
	if len(u) > 0 {
		maps.DeleteFunc(state, func(key Key, _ Item) bool { return u.Hides(key) })
	}
	return state
}
