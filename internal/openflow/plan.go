package openflow

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"weft.dev/weft/internal/reconcile"
)

// Change is what an engine commits.
type Change = reconcile.Change[Key, Entry]

// errTimeout says why a flow is refused that would end by itself.
var errTimeout = errors.New("a flow with a timeout belongs to the switch: it cannot be desired state")

// plan puts a change in an order in which no packet falls into a hole, also where it is too large for one bundle:
// groups before the flows that use them, flows of later tables before those that lead there, deletions afterwards and
// the other way round. What last names comes at the very end.
func plan(change Change, last func(Key) bool) ([]Mod, error) {
	steps := make([]step, 0, len(change.Set)+len(change.Delete))
	for key, entry := range change.Set {
		s, err := newStep(key, Mod{entry, false}, last)
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	for key, entry := range change.Delete {
		if _, again := change.Set[key]; again {
			continue
		}
		s, err := newStep(key, Mod{entry, true}, last)
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	slices.SortFunc(steps, func(a, b step) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.key.Group, b.key.Group),
			-cmp.Compare(a.key.Priority, b.key.Priority), strings.Compare(a.key.Match, b.key.Match))
	})
	mods := make([]Mod, 0, len(steps))
	for _, s := range steps {
		mods = append(mods, s.mod)
	}
	return mods, nil
}

// step is a change with its place in the order.
type step struct {
	mod  Mod
	key  Key
	rank int
}

func newStep(key Key, mod Mod, last func(Key) bool) (step, error) {
	if mod.Entry == nil {
		return step{}, fmt.Errorf("%s: no entry", key)
	}
	if err := mod.validate(); err != nil {
		return step{}, err
	}
	if f, ok := mod.Entry.(*Flow); ok && !mod.Delete && (f.IdleTimeout != 0 || f.HardTimeout != 0) {
		return step{}, fmt.Errorf("%s: %w", key, errTimeout)
	}
	return step{mod, key, modRank(key, mod.Delete, last)}, nil
}

// modRank orders the kinds of changes and, within flows, the tables.
func modRank(key Key, remove bool, last func(Key) bool) int {
	const tables = 256
	switch {
	case last != nil && last(key):
		return 4 * tables
	case key.Group != 0 && !remove:
		return 0
	case !remove:
		return tables + (tableAll - int(key.Table))
	case key.Group == 0:
		return 2*tables + int(key.Table)
	default:
		return 3 * tables
	}
}
