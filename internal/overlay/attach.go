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
	"weft.dev/weft/internal/hostport/publish"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/egressrouter"
	"weft.dev/weft/internal/overlay/multicast"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/ports"
	"weft.dev/weft/internal/overlay/projects"
	"weft.dev/weft/internal/overlay/settings"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/timing"
)

var _ network.Network = (*Network)(nil)

// attachments makes, checks and removes attachments: it has the order of the steps. It implements network.Network, except Ready. It has no
// state of its own; the attachment's lock is held by the caller.
type attachments struct {
	engines *Engines
	store   *attach.Store
	opts    *Options
	pods    *openPods
	ports   *ports.Ports

	projects  *projects.Projects
	multicast *multicast.Feature
	routers   egressrouter.Routers
	hostPorts *publish.Publisher
	// ready returns what the network waits for, nil if pods can be attached.
	ready func() error
}

// Plan chooses the attachment's address and its port: a pre-plugged one if one is free. If a record of the attachment exists, its
// pre-plugged port was unusable, and the pod gets a port of its own. It implements network.Network.
func (a *attachments) Plan(ctx context.Context, req *cni.Request, _ placement.Decision, _ attach.InUse) (attach.Record, error) {
	s := a.pods.settings.Load()
	if err := unsupported(req); err != nil {
		return attach.Record{}, err
	}
	if s.HasVNIDs() {
		if err := a.projects.Await(ctx, req.Args.PodNamespace); err != nil {
			return attach.Record{}, err
		}
	}
	hostPorts, err := a.hostPorts.Requested(req)
	if err != nil {
		return attach.Record{}, err
	}
	second, err := a.routers.Requested(ctx, req)
	if err != nil {
		return attach.Record{}, err
	}
	limits, err := req.Bandwidth()
	if err != nil {
		return attach.Record{}, err
	}
	if limits.Limited() && a.engines.Shapers == nil {
		return attach.Record{}, cni.Errorf(cni.CodeUnsupportedField, "pod %s/%s: bandwidth limits need pre-plugged ports, and this agent has none: set --spare-ports",
			req.Args.PodNamespace, req.Args.PodName)
	}
	rec := attach.Record{
		Network: NetworkName, Gateway: []netip.Addr{s.Pipeline.Gateway}, MTU: s.MTU, HostPorts: hostPorts, Macvlan: second, Bandwidth: limits,
		Secondary: a.isSecondary(req),
	}
	key := attach.Key{ContainerID: req.ContainerID, IfName: req.IfName}
	_, former := a.store.Get(key)
	return rec, a.ports.Pick(ctx, &rec, &req.Args, s.Choice(key, errors.Is(former, attach.ErrNotFound)))
}

// Discard gives back the port that a record claimed. It implements network.Discarder.
func (a *attachments) Discard(rec attach.Record) {
	if _, claimed := a.store.InUse().OFPorts[rec.OFPort]; !claimed {
		a.ports.Preplugged.Give(rec.OFPort)
	}
}

// Connect creates the interface, its port and its flows. It implements network.Network.
func (a *attachments) Connect(ctx context.Context, rec *attach.Record) (*types100.Result, error) {
	s := a.pods.settings.Load()
	created, err := a.program(ctx, s, rec)
	if errors.Is(err, podlink.ErrUnusable) {
		a.ports.Preplugged.Discard(rec.OFPort)
		return nil, fmt.Errorf("%w: pre-plugged port %s: %w", network.ErrPlanAgain, rec.HostInterface, err)
	}
	if err != nil {
		return nil, err
	}
	rec.State = attach.Attached
	result := plan.Result(rec, &s.Attachments, created.HostMAC)
	return result, a.routers.Create(ctx, rec, result)
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
func (a *attachments) isSecondary(req *cni.Request) bool {
	return slices.ContainsFunc(a.store.List(), func(rec attach.Record) bool {
		return rec.Network == NetworkName && rec.ContainerID == req.ContainerID && rec.IfName != req.IfName &&
			rec.BootID == a.opts.BootID && rec.State != attach.Closing && !rec.Secondary
	})
}

// program creates the interface, its port and its flows, in parallel: a port without flows is closed, and flows without their port match
// nothing. For an attachment that exists already, it repairs link, port and flows.
//
// The switch goes over all its ports whenever a row or a link changes, and answers no request meanwhile. So both changes should reach it
// together; their order does not matter.
func (a *attachments) program(ctx context.Context, s *settings.Settings, rec *attach.Record) (podlink.Created, error) {
	pair, err := a.ports.Preplugged.Pair(rec, &s.Attachments)
	if err != nil {
		return podlink.Created{}, err
	}
	if err := s.Pipeline.CheckPod(settings.PodOf(rec)); err != nil {
		return podlink.Created{}, err
	}
	if pair.Preplugged != "" {
		return a.programPreplugged(ctx, s, rec, pair)
	}
	if err := a.inheritNothing(ctx, s, rec); err != nil {
		return podlink.Created{}, err
	}
	a.pods.open(*rec)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rest, restCtx := errgroup.WithContext(ctx)
	rest.Go(func() error { return a.programFlows(restCtx, s, rec) })
	rest.Go(func() error { return publishPorts(restCtx, a.hostPorts, rec) })
	linkCtx, linked := timing.Start(ctx, stepLink)
	created, err := a.engines.Pods.Create(linkCtx, pair)
	linked(err)
	if err != nil {
		cancel() // the link failed: stop the other steps
		return created, errors.Join(err, withoutEnd(rest.Wait()))
	}
	rest.Go(func() error { return plug(restCtx, a.ports, rec) })
	// The record is written as attached before the switch has everything. If the agent ends in between, the next agent completes the
	// attachment; the runtime, which got no answer, repeats ADD or sends DEL.
	if err := a.putAttached(ctx, rec); err != nil {
		cancel()
		return created, errors.Join(err, withoutEnd(rest.Wait()))
	}
	if err := rest.Wait(); err != nil {
		return created, err
	}
	a.pods.open(attached(*rec))
	return created, nil
}

// programPreplugged creates an interface on a pre-plugged port, and the flows only afterwards: with them, any other interface on the port would
// have this pod's identity.
func (a *attachments) programPreplugged(ctx context.Context, s *settings.Settings, rec *attach.Record, pair podlink.Pair) (podlink.Created, error) {
	var inherited errgroup.Group
	inherited.Go(func() error { return a.inheritNothing(ctx, s, rec) })
	linkCtx, linked := timing.Start(ctx, stepLink)
	created, err := a.engines.Pods.Create(linkCtx, pair)
	linked(err)
	if err != nil {
		return created, errors.Join(err, inherited.Wait())
	}
	if err := inherited.Wait(); err != nil {
		return created, err
	}
	a.ports.Preplugged.Occupy(rec)
	a.pods.open(*rec)
	flows, flowsCtx := errgroup.WithContext(ctx)
	flows.Go(func() error { return a.programFlows(flowsCtx, s, rec) })
	flows.Go(func() error { return publishPorts(flowsCtx, a.hostPorts, rec) })
	if err := a.putAttached(ctx, rec); err != nil {
		return created, errors.Join(err, flows.Wait())
	}
	if err := flows.Wait(); err != nil {
		return created, err
	}
	a.pods.open(attached(*rec))
	return created, nil
}

// withoutEnd returns err unless it only says that its context ended.
func withoutEnd(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// programFlows programs an attachment's flows. If the settings are replaced meanwhile, they are compiled again.
func (a *attachments) programFlows(ctx context.Context, s *settings.Settings, rec *attach.Record) error {
	for {
		if err := s.Pipeline.CheckPod(settings.PodOf(rec)); err != nil {
			return err
		}
		flowCtx, done := startCommit(ctx, stepFlows)
		var err error
		if s.Policies() {
			err = a.pods.policies.await(flowCtx, rec)
		} else {
			err = a.pods.apply(flowCtx, s, rec)
		}
		done(err)
		now := a.pods.settings.Load()
		if err != nil || now == s {
			return err
		}
		s = now
	}
}

// plug adds the attachment's port to the switch, as a step.
func plug(ctx context.Context, pods *ports.Ports, rec *attach.Record) error {
	ctx, done := startCommit(ctx, stepPort)
	err := pods.Plug(ctx, rec)
	done(err)
	return err
}

// publishPorts programs an attachment's host ports, if it has any, as a step.
func publishPorts(ctx context.Context, published *publish.Publisher, rec *attach.Record) error {
	if len(rec.HostPorts) == 0 {
		return nil
	}
	ctx, done := startCommit(ctx, stepHostPorts)
	err := published.Publish(ctx, rec)
	done(err)
	return err
}

// inheritNothing flushes the connections of another pod that had the attachment's addresses before: packets of such a connection would
// count as replies. The port is not open yet, so no new connection is made meanwhile.
func (a *attachments) inheritNothing(ctx context.Context, s *settings.Settings, rec *attach.Record) error {
	if !s.Policies() || rec.State == attach.Attached { // an attached pod keeps its own connections
		return nil
	}
	var flushes []openflow.CTFlush
	for _, address := range rec.Addresses {
		flushes = append(flushes, pipeline.Services{Config: &s.Pipeline}.FlushPod(address.Addr())...)
	}
	return named("flushing former connections of the address", a.engines.Connections.Flush(ctx, flushes))
}
