package openflow

import (
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
)

// Rule is a flow with its purpose, in one line.
type Rule struct {
	Flow    *Flow
	Purpose string
}

// Fragment returns the fragment with the flows of rules.
func Fragment(rules []Rule) map[Key]Entry {
	fragment := make(map[Key]Entry, len(rules))
	for _, r := range rules {
		fragment[r.Flow.Key()] = r.Flow
	}
	return fragment
}

// Rules collects the rules of one owner.
type Rules struct {
	// Cookie is the cookie of all flows.
	Cookie uint64
	List   []Rule
}

// Add adds a flow. Without actions, it drops.
func (r *Rules) Add(table uint8, priority uint16, purpose string, on []oxm.MatchField, actions ...action.Action) {
	r.List = append(r.List, Rule{Purpose: purpose, Flow: &Flow{
		Table: table, Priority: priority, Cookie: r.Cookie, Match: oxm.NewMatch(on...), Actions: actions,
	}})
}
