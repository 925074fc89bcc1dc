package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Names of the engines in logs, errors and metrics.
const (
	nameRows  = "ovsdb"
	nameLinks = "link"
	nameRules = "nft"
	nameFlows = "openflow"
)

// engines are the node's engines, each with its loop.
type engines struct {
	datapath string
	rows     *ovsdb.Engine
	flows    *bridge.Engine
	links    *link.Engine
	rules    *nft.Engine
	pods     *link.Pods
	// surveyed is pods for the overlay.
	surveyed *surveyed

	rowLoop  *reconcile.Loop[ovsdb.Key, ovsdb.Row]
	flowLoop *reconcile.Loop[openflow.Key, openflow.Entry]
	linkLoop *reconcile.Loop[link.Key, link.Item]
	ruleLoop *reconcile.Loop[nft.Key, nft.Item]
	firewall *firewall
	verify   time.Duration
	tunnels  *tunnels
	tracked  *connections
	// looked is the network that is notified when ports may have changed; nil until it exists.
	looked atomic.Pointer[overlay.Network]
	// settled is called when the state of an engine may have changed.
	settled func()
	// uplinkChanged is called when the interface with the node's address may have changed, and addressesChanged when addresses that other
	// programs manage may have changed.
	uplinkChanged, addressesChanged func()
	// dry says that engines are read but not written.
	dry     bool
	metrics *metrics.Agent
	// handovers keep the state of networks that have not handed over theirs. cares are the cares of the networks, by name.
	handovers *node.Handovers
	cares     map[string]node.Care

	// opening serialises openSwitch. switched is set once Open vSwitch is open; rows, flows, datapath, bridges and their loops are then set
	// too.
	opening  sync.Mutex
	switched atomic.Bool
	bridges  map[string]*node.Flows
	// watchers are notified when devices change.
	watchers watchers
}

// newEngines opens the kernel's engines. It reads and changes nothing; that begins when the engines run and their loops start.
func (a *agent) newEngines() (*engines, error) {
	e := &engines{
		verify: a.opts.Verify, settled: a.status.changed, uplinkChanged: a.objects.signal, addressesChanged: a.objects.egressIPs.signal,
		dry: a.dry, metrics: a.metrics, cares: a.cares(),
	}
	e.handovers = node.NewHandovers(e.cares)
	if err := e.openKernel(a.opts, a.events); err != nil {
		e.close()
		return nil, err
	}
	e.firewall.changed = a.objects.signal
	return e, nil
}

// observe returns the function that is called for each commit.
func (e *engines) observe(recorder *recorder) func(reconcile.Event) {
	return func(event reconcile.Event) {
		e.metrics.Commit(event)
		recorder.drift(event)
	}
}

// care returns the union of all networks' cares.
func (e *engines) care() node.Care { return node.Union(slices.Collect(maps.Values(e.cares))...) }

func (e *engines) openKernel(opts Options, recorder *recorder) error {
	care, observe := e.care(), e.observe(recorder)
	var err error
	if e.links, err = link.NewEngine(link.Options{Devices: care.Devices}); err != nil {
		return err
	}
	if e.pods, err = link.NewPods(); err != nil {
		return err
	}
	e.surveyed = &surveyed{Pods: e.pods}
	if e.rules, err = nft.NewEngine(nft.Options{Tables: care.Tables, Unmanaged: care.Unmanaged, Apart: care.Apart, Foreign: true}); err != nil {
		return err
	}
	e.linkLoop = reconcile.NewLoop(readOnly(e.dry, e.links), reconcile.Options[link.Key, link.Item]{Name: nameLinks, Log: opts.Log, Observe: observe, Settled: e.settled, Keep: e.handovers.KeepLink})
	e.ruleLoop = reconcile.NewLoop(readOnly(e.dry, e.rules), reconcile.Options[nft.Key, nft.Item]{Name: nameRules, Log: opts.Log, Observe: observe, Settled: e.rulesSettled, Keep: e.handovers.KeepRule})
	e.tunnels = newTunnels(opts.Log)
	e.firewall = newFirewall(e.rules, e.ruleLoop, opts.Log)
	e.handovers.OnChange(e.linkLoop.KeepChanged)
	e.handovers.OnChange(e.ruleLoop.KeepChanged)
	return nil
}

// switchRunner starts what keeps Open vSwitch in step: flows first, then rows.
type switchRunner struct {
	flows, rows func()
}

// openSwitch connects to Open vSwitch if it is not connected yet, and starts its loops. It waits for the switch's database until ctx ends.
// If the bridge exists, its flows are read while the database is copied.
func (a *agent) openSwitch(ctx context.Context, e *engines, run switchRunner) error {
	e.opening.Lock()
	defer e.opening.Unlock()
	if e.switched.Load() {
		return nil
	}
	var names []string
	for _, bridge := range e.care().Bridges {
		names = append(names, bridge.Name)
	}
	if _, err := os.Stat(bridgeSocket(a.opts, host.Bridge)); err == nil && !e.dry {
		if err := a.openFlows(ctx, e, run); err != nil {
			return err
		}
	}
	rows, err := ovsdb.Open(ctx, ovsdb.Config{
		Endpoint: "unix:" + filepath.Join(a.opts.OVSRunDir, "db.sock"), Bridges: names, Logger: a.opts.Log,
	})
	if err != nil {
		return err
	}
	e.rows = rows
	if err = e.openRows(ctx, a.opts, a.events); err == nil {
		err = a.openFlows(ctx, e, run)
	}
	if err != nil {
		rows.Close()
		return err
	}
	e.handovers.OnChange(e.rowLoop.KeepChanged)
	e.switched.Store(true)
	run.rows()
	return nil
}

// openRows makes the loop of the switch's database.
func (e *engines) openRows(ctx context.Context, opts Options, recorder *recorder) error {
	var err error
	if e.datapath, err = chooseDatapath(ctx, e.rows, opts.Datapath); err != nil {
		return err
	}
	observe := e.observe(recorder)
	e.rowLoop = reconcile.NewLoop(readOnly(e.dry, e.rows), reconcile.Options[ovsdb.Key, ovsdb.Row]{
		Name: nameRows, Log: opts.Log, Settled: e.settled, Keep: e.handovers.KeepRow,
		Observe: func(event reconcile.Event) {
			observe(event)
			if event.Read {
				return
			}
			// The daemon makes and removes links, and flows go with their bridge.
			e.linkLoop.Outdate()
			for _, bridge := range e.bridges {
				bridge.Loop.Outdate()
			}
		},
	})
	return nil
}

// bridgeSocket is where a bridge takes OpenFlow connections.
func bridgeSocket(opts Options, bridge string) string {
	return filepath.Join(opts.OVSRunDir, bridge+".mgmt")
}

// openFlows makes the loops of the bridges' flows and starts them, unless that is done.
func (a *agent) openFlows(ctx context.Context, e *engines, run switchRunner) error {
	if e.bridges != nil {
		return nil
	}
	observe := e.observe(a.events)
	bridges := map[string]*node.Flows{}
	for _, b := range e.care().Bridges {
		engine := bridge.NewEngine(bridge.Config{
			Address: bridgeSocket(a.opts, b.Name), Last: b.IsNote, OnBundle: e.metrics.Bundle, OnPacket: a.objects.services.idling.packet,
		})
		flows, err := e.flowEngine(ctx, b.Name, engine)
		if err != nil {
			return err
		}
		bridges[b.Name] = &node.Flows{Engine: engine, Loop: reconcile.NewLoop(flows, reconcile.Options[openflow.Key, openflow.Entry]{
			Name: flowsOf(b.Name), Log: a.opts.Log, Observe: observe, Settled: e.settled, Encode: openflow.Encode, Seal: b.Note,
		})}
	}
	e.bridges, e.flows, e.flowLoop = bridges, bridges[host.Bridge].Engine, bridges[host.Bridge].Loop
	e.tracked = &connections{runDir: a.opts.OVSRunDir, flows: e.flows}
	run.flows()
	return nil
}

// flowsOf returns the name of the engine of a bridge's flows.
func flowsOf(bridge string) string {
	if bridge == host.Bridge {
		return nameFlows
	}
	return nameFlows + " " + bridge
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

// rulesSettled is called when the state of the rules may have changed.
func (e *engines) rulesSettled() {
	e.settled()
	e.firewall.settled()
}

// overlay returns the engines in the form that the overlay needs.
func (e *engines) overlay() overlay.Engines {
	ends := &hostEnds{Pods: e.pods, metrics: e.metrics}
	engines := overlay.Engines{Flows: e.flowLoop, Rows: e.rowLoop, Links: e.linkLoop, Rules: e.ruleLoop, Ports: e.flows, Pods: e.surveyed, Preplugged: e.surveyed, HostEnds: ends, Connections: e.tracked, Uplink: uplinkHost{}, Kernel: kernel{}, Macvlans: e.pods, Shapers: ends}
	if e.datapath == ovsdb.DatapathNetdev {
		engines.Datapath = e.tracked
	}
	return engines
}

// run runs the kernel's engines and loops in the group until ctx ends, and rereads what other programs changed.
func (e *engines) run(ctx context.Context, group *errgroup.Group) {
	e.runLoops(ctx, group)
	group.Go(func() error { return e.followLinks(ctx) })
	group.Go(func() error { return e.followRules(ctx) })
	group.Go(func() error { return e.verifyNowAndThen(ctx) })
}

// readAhead reads in the group what the overlay reads of the kernel when it starts, while the API server and the switch answer.
func (e *engines) readAhead(ctx context.Context, group *errgroup.Group, ports string) {
	group.Go(func() error {
		e.surveyed.survey(ctx, ports)
		return nil
	})
}

// runLoops runs the loops of the kernel's engines in the group until ctx ends.
func (e *engines) runLoops(ctx context.Context, group *errgroup.Group) {
	group.Go(func() error { return e.linkLoop.Run(ctx) })
	group.Go(func() error { return e.ruleLoop.Run(ctx) })
}

// runSwitch does the same as run for Open vSwitch.
func (e *engines) runSwitch(ctx context.Context, group *errgroup.Group) switchRunner {
	loops := e.runSwitchLoops(ctx, group)
	return switchRunner{
		flows: func() {
			loops.flows()
			for _, bridge := range e.bridges {
				group.Go(func() error { return e.followFlows(ctx, bridge) })
			}
		},
		rows: func() {
			loops.rows()
			group.Go(func() error { return e.followRows(ctx) })
			if e.datapath == ovsdb.DatapathNetdev {
				group.Go(func() error { return e.tunnels.run(ctx) })
			}
		},
	}
}

// runSwitchLoops runs the loops of Open vSwitch, and the connections that they need, in the group until ctx ends.
func (e *engines) runSwitchLoops(ctx context.Context, group *errgroup.Group) switchRunner {
	return switchRunner{
		flows: func() {
			for _, bridge := range e.bridges {
				group.Go(func() error { return bridge.Loop.Run(ctx) })
				group.Go(func() error { return ignoreEnd(ctx, bridge.Engine.Run(ctx)) })
			}
		},
		rows: func() { group.Go(func() error { return e.rowLoop.Run(ctx) }) },
	}
}

// close releases the engines' resources. It changes nothing that is programmed.
func (e *engines) close() {
	if e.switched.Load() {
		e.rows.Close()
	}
	if e.pods != nil {
		e.pods.Close()
	}
	if e.links != nil {
		e.links.Close()
	}
}

// followRows rereads everything that a restart of the switch's daemon may have removed: the daemon creates the links of internal ports, and
// holds the flows.
func (e *engines) followRows(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-e.rows.Events():
			if !ok {
				return nil
			}
			e.rowLoop.Resync()
			if event.Kind == ovsdb.EventReconnected {
				e.metrics.Connected("ovsdb")
			}
			if event.Kind == ovsdb.EventSwitchRestarted {
				e.metrics.Connected("switch")
				e.linkLoop.Resync()
				for _, bridge := range e.bridges {
					bridge.Loop.Resync()
				}
				e.tunnels.again()
			}
		}
	}
}

func (e *engines) followFlows(ctx context.Context, bridge *node.Flows) error {
	for {
		event, err := bridge.Engine.Next(ctx)
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		if event.Connected {
			e.metrics.Connected("openflow")
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

func (e *engines) followLinks(ctx context.Context) error {
	drift, err := e.links.Watch(ctx)
	if err != nil {
		return err
	}
	for changed := range drift {
		if changed.Err != nil {
			return changed.Err // without the watch the agent ends, and is started again
		}
		e.watchers.notify(changed)
		network := e.looked.Load()
		switch {
		case changed.End != nil && network != nil:
			network.HostEndChanged(changed.Device, *changed.End)
		case changed.Attended && changed.Kind == link.KindAddress:
			e.addressesChanged()
		case changed.Attended:
			e.uplinkChanged()
		case changed.All:
			e.linkLoop.ReadAhead()
		case changed.End == nil:
			e.linkLoop.Resync()
		}
		if changed.All {
			e.uplinkChanged()
		}
		if changed.All && network != nil {
			network.CheckHostEnds()
		}
	}
	return nil
}

// followRules rereads the rules that other programs changed, and surveys the chains of other programs that must let Weft's packets pass.
func (e *engines) followRules(ctx context.Context) error {
	drifts, err := e.rules.Monitor(ctx)
	if err != nil {
		return err
	}
	return e.firewall.follow(ctx, drifts)
}

func (e *engines) verifyNowAndThen(ctx context.Context) error {
	ticker := time.NewTicker(e.verify)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			e.linkLoop.Resync()
			e.ruleLoop.Resync()
			if e.switched.Load() {
				e.rowLoop.Resync()
				for _, bridge := range e.bridges {
					bridge.Loop.Resync()
				}
			}
			if network := e.looked.Load(); network != nil {
				network.CheckHostEnds()
			}
		}
	}
}

// hostEnds are the pods' host veths. Restoring them counts as drift of the links.
type hostEnds struct {
	*link.Pods
	metrics *metrics.Agent
}

// Restore implements ports.HostEnds.
func (h *hostEnds) Restore(ctx context.Context, name string, want link.HostEnd) error {
	begin := time.Now()
	err := h.Pods.Restore(ctx, name, want)
	h.metrics.Commit(reconcile.Event{Engine: nameLinks, Set: 1, Drift: reconcile.Drift{Altered: 1}, Took: time.Since(begin), Err: err})
	return err
}

// Reshape implements link.Shapers.
func (h *hostEnds) Reshape(ctx context.Context, path, name string, want link.Shape) error {
	if want == (link.Shape{}) {
		return h.Pods.Reshape(ctx, path, name, want) // of a port that is being removed
	}
	begin := time.Now()
	err := h.Pods.Reshape(ctx, path, name, want)
	h.metrics.Commit(reconcile.Event{Engine: nameLinks, Set: 1, Drift: reconcile.Drift{Altered: 1}, Took: time.Since(begin), Err: err})
	return err
}

// failures returns what is desired but not programmed.
func (e *engines) failures() error {
	var errs []error
	collect := func(engine string, failures map[reconcile.Owner]error) {
		for owner, err := range failures {
			if owner == ownerFirewall {
				continue // it has a separate warning
			}
			errs = append(errs, fmt.Errorf("%s: %s: %w", engine, owner, err))
		}
	}
	collect(nameLinks, e.linkLoop.Failures())
	collect(nameRules, e.ruleLoop.Failures())
	if e.switched.Load() {
		collect(nameRows, e.rowLoop.Failures())
		for _, bridge := range e.bridges {
			collect(nameFlows, bridge.Loop.Failures())
		}
	}
	return errors.Join(errs...)
}

// nodeFacts returns what the overlay needs to know of the node: the interface with its address.
func (e *engines) nodeFacts(address netip.Addr) (overlay.Node, error) {
	uplink, network, err := linkWith(address)
	if err != nil {
		return overlay.Node{}, err
	}
	e.links.Attend(uplink.Attrs().Name)
	return overlay.Node{Datapath: e.datapath, Uplink: uplink.Attrs().Name, MTU: uplink.Attrs().MTU, Network: network}, nil
}

// dumpAttempts bounds how often the kernel's addresses are listed again because the list changed during the dump. While pods are created
// and deleted, it does so nearly every time. The entries of an interrupted dump are still used.
const dumpAttempts = 10

// linkWith returns the interface that has an address, and the prefix of the address there.
func linkWith(address netip.Addr) (netlink.Link, netip.Prefix, error) {
	for attempt := 1; ; attempt++ {
		all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, netip.Prefix{}, fmt.Errorf("addresses of this node: %w", err)
		}
		at := slices.IndexFunc(all, func(have netlink.Addr) bool {
			ip, ok := netip.AddrFromSlice(have.IP)
			return ok && ip.Unmap() == address
		})
		switch {
		case at >= 0:
			link, err := netlink.LinkByIndex(all[at].LinkIndex)
			if err != nil {
				return nil, netip.Prefix{}, fmt.Errorf("interface with address %s: %w", address, err)
			}
			bits, _ := all[at].Mask.Size()
			return link, netip.PrefixFrom(address, bits).Masked(), nil
		case err == nil:
			return nil, netip.Prefix{}, fmt.Errorf("hostIP %s: no interface of this node has it; the Node's first InternalIP must be an address of the node", address)
		case attempt == dumpAttempts:
			return nil, netip.Prefix{}, fmt.Errorf("addresses of this node: %w", err)
		}
	}
}

// kernel is the node's own kernel, which tracks the connections to host ports.
type kernel struct{}

// ForgetHostPorts implements hostports.Connections. TCP is left out: a client that connects again begins a new connection. Packets of UDP
// and SCTP would continue with the former one.
func (kernel) ForgetHostPorts(ports ...cni.HostPort) error {
	var udp, sctp []netip.AddrPort
	for _, port := range ports {
		at := netip.AddrPortFrom(port.Address, port.Port)
		switch port.Protocol {
		case "udp":
			udp = append(udp, at)
		case "sctp":
			sctp = append(sctp, at)
		}
	}
	return errors.Join(link.ForgetTo(unix.IPPROTO_UDP, udp...), link.ForgetTo(unix.IPPROTO_SCTP, sctp...))
}

// ForgetTranslatedTo implements hostports.Connections.
func (kernel) ForgetTranslatedTo(pods ...netip.Addr) error { return link.ForgetLedTo(pods...) }
