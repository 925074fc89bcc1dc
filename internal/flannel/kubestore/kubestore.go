// Package kubestore stores flannel's leases in Kubernetes: a node's subnets are its podCIDRs, and its backend's data is in the Node's
// annotations.
package kubestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/informer"
)

// Options of a Store.
type Options struct {
	Client kubernetes.Interface
	// Node is the name of this node.
	Node string
	// Keys are the keys of the annotations.
	Keys lease.Keys
	// ConfigPath is the file of the network configuration. ReadConfig, if not nil, returns its content from elsewhere; ConfigPath is then its
	// name in errors.
	ConfigPath string
	ReadConfig func(ctx context.Context) ([]byte, error)
	// Condition makes Up set the Node's condition.
	Condition bool
	Log       *slog.Logger
}

// Store is the lease store in Kubernetes.
type Store struct {
	options    Options
	config     netconf.Config
	configured bool // config was valid once
}

// New returns a store.
func New(options Options) *Store { return &Store{options: options} }

// retry is how long the store waits after a failure before it repeats a request to the API server.
const retry = 3 * time.Second

func (s *Store) families() lease.Families {
	return lease.Families{V4: s.config.EnableIPv4, V6: s.config.EnableIPv6}
}

// get reads this node until the API server answers and check returns nil.
func (s *Store) get(ctx context.Context, check func(*corev1.Node) error) (*corev1.Node, error) {
	last := ""
	for {
		node, err := s.options.Client.CoreV1().Nodes().Get(ctx, s.options.Node, metav1.GetOptions{})
		if err == nil {
			err = check(node)
		}
		if err == nil {
			return node, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err.Error() != last {
			last = err.Error()
			s.options.Log.Warn("waiting for this node's object", "node", s.options.Node, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(retry):
		}
	}
}

// Former returns the lease in the node's annotations, which may be incomplete.
func (s *Store) Former(ctx context.Context, _ lease.Lease) (lease.Lease, error) {
	node, err := s.get(ctx, func(*corev1.Node) error { return nil })
	if err != nil {
		return lease.Lease{}, err
	}
	l, _, problem := s.options.Keys.FromNode(source(node), s.families())
	if problem != nil {
		s.options.Log.Debug("own lease from before is incomplete", "error", problem)
	}
	return l, nil
}

// Public returns the addresses that the administrator configured the node to advertise; invalid if there are none.
func (s *Store) Public(ctx context.Context) (public [2]netip.Addr, err error) {
	node, err := s.get(ctx, func(*corev1.Node) error { return nil })
	if err != nil {
		return public, err
	}
	for i, key := range []string{s.options.Keys.NodePublicIP, s.options.Keys.NodePublicIP6} {
		text := node.Annotations[key]
		if text == "" {
			continue
		}
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Is4() != (i == 0) {
			return public, fmt.Errorf("annotation %s of node %s: %q is not an address of that family", key, s.options.Node, text)
		}
		public[i] = addr
	}
	return public, nil
}

// Acquire returns the lease with the node's subnets, as soon as it has podCIDRs.
func (s *Store) Acquire(ctx context.Context, l lease.Lease) (lease.Lease, error) {
	node, err := s.get(ctx, func(node *corev1.Node) error {
		subnets, err := lease.ParsePodCIDRs(source(node).PodCIDRs)
		if err == nil {
			err = s.missing(subnets)
		}
		return err
	})
	if err != nil {
		return lease.Lease{}, err
	}
	subnets, err := lease.ParsePodCIDRs(source(node).PodCIDRs)
	if err != nil {
		return lease.Lease{}, err
	}
	for i, f := range []struct {
		wanted  bool
		network netip.Prefix
		key     string
		to      *netip.Prefix
	}{{s.config.EnableIPv4, s.config.Network, "Network", &l.Subnet}, {s.config.EnableIPv6, s.config.IPv6Network, "IPv6Network", &l.Subnet6}} {
		if !f.wanted {
			continue
		}
		if !f.network.IsValid() || !f.network.Contains(subnets[i].Addr()) || f.network.Bits() > subnets[i].Bits() {
			return lease.Lease{}, fmt.Errorf("podCIDR %s of node %s is not in %s %s of the network configuration: make them agree (kube-controller-manager's --cluster-cidr)",
				subnets[i], s.options.Node, f.key, f.network)
		}
		*f.to = subnets[i]
	}
	return l, nil
}

func (s *Store) missing(subnets [2]netip.Prefix) error {
	for i, wanted := range []bool{s.config.EnableIPv4, s.config.EnableIPv6} {
		if wanted && !subnets[i].IsValid() {
			return fmt.Errorf("node %s has no podCIDR of IPv%d: run kube-controller-manager with --allocate-node-cidrs and --cluster-cidr", s.options.Node, 4+2*i)
		}
	}
	return nil
}

// Publish writes the node's lease into its annotations.
func (s *Store) Publish(ctx context.Context, l lease.Lease) error {
	node, err := s.get(ctx, func(*corev1.Node) error { return nil })
	if err != nil {
		return err
	}
	change := map[string]string{}
	for key, value := range s.options.Keys.Annotations(&l, node.Annotations) {
		if node.Annotations[key] != value {
			change[key] = value
		}
	}
	if len(change) == 0 {
		return nil
	}
	return s.patch(ctx, map[string]any{"metadata": map[string]any{"annotations": change}})
}

// Up sets the Node's condition NetworkUnavailable to False.
func (s *Store) Up(ctx context.Context) error {
	if !s.options.Condition {
		return nil
	}
	node, err := s.get(ctx, func(*corev1.Node) error { return nil })
	if err != nil {
		return err
	}
	const reason = "FlannelIsUp"
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeNetworkUnavailable && condition.Status == corev1.ConditionFalse && condition.Reason == reason {
			return nil
		}
	}
	now := metav1.Now()
	return s.patch(ctx, map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: reason, Message: "Flannel is running on this node",
		LastTransitionTime: now, LastHeartbeatTime: now,
	}}}})
}

func (s *Store) patch(ctx context.Context, change map[string]any) error {
	raw, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("patch the node: %w", err)
	}
	for {
		_, err := s.options.Client.CoreV1().Nodes().Patch(ctx, s.options.Node, types.StrategicMergePatchType, raw, metav1.PatchOptions{}, "status")
		if err == nil {
			return nil
		}
		s.options.Log.Warn("patch of the node's status failed; trying again", "node", s.options.Node, "error", err)
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(retry):
		}
	}
}

// source returns the parts of a Node that form its lease.
func source(node *corev1.Node) lease.Node {
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	return lease.Node{Annotations: node.Annotations, PodCIDRs: cidrs}
}

// Run reports leases of other nodes until ctx ends.
func (s *Store) Run(ctx context.Context, own lease.Lease, report func(lease.Update)) error {
	selector := fields.Everything()
	if _, alone := s.config.Backend.(netconf.Alloc); alone { // routes are another program's: only this node has to be watched
		selector = fields.OneTermEqualSelector("metadata.name", s.options.Node)
	}
	w := &watch{store: s, own: own, report: report, seen: map[string]entry{}}
	all := cache.NewListWatchFromClient(s.options.Client.CoreV1().RESTClient(), "nodes", "", selector)
	nodes, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &lister{all, all, s.strip}, ObjectType: &corev1.Node{}, Transform: s.strip,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { w.set(obj) },
			UpdateFunc: func(_, obj any) { w.set(obj) },
			DeleteFunc: func(obj any) { w.remove(obj) },
		},
	})
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), controller.HasSynced) {
			w.complete(nodes)
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := make(chan error, 1)
	go func() {
		followed <- s.followConfig(ctx, report)
		cancel()
	}()
	controller.Run(ctx.Done())
	cancel()
	return <-followed
}

// strip removes from a Node what its lease does not depend on: a cluster has thousands of Nodes.
func (s *Store) strip(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	k := &s.options.Keys
	kept := map[string]string{}
	for _, key := range []string{k.Managed, k.BackendType, k.Data, k.Data6, k.PublicIP, k.PublicIP6, k.Overwrite, k.Overwrite6} {
		if value, ok := node.Annotations[key]; ok {
			kept[key] = value
		}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, CreationTimestamp: node.CreationTimestamp, Annotations: kept,
		},
		Spec: corev1.NodeSpec{PodCIDR: node.Spec.PodCIDR, PodCIDRs: node.Spec.PodCIDRs},
	}, nil
}

// entry is the last claim of a node's object.
type entry struct {
	claim lease.Claim
	err   string
}

// watch turns events into updates. The informer calls it from one goroutine; complete is called from another, once.
type watch struct {
	store  *Store
	own    lease.Lease
	report func(lease.Update)
	seen   map[string]entry
	gate   gate
	// published reports that this node's annotations have been seen with the desired values.
	published bool
}

func (w *watch) set(obj any) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	w.gate.do(func() { w.node(node) })
}

func (w *watch) node(node *corev1.Node) {
	if node.Name == w.store.options.Node {
		subnets, err := lease.ParsePodCIDRs(source(node).PodCIDRs)
		changed := err == nil && ((w.own.Subnet.IsValid() && subnets[0] != w.own.Subnet) || (w.own.Subnet6.IsValid() && subnets[1] != w.own.Subnet6))
		if changed {
			w.report(lease.Update{Restart: fmt.Errorf("podCIDRs of this node changed to %v", node.Spec.PodCIDRs)})
		}
		w.annotated(node)
		return
	}
	claim, managed, err := w.read(node)
	if !managed {
		w.drop(node.Name)
		return
	}
	now := entry{claim: claim}
	if err != nil {
		now.err = err.Error()
	}
	if before, ok := w.seen[node.Name]; ok && before == now {
		return
	}
	w.seen[node.Name] = now
	update := lease.Update{Set: map[string]lease.Claim{node.Name: claim}}
	if err != nil {
		update.Problems = map[string]error{node.Name: err}
	}
	w.report(update)
}

// annotated reports a restart if this node's annotations are lost or changed, for example because the Node was created again.
func (w *watch) annotated(node *corev1.Node) {
	for key, value := range w.store.options.Keys.Annotations(&w.own, node.Annotations) {
		if node.Annotations[key] == value {
			continue
		}
		if w.published {
			w.published = false
			w.report(lease.Update{Restart: fmt.Errorf(
				"annotation %s of this node changed from %q to %q: a new Node, or does flanneld run on this node as well?", key, value, node.Annotations[key])})
		}
		return
	}
	w.published = true
}

func (w *watch) read(node *corev1.Node) (lease.Claim, bool, error) {
	l, managed, err := w.store.options.Keys.FromNode(source(node), w.store.families())
	return lease.Claim{Since: node.CreationTimestamp.Unix(), Lease: l}, managed, err
}

func (w *watch) remove(obj any) {
	if node, ok := informer.LastState(obj).(*corev1.Node); ok {
		w.gate.do(func() { w.drop(node.Name) })
	}
}

func (w *watch) drop(name string) {
	if _, ok := w.seen[name]; ok {
		delete(w.seen, name)
		w.report(lease.Update{Delete: []string{name}})
	}
}

// complete reports all nodes at once; from then on changes are reported.
func (w *watch) complete(nodes cache.Store) {
	w.gate.open(func() {
		update := lease.Update{All: true, Set: map[string]lease.Claim{}, Problems: map[string]error{}}
		for _, obj := range nodes.List() {
			node, ok := obj.(*corev1.Node)
			if !ok {
				continue
			}
			if node.Name == w.store.options.Node { // with annotations of an earlier start, no event may follow until they are lost
				w.node(node)
				continue
			}
			claim, managed, err := w.read(node)
			if !managed {
				continue
			}
			now := entry{claim: claim}
			update.Set[node.Name] = claim
			if err != nil {
				now.err = err.Error()
				update.Problems[node.Name] = err
			}
			w.seen[node.Name] = now
		}
		w.report(update)
	})
}
