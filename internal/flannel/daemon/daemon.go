// Package daemon is `weft flanneld`: it maintains one node's lease, connects the node with the others by their leases, and writes the
// node's subnet for the plugin.
package daemon

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

	"weft.dev/weft/internal/flannel/extension"
	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/flannel/subnetenv"
	"weft.dev/weft/internal/flannel/uplink"
	"weft.dev/weft/internal/link/whole"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/reconcile"
)

// Store keeps the leases of all nodes.
type Store interface {
	// Config returns the network configuration, as soon as there is a valid one.
	Config(ctx context.Context) (netconf.Config, error)
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
	links   *reconcile.Loop[whole.Key, whole.Item]
	rules   *reconcile.Loop[nft.Key, nft.Item]
	// commands are the commands of the extension backend.
	commands *reconcile.Loop[extension.Key, extension.Item]
	engine   *whole.Engine
	nft      *ruleset.Engine
	started  bool
	ahead    bool           // what was programmed has been read ahead
	ranges   []netip.Prefix // the ranges of all networks so far
	firewall *firewall
	served   atomic.Bool // a lease has been in effect
	sighted  atomic.Bool // flanneld was detected on this node

	// mu guards what follows.
	mu      sync.Mutex
	present *presence
	// handed are the leases of all generations so far whose fragments the engines have. waiting are nftables items of added or removed peers
	// that wait for the generation's own rules.
	handed  map[string]bool
	waiting map[reconcile.Owner]map[nft.Key]nft.Item
}

// presence is the state of one generation: what the engines have for the leases.
type presence struct {
	config  netconf.Config
	uplink  uplink.Options
	view    *fabric.View
	own     lease.Own
	leases  *lease.Book       // of other nodes
	refused map[string]string // what was last logged about them, by name
	known   chan struct{}     // closed with the first complete update
	restart chan error
	offload offload
	watched watches
	// ruled reports that the generation's own rules are handed over, so that the peers' need not wait.
	ruled bool
}

// New returns a daemon.
func New(options Options) *Daemon {
	d := &Daemon{options: options, handed: map[string]bool{}, waiting: map[reconcile.Owner]map[nft.Key]nft.Item{}}
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
	running.Go(func() { d.reportBeside("") })
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
	view, options, err := d.view(ctx, config)
	if err != nil {
		return err
	}
	if err := d.identify(ctx, view); err != nil {
		return err
	}
	// The engines live as long as the daemon, longer than the generation that opens them. What is programmed is read while the store is asked
	// for leases.
	if err := d.open(life, running, config); err != nil {
		return err
	}
	watched, err := readAhead(ctx, d, running)
	if err != nil {
		return err
	}
	p, err := d.prepare(ctx, config, view, options)
	if err != nil {
		return err
	}
	p.watched = watched
	d.begin(p)
	failed, reported := make(chan error, 1), make(chan struct{})
	defer func() { // the next generation changes what the store knows
		cancel()
		<-reported
	}()
	running.Go(func() {
		defer close(reported)
		if err := d.options.Store.Run(ctx, p.own.Lease, func(update lease.Update) { d.report(p, update) }); err != nil && ctx.Err() == nil {
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
	d.forget(p)
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
		d.probeOffload(ctx, p)
	})
	return d.follow(ctx, p, failed)
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
	ours := lease.Own{Lease: own, Network: config.Network, Network6: config.IPv6Network}
	return &presence{
		config: config, uplink: options, view: view, own: ours, leases: lease.NewBook(ours), refused: map[string]string{},
		known: make(chan struct{}), restart: make(chan error, 1),
		offload: offload{ask: make(chan struct{}, 1)},
	}, nil
}

// ownOwner is the owner of the node's own fragment, peerOwner the prefix of the owners of other nodes'.
const (
	ownOwner  reconcile.Owner = "node"
	peerOwner reconcile.Owner = "lease/"
)

// open starts the engines, in the first generation.
func (d *Daemon) open(ctx context.Context, running *sync.WaitGroup, config netconf.Config) error {
	for _, network := range []netip.Prefix{config.Network, config.IPv6Network} {
		if network.IsValid() && !slices.Contains(d.ranges, network) {
			d.ranges = append(d.ranges, network) // former ones stay: routes into them are removed
		}
	}
	if d.started {
		d.engine.SetRanges(d.ranges, others(config.Backend))
		return nil
	}
	var err error
	if d.engine, err = whole.NewEngine(whole.Options{Owns: fabric.Owns, Log: d.options.Log}); err != nil {
		return err
	}
	d.engine.SetRanges(d.ranges, others(config.Backend))
	if d.nft, err = ruleset.NewEngine(ruleset.Options{Tables: host.Tables(), Foreign: d.options.Open}); err != nil {
		d.engine.Close()
		return err
	}
	d.started = true
	d.links = reconcile.NewLoop(d.engine, reconcile.Options[whole.Key, whole.Item]{Name: "links", Log: d.options.Log})
	d.rules = reconcile.NewLoop(d.nft, reconcile.Options[nft.Key, nft.Item]{Name: "nftables", Log: d.options.Log, Keep: d.spare})
	d.firewall = &firewall{engine: d.nft, loop: d.rules, log: d.options.Log}
	d.commands = reconcile.NewLoop(extension.NewEngine(d.options.Log), reconcile.Options[extension.Key, extension.Item]{Name: "commands", Log: d.options.Log})
	running.Go(func() { _ = d.commands.Run(ctx) })
	running.Go(func() {
		defer d.engine.Close()
		_ = d.links.Run(ctx)
	})
	running.Go(func() {
		defer d.nft.Close()
		_ = d.rules.Run(ctx)
	})
	return nil
}

// watches are those of readAhead. Each function ends one.
type watches struct{ links, rules context.CancelFunc }

// readAhead makes the engines read what is programmed before their first state is known. The store may take long to return leases:
// what another program changes meanwhile is read again. Otherwise rules that are gone would count as in effect, and the tunnel would be
// open to all hosts. Rules stay watched until follow does it, links until their first commit, which has thousands of events of its own.
func readAhead(ctx context.Context, d *Daemon, running *sync.WaitGroup) (watches, error) {
	linkCtx, links := context.WithCancel(ctx)
	ruleCtx, rules := context.WithCancel(ctx)
	changes, err := d.engine.Watch(linkCtx)
	drifts, wrong := d.nft.Monitor(ruleCtx)
	if err := errors.Join(err, wrong); err != nil {
		links()
		rules()
		return watches{}, err
	}
	<-drifts // the watch has begun
	running.Go(func() {
		for range changes {
			d.links.Outdate()
		}
	})
	running.Go(func() {
		for drift := range drifts {
			if drift.All || drift.InCare {
				d.rules.Resync()
			} else {
				d.rules.Outdate() // the rules in other programs' chains
			}
		}
	})
	if d.ahead { // by a former generation, for its ranges and tables; it may have ended before its first state
		d.links.Outdate()
		d.rules.Outdate()
		return watches{links, rules}, nil
	}
	d.ahead = true
	d.links.ReadAhead()
	d.rules.ReadAhead()
	return watches{links, rules}, nil
}

// others reports whether other programs add the routes to other nodes' pods.
func others(backend netconf.Backend) bool {
	switch backend.(type) {
	case netconf.Alloc, netconf.Extension:
		return true
	}
	return false
}

// establish brings everything into effect, publishes it to the other nodes, and then to the plugin and the cluster.
func (d *Daemon) establish(ctx context.Context, p *presence) error {
	own, config := p.own.Lease, p.config
	flags := d.options.Flags
	d.wait("programming the node's rules") // before the devices: the tunnel is closed to hosts that are not nodes
	d.firewall.traffic = nil
	if d.options.Open && flags.Forward {
		d.firewall.traffic = Traffic(config.Network, config.IPv6Network)
		d.firewall.look(ctx) // first, so that what an earlier process opened stays open
	}
	if err := programRules(ctx, d, p); err != nil {
		return fmt.Errorf("program the node's rules: %w", err)
	}
	d.wait("programming the node's devices")
	p.watched.links()
	if err := d.links.Start(ctx, map[reconcile.Owner]fabric.Fragment{ownOwner: p.view.Own(own)}); err != nil {
		err = fmt.Errorf("program the node's devices: %w", err)
		if d.served.Load() && ctx.Err() == nil {
			return &restartError{err, true} // the interface may have been removed again
		}
		return err
	}
	d.wait("programming other nodes' addresses")
	if err := d.rules.Apply(ctx, nil); err != nil {
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

// programRules brings the node's own rules into effect, and hands over the addresses of other nodes. It commits both in one transaction if
// the node has a tunnel device, through which packets arrive already, or an earlier process's rules, whose addresses would be removed
// first. Otherwise it does not wait for the addresses: nft(8) takes a while for thousands of them, and the devices are made meanwhile.
func programRules(ctx context.Context, d *Daemon, p *presence) error {
	present, err := hasTunnel()
	if err == nil && !present {
		present, err = hasRules()
	}
	if err != nil {
		return err
	}
	if present {
		return d.rules.Start(ctx, d.rule(p))
	}
	if err := d.rules.Start(ctx, map[reconcile.Owner]map[nft.Key]nft.Item{ownOwner: d.nodeRules(p).Rules()}); err != nil {
		return err
	}
	d.rule(p)
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
func (d *Daemon) nodeRules(p *presence) *host.Config {
	flags, own := d.options.Flags, p.own.Lease
	rules := &host.Config{Masquerade: flags.Masq, SequentialPorts: flags.SequentialPorts, Tunnel: tunnel(p.config), Pods: d.options.Pods}
	rules.Families[0] = host.Family{Network: p.config.Network, Subnet: own.Subnet, Local: p.view.Uplink.Addr}
	rules.Families[1] = host.Family{Network: p.config.IPv6Network, Subnet: own.Subnet6, Local: p.view.Uplink.Addr6}
	return rules
}
