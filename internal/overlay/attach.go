package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/hostports"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/timing"
)

var _ network.Network = (*Network)(nil)

// Plan chooses the attachment's address and its port: a pre-plugged one if one is free. If a record of the attachment exists, its
// pre-plugged port was unusable, and the pod gets a port of its own. It implements network.Network.
func (n *Network) Plan(ctx context.Context, req *cni.Request, _ placement.Decision, _ attach.InUse) (attach.Record, error) {
	s := n.settings.Load()
	if err := unsupported(req); err != nil {
		return attach.Record{}, err
	}
	if s.hasVNIDs() {
		if err := n.Projects.Await(ctx, req.Args.PodNamespace); err != nil {
			return attach.Record{}, err
		}
	}
	ports, err := n.hostPorts.Requested(req)
	if err != nil {
		return attach.Record{}, err
	}
	second, err := n.routers.Requested(ctx, req)
	if err != nil {
		return attach.Record{}, err
	}
	limits, err := req.Bandwidth()
	if err != nil {
		return attach.Record{}, err
	}
	if limits.Limited() && n.engines.Shapers == nil {
		return attach.Record{}, cni.Errorf(cni.CodeUnsupportedField, "pod %s/%s: bandwidth limits need pre-plugged ports, and this agent has none: set --spare-ports",
			req.Args.PodNamespace, req.Args.PodName)
	}
	rec := attach.Record{
		Network: NetworkName, Gateway: []netip.Addr{s.pipeline.Gateway}, MTU: s.mtu, HostPorts: ports, Macvlan: second, Bandwidth: limits,
		Secondary: n.isSecondary(req),
	}
	key := attach.Key{ContainerID: req.ContainerID, IfName: req.IfName}
	_, former := n.store.Get(key)
	return rec, n.pick(ctx, s, &rec, &req.Args, choice{key: key, prePlugged: errors.Is(former, attach.ErrNotFound)})
}

// Discard gives back the port that a record claimed. It implements network.Discarder.
func (n *Network) Discard(rec attach.Record) {
	if _, claimed := n.store.InUse().OFPorts[rec.OFPort]; !claimed {
		n.preplugged.give(rec.OFPort)
	}
}

// Connect creates the interface, its port and its flows. It implements network.Network.
func (n *Network) Connect(ctx context.Context, rec *attach.Record) (*types100.Result, error) {
	s := n.settings.Load()
	created, err := n.program(ctx, s, rec)
	if errors.Is(err, link.ErrUnusable) {
		n.preplugged.discard(rec.OFPort)
		return nil, fmt.Errorf("%w: pre-plugged port %s: %w", network.ErrPlanAgain, rec.HostInterface, err)
	}
	if err != nil {
		return nil, err
	}
	rec.State = attach.Attached
	result := plan.Result(rec, &s.attachments, created.HostMAC)
	return result, n.routers.Create(ctx, rec, result)
}

// unsupported returns an error if the runtime's configuration asks for something that this network does not support.
func unsupported(req *cni.Request) error {
	if req.NetConf == nil {
		return nil
	}
	if len(req.NetConf.RuntimeConfig.IPs) > 0 {
		return cni.Errorf(cni.CodeUnsupportedField, "runtimeConfig.ips: the overlay chooses its pods' addresses")
	}
	if req.NetConf.RuntimeConfig.MAC != "" {
		return cni.Errorf(cni.CodeUnsupportedField, "runtimeConfig.mac: the overlay derives its pods' addresses")
	}
	return nil
}

// isSecondary reports whether another interface of the sandbox is on this network already and has the sandbox's routes.
func (n *Network) isSecondary(req *cni.Request) bool {
	return slices.ContainsFunc(n.store.List(), func(rec attach.Record) bool {
		return rec.Network == NetworkName && rec.ContainerID == req.ContainerID && rec.IfName != req.IfName &&
			rec.BootID == n.opts.BootID && rec.State != attach.Closing && !rec.Secondary
	})
}

// choice is how an attachment's address and port are chosen.
type choice struct {
	key attach.Key
	// prePlugged allows a pre-plugged port.
	prePlugged bool
}

// pick is choose, except that it creates a port when choose needs a pre-plugged one and none is free.
func (n *Network) pick(ctx context.Context, s *settings, rec *attach.Record, pod *cni.Args, from choice) error {
	err := n.choose(s, rec, from)
	if !errors.Is(err, errNonePreplugged) {
		return err
	}
	if err := n.createPrepluggedFor(ctx, rec, pod); err != nil {
		return err
	}
	from.prePlugged = false
	if err = n.choose(s, rec, from); err != nil {
		n.preplugged.give(rec.OFPort)
	}
	return err
}

// errNonePreplugged says that an attachment needs a pre-plugged port and none is free.
var errNonePreplugged = errors.New("no pre-plugged port is free")

// choose picks an address and a port number that no record has. A port number that the record has already is kept.
func (n *Network) choose(s *settings, rec *attach.Record, from choice) error {
	inUse := n.store.InUse()
	n.picking.Lock()
	defer n.picking.Unlock()
	if n.pool.Subnet() != s.view.Local.Subnet {
		return cni.Errorf(cni.CodeTryAgainLater, "the node's subnet has just changed to %s: try again later", n.pool.Subnet())
	}
	address, err := n.pool.Pick(func(a netip.Addr) bool { return held(inUse.Addresses[NetworkName], a, from.key) })
	if err != nil {
		return cni.Errorf(cni.CodeTryAgainLater, "%w", err)
	}
	ofport := rec.OFPort
	if ofport == 0 && from.prePlugged {
		ofport, _ = n.preplugged.take(s.mtu)
	}
	if ofport == 0 && rec.Bandwidth.Limited() {
		return errNonePreplugged
	}
	if ofport == 0 {
		ofport, err = n.ofports.Pick(func(p uint32) bool { return held(inUse.OFPorts, p, from.key) || n.preplugged.has(p) })
	}
	if err != nil {
		return cni.Errorf(cni.CodeTryAgainLater, "%w", err)
	}
	rec.Addresses = []netip.Prefix{netip.PrefixFrom(address, s.view.Local.Subnet.Bits())}
	rec.MAC = plan.MAC(rec.Addresses).String()
	rec.OFPort, rec.HostInterface = ofport, attach.PortName(ofport)
	return nil
}

// held reports whether another attachment than key claims what.
func held[K comparable](claims map[K]attach.Key, what K, key attach.Key) bool {
	holder, ok := claims[what]
	return ok && holder != key
}

// program creates the interface, its port and its flows, in parallel: a port without flows is closed, and flows without their port match
// nothing. For an attachment that exists already, it repairs link, port and flows.
//
// The switch goes over all its ports whenever a row or a link changes, and answers no request meanwhile. So both changes should reach it
// together; their order does not matter.
func (n *Network) program(ctx context.Context, s *settings, rec *attach.Record) (link.Created, error) {
	pair, err := n.pair(rec, &s.attachments)
	if err != nil {
		return link.Created{}, err
	}
	if err := s.pipeline.CheckPod(pod(rec)); err != nil {
		return link.Created{}, err
	}
	if pair.Preplugged != "" {
		return n.programPreplugged(ctx, s, rec, pair)
	}
	if err := n.inheritNothing(ctx, s, rec); err != nil {
		return link.Created{}, err
	}
	n.open(*rec)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rest, restCtx := errgroup.WithContext(ctx)
	rest.Go(func() error { return n.programFlows(restCtx, s, rec) })
	rest.Go(func() error { return publish(restCtx, &n.hostPorts, rec) })
	linkCtx, linked := timing.Start(ctx, stepLink)
	created, err := n.engines.Pods.Create(linkCtx, pair)
	linked(err)
	if err != nil {
		cancel() // the link failed: stop the other steps
		return created, errors.Join(err, withoutEnd(rest.Wait()))
	}
	rest.Go(func() error { return n.plug(restCtx, rec) })
	// The record is written as attached before the switch has everything. If the agent ends in between, the next agent completes the
	// attachment; the runtime, which got no answer, repeats ADD or sends DEL.
	if err := n.putAttached(ctx, rec); err != nil {
		cancel()
		return created, errors.Join(err, withoutEnd(rest.Wait()))
	}
	if err := rest.Wait(); err != nil {
		return created, err
	}
	n.open(attached(*rec))
	return created, nil
}

// programPreplugged creates an interface on a pre-plugged port, and the flows only afterwards: with them, any other interface on the port would
// have this pod's identity.
func (n *Network) programPreplugged(ctx context.Context, s *settings, rec *attach.Record, pair link.Pair) (link.Created, error) {
	var forgotten errgroup.Group
	forgotten.Go(func() error { return n.inheritNothing(ctx, s, rec) })
	linkCtx, linked := timing.Start(ctx, stepLink)
	created, err := n.engines.Pods.Create(linkCtx, pair)
	linked(err)
	if err != nil {
		return created, errors.Join(err, forgotten.Wait())
	}
	if err := forgotten.Wait(); err != nil {
		return created, err
	}
	n.open(*rec)
	n.engines.Rows.Set(map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{owner(rec.Key()): n.podRows(rec)}) // changes nothing in the switch
	flows, flowsCtx := errgroup.WithContext(ctx)
	flows.Go(func() error { return n.programFlows(flowsCtx, s, rec) })
	flows.Go(func() error { return publish(flowsCtx, &n.hostPorts, rec) })
	if err := n.putAttached(ctx, rec); err != nil {
		return created, errors.Join(err, flows.Wait())
	}
	if err := flows.Wait(); err != nil {
		return created, err
	}
	n.open(attached(*rec))
	return created, nil
}

// pair returns an attachment's veth pair, or the pre-plugged port that it uses.
func (n *Network) pair(rec *attach.Record, settings *plan.Settings) (link.Pair, error) {
	pair, err := plan.Pair(rec, settings)
	if err == nil && n.preplugged.has(rec.OFPort) {
		pair.Preplugged = n.opts.Ports
	}
	return pair, err
}

// withoutEnd returns err unless it only says that its context ended.
func withoutEnd(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// plug adds the attachment's port to the switch, and returns when the switch has it: when the switch reports it (OFPT_PORT_STATUS) or its
// database does, whichever is first. The link must exist: the switch fails a port without one, and the row of a failed port is removed
// again, even if the link is created meanwhile.
func (n *Network) plug(ctx context.Context, rec *attach.Record) error {
	added, stop := n.engines.Ports.Added(rec.HostInterface, rec.OFPort)
	defer stop()
	portCtx, done := startCommit(ctx, stepPort)
	committed := make(chan error, 1)
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{owner(rec.Key()): n.podRows(rec)}
	go func() { committed <- n.engines.Rows.Apply(portCtx, rows) }()
	select {
	case <-added:
		done(nil)
		return nil
	case err := <-committed:
		done(err)
		return err
	}
}

// programFlows programs an attachment's flows. If an Update handed over newer flows meanwhile and these replaced them, they are compiled
// again.
func (n *Network) programFlows(ctx context.Context, s *settings, rec *attach.Record) error {
	o := owner(rec.Key())
	for {
		if err := s.pipeline.CheckPod(pod(rec)); err != nil {
			return err
		}
		flowCtx, done := startCommit(ctx, stepFlows)
		var err error
		if s.policies() {
			err = n.programIsolated(flowCtx, rec)
		} else {
			err = n.engines.Flows.Apply(flowCtx, map[reconcile.Owner]map[openflow.Key]openflow.Entry{o: s.podFlows(rec)})
		}
		done(err)
		now := n.settings.Load()
		if err != nil || now == s {
			return err
		}
		s = now
	}
}

// publish programs an attachment's host ports, if it has any, as a step.
func publish(ctx context.Context, ports *hostports.Ports, rec *attach.Record) error {
	if len(rec.HostPorts) == 0 {
		return nil
	}
	ctx, done := startCommit(ctx, stepHostPorts)
	err := ports.Program(ctx, rec)
	done(err)
	return err
}
