package ovnd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
)

// clusterSize is the number of servers of a clustered database: the smallest of which one may fail.
const clusterSize = 3

// electionTimer is the time in milliseconds after which servers without a leader elect one. ovsdb-server's default of 1 s is shorter than
// the time for which a large transaction of northd keeps a server busy.
const electionTimer = "4000"

// answerTime limits how long a server with a file waits for another one that has a leader.
const answerTime = 10 * time.Second

func (o Options) clustered() bool { return o.Servers > 1 }

// others returns the numbers of the other servers of the cluster.
func (o Options) others() []int {
	var all []int
	for i := range o.Servers {
		if i != o.Server {
			all = append(all, i)
		}
	}
	return all
}

// schemaName is the database's name in its schema.
func (db Database) schemaName() string {
	if db == NorthboundDB {
		return "OVN_Northbound"
	}
	return "OVN_Southbound"
}

// raftAddress is a server's address in the cluster: a socket in RunDir, which is the same for all servers. The guards relay it.
func raftAddress(db Database, server int) string {
	return fmt.Sprintf("unix:%s-%d.%s", db, server, raftChannel)
}

// candidate is a server of a clustered database before it is served.
type candidate struct {
	Options
	db  Database
	api kubernetes.Interface
}

// membership is what a file of a clustered database says.
type membership struct{ cluster, server string }

// membership reads the database's file; it is zero if there is none. A file that cannot be read is set aside.
func (c candidate) membership(ctx context.Context) (membership, error) {
	if _, err := os.Stat(c.file(c.db)); errors.Is(err, fs.ErrNotExist) {
		return membership{}, nil
	} else if err != nil {
		return membership{}, fmt.Errorf("database: %w", err)
	}
	cluster, err := run(ctx, "ovsdb-tool", "db-cid", c.file(c.db))
	server, serverErr := run(ctx, "ovsdb-tool", "db-sid", c.file(c.db))
	if err := errors.Join(err, serverErr); err != nil {
		if ctx.Err() != nil {
			return membership{}, err
		}
		return membership{}, c.setAside(err.Error())
	}
	return membership{cluster, server}, nil
}

// setAside renames the database's file, for inspection. A file that was set aside before is replaced.
func (c candidate) setAside(why string) error {
	aside := c.file(c.db) + ".former"
	if err := os.Rename(c.file(c.db), aside); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("set the database aside (%s): %w", why, err)
	}
	c.Report(fmt.Sprintf("the database %s is set aside as %s: %s", c.file(c.db), aside, why))
	return nil
}

// enter prepares the database of a server of a cluster. Server 0 creates the cluster if none is recorded, and reports this; otherwise a server
// without a file that belongs to the cluster joins it.
func (o Options) enter(ctx context.Context, db Database) (created bool, err error) {
	if err := os.MkdirAll(o.StateDir, 0o755); err != nil {
		return false, fmt.Errorf("database: %w", err)
	}
	api, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return false, fmt.Errorf("connect to the API server: %w", err)
	}
	c := candidate{o, db, api}
	have, err := c.membership(ctx)
	if err != nil {
		return false, err
	}
	cluster, err := c.clusterID(ctx)
	if err != nil {
		return false, err
	}
	if o.Server == 0 && (cluster == newCluster || cluster == "" && have.cluster == "") {
		return true, c.create(ctx)
	}
	why := ""
	switch {
	case cluster == "": // VPCs were off
		return false, o.publish(ctx, api, map[string]string{clusterKey(db): have.cluster})
	case have.cluster == "":
	case have.cluster != cluster:
		why = "it belongs to another cluster"
	case c.removed(ctx, have.server):
		why = "it was replaced while the server ran on another node"
	default:
		return false, nil
	}
	if err := c.setAside(why); err != nil {
		return false, err
	}
	return false, c.join(ctx, cluster)
}

// clusterID returns the recorded ID of the cluster. Servers other than 0 wait until there is one.
func (c candidate) clusterID(ctx context.Context) (cluster string, err error) {
	var refused error
	err = await(ctx, func() error {
		data, err := c.recorded(ctx, c.api)
		if errors.Is(err, errWasOne) {
			refused = err
			return nil
		} else if err != nil {
			return err
		}
		cluster = data[clusterKey(c.db)]
		if c.Server != 0 && (cluster == "" || cluster == newCluster) {
			return errNoCluster
		}
		return nil
	})
	return cluster, errors.Join(refused, err)
}

var errNoCluster = errors.New("no cluster is recorded in ConfigMap " + ConfigMap + " yet: is the pod " + ConfigMap + "-0 running?")

// create creates the cluster and records its ID. A server that ends between the two finds its own file, and records its ID then.
func (c candidate) create(ctx context.Context) error {
	if err := c.setAside("a new cluster was requested"); err != nil {
		return err
	}
	err := c.replaceFile(ctx, "--election-timer="+electionTimer, "create-cluster", c.file(c.db)+".new", c.schema(c.db), raftAddress(c.db, c.Server))
	if err != nil {
		return err
	}
	have, err := c.membership(ctx)
	if err != nil {
		return err
	}
	return c.publish(ctx, c.api, map[string]string{clusterKey(c.db): have.cluster})
}

// join makes the file of a new server of the cluster. A former server with this one's address is removed first: its name in the cluster would
// lead to this one, which does not have what that one has confirmed.
func (c candidate) join(ctx context.Context, cluster string) error {
	c.Report(fmt.Sprintf("the database %s joins cluster %s; it waits for a server that has a leader", c.file(c.db), cluster))
	address := raftAddress(c.db, c.Server)
	err := await(ctx, func() error {
		control, members, err := c.cluster(ctx)
		if err != nil || len(serversAt(members, address)) == 0 {
			return err
		}
		if _, err := appctl(ctx, control, "cluster/kick", c.db.schemaName(), address); err != nil {
			return err
		}
		return errFormer
	})
	if err != nil {
		return err
	}
	args := []string{"--cid=" + cluster, "join-cluster", c.file(c.db) + ".new", c.db.schemaName(), address}
	for _, other := range c.others() {
		args = append(args, raftAddress(c.db, other))
	}
	return c.replaceFile(ctx, args...)
}

var (
	errFormer   = errors.New("the former server is not removed yet")
	errNoLeader = errors.New("no other server has a leader: at least two of three must run")
)

// replaceFile makes the database's file, atomically.
func (c candidate) replaceFile(ctx context.Context, args ...string) error {
	fresh := c.file(c.db) + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("database: %w", err)
	}
	if _, err := run(ctx, append([]string{"ovsdb-tool"}, args...)...); err != nil {
		return err
	}
	if err := os.Rename(fresh, c.file(c.db)); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	return nil
}

// removed reports whether the others have removed this server. They are given time to answer: the guards may just start. Without an answer it
// starts with its file, as after a failure of all servers. A server that was removed does no harm then, since the others do not count it.
func (c candidate) removed(ctx context.Context, server string) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	found := false
	err := await(ctx, func() error {
		_, members, err := c.cluster(ctx)
		for _, short := range serversAt(members, raftAddress(c.db, c.Server)) {
			found = found || strings.HasPrefix(server, short)
		}
		return err
	})
	return err == nil && !found
}

// cluster returns the control socket and the status of another server that has a leader.
func (c candidate) cluster(ctx context.Context) (control, status string, err error) {
	errs := []error{errNoLeader}
	for _, other := range c.others() {
		control := c.relayed(channel{c.db, controlChannel}, other)
		status, err := appctl(ctx, control, "cluster/status", c.db.schemaName())
		if err == nil {
			err = inCluster(status)
		}
		if err == nil {
			return control, status, nil
		}
		errs = append(errs, err)
	}
	return "", "", errors.Join(errs...)
}

// member matches a line of cluster/status with a server: its name, the begin of its ID, its address.
var member = regexp.MustCompile(`^\s+\S+ \(([0-9a-f]+) at ([^)]+)\)`)

// serversAt returns the beginnings of the IDs of servers with an address.
func serversAt(status, address string) []string {
	var all []string
	for lines := bufio.NewScanner(strings.NewReader(status)); lines.Scan(); {
		if found := member.FindStringSubmatch(lines.Text()); found != nil && found[2] == address {
			all = append(all, found[1])
		}
	}
	return all
}

// field returns a field of cluster/status.
func field(status, name string) string {
	for lines := bufio.NewScanner(strings.NewReader(status)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+": "); ok {
			return value
		}
	}
	return ""
}

// inCluster returns an error unless a server is a member and has a leader.
func inCluster(status string) error {
	if have := field(status, "Status"); have != "cluster member" {
		return fmt.Errorf("the server has not joined its cluster yet: %s", have)
	}
	if leader := field(status, "Leader"); leader == "" || leader == "unknown" {
		return errors.New("the server finds no leader of its cluster: at least two of three must run and reach each other at TCP 6643")
	}
	return nil
}

// Ready returns an error unless a server of a database serves: one of a cluster has joined it and has all of its contents.
func Ready(ctx context.Context, db Database, o Options) error {
	o = o.withDefaults()
	if !o.clustered() {
		_, err := appctl(ctx, o.control(db), "version")
		return err
	}
	status, err := appctl(ctx, o.control(db), "cluster/status", db.schemaName())
	if err != nil {
		return err
	}
	if err := inCluster(status); err != nil {
		return err
	}
	if behind := field(status, "Entries not yet applied"); behind != "0" {
		return fmt.Errorf("the server has not applied %s entries of its cluster's log yet", behind)
	}
	return nil
}

// convert converts a clustered database to a newer schema of this release. Servers of an older release work with it.
func (o Options) convert(ctx context.Context, db Database) error {
	endpoint := "unix:" + o.socket(db)
	have, err := run(ctx, "ovsdb-client", "--timeout=10", "--no-leader-only", "get-schema-version", endpoint, db.schemaName())
	if err != nil {
		return err
	}
	want, err := run(ctx, "ovsdb-tool", "schema-version", o.schema(db))
	if err != nil {
		return err
	}
	if _, err := run(ctx, "ovsdb-tool", "compare-versions", have, "<", want); err != nil {
		return nil //nolint:nilerr // it is not older
	}
	_, err = run(ctx, "ovsdb-client", "--timeout=60", "--no-leader-only", "convert", endpoint, o.schema(db))
	return err
}
