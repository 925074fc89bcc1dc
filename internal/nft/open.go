package nft

import "slices"

// place is a kind of traffic in one base chain.
type place struct {
	chain Key
	kind  Traffic
}

// Open returns rules that let packets pass where all packets of a kind of traffic are dropped, for an owner, and warnings for the administrator. A
// dropping rule that names the packets is intended, and stays effective. A rule that drops only some of them is left alone, unless a rule
// has to be placed above it; a warning about such a rule ends with instead, which names where it belongs.
func Open(drops []ForeignDrop, owner, instead string) (map[Key]Item, []string) {
	byPlace := map[place][]*ForeignDrop{}
	for i := range drops {
		d := &drops[i]
		at := place{Key{Family: d.Family, Table: d.Table, Kind: KindChain, Name: d.Chain}, d.Traffic}
		byPlace[at] = append(byPlace[at], d)
	}
	jumps := map[Key]Item{}
	var warnings []string
	for _, all := range byPlace {
		closing, bypasses := openPlace(all, instead)
		if closing != nil {
			jump := closing.Jump(owner)
			jumps[jump.Key()] = jump
		}
		warnings = append(warnings, bypasses...)
	}
	slices.Sort(warnings)
	return jumps, slices.Compact(warnings)
}

// openPlace returns the drop to be opened at one place, or nil, and warnings.
func openPlace(drops []*ForeignDrop, instead string) (*ForeignDrop, []string) {
	var closing *ForeignDrop
	var bypassed []string
	for _, d := range drops {
		switch {
		case !d.Conditional && (d.Named || !d.Openable):
			return nil, []string{d.String() + ": Weft does not open this; change the rule if pods are to use the network"}
		case !d.Conditional:
			closing = d
		case d.Named:
			bypassed = append(bypassed, d.String()+": has no effect, as the chain drops the rest too and Weft had to open it"+instead)
		}
	}
	if closing == nil {
		return nil, nil
	}
	return closing, bypassed
}
