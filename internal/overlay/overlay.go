// Package overlay is the overlay network on one node: it compiles what it is told of the cluster, and the node's own
// attachments, into fragments of desired state for the node's engines, and serves the pods' attaching and detaching.
//
// It calls no API server and knows no other network. Objects come in as a View; what leaves are fragments.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/multicast"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/service"
)

// NetworkName is the name of this network in attachment records.
const NetworkName = "overlay"

// Delays between tries of what goes on in the background.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// View is what the overlay has to know of the cluster and of the node, in plain values.
type View struct {
	// Cluster is the ClusterNetwork named default.
	Cluster clusternetwork.Config
	// ClosedPorts are UDP ports that are closed to pods besides that of the cluster's tunnels, in ascending order: where tunnels of
	// other networks are.
	ClosedPorts []uint16
	// Local is this node's HostSubnet.
	Local clusternetwork.HostSubnet
	// Node is what the node itself is like.
	Node Node
	// Closed is what is closed to pods outside their network.
	Closed Closed
	// Remotes are all other hosts' HostSubnets. Two may briefly share an address or a name.
	Remotes []clusternetwork.HostSubnet
}

// Closed is what is closed to the pods of a node outside their network. The zero value closes nothing.
type Closed struct {
	// Metadata are addresses of clouds' metadata services, where pods reach port 53 and nothing else.
	Metadata []netip.Addr
	// TCPPorts are TCP ports at which pods reach no node, and nothing else outside their network.
	TCPPorts []uint16
}

// Node is what the overlay has to know of the machine.
type Node struct {
	// Datapath is the bridge's datapath type, ovsdb.DatapathSystem or ovsdb.DatapathNetdev.
	Datapath string
	// Uplink is the interface with the address of the node's HostSubnet.
	Uplink string
	// MTU is that interface's, in bytes.
	MTU int
	// Network is the range that the node's address has on it: where egress addresses are.
	Network netip.Prefix
}

// Engines are the loops that hold the node's state. The overlay starts them and feeds them; who made them runs them.
type Engines struct {
	Flows *reconcile.Loop[openflow.Key, openflow.Entry]
	Rows  *reconcile.Loop[ovsdb.Key, ovsdb.Row]
	Links *reconcile.Loop[link.Key, link.Item]
	Rules *reconcile.Loop[nft.Key, nft.Item]
	// Ports tells of ports that the switch has added.
	Ports Ports
	// Pods makes and removes the pods' veth pairs.
	Pods link.PodLinks
	// Standing makes and lists pairs that are there before their pods.
	Standing link.StandingLinks
	// HostEnds puts back what others change of them.
	HostEnds HostEnds
	// Shapers shapes what pods receive and send whose bandwidth is limited. Nil: none may be.
	Shapers link.Shapers
	// Connections are those that the switch tracks for Services.
	Connections Connections
	// Uplink is the node's own interface, for egress addresses. Nil: nothing is announced, and nothing forgotten.
	Uplink Uplink
	// Macvlans makes egress routers' second interfaces. Nil: it makes none.
	Macvlans link.Macvlans
	// Kernel is the node's own, for host ports. Nil: it forgets nothing.
	Kernel HostConnections
	// Datapath forwards for the switch. Nil: it goes by new flows by itself.
	Datapath Datapath
}

// Ports tells of the switch's ports.
type Ports interface {
	// Added returns a channel that is closed when the switch says that it has added that port. Of a port that is there
	// already nothing is told. stop ends the waiting.
	Added(name string, ofport uint32) (added <-chan struct{}, stop func())
}

// Options of a Network.
type Options struct {
	// BootID tells this boot of the node from others (attach.ReadBootID). Required.
	BootID string
	// Records are the overlay's attachments. Required.
	Records network.Records
	// Node is the node's name, by which pods name it. Only NetworkPolicies look at it.
	Node string
	// Log gets what nobody waits for. Default: discarded.
	Log *slog.Logger
	// Ports is the path of the namespace with the far ends of ports that stand ready for pods. While there is none, or Spare
	// is 0, every pod gets a port of its own, but for those whose bandwidth is limited: they get one that stands, or none.
	Ports string
	// Spare is how many ports stand ready.
	Spare int
	// MoveStep is how long each step of a project's move between VNIDs takes. Default DefaultMoveStep.
	MoveStep time.Duration
	// PurgeRest is how long the datapath is not purged of what need not be purged at once. Default DefaultPurgeRest.
	PurgeRest time.Duration
	// TenantsRealised is told when Network.TenantsRealised may return another version. It must not wait. Nil: nobody is told.
	TenantsRealised func()
	// Inhabited is told when Network.Inhabited may return others. It must not wait. Nil: nobody is told.
	Inhabited func()
	// Closed is called with an attachment whose port is closed although it is attached, and with the reason. It must not wait. Nil: nothing is.
	Closed func(rec attach.Record, why error)
	// RuntimeCache is where the container runtime keeps the results of ADD, of which records are rebuilt that cannot be read. Empty: none is.
	RuntimeCache string
	// ServiceWarnings is told what of a Service this node does not do in the switch, and of none once that is over. It must
	// not wait. Nil: nobody is told.
	ServiceWarnings func(owner reconcile.Owner, warnings []error)
	// Privileged reports whether a pod has a privileged container or init container. It is asked about egress routers only. Nil: there
	// are none.
	Privileged func(ctx context.Context, pod cni.Args) (bool, error)
	// Reserved are ports of the node that no pod may have.
	Reserved []ReservedPort
	// PolicyProblems is told what a NetworkPolicy that isolates a pod of this node says that is not so here, once for each change of
	// it. It must not wait. Nil: nobody is told.
	PolicyProblems func(key policy.Key, problems []error)
}

// Network is the overlay on this node.
type Network struct {
	engines Engines
	store   *attach.Store
	opts    Options
	links   *unlinker
	// standing are the ports that stand ready.
	standing *standing
	ends     *ends
	tenants  *tenants
	// firewalls are the namespaces' egress firewalls.
	firewalls *firewalls
	// multicast is which projects have multicast.
	multicast *multicast.Projects

	// settings is nil until the first View is programmed: until then nothing is attached.
	settings atomic.Pointer[settings]
	// waiting says, for whoever asks while settings is nil, what is waited for.
	waiting atomic.Pointer[string]

	// hosts are the names of remote hosts, by owner.
	hosts atomic.Pointer[map[reconcile.Owner]string]

	// updating serialises Update and guards what follows.
	updating sync.Mutex
	// remotes are the remote hosts that fragments were made of; leftOut says why others have none.
	remotes map[reconcile.Owner]pipeline.Remote
	leftOut map[reconcile.Owner]string
	// services are what is known of Services.
	services services
	// egress are what is known of egress addresses.
	egress  egressIPs
	started bool
	// incomplete tells that the last Update failed: the next one compiles everything.
	incomplete bool
	// crossing tells that pods are closed on the way from one mode that isolates to another.
	crossing bool

	// opening guards live. Fragments of pods that are made from live are handed to the loops before it is let go, so
	// that none is handed over after the attachment is out of live and its fragment withdrawn.
	opening sync.Mutex
	// enforcer has what NetworkPolicies mean for the pods of this node, and purges the datapath; opening guards both as well.
	enforcer *enforcer.Enforcer
	purges   *enforcer.Revocations
	// live are the attachments whose ports are open, or being opened.
	live map[attach.Key]attach.Record
	// running is closed when the engines are started.
	running chan struct{}

	// picking guards the cursors of the allocators; it is not held across I/O.
	picking sync.Mutex
	pool    *ipam.Pool
	ofports ipam.Ofports
}

// New returns the network. Nothing is touched before the first Update.
func New(engines Engines, store *attach.Store, opts Options) *Network {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.PurgeRest == 0 {
		opts.PurgeRest = DefaultPurgeRest
	}
	n := &Network{
		engines: engines, store: store, opts: opts, running: make(chan struct{}),
		remotes: map[reconcile.Owner]pipeline.Remote{}, leftOut: map[reconcile.Owner]string{}, live: map[attach.Key]attach.Record{},
		services: newServices(), egress: newEgressIPs(),
	}
	if opts.MoveStep == 0 {
		opts.MoveStep = DefaultMoveStep
	}
	n.enforcer = newEnforcer(n)
	n.links = newUnlinker(n)
	n.standing = newStanding(n)
	n.ends = newEnds(n)
	n.tenants = newTenants(n, opts.MoveStep)
	n.firewalls = newFirewalls()
	n.multicast = multicast.New()
	n.Waiting("the agent is starting")
	return n
}

// Run keeps ports ready and puts back what others change of pods' links, until ctx ends.
func (n *Network) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error { return n.links.run(ctx) })
	group.Go(func() error { return n.ends.run(ctx) })
	group.Go(func() error { return n.standing.run(ctx) })
	group.Go(func() error { return n.tenants.run(ctx) })
	group.Go(func() error { return n.purges.Run(ctx) })
	group.Go(func() error { return n.announceEgress(ctx) })
	group.Go(func() error { return n.forgetEgress(ctx) })
	return group.Wait()
}

// HandedOver is closed once everything that the records and the first View say is in the engines. It implements network.Runner.
func (n *Network) HandedOver() <-chan struct{} { return n.running }

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
	next.tenants, next.firewalls, next.multicast = n.tenants, n.firewalls, n.multicast
	n.prepareEgress(next)
	if !n.started {
		if err := n.start(ctx, next); err != nil {
			return err
		}
		n.egress.forget.begin()
		n.enforcer.ReportProblems()
		// Flows that were committed may be others than those of the life before, those that close ports too.
		n.purges.Due(next.judges() || len(view.ClosedPorts) > 0)
		return n.purges.Flush(ctx)
	}
	was := n.settings.Load()
	if !n.incomplete && was.view.equalButRemotes(view) {
		return errors.Join(n.refreshRemotes(ctx, was, view.Remotes), n.purges.Flush(ctx))
	}
	n.purges.Due(was.judges() || next.judges() || was.view.Cluster.VXLANPort != next.view.Cluster.VXLANPort || !slices.Equal(was.view.ClosedPorts, next.view.ClosedPorts))
	n.incomplete = true
	if err := n.refresh(ctx, was, next); err != nil {
		return err
	}
	n.incomplete = false
	n.egress.forget.begin()
	n.enforcer.ReportProblems()
	return n.purges.Flush(ctx)
}

// start programs everything for the first time in this process's life. Rules come before ports: what closes the way
// around the userspace datapath has to stand before there is a way. Flows come last: a port without flows is closed.
func (n *Network) start(ctx context.Context, s *settings) error {
	// Side by side: the one waits for the kernel's links, the other for nft.
	var former map[nft.Key]nft.Item
	var both errgroup.Group
	both.Go(func() error { return n.resume(ctx, s) })
	both.Go(func() (err error) {
		former, err = n.formerRules(ctx)
		return err
	})
	if err := both.Wait(); err != nil {
		return err
	}
	if s.policies() {
		n.enforcer.Compile(n.flowCompiler(s), podRanges(s.view.Remotes))
	}
	// What pods and remote hosts add is not waited for: one that has lost its link does not keep the others.
	remotes := n.compileRemotes(s, s.view.Remotes, true)
	n.engines.Rules.Set(remotes.rules)
	n.inheritEgress(s, former)
	n.setHostPorts()
	n.setEgress(s)
	if err := n.engines.Rules.Start(ctx, s.rules()); err != nil {
		return fmt.Errorf("node rules: %w", err)
	}
	n.setPods(s)
	n.standing.configure(s)
	if err := n.engines.Rows.Start(ctx, s.rows()); err != nil {
		return fmt.Errorf("switch: %w", err)
	}
	if err := n.engines.Links.Start(ctx, s.links()); err != nil {
		return fmt.Errorf("node links: %w", err)
	}
	n.engines.Flows.Set(remotes.flows)
	n.setServices(s)
	n.services.stale = map[reconcile.Owner][]service.Stale{} // nothing was served before
	if err := n.engines.Flows.Start(ctx, s.flows()); err != nil {
		return fmt.Errorf("flows: %w", err)
	}
	n.follow(s)
	n.opening.Lock()
	n.enforcer.HandOver() // of policies, what came meanwhile
	n.opening.Unlock()
	n.started = true
	close(n.running)
	return nil
}

// refresh programs what differs from the View before. An engine that fails does not keep the others; what it was to do
// stays desired.
func (n *Network) refresh(ctx context.Context, was, s *settings) error {
	if err := n.resume(ctx, s); err != nil {
		return err
	}
	if s.policies() {
		n.enforcer.Compile(n.flowCompiler(s), podRanges(s.view.Remotes))
	}
	// Between two modes that isolate, each lets through what only the other would stop: pods are closed on the way.
	n.crossing = n.crossing || was.judges() && s.judges() && was.pipeline.Mode != s.pipeline.Mode
	if n.crossing {
		if err := n.closePods(ctx); err != nil {
			return err
		}
	}
	n.follow(s)
	remotes := n.compileRemotes(s, s.view.Remotes, true)
	n.engines.Rules.Set(remotes.rules)
	n.setEgress(s)
	rules := n.engines.Rules.Apply(ctx, s.rules())
	// In this order a change of the mode loses nothing that is allowed before and after: what comes from other nodes counts
	// as the new mode has it before pods no longer say whom they admit, and what admits all goes last.
	n.engines.Flows.Set(remotes.flows)
	if n.crossing || s.policies() && !was.policies() { // until pods are marked as isolated, these let all through
		if err := n.engines.Flows.Apply(ctx, s.flows()); err != nil {
			return named("flows", err)
		}
	}
	n.crossing = false
	n.setPods(s)
	n.standing.configure(s)
	// The switch sets the MTU and the MAC address of tun0 by its row: by then these are what the links want as well.
	n.engines.Links.Set(s.links())
	rows := n.engines.Rows.Apply(ctx, s.rows())
	links := n.engines.Links.Apply(ctx, s.links())
	n.setServices(s)
	flows := n.engines.Flows.Apply(ctx, s.flows())
	return errors.Join(
		named("node rules", rules), named("switch", rows), named("node links", links), named("flows", flows),
	)
}

// refreshRemotes programs the remote hosts that differ, where nothing else does.
func (n *Network) refreshRemotes(ctx context.Context, s *settings, hosts []clusternetwork.HostSubnet) error {
	changed := n.compileRemotes(s, hosts, false)
	n.followNodes(s, hosts)
	if len(changed.flows) == 0 {
		return nil
	}
	n.incomplete = true
	n.engines.Flows.Set(changed.flows)
	rules := n.engines.Rules.Apply(ctx, changed.rules)
	flows := n.engines.Flows.Apply(ctx, changed.flows)
	if err := errors.Join(named("node rules", rules), named("flows", flows)); err != nil {
		return err
	}
	n.incomplete = false
	return nil
}

func named(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Ready returns nil when pods can be attached, else what is waited for.
func (n *Network) Ready() error {
	if n.settings.Load() != nil {
		return nil
	}
	return errors.New(*n.waiting.Load())
}

// owner names an attachment as the origin of fragments.
func owner(key attach.Key) reconcile.Owner { return reconcile.Owner(key.Owner()) }
