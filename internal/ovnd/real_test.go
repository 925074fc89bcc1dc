//go:build real

package ovnd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrl "sigs.k8s.io/controller-runtime/pkg/log"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/deploy/crds"
	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/internal/child"
	"weft.dev/weft/internal/ovsdb/session"
	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/internal/vswitch"
)

var server *apiservertest.Server //nolint:gochecknoglobals // set once, by TestMain

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(apiservertest.MainWith(m, &server, crds.All))
}

// stage is OVN's central part as a pod of weft-ovn runs it, with an API server.
type stage struct {
	t       *testing.T
	options Options
	// netns is the network namespace of the southbound server; "" means the test's.
	netns   string
	config  *rest.Config
	api     kubernetes.Interface
	objects client.Client
	procs   map[string]*child.Process
}

func newStage(t *testing.T, namespace string) *stage {
	t.Helper()
	dir, err := os.MkdirTemp("", "wtovnd") // not t.TempDir: a unix socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, config: server.Config(), procs: map[string]*child.Process{}, options: Options{
		RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"), Address: netip.MustParseAddr("127.0.0.1"),
		NorthboundPort: freePort(t), SouthboundPort: freePort(t), RelayPort: freePort(t), Config: server.Config(), Namespace: namespace,
		Report: func(message string) { t.Log(message) },
	}}
	t.Cleanup(func() {
		for name := range s.procs {
			s.stop(name)
		}
		_ = os.RemoveAll(dir)
	})
	if err := os.MkdirAll(s.options.RunDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if s.api, err = kubernetes.NewForConfig(s.config); err != nil {
		t.Fatal(err)
	}
	if s.objects, err = client.New(s.config, client.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := weftv1.AddToScheme(s.objects.Scheme()); err != nil {
		t.Fatal(err)
	}
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := s.api.CoreV1().Namespaces().Create(t.Context(), object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for _, name := range []string{ConfigMap, ClientsConfigMap} {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := s.api.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	if err := Prepare(s.options, time.Now()); err != nil {
		t.Fatal(err)
	}
	return s
}

func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

// start runs one of the daemons, as a container does.
func (s *stage) start(name string, daemon vswitch.Daemon, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(daemon.Argv[0], daemon.Argv[1:]...)
	cmd.Env = daemon.Env
	space := ""
	if name == string(SouthboundDB) {
		space = s.netns
	}
	p, err := child.Start(cmd, space)
	if err != nil {
		s.t.Fatal(err)
	}
	s.procs[name] = p
}

func (s *stage) serve(db Database) {
	s.t.Helper()
	daemon, err := Serve(s.t.Context(), db, s.options)
	s.start(string(db), daemon, err)
	testwait.Eventually(s.t, "the database is served", func() error { return answers(s.t.Context(), s.options.socket(db)) })
	loaded, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.procs[string(db)].Pid()), "maps"))
	if err != nil || !bytes.Contains(loaded, []byte(allocator)) {
		s.t.Errorf("the server of the %s database has not loaded %s: %v", db, allocator, err)
	}
}

// stop kills a program, without a clean shutdown.
func (s *stage) stop(name string) {
	if p := s.procs[name]; p != nil {
		p.Kill()
		delete(s.procs, name)
	}
}

func (s *stage) published(key string) string {
	s.t.Helper()
	m, err := s.api.CoreV1().ConfigMaps(s.options.Namespace).Get(s.t.Context(), ConfigMap, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return m.Data[key]
}

// show creates the NodeNetwork of a node with a certificate.
func (s *stage) show(node string, certificate []byte) {
	s.t.Helper()
	if err := s.objects.Create(s.t.Context(), &weftv1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: node}}); err != nil {
		s.t.Fatal(err)
	}
	s.report(weftv1.VPCNode{Chassis: node, Certificate: string(certificate)})
}

// report writes what the agent of a node reports in its NodeNetwork.
func (s *stage) report(node weftv1.VPCNode) {
	s.t.Helper()
	object := &weftv1.NodeNetwork{}
	if err := s.objects.Get(s.t.Context(), client.ObjectKey{Name: node.Chassis}, object); err != nil {
		s.t.Fatal(err)
	}
	object.Status.Networks = []weftv1.NodeNetworkSection{{Name: weftv1.NetworkVPC, VPC: &node}}
	if err := s.objects.Status().Update(s.t.Context(), object); err != nil {
		s.t.Fatal(err)
	}
}

// southbound runs ovn-sbctl with keys, as on a node.
func (s *stage) southbound(keys Keys, args ...string) (string, error) {
	s.t.Helper()
	dir := s.t.TempDir()
	m, err := s.api.CoreV1().ConfigMaps(s.options.Namespace).Get(s.t.Context(), ConfigMap, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	server, err := serverCertificates(m.Data)
	if err != nil {
		s.t.Fatal(err)
	}
	for name, text := range map[string][]byte{KeyFile: keys.Key, CertificateFile: keys.Certificate, ServerFile: server} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	var enter []string
	if s.netns != "" {
		enter = []string{"nsenter", "--net=" + s.netns}
	}
	return run(s.t.Context(), append(append(enter,
		"ovn-sbctl", "--db="+endpoint(s.options.Address, s.options.SouthboundPort), "--no-leader-only", "--timeout=3",
		"--private-key="+at(KeyFile), "--certificate="+at(CertificateFile), "--ca-cert="+at(ServerFile),
	), args...)...)
}

var errNotYet = errors.New("not yet")

// closed returns an error unless connections to the southbound database's port fail.
func (s *stage) closed() error {
	conn, refused := net.Dial("tcp4", netip.AddrPortFrom(s.options.Address, s.options.SouthboundPort).String())
	if refused == nil {
		return errors.Join(errors.New("the southbound database is served"), conn.Close())
	}
	return nil
}

// complete marks the northbound database over TLS, as the controller does.
func (s *stage) complete(keeper *session.Keeper, term string) {
	s.t.Helper()
	testwait.Eventually(s.t, "the controller marks the northbound database", func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
		defer cancel()
		return keeper.Do(ctx, func(db *session.Session) error {
			var where []ovsdb.Condition
			for uuid := range session.Rows[globalRow](db, "NB_Global") {
				where = append(where, ovsdb.Condition{Column: "_uuid", Function: ovsdb.ConditionEqual, Value: ovsdb.UUID{GoUUID: uuid}})
			}
			if len(where) == 0 {
				return errNotYet // northd adds the row
			}
			ops := []ovsdb.Operation{{
				Op: ovsdb.OperationMutate, Table: "NB_Global", Where: where,
				Mutations: []ovsdb.Mutation{{Column: "external_ids", Mutator: ovsdb.MutateOperationInsert, Value: ovsdb.OvsMap{GoMap: map[any]any{CompleteKey: term}}}},
			}}
			results, err := db.Transact(ctx, ops...)
			if err == nil {
				err = session.Check(ops, results)
			}
			return err
		})
	})
}

// replaceNode deletes a node whose chassis is registered. Its chassis is removed, and a new node registers the same address. A chassis whose
// NodeNetwork alone is missing stays.
func (s *stage) replaceNode(t *testing.T, other Keys) {
	t.Helper()
	const kept, former, next = "kept", "former", "next"
	keys := map[string]Keys{}
	for _, name := range []string{kept, former, next} {
		made, err := NewKeys(name, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		keys[name] = made
		s.show(name, made.Certificate)
	}
	register := func(name, address string) {
		t.Helper()
		testwait.Eventually(t, "chassis "+name+" is registered", func() error {
			_, err := s.southbound(keys[name], "--may-exist", "chassis-add", name, "geneve", address)
			return err
		})
	}
	register(kept, "192.0.2.20")
	register(former, "192.0.2.21")
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: kept}}
	if _, err := s.api.CoreV1().Nodes().Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{kept, former} {
		if err := s.objects.Delete(t.Context(), &weftv1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	register(next, "192.0.2.21")
	left, err := s.southbound(other, "--bare", "--columns=name", "list", "Chassis")
	if err != nil || !strings.Contains(left, kept) || !strings.Contains(left, next) || strings.Contains(left, former) {
		t.Errorf("chassis: %q, %v", left, err)
	}
}

// exchangeAddresses exchanges the addresses of two nodes whose chassis are registered: each registers the other's, which neither could while the
// other has it. A chassis whose address no other node has, and one whose node has not reported an address, stay.
func (s *stage) exchangeAddresses(t *testing.T) {
	t.Helper()
	keys, former := map[string]Keys{}, map[string]string{"left": "192.0.2.31", "right": "192.0.2.32", "moved": "192.0.2.33", "silent": "192.0.2.34"}
	add := func(name, address string) error {
		_, err := s.southbound(keys[name], "chassis-add", name, "geneve", address)
		return err
	}
	for _, name := range []string{"left", "right", "moved", "silent", "other"} {
		made, err := NewKeys(name, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		keys[name] = made
		s.show(name, made.Certificate)
	}
	for name, address := range former {
		testwait.Eventually(t, "chassis "+name+" is registered", func() error { return add(name, address) })
	}
	testwait.Eventually(t, "the database refuses an address that another chassis has", func() error {
		if err := add("other", former["left"]); err == nil || !strings.Contains(err.Error(), "identical values") {
			return fmt.Errorf("not refused for that reason: %w", err)
		}
		return nil
	})
	now := map[string]string{"moved": "192.0.2.35", "other": former["silent"], "left": former["right"], "right": former["left"]}
	for _, name := range []string{"moved", "other", "left", "right"} {
		s.report(weftv1.VPCNode{Chassis: name, Certificate: string(keys[name].Certificate), EncapIP: now[name]})
	}
	for _, name := range []string{"left", "right"} {
		testwait.Eventually(t, "chassis "+name+" has its new address", func() error {
			have, err := s.southbound(keys[name], "--bare", "--columns=ip", "find", "Encap", "chassis_name="+name)
			if err != nil || have == now[name] {
				return err
			}
			return errors.Join(fmt.Errorf("it has %q", have), add("left", now["left"]), add("right", now["right"])) // as their ovn-controllers try
		})
	}
	left, err := s.southbound(keys["left"], "--bare", "--columns=ip", "list", "Encap")
	if err != nil || !strings.Contains(left, former["moved"]) || !strings.Contains(left, former["silent"]) {
		t.Errorf("addresses of chassis: %q, %v", left, err)
	}
}

// refuseNames shows a certificate with the name of another node before its own, which Open vSwitch would use: it does not act as that node.
func (s *stage) refuseNames(t *testing.T) {
	t.Helper()
	victim, err := NewKeys("victim", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	attacker := named(t, []string{"CN=victim"}, []string{"CN=attacker"})
	s.show("attacker", attacker.Certificate)
	s.show("victim", victim.Certificate)
	testwait.Eventually(t, "chassis victim is registered", func() error {
		_, err := s.southbound(victim, "--may-exist", "chassis-add", "victim", "geneve", "192.0.2.40")
		return err
	})
	if out, err := s.southbound(attacker, "set", "Chassis", "victim", "external_ids:by=attacker"); err == nil {
		t.Errorf("a node changes the chassis of another: %s", out)
	}
	if have, err := s.southbound(victim, "--bare", "--columns=external_ids", "find", "Chassis", "name=victim"); err != nil || have != "" {
		t.Errorf("external_ids of chassis victim: %q, %v", have, err)
	}
}

// keepOthers shows certificates as a node may write them, whose texts in a list make OpenSSL refuse the list. All other nodes reach the
// database, and so does a node whose certificate is right.
func (s *stage) keepOthers(t *testing.T) {
	t.Helper()
	keys := map[string]Keys{}
	for _, name := range []string{"list-1", "list-2", "list-3", "list-4"} {
		made, err := NewKeys(name, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		keys[name] = made
	}
	s.show("list-2", bytes.TrimSpace(keys["list-2"].Certificate)) // the next text begins on its last line
	s.show("list-3", malformed(t, keys["list-3"].Certificate))
	for _, name := range []string{"list-1", "list-4"} {
		s.show(name, keys[name].Certificate)
	}
	for _, name := range []string{"list-1", "list-2", "list-4"} {
		testwait.Eventually(t, name+" reaches the southbound database", func() error {
			_, err := s.southbound(keys[name], "list", "Chassis")
			return err
		})
	}
	if out, err := s.southbound(keys["list-3"], "list", "Chassis"); err == nil {
		t.Errorf("a malformed certificate is trusted: %s", out)
	}
}

// TestCentral runs the pod's four programs, a controller and nodes: certificates decide which connections are possible, the role decides
// what nodes may write, and the gate is open only while the databases are complete.
func TestCentral(t *testing.T) {
	s := newStage(t, "ovnd")
	s.serve(NorthboundDB)
	s.serve(SouthboundDB)
	daemon, err := Northd(t.Context(), s.options)
	s.start("northd", daemon, err)

	var log bytes.Buffer
	guard, err := NewGuard(GuardOptions{Options: s.options, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	running, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- guard.Run(running) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(log.String())
		}
	}()

	controller, err := NewNorthbound(s.config, s.options.Namespace, "host-1", time.Now())
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
	testwait.Eventually(t, "the controller reaches the northbound database", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return keeper.Do(ctx, func(*session.Session) error { return nil })
	})
	if at := s.published(southboundKey); at != "" || s.closed() != nil {
		t.Fatalf("the southbound database is served before it is complete: %q", at)
	}

	node, err := NewKeys("n1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s.show("n1", node.Certificate)
	other, err := NewKeys("n2", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s.show("n3", other.Certificate) // with another node's name
	s.complete(keeper, "1")
	testwait.Eventually(t, "the node reaches the southbound database", func() error {
		_, err := s.southbound(node, "list", "Chassis")
		return err
	})
	if want := endpoint(s.options.Address, s.options.SouthboundPort); s.published(southboundKey) != want {
		testwait.Eventually(t, "the address is published", func() error {
			if have := s.published(southboundKey); have != want {
				return fmt.Errorf("published %q, want %q", have, want)
			}
			return nil
		})
	}
	foreign, err := NewKeys("n1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, keys := range map[string]Keys{
		"a foreign certificate with a node's name": foreign, "a certificate that a node has signed": forge(t, node, "n2"),
		"a certificate in another's name": other,
	} {
		if out, err := s.southbound(keys, "list", "Chassis"); err == nil {
			t.Errorf("%s reaches the southbound database: %s", name, out)
		}
	}
	if _, err := s.southbound(node, "--may-exist", "chassis-add", "n1", "geneve", "192.0.2.1"); err != nil {
		t.Errorf("a node cannot register its own chassis: %v", err)
	}
	for name, args := range map[string][]string{
		"another's chassis": {"chassis-add", "n9", "geneve", "192.0.2.9"},
		"a logical flow":    {"create", "Logical_Flow", "pipeline=ingress", "table_id=0", "priority=1", "match=1", "actions=drop"},
		"a connection":      {"del-connection"},
	} {
		if out, err := s.southbound(node, args...); err == nil || !strings.Contains(err.Error(), "permission") {
			t.Errorf("a node writes %s: %s %v", name, out, err)
		}
	}

	t.Run("a node presents a certificate with two names", s.refuseNames)
	t.Run("nodes present texts that are no certificates for OpenSSL", s.keepOthers)
	t.Run("a node is deleted, and another one has its address", func(t *testing.T) { s.replaceNode(t, node) })
	t.Run("two nodes exchange their addresses", s.exchangeAddresses)
	t.Run("the southbound server restarts", func(t *testing.T) {
		s.stop(string(SouthboundDB))
		s.serve(SouthboundDB)
		testwait.Eventually(t, "the node reaches the southbound database", func() error {
			_, err := s.southbound(node, "list", "Chassis")
			return err
		})
	})
	t.Run("the northbound database is replaced by an empty one", func(t *testing.T) {
		s.stop(string(NorthboundDB))
		if err := os.Remove(s.options.file(NorthboundDB)); err != nil {
			t.Fatal(err)
		}
		s.serve(NorthboundDB)
		if err := s.closed(); err != nil {
			t.Fatal(err)
		}
		testwait.Eventually(t, "the guard sees the new database", func() error { return answers(t.Context(), s.options.socket(NorthboundDB)) })
		s.complete(keeper, "2")
		testwait.Eventually(t, "the node reaches the southbound database", func() error {
			_, err := s.southbound(node, "list", "Chassis")
			return err
		})
	})
}
