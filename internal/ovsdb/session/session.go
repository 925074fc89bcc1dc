package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// noRow is the UUID of no row.
const noRow = "00000000-0000-0000-0000-000000000000"

// Session is one connection with its copy of the database.
type Session struct {
	conn     *connection
	replica  *replica
	database string
	tables   []string
	endpoint string
	// leader is the watch for the leadership of the server, nil without LeaderOnly.
	leader *Session

	mu sync.Mutex
	// changed is closed, and replaced, whenever the copy has changed.
	changed chan struct{}
	notify  func(table string)
	// notifyRows is Config.ChangedRows.
	notifyRows func(table string, uuids []string)
}

// dial connects to one endpoint and returns once the copy of the database is complete.
func dial(ctx context.Context, config Config, endpoint string) (*Session, error) {
	s := &Session{
		replica: newReplica(config.Tables), database: config.Database, tables: slices.Sorted(maps.Keys(config.Tables)), endpoint: endpoint,
		changed: make(chan struct{}), notify: config.Changed, notifyRows: config.ChangedRows,
	}
	conn, err := config.connect(ctx, endpoint, config.TLS)
	if err != nil {
		return nil, fmt.Errorf("connect to ovsdb-server at %s: %w", endpoint, err)
	}
	s.conn = newConnection(conn, s.notified)
	request := []any{config.Database, config.Database, config.monitorRequest()}
	if _, err := s.conn.call(ctx, ovsdb.ConditionalMonitorRPC, request, s.begin); err != nil {
		s.close()
		return nil, fmt.Errorf("monitor %s at %s: %w", config.Database, endpoint, err)
	}
	return s, nil
}

// close ends the connection. Only the owner of the session calls it.
func (s *Session) close() {
	if s.leader != nil {
		defer s.leader.close()
	}
	s.conn.close()
}

// notified handles a notification of the server. If it fails, the copy may not match the database, and the connection ends.
func (s *Session) notified(method string, params json.RawMessage) error {
	if method != "update2" {
		return nil // the session requests no locks
	}
	var update []json.RawMessage // the name of the monitor, of which there is one, and the rows
	if err := json.Unmarshal(params, &update); err != nil || len(update) != 2 {
		return fmt.Errorf("update of database %s with parameters %.64q", s.database, params)
	}
	return s.update(update[1])
}

// begin applies the content that the copy begins with.
func (s *Session) begin(encoded json.RawMessage) error {
	changed, err := s.replica.apply(encoded)
	for table := range changed {
		s.touch(table)
	}
	return err
}

// update applies an update to the copy.
func (s *Session) update(encoded json.RawMessage) error {
	changed, err := s.replica.apply(encoded)
	for table, uuids := range changed {
		s.notifyRows(table, uuids)
		s.touch(table)
	}
	return err
}

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
func (s *Session) Lost() <-chan struct{} { return s.conn.ended }

// Changed returns a channel that is closed at the next change of the copy. A caller must take it before it reads rows.
func (s *Session) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// IsLost reports whether the connection is lost.
func (s *Session) IsLost() bool {
	select {
	case <-s.conn.ended:
		return true
	default:
		return false
	}
}

// Transact sends the operations as one transaction. An error means that the outcome is unknown (ErrLost), or that the
// server did not understand the transaction; [Check] finds a refusal in the results.
func (s *Session) Transact(ctx context.Context, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	var results []ovsdb.OperationResult
	encoded, err := s.conn.call(ctx, "transact", ovsdb.NewTransactArgs(s.database, ops...), nil)
	if err == nil {
		err = json.Unmarshal(encoded, &results)
	}
	switch {
	case err == nil:
		return results, nil
	case errors.Is(err, ErrLost):
		return nil, err
	case s.IsLost():
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	default:
		return nil, fmt.Errorf("OVSDB transaction of %d operations: %w", len(ops), err)
	}
}

// Sync returns once the copy has everything that was committed before the call. ovsdb-server sends updates before it
// answers a transaction, and the connection handles messages in their order, so a transaction that selects no row is enough.
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
		case <-s.conn.ended:
			return ErrLost
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Rows returns the rows of a table by UUID. T is the struct that Config.Tables has for the table. The map is the
// caller's; the rows are the copy's, which replaces them and never writes into them.
func Rows[T any](s *Session, table string) map[string]*T {
	out := map[string]*T{}
	s.replica.each(table, func(uuid string, row any) {
		if typed, ok := row.(*T); ok {
			out[uuid] = typed
		}
	})
	return out
}

// Models returns the rows of a table by UUID, as Rows does, as pointers to the struct that Config.Tables has for the table.
func Models(s *Session, table string) map[string]model.Model {
	out := map[string]model.Model{}
	s.replica.each(table, func(uuid string, row any) { out[uuid] = row })
	return out
}

// Model returns one row of a table, as Models does; nil: there is none.
func Model(s *Session, table, uuid string) model.Model { return s.replica.row(table, uuid) }

// alive probes the server every interval and returns when the connection or the leadership is lost, or ctx is done. The error says why.
func (s *Session) alive(ctx context.Context, interval time.Duration) error {
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
			return context.Cause(ctx)
		case <-s.conn.ended:
			return s.conn.err
		case <-deposed:
			return errNotLeader
		case <-ticker.C:
			probe, cancel := context.WithTimeout(ctx, interval)
			err := s.Sync(probe)
			cancel()
			if err != nil {
				return err
			}
		}
	}
}
