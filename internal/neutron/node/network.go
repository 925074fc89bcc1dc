package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/hostport/publish"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/conntrack"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/neutron/ports"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// defaultRest is how long a port rests between two pods: peers delete connections and neighbours of the former pod meanwhile.
const defaultRest = 60 * time.Second

// Network is the network on one node. It implements network.Network and network.Runner.
type Network struct {
	node    *node.Node
	vswitch *node.Switch
	deps    network.Deps
	ports   *ports.Ports
	handed  chan struct{}

	tracked   *conntrack.Table
	publisher *publish.Publisher
	shapes    *shapes
	// compiler has the flows of the networks.
	compiler *compiler
	// addresses has the addresses of Services.
	addresses *addresses
	// outdated are the connections that changes of Services have outdated.
	outdated flushes
}

var (
	_ network.Network = (*Network)(nil)
	_ network.Runner  = (*Network)(nil)
)

// New returns the network. It waits for Open vSwitch's database; it changes nothing before Run.
func New(ctx context.Context, n *node.Node, deps network.Deps) (*Network, error) {
	return newNetwork(ctx, n, deps, defaultRest)
}

func newNetwork(ctx context.Context, n *node.Node, deps network.Deps, rest time.Duration) (*Network, error) {
	vswitch, err := n.Switch(ctx)
	if err != nil {
		return nil, err
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	made := &Network{node: n, vswitch: vswitch, deps: deps, handed: make(chan struct{}), outdated: flushes{wake: make(chan struct{}, 1)}}
	made.compiler = newCompiler(n.Name, deps.Objects, deps.Log, func(f fragments) { made.flows().Loop.Set(f) })
	made.compiler.outdated = made.outdated.add
	made.addresses = &addresses{objects: deps.Objects, set: func(r rules) { n.Rules.Set(r) }}
	if deps.Events != nil {
		made.compiler.warn = func(policy client.Object, note string) {
			deps.Events.Warning(policy, "PolicyNotAsSpecified", "Enforce", note)
		}
	}
	if made.tracked, err = conntrack.New(""); err != nil {
		return nil, err //nolint:wrapcheck // it says what failed
	}
	made.publisher, made.shapes = newPublisher(n, &made.deps, made.tracked), &shapes{node: n, records: deps.Records, log: deps.Log}
	made.ports = made.newPorts(rest)
	return made, nil
}

// newPorts returns the node's ports.
func (n *Network) newPorts(rest time.Duration) *ports.Ports {
	reporter := &reporter{node: n.node, vswitch: n.vswitch, report: n.deps.Report}
	opts := ports.Options{
		Node: n.node.Name, Rest: rest, Rows: n.vswitch.Rows, Objects: n.deps.Objects, API: n.deps.API, Log: n.deps.Log,
		Links: n.node.Pods, Path: n.node.Ports,
		Shape:    podlink.Preplugged{HostGroup: host.PodGroup, TxOffloadOff: n.vswitch.Datapath == ovsdb.DatapathNetdev},
		Describe: reporter.describe, AwaitBound: n.vswitch.Database.AwaitBound,
	}
	if n.node.Elsewhere != nil {
		opts.Elsewhere = func(addr netip.Addr) (string, error) { return n.node.Elsewhere(addr, host.Device) }
	}
	made := ports.New(opts)
	reporter.counts = made.Counts
	return made
}

// Run implements network.Runner.
func (n *Network) Run(ctx context.Context) error {
	defer n.tracked.Close()
	if err := n.start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is why
		}
		return err
	}
	close(n.handed)
	n.deps.Changed()
	var group sync.WaitGroup
	group.Go(func() { n.compiler.run(ctx) })
	group.Go(func() { n.shapes.keep(ctx) })
	group.Go(func() { n.flushOutdated(ctx) })
	n.ports.Run(ctx)
	group.Wait()
	return nil
}

// start restores the state of attached pods, and hands over the complete first state.
func (n *Network) start(ctx context.Context) error {
	left, err := n.vswitch.Rows.Read(ctx)
	if err != nil {
		return fmt.Errorf("ports of a former life: %w", err)
	}
	if err := n.watch(ctx); err != nil {
		return err
	}
	if err := n.ports.Start(ctx, left, n.restore()); err != nil {
		return err //nolint:wrapcheck // it says what failed
	}
	n.compiler.hostChanged()
	n.compiler.serveAll(ctx)
	if err := n.node.Pass(ctx, Name, host.Traffic()); err != nil {
		return fmt.Errorf("rules of others: %w", err)
	}
	own := pipeline.Owner
	if err := n.node.Rules.Start(ctx, map[reconcile.Owner]map[nft.Key]nft.Item{own: host.Rules(n.deps.ClosedPorts)}); err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	if err := n.addresses.start(ctx); err != nil {
		return err
	}
	if err := n.node.Rules.Apply(ctx, nil); err != nil {
		return fmt.Errorf("rules of Services: %w", err)
	}
	if err := n.vswitch.Rows.Start(ctx, map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{own: host.Rows(n.vswitch.Datapath)}); err != nil {
		return fmt.Errorf("bridge %s: %w", pipeline.Bridge, err)
	}
	if err := n.node.Links.Start(ctx, map[reconcile.Owner]map[link.Key]link.Item{own: host.Links()}); err != nil {
		return fmt.Errorf("interface %s: %w", host.Device, err)
	}
	flows := fragments{own: openflow.Fragment(pipeline.Static())}
	if err := n.flows().Loop.Start(ctx, flows); err != nil {
		return fmt.Errorf("flows of %s: %w", pipeline.Bridge, err)
	}
	if err := n.ports.Pass(ctx); err != nil {
		n.deps.Log.Warn("ports of Neutron", "error", err)
		n.ports.WakeUp()
	}
	return ctx.Err() //nolint:wrapcheck // the caller looks at ctx
}

// restore sets the fragments of attached pods that have not been closed, and returns their records.
func (n *Network) restore() []attach.Record {
	var kept []attach.Record
	for _, rec := range n.deps.Records.Attached() {
		_, d, err := podOf(&rec)
		if err != nil {
			n.deps.Log.Error("an attachment cannot be restored", "error", err)
			continue
		}
		owner := ownerOf(&rec)
		if n.compiler.restore(&rec, scopeOf(&rec, &d), func() {
			if !ports.OnPair(&rec) {
				n.vswitch.Rows.Set(map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{owner: host.PodRows(owner, rec.HostInterface, d.Slot)})
			}
			n.node.Links.Set(map[reconcile.Owner]map[link.Key]link.Item{owner: host.Routes(rec.Addresses)})
			n.publisher.Restore(rec)
		}) {
			kept = append(kept, rec)
		}
	}
	n.publisher.Report(kept)
	return kept
}

// watch makes ports and flows follow the objects, and waits until all are known.
func (n *Network) watch(ctx context.Context) error {
	for _, kind := range append(worldKinds(), &weftv1.NeutronPort{}, &stackubev1.Network{}) {
		informer, err := n.deps.Objects.GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(true))
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
		if _, is := kind.(*stackubev1.Network); is {
			continue // it is only read
		}
		registration, err := informer.AddEventHandler(n.handler())
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
		go func() {
			<-ctx.Done()
			_ = informer.RemoveEventHandler(registration) // the informer may have ended
		}()
	}
	return nil
}

func (n *Network) flows() *node.Flows { return n.vswitch.Bridges[pipeline.Bridge] }

// HandedOver implements network.Runner.
func (n *Network) HandedOver() <-chan struct{} { return n.handed }

// Ready implements network.Network.
func (n *Network) Ready() error {
	select {
	case <-n.handed:
		return nil
	default:
		return fmt.Errorf("bridge %s is not complete yet; is the Open vSwitch daemon running?", pipeline.Bridge)
	}
}

// Check implements network.Network.
func (n *Network) Check(ctx context.Context, rec attach.Record) error {
	d, err := ports.DetailsOf(&rec)
	if err != nil {
		return err
	}
	pair, err := n.pair(&rec, &d)
	if err != nil {
		return err
	}
	owner, port := ownerOf(&rec), ports.Owner(d.Port)
	return errors.Join(n.node.Pods.Check(ctx, pair), n.node.Links.Failure(owner), n.node.Rules.Failure(owner), n.publisher.Check(ctx, &rec), n.flows().Loop.Failure(owner),
		n.vswitch.Rows.Failure(owner), n.vswitch.Rows.Failure(port))
}

func ownerOf(rec *attach.Record) reconcile.Owner { return reconcile.Owner(rec.Key().Owner()) }
