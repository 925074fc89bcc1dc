package ovnd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"weft.dev/weft/internal/vswitch"
)

// Defaults of Options.
const (
	// DefaultRunDir has the sockets of the databases and of northd, which a pod's containers share.
	DefaultRunDir = "/run/ovn"
	// DefaultStateDir has the databases and their keys, on the host.
	DefaultStateDir = "/var/lib/ovn"
	// DefaultSchemaDir has OVN's schemas.
	DefaultSchemaDir = "/usr/share/ovn"
	// DefaultNodeDir has a node's keys.
	DefaultNodeDir = "/var/lib/weft/ovn"
)

// The usual ports of the databases, and of the guards' relay.
const (
	NorthboundPort = 6641
	SouthboundPort = 6642
	RelayPort      = 6643
)

// A Database is one of OVN's two.
type Database string

// The databases, as OVN's schemas name them.
const (
	NorthboundDB Database = "nb"
	SouthboundDB Database = "sb"
)

// Options configure the programs. Zero values are the defaults.
type Options struct {
	// RunDir, StateDir and SchemaDir are the databases' directories.
	RunDir, StateDir, SchemaDir string
	// Address is the node's address, on which the databases listen.
	Address netip.Addr
	// NorthboundPort and SouthboundPort are the databases' ports, RelayPort is the guard's for the other servers. 0: the usual ones.
	NorthboundPort, SouthboundPort, RelayPort uint16
	// Servers is the number of servers of each database, 1 or 3. 0 means 1. Server is the number of this one, from 0.
	Servers, Server int
	// Config is for the API server; Namespace has the ConfigMaps. A single database and northd do not use them.
	Config    *rest.Config
	Namespace string
	// NodeDir has the keys of a node's ovn-controller, OVSRunDir the sockets of its Open vSwitch, and Node is the node's name.
	NodeDir, OVSRunDir, Node string
	// Report is called when a database was set aside, and while one waits for its cluster. Nil: no calls.
	Report func(message string)
}

func (o Options) withDefaults() Options {
	for value, fallback := range map[*string]string{
		&o.RunDir: DefaultRunDir, &o.StateDir: DefaultStateDir, &o.SchemaDir: DefaultSchemaDir, &o.NodeDir: DefaultNodeDir,
		&o.OVSRunDir: vswitch.DefaultRunDir,
	} {
		if *value == "" {
			*value = fallback
		}
	}
	o.NorthboundPort, o.SouthboundPort = cmp.Or(o.NorthboundPort, NorthboundPort), cmp.Or(o.SouthboundPort, SouthboundPort)
	o.RelayPort, o.Servers = cmp.Or(o.RelayPort, RelayPort), cmp.Or(o.Servers, 1)
	if o.Report == nil {
		o.Report = func(string) {}
	}
	return o
}

func (o Options) validate() error {
	switch {
	case !o.Address.IsValid():
		return errAddress
	case o.Servers != 1 && o.Servers != clusterSize:
		return fmt.Errorf("%d servers of each database: it is 1, or %d, of which one may fail", o.Servers, clusterSize)
	case o.Server < 0 || o.Server >= o.Servers:
		return fmt.Errorf("server %d of %d: it is the number of the pod, from 0", o.Server, o.Servers)
	}
	return nil
}

func (o Options) run(name string) string { return filepath.Join(o.RunDir, name) }

func (o Options) socket(db Database) string { return o.run(string(db) + ".sock") }

func (o Options) control(db Database) string { return o.run(string(db) + ".ctl") }

// clients is the file of the certificates that a database's server trusts.
func (o Options) clients(db Database) string { return o.run(string(db) + "-clients.pem") }

// file is the database's file. A server of a cluster has one of its own, which no other server takes for its own on the same node.
func (o Options) file(db Database) string {
	if o.clustered() {
		return filepath.Join(o.StateDir, fmt.Sprintf("ovn%s-%d.db", db, o.Server))
	}
	return filepath.Join(o.StateDir, "ovn"+string(db)+".db")
}

func (o Options) schema(db Database) string {
	return filepath.Join(o.SchemaDir, "ovn-"+string(db)+".ovsschema")
}

var errAddress = errors.New("no address: pass the node's, where the databases are served")

// Prepare creates the databases' keys, and lists of trusted certificates that contain only their own certificate.
func Prepare(o Options, now time.Time) error {
	o = o.withDefaults()
	keys, err := KeysIn(o.StateDir, o.key(serverName), now, serverName)
	if err != nil {
		return err
	}
	return errors.Join(replace(o.clients(NorthboundDB), keys.Certificate, 0o644), replace(o.clients(SouthboundDB), keys.Certificate, 0o644))
}

// Serve prepares a database and returns its server. The northbound database is served to controllers, the southbound one to nodes once the
// gate is open.
func Serve(ctx context.Context, db Database, o Options) (vswitch.Daemon, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return vswitch.Daemon{}, err
	}
	prepare := func(ctx context.Context, db Database) (bool, error) {
		return vswitch.Prepare(ctx, vswitch.Options{Database: o.file(db), Schema: o.schema(db), Report: o.Report}) //nolint:wrapcheck // it says what failed
	}
	if o.clustered() {
		prepare = o.enter
		o.OVSRunDir = o.RunDir // to which the addresses in the cluster are relative
	}
	fresh, err := prepare(ctx, db)
	if err != nil {
		return vswitch.Daemon{}, err
	}
	args := []string{
		o.file(db), "--remote=punix:" + o.socket(db), "--unixctl=" + o.control(db),
		"--private-key=" + filepath.Join(o.StateDir, KeyFile), "--certificate=" + filepath.Join(o.StateDir, CertificateFile),
		"--ca-cert=" + o.clients(db),
	}
	if db == NorthboundDB {
		args = append(args, fmt.Sprintf("--remote=pssl:%d:%s", o.NorthboundPort, o.Address))
		if fresh {
			// northd removes from the southbound database what a new northbound one does not have.
			if err := o.closeGate(ctx); err != nil {
				return vswitch.Daemon{}, err
			}
		}
	}
	server, err := o.daemon("ovsdb-server", args...)
	server.Env = append(server.Env, "LD_PRELOAD="+allocator)
	return server, err
}

// allocator is the library whose malloc the databases' servers use. With glibc's, a server's heap is fragmented after its start and after large
// transactions: each transaction then takes 1.6 times as long with 10,000 logical ports (measured with Open vSwitch 3.1.0, glibc 2.36 and
// jemalloc 5.3.0). Without the library, the dynamic linker logs a line and the server uses glibc's.
const allocator = "libjemalloc.so.2"

// Northd waits for both databases and returns northd.
func Northd(ctx context.Context, o Options) (vswitch.Daemon, error) {
	o = o.withDefaults()
	for _, db := range []Database{NorthboundDB, SouthboundDB} {
		if err := await(ctx, func() error { return answers(ctx, o.socket(db)) }); err != nil {
			return vswitch.Daemon{}, err
		}
	}
	return o.daemon("ovn-northd", "--ovnnb-db="+o.sockets(NorthboundDB), "--ovnsb-db="+o.sockets(SouthboundDB), "--unixctl="+o.run("northd.ctl"))
}

// sockets returns the endpoints of all servers of a database, this one's first: northd uses the leader. A lock in the southbound database
// makes one northd of several active.
func (o Options) sockets(db Database) string {
	all := []string{"unix:" + o.socket(db)}
	for _, other := range o.others() {
		all = append(all, "unix:"+o.relayed(channel{db, clientChannel}, other))
	}
	return strings.Join(all, ",")
}

var errNode = errors.New("no node name: pass the name of this node's Node object")

// Controller waits for the node's keys and switch, and returns ovn-controller.
func Controller(ctx context.Context, o Options) (vswitch.Daemon, error) {
	o = o.withDefaults()
	if o.Node == "" {
		return vswitch.Daemon{}, errNode
	}
	at := func(name string) string { return filepath.Join(o.NodeDir, name) }
	for _, name := range []string{KeyFile, CertificateFile, ServerFile} {
		err := await(ctx, func() error {
			_, err := os.Stat(at(name))
			return err //nolint:wrapcheck // it names the file
		})
		if err != nil {
			return vswitch.Daemon{}, err
		}
	}
	socket := filepath.Join(o.OVSRunDir, "db.sock")
	if err := await(ctx, func() error { return answers(ctx, socket) }); err != nil {
		return vswitch.Daemon{}, err
	}
	return o.daemon("ovn-controller", "-n", o.Node, "unix:"+socket, "--pidfile="+o.run("ovn-controller.pid"),
		"--private-key="+at(KeyFile), "--certificate="+at(CertificateFile), "--ca-cert="+at(ServerFile))
}

// daemon returns a daemon that logs only to its standard error.
func (o Options) daemon(name string, args ...string) (vswitch.Daemon, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return vswitch.Daemon{}, fmt.Errorf("find OVN: %w (apt-get install ovn-central ovn-host)", err)
	}
	argv := append([]string{path}, args...)
	return vswitch.Daemon{
		Argv: append(argv, "-vconsole:info", "-vsyslog:off", "-vfile:off"),
		Env:  []string{"PATH=" + filepath.Dir(path), "OVS_RUNDIR=" + o.OVSRunDir, "OVN_RUNDIR=" + o.RunDir, "OVN_DBDIR=" + o.StateDir},
	}, nil
}

// nodesRemote is the remote on which the southbound database is served to nodes: as its own table Connection defines, with the role of
// ovn-controller.
const nodesRemote = "db:OVN_Southbound,SB_Global,connections"

// closeGate stops serving the southbound database to the nodes. A server that does not run serves no nodes.
func (o Options) closeGate(ctx context.Context) error {
	if answers(ctx, o.control(SouthboundDB)) != nil {
		return nil //nolint:nilerr // a server that does not run serves no node
	}
	remotes, err := appctl(ctx, o.control(SouthboundDB), "ovsdb-server/list-remotes")
	if err != nil || !strings.Contains(remotes, nodesRemote) {
		return err
	}
	_, err = appctl(ctx, o.control(SouthboundDB), "ovsdb-server/remove-remote", nodesRemote)
	return err
}

// openGate serves the southbound database to the nodes.
func (o Options) openGate(ctx context.Context) error {
	remotes, err := appctl(ctx, o.control(SouthboundDB), "ovsdb-server/list-remotes")
	if err != nil || strings.Contains(remotes, nodesRemote) {
		return err
	}
	_, err = appctl(ctx, o.control(SouthboundDB), "ovsdb-server/add-remote", nodesRemote)
	return err
}

func appctl(ctx context.Context, control string, args ...string) (string, error) {
	return run(ctx, append([]string{"ovs-appctl", "--timeout=10", "-t", control}, args...)...)
}

func run(ctx context.Context, argv ...string) (string, error) {
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the programs of OVN and Open vSwitch
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

func answers(ctx context.Context, socket string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("OVN: %w", err)
	}
	return conn.Close()
}

// await repeats an attempt until it succeeds.
func await(ctx context.Context, attempt func() error) error {
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for {
		err := attempt()
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

// endpoint is where a database is served on a node.
func endpoint(address netip.Addr, port uint16) string {
	return "ssl:" + netip.AddrPortFrom(address, port).String()
}
