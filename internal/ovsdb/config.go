package ovsdb

import (
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"weft.dev/weft/internal/ovsdb/confdb"
)

// Defaults of [Config].
const (
	// DefaultEndpoint is the socket of the database in Debian's and upstream's packages.
	DefaultEndpoint = "unix:/var/run/openvswitch/db.sock"
	// DefaultApplyTimeout is about a thousand times as long as ovs-vswitchd needs to add a port.
	DefaultApplyTimeout = 30 * time.Second
	// DefaultProbeInterval is half of ovs-vswitchd's own default for its connections.
	DefaultProbeInterval = 5 * time.Second
)

// Config describes the switch of an [Engine].
type Config struct {
	// Endpoint is the database's socket in OVSDB connection format. Empty means DefaultEndpoint.
	Endpoint string
	// Bridges are the names of Weft's own bridges. The engine manages these and all their ports even without OwnerID, so that it finds
	// foreign ports. None: the engine manages only marked rows.
	Bridges []string
	// Program distinguishes programs that share a switch. Rows of other programs are neither reported nor changed, except on Bridges. The
	// caller must set external_ids:ProgramID to Program in its rows. Empty: Weft's agent, whose rows have no ProgramID.
	Program string
	// ControlSocket is a pattern (path/filepath.Match) for ovs-vswitchd's control socket. The engine keeps an idle connection to it, because
	// the database does not show that ovs-vswitchd has restarted. Empty means ovs-vswitchd.*.ctl beside the database's socket. If the
	// endpoint is not a unix socket, empty means none, and there is no EventSwitchRestarted.
	ControlSocket string
	// ApplyTimeout limits how long Commit waits for ovs-vswitchd, in addition to its context. 0 means DefaultApplyTimeout.
	ApplyTimeout time.Duration
	// ProbeInterval is the interval of probes on an idle connection, and the time limit of an answer. 0 means DefaultProbeInterval.
	ProbeInterval time.Duration
	// Logger logs when the connection is lost and when it is back. Nil: no logs.
	Logger *slog.Logger
}

// withDefaults returns c with every zero value replaced by its default.
func (c Config) withDefaults() Config {
	if c.Endpoint == "" {
		c.Endpoint = DefaultEndpoint
	}
	if path, ok := strings.CutPrefix(c.Endpoint, "unix:"); ok && c.ControlSocket == "" {
		c.ControlSocket = filepath.Join(filepath.Dir(path), "ovs-vswitchd.*.ctl")
	}
	if c.ApplyTimeout <= 0 {
		c.ApplyTimeout = DefaultApplyTimeout
	}
	if c.ProbeInterval <= 0 {
		c.ProbeInterval = DefaultProbeInterval
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// claim returns which rows are the program's.
func (c Config) claim() confdb.Claim { return confdb.Claim{Bridges: c.Bridges, Program: c.Program} }
