package ovn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"weft.dev/weft/internal/reconcile"
)

// errDuplicate is the database's error for a second port with the same name.
var errDuplicate = errors.New("another row of the table has the name")

// Database is the state of a northbound database in memory. Several Fakes may share one, as several controllers do.
type Database struct {
	mu    sync.Mutex
	term  uint64
	rows  map[Key]Row
	write int
}

// NewDatabase returns an empty database.
func NewDatabase() *Database { return &Database{rows: map[Key]Row{}} }

// Rows returns a copy of all rows.
func (d *Database) Rows() map[Key]Row {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.rows)
}

// Writes returns the number of transactions that wrote something.
func (d *Database) Writes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.write
}

// Replace replaces all rows, and deletes the term, as an empty database does.
func (d *Database) Replace(rows map[Key]Row) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.term, d.rows = 0, maps.Clone(rows)
	if d.rows == nil {
		d.rows = map[Key]Row{}
	}
}

// Fake is an engine on a Database. It enforces the rules of the real one: parents, unique names, and the fence.
type Fake struct {
	database *Database
	mu       sync.Mutex
	term     uint64
}

var _ reconcile.Engine[Key, Row] = (*Fake)(nil)

// NewFake returns an engine on the database.
func NewFake(database *Database) *Fake { return &Fake{database: database} }

// Lead is the counterpart of Engine.Lead.
func (f *Fake) Lead(_ context.Context, term uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.database.mu.Lock()
	defer f.database.mu.Unlock()
	if f.database.term > term {
		return fmt.Errorf("lead the northbound database with term %d: %w: with term %d", term, ErrDeposed, f.database.term)
	}
	f.term, f.database.term = term, term
	return nil
}

// Read is the counterpart of Engine.Read.
func (f *Fake) Read(context.Context) (map[Key]Row, error) {
	f.database.mu.Lock()
	defer f.database.mu.Unlock()
	own := map[Key]Row{}
	for key, row := range f.database.rows {
		if row.Owner != "" {
			own[key] = row
		}
	}
	return own, nil
}

// Commit is the counterpart of Engine.Commit.
func (f *Fake) Commit(_ context.Context, change Change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.database
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case f.term == 0:
		return ErrNotLeading
	case d.term == 0:
		d.term = f.term
	case d.term != f.term:
		return fmt.Errorf("%w: with term %d, this one has %d", ErrDeposed, d.term, f.term)
	}
	a := newAttempt(change)
	for key, row := range change.Set {
		if err := row.Validate(key); err != nil {
			a.fail(key, err)
		}
	}
	next := maps.Clone(d.rows)
	maps.DeleteFunc(next, func(key Key, row Row) bool {
		_, goes := change.Delete[key]
		return goes && row.Owner != ""
	})
	for _, table := range tables() {
		for _, key := range keysOf(a.change.Set, table) {
			if err := admit(next, key, change.Set[key]); err != nil {
				a.fail(key, err)
				continue
			}
			next[key] = change.Set[key]
		}
	}
	for key, row := range d.rows {
		if _, goes := change.Delete[key]; goes && a.failed[key] != nil {
			next[key] = row // it stays
		}
	}
	collect(next)
	if !maps.EqualFunc(next, d.rows, Row.Equal) {
		d.write++
	}
	d.rows = next
	if len(a.failed) > 0 {
		return &reconcile.PartialError[Key]{Failed: a.failed}
	}
	return nil
}

// collect removes rows without a parent's reference.
func collect(rows map[Key]Row) {
	for key, row := range rows {
		if _, there := rows[row.Parent]; row.Parent != (Key{}) && !there {
			delete(rows, key)
		}
	}
}

// admit returns why the database would reject the row, nil if it would not.
func admit(rows map[Key]Row, key Key, row Row) error {
	if _, there := rows[row.Parent]; row.Parent != (Key{}) && !there {
		return fmt.Errorf("%w: %s", ErrNoParent, row.Parent)
	}
	if key.Table != SwitchPort && key.Table != RouterPort {
		return nil
	}
	for other, have := range rows {
		if other != key && other.Table == key.Table && have.Text["name"] == row.Text["name"] {
			return fmt.Errorf("%w: %q", errDuplicate, row.Text["name"])
		}
	}
	return nil
}
