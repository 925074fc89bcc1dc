// Package agent is Weft on one node: it watches the network's objects, keeps the node's engines in step with them, and serves the container
// runtime's requests. It is wiring: package overlay decides what is programmed.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/agent/cniconf"
	"weft.dev/weft/internal/agent/engines"
	"weft.dev/weft/internal/agent/events"
	"weft.dev/weft/internal/agent/networks"
	"weft.dev/weft/internal/agent/sysctl"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/cni/cniserver"
	"weft.dev/weft/internal/health"
	"weft.dev/weft/internal/hostport/publish"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/nodenetwork"
	"weft.dev/weft/internal/overlay"
	overlaynode "weft.dev/weft/internal/overlay/node"
	"weft.dev/weft/internal/overlay/node/hostsubnet"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/steps"
)

// agent is a running agent.
type agent struct {
	opts    Options
	clients kubernetes.Interface
	objects *overlaynode.Objects
	store   *attach.Store
	bootID  string
	waiting *waiting
	// handler serves the container runtime, with the networks in networks. places is nil if the overlay is the only network.
	handler  *lifecycle.Handler
	networks *networks.Networks
	places   *networks.Places
	// requests reports on requests, reports on the agent itself, and readiness on whether it can serve pods.
	requests  *requests
	reports   *reports
	readiness *readiness
	health    *health.Server
	metrics   *metrics.Agent
	kube      *kube
	events    *events.Recorder
	status    *hostsubnet.Writer
	// nodeNetwork reports the networks of this node.
	nodeNetwork *nodenetwork.Writer
	// kept returns the failures of the keeper; nil if there are none.
	kept func() error
	// dry says that nothing is changed (DryRun).
	dry bool
}

// Run runs an agent until ctx ends. It leaves everything programmed: pods keep their network without the agent.
func Run(ctx context.Context, opts Options) error {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return err
	}
	a := &agent{
		opts: opts, waiting: newWaiting(), metrics: metrics.NewAgent(opts.Version),
	}
	a.health = &health.Server{Profiling: opts.Profiling, Metrics: a.metrics.Handler()}
	a.kube = &kube{metrics: a.metrics}
	a.opts.Config = a.kube.wrap(opts.Config)
	if err := sysctl.Prepare(opts.Paths.ProcSys); err != nil {
		return err
	}
	if _, err := setSysctls(); err != nil {
		return err
	}
	var err error
	if a.clients, err = kubernetes.NewForConfig(a.opts.Config); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	if a.events, err = events.New(ctx, a.clients, opts.Node, a.metrics); err != nil {
		return err
	}
	if a.objects, err = overlaynode.New(a.opts.overlay(a.clients, a.events)); err != nil {
		return err
	}
	if a.nodeNetwork, err = nodenetwork.New(nodenetwork.Options{Config: a.opts.Config, Node: opts.Node, Log: opts.Log}); err != nil {
		return err
	}
	a.reports = &reports{node: opts.Node, version: opts.Version, objects: a.objects, waiting: a.waiting}
	if a.status, err = hostsubnet.New(hostsubnet.Options{
		Config: a.opts.Config, Log: opts.Log, State: a.reports.state, Own: a.objects.OwnSubnet, Hosts: a.objects.Hosts, Report: a.nodeNetwork.Set,
	}); err != nil {
		return err
	}
	a.objects.Report(a.status.Changed)
	opened, err := a.newEngines()
	if err != nil {
		return err
	}
	defer opened.Close()
	var ahead sync.WaitGroup
	ahead.Go(func() { opened.Kernel.Prefetch(ctx) })
	defer ahead.Wait()
	if a.store, err = attach.Open(Records(opts.Paths.StateDir)); err != nil {
		return err
	}
	a.reports.store = a.store
	a.requests = &requests{store: a.store, metrics: a.metrics, events: a.events, traces: opts.Traces}
	for _, broken := range a.store.Broken() {
		opts.Log.Error("unreadable attachment record: nothing is opened for it",
			"path", broken.Path, "error", broken.Err)
	}
	if err := a.serveRuntime(); err != nil {
		return errors.Join(err, a.store.Close())
	}
	return errors.Join(a.run(ctx, opened), a.store.Close())
}

// newEngines opens the kernel's engines. It reads and changes nothing; that begins when the engines run and their loops start.
func (a *agent) newEngines() (*engines.Engines, error) {
	return engines.New(engines.Options{
		Cares: a.cares(), OVSRunDir: a.opts.Paths.OVSRunDir, Datapath: a.opts.Datapath, Verify: a.opts.Verify, Dry: a.dry,
		Drift: a.events.Drift, Settled: a.statusChanged, NodeChanged: a.objects.Changed, AddressesChanged: a.objects.AddressesChanged,
		Packet: a.objects.PacketIn, Metrics: a.metrics, Log: a.opts.Log,
	})
}

// serveRuntime creates the handler of the container runtime's requests. Until a network is ready, it answers "try again later".
func (a *agent) serveRuntime() error {
	var err error
	if a.bootID, err = attach.ReadBootID(); err != nil {
		return err
	}
	a.handler = lifecycle.New(a.store, lifecycle.Options{
		BootID: a.bootID, Place: a.place, Log: a.opts.Log, Waiting: a.waiting.get,
		Removed: func(name string) { a.networks.Removed(name) },
		Default: func() (string, error) {
			name, _ := a.networks.Default()
			return name, a.networks.Decided()
		},
	})
	a.networks, err = networks.New(networks.Options{
		Kinds: a.opts.Networks, Config: a.opts.Config, Store: a.store, Handler: a.handler, Overlay: presence{a}, Log: a.opts.Log,
		OVSRunDir: a.opts.Paths.OVSRunDir, Events: events.OnObjects{Recorder: a.events}, Report: a.reportOf,
		Node: node.Node{
			Name: a.opts.Node, BootID: a.bootID, RunDir: a.opts.Paths.RunDir, StateDir: a.opts.Paths.StateDir,
			Ports: PortsNamespace(a.opts.Paths.RunDir), Verify: a.opts.Verify, Reserved: a.reserved, Observe: a.reports.tables.Add,
		},
	})
	if err != nil {
		return err
	}
	a.reports.networks = a.networks
	a.readiness = &readiness{
		clients: a.clients, node: a.opts.Node, log: a.opts.Log, networks: a.networks, overlay: presence{a}.serves,
		conf: cniconf.File{
			Dir: a.opts.Paths.CNIConfDir, Socket: Socket(a.opts.Paths.RunDir), Records: Records(a.opts.Paths.StateDir), Ports: PortsNamespace(a.opts.Paths.RunDir),
		},
	}
	if len(a.opts.Networks) == 0 {
		return nil
	}
	a.places, err = networks.NewPlaces(a.opts.Config, a.opts.Node, a.networks)
	return err
}

// place returns the network of the pod in an ADD.
func (a *agent) place(ctx context.Context, req *cni.Request) (placement.Decision, error) {
	if a.places == nil {
		return networks.PlaceOnOverlay(ctx, req)
	}
	return a.places.Place(ctx, req)
}

// presence is the overlay, for the networks.
type presence struct{ agent *agent }

// FollowPresence implements networks.Overlay.
func (p presence) FollowPresence(ctx context.Context, found func(network.Presence)) error {
	return p.agent.objects.FollowPresence(ctx, found)
}

// Ready implements networks.Overlay.
func (p presence) Ready() error {
	if r := p.agent.reports.running.Load(); r != nil {
		return r.network.Ready()
	}
	return errors.New(p.agent.waiting.get())
}

// serves reports whether the overlay runs and can serve pods.
func (p presence) serves() bool { return p.agent.reports.running.Load() != nil && p.Ready() == nil }

// reportOf returns a function that replaces a network's own section.
func (a *agent) reportOf(name string) func(weftv1.NodeNetworkSection) {
	return func(section weftv1.NodeNetworkSection) {
		section.Name = name
		a.nodeNetwork.Set(section)
	}
}

// run runs all parts until one fails or ctx ends. The CNI server stops first, so that requests in progress still find the engines. The
// engines stop last.
func (a *agent) run(ctx context.Context, opened *engines.Engines) error {
	listener, err := cniserver.Listen(Socket(a.opts.Paths.RunDir), 0)
	if err != nil {
		return err
	}
	adminListener, err := admin.Listen(filepath.Join(a.opts.Paths.RunDir, "admin", "admin.sock"), 0)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	left := &cniconf.Leftovers{Dir: a.opts.Paths.CNIConfDir, Changed: a.status.Changed}
	a.reports.left = left
	keeper := a.keeper(listener, adminListener)
	keeper.Things = append(keeper.Things, left.Thing())
	a.kept = keeper.State
	engineCtx, stopEngines := context.WithCancel(context.WithoutCancel(ctx))
	defer stopEngines()
	serving, serveCtx := errgroup.WithContext(ctx)
	loops, engineGroupCtx := errgroup.WithContext(engineCtx)

	serving.Go(func() error {
		server := &cniserver.Server{Handler: a.handler, Logger: a.opts.Log, Observe: a.requests.observe}
		return server.Serve(serveCtx, listener)
	})
	serving.Go(func() error { return a.serveHealth(serveCtx) })
	serving.Go(func() error { return a.serveMetrics(serveCtx) })
	serving.Go(func() error { return a.serveAdmin(serveCtx, adminListener) })
	serving.Go(func() error { return keepNode(serveCtx, keeper) })
	serving.Go(func() error { return a.status.Run(serveCtx) })
	serving.Go(func() error { return a.nodeNetwork.Run(serveCtx) })
	serving.Go(func() error { return a.objects.Run(serveCtx) })
	serving.Go(a.readiness.lookAhead(serveCtx))
	opened.Run(engineGroupCtx, loops)
	a.reports.engines.Store(opened)
	loops.Go(func() error { return a.handler.Run(engineGroupCtx) })
	if a.places != nil {
		serving.Go(func() error { return a.places.Run(serveCtx) })
	}
	a.serveNetworks(serveCtx, serving, networks.Running{Engines: opened, Context: engineGroupCtx, Group: loops})
	serving.Go(func() error { return a.serveNetwork(serveCtx, engineGroupCtx, opened, loops) })
	// The requests to the API server and the switch take longer, so they have begun before.
	opened.Kernel.ReadAhead(engineGroupCtx, loops, PortsNamespace(a.opts.Paths.RunDir))
	serving.Go(func() error { // a failed engine ends the agent
		select {
		case <-engineGroupCtx.Done():
			return context.Cause(engineGroupCtx)
		case <-serveCtx.Done():
			return nil
		}
	})
	err = serving.Wait()
	stopEngines()
	err = errors.Join(err, loops.Wait())
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return nil
	}
	return err
}

// serveNetworks runs the networks in the group. Networks other than the overlay need a configuration of the runtime of their own.
func (a *agent) serveNetworks(ctx context.Context, group *errgroup.Group, at networks.Running) {
	if len(a.opts.Networks) > 0 {
		a.waiting.set("waiting for the API server, which has the objects that configure networks")
		a.watchNode(at.Engines, a.networks.Ready)
		a.health.Warn(health.Check{Name: "networks", Run: a.networks.Problems})
		group.Go(func() error { return a.readiness.configure(ctx, at.Engines) })
	}
	group.Go(func() error { return a.networks.Run(ctx, at) })
}

// serveNetwork starts the overlay once it is present, keeps it in step with the objects, and reports its state.
func (a *agent) serveNetwork(ctx, engineCtx context.Context, e *engines.Engines, group *errgroup.Group) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.networks.Needed():
	}
	a.waiting.set("waiting for Open vSwitch's database at " + a.opts.Paths.OVSRunDir)
	if err := e.Switch.Open(ctx, e.Switch.Starter(engineCtx, group)); err != nil {
		return steps.UnlessEnded(ctx, err)
	}
	if len(e.Networks()) == 1 {
		e.Handovers.Done(overlay.NetworkName) // each loop starts with its complete state
	}
	network := overlay.New(e.Overlay(), a.store, overlay.Options{
		BootID: a.bootID, Records: a.handler.Records(overlay.NetworkName), Node: a.opts.Node, Log: a.opts.Log, Ports: PortsNamespace(a.opts.Paths.RunDir), Spare: a.opts.SparePorts, TenantsRealised: a.status.Changed,
		PolicyProblems:  func(key policy.Key, problems []error) { a.objects.ReportPolicyProblems(ctx, key, problems) },
		WithPods:        a.objects.PodsChanged,
		Privileged:      overlaynode.Pods{Clients: a.clients}.Privileged,
		Closed:          a.events.Closed,
		Conflict:        publish.Warnings(events.OnObjects{Recorder: a.events}),
		RuntimeCache:    a.opts.Paths.RuntimeCache,
		Reserved:        a.reserved,
		ServiceWarnings: func(owner reconcile.Owner, warnings []error) { a.objects.ReportServiceWarnings(ctx, owner, warnings) },
	})
	a.watch(network, e)
	leave := a.handler.Serve(overlay.NetworkName, network, network.HandedOver())
	a.reports.running.Store(&running{network: network, engines: e})
	group.Go(func() error {
		defer leave()
		return network.Run(engineCtx)
	})
	e.Kernel.Restore(network)

	network.Waiting("waiting for the API server")
	if err := a.objects.Begin(ctx, network); err != nil {
		return steps.UnlessEnded(ctx, err)
	}
	following, followCtx := errgroup.WithContext(ctx)
	following.Go(func() error { return a.follow(followCtx, network, e) })
	following.Go(func() error { return a.objects.Follow(followCtx, network) })
	return following.Wait()
}

// follow keeps the network in step with the objects until ctx ends.
func (a *agent) follow(ctx context.Context, network *overlay.Network, e *engines.Engines) error {
	delay := steps.FirstRetry
	last, unreported := reported{}, false
	var logged string
	for {
		var retry <-chan time.Time
		seen := a.objects.Changes().Take()
		err := a.step(ctx, network, e, &last)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is why, and is no failure
		}
		if err != nil {
			a.objects.Changes().PutBack(seen)
			network.Waiting(err.Error())
			if err.Error() != logged {
				a.opts.Log.Warn("the node is not in step", "error", err)
				logged = err.Error()
				a.events.Node(reasonNotReady, "Program", "", logged)
				unreported = !last.serving
			}
			unreported = unreported && !a.readiness.notReady(ctx, err)
			timer := time.NewTimer(delay)
			retry, delay = timer.C, min(2*delay, steps.LastRetry)
		} else {
			delay, logged = steps.FirstRetry, ""
			a.metrics.Synced(overlay.NetworkName, time.Since(seen))
		}
		a.reports.refused.Store(cmp.Or(logged, a.objects.Port().Refusal()))
		a.status.Changed()
		select {
		case <-ctx.Done():
			return nil
		case <-a.objects.Changes().Wake():
		case <-retry:
		}
	}
}

// reported is what was last reported to the runtime and the cluster.
type reported struct {
	// serving says that pods can be attached. warning is the host firewall's warning in the node's condition.
	serving bool
	warning string
}

// step programs the current objects. The first time, it then reports to the runtime and the cluster that pods can be attached.
func (a *agent) step(ctx context.Context, network *overlay.Network, e *engines.Engines, last *reported) error {
	view, err := a.program(ctx, network, e)
	if err != nil {
		return err
	}
	e.Handovers.Done(overlay.NetworkName)
	e.Switch.Tunnel(view.Remotes)
	warning := e.Kernel.Firewall.Warning()
	if last.serving && warning == last.warning {
		return nil
	}
	// Before it is known which networks are configured, pods cannot be placed; what makes it known calls configure.
	if standard, _ := a.networks.Default(); standard == overlay.NetworkName && a.networks.Decided() == nil {
		if err := a.readiness.overlayReady(ctx, warning); err != nil {
			return err
		}
	}
	last.warning = warning
	if last.serving {
		return nil
	}
	last.serving = true
	a.events.Unreadable(a.reports.closed(network))
	a.networks.Look()
	a.opts.Log.Info("serving pods", "node", a.opts.Node, "subnet", view.Local.Subnet.String(), "datapath", view.Node.Datapath)
	return nil
}

// program brings the engines in step with the current objects. With engines that only read, it is a dry run.
func (a *agent) program(ctx context.Context, network *overlay.Network, e *engines.Engines) (overlay.View, error) {
	return a.objects.Program(ctx, network, overlaynode.Host{
		Facts: func(address netip.Addr) (overlay.Node, error) {
			facts, err := e.Kernel.Facts(address)
			facts.Datapath = e.Switch.Datapath
			return facts, err
		},
		Pass: e.Kernel.PassOverlay,
	})
}

// statusChanged causes a comparison of the reported state with the agent's. In a dry run, nothing is reported.
func (a *agent) statusChanged() {
	if a.status != nil {
		a.status.Changed()
	}
}

// serveAdmin answers the requests of operators until ctx ends.
func (a *agent) serveAdmin(ctx context.Context, listener net.Listener) error {
	server := &admin.Server{
		State: func() admin.State { return a.reports.state(ctx) }, Diff: a.reports.diff, Owners: a.reports.ownersOf, Level: a.opts.LogLevel, Logger: a.opts.Log,
	}
	return server.Serve(ctx, listener)
}
