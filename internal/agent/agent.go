// Package agent is Weft on one node: it watches the network's objects, keeps the node's engines in step with them, and serves the container
// runtime's requests. It is wiring: package overlay decides what is programmed.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	weftv1 "weft.dev/weft/api/weft/v1"

	"weft.dev/weft/internal/agent/networks"
	"weft.dev/weft/internal/agent/sysctl"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/placement"

	"weft.dev/weft/internal/agent/engines"

	"weft.dev/weft/internal/agent/cniconf"

	"weft.dev/weft/internal/agent/events"

	overlaynode "weft.dev/weft/internal/overlay/node"
	"weft.dev/weft/internal/overlay/node/hostsubnet"
	"weft.dev/weft/internal/steps"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/cni/cniserver"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/health"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/nodenetwork"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
)

// Defaults of Options: the usual paths of a Kubernetes node.
const (
	DefaultOVSRunDir     = "/run/openvswitch"
	DefaultStateDir      = "/var/lib/weft"
	DefaultRunDir        = "/run/weft"
	DefaultCNIConfDir    = "/etc/cni/net.d"
	DefaultResolvConf    = "/etc/resolv.conf"
	DefaultHealthAddress = "127.0.0.1:9469"
	// DefaultSparePorts is the number of pre-plugged ports.
	DefaultSparePorts = 32
	// DefaultVerify is the interval at which all programmed state is read back without an event. It bounds the time until a change without an
	// event is reverted.
	DefaultVerify = 5 * time.Minute
)

// maxSparePorts bounds Options.SparePorts: a switch goes over all its ports whenever one changes.
const maxSparePorts = 1024

// Values of Options.Datapath.
const (
	DatapathAuto   = engines.DatapathAuto
	DatapathSystem = engines.DatapathSystem
	DatapathNetdev = engines.DatapathNetdev
)

// Options are the options of an agent.
type Options struct {
	// Config is the configuration of the API server's client. Required.
	Config *rest.Config
	// Node is the name of this node's Node object. Required.
	Node string
	// OVSRunDir is the directory of the switch's sockets: db.sock and <bridge>.mgmt. Default DefaultOVSRunDir.
	OVSRunDir string
	// StateDir is the directory of the attachment records. Default DefaultStateDir.
	StateDir string
	// RunDir is the directory of the agent's own sockets. Default DefaultRunDir.
	RunDir string
	// SparePorts is the number of pre-plugged ports. 0: each pod gets a port when it is created, with a veth interface unless its bandwidth is
	// limited.
	SparePorts int
	// CNIConfDir is the runtime's directory of network configurations. Default DefaultCNIConfDir.
	CNIConfDir string
	// ResolvConf is the file with the name servers that resolve the names in EgressNetworkPolicies. It is read before each query. Default
	// DefaultResolvConf.
	ResolvConf string
	// RuntimeCache is the directory where the container runtime stores the results of ADD. Default cni.DefaultCache.
	RuntimeCache string
	// Datapath is the switch's datapath: DatapathAuto (the kernel's if the module is available), DatapathSystem or DatapathNetdev. Default
	// DatapathAuto.
	Datapath string
	// MetadataAddresses are addresses of clouds' metadata services, of which pods reach port 53 only. Default: none, nothing is closed.
	MetadataAddresses []netip.Addr
	// ClosedNodePorts are TCP ports of nodes, and of hosts outside, that are closed to pods. Default: none.
	ClosedNodePorts []uint16
	// ProcSys is a directory where the sysctls are writable, for a process whose own /proc/sys is read-only. Default /proc/sys.
	ProcSys string
	// HealthAddress is the address of /healthz, /readyz and /metrics. Empty: not served.
	HealthAddress string
	// MetricsAddress is an additional address that serves /metrics only. Empty: not served.
	MetricsAddress string
	// Profiling also serves /debug/pprof at HealthAddress, to every client that can connect. Default: not served.
	Profiling bool
	// Verify is the interval at which everything is read back. Default DefaultVerify.
	Verify time.Duration
	// VPC says that the node serves VPCs.
	VPC bool
	// Flannel are flanneld's flags. Nil: the node serves no flannel network.
	Flannel *netconf.Flags
	// OVNNamespace is the namespace of the ConfigMap of Weft's OVN, which the node joins. Empty: other programs make the node a chassis of
	// their OVN.
	OVNNamespace string
	// Networks are the networks other than the overlay that the node may serve. Default: Kinds.
	Networks []network.Kind
	// Neutron lets the node serve pods on Neutron networks. Default: it does not, and does not watch their objects.
	Neutron bool
	// Log is the agent's log. Default: discarded.
	Log *slog.Logger
	// Traces creates the spans of the runtime's requests. Default: none are created.
	Traces trace.TracerProvider
	// LogLevel is the level of Log. It is read at each line, and can be changed while the agent runs. Default: a level that has no effect.
	LogLevel *slog.LevelVar
	// Version is the program's release, for reports. Default "dev".
	Version string
}

func (o Options) withDefaults() Options {
	for value, fallback := range map[*string]string{
		&o.OVSRunDir: DefaultOVSRunDir, &o.StateDir: DefaultStateDir, &o.RunDir: DefaultRunDir,
		&o.CNIConfDir: DefaultCNIConfDir, &o.Datapath: DatapathAuto, &o.ProcSys: sysctl.Dir, &o.ResolvConf: DefaultResolvConf,
		&o.RuntimeCache: cni.DefaultCache,
	} {
		if *value == "" {
			*value = fallback
		}
	}
	if o.Networks == nil {
		o.Networks = Kinds(&o)
	}
	if o.Verify == 0 {
		o.Verify = DefaultVerify
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Traces == nil {
		o.Traces = noop.NewTracerProvider()
	}
	if o.LogLevel == nil {
		o.LogLevel = &slog.LevelVar{}
	}
	if o.Version == "" {
		o.Version = "dev"
	}
	return o
}

// overlay returns the options of the overlay's objects. Without a recorder, as in a dry run, nothing is reported or probed.
func (o *Options) overlay(clients kubernetes.Interface, recorder *events.Recorder) overlaynode.Options {
	options := overlaynode.Options{
		Config: o.Config, Clients: clients, Node: o.Node, StateDir: o.StateDir, ResolvConf: o.ResolvConf, Log: o.Log,
		Closed:      overlay.Closed{Metadata: o.MetadataAddresses, TCPPorts: o.ClosedNodePorts},
		ClosedPorts: networks.ClosedPorts(o.Networks),
	}
	if recorder != nil {
		options.Events = recorder
	}
	return options
}

// validate returns the first error in the options.
func (o *Options) validate() error {
	switch {
	case o.Config == nil:
		return errors.New("no API server: pass a kubeconfig, or run in a pod with a service account")
	case o.Node == "":
		return errors.New("no node name: pass the name of this node's Node object")
	case o.SparePorts < 0 || o.SparePorts > maxSparePorts:
		return fmt.Errorf("spare ports %d: it is a number from 0 to %d", o.SparePorts, maxSparePorts)
	}
	for _, addr := range o.MetadataAddresses {
		if !addr.Is4() || addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() {
			return fmt.Errorf("metadata address %s: it must be an IPv4 address, such as 169.254.169.254", addr)
		}
	}
	if slices.Contains(o.ClosedNodePorts, 0) {
		return errors.New("closed node port 0: it is a number from 1 to 65535")
	}
	switch o.Datapath {
	case DatapathAuto, DatapathSystem, DatapathNetdev:
		return nil
	}
	return fmt.Errorf("datapath %q: it is one of %s, %s, %s", o.Datapath, DatapathAuto, DatapathSystem, DatapathNetdev)
}

// agent is a running agent.
type agent struct {
	opts    Options
	clients kubernetes.Interface
	objects *overlaynode.Objects
	store   *attach.Store
	waiting *waiting
	// handler serves the container runtime, with the networks in networks.
	handler  *lifecycle.Handler
	networks *networks.Networks
	places   *networks.Places
	bootID   string
	// engines are the node's engines, once they are open. They run until engineCtx ends.
	engines atomic.Pointer[engines.Engines]
	tables  engines.Tables
	health  *health.Server
	metrics *metrics.Agent
	kube    *kube
	events  *events.Recorder
	socket  string
	records string
	// running is set once the engines are open.
	running atomic.Pointer[running]
	// refused is why the node is not in step with the objects; "" if it is.
	refused atomic.Value
	status  *hostsubnet.Writer
	// nodeNetwork reports the networks of this node.
	nodeNetwork *nodenetwork.Writer
	// configured is set once the runtime's configuration has been written.
	configured atomic.Bool
	// kept returns the failures of the keeper; nil if there are none.
	kept func() error
	// left are the leftovers of OpenShift SDN; nil before the agent runs.
	left *cniconf.Leftovers
	// dry says that nothing is changed (DryRun).
	dry bool
	// toldWarning is the host firewall's warning that was last written to the node's condition.
	toldWarning string
}

// Records returns the folder of the attachment records of an agent with this state directory. A running agent holds a lock on it.
func Records(stateDir string) string { return filepath.Join(stateDir, "attachments") }

// Run runs an agent until ctx ends. It leaves everything programmed: pods keep their network without the agent.
func Run(ctx context.Context, opts Options) error {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return err
	}
	a := &agent{
		opts: opts, waiting: newWaiting(), metrics: metrics.NewAgent(opts.Version),
		socket: Socket(opts.RunDir), records: Records(opts.StateDir),
	}
	a.health = &health.Server{Profiling: opts.Profiling, Metrics: a.metrics.Handler()}
	a.kube = &kube{metrics: a.metrics}
	a.opts.Config = a.kube.wrap(opts.Config)
	if err := sysctl.Prepare(opts.ProcSys); err != nil {
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
	if a.status, err = hostsubnet.New(hostsubnet.Options{
		Config: a.opts.Config, Log: opts.Log, State: a.state, Own: a.objects.OwnSubnet, Hosts: a.objects.Hosts, Report: a.nodeNetwork.Set,
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
	if a.store, err = attach.Open(a.records); err != nil {
		return err
	}
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
		Cares: a.cares(), OVSRunDir: a.opts.OVSRunDir, Datapath: a.opts.Datapath, Verify: a.opts.Verify, Dry: a.dry,
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
		OVSRunDir: a.opts.OVSRunDir, Events: events.OnObjects{Recorder: a.events}, Report: a.reportOf,
		Node: node.Node{
			Name: a.opts.Node, BootID: a.bootID, RunDir: a.opts.RunDir, StateDir: a.opts.StateDir,
			Ports: PortsNamespace(a.opts.RunDir), Verify: a.opts.Verify, Reserved: a.reservedFor, Observe: a.tables.Add,
		},
	})
	if err != nil || len(a.opts.Networks) == 0 {
		return err
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
	if r := p.agent.running.Load(); r != nil {
		return r.network.Ready()
	}
	return errors.New(p.agent.waiting.get())
}

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
	listener, err := cniserver.Listen(a.socket, 0)
	if err != nil {
		return err
	}
	adminListener, err := admin.Listen(filepath.Join(a.opts.RunDir, "admin", "admin.sock"), 0)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	a.left = &cniconf.Leftovers{Dir: a.opts.CNIConfDir, Changed: a.status.Changed}
	keeper := a.keeper(listener, adminListener)
	keeper.Things = append(keeper.Things, a.left.Thing())
	a.kept = keeper.State
	engineCtx, stopEngines := context.WithCancel(context.WithoutCancel(ctx))
	defer stopEngines()
	serving, serveCtx := errgroup.WithContext(ctx)
	loops, engineGroupCtx := errgroup.WithContext(engineCtx)

	serving.Go(func() error {
		server := &cniserver.Server{Handler: a.handler, Logger: a.opts.Log, Observe: a.observe}
		return server.Serve(serveCtx, listener)
	})
	serving.Go(func() error { return a.serveHealth(serveCtx) })
	serving.Go(func() error { return a.serveMetrics(serveCtx) })
	serving.Go(func() error { return a.serveAdmin(serveCtx, adminListener) })
	serving.Go(func() error { return keepNode(serveCtx, keeper) })
	serving.Go(func() error { return a.status.Run(serveCtx) })
	serving.Go(func() error { return a.nodeNetwork.Run(serveCtx) })
	serving.Go(func() error { return a.objects.Run(serveCtx) })
	opened.Run(engineGroupCtx, loops)
	a.engines.Store(opened)
	loops.Go(func() error { return a.handler.Run(engineGroupCtx) })
	if a.places != nil {
		serving.Go(func() error { return a.places.Run(serveCtx) })
	}
	a.serveNetworks(serveCtx, serving, networks.Running{Engines: opened, Context: engineGroupCtx, Group: loops})
	serving.Go(func() error { return a.serveNetwork(serveCtx, engineGroupCtx, opened, loops) })
	opened.Kernel.ReadAhead(engineGroupCtx, loops, PortsNamespace(a.opts.RunDir)) // after the requests to other programs, which take longer
	serving.Go(func() error {                                                     // a failed engine ends the agent
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
		a.waiting.set("waiting for the API server to say which networks are configured")
		a.watchNode(at.Engines, a.networks.Ready)
		a.health.Warn(health.Check{Name: "networks", Run: a.networks.Problems})
		group.Go(func() error { return a.configure(ctx, at.Engines) })
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
	a.waiting.set("waiting for Open vSwitch's database at " + a.opts.OVSRunDir)
	if err := e.Switch.Open(ctx, e.Switch.Starter(engineCtx, group)); err != nil {
		return steps.UnlessEnded(ctx, err)
	}
	if len(e.Networks()) == 1 {
		e.Handovers.Done(overlay.NetworkName) // each loop starts with its complete state
	}
	network := overlay.New(e.Overlay(), a.store, overlay.Options{
		BootID: a.bootID, Records: a.handler.Records(overlay.NetworkName), Node: a.opts.Node, Log: a.opts.Log, Ports: PortsNamespace(a.opts.RunDir), Spare: a.opts.SparePorts, TenantsRealised: a.status.Changed,
		PolicyProblems:  func(key policy.Key, problems []error) { a.objects.ReportPolicyProblems(ctx, key, problems) },
		WithPods:        a.objects.PodsChanged,
		Privileged:      overlaynode.Pods{Clients: a.clients}.Privileged,
		Closed:          a.events.Closed,
		RuntimeCache:    a.opts.RuntimeCache,
		Reserved:        a.reservedFor,
		ServiceWarnings: func(owner reconcile.Owner, warnings []error) { a.objects.ReportServiceWarnings(ctx, owner, warnings) },
	})
	a.watch(network, e)
	leave := a.handler.Serve(overlay.NetworkName, network, network.HandedOver())
	a.running.Store(&running{network: network, engines: e})
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
	serving, unreported := false, false
	var logged string
	for {
		var retry <-chan time.Time
		seen := a.objects.Changes().Take()
		err := a.step(ctx, network, e, &serving)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is why, and is no failure
		}
		if err != nil {
			a.objects.Changes().PutBack(seen)
			network.Waiting(err.Error())
			if err.Error() != logged {
				a.opts.Log.Warn("the node is not in step", "error", err)
				logged = err.Error()
				a.events.Node(reasonNotReady, "Program", logged)
				unreported = !serving
			}
			unreported = unreported && !a.reportNotReady(ctx, err)
			timer := time.NewTimer(delay)
			retry, delay = timer.C, min(2*delay, steps.LastRetry)
		} else {
			delay, logged = steps.FirstRetry, ""
			a.metrics.Synced(overlay.NetworkName, time.Since(seen))
		}
		a.refused.Store(cmp.Or(logged, a.objects.Port().Refusal()))
		a.status.Changed()
		select {
		case <-ctx.Done():
			return nil
		case <-a.objects.Changes().Wake():
		case <-retry:
		}
	}
}

// step programs the current objects. The first time, it then reports to the runtime and the cluster that pods can be attached.
func (a *agent) step(ctx context.Context, network *overlay.Network, e *engines.Engines, serving *bool) error {
	view, err := a.program(ctx, network, e)
	if err != nil {
		return err
	}
	e.Handovers.Done(overlay.NetworkName)
	e.Switch.Tunnel(view.Remotes)
	warning := e.Kernel.Firewall.Warning()
	if *serving && warning == a.toldWarning {
		return nil
	}
	// Before it is known which networks are configured, pods cannot be placed; what makes it known calls configure.
	if standard, _ := a.networks.Default(); standard == overlay.NetworkName && a.networks.Decided() == nil {
		if _, err := a.conf().Write(); err != nil {
			return err
		}
		a.configured.Store(true)
		if err := a.reportReadyNode(ctx, warning); err != nil {
			return err
		}
	}
	a.toldWarning = warning
	if *serving {
		return nil
	}
	*serving = true
	a.events.Unreadable(a.closed(network))
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

// reportNotReady sets the node's condition while nothing is served yet, and reports whether that worked. A node that already serves pods
// continues with its state.
func (a *agent) reportNotReady(ctx context.Context, why error) bool {
	err := reportNotReady(ctx, a.clients, a.opts.Node, why)
	if err != nil && ctx.Err() == nil {
		a.opts.Log.Warn("reporting to the API server failed", "error", err)
	}
	return err == nil
}
