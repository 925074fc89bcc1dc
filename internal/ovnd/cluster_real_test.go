//go:build real

package ovnd

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/vishvananda/netns"

	"weft.dev/weft/internal/ovsdb/session"
	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/internal/vswitch"
)

// pod is one of the three pods of weft-ovn.
type pod struct {
	*stage
	stopGuard func()
}

// trio is the whole StatefulSet.
type trio struct {
	t    *testing.T
	pods [clusterSize]*pod
}

func newTrio(t *testing.T) *trio {
	t.Helper()
	c := &trio{t: t}
	namespace := "ovnd-" + strings.ToLower(rand.Text()[:10]) // its ConfigMap records the cluster
	for i := range c.pods {
		s := newStage(t, namespace)
		s.options.Servers, s.options.Server = clusterSize, i
		s.netns = loopbackOnly(t) // a server of the southbound database serves on all addresses, and on the same port as the others
		s.options.SouthboundPort = SouthboundPort
		c.pods[i] = &pod{stage: s}
		t.Cleanup(func() { c.stop(i) })
	}
	return c
}

// loopbackOnly returns the path of a new network namespace.
func loopbackOnly(t *testing.T) string {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	host, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	name := "wt" + strings.ToLower(rand.Text()[:10])
	space, err := netns.NewNamed(name)
	if err := errors.Join(err, netns.Set(host)); err != nil {
		t.Fatal(err)
	}
	_ = space.Close()
	t.Cleanup(func() {
		if err := netns.DeleteNamed(name); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join("/var/run/netns", name)
	if _, err := run(t.Context(), "nsenter", "--net="+path, "ip", "link", "set", "lo", "up"); err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts pods as the kubelet does: all containers, in all pods, at the same time.
func (c *trio) start(numbers ...int) {
	c.t.Helper()
	type started struct {
		pod    *pod
		name   string
		daemon vswitch.Daemon
		err    error
	}
	all := make(chan started)
	for _, i := range numbers {
		p := c.pods[i]
		if err := Prepare(p.options, time.Now()); err != nil {
			c.t.Fatal(err)
		}
		guard, err := NewGuard(GuardOptions{Options: p.options, Log: slog.New(slog.NewTextHandler(c.t.Output(), nil)).With("server", i)})
		if err != nil {
			c.t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(c.t.Context())
		ended := make(chan error, 1)
		go func() { ended <- guard.Run(ctx) }()
		p.stopGuard = func() {
			cancel()
			if err := <-ended; err != nil {
				c.t.Error(err)
			}
		}
		for _, db := range []Database{NorthboundDB, SouthboundDB} {
			go func() {
				daemon, err := Serve(c.t.Context(), db, p.options)
				all <- started{p, string(db), daemon, err}
			}()
		}
		go func() {
			daemon, err := Northd(c.t.Context(), p.options)
			all <- started{p, "northd", daemon, err}
		}()
	}
	for range 3 * len(numbers) {
		s := <-all
		s.pod.start(s.name, s.daemon, s.err)
	}
}

// stop kills all programs of a pod.
func (c *trio) stop(i int) {
	p := c.pods[i]
	for name := range p.procs {
		p.stop(name)
	}
	if p.stopGuard != nil {
		p.stopGuard()
		p.stopGuard = nil
	}
}

// empty takes a pod's volume away.
func (c *trio) empty(i int) (former string) {
	c.t.Helper()
	former = c.pods[i].options.StateDir + ".taken"
	if err := errors.Join(os.RemoveAll(former), os.Rename(c.pods[i].options.StateDir, former)); err != nil {
		c.t.Fatal(err)
	}
	return former
}

func (c *trio) ready(numbers ...int) {
	c.t.Helper()
	for _, i := range numbers {
		for _, db := range []Database{NorthboundDB, SouthboundDB} {
			testwait.Eventually(c.t, fmt.Sprintf("server %d of %s is ready", i, db), func() error { return Ready(c.t.Context(), db, c.pods[i].options) })
		}
	}
}

func (c *trio) leader(db Database) int {
	c.t.Helper()
	found := -1
	testwait.Eventually(c.t, "a server leads", func() error {
		for i, p := range c.pods {
			status, err := appctl(c.t.Context(), p.options.withDefaults().control(db), "cluster/status", db.schemaName())
			if err == nil && field(status, "Role") == "leader" {
				found = i
				return nil
			}
		}
		return errNotYet
	})
	return found
}

// members checks that the cluster has one server at each address.
func (c *trio) members(i int) {
	c.t.Helper()
	for _, db := range []Database{NorthboundDB, SouthboundDB} {
		status, err := appctl(c.t.Context(), c.pods[i].options.control(db), "cluster/status", db.schemaName())
		for n := range c.pods {
			if err != nil || len(serversAt(status, raftAddress(db, n))) != 1 {
				c.t.Errorf("server %d is not once in the cluster of %s: %v\n%s", n, db, err, status)
			}
		}
	}
}

// nbctl runs ovn-nbctl on a server.
func (c *trio) nbctl(i int, args ...string) string {
	c.t.Helper()
	out, err := run(c.t.Context(), append([]string{
		"ovn-nbctl", "--db=unix:" + c.pods[i].options.socket(NorthboundDB), "--no-leader-only", "--timeout=60",
	}, args...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// has waits until a server has a logical switch.
func (c *trio) has(i int, name string) {
	c.t.Helper()
	testwait.Eventually(c.t, fmt.Sprintf("server %d has %s", i, name), func() error {
		if !strings.Contains(c.nbctl(i, "ls-list"), name) {
			return errNotYet
		}
		return nil
	})
}

func (c *trio) served(node Keys, numbers ...int) {
	c.t.Helper()
	for _, i := range numbers {
		testwait.Eventually(c.t, fmt.Sprintf("the node reaches server %d of the southbound database", i), func() error {
			_, err := c.pods[i].southbound(node, "list", "Chassis")
			return err
		})
	}
}

// oldSchemas returns a directory with the schemas under an older version.
func oldSchemas(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, db := range []Database{NorthboundDB, SouthboundDB} {
		path := Options{}.withDefaults().schema(db)
		text, err := os.ReadFile(path)
		version, versionErr := run(t.Context(), "ovsdb-tool", "schema-version", path)
		if err := errors.Join(err, versionErr); err != nil {
			t.Fatal(err)
		}
		old := strings.Replace(string(text), `"`+version+`"`, `"1.0.0"`, 1)
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), []byte(old), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestCluster runs the three pods: the databases survive the loss of one server, and a server without its files joins again. Certificates
// that are not of a server do not get into the cluster.
func TestCluster(t *testing.T) {
	c := newTrio(t)
	first := &c.pods[0].options
	first.SchemaDir = oldSchemas(t)
	c.start(0)
	c.ready(0)
	c.stop(0)
	first.SchemaDir = ""
	c.start(0, 1, 2)
	c.ready(0, 1, 2)
	c.members(1)

	controller, err := NewNorthbound(first.Config, first.Namespace, "host-1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	keeper, err := session.Keep(t.Context(), session.Config{
		Database: "OVN_Northbound", Tables: map[string]model.Model{"NB_Global": &globalRow{}}, Locate: controller.Locate, LeaderOnly: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer keeper.Close()
	name := first.Namespace + "-n1"
	node, err := NewKeys(name, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.pods[0].show(name, node.Certificate)
	for _, p := range c.pods {
		if err := p.unserved(); err != nil {
			t.Fatal(err)
		}
	}
	c.pods[0].complete(keeper, "1")
	c.served(node, 0, 1, 2)
	for _, db := range []Database{NorthboundDB, SouthboundDB} {
		want, err := run(t.Context(), "ovsdb-tool", "schema-version", Options{}.withDefaults().schema(db))
		have, haveErr := run(t.Context(), "ovsdb-client", "--no-leader-only", "get-schema-version", "unix:"+c.pods[1].options.socket(db), db.schemaName())
		if err := errors.Join(err, haveErr); err != nil || have != want {
			t.Errorf("the schema of %s is %s, want %s: %v", db, have, want, err)
		}
	}
	cluster := c.pods[0].published(clusterKey(NorthboundDB))
	c.nbctl(0, "--wait=sb", "ls-add", "before")

	t.Run("a leader is lost", func(t *testing.T) {
		lost := c.leader(NorthboundDB)
		next := (lost + 1) % clusterSize
		c.stop(lost)
		c.pods[next].complete(keeper, "2")
		c.nbctl(next, "--wait=sb", "ls-add", "meanwhile") // northd goes on
		c.start(lost)
		c.ready(lost)
		c.has(lost, "meanwhile")
		c.served(node, 0, 1, 2)
	})
	t.Run("server 0 loses its volume, and gets the former one back", func(t *testing.T) {
		c.stop(0)
		former := c.empty(0)
		c.start(0)
		c.ready(0)
		c.has(0, "before")
		c.served(node, 0)
		c.members(1)
		c.stop(0)
		if err := errors.Join(os.RemoveAll(first.StateDir), os.Rename(former, first.StateDir)); err != nil {
			t.Fatal(err)
		}
		c.nbctl(1, "ls-add", "later")
		c.start(0)
		c.ready(0)
		c.has(0, "later")
		c.members(1)
		if now := c.pods[0].published(clusterKey(NorthboundDB)); now != cluster {
			t.Errorf("there is a second cluster: %s, and %s before", now, cluster)
		}
	})
	t.Run("other certificates", func(t *testing.T) {
		impostor, err := NewKeys(serverKey(serverName, 2), time.Now(), serverName)
		if err != nil {
			t.Fatal(err)
		}
		for name, keys := range map[string]Keys{"a node's": node, "one with a server's name": impostor, "one that a node has signed": forge(t, node, serverKey(serverName, 2))} {
			if err := relayed(t, c.pods[1], keys); err == nil {
				t.Errorf("the relay accepts %s", name)
			}
		}
		own, err := KeysIn(c.pods[2].options.StateDir, serverKey(serverName, 2), time.Now(), serverName)
		if err != nil {
			t.Fatal(err)
		}
		stall(t, c.pods[1])
		if err := relayed(t, c.pods[1], own); err != nil {
			t.Errorf("the relay refuses a server: %v", err)
		}
	})
	t.Run("two servers are lost, and a new cluster is requested", func(t *testing.T) {
		for i := range c.pods {
			c.stop(i)
		}
		c.empty(1)
		c.empty(2)
		fresh := map[string]string{clusterKey(NorthboundDB): newCluster, clusterKey(SouthboundDB): newCluster}
		if err := patch(t.Context(), c.pods[0].api, first.Namespace, ConfigMap, fresh); err != nil {
			t.Fatal(err)
		}
		c.start(0, 1, 2)
		c.ready(0, 1, 2)
		c.members(2)
		for _, p := range c.pods {
			if err := p.unserved(); err != nil {
				t.Error(err)
			}
		}
		c.pods[0].complete(keeper, "3")
		c.served(node, 0, 1, 2)
		if now := c.pods[0].published(clusterKey(NorthboundDB)); now == cluster || now == newCluster {
			t.Errorf("the cluster is %s", now)
		}
	})
}

// unserved returns an error if nodes reach the southbound database.
func (p *pod) unserved() error {
	remotes, err := appctl(p.t.Context(), p.options.control(SouthboundDB), "ovsdb-server/list-remotes")
	if err == nil && strings.Contains(remotes, nodesRemote) {
		err = errors.New("the southbound database is served before it is complete")
	}
	return err
}

// stall opens connections to a guard and begins no handshake, until the guard has ended some of them: as many as it holds of one address are
// left, which is also that of a server.
func stall(t *testing.T, p *pod) {
	t.Helper()
	ended := make(chan struct{}, 2*handshakesEach)
	for range 2 * handshakesEach {
		conn, err := net.Dial("tcp4", netip.AddrPortFrom(p.options.Address, p.options.RelayPort).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		go func() {
			_, _ = conn.Read(make([]byte, 1)) // ends when the guard, or the test, closes the connection
			ended <- struct{}{}
		}()
	}
	for range handshakesEach {
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("the guard holds all connections that begin no handshake")
		}
	}
}

// relayed asks a server for its list of databases, through its guard.
func relayed(t *testing.T, p *pod, keys Keys) error {
	t.Helper()
	config, err := clientTLS(keys, []byte(p.published(p.options.key(certificateKey))))
	if err != nil {
		t.Fatal(err)
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // also one that the server does not ask for
		return &config.Certificates[0], nil
	}
	config.NextProtos = []string{channel{NorthboundDB, clientChannel}.String()}
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 5 * time.Second}, Config: config}
	conn, err := dialer.DialContext(t.Context(), "tcp", netip.AddrPortFrom(p.options.Address, p.options.RelayPort).String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(`{"method": "list_dbs", "params": [], "id": 1}`)); err != nil {
		return err
	}
	answer := make([]byte, 1)
	_, err = conn.Read(answer)
	return err
}
