// Package overlay is the overlay network on one node: it compiles what it is told of the cluster, and the node's own
// attachments, into fragments of desired state for the node's engines, and serves the pods' attaching and detaching.
//
// It calls no API server and knows no other network. Objects come in as a View; what leaves are fragments.
package overlay

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// NetworkName is the name of this network in attachment records.
const NetworkName = "overlay"

// View is what the overlay has to know of the cluster and of the node, in plain values.
type View struct {
	// Cluster is the ClusterNetwork named default.
	Cluster clusternetwork.Config
	// Local is this node's HostSubnet.
	Local clusternetwork.HostSubnet
	// Node is what the node itself is like.
	Node Node
	// Remotes are all other hosts' HostSubnets. Two may briefly share an address or a name.
	Remotes []clusternetwork.HostSubnet
}

// Node is what the overlay has to know of the machine.
type Node struct {
	// Datapath is the bridge's datapath type, ovsdb.DatapathSystem or ovsdb.DatapathNetdev.
	Datapath string
	// Uplink is the interface with the address of the node's HostSubnet.
	Uplink string
	// MTU is that interface's, in bytes.
	MTU int
}

// Engines are the loops that hold the node's state. The overlay starts them and feeds them; who made them runs them.
type Engines struct {
	Flows *reconcile.Loop[openflow.Key, openflow.Entry]
	Rows  *reconcile.Loop[ovsdb.Key, ovsdb.Row]
	Links *reconcile.Loop[link.Key, link.Item]
	Rules *reconcile.Loop[nft.Key, nft.Item]
	// Pods makes and removes the pods' veth pairs.
	Pods link.PodLinks
}

// Options of a Network.
type Options struct {
	// BootID tells this boot of the node from others (attach.ReadBootID). Required.
	BootID string
	// Log gets what nobody waits for. Default: discarded.
	Log *slog.Logger
}

// Network is the overlay on this node. It is a cni.Handler for the pods on it.
type Network struct {
	engines Engines
	store   *attach.Store
	opts    Options
	locks   attach.Keyed[attach.Key]
	reaper  *reaper

	// settings is nil until the first View is programmed: until then nothing is attached.
	settings atomic.Pointer[settings]
	// waiting says, for whoever asks while settings is nil, what is waited for.
	waiting atomic.Pointer[string]

	// updating serialises Update.
	updating sync.Mutex
	remotes  map[reconcile.Owner]bool
	started  bool

	// picking guards the cursors of the allocators; it is not held across I/O.
	picking sync.Mutex
	pool    *ipam.Pool
	ofports ipam.Ofports
}

var _ cni.Handler = (*Network)(nil)

// New returns the network. Nothing is touched before the first Update.
func New(engines Engines, store *attach.Store, opts Options) *Network {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	n := &Network{engines: engines, store: store, opts: opts, remotes: map[reconcile.Owner]bool{}}
	n.reaper = newReaper(n)
	n.Waiting("the agent is starting")
	return n
}

// Run reaps what is detached until ctx ends.
func (n *Network) Run(ctx context.Context) error { return n.reaper.run(ctx) }

// Waiting sets what is told to those who want to attach before the network can serve: "waiting for …".
func (n *Network) Waiting(what string) { n.waiting.Store(&what) }

// Update brings the node in step with a new View. The first one starts the engines, with everything that the records
// say in the state they start from, so that a restart changes nothing. An error names what is wrong with the View or
// with the node; what was programmed before stays.
func (n *Network) Update(ctx context.Context, view View) error {
	n.updating.Lock()
	defer n.updating.Unlock()
	next, err := newSettings(view)
	if err != nil {
		return err
	}
	if !n.started {
		if err := n.start(ctx, next); err != nil {
			return err
		}
		n.started = true
	} else if err := n.refresh(ctx, next); err != nil {
		return err
	}
	return nil
}

// start programs everything for the first time in this process's life. Rules come before ports: what closes the way
// around the userspace datapath has to stand before there is a way. Flows come last: a port without flows is closed.
func (n *Network) start(ctx context.Context, s *settings) error {
	if err := n.resume(s); err != nil {
		return err
	}
	f := n.compile(s)
	if err := n.engines.Rules.Start(ctx, f.rules); err != nil {
		return fmt.Errorf("node rules: %w", err)
	}
	// What pods add is not waited for: one that has lost its link does not keep the others.
	n.engines.Rows.Set(f.podRows)
	if err := n.engines.Rows.Start(ctx, s.rows()); err != nil {
		return fmt.Errorf("switch: %w", err)
	}
	if err := n.engines.Links.Start(ctx, s.links()); err != nil {
		return fmt.Errorf("node links: %w", err)
	}
	n.engines.Flows.Set(f.podFlows)
	n.engines.Flows.Set(f.remoteFlows)
	if err := n.engines.Flows.Start(ctx, s.flows()); err != nil {
		return fmt.Errorf("flows: %w", err)
	}
	n.settings.Store(s)
	return nil
}

// refresh programs what differs from the View before.
func (n *Network) refresh(ctx context.Context, s *settings) error {
	if err := n.resume(s); err != nil {
		return err
	}
	// From here on ADDs use the new settings. Those under way finish with the old ones, and look again when they have.
	n.settings.Store(s)
	f := n.compile(s)
	if err := n.engines.Rules.Apply(ctx, f.rules); err != nil {
		return fmt.Errorf("node rules: %w", err)
	}
	n.engines.Rows.Set(f.podRows)
	if err := n.engines.Rows.Apply(ctx, s.rows()); err != nil {
		return fmt.Errorf("switch: %w", err)
	}
	if err := n.engines.Links.Apply(ctx, s.links()); err != nil {
		return fmt.Errorf("node links: %w", err)
	}
	flows := s.flows()
	maps.Copy(flows, f.podFlows)
	maps.Copy(flows, f.remoteFlows)
	if err := n.engines.Flows.Apply(ctx, flows); err != nil {
		return fmt.Errorf("flows: %w", err)
	}
	return nil
}

// fragments are a View compiled, by owner, but for what the settings alone make.
type fragments struct {
	rules                 map[reconcile.Owner]map[nft.Key]nft.Item
	podRows               map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row
	podFlows, remoteFlows map[reconcile.Owner]map[openflow.Key]openflow.Entry
}

// compile returns the fragments of all attachments and remote hosts, and an empty one for each remote host that is gone.
func (n *Network) compile(s *settings) fragments {
	f := fragments{
		rules:       map[reconcile.Owner]map[nft.Key]nft.Item{},
		podRows:     map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{},
		podFlows:    map[reconcile.Owner]map[openflow.Key]openflow.Entry{},
		remoteFlows: map[reconcile.Owner]map[openflow.Key]openflow.Entry{},
	}
	for _, rec := range n.attached() {
		if err := s.pipeline.CheckPod(pod(&rec)); err != nil {
			n.opts.Log.Error("a pod's port stays closed", "error", err)
		}
		f.podFlows[owner(rec.Key())], f.podRows[owner(rec.Key())] = s.podFlows(&rec), s.podRows(&rec)
	}
	for o := range n.remotes {
		f.remoteFlows[o], f.rules[o] = nil, nil
	}
	n.remotes = map[reconcile.Owner]bool{}
	for i := range s.view.Remotes {
		r := remote(&s.view.Remotes[i])
		if err := s.pipeline.CheckRemote(r); err != nil {
			n.opts.Log.Error("a remote host is left out", "error", err)
			continue
		}
		o := r.Owner()
		n.remotes[o] = true
		f.remoteFlows[o], f.rules[o] = s.pipeline.Remote(r), s.host.RemoteRules(r.NodeIP)
	}
	f.rules[ownerCluster] = s.rules()
	return f
}

// attached returns the records of this network whose ports are to be open.
func (n *Network) attached() []attach.Record {
	var records []attach.Record
	for _, rec := range n.store.List() {
		if rec.Network == NetworkName && rec.State == attach.Attached && rec.BootID == n.opts.BootID {
			records = append(records, rec)
		}
	}
	return records
}

// resume sets the allocators to go on after the last record, and hands what a former life left unfinished, or what
// belongs to a former boot, to the reaper: nobody was told of it, or nobody lives to use it.
func (n *Network) resume(s *settings) error {
	n.picking.Lock()
	defer n.picking.Unlock()
	if n.pool != nil && n.pool.Subnet() == s.view.Local.Subnet {
		return nil
	}
	pool, err := ipam.NewPool(s.view.Local.Subnet)
	if err != nil {
		return fmt.Errorf("HostSubnet %s: %w", s.view.Local.Host, err)
	}
	first := n.pool == nil
	n.pool = pool
	last := attach.Record{}
	for _, rec := range n.store.List() {
		if rec.Network != NetworkName {
			continue
		}
		if first && (rec.State != attach.Attached || rec.BootID != n.opts.BootID) {
			n.reaper.add(rec.Key())
		}
		if rec.Created.After(last.Created) {
			last = rec
		}
	}
	for _, address := range last.Addresses {
		if pool.Contains(address.Addr()) {
			pool.Resume(address.Addr())
		}
	}
	n.ofports.Resume(last.OFPort)
	return nil
}

// Ready returns nil when pods can be attached, else what is waited for.
func (n *Network) Ready() error {
	if n.settings.Load() != nil {
		return nil
	}
	return fmt.Errorf("the network is not ready: %s", *n.waiting.Load())
}

// owner names an attachment as the origin of fragments.
func owner(key attach.Key) reconcile.Owner { return reconcile.Owner(key.Owner()) }
