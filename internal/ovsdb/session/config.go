package session

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// DefaultProbeInterval is the default of Config.ProbeInterval, half of ovs-vswitchd's own default for its connections.
const DefaultProbeInterval = 5 * time.Second

// Methods of an endpoint.
const (
	unixSocket = "unix"
	tcp        = "tcp"
	ssl        = "ssl"
)

// Config describes the database of a [Keeper].
type Config struct {
	// Database is the name of the database in its schema.
	Database string
	// Tables maps the name of each table to a pointer to a struct with libovsdb's tags. The copy has only the tagged columns: a slice of a
	// column with several values, a pointer of one with at most one, a map of one with pairs, otherwise the value. A server refuses columns
	// that it does not have. A column of statistics would cause an update every few seconds.
	Tables map[string]model.Model
	// Endpoints are tried in turn: unix:PATH, tcp:ADDRESS:PORT or ssl:ADDRESS:PORT.
	Endpoints []string
	// TLS is for ssl: endpoints.
	TLS *tls.Config
	// Locate returns endpoints and TLS before each attempt, in place of Endpoints and TLS, for servers that move. Nil: they are fixed.
	Locate func(context.Context) ([]string, *tls.Config, error)
	// LeaderOnly accepts only the leader of a clustered database.
	LeaderOnly bool
	// ProbeInterval is the time between probes of an idle connection and the time limit of an answer. 0 means
	// DefaultProbeInterval.
	ProbeInterval time.Duration
	// Logger logs when the connection is lost and when it is back. Nil means silence.
	Logger *slog.Logger

	// Changed is called for each changed row with its table. It must not block. Nil means no calls.
	Changed func(table string)
	// ChangedRows is called before Changed with the UUIDs of the changed rows of a table, but not for the content that a new session begins
	// with. It must not block. Nil means no calls.
	ChangedRows func(table string, uuids []string)
	// Connected is called when a session is ready; again is false for the first one. Nil means no calls.
	Connected func(again bool)
	// Lost is called when a session has ended. Nil means no calls.
	Lost func()

	// connect connects to an endpoint. Nil means the machine's network.
	connect func(ctx context.Context, endpoint string, config *tls.Config) (net.Conn, error)
}

// withDefaults returns c with every zero value replaced by its default.
func (c Config) withDefaults() Config {
	if c.ProbeInterval <= 0 {
		c.ProbeInterval = DefaultProbeInterval
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Changed == nil {
		c.Changed = func(string) {}
	}
	if c.ChangedRows == nil {
		c.ChangedRows = func(string, []string) {}
	}
	if c.Connected == nil {
		c.Connected = func(bool) {}
	}
	if c.Lost == nil {
		c.Lost = func() {}
	}
	if c.connect == nil {
		c.connect = connect
	}
	return c
}

func (c Config) validate() error {
	if c.Database == "" || len(c.Tables) == 0 {
		return fmt.Errorf("%w: a database and at least one table are needed", ErrInvalid)
	}
	if c.Locate == nil {
		if len(c.Endpoints) == 0 {
			return fmt.Errorf("%w: no endpoint for database %s", ErrInvalid, c.Database)
		}
		for _, endpoint := range c.Endpoints {
			if err := c.validEndpoint(endpoint); err != nil {
				return err
			}
		}
	}
	_, err := model.NewClientDBModel(c.Database, c.Tables)
	if err != nil {
		return fmt.Errorf("%w: tables of database %s: %w", ErrInvalid, c.Database, err)
	}
	return nil
}

// validEndpoint refuses endpoints that could not be connected to.
func (c Config) validEndpoint(endpoint string) error {
	method, where, _ := strings.Cut(endpoint, ":")
	switch method {
	case unixSocket:
		if where == "" {
			return fmt.Errorf("%w: endpoint %.64q has no path, want unix:PATH", ErrInvalid, endpoint)
		}
	case tcp, ssl:
		if host, port, err := net.SplitHostPort(where); err != nil || host == "" || port == "" {
			return fmt.Errorf("%w: endpoint %.64q, want %s:ADDRESS:PORT", ErrInvalid, endpoint, method)
		}
		if method == ssl && c.TLS == nil {
			return fmt.Errorf("%w: endpoint %.64q needs certificates (TLS)", ErrInvalid, endpoint)
		}
	default:
		return fmt.Errorf("%w: endpoint %.64q, want unix:PATH, tcp:ADDRESS:PORT or ssl:ADDRESS:PORT", ErrInvalid, endpoint)
	}
	return nil
}

// monitorRequest requests the tagged columns of each table.
func (c Config) monitorRequest() map[string]ovsdb.MonitorRequest {
	requests := make(map[string]ovsdb.MonitorRequest, len(c.Tables))
	for table, row := range c.Tables {
		requests[table] = ovsdb.MonitorRequest{Columns: columns(row), Select: ovsdb.NewDefaultMonitorSelect()}
	}
	return requests
}

// columns returns the tagged columns of a row without its UUID, which every update has.
func columns(row model.Model) []string {
	var names []string
	for field := range reflect.TypeOf(row).Elem().Fields() {
		if name := field.Tag.Get("ovsdb"); name != "" && name != "_uuid" {
			names = append(names, name)
		}
	}
	return names
}
