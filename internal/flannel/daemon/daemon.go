// Package daemon is `weft flanneld`: it maintains one node's lease, connects the node with the others by their leases, and writes the
// node's subnet for the plugin.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/flannel/subnetenv"
	"weft.dev/weft/internal/flannel/uplink"
	"weft.dev/weft/internal/reconcile"
)

// Store keeps the leases of all nodes.
type Store interface {
	Configuration
	// Public returns the addresses that the administrator configured this node to advertise; invalid if there are none.
	Public(ctx context.Context) ([2]netip.Addr, error)
	// Former returns this node's earlier lease.
	Former(ctx context.Context, l lease.Lease) (lease.Lease, error)
	// Acquire returns the lease with this node's subnets.
	Acquire(ctx context.Context, l lease.Lease) (lease.Lease, error)
	// Run reports other nodes' leases until ctx ends. The first update is complete.
	Run(ctx context.Context, own lease.Lease, report func(lease.Update)) error
	Publisher
}

// Configuration is the network configuration in a store.
type Configuration interface {
	// Config returns the network configuration, as soon as there is a valid one.
	Config(ctx context.Context) (netconf.Config, error)
	// Changed returns nil once there is a valid configuration that differs from the one that Config returned, or an error when ctx ends or
	// changes cannot be followed. It is called while the daemon waits for what that configuration needs; Run follows changes itself.
	Changed(ctx context.Context) error
}

// Publisher publishes the state of this node.
type Publisher interface {
	// Publish publishes the lease to other nodes, once its devices exist.
	Publish(ctx context.Context, l lease.Lease) error
	// Up reports that pods of this node can be reached.
	Up(ctx context.Context) error
}

// Options of a Daemon.
type Options struct {
	Flags *netconf.Flags
	Store Store
	// Open makes the daemon open other programs' nftables chains for packets forwarded from and to the network, if Flags.Forward is set. The
	// agent does this itself.
	Open bool
	// Pods are the pods of the agent on this node.
	Pods host.Pods
	// Established is called when a lease is in effect, and again when the node gets another one. Nil: not called.
	Established func(State)
	Log         *slog.Logger
}

// State is what this node's pods depend on.
type State struct {
	// Networks are the ranges of all pods, and Subnets those of this node's, IPv4 first; invalid if the network lacks the family.
	Networks, Subnets [2]netip.Prefix
	// MTU is that of pods' interfaces; with Masq the node masquerades packets that leave the network.
	MTU  int
	Masq bool
	// Forward requests that other programs' rules let packets forwarded from and to the networks pass.
	Forward bool
}

// Daemon is one node's daemon.
type Daemon struct {
	options Options
	ready   atomic.Pointer[string] // why it is not ready; nil once it is
	engines engines
	peers   *peers
	rival   *rival
	served  atomic.Bool // a lease has been in effect
	// inUse are the uplink's addresses that the last generation uses, at first those of existing devices to other nodes. Nil: not known.
	inUse []netip.Addr
}

// presence is the state of one generation.
type presence struct {
	config  netconf.Config
	uplink  uplink.Options
	view    *fabric.View
	own     lease.Own
	rules   *host.Config  // of the node's rules
	known   chan struct{} // closed with the first complete update
	restart chan error
	offload *offload
	watched watches

	// The peers' mu guards what follows.

	leases  *lease.Book       // of other nodes
	refused map[string]string // what was last logged about them, by name
	// ruled reports that the generation's own rules are handed over, so that the peers' need not wait.
	ruled bool
}

// New returns a daemon.
func New(options Options) *Daemon {
	d := &Daemon{options: options, engines: engines{foreign: options.Open, log: options.Log}}
	d.peers = newPeers(&d.engines, options.Log)
	d.rival = &rival{log: options.Log, served: &d.served}
	d.wait("starting")
	return d
}

func (d *Daemon) wait(reason string) { d.ready.Store(&reason) }

// Ready returns nil once pods of this node can be reached, or why not.
func (d *Daemon) Ready() error {
	if reason := d.ready.Load(); reason != nil {
		return errors.New(*reason)
	}
	return nil
}

// checkPeriod is how often everything is read back even without an event.
const checkPeriod = 10 * time.Second

// settle is how long the daemon waits for further events after an event.
const settle = 100 * time.Millisecond

// Run runs until ctx ends. What is programmed then stays.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	claim, err := sole()
	if err != nil {
		return err
	}
	defer claim.Close()
	running.Go(func() { d.rival.report("") })
	for {
		err := d.generation(ctx, &running)
		var again *restartError
		if ctx.Err() != nil {
			return nil //nolint:nilerr // asked to end
		}
		if !errors.As(err, &again) {
			return err
		}
		d.options.Log.Info("starting anew", "reason", again.reason)
		if again.pause {
			select {
			case <-ctx.Done():
			case <-time.After(uplinkRetry):
			}
		}
	}
}

// restartError ends a generation so that another one begins.
type restartError struct {
	reason error
	pause  bool // wait a moment before the next one
}

func (e *restartError) Error() string { return "starting anew: " + e.reason.Error() }

// generation serves one network configuration and one lease.
func (d *Daemon) generation(ctx context.Context, running *sync.WaitGroup) error {
	life := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.wait("waiting for the network configuration")
	config, err := d.options.Store.Config(ctx)
	if err != nil {
		return err
	}
	if config.BackendDefaulted {
		d.options.Log.Info("the network configuration has no Backend: vxlan is used")
	}
	var view *fabric.View
	var options uplink.Options
	err = d.unlessChanged(ctx, func(ctx context.Context) (err error) {
		if view, options, err = d.view(ctx, config); err == nil {
			err = d.identify(ctx, view)
		}
		return err
	})
	if err != nil {
		return err
	}
	// The engines live as long as the daemon, longer than the generation that opens them. What is programmed is read while the store is asked
	// for leases.
	if err := d.engines.open(life, running, config, d.rival.spare); err != nil {
		return err
	}
	watched, err := d.engines.readAhead(ctx, running)
	if err != nil {
		return err
	}
	var p *presence
	err = d.unlessChanged(ctx, func(ctx context.Context) (err error) {
		p, err = d.prepare(ctx, config, view, options)
		return err
	})
	if err != nil {
		return err
	}
	p.watched = watched
	d.peers.begin(p)
	failed, reported := make(chan error, 1), make(chan struct{})
	defer func() { // the next generation changes what the store knows
		cancel()
		<-reported
	}()
	running.Go(func() {
		defer close(reported)
		if err := d.options.Store.Run(ctx, p.own.Lease, func(update lease.Update) { d.peers.report(p, update) }); err != nil && ctx.Err() == nil {
			failed <- err
		}
	})
	d.wait("waiting for the leases of other nodes")
	select {
	case <-p.known:
	case err := <-failed:
		return err
	case err := <-p.restart:
		return &restartError{reason: err}
	case <-ctx.Done():
		return ctx.Err()
	}
	d.peers.forget(p)
	if err := d.establish(ctx, p); err != nil {
		return err
	}
	d.ready.Store(nil)
	d.served.Store(true)
	d.options.Log.Info("ready", "subnet", p.own.Lease.Subnet, "subnet_ipv6", p.own.Lease.Subnet6, "backend", p.config.Backend.Type(), "interface", p.view.Uplink.Name)
	probed := make(chan struct{})
	defer func() {
		cancel()
		<-probed
	}()
	running.Go(func() {
		defer close(probed)
		p.offload.run(ctx)
	})
	return d.follow(ctx, p, failed)
}

// errReconfigured is why a generation ends that still waits for what the former configuration needs.
var errReconfigured = errors.New("the network configuration changed")

// unlessChanged calls prepare, and ends it when the network configuration changes. It may wait for what only the new configuration has,
// such as a free subnet, or for what that one does not need, such as an interface with another family.
func (d *Daemon) unlessChanged(ctx context.Context, prepare func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		if d.options.Store.Changed(ctx) == nil {
			cancel(errReconfigured)
		}
	}()
	err := prepare(ctx)
	cancel(nil) // without effect on the cause, if the configuration has changed
	<-followed
	if errors.Is(context.Cause(ctx), errReconfigured) {
		return &restartError{reason: errReconfigured}
	}
	return err
}

// prepare determines the node's lease.
func (d *Daemon) prepare(ctx context.Context, config netconf.Config, view *fabric.View, options uplink.Options) (*presence, error) {
	store := d.options.Store
	d.wait("waiting for a subnet of this node")
	former, err := store.Former(ctx, view.Lease())
	if err != nil {
		return nil, err
	}
	if err := chooseMACs(view, former); err != nil {
		return nil, err
	}
	d.warnPublic(config, view)
	own, err := store.Acquire(ctx, view.Lease())
	if err != nil {
		return nil, err
	}
	p := newPresence(&d.options, config, view, own)
	p.uplink = options
	p.offload = &offload{log: d.options.Log, backend: view.Backend, ask: make(chan struct{}, 1), leases: func(use func(lease.Lease) bool) { d.peers.each(p, use) }}
	return p, nil
}

// newPresence returns the state of a generation with its own lease, before any other is known. prepare adds what needs the daemon.
func newPresence(options *Options, config netconf.Config, view *fabric.View, own lease.Lease) *presence {
	ours := lease.Own{Lease: own, Network: config.Network, Network6: config.IPv6Network}
	return &presence{
		config: config, view: view, own: ours, rules: nodeRules(options, config, view, own), leases: lease.NewBook(ours), refused: map[string]string{},
		known: make(chan struct{}), restart: make(chan error, 1),
	}
}

// establish brings everything into effect, publishes it to the other nodes, and then to the plugin and the cluster.
func (d *Daemon) establish(ctx context.Context, p *presence) error {
	own, config := p.own.Lease, p.config
	flags := d.options.Flags
	d.wait("programming the node's rules") // before the devices: the tunnel is closed to hosts that are not nodes
	d.engines.firewall.traffic = nil
	if d.options.Open && flags.Forward {
		d.engines.firewall.traffic = Traffic(config.Network, config.IPv6Network)
		d.engines.firewall.look(ctx) // first, so that what an earlier process opened stays open
	}
	if err := d.peers.programRules(ctx, p); err != nil {
		return fmt.Errorf("program the node's rules: %w", err)
	}
	d.wait("programming the node's devices")
	p.watched.links()
	if err := d.engines.links.Start(ctx, map[reconcile.Owner]fabric.Fragment{ownOwner: p.view.Own(own)}); err != nil {
		err = fmt.Errorf("program the node's devices: %w", err)
		if d.served.Load() && ctx.Err() == nil {
			return &restartError{err, true} // the interface may have been removed again
		}
		return err
	}
	d.wait("programming other nodes' addresses")
	if err := d.engines.rules.Apply(ctx, nil); err != nil {
		return fmt.Errorf("program other nodes' addresses: %w", err)
	}
	if err := d.connected(ctx, p); err != nil {
		return err
	}
	d.wait("publishing the lease")
	if err := d.options.Store.Publish(ctx, own); err != nil {
		return fmt.Errorf("publish the lease: %w", err)
	}
	env := subnetenv.Env{Subnet: own.Subnet, Subnet6: own.Subnet6, MTU: p.view.MTU(), IPMasq: flags.Masq}
	if own.Subnet.IsValid() {
		env.Networks = []netip.Prefix{config.Network}
	}
	if own.Subnet6.IsValid() {
		env.Networks6 = []netip.Prefix{config.IPv6Network}
	}
	if err := subnetenv.Write(flags.SubnetFile, &env); err != nil {
		return err
	}
	if d.options.Established != nil {
		d.options.Established(State{
			Networks: [2]netip.Prefix{config.Network, config.IPv6Network}, Subnets: [2]netip.Prefix{own.Subnet, own.Subnet6},
			MTU: p.view.MTU(), Masq: flags.Masq, Forward: flags.Forward,
		})
	}
	d.wait("setting the node's condition")
	if err := d.options.Store.Up(ctx); err != nil {
		return fmt.Errorf("set the node's condition: %w", err)
	}
	return nil
}

func tunnel(config netconf.Config) host.Tunnel {
	switch b := config.Backend.(type) {
	case netconf.VXLAN:
		return host.Tunnel{Port: b.UDPPort()}
	case netconf.IPIP:
		return host.Tunnel{IPIP: true}
	default:
		return host.Tunnel{}
	}
}

// nodeRules returns the configuration of the node's rules.
func nodeRules(options *Options, config netconf.Config, view *fabric.View, own lease.Lease) *host.Config {
	flags := options.Flags
	rules := &host.Config{Masquerade: flags.Masq, SequentialPorts: flags.SequentialPorts, Tunnel: tunnel(config), Pods: options.Pods}
	rules.Families[0] = host.Family{Network: config.Network, Subnet: own.Subnet, Local: view.Uplink.Addr}
	rules.Families[1] = host.Family{Network: config.IPv6Network, Subnet: own.Subnet6, Local: view.Uplink.Addr6}
	return rules
}
