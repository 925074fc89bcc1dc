package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/ovsport"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/vpc/binding"
)

// owner is the owner of fragments that belong to no attachment.
const owner reconcile.Owner = binding.Network

const (
	// geneveOverhead is the overhead of Geneve with OVN's options: outer IPv4, UDP and Geneve headers with OVN's option, and the inner
	// Ethernet header (ovn-architecture(7)).
	geneveOverhead = 58
	// fallbackMTU is that of pods on a node without a default route, whose uplink is unknown.
	fallbackMTU = 1400
)

// Delays before rows that could not be written are tried again.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Network is the network of VPCs on one node.
type Network struct {
	*Attacher
	node    *node.Node
	deps    network.Deps
	options Options
	ips     *ipObjects // nil: the addresses are others
	gates   *gateways
	handed  chan struct{}
	// changed wakes the goroutine that restores rows that other programs have changed.
	changed chan struct{}

	mu sync.Mutex
	// closed are attachments whose traffic was stopped: their rows are not restored.
	closed map[attach.Key]bool
	// waits is why pods cannot be attached yet; nil if they can.
	waits error
}

// New returns the network. It changes nothing before Run.
func New(n *node.Node, deps network.Deps, options Options) *Network {
	v := &Network{
		node: n, deps: deps, options: options, handed: make(chan struct{}), changed: make(chan struct{}, 1), closed: map[attach.Key]bool{},
		waits: errors.New("the watch of IP objects and the database of Open vSwitch have not answered yet"),
	}
	if v.deps.Log == nil {
		v.deps.Log = slog.New(slog.DiscardHandler)
	}
	if v.deps.Changed == nil {
		v.deps.Changed = func() {}
	}
	config := Config{Addresses: options.Addresses, Links: n.Pods, MTU: fallbackMTU}
	if config.Addresses == nil {
		v.ips = newIPObjects(deps.Objects, deps.API)
		config.Addresses = v.ips
	}
	v.Attacher = NewAttacher(config)
	v.gates = newGateways(n, v.deps)
	return v
}

// Run implements network.Runner.
func (v *Network) Run(ctx context.Context) error {
	ports, err := ovsport.Open(ctx, ovsport.Config{Endpoint: v.options.Database, Bridge: Bridge, Logger: v.deps.Log, Changed: v.wake})
	if err != nil {
		return fmt.Errorf("VPCs: %w", err)
	}
	defer ports.Close()
	mtu := fallbackMTU
	if uplink, err := v.node.Pods.MacvlanParent(ctx, ""); err == nil && uplink.MTU > geneveOverhead {
		mtu = uplink.MTU - geneveOverhead
	}
	v.mu.Lock()
	v.config.Ports, v.config.MTU = ports, mtu
	v.mu.Unlock()
	if err := v.start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is why
		}
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		v.gates.run(ctx)
		return nil
	})
	group.Go(func() error {
		v.keep(ctx, ports)
		return nil
	})
	if v.options.Join != nil {
		group.Go(func() error { return v.join(ctx) })
	}
	return group.Wait() //nolint:wrapcheck // join says what failed
}

// start programs the guard, and waits until pods can be attached.
func (v *Network) start(ctx context.Context) error {
	if err := v.node.Rules.Start(ctx, map[reconcile.Owner]map[nft.Key]nft.Item{owner: guard()}); err != nil {
		return fmt.Errorf("guard of VPCs: %w", err)
	}
	if err := v.node.Links.Start(ctx, map[reconcile.Owner]map[link.Key]link.Item{owner: {}}); err != nil {
		return fmt.Errorf("links of VPCs: %w", err)
	}
	close(v.handed)
	if v.ips != nil {
		if err := v.ips.watch(ctx); err != nil {
			return err
		}
	}
	v.mu.Lock()
	v.waits = nil
	v.mu.Unlock()
	v.deps.Changed()
	return nil
}

func (v *Network) wake() {
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

// keep restores the rows of attached pods whenever the switch's ports have changed, until ctx ends.
func (v *Network) keep(ctx context.Context, ports *ovsport.Ports) {
	delay := firstRetry
	for {
		var again <-chan time.Time
		if err := v.restore(ctx, ports); err != nil && ctx.Err() == nil {
			v.deps.Log.Warn("ports of pods in VPCs could not be put back, trying again", "error", err)
			timer := time.NewTimer(delay)
			again, delay = timer.C, min(2*delay, lastRetry)
		} else {
			delay = firstRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-v.changed:
		case <-again:
		}
	}
}

// restore restores the rows of attached pods that are missing or altered.
func (v *Network) restore(ctx context.Context, ports *ovsport.Ports) error {
	recs := v.deps.Records.Attached()
	if len(recs) == 0 {
		return nil
	}
	have, err := ports.List(ctx)
	if err != nil {
		return err //nolint:wrapcheck // it names the bridge
	}
	var missing []ovsport.Port
	v.mu.Lock()
	for i := range recs {
		port, err := portOf(&recs[i])
		if err == nil && have[port.Device] != port && !v.closed[recs[i].Key()] {
			missing = append(missing, port)
		}
	}
	v.mu.Unlock()
	if len(missing) == 0 {
		return nil
	}
	v.deps.Log.Info("putting back ports of pods in VPCs", "ports", len(missing))
	return ports.Put(ctx, missing...) //nolint:wrapcheck // it names the ports
}

// HandedOver implements network.Runner.
func (v *Network) HandedOver() <-chan struct{} { return v.handed }

// Ready implements network.Network.
func (v *Network) Ready() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.waits
}

// running returns an error until Run has opened the switch's database.
func (v *Network) running() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.config.Ports == nil {
		return cni.Errorf(cni.CodeTryAgainLater, "the network of VPCs has not started yet")
	}
	return nil
}

// Plan implements network.Network.
func (v *Network) Plan(ctx context.Context, req *cni.Request, at placement.Decision, inUse attach.InUse) (attach.Record, error) {
	if err := v.running(); err != nil {
		return attach.Record{}, err
	}
	return v.Attacher.Plan(ctx, req, at, inUse)
}

// Connect implements network.Network.
func (v *Network) Connect(ctx context.Context, rec *attach.Record) (*types100.Result, error) {
	if err := v.running(); err != nil {
		return nil, err
	}
	v.mu.Lock()
	delete(v.closed, rec.Key())
	v.mu.Unlock()
	if gatewayOf(rec) == "" {
		return v.Attacher.Connect(ctx, rec)
	}
	of, err := v.gates.prepare(ctx, rec)
	if err != nil {
		return nil, err
	}
	return v.connect(ctx, rec, of)
}

// Close implements network.Network.
func (v *Network) Close(ctx context.Context, rec attach.Record) error {
	v.mu.Lock()
	v.closed[rec.Key()] = true
	v.mu.Unlock()
	err := v.Attacher.Close(ctx, rec)
	if gatewayOf(&rec) != "" {
		err = errors.Join(err, v.gates.disconnect(ctx, &rec))
	}
	return err
}

// Remove implements network.Network.
func (v *Network) Remove(ctx context.Context, recs []attach.Record) map[attach.Key]error {
	failed := v.Attacher.Remove(ctx, recs)
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range recs {
		if failed[recs[i].Key()] == nil {
			delete(v.closed, recs[i].Key())
			v.gates.removed(recs[i].Key())
		}
	}
	return failed
}

// Check implements network.Network.
func (v *Network) Check(ctx context.Context, rec attach.Record) error {
	if err := v.running(); err != nil {
		return err
	}
	return v.Attacher.Check(ctx, rec)
}
