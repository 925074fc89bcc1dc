package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"weft.dev/weft/internal/ovsdb/confdb"
	"weft.dev/weft/internal/ovsdb/session"
)

// maxConflicts is how often a transaction is planned again because another client changed the same rows.
const maxConflicts = 16

// errConflict says that the database has changed since the transaction was planned.
var errConflict = errors.New("another client changed the same rows")

// Commit makes the change in one transaction and returns once ovs-vswitchd has applied it. It does not write rows that are already as
// desired; if no row is to be written, there is no transaction.
//
// A row that cannot be written, or that the switch cannot bring into effect, fails alone: the others are committed. The returned error is
// then a reconcile.PartialError with a *[PortError] for every failed row ([FailedKeys]). A failed row that this Commit made is removed
// before Commit returns. A failed row that existed before remains, and Read returns it with a Failure. Any other error (ErrNotConnected,
// ErrNotApplied, ErrClosed) is about the whole change; only the next Read shows whether the change is in effect. If the connection is
// lost, Commit continues on the next connection until ctx ends.
//
// Commit does not change rows that do not belong to Weft: setting one fails with ErrNotOwned, deleting one does nothing.
func (e *Engine) Commit(ctx context.Context, change Change) error {
	e.commit.Lock()
	defer e.commit.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, e.config.ApplyTimeout,
		fmt.Errorf("waited %v: %w", e.config.ApplyTimeout, context.DeadlineExceeded))
	defer cancel()

	c := newCommit(change, e.config.claim())
	err := e.keeper.Do(ctx, func(s *session.Session) error { return c.run(ctx, s) })
	e.learn(change, c)
	if err != nil {
		err = fmt.Errorf("commit %d and remove %d rows: %w", len(change.Set), len(change.Delete), err)
	}
	return partial(errors.Join(append(c.errors(), err)...))
}

// learn updates the known rows after a commit, so that only changes by others are drift. A committed row that differs from the change was
// also changed by another client.
func (e *Engine) learn(change Change, c *commit) {
	if c.after == nil || e.known == nil {
		return
	}
	now := track(c.after, e.known)
	update := func(key Key) {
		if is, ok := now[key]; ok {
			e.known[key] = is
		} else {
			delete(e.known, key)
		}
	}
	for key, was := range e.known {
		port, ok := was.row.(*Port)
		if !ok {
			continue
		}
		if _, gone := change.Delete[BridgeKey(port.Bridge)]; gone {
			update(key)
		}
	}
	for key, want := range change.Set {
		if is, there := now[key]; c.failed[key] != nil || there && is.row.Equal(want) {
			update(key)
		}
	}
	for key := range change.Delete {
		update(key)
	}
}

// commit is one call of Commit, with its transactions on one or more connections.
type commit struct {
	work   Change
	own    confdb.Claim
	failed map[Key]*PortError
	// created are the rows that this commit has made, in any attempt.
	created map[Key]bool
	// after is the last view after the switch applied a transaction.
	after *confdb.View
}

// newCommit takes the change, without the rows that must not be written.
func newCommit(change Change, own confdb.Claim) *commit {
	c := &commit{
		work: change, own: own,
		failed: map[Key]*PortError{}, created: map[Key]bool{},
	}
	c.work.Set = maps.Clone(change.Set)
	for _, key := range sortedKeys(change.Set) {
		row := change.Set[key]
		if err := checkRow(key, row); err != nil {
			c.fail(&PortError{Key: key, Err: err})
		}
	}
	return c
}

// checkRow returns the reason why the row must not be written under the key.
func checkRow(key Key, row Row) error {
	switch r := row.(type) {
	case *Bridge:
		if r == nil || r.Key() != key {
			return fmt.Errorf("%w: another row's value", ErrInvalid)
		}
	case *Port:
		if r == nil || r.Key() != key {
			return fmt.Errorf("%w: another row's value", ErrInvalid)
		}
	default:
		return fmt.Errorf("%w: value of type %T", ErrInvalid, row)
	}
	return row.Validate()
}

// fail records the error and removes the row from the change.
func (c *commit) fail(err *PortError) {
	c.failed[err.Key] = err
	delete(c.work.Set, err.Key)
}

func (c *commit) errors() []error {
	var errs []error
	for _, key := range slices.SortedFunc(maps.Keys(c.failed), compareKeys) {
		errs = append(errs, c.failed[key])
	}
	return errs
}

// run makes the change on one connection.
func (c *commit) run(ctx context.Context, s *session.Session) error {
	for range maxConflicts {
		err := c.attempt(ctx, s)
		if err == nil {
			return c.clean(ctx, s)
		}
		if !errors.Is(err, errConflict) {
			return err
		}
	}
	return fmt.Errorf("%w, after %d attempts", errConflict, maxConflicts)
}

// attempt makes one transaction for the remaining rows, waits for the switch, and checks the result.
func (c *commit) attempt(ctx context.Context, s *session.Session) error {
	v, err := confdb.Current(ctx, s, c.own)
	if err != nil {
		return err
	}
	if v.Root == nil {
		return c.initialise(ctx, s)
	}
	p := newPlan(v, c.work)
	for _, failed := range p.failed {
		c.fail(failed)
	}
	if err := c.transact(ctx, s, p); err != nil {
		return err
	}
	if c.after, err = confdb.Current(ctx, s, c.own); err != nil {
		return err
	}
	for _, key := range sortedKeys(c.work.Set) {
		if reason := verdict(c.after, key); reason != "" {
			c.fail(&PortError{Key: key, Reason: reason})
		}
	}
	return nil
}

// initialise inserts the database's one Open_vSwitch row, as "ovs-vsctl init" does on a host. The table can have only one row, so two
// concurrent clients do no harm.
func (c *commit) initialise(ctx context.Context, s *session.Session) error {
	results, err := s.Transact(ctx, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: confdb.TableRoot, Row: ovsdb.Row{"next_cfg": 0}})
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Error != "" {
			return fmt.Errorf("%w: insert the row of %s: %s: %s", errConflict, confdb.TableRoot, r.Error, r.Details)
		}
	}
	return errConflict
}

// transact commits the plan and waits until the switch has applied it. If there is nothing to write, it waits until the switch has
// applied earlier transactions, of others or of an earlier attempt.
func (c *commit) transact(ctx context.Context, s *session.Session, p *plan) error {
	if len(p.ops) == 0 {
		return confdb.Applied(ctx, s, p.view.Root.NextCfg)
	}
	ops := slices.Concat(p.ops, nextConfiguration(p.view.Root))
	maps.Copy(c.created, p.created)
	results, err := s.Transact(ctx, ops...)
	if err != nil {
		return err
	}
	if err := c.judge(p, results, len(ops)); err != nil {
		return err
	}
	cfg, err := nextCfg(results[len(ops)-1])
	if err != nil {
		return err
	}
	return confdb.Applied(ctx, s, cfg)
}

// nextConfiguration returns the operations that make the switch report when it has applied the transaction (ovs-vswitchd.conf.db(5),
// next_cfg), and that return the number to wait for.
func nextConfiguration(root *confdb.Root) []ovsdb.Operation {
	where := byUUID(root.UUID)
	return []ovsdb.Operation{
		{
			Op: ovsdb.OperationMutate, Table: confdb.TableRoot, Where: where,
			Mutations: []ovsdb.Mutation{{Column: "next_cfg", Mutator: ovsdb.MutateOperationAdd, Value: 1}},
		},
		{Op: ovsdb.OperationSelect, Table: confdb.TableRoot, Where: where, Columns: []string{"next_cfg"}},
	}
}

// judge evaluates the database's results. A row that the database refuses fails, and the others are tried again.
func (c *commit) judge(p *plan, results []ovsdb.OperationResult, ops int) error {
	for i, r := range results {
		switch {
		case r.Error == "" && i < len(p.ops) && p.ops[i].Op != ovsdb.OperationInsert && r.Count == 0:
			return errConflict
		case r.Error == "":
			continue
		case i < len(p.keys) && p.keys[i] != Key{}:
			c.fail(&PortError{Key: p.keys[i], Reason: "the database refused it: " + r.Error + ": " + r.Details})
			return errConflict
		default:
			return fmt.Errorf("%w: %s: %s", errConflict, r.Error, r.Details)
		}
	}
	if len(results) < ops {
		return fmt.Errorf("OVSDB transaction of %d operations: %d results", ops, len(results))
	}
	return nil
}

// nextCfg returns the value from the select of next_cfg.
func nextCfg(result ovsdb.OperationResult) (int, error) {
	if len(result.Rows) != 1 {
		return 0, errConflict // the Open_vSwitch row has been replaced
	}
	switch n := result.Rows[0]["next_cfg"].(type) {
	case float64:
		return int(n), nil
	case int:
		return n, nil
	default:
		return 0, fmt.Errorf("next_cfg of type %T in the server's answer", n)
	}
}

// clean removes the rows that this commit made and that are not in effect.
func (c *commit) clean(ctx context.Context, s *session.Session) error {
	remove := Change{Delete: map[Key]Row{}}
	for key := range c.failed {
		if c.created[key] {
			remove.Delete[key] = nil
		}
	}
	if len(remove.Delete) == 0 {
		return nil
	}
	for range maxConflicts {
		v, err := confdb.Current(ctx, s, c.own)
		if err != nil {
			return err
		}
		p := newPlan(v, remove)
		err = c.transact(ctx, s, p)
		if errors.Is(err, errConflict) {
			continue
		}
		if err == nil {
			c.after, err = confdb.Current(ctx, s, c.own)
		}
		if err != nil {
			return fmt.Errorf("remove %d rows that failed: %w", len(remove.Delete), err)
		}
		return nil
	}
	return fmt.Errorf("remove %d rows that failed: %w", len(remove.Delete), errConflict)
}
