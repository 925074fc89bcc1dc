package ovn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"weft.dev/weft/internal/ovsdb/session"
	"weft.dev/weft/internal/reconcile"
)

// Commit makes the change in one transaction, whose first operation is the fence. It writes only columns that differ; if none does, it
// writes nothing.
//
// A row that cannot be written fails alone, with a *[RowError] in a reconcile.PartialError; the others are committed. If it is an ACL or a
// policy, its owner's rows of that table that drop packets are not removed (ErrReplaced). With ErrDeposed nothing was written, and nothing
// will be until the next Lead.
func (e *Engine) Commit(ctx context.Context, change Change) error {
	e.commit.Lock()
	defer e.commit.Unlock()
	if e.term == 0 {
		return ErrNotLeading
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	a := newAttempt(change)
	for key, row := range change.Set {
		if err := row.Validate(key); err != nil {
			a.fail(key, err)
		}
	}
	err := e.keeper.Do(ctx, func(s *session.Session) error { return e.run(ctx, s, a) })
	e.setFailed(err != nil)
	if err != nil {
		return fmt.Errorf("commit %d and remove %d northbound rows: %w", len(change.Set), len(change.Delete), err)
	}
	if len(a.failed) > 0 {
		return &reconcile.PartialError[Key]{Failed: a.failed}
	}
	return nil
}

// run makes the change over one connection. Each round omits the rows that failed in the round before.
func (e *Engine) run(ctx context.Context, s *session.Session, a *attempt) error {
	for {
		v, err := current(ctx, s)
		if err != nil {
			return err
		}
		if term, there := v.term(); !there {
			// The database is a new one: write the term first, as at the start.
			if err := lead(ctx, s, e.term); err != nil {
				return err
			}
			continue
		} else if term != e.term {
			return fmt.Errorf("%w: with term %d, this one has %d", ErrDeposed, term, e.term)
		}
		p := newPlan(v, a.change)
		for key, err := range p.failed {
			a.fail(key, err)
		}
		if len(p.failed) > 0 {
			continue // a child of a failed row may fail too
		}
		refused, err := e.transact(ctx, s, v, p)
		if refused == nil {
			return err
		}
		a.fail(*refused, err)
	}
}

// transact writes the plan. It returns the row that the server rejects, with the reason.
func (e *Engine) transact(ctx context.Context, s *session.Session, v *view, p *plan) (*Key, error) {
	if len(p.ops) == 0 {
		return nil, nil
	}
	guard, err := fence(v.global, e.term)
	if err != nil {
		return nil, err
	}
	ops := append([]ovsdb.Operation{guard}, p.ops...)
	results, err := s.Transact(ctx, ops...)
	if err != nil {
		return nil, err
	}
	err = session.Check(ops, results)
	if err == nil {
		e.learn(p, newView(s)) // the server sends updates before the answer (session.Session.Sync)
		return nil, nil
	}
	var refused *session.OperationError
	switch {
	case isFenced(err):
		return nil, fmt.Errorf("%w: %w", ErrDeposed, err)
	case errors.As(err, &refused) && refused.Index > 0 && refused.Index <= len(p.keys) && p.sets[p.keys[refused.Index-1]]:
		return &p.keys[refused.Index-1], err
	default:
		return nil, err
	}
}

// learn copies from the view what the plan changed, but only rows that are as planned: what other programs changed meanwhile is drift.
func (e *Engine) learn(p *plan, after *view) {
	if e.known.rows == nil {
		return
	}
	take := func(key Key, planned bool) {
		now := after.source(key)
		switch {
		case !planned:
		case now != nil:
			e.known.rows[key.Table][key.UUID] = now
		default:
			delete(e.known.rows[key.Table], key.UUID)
		}
	}
	for key, was := range p.parents {
		_, set := p.change.Set[key]
		_, removed := p.change.Delete[key]
		if was != nil && !set && !removed && e.known.rows[key.Table][key.UUID] == model.Model(was) {
			before, _ := p.view.row(key, Key{})
			now, _ := after.row(key, Key{})
			take(key, now.Equal(before))
		}
	}
	for key, want := range p.change.Set {
		now, there := after.row(key, want.Parent)
		take(key, there && now.Equal(want))
		if !there {
			e.known.rows[key.Table][key.UUID] = nil // already removed by another program; so the known state differs from the actual one
		}
	}
	for key, was := range p.change.Delete {
		now, there := after.row(key, was.Parent)
		take(key, !there || now.Owner == "")
	}
}

// plan has the operations of a change.
type plan struct {
	view   *view
	change Change
	ops    []ovsdb.Operation
	keys   []Key // of each operation
	sets   map[Key]bool
	// parents are the rows whose references change, as they were before; nil: the row is new.
	parents map[Key]source
	failed  map[Key]error
	// references are the rows that enter or leave a parent's set.
	references map[reference][]Key
}

// reference is a change of the set in which a parent has its rows of a table.
type reference struct {
	parent  Key
	column  string
	mutator ovsdb.Mutator
}

func (r reference) compare(other reference) int {
	return cmp.Or(r.parent.Compare(other.parent), cmp.Compare(r.column, other.column), cmp.Compare(r.mutator, other.mutator))
}

func newPlan(v *view, change Change) *plan {
	p := &plan{
		view: v, change: change, sets: map[Key]bool{}, parents: map[Key]source{}, failed: map[Key]error{}, references: map[reference][]Key{},
	}
	for _, table := range tables() {
		for _, key := range keysOf(change.Set, table) {
			p.sets[key] = true
			if err := p.set(key, change.Set[key]); err != nil {
				p.failed[key] = err
			}
		}
	}
	for _, table := range slices.Backward(tables()) {
		for _, key := range keysOf(change.Delete, table) {
			p.remove(key)
		}
	}
	p.refer()
	return p
}

func keysOf(rows map[Key]Row, table Table) []Key {
	var keys []Key
	for key := range rows {
		if key.Table == table {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, Key.Compare)
	return keys
}

func (p *plan) add(key Key, ops ...ovsdb.Operation) {
	for _, op := range ops {
		p.ops, p.keys = append(p.ops, op), append(p.keys, key)
	}
}

// set inserts or updates a row, and the reference in its parent.
func (p *plan) set(key Key, want Row) error {
	if err := p.checkParent(want.Parent); err != nil {
		return err
	}
	have, there := p.view.row(key, want.Parent)
	columns, err := encode(key.Table, want, have)
	if err != nil {
		return err
	}
	where := byUUID(key.UUID)
	switch {
	case !there:
		ids, err := ovsdb.NewOvsMap(map[string]string{OwnerKey: want.Owner})
		if err != nil {
			return fmt.Errorf("encode the owner: %w", err)
		}
		columns["external_ids"] = ids
		p.add(key, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: string(key.Table), UUID: key.UUID, Row: columns})
	case len(columns) > 0:
		p.add(key, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: string(key.Table), Where: where, Row: columns})
	}
	if there && have.Owner != want.Owner {
		p.add(key, replaceID(string(key.Table), where, OwnerKey, want.Owner)...)
	}
	if have.Parent == want.Parent {
		return nil
	}
	if have.Parent != (Key{}) {
		p.mutate(key, have.Parent, ovsdb.MutateOperationDelete)
	}
	p.mutate(key, want.Parent, ovsdb.MutateOperationInsert)
	return nil
}

// checkParent returns an error unless the parent exists after the change.
func (p *plan) checkParent(parent Key) error {
	if parent == (Key{}) {
		return nil
	}
	there := p.view.source(parent) != nil
	_, comes := p.change.Set[parent]
	_, goes := p.change.Delete[parent]
	if comes || there && !goes {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrNoParent, parent)
}

func (p *plan) remove(key Key) {
	row, there := p.view.row(key, p.change.Delete[key].Parent)
	if !there || row.Owner == "" {
		return
	}
	if _, goes := p.change.Delete[row.Parent]; row.Parent != (Key{}) && !goes {
		p.mutate(key, row.Parent, ovsdb.MutateOperationDelete)
	}
	p.add(key, ovsdb.Operation{Op: ovsdb.OperationDelete, Table: string(key.Table), Where: byUUID(key.UUID)})
}

// mutate adds the row to its parent's set, or removes it from it.
func (p *plan) mutate(key, parent Key, mutator ovsdb.Mutator) {
	c, ok := schema(key.Table)
	if !ok || parent == (Key{}) {
		return
	}
	p.parents[parent] = p.view.source(parent)
	at := reference{parent, c.column, mutator}
	p.references[at] = append(p.references[at], key)
}

// refer adds the operations that change the parents' sets, one for all rows of a set: the server copies a set for each operation. If the
// server refuses one, its first row fails, and the next round has the others.
func (p *plan) refer() {
	for _, at := range slices.SortedFunc(maps.Keys(p.references), reference.compare) {
		rows := p.references[at]
		set := ovsdb.OvsSet{}
		for _, key := range rows {
			set.GoSet = append(set.GoSet, ovsdb.UUID{GoUUID: key.UUID})
		}
		p.add(rows[0], ovsdb.Operation{
			Op: ovsdb.OperationMutate, Table: string(at.parent.Table), Where: byUUID(at.parent.UUID),
			Mutations: []ovsdb.Mutation{{Column: at.column, Mutator: at.mutator, Value: set}},
		})
	}
}

// encode returns the columns in which want differs from have.
func encode(table Table, want, have Row) (ovsdb.Row, error) {
	c, _ := schema(table)
	row := ovsdb.Row{}
	for _, column := range c.text {
		if want.Text[column] != have.Text[column] {
			row[column] = want.Text[column]
		}
	}
	for _, column := range c.optional {
		if value := want.Text[column]; value != have.Text[column] {
			row[column] = setOf(slices.DeleteFunc([]string{value}, func(s string) bool { return s == "" }))
		}
	}
	for _, column := range c.number {
		if want.Number[column] != have.Number[column] {
			row[column] = want.Number[column]
		}
	}
	for _, column := range c.set {
		if value := want.sets()[column]; !slices.Equal(value, have.sets()[column]) {
			row[column] = setOf(value)
		}
	}
	for _, column := range c.dict {
		value := want.Map[column]
		if maps.Equal(value, have.Map[column]) {
			continue
		}
		dict, err := ovsdb.NewOvsMap(value)
		if err != nil {
			return nil, fmt.Errorf("encode column %s: %w", column, err)
		}
		row[column] = dict
	}
	return row, nil
}

func setOf(values []string) ovsdb.OvsSet {
	set := ovsdb.OvsSet{GoSet: []any{}}
	for _, value := range values {
		set.GoSet = append(set.GoSet, value)
	}
	return set
}

func byUUID(uuid string) []ovsdb.Condition {
	return []ovsdb.Condition{{Column: "_uuid", Function: ovsdb.ConditionEqual, Value: ovsdb.UUID{GoUUID: uuid}}}
}

// replaceID returns the operations that set one key of external_ids and leave the others.
func replaceID(table string, where []ovsdb.Condition, key, value string) []ovsdb.Operation {
	return []ovsdb.Operation{{
		Op: ovsdb.OperationMutate, Table: table, Where: where,
		Mutations: []ovsdb.Mutation{
			{Column: "external_ids", Mutator: ovsdb.MutateOperationDelete, Value: ovsdb.OvsSet{GoSet: []any{key}}},
			{Column: "external_ids", Mutator: ovsdb.MutateOperationInsert, Value: ovsdb.OvsMap{GoMap: map[any]any{key: value}}},
		},
	}}
}
