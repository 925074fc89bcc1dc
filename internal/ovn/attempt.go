package ovn

import (
	"errors"
	"maps"
)

// ErrReplaced is the reason why a rule that drops was not removed: a rule of its owner could not be written.
var ErrReplaced = errors.New("the rule drops packets, and stays until all rules of its owner are written")

// attempt is a change from which rows are omitted that cannot be written.
type attempt struct {
	wanted map[Key]Row // all rows to write
	change Change      // what is left
	failed map[Key]error
}

func newAttempt(change Change) *attempt {
	return &attempt{
		wanted: change.Set, failed: map[Key]error{},
		change: Change{Set: maps.Clone(change.Set), Delete: maps.Clone(change.Delete)},
	}
}

// fail omits a row. If it is a rule, its owner's rules that drop are not removed either: the row may be the one that replaces them, as when
// another release names rules otherwise, and packets that both drop would pass.
func (a *attempt) fail(key Key, err error) {
	a.failed[key] = &RowError{key, err}
	delete(a.change.Set, key)
	if key.Table != ACL && key.Table != Policy {
		return
	}
	owner := a.wanted[key].Owner
	for other, row := range a.change.Delete {
		if other.Table == key.Table && row.Owner == owner && row.drops() {
			a.failed[other] = &RowError{other, ErrReplaced}
			delete(a.change.Delete, other)
		}
	}
}

// drops reports whether the row is a rule that drops packets.
func (r Row) drops() bool { return r.Text["action"] == "drop" || r.Text["action"] == "reject" }
