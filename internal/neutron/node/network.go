package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
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
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/timing"
)

const (
	// defaultRest is how long a port rests between two pods: peers delete connections and neighbours of the former pod meanwhile.
	defaultRest = 60 * time.Second
	// portPatience limits how long an ADD waits for a free port. Runtimes then repeat the ADD.
	portPatience = 30 * time.Second
)

// Steps of an ADD, as named in metrics and traces: the pod's interface is created, and its flows are opened.
const (
	stepLink  = "link"
	stepFlows = "flows"
)

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
	flows := fragments{own: pipeline.Fragment(pipeline.Static())}
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

func portClaim(uuid string) string { return "neutronport " + uuid }

// addressClaims are the claims of a pod's IPv4 addresses, each of which the node routes to one pod. Nodes route no IPv6 addresses: pods of two
// tenants may have the same one.
func addressClaims(addresses []netip.Prefix) []string {
	var claims []string
	for _, p := range addresses {
		if p.Addr().Is4() {
			claims = append(claims, "neutron address "+p.Addr().String())
		}
	}
	return claims
}

// Plan implements network.Network: it chooses a ready port, and waits for one if there is none.
func (n *Network) Plan(ctx context.Context, req *cni.Request, at placement.Decision, inUse attach.InUse) (attach.Record, error) {
	limits, err := req.Bandwidth()
	if err != nil {
		return attach.Record{}, err
	}
	hostPorts, err := n.publisher.Requested(req)
	if err != nil {
		return attach.Record{}, err
	}
	object, err := n.networkOf(ctx, req.Args.PodNamespace, at.Part)
	if err != nil {
		return attach.Record{}, err
	}
	claimed := func(uuid string, s *ports.Spec) bool {
		if _, taken := inUse.Claims[portClaim(uuid)]; taken {
			return true
		}
		return slices.ContainsFunc(addressClaims(s.Addresses), func(claim string) bool {
			_, taken := inUse.Claims[claim]
			return taken
		})
	}
	waiting, cancel := context.WithTimeout(ctx, portPatience)
	defer cancel()
	for {
		chosen, next, changed := n.ports.Choose(string(object.UID), claimed)
		if chosen != nil {
			rec, err := recordOf(at, chosen, string(object.UID))
			rec.Bandwidth, rec.HostPorts = limits, hostPorts
			rec.HostInterface = hostInterface(req, chosen, limits)
			return rec, err
		}
		var rested <-chan time.Time
		if next > 0 {
			rested = time.After(next)
		}
		select {
		case <-changed:
		case <-rested:
		case <-waiting.Done():
			return attach.Record{}, n.noPort(ctx, object)
		}
	}
}

// hostInterface returns the name of the host veth for an attachment: the one plugged ahead with its port, or, if there is none, one of its own.
func hostInterface(req *cni.Request, chosen *ports.Choice, limits cni.Bandwidth) string {
	if chosen.Paired {
		return chosen.Slot.Preplugged()
	}
	return vethName(attach.Key{ContainerID: req.ContainerID, IfName: req.IfName}, limits.Limited())
}

// networkOf returns the Network of a pod.
func (n *Network) networkOf(ctx context.Context, namespace, name string) (*stackubev1.Network, error) {
	if name == "" {
		return nil, cni.Errorf(cni.CodeRefused, "no Network named %q is in namespace %q; name one with annotation %s: %s/NAME", namespace, namespace, placement.AnnotationNetwork, Name)
	}
	var object stackubev1.Network
	err := n.deps.Objects.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &object)
	if apierrors.IsNotFound(err) {
		return nil, cni.Errorf(cni.CodeRefused, "there is no Network %s in namespace %s; create it, or change annotation %s", name, namespace, placement.AnnotationNetwork)
	}
	if err != nil {
		return nil, cni.Errorf(cni.CodeTryAgainLater, "Network %s/%s: %w", namespace, name, err)
	}
	if !object.DeletionTimestamp.IsZero() {
		return nil, cni.Errorf(cni.CodeRefused, "Network %s/%s is being deleted", namespace, name)
	}
	return &object, nil
}

// noPort returns why no port is free, in the words of the Network.
func (n *Network) noPort(ctx context.Context, object *stackubev1.Network) error {
	var now stackubev1.Network
	if err := n.deps.Objects.Get(context.WithoutCancel(ctx), client.ObjectKeyFromObject(object), &now); err == nil {
		object = &now
	}
	all, inactive := n.ports.Count(string(object.UID))
	words := fmt.Sprintf("no port of Network %s/%s is free on this node (it has %d, %d of them not ACTIVE, or not bound on br-int since their last pods)", object.Namespace, object.Name, all, inactive)
	if object.Status.State != "" && object.Status.State != stackubev1.StateActive || object.Status.Message != "" {
		words += fmt.Sprintf("; the Network is %s: %s", object.Status.State, object.Status.Message)
	}
	return cni.Errorf(cni.CodeTryAgainLater, "%s", words)
}

// recordOf returns the record of an attachment to the port that was chosen, on the Network with a UID: records' addresses are unique within it.
func recordOf(at placement.Decision, chosen *ports.Choice, network string) (attach.Record, error) {
	kept, err := json.Marshal(ports.Details{
		Port: chosen.UUID, Slot: chosen.Slot, Network: at.Part, Routes: chosen.Spec.Routes, DNS: chosen.Spec.DNS,
	})
	if err != nil {
		return attach.Record{}, fmt.Errorf("details of the attachment's record: %w", err)
	}
	rec := attach.Record{
		Network: Name + "." + network, Addresses: chosen.Spec.Addresses, Gateway: chosen.Spec.Gateways, MAC: chosen.Spec.MAC.String(), MTU: chosen.Spec.MTU,
		Claims: append([]string{portClaim(chosen.UUID)}, addressClaims(chosen.Spec.Addresses)...), Details: kept,
	}
	return rec, nil
}

// Connect implements network.Network. On a pre-plugged pair it creates the pod's interface, and then opens the flows; a link or a row of the
// switch changes only for a pod with an interface of its own.
func (n *Network) Connect(ctx context.Context, rec *attach.Record) (*types100.Result, error) {
	pod, d, err := podOf(rec)
	if err != nil {
		return nil, err
	}
	pair, err := n.pair(rec, &d)
	if err != nil {
		return nil, err
	}
	rows, err := n.ports.Hold(rec, &d)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", network.ErrPlanAgain, err)
	}
	n.compiler.reopen(rec.Key())
	created, err := n.enter(ctx, rec, pod, pair)
	if ports.OnPair(rec) && errors.Is(err, podlink.ErrUnusable) {
		if rec.State != attach.Attached && errors.Is(err, link.ErrNoDevice) {
			n.ports.Replace(ctx, rec, &d)
		} else {
			n.ports.Release(*rec)
		}
		return nil, fmt.Errorf("%w: %w", network.ErrPlanAgain, err)
	}
	if err != nil {
		return nil, err
	}
	if rows != nil {
		owner := ownerOf(rec)
		maps.Copy(rows, map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{owner: host.PodRows(owner, rec.HostInterface, d.Slot)})
		if err := n.vswitch.Rows.Apply(ctx, rows); err != nil {
			return nil, fmt.Errorf("port of %s: %w", rec.Key(), err)
		}
	}
	if err := n.serve(ctx, rec, &d); err != nil {
		return nil, fmt.Errorf("attachment %s: %w", rec.Key(), err)
	}
	return result(rec, &d, pair.PodRoutes, created.HostMAC), nil
}

// enter creates the pod's interface, and meanwhile flushes the pod's conntrack zone: a connection of the former pod in it would become this
// one's.
func (n *Network) enter(ctx context.Context, rec *attach.Record, pod *pipeline.Pod, pair podlink.Pair) (podlink.Created, error) {
	var flush errgroup.Group
	if rec.State != attach.Attached {
		flush.Go(func() error {
			if err := n.flows().Engine.FlushCT(ctx, openflow.CTFlush{Zone: &pod.Zone}); err != nil {
				return fmt.Errorf("conntrack zone %d of %s: %w", pod.Zone, rec.Key(), err)
			}
			return nil
		})
	}
	linkCtx, linked := timing.Start(ctx, stepLink)
	created, err := n.shapes.create(linkCtx, pair)
	linked(err)
	if err != nil {
		err = fmt.Errorf("interface of %s: %w", rec.Key(), err)
	}
	return created, errors.Join(err, flush.Wait())
}

// serve opens the pod's flows, and makes the host reach the pod. The record is written as attached before all is in effect: if the agent
// ends in between, the next agent completes the attachment, and the runtime, which got no answer, repeats ADD or sends DEL.
func (n *Network) serve(ctx context.Context, rec *attach.Record, d *ports.Details) error {
	var group errgroup.Group
	group.Go(func() error {
		owner := ownerOf(rec)
		if err := n.node.Links.Apply(ctx, map[reconcile.Owner]map[link.Key]link.Item{owner: host.Routes(rec.Addresses)}); err != nil {
			return fmt.Errorf("route: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		flowCtx, opened := timing.Start(ctx, stepFlows)
		err := n.open(flowCtx, rec, d)
		opened(err)
		return err
	})
	group.Go(func() error { return n.publisher.Publish(ctx, rec) })
	written := *rec
	written.State = attach.Attached
	var err error
	if rec.State != attach.Attached {
		err = n.deps.Records.Put(ctx, written)
	}
	if err := errors.Join(group.Wait(), err); err != nil {
		return err
	}
	rec.State = attach.Attached
	return nil
}

// podOf returns what the flows need of an attachment.
func podOf(rec *attach.Record) (*pipeline.Pod, ports.Details, error) {
	d, err := ports.DetailsOf(rec)
	if err != nil {
		return nil, d, err
	}
	mac, err := net.ParseMAC(rec.MAC)
	if err != nil {
		return nil, d, fmt.Errorf("attachment %s: %w", rec.Key(), err)
	}
	return &pipeline.Pod{
		Owner: ownerOf(rec), OFPort: d.Slot.Pod(), Patch: d.Slot.Patch(), Zone: d.Slot.Zone(), MAC: mac, Addresses: addrs(rec.Addresses),
		Published: publishedPorts(rec),
	}, d, nil
}

// pair returns the pod's interface.
func (n *Network) pair(rec *attach.Record, d *ports.Details) (podlink.Pair, error) {
	pair, err := plan.Pair(rec, &plan.Settings{HostGroup: host.PodGroup, TxOffloadOff: n.vswitch.Datapath == ovsdb.DatapathNetdev})
	if err != nil {
		return podlink.Pair{}, err //nolint:wrapcheck // it names the attachment
	}
	pair.PodRoutes = routesOf(rec, d)
	if rec.Bandwidth.Limited() || ports.OnPair(rec) {
		pair.Preplugged = n.node.Ports
	}
	return pair, nil
}

// routesOf returns the pod's routes: to the host, those of the subnets, and by the gateways.
func routesOf(rec *attach.Record, d *ports.Details) []link.Route {
	var routes []link.Route
	near := func(hop netip.Addr) bool {
		for _, p := range rec.Addresses {
			if p.Contains(hop) {
				return true
			}
		}
		return false
	}
	for _, p := range rec.Addresses {
		if p.Addr().Is4() {
			routes = append(routes, link.Route{Dst: netip.PrefixFrom(pipeline.HostAddress(), 32), Scope: link.ScopeLink})
			if len(rec.HostPorts) > 0 {
				routes = append(routes, link.Route{Dst: netip.PrefixFrom(pipeline.OutsideAddress(), 32), Scope: link.ScopeLink})
			}
			break
		}
	}
	for _, r := range d.Routes {
		routes = append(routes, link.Route{Dst: r.Destination, Gateway: r.NextHop})
	}
	if rec.Secondary {
		return routes
	}
	for _, gateway := range rec.Gateway {
		all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if gateway.Is6() {
			all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		routes = append(routes, link.Route{Dst: all, Gateway: gateway, OnLink: !near(gateway)})
	}
	return routes
}

// result is the answer to an ADD.
func result(rec *attach.Record, d *ports.Details, routes []link.Route, hostMAC net.HardwareAddr) *types100.Result {
	answer := plan.Result(rec, &plan.Settings{}, hostMAC)
	answer.Routes = nil
	for _, r := range routes {
		route := &types.Route{Dst: net.IPNet{IP: r.Dst.Addr().AsSlice(), Mask: net.CIDRMask(r.Dst.Bits(), r.Dst.Addr().BitLen())}}
		if r.Gateway.IsValid() {
			route.GW = r.Gateway.AsSlice()
		}
		answer.Routes = append(answer.Routes, route)
	}
	answer.DNS.Nameservers = d.DNS
	return answer
}

// Close implements network.Network: it closes the pod's port. If the switch cannot, it deletes the pod's link.
func (n *Network) Close(ctx context.Context, rec attach.Record) error {
	owner := ownerOf(&rec)
	n.compiler.close(&rec)
	n.node.Links.Set(map[reconcile.Owner]map[link.Key]link.Item{owner: nil})
	withdrawn := n.publisher.Withdraw(rec)
	if n.Ready() == nil && errors.Join(n.flows().Loop.Apply(ctx, fragments{owner: nil}), n.publisher.Await(ctx, withdrawn)) == nil {
		return nil
	}
	if ports.OnPair(&rec) && rec.BootID != n.node.BootID {
		return nil // the name is another pair's since this boot
	}
	return n.node.Pods.Delete(context.WithoutCancel(ctx), rec.HostInterface) //nolint:wrapcheck // the caller names the attachment
}

// Remove implements network.Network. An attachment on a pre-plugged pair is removed once its port is unplugged: until then its record keeps
// the next pod off the port, also if the agent ends in between.
func (n *Network) Remove(ctx context.Context, recs []attach.Record) map[attach.Key]error {
	var veths []string
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{}
	links := map[reconcile.Owner]map[link.Key]link.Item{}
	flows := fragments{}
	n.compiler.withdraw(recs)
	for i := range recs {
		owner := ownerOf(&recs[i])
		links[owner], flows[owner] = nil, nil
		if !ports.OnPair(&recs[i]) {
			veths, rows[owner] = append(veths, recs[i].HostInterface), nil
		}
	}
	err := errors.Join(n.flows().Loop.Apply(ctx, flows), n.node.Links.Apply(ctx, links))
	if len(veths) > 0 {
		err = errors.Join(err, n.node.Pods.Delete(ctx, veths...), n.vswitch.Rows.Apply(ctx, rows))
	}
	err = errors.Join(err, n.shapes.remove(ctx, recs), n.publisher.Unpublish(ctx, recs))
	if err != nil {
		failed := map[attach.Key]error{}
		for i := range recs {
			failed[recs[i].Key()] = err
		}
		return failed
	}
	n.ports.Release(recs...)
	failed := n.ports.Unplugged(ctx, recs)
	n.compiler.removed(slices.DeleteFunc(slices.Clone(recs), func(rec attach.Record) bool { return failed[rec.Key()] != nil }))
	return failed
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
