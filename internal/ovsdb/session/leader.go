package session

import (
	"context"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/model"
)

// The database that every ovsdb-server has about itself, with the columns of its one table that show the leadership (ovsdb-server(5)).
const (
	serverDatabase = "_Server"
	serverTable    = "Database"
	clustered      = "clustered"
)

type databaseRow struct {
	UUID      string `ovsdb:"_uuid"`
	Name      string `ovsdb:"name"`
	Model     string `ovsdb:"model"`
	Leader    bool   `ovsdb:"leader"`
	Connected bool   `ovsdb:"connected"`
}

// watchLeader opens a session with the server's own database. It fails unless the server may be used. The library has an option for that,
// but it leaks a goroutine for each connection.
func watchLeader(ctx context.Context, config Config, endpoint string) (*Session, error) {
	s, err := dial(ctx, Config{
		Database: serverDatabase, Tables: map[string]model.Model{serverTable: &databaseRow{}},
		TLS: config.TLS, connect: config.connect,
	}.withDefaults(), endpoint)
	if err != nil {
		return nil, err
	}
	if !s.leads(config.Database) {
		s.close()
		return nil, fmt.Errorf("database %s at %s: %w", config.Database, endpoint, errNotLeader)
	}
	return s, nil
}

// leads reports whether the server leads the database, or the database is not clustered.
func (s *Session) leads(database string) bool {
	for _, row := range Rows[databaseRow](s, serverTable) {
		if row.Name == database {
			return row.Model != clustered || row.Leader && row.Connected
		}
	}
	return false
}

// awaitDeposed returns when the server no longer leads, or the connection is lost.
func (s *Session) awaitDeposed(ctx context.Context, database string) {
	_ = s.Await(ctx, func() bool { return !s.leads(database) }) // after a lost connection, the leadership is unknown too
}
