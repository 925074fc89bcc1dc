// Package engines has the engines of one node, each with its loop: links and rules of the kernel, which every node has, and rows and flows
// of Open vSwitch, which are opened once a network needs them.
package engines

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/agent/firewall"
	"weft.dev/weft/internal/hostport/publish"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay"
	overlaynode "weft.dev/weft/internal/overlay/node"
	"weft.dev/weft/internal/overlay/node/datapath"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Names of the engines in logs, errors and metrics.
const (
	NameRows  = "ovsdb"
	NameLinks = "link"
	NameRules = "nft"
	NameFlows = overlaynode.EngineFlows
)

// Values of Options.Datapath.
const (
	DatapathAuto   = "auto"
	DatapathSystem = "system"
	DatapathNetdev = "netdev"
)

// Options are the options of the engines. All functions are required, and must not block.
type Options struct {
	// Cares are what the networks of the node manage, by their names.
	Cares map[string]node.Care
	// OVSRunDir is the directory of the switch's sockets: db.sock and <bridge>.mgmt.
	OVSRunDir string
	// Datapath is the switch's datapath: DatapathAuto (the kernel's if the module is available), DatapathSystem or DatapathNetdev.
	Datapath string
	// Verify is the interval at which everything is read back.
	Verify time.Duration
	// Dry says that engines are read but not written.
	Dry bool
	// Drift is called for each commit, and reports what another program had changed.
	Drift func(reconcile.Event)
	// Settled is called when the state of an engine may have changed.
	Settled func()
	// NodeChanged is called when the interface with the node's address or the host firewall may have changed, and AddressesChanged when
	// addresses that other programs manage may have changed.
	NodeChanged, AddressesChanged func()
	// Packet is called for each packet that the switch reports.
	Packet  func(*openflow.PacketIn)
	Metrics *metrics.Agent
	Log     *slog.Logger
}

// observe counts a commit, and reports what another program had changed.
func (o *Options) observe(event reconcile.Event) {
	o.Metrics.Commit(event)
	o.Drift(event)
}

// care returns the union of all networks' cares.
func (o *Options) care() node.Care { return node.Union(slices.Collect(maps.Values(o.Cares))...) }

// Engines are the node's engines.
type Engines struct {
	Kernel *Kernel
	Switch *Switch
	// Handovers keep the state of networks that have not handed over theirs.
	Handovers *node.Handovers
	options   *Options
}

// New opens the kernel's engines. It reads and changes nothing; that begins when the engines run and their loops start.
func New(options Options) (*Engines, error) {
	e := &Engines{options: &options, Handovers: node.NewHandovers(options.Cares)}
	var err error
	if e.Kernel, err = newKernel(e.options, e.Handovers); err != nil {
		return nil, err
	}
	e.Switch = newSwitch(e.options, e.Handovers, e.Kernel)
	return e, nil
}

// Networks returns the names of the networks whose state the engines keep.
func (e *Engines) Networks() []string { return slices.Sorted(maps.Keys(e.options.Cares)) }

// Close releases the engines' resources. It changes nothing that is programmed.
func (e *Engines) Close() {
	e.Switch.close()
	e.Kernel.close()
}

// Run runs the kernel's engines and loops in the group until ctx ends, and rereads what other programs changed.
func (e *Engines) Run(ctx context.Context, group *errgroup.Group) {
	e.Kernel.run(ctx, group)
	group.Go(func() error { return e.verifyNowAndThen(ctx) })
}

func (e *Engines) verifyNowAndThen(ctx context.Context) error {
	ticker := time.NewTicker(e.options.Verify)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			e.Kernel.resync()
			e.Switch.resync()
			e.Kernel.checkHostEnds()
		}
	}
}

// Overlay returns the engines in the form that the overlay needs. Open vSwitch is open.
func (e *Engines) Overlay() overlay.Engines {
	ends, s := &hostEnds{Pods: e.Kernel.Pods, metrics: e.options.Metrics}, e.Switch
	engines := overlay.Engines{
		Flows: s.Flows(), Rows: s.Rows, Links: e.Kernel.Links, Rules: e.Kernel.Rules, Ports: s.flows(), Pods: e.Kernel.surveyed, Preplugged: e.Kernel.surveyed,
		HostEnds: ends, Connections: s.tracked, Uplink: datapath.Uplink{}, Kernel: publish.Own{}, Macvlans: e.Kernel.Pods, Shapers: ends,
	}
	if s.Datapath == ovsdb.DatapathNetdev {
		engines.Datapath = s.tracked
	}
	return engines
}

// Failures returns what is desired but not programmed.
func (e *Engines) Failures() error {
	var errs []error
	collect := func(engine string, failures map[reconcile.Owner]error) {
		for owner, err := range failures {
			if owner == firewall.Owner {
				continue // it has a separate warning
			}
			errs = append(errs, fmt.Errorf("%s: %s: %w", engine, owner, err))
		}
	}
	collect(NameLinks, e.Kernel.Links.Failures())
	collect(NameRules, e.Kernel.Rules.Failures())
	if e.Switch.IsOpen() {
		collect(NameRows, e.Switch.Rows.Failures())
		for _, bridge := range e.Switch.Bridges {
			collect(NameFlows, bridge.Loop.Failures())
		}
	}
	return errors.Join(errs...)
}

// States returns the status of the loops. Open vSwitch is open.
func (e *Engines) States() map[string]metrics.Engine {
	flows := e.Switch.Flows()
	all := map[string]metrics.Engine{
		NameRows:  {Status: e.Switch.Rows.Status(), Programmed: e.Switch.Rows.Programmed(one)[""]},
		NameLinks: {Status: e.Kernel.Links.Status(), Programmed: e.Kernel.Links.Programmed(one)[""]},
		NameRules: {Status: e.Kernel.Rules.Status(), Programmed: e.Kernel.Rules.Programmed(one)[""]},
		NameFlows: {Status: flows.Status(), Programmed: flows.Programmed(one)[""]},
	}
	for name, loop := range e.Switch.otherBridges() {
		all[flowsOf(name)] = metrics.Engine{Status: loop.Status(), Programmed: loop.Programmed(one)[""]}
	}
	return all
}

// one is a classifier with a single class.
func one[K any](K) string { return "" }
