package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/reconcile"
)

// Change is what an engine commits.
type Change = reconcile.Change[openflow.Key, openflow.Entry]

// errTimeout refuses a flow with a timeout, which would expire by itself.
var errTimeout = errors.New("a flow with a timeout belongs to the switch: it cannot be desired state")

// plan orders a change so that no packet falls into a hole between its bundles: groups come before the flows that use them, and flows of
// later tables before those that lead there. Within a table, higher priorities come first, so that an exception is in effect before the
// flow that it restricts. Deletions follow, in the reverse order. Entries that last selects come at the very end.
func plan(change Change, last func(openflow.Key) bool) ([]openflow.Mod, error) {
	steps := make([]*step, 0, len(change.Set)+len(change.Delete))
	for key, entry := range change.Set {
		s, err := newStep(key, openflow.Mod{Entry: entry, Delete: false}, last)
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	for key, entry := range change.Delete {
		if _, again := change.Set[key]; again {
			continue
		}
		s, err := newStep(key, openflow.Mod{Entry: entry, Delete: true}, last)
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	slices.SortFunc(steps, (*step).compare)
	mods := make([]openflow.Mod, 0, len(steps))
	for _, s := range steps {
		mods = append(mods, s.mod)
	}
	return mods, nil
}

// step is a change with its position in the order.
type step struct {
	mod  openflow.Mod
	key  openflow.Key
	rank int
}

// compare orders steps. Where packets need no order, it orders by key, so that equal changes are always sent in the same order.
func (s *step) compare(other *step) int {
	if s.rank != other.rank {
		return cmp.Compare(s.rank, other.rank)
	}
	if s.key.Group != other.key.Group {
		return cmp.Compare(s.key.Group, other.key.Group)
	}
	if s.key.Priority != other.key.Priority {
		if s.mod.Delete {
			return cmp.Compare(s.key.Priority, other.key.Priority)
		}
		return cmp.Compare(other.key.Priority, s.key.Priority)
	}
	return strings.Compare(s.key.Match, other.key.Match)
}

func newStep(key openflow.Key, mod openflow.Mod, last func(openflow.Key) bool) (*step, error) {
	if mod.Entry == nil {
		return nil, fmt.Errorf("%s: no entry", key)
	}
	if err := mod.Validate(); err != nil {
		return nil, err
	}
	if f, ok := mod.Entry.(*openflow.Flow); ok && !mod.Delete && (f.IdleTimeout != 0 || f.HardTimeout != 0) {
		return nil, fmt.Errorf("%s: %w", key, errTimeout)
	}
	return &step{mod, key, modRank(key, mod.Delete, last)}, nil
}

// modRank orders the kinds of changes and, within flows, the tables.
func modRank(key openflow.Key, remove bool, last func(openflow.Key) bool) int {
	const tables, lastTable = 256, 255
	switch {
	case last != nil && last(key):
		return 4 * tables
	case key.Group != 0 && !remove:
		return 0
	case !remove:
		return tables + (lastTable - int(key.Table))
	case key.Group == 0:
		return 2*tables + int(key.Table)
	default:
		return 3 * tables
	}
}
