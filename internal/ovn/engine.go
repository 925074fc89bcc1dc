package ovn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"weft.dev/weft/internal/ovsdb/session"
	"weft.dev/weft/internal/reconcile"
)

// Change is a change of the northbound database.
type Change = reconcile.Change[Key, Row]

// TermKey is the key in external_ids of NB_Global that holds the leader's term.
const TermKey = "weft.dev/term"

// CompleteKey is the key in external_ids of NB_Global that holds the term of the leader that last brought the whole database in step.
// Programs that serve the database's content to nodes wait for it: a new database does not have it.
const CompleteKey = "weft.dev/complete"

// commitTimeout limits a commit whose context has no deadline.
const commitTimeout = time.Minute

// Config is the configuration of an Engine.
type Config struct {
	// Endpoints are those of the northbound database: unix:PATH, tcp:ADDRESS:PORT or ssl:ADDRESS:PORT. In a cluster of servers, the engine
	// uses the leader.
	Endpoints []string
	// TLS is for ssl: endpoints.
	TLS *tls.Config
	// Locate returns endpoints and TLS before each attempt to connect, instead of Endpoints and TLS. Nil: Endpoints and TLS are used.
	Locate func(context.Context) ([]string, *tls.Config, error)
	// Logger logs when the connection is lost and restored. Nil means no logs.
	Logger *slog.Logger
	// Changed is called when rows may differ from what this engine wrote, and when there is a new connection: the loop should read everything
	// again. It must not block. Nil means no calls.
	Changed func()
}

// Engine programs the northbound database. It is safe for concurrent use.
type Engine struct {
	config Config
	keeper *session.Keeper
	cancel context.CancelFunc
	group  sync.WaitGroup
	dirty  chan struct{}

	// commit is held during a change, so that the watch for drift does not mistake it for a foreign change.
	commit sync.Mutex
	term   uint64
	known  known
	// touched are the rows that have changed since the last search for drift.
	touched touched

	// marks guards the sessions below: the last one read, and the one that Settled found in step. failed reports that the last commit failed.
	marks  sync.Mutex
	read   *session.Session
	whole  *session.Session
	failed bool
	// settled wakes the goroutine that writes CompleteKey.
	settled chan struct{}
}

var _ reconcile.Engine[Key, Row] = (*Engine)(nil)

// Open returns an engine that connects, and connects again whenever the connection is lost. The caller must close it.
func Open(ctx context.Context, config Config) (*Engine, error) {
	if config.Changed == nil {
		config.Changed = func() {}
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e := &Engine{config: config, cancel: cancel, dirty: make(chan struct{}, 1), settled: make(chan struct{}, 1)}
	keeper, err := session.Keep(ctx, session.Config{
		Database: databaseName, Tables: models(), Endpoints: config.Endpoints, TLS: config.TLS, Locate: config.Locate, LeaderOnly: true, Logger: config.Logger,
		Changed: func(table string) {
			if table != globalTable {
				e.signal()
			}
		},
		ChangedRows: e.touched.add,
		Connected: func(again bool) {
			if again {
				config.Changed()
			}
		},
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("northbound database: %w", err)
	}
	e.keeper = keeper
	e.group.Go(func() { e.watch(running) })
	e.group.Go(func() { e.mark(running) })
	return e, nil
}

// Close closes the connection. It changes nothing in the database.
func (e *Engine) Close() {
	e.cancel()
	e.group.Wait()
	e.keeper.Close()
}

func (e *Engine) signal() {
	select {
	case e.dirty <- struct{}{}:
	default:
	}
}

// watch reports rows that other programs have changed.
func (e *Engine) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.dirty:
		}
		if e.drifted() {
			e.config.Changed()
		}
	}
}

// drifted compares the rows that have changed with the engine's known state.
func (e *Engine) drifted() bool {
	e.commit.Lock()
	defer e.commit.Unlock()
	touched := e.touched.take()
	s := e.keeper.Current()
	switch {
	case s == nil || e.known.rows == nil:
		return false
	case s != e.known.of: // a new session has a new copy of all rows
		e.known = known{s, newView(s).all()}
		return true
	default:
		return e.known.renew(touched)
	}
}

// Read returns all rows that have an owner, as they are in the database at the time of the call.
func (e *Engine) Read(ctx context.Context) (map[Key]Row, error) {
	e.commit.Lock()
	defer e.commit.Unlock()
	var rows map[Key]Row
	err := e.keeper.Do(ctx, func(s *session.Session) error {
		v, err := current(ctx, s)
		if err == nil {
			rows = v.own()
			e.known = known{s, v.all()}
			e.setRead(s)
		}
		return err
	})
	if err != nil {
		e.setRead(nil)
		return nil, fmt.Errorf("read the northbound database: %w", err)
	}
	return rows, nil
}

// current returns a view that has everything committed before the call.
func current(ctx context.Context, s *session.Session) (*view, error) {
	if err := s.Sync(ctx); err != nil {
		return nil, err
	}
	return newView(s), nil
}

// Lead sets the term of this engine's transactions. It fails with ErrDeposed if the database has a later one.
func (e *Engine) Lead(ctx context.Context, term uint64) error {
	e.commit.Lock()
	defer e.commit.Unlock()
	err := e.keeper.Do(ctx, func(s *session.Session) error { return lead(ctx, s, term) })
	if err != nil {
		return fmt.Errorf("lead the northbound database with term %d: %w", term, err)
	}
	e.term = term
	return nil
}

// lead writes the term. Because of the wait operation, it fails and is repeated if another program wrote meanwhile.
func lead(ctx context.Context, s *session.Session, term uint64) error {
	for {
		v, err := current(ctx, s)
		if err != nil {
			return err
		}
		if v.global == nil {
			results, err := s.Transact(ctx, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: globalTable, Row: ovsdb.Row{"nb_cfg": 0}})
			if err != nil {
				return err
			}
			_ = results // another program may have added the row meanwhile; the next view has one in either case
			continue
		}
		have, there := v.term()
		switch {
		case there && have > term:
			return fmt.Errorf("%w: with term %d; if there is none, as after a rollback of Weft, remove the key %s from external_ids of NB_Global",
				ErrDeposed, have, TermKey)
		case there && have == term:
			return nil
		}
		ids, err := ovsdb.NewOvsMap(v.global.ExternalIDs)
		if err != nil {
			return fmt.Errorf("encode external_ids: %w", err)
		}
		where := byUUID(v.global.UUID)
		ops := []ovsdb.Operation{
			{
				Op: ovsdb.OperationWait, Table: globalTable, Where: where, Columns: []string{"external_ids"},
				Until: string(ovsdb.WaitConditionEqual), Rows: []ovsdb.Row{{"external_ids": ids}}, Timeout: new(int),
			},
		}
		ops = append(ops, replaceID(globalTable, where, TermKey, strconv.FormatUint(term, 10))...)
		results, err := s.Transact(ctx, ops...)
		if err != nil {
			return err
		}
		if err := session.Check(ops, results); err != nil && !isFenced(err) {
			return err
		}
	}
}

// term returns the leader's term in the database.
func (v *view) term() (uint64, bool) {
	if v.global == nil {
		return 0, false
	}
	term, err := strconv.ParseUint(v.global.ExternalIDs[TermKey], 10, 64)
	return term, err == nil
}

// isFenced reports whether the first operation, the wait, failed.
func isFenced(err error) bool {
	var refused *session.OperationError
	return errors.As(err, &refused) && refused.Index == 0 && refused.Operation.Op == ovsdb.OperationWait
}

// fence returns the operation that makes a transaction fail unless the term is in the database.
func fence(global *globalRow, term uint64) (ovsdb.Operation, error) {
	entry, err := ovsdb.NewOvsMap(map[string]string{TermKey: strconv.FormatUint(term, 10)})
	if err != nil {
		return ovsdb.Operation{}, fmt.Errorf("encode the term: %w", err)
	}
	// The wait selects the row by the term and compares a column that never changes: its own UUID.
	uuid := ovsdb.UUID{GoUUID: global.UUID}
	return ovsdb.Operation{
		Op: ovsdb.OperationWait, Table: globalTable, Timeout: new(int),
		Where: []ovsdb.Condition{{Column: "external_ids", Function: ovsdb.ConditionIncludes, Value: entry}},
		Until: string(ovsdb.WaitConditionEqual), Columns: []string{"_uuid"}, Rows: []ovsdb.Row{{"_uuid": uuid}},
	}, nil
}

func (e *Engine) setRead(s *session.Session) {
	e.marks.Lock()
	defer e.marks.Unlock()
	e.read, e.failed = s, false
}

func (e *Engine) setFailed(failed bool) {
	e.marks.Lock()
	defer e.marks.Unlock()
	e.failed = failed
}

// Settled notifies the engine that the loop has made a pass. If everything that was read is now in step, the database is marked as complete
// (CompleteKey). It does not wait.
func (e *Engine) Settled() {
	e.marks.Lock()
	defer e.marks.Unlock()
	if e.read == nil || e.failed || e.whole == e.read {
		return
	}
	e.whole = e.read
	select {
	case e.settled <- struct{}{}:
	default:
	}
}

// mark writes CompleteKey after Settled. A failed write is not retried: the connection is lost, and Settled is called again for the next
// one.
func (e *Engine) mark(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.settled:
		}
		if err := e.complete(ctx); err != nil && ctx.Err() == nil && e.config.Logger != nil {
			e.config.Logger.Warn("the northbound database could not be marked as complete", "error", err)
		}
	}
}

// complete writes CompleteKey over the settled connection.
func (e *Engine) complete(ctx context.Context) error {
	e.commit.Lock()
	defer e.commit.Unlock()
	e.marks.Lock()
	s := e.whole
	e.marks.Unlock()
	v, err := current(ctx, s)
	if err != nil {
		return err
	}
	if v.global == nil || v.global.ExternalIDs[CompleteKey] == strconv.FormatUint(e.term, 10) {
		return nil
	}
	guard, err := fence(v.global, e.term)
	if err != nil {
		return err
	}
	ops := append([]ovsdb.Operation{guard}, replaceID(globalTable, byUUID(v.global.UUID), CompleteKey, strconv.FormatUint(e.term, 10))...)
	results, err := s.Transact(ctx, ops...)
	if err != nil {
		return fmt.Errorf("write NB_Global: %w", err)
	}
	return session.Check(ops, results) //nolint:wrapcheck // it names the operation
}
