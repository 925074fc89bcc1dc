package ovnd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/ovsdb/session"
)

// CompleteKey is the key in external_ids of NB_Global that marks the northbound database as complete. The controller writes it.
const CompleteKey = "weft.dev/complete"

// nodesRole is the role of the nodes' connections: ovn-northd permits it the changes that ovn-controller makes.
const nodesRole = "ovn-controller"

// retryAfter is the delay before a failed step is repeated.
const retryAfter = 2 * time.Second

// GuardOptions are the options of a Guard.
type GuardOptions struct {
	Options
	// Log receives the guard's messages. Nil: slog.Default().
	Log *slog.Logger
}

// Guard maintains the lists of trusted certificates, publishes the databases' endpoints, and opens the gate. In a cluster it relays the
// servers' connections.
type Guard struct {
	options GuardOptions
	client  kubernetes.Interface
	cache   cache.Cache
	// servers has the ConfigMap of the databases, in a cluster.
	servers cache.Cache
	relay   *relay
	wake    chan struct{}
	// synced are the sessions in which northd was found to have computed everything.
	synced [2]*session.Session
	// retired is when chassis were removed, by their names.
	retired map[string]time.Time
}

type globalRow struct {
	UUID        string            `ovsdb:"_uuid"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type southboundGlobalRow struct {
	UUID        string   `ovsdb:"_uuid"`
	Connections []string `ovsdb:"connections"`
}

type chassisRow struct {
	UUID string `ovsdb:"_uuid"`
	Name string `ovsdb:"name"`
}

type encapRow struct {
	UUID    string `ovsdb:"_uuid"`
	IP      string `ovsdb:"ip"`
	Chassis string `ovsdb:"chassis_name"`
}

type connectionRow struct {
	UUID   string `ovsdb:"_uuid"`
	Target string `ovsdb:"target"`
	Role   string `ovsdb:"role"`
}

// NewGuard returns a Guard. It does not connect.
func NewGuard(options GuardOptions) (*Guard, error) {
	options.Options = options.withDefaults()
	if err := options.validate(); err != nil {
		return nil, err
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(weftv1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("register the kinds of objects: %w", err)
	}
	api, err := kubernetes.NewForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	g := &Guard{options: options, client: api, wake: make(chan struct{}, 1), retired: map[string]time.Time{}}
	if g.cache, err = configMapCache(options.Options, scheme, ClientsConfigMap); err != nil || !options.clustered() {
		return g, err
	}
	if g.servers, err = configMapCache(options.Options, scheme, ConfigMap); err != nil {
		return nil, err
	}
	g.relay, err = newRelay(options.Options, options.Log)
	return g, err
}

// configMapCache returns a cache that has only one ConfigMap.
func configMapCache(o Options, scheme *runtime.Scheme, name string) (cache.Cache, error) {
	c, err := cache.New(o.Config, cache.Options{Scheme: scheme, ByObject: map[client.Object]cache.ByObject{
		&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{o.Namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", name)}}},
	}})
	if err != nil {
		return nil, fmt.Errorf("watch ConfigMap %s/%s: %w", o.Namespace, name, err)
	}
	return c, nil
}

// Run runs until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signal := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { g.signal() }, UpdateFunc: func(any, any) { g.signal() }, DeleteFunc: func(any) { g.signal() },
	}
	for _, object := range []client.Object{&weftv1.NodeNetwork{}, &corev1.ConfigMap{}} {
		informer, err := g.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch the certificates of nodes: %w", err)
		}
		if _, err := informer.AddEventHandler(signal); err != nil {
			return fmt.Errorf("watch the certificates of nodes: %w", err)
		}
	}
	watching := make(chan error, 2)
	go func() { watching <- g.cache.Start(ctx) }()
	go func() {
		if g.cache.WaitForCacheSync(ctx) {
			g.signal()
		}
	}()
	if g.relay != nil {
		if err := g.connect(ctx, watching); err != nil {
			return err
		}
		defer g.relay.wait()
		defer cancel()
	}
	northbound, err := g.keep(ctx, NorthboundDB, "OVN_Northbound", map[string]model.Model{"NB_Global": &globalRow{}})
	if err != nil {
		return err
	}
	defer northbound.Close()
	southbound, err := g.keep(ctx, SouthboundDB, "OVN_Southbound",
		map[string]model.Model{"SB_Global": &southboundGlobalRow{}, "Connection": &connectionRow{}, chassisTable: &chassisRow{}, encapTable: &encapRow{}})
	if err != nil {
		return err
	}
	defer southbound.Close()
	retry := time.NewTimer(retryAfter)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watching:
			return err
		case <-g.wake:
		case <-retry.C:
		}
		if err := g.step(ctx, northbound, southbound); err != nil && ctx.Err() == nil {
			g.options.Log.WarnContext(ctx, "OVN's databases are not served to nodes as they should", "error", err)
			retry.Reset(retryAfter)
		}
	}
}

// connect starts the relay, which follows the ConfigMap of the databases.
func (g *Guard) connect(ctx context.Context, watching chan<- error) error {
	informer, err := g.servers.GetInformer(ctx, &corev1.ConfigMap{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch the other servers: %w", err)
	}
	know := func(object any) {
		if published, ok := object.(*corev1.ConfigMap); ok {
			g.relay.know(published.Data)
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: know, UpdateFunc: func(_, now any) { know(now) }})
	if err != nil {
		return fmt.Errorf("watch the other servers: %w", err)
	}
	if err := g.relay.start(ctx); err != nil {
		return err
	}
	go func() { watching <- g.servers.Start(ctx) }()
	return nil
}

func (g *Guard) keep(ctx context.Context, db Database, name string, tables map[string]model.Model) (*session.Keeper, error) {
	k, err := session.Keep(ctx, session.Config{
		Database: name, Tables: tables, Endpoints: []string{"unix:" + g.options.socket(db)}, Logger: g.options.Log,
		Changed: func(string) { g.signal() }, Connected: func(bool) { g.signal() }, Lost: g.signal,
	})
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	return k, nil
}

func (g *Guard) signal() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *Guard) step(ctx context.Context, northbound, southbound *session.Keeper) error {
	own, err := os.ReadFile(filepath.Join(g.options.StateDir, CertificateFile))
	if err != nil {
		return fmt.Errorf("certificate of OVN's databases: %w", err)
	}
	o := g.options.Options
	published := map[string]string{o.key(northboundKey): endpoint(o.Address, o.NorthboundPort), o.key(certificateKey): string(own)}
	var relayErr error
	if g.relay != nil {
		// The servers need each other before a database can be complete.
		published[o.key(relayKey)] = netip.AddrPortFrom(o.Address, o.RelayPort).String()
		relayErr = o.publish(ctx, g.client, published)
	}
	// The gate comes first: it needs no API server.
	open, gateErr := g.gate(ctx, northbound.Current(), southbound.Current())
	if open {
		published[o.key(southboundKey)] = endpoint(o.Address, o.SouthboundPort)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return errors.Join(relayErr, gateErr, g.trust(ctx, own), g.retire(ctx, southbound.Current()), o.publish(ctx, g.client, published))
}

// trust writes the lists of certificates that the servers trust. The servers read changed lists again.
func (g *Guard) trust(ctx context.Context, own []byte) error {
	var nodes weftv1.NodeNetworkList
	if err := g.cache.List(ctx, &nodes); errors.As(err, new(*cache.ErrCacheNotStarted)) {
		return nil // it signals when it is complete
	} else if err != nil {
		return fmt.Errorf("list NodeNetworks: %w", err)
	}
	shown := map[string]string{}
	for i := range nodes.Items {
		for _, section := range nodes.Items[i].Status.Networks {
			if section.VPC != nil && section.VPC.Certificate != "" {
				shown[nodes.Items[i].Name] = section.VPC.Certificate
			}
		}
	}
	var clients corev1.ConfigMap
	if err := g.cache.Get(ctx, client.ObjectKey{Namespace: g.options.Namespace, Name: ClientsConfigMap}, &clients); err != nil {
		return fmt.Errorf("read ConfigMap %s/%s: %w", g.options.Namespace, ClientsConfigMap, err)
	}
	return errors.Join(g.write(ctx, SouthboundDB, own, shown), g.write(ctx, NorthboundDB, own, clients.Data))
}

func (g *Guard) write(ctx context.Context, db Database, own []byte, shown map[string]string) error {
	list := bytes.Clone(own)
	for _, name := range slices.Sorted(maps.Keys(shown)) {
		certificate, err := checkShown([]byte(shown[name]), name)
		if err != nil {
			g.options.Log.WarnContext(ctx, "a certificate is not trusted", "database", string(db), "error", err)
			continue
		}
		list = append(list, certificate...)
	}
	return replaceIfChanged(g.options.clients(db), list)
}

// gate opens the gate once both databases are complete, and reports whether it is open.
func (g *Guard) gate(ctx context.Context, northbound, southbound *session.Session) (bool, error) {
	if northbound == nil || southbound == nil {
		return false, nil // the session signals when it is connected
	}
	complete := ""
	for _, row := range session.Rows[globalRow](northbound, "NB_Global") {
		complete = row.ExternalIDs[CompleteKey]
	}
	if complete == "" {
		g.synced = [2]*session.Session{}
		if g.options.clustered() { // another server may have created the cluster
			return false, g.options.closeGate(ctx)
		}
		return false, nil
	}
	if err := g.connection(ctx, southbound); err != nil {
		return false, err
	}
	sessions := [2]*session.Session{northbound, southbound}
	if g.synced != sessions {
		if err := g.convert(ctx); err != nil {
			return false, err
		}
		if _, err := run(ctx, "ovn-nbctl", "--db=unix:"+g.options.socket(NorthboundDB), "--no-leader-only", "--timeout=60", "--wait=sb", "sync"); err != nil {
			return false, err
		}
	}
	if err := g.options.openGate(ctx); err != nil {
		return false, err
	}
	if g.synced != sessions {
		g.options.Log.InfoContext(ctx, "the southbound database is complete and served to nodes", "term", complete)
	}
	g.synced = sessions
	return true, nil
}

// convert converts clustered databases. A single one is converted before it is served.
func (g *Guard) convert(ctx context.Context) error {
	if !g.options.clustered() {
		return nil
	}
	return errors.Join(g.options.convert(ctx, NorthboundDB), g.options.convert(ctx, SouthboundDB))
}

// connection creates the row with the address and port on which the southbound database is served, and the role. The servers of a cluster
// have the same row, so they serve on all addresses of their nodes.
func (g *Guard) connection(ctx context.Context, southbound *session.Session) error {
	target := fmt.Sprintf("pssl:%d:%s", g.options.SouthboundPort, g.options.Address)
	if g.options.clustered() {
		target = fmt.Sprintf("pssl:%d:%s", g.options.SouthboundPort, netip.IPv4Unspecified())
		if g.options.Address.Is6() {
			target = fmt.Sprintf("pssl:%d:[%s]", g.options.SouthboundPort, netip.IPv6Unspecified())
		}
	}
	rows := slices.Collect(maps.Values(session.Rows[connectionRow](southbound, "Connection")))
	if len(rows) == 1 && rows[0].Target == target && rows[0].Role == nodesRole {
		return nil
	}
	_, err := run(ctx, "ovn-sbctl", "--db=unix:"+g.options.socket(SouthboundDB), "--no-leader-only", "--timeout=10",
		"set-connection", "role="+nodesRole, target)
	return err
}
