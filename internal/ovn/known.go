package ovn

import (
	"sync"

	"weft.dev/weft/internal/ovsdb/session"
)

// known is the state of the rows as the engine knows it: as it read them, and as it has changed them since. A replaced row has another
// pointer.
type known struct {
	// of is the session to which the rows belong.
	of   *session.Session
	rows copied // nil: not read yet
}

// renew replaces the given rows by those of the copy, and reports whether one of them differed.
func (k *known) renew(keys map[Key]struct{}) (different bool) {
	for key := range keys {
		now, rows := session.Model(k.of, string(key.Table), key.UUID), k.rows[key.Table]
		was, there := rows[key.UUID]
		switch {
		case now == nil && there:
			delete(rows, key.UUID)
			different = true
		case now != nil && now != was:
			rows[key.UUID] = now
			different = true
		}
	}
	return different
}

// touched are rows that have changed. It is safe for concurrent use. The zero value has none.
type touched struct {
	mu   sync.Mutex
	keys map[Key]struct{}
}

// add adds rows of a table, unless the engine does not program it.
func (t *touched) add(table string, uuids []string) {
	if table == globalTable {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys == nil {
		t.keys = make(map[Key]struct{}, len(uuids))
	}
	for _, uuid := range uuids {
		t.keys[Key{Table(table), uuid}] = struct{}{}
	}
}

// take returns the rows, and removes them.
func (t *touched) take() map[Key]struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := t.keys
	t.keys = nil
	return keys
}
