package action

import (
	"slices"
)

// Ordered returns the list with the instructions behind the applied actions, as the switch has them.
func (a Actions) Ordered() Actions {
	order := func(a Action) int {
		if inst, ok := a.(instruction); ok {
			return inst.order()
		}
		return 0
	}
	if slices.IsSortedFunc(a, func(x, y Action) int { return order(x) - order(y) }) {
		return a
	}
	ordered := slices.Clone(a)
	slices.SortStableFunc(ordered, func(x, y Action) int { return order(x) - order(y) })
	return ordered
}

// Groups returns the groups that the list hands packets to.
func (a Actions) Groups() []uint32 {
	var ids []uint32
	for _, action := range a {
		switch action := action.(type) {
		case number:
			if action.kind == actGroup {
				ids = append(ids, action.value)
			}
		case clone:
			ids = append(ids, action.actions.Groups()...)
		case writeActions:
			ids = append(ids, action.actions.Groups()...)
		}
	}
	return ids
}

// IsOpaque reports whether the action is one that this package cannot decode.
func IsOpaque(a Action) bool {
	switch a.(type) {
	case opaque, opaqueInstruction:
		return true
	default:
		return false
	}
}

// LearnedCookies returns the cookies of the flows that the learn actions in the list add.
func (a Actions) LearnedCookies() []uint64 {
	var cookies []uint64
	for _, action := range a {
		if l, ok := action.(learn); ok && l.Cookie != 0 {
			cookies = append(cookies, l.Cookie)
		}
	}
	return cookies
}
