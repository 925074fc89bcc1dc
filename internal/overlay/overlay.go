// Package overlay is the overlay network on one node. It compiles the cluster's objects and the node's attachments into fragments of
// desired state for the node's engines, and it attaches and detaches pods.
//
// It calls no API server and depends on no other network. Its input is a View, its output is fragments.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/hostport/publish"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/balancer"
	"weft.dev/weft/internal/overlay/egress"
	"weft.dev/weft/internal/overlay/egressrouter"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/firewalls"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/multicast"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/groupid"
	"weft.dev/weft/internal/overlay/ports"
	"weft.dev/weft/internal/overlay/projects"
	"weft.dev/weft/internal/overlay/remotes"
	"weft.dev/weft/internal/overlay/settings"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/steps"
)

// NetworkName is the name of this network in attachment records.
const NetworkName = "overlay"

// ownerCluster owns fragments that depend on neither a pod nor a remote host.
const ownerCluster = pipeline.OwnerCluster

// View is the overlay's input about the cluster and the node, as plain values.
type View = settings.View

// Node describes the machine.
type Node = settings.Node

// Closed is what the pods of a node cannot reach outside their network. The zero value closes nothing.
type Closed = settings.Closed

// Engines are the loops that hold the node's state. The overlay starts them and feeds them; the caller that created them runs them.
type Engines struct {
	Flows *reconcile.Loop[openflow.Key, openflow.Entry]
	Rows  *reconcile.Loop[ovsdb.Key, ovsdb.Row]
	Links *reconcile.Loop[link.Key, link.Item]
	Rules *reconcile.Loop[nft.Key, nft.Item]
	// Ports reports ports that the switch has added.
	Ports ports.Switch
	// Pods makes and removes the pods' veth pairs.
	Pods podlink.Links
	// Preplugged creates and lists pre-plugged ports: veth pairs that exist before their pods.
	Preplugged podlink.PrepluggedLinks
	// HostEnds restores host veths that another program changed.
	HostEnds ports.HostEnds
	// Shapers limits the bandwidth of pods. Nil: bandwidth limits are refused.
	Shapers podlink.Shapers
	// Connections are the connections that the switch tracks for Services.
	Connections balancer.Connections
	// Uplink is the node's own interface, for egress IPs. Nil: no egress IP is announced and no connection is flushed.
	Uplink egress.Uplink
	// Macvlans creates egress routers' second interfaces. Nil: pods that need one are refused.
	Macvlans podlink.Macvlans
	// Kernel is the node's own conntrack, for host ports. Nil: no connection is flushed.
	Kernel publish.Tracked
	// Datapath is the switch's datapath. Nil: it needs no purge to follow new flows.
	Datapath Datapath
}

// Options of a Network.
type Options struct {
	// BootID distinguishes this boot of the node from others (attach.ReadBootID). Required.
	BootID string
	// Records are the overlay's attachments. Required.
	Records network.Records
	// Node is the node's name as in a pod's spec.nodeName. Only NetworkPolicies use it.
	Node string
	// Log gets what no caller receives as an error. Default: discarded.
	Log *slog.Logger
	// Ports is the path of the namespace with the veth peers of pre-plugged ports. If it does not exist, or Spare is 0, every pod gets a port
	// of its own, except a pod with limited bandwidth: a pre-plugged port is created for it, and its ADD fails if that fails.
	Ports string
	// Spare is the number of pre-plugged ports that are kept free.
	Spare int
	// PortRest is the least time that a pre-plugged port stays free. Default ports.DefaultRest.
	PortRest time.Duration
	// MoveStep is how long each step of a project's move between VNIDs takes. Default projects.DefaultStep.
	MoveStep time.Duration
	// Now returns the time. Default time.Now.
	Now func() time.Time
	// PurgeRest is the least time between purges of the datapath that may wait. Default DefaultPurgeRest.
	PurgeRest time.Duration
	// TenantsRealised is called when the result of Projects.Realised may have changed. It must not block. Nil: not called.
	TenantsRealised func()
	// WithPods is called when the result of Network.WithPods may have changed. It must not block. Nil: not called.
	WithPods func()
	// Closed is called with an attachment whose port is closed although it is attached, and with the reason. It must not block. Nil: not
	// called.
	Closed func(rec attach.Record, why error)
	// Conflict is called when the network starts for each attachment that lacks a host port because another one has it. It must not block. Nil:
	// it is only logged.
	Conflict func(rec *attach.Record, why error)
	// RuntimeCache is the directory where the container runtime caches the results of ADD. Unreadable records are rebuilt from it. Empty: none
	// is.
	RuntimeCache string
	// ServiceWarnings is called with the parts of a Service that the switch on this node does not serve, and with no warnings once all are
	// served. It must not block. Nil: not called.
	ServiceWarnings func(owner reconcile.Owner, warnings []error)
	// Privileged reports whether a pod has a privileged container or init container. It is called only for egress routers. Nil: egress routers
	// are refused.
	Privileged func(ctx context.Context, pod cni.Args) (bool, error)
	// Reserved returns what a port of the node is reserved for; "" if a pod may have it as a host port. It must not block. Nil: none is
	// reserved.
	Reserved func(port cni.HostPort) string
	// PolicyProblems is called with what a NetworkPolicy that isolates a pod of this node specifies and this node does not enforce, once for
	// each change of it. It must not block. Nil: not called.
	PolicyProblems func(key policy.Key, problems []error)
}

// Network is the overlay on this node.
type Network struct {
	*attachments

	engines Engines
	store   *attach.Store
	opts    Options
	ports   *ports.Ports
	pods    *openPods
	former  *takeover
	// The features are updated each on its own.
	Firewalls *firewalls.Firewalls
	EgressIPs *egress.Addresses
	Services  *balancer.Balancer
	Projects  *projects.Projects
	Multicast *multicast.Feature
	// hosts are the remote hosts.
	hosts *remotes.Hosts

	// waiting says what the network waits for until the first View is programmed.
	waiting atomic.Pointer[string]

	// updating serialises handing over by Views and by features, and guards wanted and missed. It is not held during I/O.
	updating sync.Mutex
	// wanted are the settings of the last View.
	wanted *settings.Settings
	// missed says that a feature stored a change since the first state was handed over: the network is not programmed yet, and the change is
	// not in that state.
	missed bool

	// views programs the last View.
	views viewRuns

	// running is closed when the engines have started.
	running chan struct{}
}

// viewRuns program the last View. The fields are those of the run in progress.
type viewRuns struct {
	steps.Runs
	started bool
	// incomplete says that the last run failed: the next one compiles everything.
	incomplete bool
	// purge says that the datapath has to be purged once a View that differs from the one in effect is in effect.
	purge bool
	// remote are flows of remote hosts that are handed over after their rules.
	remote feature.Flows
}

// New returns the network. It changes nothing on the node before the first Update.
func New(engines Engines, store *attach.Store, opts Options) *Network {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.PurgeRest == 0 {
		opts.PurgeRest = DefaultPurgeRest
	}
	if opts.MoveStep == 0 {
		opts.MoveStep = projects.DefaultStep
	}
	n := &Network{engines: engines, store: store, opts: opts, running: make(chan struct{}), hosts: remotes.New()}
	n.pods = &openPods{engines: &n.engines, opts: &n.opts, live: map[attach.Key]attach.Record{}}
	n.pods.policies = newPolicies(n, n.pods)
	n.ports = newPorts(n)
	n.Projects = newProjects(n)
	n.Firewalls = firewalls.New(changer{n})
	groups := &groupid.IDs{}
	n.EgressIPs = egress.New(changer{n}, egress.Engines{Links: engines.Links, Rules: engines.Rules, Groups: groups, Uplink: engines.Uplink, Log: opts.Log})
	n.Services = newBalancer(n, groups)
	n.Multicast = multicast.NewFeature(changer{n}, n.Projects.Reached, n.hosts.Usable)
	n.pods.ports = n.ports
	n.pods.firewalls, n.pods.egress, n.pods.multicast = n.Firewalls, n.EgressIPs, n.Multicast
	n.former = &takeover{engines: &n.engines, store: store, opts: &n.opts, ports: n.ports, pods: n.pods}
	n.attachments = &attachments{
		engines: &n.engines, store: store, opts: &n.opts, pods: n.pods, ports: n.ports, projects: n.Projects, multicast: n.Multicast,
		routers: egressrouter.Routers{Macvlans: engines.Macvlans, Privileged: opts.Privileged, BootID: opts.BootID},
		hostPorts: publish.New(publish.Options{
			Rules: engines.Rules, Compile: host.Published, Reserved: opts.Reserved, Tracked: engines.Kernel, BootID: opts.BootID,
			Attached: func() []attach.Record { return opts.Records.Attached() }, Conflict: opts.Conflict, Log: opts.Log,
		}),
		ready: n.Ready,
	}
	n.Waiting("the agent is starting")
	return n
}

// newPorts returns the ports of a network.
func newPorts(n *Network) *ports.Ports {
	return ports.New(ports.Engines{
		Rows: n.engines.Rows, Switch: n.engines.Ports, Pods: n.engines.Pods, Preplugged: n.engines.Preplugged,
		HostEnds: n.engines.HostEnds, Shapers: n.engines.Shapers,
	}, ports.Options{
		Network: NetworkName, BootID: n.opts.BootID, Store: n.store, Records: n.opts.Records, Live: n.pods, Running: n.running,
		Ready:     func() bool { return n.pods.settings.Load() != nil },
		Namespace: n.opts.Ports, Spare: n.opts.Spare, Rest: n.opts.PortRest, Now: n.opts.Now, Log: n.opts.Log,
	})
}

// Run keeps pre-plugged ports free, restores pods' links that another program changed, and does the network's other background work, until
// ctx ends.
func (n *Network) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error { return n.ports.Run(ctx) })
	group.Go(func() error { return n.Projects.Run(ctx) })
	group.Go(func() error { return n.pods.policies.purges.Run(ctx) })
	group.Go(func() error { return n.EgressIPs.Run(ctx) })
	return group.Wait()
}

// HandedOver returns a channel that is closed once the engines have everything from the records and the first View. It implements
// network.Runner.
func (n *Network) HandedOver() <-chan struct{} { return n.running }

// Waiting sets what Ready reports before the network can attach pods: "waiting for …".
func (n *Network) Waiting(what string) { n.waiting.Store(&what) }

// Update makes the node match a new View. The first call starts the engines. Their initial state includes everything from the records, so
// that a restart changes nothing. An error names what is wrong with the View or the node; what was programmed before stays. A later View
// supersedes those that have not begun to be programmed. Features are updated while the engines commit a View.
func (n *Network) Update(ctx context.Context, view View) error {
	next, err := settings.New(view)
	if err != nil {
		return err
	}
	next.Projects, next.Firewalls, next.Egress, next.Multicast = n.Projects, n.Firewalls, n.EgressIPs, n.Multicast
	n.updating.Lock()
	n.wanted = next
	n.updating.Unlock()
	return n.views.Do(ctx, func(ctx context.Context) error {
		flush, err := n.program(ctx)
		if !flush {
			return err
		}
		return errors.Join(err, n.pods.policies.purges.Flush(ctx))
	})
}

// program programs the last View, and reports whether the datapath may have to be purged now.
func (n *Network) program(ctx context.Context) (flush bool, err error) {
	n.updating.Lock()
	next := n.wanted
	n.updating.Unlock()
	view := next.View
	if !n.views.started {
		if err := n.start(ctx, next); err != nil {
			return false, err
		}
		n.EgressIPs.InEffect()
		n.pods.policies.enforcer.ReportProblems()
		// The flows now committed may differ from those before the restart, including those that close ports.
		n.pods.policies.purges.Due(next.Judges() || len(view.ClosedPorts) > 0)
		return true, nil
	}
	was := n.pods.settings.Load()
	if !n.views.incomplete && was.View.EqualButRemotes(view) {
		return true, n.refreshRemotes(ctx, was, view.Remotes)
	}
	n.views.incomplete = true
	n.views.purge = n.views.purge || was.Judges() || next.Judges() || was.View.Cluster.VXLANPort != next.View.Cluster.VXLANPort || !slices.Equal(was.View.ClosedPorts, next.View.ClosedPorts)
	err = n.refresh(ctx, was, next)
	// Only now: a feature or a policy that is programmed meanwhile makes purges that are due. After a failure it makes one for what is in effect,
	// and the call that brings the rest makes another: by then the settings may be those of the View already.
	n.pods.policies.purges.Due(n.views.purge)
	if err != nil {
		return false, err
	}
	n.views.incomplete, n.views.purge = false, false
	n.EgressIPs.InEffect()
	n.pods.policies.enforcer.ReportProblems()
	return true, nil
}

// start programs everything for the first time in this process. Rules come before ports: the rules that close the path around the userspace
// datapath must be in effect before that path exists. Flows come last: a port without flows is closed.
func (n *Network) start(ctx context.Context, s *settings.Settings) error {
	// In parallel: one waits for netlink, the other for nft.
	var former map[nft.Key]nft.Item
	var both errgroup.Group
	both.Go(func() error { return n.former.resume(ctx, s) })
	both.Go(func() (err error) {
		former, err = n.EgressIPs.Former(ctx)
		return err
	})
	if err := both.Wait(); err != nil {
		return err
	}
	n.pods.policies.compile(s)
	// start does not wait for the fragments of pods and remote hosts: a pod that has lost its link must not block the others.
	n.handOver(func() {
		n.missed = false
		n.EgressIPs.Inherit(s.FeatureView(nil), former)
		n.handOverHosts(s)
	})
	n.pods.mu.Lock()
	live := slices.Collect(maps.Values(n.pods.live))
	n.hostPorts.Restore(live...)
	n.pods.mu.Unlock()
	n.hostPorts.Report(live)
	if err := n.engines.Rules.Start(ctx, s.Rules()); err != nil {
		return fmt.Errorf("node rules: %w", err)
	}
	var closed map[attach.Key]error
	n.handOver(func() { closed = n.pods.handOver(s) })
	n.pods.report(closed)
	n.ports.Preplugged.Configure(s.Preplugged())
	if err := n.engines.Rows.Start(ctx, s.Rows()); err != nil {
		return fmt.Errorf("switch: %w", err)
	}
	if err := n.engines.Links.Start(ctx, s.Links()); err != nil {
		return fmt.Errorf("node links: %w", err)
	}
	n.handOver(func() {
		n.handOverRemotes(s)
		n.engines.Flows.Set(n.Services.Adapt(s.FeatureView(nil), true))
	})
	if err := n.engines.Flows.Start(ctx, s.Flows()); err != nil {
		return fmt.Errorf("flows: %w", err)
	}
	for n.begin(s) {
		if err := n.engines.Flows.Apply(ctx, nil); err != nil {
			return fmt.Errorf("flows: %w", err)
		}
	}
	n.pods.mu.Lock()
	n.pods.policies.enforcer.HandOver() // policy changes that came meanwhile
	n.pods.mu.Unlock()
	n.views.started = true
	close(n.running)
	return nil
}

// handOver hands over a part of a View. Features hand over nothing meanwhile.
func (n *Network) handOver(part func()) {
	n.updating.Lock()
	defer n.updating.Unlock()
	part()
}

// handOverHosts hands over the remote hosts and the egress IPs, without waiting. The caller holds updating.
func (n *Network) handOverHosts(s *settings.Settings) {
	remote := n.compileRemotes(s, s.View.Remotes, true)
	n.views.remote = remote.Flows
	n.engines.Rules.Set(remote.Rules)
	n.engines.Flows.Set(n.EgressIPs.Adapt(s.FeatureView(nil)))
}

// begin makes s the network's settings, unless features have stored changes since the first state was handed over. Then it hands over the
// features again, and reports true.
func (n *Network) begin(s *settings.Settings) (missed bool) {
	n.updating.Lock()
	defer n.updating.Unlock()
	if missed, n.missed = n.missed, false; !missed {
		n.pods.follow(s)
		return false
	}
	n.engines.Flows.Set(n.EgressIPs.Adapt(s.FeatureView(nil)))
	n.pods.handOver(s) // the ports that stay closed are logged already
	n.engines.Flows.Set(n.Services.Adapt(s.FeatureView(nil), true))
	n.engines.Flows.Set(n.Multicast.Nodes(n.Multicast.View(&s.Pipeline), n.hosts.Usable()))
	return true
}

// refresh programs what differs from the previous View. An engine that fails does not block the others; its changes stay desired.
func (n *Network) refresh(ctx context.Context, was, s *settings.Settings) error {
	if err := n.former.resume(ctx, s); err != nil {
		return err
	}
	n.pods.policies.compile(s)
	// Between two isolating modes, each lets through what only the other would drop. So pods are closed during the change.
	crossing := n.pods.closes() || was.Judges() && s.Judges() && was.Pipeline.Mode != s.Pipeline.Mode
	if crossing {
		if err := n.pods.close(ctx); err != nil {
			return err
		}
	}
	n.handOver(func() {
		n.pods.follow(s)
		n.handOverHosts(s)
	})
	rules := n.engines.Rules.Apply(ctx, s.Rules())
	// This order loses no packet that is allowed both before and after a change of the mode: packets from other nodes are handled by the new
	// mode before the pods' flows stop saying which packets they admit, and the flow that admits everything is removed last.
	n.handOver(func() { n.handOverRemotes(s) })
	if crossing || s.Policies() && !was.Policies() { // until pods' flows say which pods are isolated, these let everything through
		if err := n.engines.Flows.Apply(ctx, s.Flows()); err != nil {
			return named("flows", err)
		}
	}
	var closed map[attach.Key]error
	n.handOver(func() { closed = n.pods.handOver(s) })
	n.pods.report(closed)
	n.ports.Preplugged.Configure(s.Preplugged())
	// The switch sets the MTU and the MAC address of tun0 from its row. Desired links must agree by then.
	n.engines.Links.Set(s.Links())
	rows := n.engines.Rows.Apply(ctx, s.Rows())
	links := n.engines.Links.Apply(ctx, s.Links())
	n.handOver(func() { n.engines.Flows.Set(n.Services.Adapt(s.FeatureView(nil), false)) })
	flows := n.engines.Flows.Apply(ctx, s.Flows())
	return errors.Join(
		named("node rules", rules), named("switch", rows), named("node links", links), named("flows", flows),
	)
}

// handOverRemotes hands over the flows of the remote hosts that handOverHosts has compiled, with multicast as it is now. The caller holds
// updating.
func (n *Network) handOverRemotes(s *settings.Settings) {
	maps.Copy(n.views.remote, n.Multicast.Nodes(n.Multicast.View(&s.Pipeline), n.hosts.Usable()))
	n.engines.Flows.Set(n.views.remote)
	n.views.remote = nil
}

// compileRemotes returns the fragments of the remote hosts that differ from those of the previous call, or of all.
func (n *Network) compileRemotes(s *settings.Settings, hosts []clusternetwork.HostSubnet, all bool) remotes.Fragments {
	f, changed := n.hosts.Update(remotes.Config{Pipeline: &s.Pipeline, Host: &s.Host, All: all, Log: n.opts.Log}, hosts)
	if all || changed {
		maps.Copy(f.Flows, n.Multicast.Nodes(n.Multicast.View(&s.Pipeline), n.hosts.Usable()))
	}
	return f
}

// refreshRemotes programs remote hosts that differ, when nothing else in the View does.
func (n *Network) refreshRemotes(ctx context.Context, s *settings.Settings, hosts []clusternetwork.HostSubnet) error {
	var changed remotes.Fragments
	var rules, flows func(context.Context) error
	n.handOver(func() {
		changed = n.compileRemotes(s, hosts, false)
		n.pods.followNodes(s, hosts)
		flows, rules = reconcile.Submit(n.engines.Flows, changed.Flows), reconcile.Submit(n.engines.Rules, changed.Rules)
	})
	if len(changed.Flows) == 0 {
		return nil
	}
	n.views.incomplete = true
	if err := errors.Join(named("node rules", rules(ctx)), named("flows", flows(ctx))); err != nil {
		return err
	}
	n.views.incomplete = false
	return nil
}

func named(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// CheckHostEnds starts a check of all host veths, which restores what another program changed. It does not wait.
func (n *Network) CheckHostEnds() { n.ports.Ends.Verify() }

// HostEndChanged handles an event with the new state of a host veth. One that is being created is compared once it is complete. It does not
// wait.
func (n *Network) HostEndChanged(name string, now podlink.HostEnd) {
	if n.pods.settings.Load() != nil { // otherwise all are checked once the engines run
		n.ports.Ends.Changed(name, now)
	}
}

// Closed returns the attachments whose ports are closed although they are attached, with the reasons.
func (n *Network) Closed() map[reconcile.Owner]error { return n.pods.closed() }

// Ready returns nil when pods can be attached, otherwise what the network waits for.
func (n *Network) Ready() error {
	if n.pods.settings.Load() != nil {
		return nil
	}
	return errors.New(*n.waiting.Load())
}

// owner returns the owner of an attachment's fragments.
func owner(key attach.Key) reconcile.Owner { return reconcile.Owner(key.Owner()) }
