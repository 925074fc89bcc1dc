package ovsdb

import (
	"log/slog"
	"path/filepath"
	"strings"
	"time"
)

// Defaults of [Config].
const (
	// DefaultEndpoint is where Debian's and upstream's packages put the database.
	DefaultEndpoint = "unix:/var/run/openvswitch/db.sock"
	// DefaultApplyTimeout is some thousand times what ovs-vswitchd takes to add a port.
	DefaultApplyTimeout = 30 * time.Second
	// DefaultProbeInterval is half of ovs-vswitchd's own default for its connections.
	DefaultProbeInterval = 5 * time.Second
)

// Config says which switch an [Engine] is for.
type Config struct {
	// Endpoint is the database's socket in OVSDB connection format. Empty means DefaultEndpoint.
	Endpoint string
	// Bridges are the names of Weft's own bridges: these, and every port on them, are within the engine's care even
	// without OwnerID, so that strays are found. None means that only marked rows are.
	Bridges []string
	// Program tells the rows of programs apart that share a switch: rows of other programs are neither reported nor changed, except on
	// Bridges. The rows that the caller writes have it in external_ids, under ProgramID. Empty: Weft's agent, whose rows have none.
	Program string
	// ControlSocket is a pattern (path/filepath.Match) for ovs-vswitchd's control socket. The engine keeps an idle
	// connection to it, for nothing in the database tells that ovs-vswitchd has started anew. Empty means
	// ovs-vswitchd.*.ctl beside the database's socket, and nothing if the endpoint is not a unix socket: then there is
	// no EventSwitchRestarted.
	ControlSocket string
	// ApplyTimeout bounds how long Commit waits for ovs-vswitchd, in addition to its context. 0 means
	// DefaultApplyTimeout.
	ApplyTimeout time.Duration
	// ProbeInterval is how often an idle connection is asked whether it still lives, and how long the answer may take.
	// 0 means DefaultProbeInterval.
	ProbeInterval time.Duration
	// Logger is told when the connection is lost and when it is back. Nil means silence.
	Logger *slog.Logger
}

// withDefaults returns c with every zero value replaced by what it means.
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

// claim returns what of the switch is the program's.
func (c Config) claim() claim { return claim{c.Bridges, c.Program} }
