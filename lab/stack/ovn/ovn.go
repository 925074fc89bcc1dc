// Package ovn runs OVN's programs in a lab as plain processes: the two databases and northd in one namespace (Central), and
// ovn-controller on nodes with a switch (Chassis). The programs are those of Debian's packages (build/prepare --tests).
package ovn

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

// Integration is OVN's bridge on every chassis.
const Integration = "br-int"

// schemas is the directory of the databases' schemas in Debian's ovn-common.
const schemas = "/usr/share/ovn"

// Central is the two databases and northd. Its programs are PREFIX/ovsdb-nb, PREFIX/ovsdb-sb and PREFIX/ovn-northd.
type Central struct {
	Space  ground.Space   // where the programs run
	Group  *process.Group // runs them
	Dir    string         // of the two database files
	Run    string         // of the sockets
	Prefix string         // of the programs' names in the group
	// Remote is an additional remote of the southbound database, such as ptcp:6642:172.31.0.250; "": only the socket.
	Remote string
	// Env is added to the environment of the databases' servers.
	Env []string
}

// NB returns the northbound database's endpoint, SB the southbound one's, both as a socket's path.
func (c *Central) NB() string { return "unix:" + c.sock("nb") }

// SB returns the southbound database's endpoint.
func (c *Central) SB() string { return "unix:" + c.sock("sb") }

func (c *Central) sock(name string) string { return filepath.Join(c.Run, name+".sock") }

func (c *Central) name(program string) string { return c.Prefix + "/" + program }

// Start starts the databases, makes their first rows, and starts northd.
func (c *Central) Start(ctx context.Context) error {
	for _, dir := range []string{c.Dir, c.Run} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make OVN's folders: %w", err)
		}
	}
	for _, db := range []string{"nb", "sb"} {
		if err := c.database(ctx, db); err != nil {
			return err
		}
		if _, err := c.Group.Run(ctx, "", "ovn-"+db+"ctl", "--db=unix:"+c.sock(db), "--no-leader-only", "init"); err != nil {
			return err
		}
	}
	return c.Group.Start(ctx, process.Program{
		Name: c.name("ovn-northd"),
		Argv: c.Space.Enter("ovn-northd", "--ovnnb-db="+c.NB(), "--ovnsb-db="+c.SB(),
			"--unixctl="+filepath.Join(c.Run, "northd.ctl"), "-vconsole:warn"),
	})
}

func (c *Central) database(ctx context.Context, db string) error {
	file := filepath.Join(c.Dir, "ovn"+db+".db")
	if _, err := os.Stat(file); err != nil {
		if _, err := c.Group.Run(ctx, "", "ovsdb-tool", "create", file, filepath.Join(schemas, "ovn-"+db+".ovsschema")); err != nil {
			return err
		}
	}
	argv := []string{
		"ovsdb-server", file, "--remote=punix:" + c.sock(db), "--unixctl=" + filepath.Join(c.Run, db+".ctl"),
		"--no-chdir", "-vconsole:warn",
	}
	if db == "sb" && c.Remote != "" {
		argv = append(argv, "--remote="+c.Remote)
	}
	return c.Group.Start(ctx, process.Program{Name: c.name("ovsdb-" + db), Argv: c.Space.Enter(argv...), Env: c.Env, Ready: dialable(c.sock(db))})
}

func dialable(path string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return fmt.Errorf("reach %s: %w", path, err)
		}
		return conn.Close()
	}
}

// Chassis is a node whose switch OVN controls.
type Chassis struct {
	Group *process.Group
	Space ground.Space
	Node  plan.Node
	// Remote is the southbound database's endpoint for the node, SB that for the machine.
	Remote, SB string
	// Datapath is the integration bridge's.
	Datapath plan.Datapath
	// Settings are further external_ids of the node's Open_vSwitch row, as NAME=VALUE. Prepare are ovs-vsctl's arguments for changes before
	// that.
	Settings, Prepare []string
}

// Start makes the node a chassis, and waits until it is in the southbound database.
func (c Chassis) Start(ctx context.Context) error {
	set := append([]string{"ovs-vsctl", "--timeout=60"}, c.Prepare...)
	set = append(set, "--", "set", "Open_vSwitch", ".",
		"external_ids:ovn-remote="+ovsdbString(c.Remote), "external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip="+c.Node.IP.String(),
		"external_ids:ovn-bridge-datapath-type="+string(c.Datapath), "external_ids:ovn-monitor-all=true")
	for _, setting := range c.Settings {
		set = append(set, "external_ids:"+setting)
	}
	if _, err := c.Group.Run(ctx, "", c.Space.Enter(set...)...); err != nil {
		return err
	}
	if _, err := c.Group.Run(ctx, "", c.Space.Enter("mkdir", "-p", "/run/ovn")...); err != nil { // for its control socket
		return err
	}
	if err := c.Group.Start(ctx, process.Program{
		Name: c.Node.Name + "/ovn-controller",
		Argv: c.Space.Enter("ovn-controller", "unix:/run/openvswitch/db.sock", "--pidfile=/run/openvswitch/ovn-controller.pid", "-vconsole:warn"),
	}); err != nil {
		return err
	}
	return c.registered(ctx)
}

// ovsdbString quotes a value with characters that are special for ovs-vsctl.
func ovsdbString(value string) string { return `"` + value + `"` }

// registered waits until the chassis is in the southbound database: no port can be bound to it before.
func (c Chassis) registered(ctx context.Context) error {
	for {
		out, err := c.Group.Run(ctx, "", "ovn-sbctl", "--db="+c.SB, "--no-leader-only", "--bare", "--columns=name", "find", "chassis",
			"name="+c.Node.Name)
		if err == nil && slices.Contains(strings.Fields(out), c.Node.Name) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("chassis %s does not register: %w", c.Node.Name, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
