package nft

import "slices"

// Drift describes what another process changed in one transaction in one table.
type Drift struct {
	// All reports that anything may have changed: events were lost, or watching has begun.
	All    bool
	Family Family
	Table  string
	// InCare reports that the table is one of Weft's own.
	InCare bool
	// Hooks reports that the table, or a base chain of it, was added, removed or changed.
	Hooks bool
	// Chains are the chains that were changed, or whose rules were, sorted. Changes of sets, maps and elements are not in it.
	Chains []string
	// Err is why watching has ended before its context: this is the last value, and later changes are not reported.
	Err error
}

// Touches reports whether the drift concerns, or may concern, a chain.
func (d *Drift) Touches(chain Key) bool {
	if d.All {
		return true
	}
	_, found := slices.BinarySearch(d.Chains, chain.Name)
	return found && d.Family == chain.Family && d.Table == chain.Table
}
