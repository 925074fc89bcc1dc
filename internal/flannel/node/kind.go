package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/flannel/cluster"
	"weft.dev/weft/internal/flannel/daemon"
	"weft.dev/weft/internal/flannel/handover"
	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/flannel/judge"
	"weft.dev/weft/internal/flannel/kubestore"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/hostport/publish"
	"weft.dev/weft/internal/network"
	machine "weft.dev/weft/internal/node"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/policy/follow"
)

// ConflistName is the file of the runtime's configuration, with the name in flannel's manifest.
const ConflistName = "10-flannel.conflist"

// KindOptions are the network's options that wiring sets.
type KindOptions struct {
	// Node is the name of this node.
	Node string
	// Flags are flanneld's flags.
	Flags *netconf.Flags
	// Conflist are keys for the flannel entry of the runtime's configuration: with them the plugin finds the agent.
	Conflist map[string]string
}

// Kind returns the network for the agent's wiring: the ConfigMap kube-flannel-cfg enables it.
func Kind(opts KindOptions) network.Kind {
	var now current
	named := ctrlcache.Config{FieldSelector: fields.OneTermEqualSelector("metadata.name", cluster.ConfigMap)}
	namespaces := map[string]ctrlcache.Config{}
	for _, namespace := range cluster.Namespaces() {
		namespaces[namespace] = named
	}
	return network.Kind{
		Name: Name, Present: present, Presence: []client.Object{&corev1.ConfigMap{}},
		Care: machine.Care{Tables: Tables(), Apart: apart(), Sysctls: []machine.Sysctl{{Path: "net/ipv4/ip_forward", Value: "1"}}},
		Objects: []network.Object{
			{Kind: &corev1.ConfigMap{}, Namespaced: true, By: ctrlcache.ByObject{Namespaces: namespaces}},
			{Kind: &corev1.Pod{}, Namespaced: true, Strip: strip},
			{Kind: &corev1.Namespace{}, Strip: strip},
			{Kind: &corev1.Node{}, Strip: strip},
			{Kind: &networkingv1.NetworkPolicy{}, Namespaced: true, Strip: strip},
		},
		Scheme: networkingv1.AddToScheme,
		CNI:    network.Conflist{Name: ConflistName, Content: func() ([]byte, error) { return now.conflist(opts.Conflist) }},
		New: func(ctx context.Context, n *machine.Node, deps network.Deps) (network.Network, network.Runner, error) {
			return open(ctx, n, deps, opts, &now)
		},
	}
}

// present reports whether the cluster is configured for flannel.
func present(ctx context.Context, objects client.Reader) (network.Presence, error) {
	config, err := cluster.Find(ctx, objects)
	if apierrors.IsNotFound(err) {
		return network.Presence{Why: "there is no ConfigMap " + cluster.ConfigMap + " in namespace kube-flannel or kube-system"}, nil
	}
	if err != nil {
		return network.Presence{}, err
	}
	return network.Presence{
		Present: true, Why: "ConfigMap " + config.Namespace + "/" + config.Name, Cluster: true,
		Default:     config.Annotations[placement.AnnotationDefault] == "true",
		TunnelPorts: tunnelPorts(config.Data[cluster.KeyNet]),
	}, nil
}

// tunnelPorts returns the UDP ports of the tunnels that net-conf.json configures. With an invalid one there are no new tunnels; existing
// ones are at the default port.
func tunnelPorts(text string) []uint16 {
	c, err := netconf.Parse([]byte(text))
	if err != nil {
		c.Backend = netconf.VXLAN{}
	}
	return netconf.TunnelPorts(c.Backend)
}

// strip removes from an object what no NetworkPolicy and no event depends on.
func strip(obj any) (any, error) {
	if o, ok := obj.(client.Object); ok {
		o.SetManagedFields(nil)
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		follow.StripPod(o)
	case *networkingv1.NetworkPolicy:
		follow.StripPolicy(o)
	case *corev1.Namespace:
		o.Annotations, o.Spec, o.Status = nil, corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
	case *corev1.Node:
		o.Annotations = nil
		o.Spec, o.Status = corev1.NodeSpec{PodCIDRs: o.Spec.PodCIDRs}, corev1.NodeStatus{Addresses: o.Status.Addresses}
	}
	return obj, nil
}

// current is the last cni-conf.json that was read.
type current struct {
	mu   sync.Mutex
	conf *conf
}

func (c *current) set(read *conf) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conf = read
}

func (c *current) conflist(add map[string]string) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conf == nil {
		return nil, errors.New("cni-conf.json has not been read yet")
	}
	return c.conf.conflist(add)
}

// open is Kind.New.
func open(ctx context.Context, n *machine.Node, deps network.Deps, opts KindOptions, now *current) (network.Network, network.Runner, error) {
	read := func(ctx context.Context) ([]byte, error) {
		config, err := cluster.Find(ctx, deps.Objects)
		if err != nil {
			return nil, fmt.Errorf("ConfigMap %s: %w", cluster.ConfigMap, err)
		}
		text := []byte(config.Data[cluster.KeyCNI])
		c, err := parseConf(text)
		if err != nil {
			return nil, fmt.Errorf("ConfigMap %s/%s: %w", config.Namespace, config.Name, err)
		}
		now.set(c)
		return text, nil
	}
	text, err := read(ctx)
	if err != nil {
		return nil, nil, err
	}
	c, err := parseConf(text)
	if err != nil {
		return nil, nil, err
	}
	leases, err := newDaemonLeases(ctx, deps, opts, host.Pods{Bridge: c.bridgeName(), Closed: deps.ClosedPorts})
	if err != nil {
		return nil, nil, err
	}
	policies, err := judge.New(n.Name, c.bridgeName(), &deps) //nolint:contextcheck // its reports outlive ctx
	if err != nil {
		return nil, nil, err
	}
	made, err := New(Options{
		Node: n, Records: deps.Records, Conf: read, Leases: leases, Judge: policies, Bridge: c.bridgeName(), Closed: deps.ClosedPorts, Results: handover.ResultsDir,
		Log: deps.Log, Changed: deps.Changed, Report: deps.Report, Conflict: publish.Warnings(deps.Events),
	})
	if err != nil {
		policies.Close()
		return nil, nil, err
	}
	n.Observe("nftables "+portsTable, made.ports)
	for name, loop := range policies.Loops() {
		n.Observe("nftables "+name, loop)
	}
	return made, made, nil
}

// bridgeName returns the name of the delegate's bridge.
func (c *conf) bridgeName() string {
	name := defaultBridge
	if raw, ok := c.plugin.Delegate["bridge"]; ok {
		_ = json.Unmarshal(raw, &name) // an error is reported when it is read for pods
	}
	return name
}

// bridgeMAC returns the MAC of a bridge; nil if there is none.
func bridgeMAC(name string) ([]byte, error) {
	found, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return found.Attrs().HardwareAddr, nil
}

// daemonLeases is flanneld's part: leases in Kubernetes.
type daemonLeases struct {
	flags   *netconf.Flags
	log     *slog.Logger
	objects client.Reader
	pods    host.Pods
	// store is that of all daemons: it has the last valid configuration.
	store   *kubestore.Store
	changed chan struct{}

	mu     sync.Mutex
	daemon *daemon.Daemon
	failed error
}

func newDaemonLeases(ctx context.Context, deps network.Deps, opts KindOptions, pods host.Pods) (*daemonLeases, error) {
	keys, err := lease.NewKeys(opts.Flags.Kube.AnnotationPrefix)
	if err != nil {
		return nil, fmt.Errorf("--kube-annotation-prefix: %w", err)
	}
	clients, err := kubernetes.NewForConfig(deps.Config)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	l := &daemonLeases{flags: opts.Flags, log: deps.Log, objects: deps.Objects, pods: pods, changed: make(chan struct{}, 1)}
	l.store = l.newStore(clients, opts.Node, keys)
	informer, err := deps.Objects.GetInformer(ctx, &corev1.ConfigMap{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching the API server: %w", err)
	}
	wake := func(any) {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, now any) { wake(now) }, DeleteFunc: wake})
	return l, err
}

// newStore returns the store of the node's lease.
func (l *daemonLeases) newStore(clients kubernetes.Interface, node string, keys lease.Keys) *kubestore.Store {
	return kubestore.New(kubestore.Options{
		Client: clients, Node: node, Keys: keys, ConfigPath: "ConfigMap " + cluster.ConfigMap, Log: l.log,
		ReadConfig: func(ctx context.Context) ([]byte, error) {
			text, _, err := l.text(ctx)
			return []byte(text), err
		},
	})
}

// text returns the configurations on which the daemon and the pods depend.
func (l *daemonLeases) text(ctx context.Context) (netConf, all string, err error) {
	config, err := cluster.Find(ctx, l.objects)
	if err != nil {
		return "", "", err
	}
	return config.Data[cluster.KeyNet], config.Data[cluster.KeyNet] + "\x00" + config.Data[cluster.KeyCNI], nil
}

// leaseRetry is the delay before a failed daemon is started again, unless its configuration changes.
const leaseRetry = 5 * time.Second

// Run implements Leases: a daemon runs until it fails, or the configuration changes.
func (l *daemonLeases) Run(ctx context.Context, established func(daemon.State)) error {
	for ctx.Err() == nil {
		_, used, err := l.text(ctx)
		if err == nil {
			err = l.serve(ctx, used, established)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		l.set(nil, err)
		l.log.Warn("no lease of this node is in effect, trying again", "error", err)
		select {
		case <-ctx.Done():
		case <-l.changed:
		case <-time.After(leaseRetry):
		}
	}
	return ctx.Err()
}

// serve runs a daemon until ctx ends, it fails, or the configuration differs from used.
func (l *daemonLeases) serve(ctx context.Context, used string, established func(daemon.State)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := daemon.New(daemon.Options{Flags: l.flags, Store: l.store, Pods: l.pods, Established: established, Log: l.log})
	l.set(d, nil)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-l.changed:
			if _, now, err := l.text(ctx); err == nil && now != used {
				l.log.Info("the network's configuration changed")
				cancel()
				return <-ended
			}
		}
	}
}

func (l *daemonLeases) set(d *daemon.Daemon, failed error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.daemon, l.failed = d, failed
}

// Ready implements Leases.
func (l *daemonLeases) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.daemon == nil {
		return l.failed
	}
	return l.daemon.Ready()
}
