package engines

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/node/datapath"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/steps"
)

// Switch is the part of the engines that needs Open vSwitch.
type Switch struct {
	options   *Options
	handovers *node.Handovers
	// kernel is read again after the switch's daemon has restarted: it creates the links of internal ports.
	kernel *Kernel
	// tunnels are resolved in the userspace datapath.
	tunnels *datapath.Neighbours

	// opening serialises Open. opened is set once Open vSwitch is open; the fields below are then set too.
	opening sync.Mutex
	opened  atomic.Bool

	// Datapath is the bridges' datapath type.
	Datapath string
	Database *ovsdb.Engine
	Rows     *reconcile.Loop[ovsdb.Key, ovsdb.Row]
	Bridges  map[string]*node.Flows
	tracked  *datapath.Connections
	purges   *purges
}

func newSwitch(options *Options, handovers *node.Handovers, kernel *Kernel) *Switch {
	return &Switch{options: options, handovers: handovers, kernel: kernel, tunnels: datapath.NewNeighbours(options.Log)}
}

// IsOpen reports whether Open vSwitch is open.
func (s *Switch) IsOpen() bool { return s.opened.Load() }

// Flows returns the loop of the flows of the overlay's bridge.
func (s *Switch) Flows() *node.FlowLoop { return s.Bridges[host.Bridge].Loop }

func (s *Switch) flows() *bridge.Engine { return s.Bridges[host.Bridge].Engine }

// Tunnel sets the remote ends of the overlay's tunnels.
func (s *Switch) Tunnel(remotes []clusternetwork.HostSubnet) { s.tunnels.Set(remotes) }

// Starter starts what keeps Open vSwitch in step: flows first, then rows.
type Starter struct {
	flows, rows func()
}

// Starter returns a starter that runs loops, connections and followers of other programs' changes in the group until ctx ends.
func (s *Switch) Starter(ctx context.Context, group *errgroup.Group) Starter {
	loops := s.LoopStarter(ctx, group)
	return Starter{
		flows: func() {
			loops.flows()
			for _, bridge := range s.Bridges {
				group.Go(func() error { return s.followFlows(ctx, bridge) })
			}
		},
		rows: func() {
			loops.rows()
			group.Go(func() error { return s.followRows(ctx) })
			if s.Datapath == ovsdb.DatapathNetdev {
				group.Go(func() error { return s.tunnels.Run(ctx) })
				group.Go(func() error {
					s.purgeFlows(ctx)
					return nil
				})
			}
		},
	}
}

// LoopStarter returns a starter that runs only the loops, and the connections that they need: for a dry run.
func (s *Switch) LoopStarter(ctx context.Context, group *errgroup.Group) Starter {
	return Starter{
		flows: func() {
			for _, bridge := range s.Bridges {
				group.Go(func() error { return bridge.Loop.Run(ctx) })
				group.Go(func() error { return steps.UnlessEnded(ctx, bridge.Engine.Run(ctx)) })
			}
		},
		rows: func() { group.Go(func() error { return s.Rows.Run(ctx) }) },
	}
}

// Open connects to Open vSwitch if it is not connected yet, and starts its loops. It waits for the switch's database until ctx ends. If the
// bridge exists, its flows are read while the database is copied.
func (s *Switch) Open(ctx context.Context, start Starter) error {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.opened.Load() {
		return nil
	}
	var names []string
	for _, bridge := range s.options.care().Bridges {
		names = append(names, bridge.Name)
	}
	if _, err := os.Stat(s.socket(host.Bridge)); err == nil && !s.options.Dry {
		if err := s.openFlows(ctx, start); err != nil {
			return err
		}
	}
	database, err := ovsdb.Open(ctx, ovsdb.Config{
		Endpoint: "unix:" + filepath.Join(s.options.OVSRunDir, "db.sock"), Bridges: names, Logger: s.options.Log,
	})
	if err != nil {
		return err
	}
	s.Database = database
	if err = s.openRows(ctx); err == nil {
		err = s.openFlows(ctx, start)
	}
	if err != nil {
		database.Close()
		return err
	}
	s.handovers.OnChange(s.Rows.KeepChanged)
	s.opened.Store(true)
	start.rows()
	return nil
}

// openRows makes the loop of the switch's database.
func (s *Switch) openRows(ctx context.Context) error {
	var err error
	if s.Datapath, err = chooseDatapath(ctx, s.Database, s.options.Datapath); err != nil {
		return err
	}
	s.Rows = reconcile.NewLoop(readOnly(s.options.Dry, s.Database), reconcile.Options[ovsdb.Key, ovsdb.Row]{
		Name: NameRows, Log: s.options.Log, Settled: s.options.Settled, Keep: s.handovers.KeepRow,
		Observe: func(event reconcile.Event) {
			s.options.observe(event)
			if event.Read {
				return
			}
			// The daemon makes and removes links, and flows go with their bridge.
			s.kernel.Links.Outdate()
			for _, bridge := range s.Bridges {
				bridge.Loop.Outdate()
			}
		},
	})
	return nil
}

// socket is where a bridge takes OpenFlow connections.
func (s *Switch) socket(bridge string) string {
	return filepath.Join(s.options.OVSRunDir, bridge+".mgmt")
}

// openFlows makes the loops of the bridges' flows and starts them, unless that is done.
func (s *Switch) openFlows(ctx context.Context, start Starter) error {
	if s.Bridges != nil {
		return nil
	}
	s.purges = newPurges(s.options.Log, func(ctx context.Context) error { return s.tracked.Purge(ctx) })
	bridges := map[string]*node.Flows{}
	for _, b := range s.options.care().Bridges {
		engine := bridge.NewEngine(bridge.Config{
			Address: s.socket(b.Name), Last: b.IsNote, OnBundle: s.options.Metrics.Bundle, OnPacket: s.options.Packet,
		})
		flows, err := s.flowEngine(ctx, b.Name, engine)
		if err != nil {
			return err
		}
		bridges[b.Name] = &node.Flows{Engine: engine, Loop: reconcile.NewLoop(flows, reconcile.Options[openflow.Key, openflow.Entry]{
			Name: flowsOf(b.Name), Log: s.options.Log, Settled: s.options.Settled, Encode: openflow.Encode, Seal: b.Note,
			Observe: func(event reconcile.Event) {
				s.options.observe(event)
				s.purges.after(event)
			},
		})}
	}
	s.Bridges = bridges
	s.tracked = &datapath.Connections{RunDir: s.options.OVSRunDir, Flows: s.flows()}
	start.flows()
	return nil
}

// purgeFlows purges the datapath after changes of flows, if the release of Open vSwitch needs it, or is unknown.
func (s *Switch) purgeFlows(ctx context.Context) {
	if version, err := s.Database.Version(ctx); err != nil || mistakesFlows(version) {
		s.purges.run(ctx)
	}
}

// Settle waits until the datapath uses the flows that are committed.
func (s *Switch) Settle(ctx context.Context) error { return s.tracked.Settle(ctx) }

// flowsOf returns the name of the engine of a bridge's flows.
func flowsOf(bridge string) string {
	if bridge == host.Bridge {
		return NameFlows
	}
	return NameFlows + " " + bridge
}

// chooseDatapath returns the bridge's datapath type: the requested one, if it works on this node.
func chooseDatapath(ctx context.Context, rows *ovsdb.Engine, asked string) (string, error) {
	have, err := rows.Datapath(ctx)
	if err != nil {
		return "", err
	}
	if asked == DatapathAuto {
		return have.Best(), nil
	}
	if !have.Supports(asked) {
		return "", fmt.Errorf("datapath %s: it does not work here (the switch has %v, the kernel's module is there: %v); use %s",
			asked, have.Types, have.Kernel, have.Best())
	}
	return asked, nil
}

func (s *Switch) close() {
	if s.opened.Load() {
		s.Database.Close()
	}
}

func (s *Switch) resync() {
	if !s.opened.Load() {
		return
	}
	s.Rows.Resync()
	for _, bridge := range s.Bridges {
		bridge.Loop.Resync()
	}
}

// followRows rereads everything that a restart of the switch's daemon may have removed: the daemon creates the links of internal ports, and
// holds the flows.
func (s *Switch) followRows(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-s.Database.Events():
			if !ok {
				return nil
			}
			s.Rows.Resync()
			if event.Kind == ovsdb.EventReconnected {
				s.options.Metrics.Connected("ovsdb")
			}
			if event.Kind == ovsdb.EventSwitchRestarted {
				s.options.Metrics.Connected("switch")
				s.kernel.Links.Resync()
				for _, bridge := range s.Bridges {
					bridge.Loop.Resync()
				}
				s.tunnels.Again()
			}
		}
	}
}

func (s *Switch) followFlows(ctx context.Context, bridge *node.Flows) error {
	for {
		event, err := bridge.Engine.Next(ctx)
		if err != nil {
			return steps.UnlessEnded(ctx, err)
		}
		if event.Connected {
			s.options.Metrics.Connected("openflow")
		}
		if event.Lost != nil {
			bridge.Loop.Outdate()
		}
		switch {
		case event.Connected:
			bridge.Loop.ReadAhead()
		case event.Unclear || len(event.Drift) > 0:
			bridge.Loop.Resync()
		}
	}
}

// Bridge returns a network's bridge, with its flows; ok is false if no network of this node has it, or Open vSwitch is not open.
func (s *Switch) Bridge(name string) (bridge node.Bridge, flows *node.Flows, ok bool) {
	if !s.IsOpen() || s.Bridges[name] == nil {
		return node.Bridge{}, nil, false
	}
	all := s.options.care().Bridges
	return all[slices.IndexFunc(all, func(b node.Bridge) bool { return b.Name == name })], s.Bridges[name], true
}

// otherBridges returns the loops of bridges other than the overlay's that have desired flows, sorted by name.
func (s *Switch) otherBridges() iter.Seq2[string, *node.FlowLoop] {
	return func(yield func(string, *node.FlowLoop) bool) {
		if !s.IsOpen() {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(s.Bridges)) {
			loop := s.Bridges[name].Loop
			if name != host.Bridge && len(loop.Owners()) > 0 && !yield(name, loop) {
				return
			}
		}
	}
}
