package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// closeGrace is how long a session waits for the library's goroutines when it is closed.
const closeGrace = 2 * time.Second

// errSessionLost says that the connection broke while something was under way; nothing is known of its outcome.
var errSessionLost = errors.New("connection to ovsdb-server was lost")

// session is one connection with its copy of the database. A lost connection is replaced by a new session and never
// repaired: the library's own reconnection panics when its back-off gives up, cannot be stopped, and keeps a cache
// whose consistency is hard to know.
type session struct {
	client client.Client
	cache  *cache.TableCache
	// lost is closed when the connection is gone.
	lost chan struct{}
	// abandoned is closed when the library does not let go in time.
	abandoned chan struct{}

	mu sync.Mutex
	// changed is closed, and replaced, whenever the copy has changed.
	changed chan struct{}
	// notify is told of every change of a table.
	notify func(table string)
}

// dial connects, and returns once the copy of the database is complete.
func dial(ctx context.Context, endpoint string, notify func(table string)) (*session, error) {
	dbModel, err := databaseModel()
	if err != nil {
		return nil, err
	}
	c, err := client.NewOVSDBClient(dbModel, client.WithEndpoint(endpoint))
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", endpoint, err)
	}
	if err := c.Connect(ctx); err != nil {
		return nil, fmt.Errorf("connect to ovsdb-server at %s: %w", endpoint, err)
	}
	s := &session{
		client: c, cache: c.Cache(), lost: make(chan struct{}), abandoned: make(chan struct{}),
		changed: make(chan struct{}), notify: notify,
	}
	go s.watch()
	if s.cache == nil {
		s.close()
		return nil, fmt.Errorf("connect to ovsdb-server at %s: %w", endpoint, errSessionLost)
	}
	s.cache.AddEventHandler(s)
	if _, err := c.Monitor(ctx, monitorRequest()); err != nil {
		s.close()
		return nil, fmt.Errorf("monitor %s at %s: %w", databaseName, endpoint, err)
	}
	return s, nil
}

// watch closes lost when the library has let go of the connection. The library tells that once, and only to whoever
// listens at that moment.
func (s *session) watch() {
	defer close(s.lost)
	select {
	case <-s.client.DisconnectNotify():
	case <-s.abandoned:
	}
}

// close ends the connection. Nobody else may call it.
func (s *session) close() {
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

// OnAdd implements cache.EventHandler.
func (s *session) OnAdd(table string, _ model.Model) { s.touch(table) }

// OnUpdate implements cache.EventHandler.
func (s *session) OnUpdate(table string, _, _ model.Model) { s.touch(table) }

// OnDelete implements cache.EventHandler.
func (s *session) OnDelete(table string, _ model.Model) { s.touch(table) }

func (s *session) touch(table string) {
	s.mu.Lock()
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	s.notify(table)
}

func (s *session) change() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// transact sends the operations as one transaction. A returned error means that its outcome is unknown, or that the
// server did not understand it; what the server says against operations is in the results.
func (s *session) transact(ctx context.Context, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	results, err := s.client.Transact(ctx, ops...)
	switch {
	case err == nil:
		return results, nil
	case s.isLost() || errors.Is(err, client.ErrNotConnected):
		return nil, fmt.Errorf("%w: %w", errSessionLost, err)
	default:
		return nil, fmt.Errorf("OVSDB transaction of %d operations: %w", len(ops), err)
	}
}

func (s *session) isLost() bool {
	select {
	case <-s.lost:
		return true
	default:
		return false
	}
}

// sync returns once the copy holds everything that was committed before the call. ovsdb-server sends what changed
// before it answers a transaction, and the library takes in one message after the other, so an empty transaction is
// enough.
func (s *session) sync(ctx context.Context) error {
	_, err := s.transact(ctx)
	return err
}

// tables copies the rows. The rows themselves are the cache's, which replaces them and never writes into them.
func (s *session) tables() tables {
	return tables{
		root:       rows[rootRow](s.cache, tableRoot),
		bridges:    rows[bridgeRow](s.cache, tableBridge),
		ports:      rows[portRow](s.cache, tablePort),
		interfaces: rows[interfaceRow](s.cache, tableInterface),
	}
}

func rows[T any](c *cache.TableCache, table string) map[string]*T {
	t := c.Table(table)
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

// root returns the database's one Open_vSwitch row, nil if there is none.
func (s *session) root() *rootRow {
	for _, row := range rows[rootRow](s.cache, tableRoot) {
		return row
	}
	return nil
}

// maxTorn bounds how often a view is taken again because it was taken in the middle of an update.
const maxTorn = 20

// latest returns a view of what has come so far.
func (s *session) latest(ctx context.Context, ownBridges []string) (*view, error) {
	if v := newView(s.tables(), ownBridges); !v.dangling {
		return v, nil
	}
	return s.view(ctx, ownBridges)
}

// view returns a current view of the database.
func (s *session) view(ctx context.Context, ownBridges []string) (*view, error) {
	for try := 0; ; try++ {
		if err := s.sync(ctx); err != nil {
			return nil, err
		}
		v := newView(s.tables(), ownBridges)
		if !v.dangling || try == maxTorn {
			return v, nil
		}
	}
}

// applied waits until ovs-vswitchd has applied the configuration of that number. A view that is taken then shows the outcome:
// it is in the same update as the number, but the copy takes tables in one by one.
func (s *session) applied(ctx context.Context, cfg int) error {
	for {
		changed := s.change()
		if root := s.root(); root != nil && root.CurCfg >= cfg {
			return nil
		}
		select {
		case <-changed:
		case <-s.lost:
			return errSessionLost
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", ErrNotApplied, context.Cause(ctx))
		}
	}
}

// alive asks the server for a sign of life every interval and returns when the connection is lost or ctx is done.
func (s *session) alive(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.lost:
			return
		case <-ticker.C:
			probe, cancel := context.WithTimeout(ctx, interval)
			err := s.sync(probe)
			cancel()
			if err != nil {
				return
			}
		}
	}
}
