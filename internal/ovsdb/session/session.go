package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// closeGrace is how long close waits for the library's goroutines.
const closeGrace = 2 * time.Second

// maxCompare is how often a new copy is compared with the server while others write to the database.
const maxCompare = 20

// noRow is the UUID of no row.
const noRow = "00000000-0000-0000-0000-000000000000"

// Session is one connection with its copy of the database.
type Session struct {
	client   client.Client
	cache    *cache.TableCache
	database string
	tables   []string
	endpoint string
	// lost is closed when the connection is lost.
	lost chan struct{}
	// abandoned is closed when the library does not release the connection in time.
	abandoned chan struct{}
	// leader is the watch for the leadership of the server, nil without LeaderOnly.
	leader *Session

	mu sync.Mutex
	// changed is closed, and replaced, whenever the copy has changed.
	changed chan struct{}
	notify  func(table string)
}

// dial connects to one endpoint and returns once the copy of the database is complete.
func dial(ctx context.Context, config Config, endpoint string) (*Session, error) {
	dbModel, err := model.NewClientDBModel(config.Database, config.Tables)
	if err != nil {
		return nil, fmt.Errorf("model of database %s: %w", config.Database, err)
	}
	options := []client.Option{client.WithEndpoint(endpoint)}
	if config.TLS != nil {
		options = append(options, client.WithTLSConfig(config.TLS))
	}
	c, err := client.NewOVSDBClient(dbModel, options...)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", endpoint, err)
	}
	if err := c.Connect(ctx); err != nil {
		return nil, fmt.Errorf("connect to ovsdb-server at %s: %w", endpoint, err)
	}
	s := &Session{
		client: c, cache: c.Cache(), database: config.Database, tables: slices.Sorted(maps.Keys(config.Tables)), endpoint: endpoint,
		lost: make(chan struct{}), abandoned: make(chan struct{}), changed: make(chan struct{}), notify: config.Changed,
	}
	go s.watch()
	if s.cache == nil {
		s.close()
		return nil, fmt.Errorf("connect to ovsdb-server at %s: %w", endpoint, ErrLost)
	}
	s.cache.AddEventHandler(s)
	if _, err := c.Monitor(ctx, config.monitorRequest()); err != nil {
		s.close()
		return nil, fmt.Errorf("monitor %s at %s: %w", config.Database, endpoint, err)
	}
	return s, nil
}

// watch closes lost when the library has released the connection. The library signals that once, and only to a receiver that is waiting
// at that moment.
func (s *Session) watch() {
	defer close(s.lost)
	select {
	case <-s.client.DisconnectNotify():
	case <-s.abandoned:
	}
}

// close ends the connection. Only the owner of the session calls it.
func (s *Session) close() {
	if s.leader != nil {
		defer s.leader.close()
	}
	s.client.Close()
	timer := time.NewTimer(closeGrace)
	defer timer.Stop()
	select {
	case <-s.lost:
	case <-timer.C:
		close(s.abandoned)
		<-s.lost
	}
}

// OnAdd implements cache.EventHandler; callers do not use it.
func (s *Session) OnAdd(table string, _ model.Model) { s.touch(table) }

// OnUpdate implements cache.EventHandler; callers do not use it.
func (s *Session) OnUpdate(table string, _, _ model.Model) { s.touch(table) }

// OnDelete implements cache.EventHandler; callers do not use it.
func (s *Session) OnDelete(table string, _ model.Model) { s.touch(table) }

func (s *Session) touch(table string) {
	s.mu.Lock()
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	s.notify(table)
}

// Endpoint returns the endpoint that the session is connected to.
func (s *Session) Endpoint() string { return s.endpoint }

// Lost returns a channel that is closed when the connection is lost.
func (s *Session) Lost() <-chan struct{} { return s.lost }

// Changed returns a channel that is closed at the next change of the copy. A caller must take it before it reads rows.
func (s *Session) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// IsLost reports whether the connection is lost.
func (s *Session) IsLost() bool {
	select {
	case <-s.lost:
		return true
	default:
		return false
	}
}

// Transact sends the operations as one transaction. An error means that the outcome is unknown (ErrLost), or that the
// server did not understand the transaction; [Check] finds a refusal in the results.
func (s *Session) Transact(ctx context.Context, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	results, err := s.client.Transact(ctx, ops...)
	switch {
	case err == nil:
		return results, nil
	case s.IsLost() || errors.Is(err, client.ErrNotConnected):
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	default:
		return nil, fmt.Errorf("OVSDB transaction of %d operations: %w", len(ops), err)
	}
}

// Sync returns once the copy has everything that was committed before the call. ovsdb-server sends updates before it
// answers a transaction, and the library handles messages in their order, so a transaction that selects no row is enough.
func (s *Session) Sync(ctx context.Context) error {
	_, err := s.Transact(ctx, ovsdb.Operation{
		Op: ovsdb.OperationSelect, Table: s.tables[0], Columns: []string{"_uuid"},
		Where: []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: noRow})},
	})
	return err
}

// Await returns nil once holds returns true; it calls holds now and after each change of the copy. It returns ErrLost when the connection
// is lost, and the context's cause when ctx ends.
func (s *Session) Await(ctx context.Context, holds func() bool) error {
	for {
		changed := s.Changed()
		if holds() {
			return nil
		}
		select {
		case <-changed:
		case <-s.lost:
			return ErrLost
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Rows returns the rows of a table by UUID. T is the struct that Config.Tables has for the table. The map is the
// caller's; the rows are the copy's, which replaces them and never writes into them.
func Rows[T any](s *Session, table string) map[string]*T {
	t := s.cache.Table(table)
	if t == nil {
		return nil
	}
	shallow := t.RowsShallow()
	out := make(map[string]*T, len(shallow))
	for uuid, row := range shallow {
		if typed, ok := row.(*T); ok {
			out[uuid] = typed
		}
	}
	return out
}

// Models returns the rows of a table by UUID, as Rows does, as pointers to the struct that Config.Tables has for the table.
func Models(s *Session, table string) map[string]model.Model {
	t := s.cache.Table(table)
	if t == nil {
		return nil
	}
	return t.RowsShallow()
}

// verify compares the UUIDs of the copy with those of the server. Others may write meanwhile, so only a lasting difference is an error.
func (s *Session) verify(ctx context.Context) error {
	ops := make([]ovsdb.Operation, len(s.tables))
	for i, table := range s.tables {
		ops[i] = ovsdb.Operation{Op: ovsdb.OperationSelect, Table: table, Where: []ovsdb.Condition{}, Columns: []string{"_uuid"}}
	}
	var different string
	for range maxCompare {
		results, err := s.Transact(ctx, ops...)
		if err != nil {
			return err
		}
		if err := Check(ops, results); err != nil {
			return fmt.Errorf("compare the copy: %w", err)
		}
		if different = s.compare(results); different == "" {
			return nil
		}
	}
	return fmt.Errorf("copy of table %s at %s differs from the database after %d comparisons", different, s.endpoint, maxCompare)
}

// compare returns the first table whose rows differ from the server's, "" if there is none.
func (s *Session) compare(results []ovsdb.OperationResult) string {
	for i, table := range s.tables {
		have := s.cache.Table(table)
		if have == nil || have.Len() != len(results[i].Rows) {
			return table
		}
		for _, row := range results[i].Rows {
			uuid, ok := row["_uuid"].(ovsdb.UUID)
			if !ok || !have.HasRow(uuid.GoUUID) {
				return table
			}
		}
	}
	return ""
}

// alive probes the server every interval and returns when the connection or the leadership is lost, or ctx is done.
func (s *Session) alive(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	deposed := make(chan struct{})
	if s.leader != nil {
		watching, stop := context.WithCancel(ctx)
		defer stop()
		go func() {
			defer close(deposed)
			s.leader.awaitDeposed(watching, s.database)
		}()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.lost:
			return
		case <-deposed:
			return
		case <-ticker.C:
			probe, cancel := context.WithTimeout(ctx, interval)
			err := s.Sync(probe)
			cancel()
			if err != nil {
				return
			}
		}
	}
}
