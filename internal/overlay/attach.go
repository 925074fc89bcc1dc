package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/timing"
)

// undoTimeout bounds the undoing of an ADD that failed. What cannot be undone by then, the reaper goes on with.
const undoTimeout = 10 * time.Second

// Add attaches a pod's interface: plan, record, connect, open. It implements cni.Handler.
func (n *Network) Add(ctx context.Context, req *cni.Request) (*types100.Result, error) {
	key := attach.Key{ContainerID: req.ContainerID, IfName: req.IfName}
	unlock, err := n.locks.Lock(ctx, key)
	if err != nil {
		return nil, cni.Errorf(cni.CodeTryAgainLater, "attachment %s: another request for it is in progress: %w", key, err)
	}
	defer n.reaper.wakeUp() // once the lock is free
	defer unlock()
	s := n.settings.Load()
	if s == nil {
		return nil, cni.Errorf(cni.CodeTryAgainLater, "%w: try again later", n.Ready())
	}
	if err := unsupported(req); err != nil {
		return nil, err
	}
	if err := n.awaitVNID(ctx, s, req.Args.PodNamespace); err != nil {
		return nil, err
	}
	rec, err := n.store.Get(key)
	switch {
	case err == nil && rec.State == attach.Attached && rec.Netns == req.Netns && rec.BootID == n.opts.BootID:
		// The runtime did not get the answer. The same one, after making sure of it.
	case err == nil, n.reaper.link(key) != "": // also a link without a record, which stands in the pod where the new one will
		if err := n.remove(ctx, []attach.Key{key}); err != nil {
			n.giveUp(ctx, key)
			return nil, cni.Errorf(cni.CodeTryAgainLater, "attachment %s: removing the remains of an earlier one: %w", key, err)
		}
		fallthrough
	default:
		if rec, err = n.record(ctx, s, req, true); err != nil {
			return nil, err
		}
	}
	n.reaper.forget(key) // what was to be removed is gone, or is this attachment now
	result, err := n.connect(ctx, s, rec)
	if !errors.Is(err, link.ErrUnusable) || ctx.Err() != nil {
		return result, err
	}
	// The port that stood ready was none. It is removed; the pod gets a port of its own.
	n.opts.Log.Warn("pre-plugged port unusable, taking another", "port", rec.HostInterface, "attachment", key.String(), "error", err)
	if rec, err = n.record(ctx, s, req, false); err != nil {
		return nil, err
	}
	n.reaper.forget(key)
	return n.connect(ctx, s, rec)
}

// unsupported returns an error for what the configuration asks of this network and does not get.
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

// record plans an attachment and writes its record, before any side effect. Its port is one that stands ready, if there is one
// and it may be.
func (n *Network) record(ctx context.Context, s *settings, req *cni.Request, standing bool) (attach.Record, error) {
	ports, err := n.hostPorts(req)
	if err != nil {
		return attach.Record{}, err
	}
	second, err := n.egressRouter(ctx, req)
	if err != nil {
		return attach.Record{}, err
	}
	limits, err := n.bandwidth(req)
	if err != nil {
		return attach.Record{}, err
	}
	rec := attach.Record{
		Network: NetworkName, ContainerID: req.ContainerID, IfName: req.IfName, Netns: req.Netns,
		PodNamespace: req.Args.PodNamespace, PodName: req.Args.PodName, PodUID: req.Args.PodUID,
		Gateway: []netip.Addr{s.pipeline.Gateway}, MTU: s.mtu, BootID: n.opts.BootID,
		State: attach.Planned, Created: time.Now().UTC(), HostPorts: ports, Macvlan: second, Bandwidth: limits,
		Secondary: n.isSecondary(req),
	}
	for {
		_, planned := timing.Start(ctx, stepPlan)
		err := n.pick(ctx, s, &rec, standing)
		planned(err)
		if err != nil {
			return rec, err
		}
		if err = n.put(ctx, &rec); err != nil && !held(n.store.InUse().OFPorts, rec.OFPort) {
			n.standing.give(rec.OFPort)
		}
		var conflict *attach.ConflictError
		taken := hostPortTaken(&rec, err)
		switch {
		case err == nil:
			return rec, nil
		case n.yield(ctx, s, &rec, err):
		case taken != nil:
			return rec, taken
		case !errors.As(err, &conflict):
			return rec, cni.Errorf(cni.CodeIO, "%w", err)
		}
		// Another ADD took it between the choice and the claim. The choice ends, with an error, when all is taken.
	}
}

// isSecondary reports whether another interface of the sandbox is on this network already, and has the sandbox's routes.
func (n *Network) isSecondary(req *cni.Request) bool {
	return slices.ContainsFunc(n.store.List(), func(rec attach.Record) bool {
		return rec.Network == NetworkName && rec.ContainerID == req.ContainerID && rec.IfName != req.IfName &&
			rec.BootID == n.opts.BootID && rec.State != attach.Closing && !rec.Secondary
	})
}

// pick is choose, and makes a port where choose says that it takes one.
func (n *Network) pick(ctx context.Context, s *settings, rec *attach.Record, standing bool) error {
	rec.OFPort = 0
	err := n.choose(s, rec, standing)
	if !errors.Is(err, errNoneStands) {
		return err
	}
	if err := n.standFor(ctx, rec); err != nil {
		return err
	}
	if err = n.choose(s, rec, false); err != nil {
		n.standing.give(rec.OFPort)
	}
	return err
}

// errNoneStands says that an attachment needs a port that stands, and none is free.
var errNoneStands = errors.New("no pre-plugged port is free")

// choose picks an address and a port number that no record has. A port that was made for the record stays its.
func (n *Network) choose(s *settings, rec *attach.Record, standing bool) error {
	inUse := n.store.InUse()
	n.picking.Lock()
	defer n.picking.Unlock()
	if n.pool.Subnet() != s.view.Local.Subnet {
		return cni.Errorf(cni.CodeTryAgainLater, "the node's subnet has just changed to %s: try again later", n.pool.Subnet())
	}
	address, err := n.pool.Pick(func(a netip.Addr) bool { return held(inUse.Addresses[NetworkName], a) })
	if err != nil {
		return cni.Errorf(cni.CodeTryAgainLater, "%w", err)
	}
	ofport := rec.OFPort
	if ofport == 0 && standing {
		ofport, _ = n.standing.take(s.mtu)
	}
	if ofport == 0 && rec.Bandwidth.Limited() {
		return errNoneStands
	}
	if ofport == 0 {
		ofport, err = n.ofports.Pick(func(p uint32) bool { return held(inUse.OFPorts, p) || n.standing.has(p) })
	}
	if err != nil {
		return cni.Errorf(cni.CodeTryAgainLater, "%w", err)
	}
	rec.Addresses = []netip.Prefix{netip.PrefixFrom(address, s.view.Local.Subnet.Bits())}
	rec.MAC = plan.MAC(rec.Addresses).String()
	rec.OFPort, rec.HostInterface = ofport, attach.PortName(ofport)
	return nil
}

func held[K comparable](claims map[K]attach.Key, what K) bool {
	_, ok := claims[what]
	return ok
}

// connect makes what the record says, and undoes it all if any of it fails.
func (n *Network) connect(ctx context.Context, s *settings, rec attach.Record) (*types100.Result, error) {
	var result *types100.Result
	created, err := n.program(ctx, s, &rec)
	if err == nil {
		result = plan.Result(&rec, &s.attachments, created.HostMAC)
		err = n.programMacvlan(ctx, &rec, result)
	}
	if err != nil {
		n.undo(ctx, rec.Key())
		return nil, codeOf(fmt.Errorf("pod %s/%s: %w", rec.PodNamespace, rec.PodName, err))
	}
	return result, nil
}

// program makes the interface, its port and its flows, side by side: a port without flows is closed, and flows without their
// port match nothing. An attachment that is there already is looked after: link and port and flows are made whole.
//
// The switch goes over all its ports whenever it hears of a row or a link, and answers nobody meanwhile. So it is to hear of
// both at once: who of them is first does not matter to it.
func (n *Network) program(ctx context.Context, s *settings, rec *attach.Record) (link.Created, error) {
	pair, err := n.pair(rec, &s.attachments)
	if err != nil {
		return link.Created{}, err
	}
	if err := s.pipeline.CheckPod(pod(rec)); err != nil {
		return link.Created{}, err
	}
	if pair.Standing != "" {
		return n.programUpon(ctx, s, rec, pair)
	}
	if err := n.inheritNothing(ctx, s, rec); err != nil {
		return link.Created{}, err
	}
	n.open(*rec)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rest, restCtx := errgroup.WithContext(ctx)
	rest.Go(func() error { return n.programFlows(restCtx, s, rec) })
	rest.Go(func() error { return n.programHostPorts(restCtx, rec) })
	linkMade := make(chan struct{})
	rest.Go(func() error { return n.plug(restCtx, rec, linkMade) })
	linkCtx, linked := timing.Start(ctx, stepLink)
	created, err := n.engines.Pods.Create(linkCtx, pair)
	linked(err)
	if err != nil {
		cancel() // what the others wait for is undone
		return created, errors.Join(err, withoutEnd(rest.Wait()))
	}
	close(linkMade)
	// The record says so before the switch does: an agent that ends in between makes the rest whole, and a runtime that was
	// not answered asks again, or takes the attachment back.
	done := *rec
	done.State = attach.Attached
	if err := n.put(ctx, &done); err != nil {
		cancel()
		return created, errors.Join(cni.Errorf(cni.CodeIO, "%w", err), withoutEnd(rest.Wait()))
	}
	if err := rest.Wait(); err != nil {
		return created, err
	}
	n.open(done)
	return created, nil
}

// programUpon makes an interface upon a standing port, and then its flows: who else is upon the port would be this pod with them.
func (n *Network) programUpon(ctx context.Context, s *settings, rec *attach.Record, pair link.Pair) (link.Created, error) {
	var forgotten errgroup.Group
	forgotten.Go(func() error { return n.inheritNothing(ctx, s, rec) })
	linkCtx, linked := timing.Start(ctx, stepLink)
	created, err := n.engines.Pods.Create(linkCtx, pair)
	linked(err)
	if err != nil {
		if errors.Is(err, link.ErrUnusable) {
			n.standing.condemn(rec.OFPort)
		}
		return created, errors.Join(err, forgotten.Wait())
	}
	if err := forgotten.Wait(); err != nil {
		return created, err
	}
	n.open(*rec)
	n.engines.Rows.Set(map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{owner(rec.Key()): n.podRows(rec)}) // which changes nothing
	flows, flowsCtx := errgroup.WithContext(ctx)
	flows.Go(func() error { return n.programFlows(flowsCtx, s, rec) })
	flows.Go(func() error { return n.programHostPorts(flowsCtx, rec) })
	done := *rec
	done.State = attach.Attached
	if err := n.put(ctx, &done); err != nil {
		return created, errors.Join(cni.Errorf(cni.CodeIO, "%w", err), flows.Wait())
	}
	if err := flows.Wait(); err != nil {
		return created, err
	}
	n.open(done)
	return created, nil
}

// pair returns an attachment's link.
func (n *Network) pair(rec *attach.Record, settings *plan.Settings) (link.Pair, error) {
	pair, err := plan.Pair(rec, settings)
	if err == nil && n.standing.has(rec.OFPort) {
		pair.Standing = n.opts.Ports
	}
	return pair, err
}

// withoutEnd returns an error unless it only says that its context ended.
func withoutEnd(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// plug has the switch take the attachment's port, and returns once it has: as soon as the switch says so itself, or else when
// its database does, which is what the row's commit waits for. A row that fails may have failed for its link, which is made
// meanwhile: only what fails when that is there has failed.
func (n *Network) plug(ctx context.Context, rec *attach.Record, linkMade <-chan struct{}) error {
	added, stop := n.engines.Ports.Added(rec.HostInterface, rec.OFPort)
	defer stop()
	portCtx, done := startCommit(ctx, stepPort)
	committed := make(chan error, 1)
	rows := map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{owner(rec.Key()): n.podRows(rec)}
	go func() {
		err := n.engines.Rows.Apply(portCtx, rows)
		if failed := new(ovsdb.PortError); errors.As(err, &failed) {
			select {
			case <-linkMade:
				err = n.engines.Rows.Apply(portCtx, rows)
			case <-portCtx.Done():
			}
		}
		committed <- err
	}()
	select {
	case <-added:
		done(nil)
		return nil
	case err := <-committed:
		done(err)
		return err
	}
}

// programFlows programs an attachment's flows. An Update that came meanwhile may have handed over newer ones, which these
// took the place of: they are then compiled again.
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

// undo removes what an ADD that failed has left. It works also when the ADD failed because its context ended.
func (n *Network) undo(ctx context.Context, key attach.Key) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := n.remove(ctx, []attach.Key{key}); err != nil {
		n.opts.Log.Warn("undoing an ADD that failed, going on in the background", "attachment", key.String(), "error", err)
		n.giveUp(ctx, key)
	}
}

// giveUp hands an attachment to the reaper, and has its record say so: should the agent end before the reaper is done,
// the next one must not take it for attached.
func (n *Network) giveUp(ctx context.Context, key attach.Key) {
	n.reaper.add(key)
	rec, err := n.store.Get(key)
	if err != nil || rec.State != attach.Attached {
		return
	}
	rec.State = attach.Closing
	if err := n.store.Put(context.WithoutCancel(ctx), rec); err != nil {
		n.opts.Log.Error("attachment abandoned, but its record still has the state attached", "attachment", key.String(), "error", err)
	}
}

// codeOf gives an error the code that runtimes act on.
func codeOf(err error) error {
	switch {
	case errors.Is(err, link.ErrNoNamespace), errors.Is(err, link.ErrNotNamespace):
		return cni.Errorf(cni.CodeInvalidNetns, "%w", err)
	case errors.Is(err, reconcile.ErrUnavailable), errors.Is(err, reconcile.ErrStopped),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return cni.Errorf(cni.CodeTryAgainLater, "%w: try again later", err)
	default:
		return err
	}
}
