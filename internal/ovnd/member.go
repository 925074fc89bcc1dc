package ovnd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/ovsdb/session"
)

// MemberOptions are the options of a Member.
type MemberOptions struct {
	// Config is for the API server; Namespace has the ConfigMap of the databases.
	Config    *rest.Config
	Namespace string
	// Node is the node's and the chassis's name, and Datapath the integration bridge's type: system or netdev. The tunnels' address is the
	// Node's first InternalIP.
	Node     string
	Datapath string
	// Dir has the keys of ovn-controller. Default DefaultNodeDir.
	Dir string
	// Endpoint is that of the node's Open vSwitch, such as unix:/run/openvswitch/db.sock.
	Endpoint string
	// Report is called with the chassis's status for the NodeNetwork, and with the error that keeps the node from being a chassis. It must not
	// block.
	Report func(weftv1.VPCNode, error)
	// Log receives the member's messages. Nil: slog.Default().
	Log *slog.Logger
}

// ErrOtherOVN reports that another OVN uses the node's switch.
var ErrOtherOVN = errors.New("the node is a chassis of another OVN: external_ids:ovn-remote is set in its Open vSwitch; " +
	"both would use the same conntrack zones. Remove that OVN from the node, or this node's pods from VPCs")

// Member maintains the node's keys, and configures the node's ovn-controller, by external_ids, with the southbound database's endpoint.
type Member struct {
	options MemberOptions
	keys    Keys
	client  kubernetes.Interface
	cache   cache.Cache
	wake    chan struct{}
	address netip.Addr // zero until the Node has one
}

type switchRow struct {
	UUID        string            `ovsdb:"_uuid"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

const switchTable = "Open_vSwitch"

// NewMember creates the node's keys, unless they exist.
func NewMember(options MemberOptions, now time.Time) (*Member, error) {
	if options.Dir == "" {
		options.Dir = DefaultNodeDir
	}
	if options.Log == nil {
		options.Log = slog.Default()
	}
	keys, err := KeysIn(options.Dir, options.Node, now)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register the kinds of objects: %w", err)
	}
	published, err := cache.New(options.Config, cache.Options{Scheme: scheme, ByObject: map[client.Object]cache.ByObject{
		&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
			options.Namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", ConfigMap)},
		}},
	}})
	if err != nil {
		return nil, fmt.Errorf("watch ConfigMap %s/%s: %w", options.Namespace, ConfigMap, err)
	}
	api, err := kubernetes.NewForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return &Member{options: options, keys: keys, client: api, cache: published, wake: make(chan struct{}, 1)}, nil
}

// Run runs until ctx ends. It writes nothing then: the node's pods keep working.
func (m *Member) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informer, err := m.cache.GetInformer(ctx, &corev1.ConfigMap{}, cache.BlockUntilSynced(false))
	if err == nil {
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { m.signal() }, UpdateFunc: func(any, any) { m.signal() },
		})
	}
	if err != nil {
		return fmt.Errorf("watch ConfigMap %s/%s: %w", m.options.Namespace, ConfigMap, err)
	}
	watching := make(chan error, 1)
	go func() { watching <- m.cache.Start(ctx) }()
	keeper, err := session.Keep(ctx, session.Config{
		Database: switchTable, Tables: map[string]model.Model{switchTable: &switchRow{}}, Endpoints: []string{m.options.Endpoint},
		Logger: m.options.Log, Changed: func(string) { m.signal() }, Connected: func(bool) { m.signal() },
	})
	if err != nil {
		return fmt.Errorf("database of the switch: %w", err)
	}
	defer keeper.Close()
	m.report(nil)
	retry := time.NewTimer(retryAfter)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-watching:
			return err
		case <-m.wake:
		case <-retry.C:
		}
		err := m.step(ctx, keeper.Current())
		if ctx.Err() != nil {
			return nil
		}
		m.report(err)
		if err != nil {
			m.options.Log.WarnContext(ctx, "the node is no chassis of OVN as it should be", "error", err)
			retry.Reset(retryAfter)
		}
	}
}

func (m *Member) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *Member) report(err error) {
	if m.options.Report != nil {
		reported := weftv1.VPCNode{Chassis: m.options.Node, Hostname: m.options.Node, Certificate: string(m.keys.Certificate)}
		if m.address.IsValid() {
			reported.EncapIP = m.address.String()
		}
		m.options.Report(reported, err)
	}
}

// locate finds the address of the node's tunnels, once.
func (m *Member) locate(ctx context.Context) error {
	if m.address.IsValid() {
		return nil
	}
	node, err := m.client.CoreV1().Nodes().Get(ctx, m.options.Node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read Node %s: %w", m.options.Node, err)
	}
	for _, address := range node.Status.Addresses {
		if address.Type != corev1.NodeInternalIP {
			continue
		}
		if m.address, err = netip.ParseAddr(address.Address); err != nil {
			return fmt.Errorf("InternalIP of Node %s: %w", m.options.Node, err)
		}
		return nil
	}
	return fmt.Errorf("address of Node %s: %w", m.options.Node, errNoAddress)
}

var (
	errNoSwitch  = errors.New("the node's Open vSwitch is not connected")
	errNoAddress = errors.New("it has no InternalIP for tunnels: its kubelet or the cloud provider reports it")
	errClosed    = errors.New("the southbound database is not served yet: it is when the controller has written the northbound one")
)

func (m *Member) step(ctx context.Context, s *session.Session) error {
	if s == nil {
		return errNoSwitch
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := m.locate(ctx); err != nil {
		return err
	}
	var published corev1.ConfigMap
	err := m.cache.Get(ctx, client.ObjectKey{Namespace: m.options.Namespace, Name: ConfigMap}, &published)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read ConfigMap %s/%s: %w", m.options.Namespace, ConfigMap, err)
	}
	remotes := ofServers(published.Data, southboundKey)
	if len(remotes) == 0 {
		return errClosed
	}
	servers, err := serverCertificates(published.Data)
	if err != nil {
		return err
	}
	// ovn-controller reads the file again when it changes. The file is complete before the address is set, so that no connection is rejected.
	if err := replaceIfChanged(filepath.Join(m.options.Dir, ServerFile), servers); err != nil {
		return err
	}
	return m.join(ctx, s, strings.Join(remotes, ","))
}

// join writes the settings of this chassis under keys with its name, which another OVN does not read.
func (m *Member) join(ctx context.Context, s *session.Session, remote string) error {
	for uuid, row := range session.Rows[switchRow](s, switchTable) {
		if row.ExternalIDs["ovn-remote"] != "" {
			return ErrOtherOVN
		}
		keys, values := ovsdb.OvsSet{}, ovsdb.OvsMap{GoMap: map[any]any{}}
		for key, value := range map[string]string{
			"ovn-remote": remote, "ovn-encap-type": "geneve", "ovn-encap-ip": m.address.String(), "ovn-bridge-datapath-type": m.options.Datapath,
		} {
			key += "-" + m.options.Node
			if row.ExternalIDs[key] != value {
				keys.GoSet = append(keys.GoSet, key)
				values.GoMap[key] = value
			}
		}
		if len(keys.GoSet) == 0 {
			continue
		}
		ops := []ovsdb.Operation{{
			Op: ovsdb.OperationMutate, Table: switchTable,
			Where: []ovsdb.Condition{{Column: "_uuid", Function: ovsdb.ConditionEqual, Value: ovsdb.UUID{GoUUID: uuid}}},
			Mutations: []ovsdb.Mutation{
				{Column: "external_ids", Mutator: ovsdb.MutateOperationDelete, Value: keys},
				{Column: "external_ids", Mutator: ovsdb.MutateOperationInsert, Value: values},
			},
		}}
		results, err := s.Transact(ctx, ops...)
		if err == nil {
			err = session.Check(ops, results)
		}
		if err != nil {
			return fmt.Errorf("settings of chassis %s: %w", m.options.Node, err)
		}
	}
	return nil
}
