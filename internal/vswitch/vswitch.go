// Package vswitch starts Open vSwitch's daemons in containers, on nodes without a switch of their own. It does the preparation of a
// distribution's start scripts, and then executes the daemon in its place. The image has no shell.
package vswitch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Defaults of Options.
const (
	DefaultRunDir   = "/run/openvswitch"
	DefaultDatabase = "/var/lib/openvswitch/conf.db"
	DefaultSchema   = "/usr/share/openvswitch/vswitch.ovsschema"
)

// Options are the paths and names. Zero values mean the defaults.
type Options struct {
	// RunDir is the directory of the daemons' sockets. Default DefaultRunDir.
	RunDir string
	// Database is the file of the switch's configuration. It is made if it is missing, and converted if it has the schema of another version
	// of Open vSwitch. Default DefaultDatabase.
	Database string
	// Schema is the file of the database's schema. Default DefaultSchema.
	Schema string
	// Report is called when a database was set aside. Nil: no call.
	Report func(message string)
	// Node is the name of the node, which the database has as system-id and hostname. Only Switch needs it.
	Node string
}

func (o Options) withDefaults() Options {
	for value, fallback := range map[*string]string{&o.RunDir: DefaultRunDir, &o.Database: DefaultDatabase, &o.Schema: DefaultSchema} {
		if *value == "" {
			*value = fallback
		}
	}
	return o
}

func (o Options) socket() string { return filepath.Join(o.RunDir, "db.sock") }

// ErrOther says that another switch runs on the node.
var ErrOther = errors.New("another Open vSwitch runs on this node: remove the node's label, so that Weft's does not run here")

// Daemon is a program to execute in place of this one.
type Daemon struct {
	Argv []string
	Env  []string
}

// Database prepares the database and returns the command of its server. It refuses if another server runs.
func Database(ctx context.Context, o Options) (Daemon, error) {
	o = o.withDefaults()
	if answers(ctx, o.socket()) == nil {
		return Daemon{}, fmt.Errorf("%s: %w", o.socket(), ErrOther)
	}
	if _, err := Prepare(ctx, o); err != nil {
		return Daemon{}, err
	}
	return o.daemon("ovsdb-server", o.Database, "--remote=punix:"+o.socket())
}

// damage returns the reason why a file is not a database of Open vSwitch, nil if it is one; err says that this cannot be determined. It
// checks only up to the schema: ovsdb-server skips damaged records after it.
func damage(ctx context.Context, o Options) (why, err error) {
	data, err := os.ReadFile(o.Database)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	if len(data) == 0 {
		return errors.New("it is empty"), nil
	}
	want, err := run(ctx, "ovsdb-tool", "schema-name", o.Schema) // fails without the program or the schema: then the database is not damaged
	if err != nil {
		return nil, err
	}
	have, why := run(ctx, "ovsdb-tool", "db-name", o.Database)
	if why == nil && have != want {
		why = fmt.Errorf("it is a database of %s", have)
	}
	return why, ctx.Err()
}

// setAside renames a damaged database to a free name, for inspection. The agent makes its contents again.
func setAside(o Options, why error) error {
	aside := o.Database + ".damaged"
	for n := 1; ; n++ {
		if _, err := os.Lstat(aside); errors.Is(err, os.ErrNotExist) {
			break
		}
		aside = fmt.Sprintf("%s.damaged.%d", o.Database, n)
	}
	if err := os.Rename(o.Database, aside); err != nil {
		return fmt.Errorf("the database %s is damaged (%w), and cannot be set aside: %w", o.Database, why, err)
	}
	if o.Report != nil {
		o.Report(fmt.Sprintf("the database %s was damaged and is set aside as %s; a new one is made, and Weft programs its contents again: %v",
			o.Database, aside, why))
	}
	return nil
}

// Prepare makes a database if it is missing or damaged, atomically, and converts it if it has another schema. fresh reports whether it
// was made.
func Prepare(ctx context.Context, o Options) (fresh bool, err error) {
	if err := os.MkdirAll(filepath.Dir(o.Database), 0o755); err != nil {
		return false, fmt.Errorf("database: %w", err)
	}
	if _, err := os.Stat(o.Database); err == nil {
		why, err := damage(ctx, o)
		if err == nil && why != nil {
			err = setAside(o, why)
		}
		if err != nil {
			return false, err
		}
	}
	if _, err := os.Stat(o.Database); errors.Is(err, os.ErrNotExist) {
		return true, create(ctx, o)
	} else if err != nil {
		return false, fmt.Errorf("database: %w", err)
	}
	needs, err := run(ctx, "ovsdb-tool", "needs-conversion", o.Database, o.Schema)
	if err != nil || needs != "yes" {
		return false, err
	}
	_, err = run(ctx, "ovsdb-tool", "convert", o.Database, o.Schema)
	return false, err
}

func create(ctx context.Context, o Options) error {
	fresh := o.Database + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("database: %w", err)
	}
	if _, err := run(ctx, "ovsdb-tool", "create", fresh, o.Schema); err != nil {
		return err
	}
	if err := os.Rename(fresh, o.Database); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	return nil
}

// Switch waits for the database, writes the node's name into it, and returns the command of the switch's daemon.
func Switch(ctx context.Context, o Options) (Daemon, error) {
	o = o.withDefaults()
	if o.Node == "" {
		return Daemon{}, errors.New("no node name: pass the name of this node's Node object")
	}
	if err := await(ctx, o.socket()); err != nil {
		return Daemon{}, err
	}
	_, err := run(ctx, "ovs-vsctl", "--db=unix:"+o.socket(), "--no-wait", "--timeout=30", "--", "init",
		"--", "set", "Open_vSwitch", ".", "external_ids:system-id="+quote(o.Node), "external_ids:hostname="+quote(o.Node))
	if err != nil {
		return Daemon{}, err
	}
	return o.daemon("ovs-vswitchd", "unix:"+o.socket())
}

// quote returns the word as an OVSDB string.
func quote(word string) string { return `"` + word + `"` }

// daemon returns a daemon that logs to its standard error only.
func (o Options) daemon(name string, args ...string) (Daemon, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return Daemon{}, fmt.Errorf("find Open vSwitch: %w", err)
	}
	argv := append([]string{path}, args...)
	return Daemon{
		Argv: append(argv, "--pidfile="+filepath.Join(o.RunDir, name+".pid"), "-vconsole:info", "-vsyslog:off", "-vfile:off"),
		Env:  []string{"PATH=" + filepath.Dir(path), "OVS_RUNDIR=" + o.RunDir, "OVS_DBDIR=" + filepath.Dir(o.Database)},
	}, nil
}

func answers(ctx context.Context, socket string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	return conn.Close()
}

// await waits until the database's server answers.
func await(ctx context.Context, socket string) error {
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for {
		err := answers(ctx, socket)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-retry.C:
		}
	}
}

func run(ctx context.Context, argv ...string) (string, error) {
	var complaint strings.Builder
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the programs above
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
